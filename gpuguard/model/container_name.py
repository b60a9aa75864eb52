"""What people call a container, and what they type for it. Pure."""

from __future__ import annotations

from typing import Optional

_GENERATED_ID = 64
_SHORT_ID = 12


def full_name(namespace: Optional[str], pod: Optional[str], name: Optional[str]) -> str:
    """Return its name, in Kubernetes namespace/pod/name, as much of it as is known; "" for a container without one."""
    return "/".join(part for part in (namespace, pod, name) if part)


def short_id(cid: str) -> str:
    """Return as much of an id as docker ps and crictl ps print; one that somebody chose is shown whole."""
    return cid[:_SHORT_ID] if len(cid) == _GENERATED_ID else cid
