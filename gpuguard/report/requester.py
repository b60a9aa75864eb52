"""Names of requesters as labels: what is counted anew for each session or run would be a series of its own. Pure."""

from __future__ import annotations

import re

# logind's sessions; systemd-run's units (run-u7, run-r<32 digits>, run-p12-i34); instances of templates.
_SESSION = re.compile(r"session-[A-Za-z]*\d+\.scope")
_RUN = re.compile(r"run-[a-z]?[0-9a-f]+(?:-[a-z]?\d+)*\.(service|scope)")
_INSTANCE = re.compile(r"([^@]+)@[^@]+\.([a-z]+)")
_CONTAINER = re.compile(r"(\S+) container [0-9A-Za-z._-]+")


def kind_of_requester(name: str) -> str:
    """Return the name without what tells one session, run, instance or container from another."""
    if _SESSION.fullmatch(name):
        return "session-*.scope"
    run = _RUN.fullmatch(name)
    if run is not None:
        return f"run-*.{run[1]}"
    instance = _INSTANCE.fullmatch(name)
    if instance is not None:
        return f"{instance[1]}@*.{instance[2]}"
    container = _CONTAINER.fullmatch(name)
    return f"{container[1]} container" if container is not None else name
