"""Hypothesis for this package: no deadline, since the machine may be busy with other things."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gpuguard", deadline=None)
settings.load_profile("gpuguard")
