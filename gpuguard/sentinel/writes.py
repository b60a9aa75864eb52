"""cgroup v1: heal at the write."""

from gpuguard.sentinel.link import Link
from gpuguard.sentinel.settings import Settings


def run(link: Link, settings: Settings) -> None:
    """Stub."""
