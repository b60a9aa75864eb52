"""The back-off's old place."""

from gpuguard.model.backoff import Backoff as Backoff  # noqa: PLC0414 - handed on
