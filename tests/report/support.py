"""What the tests of gpuguard.report share: tools of the machine, container statuses, waiting."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable

import pytest

from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus

PATIENCE = 30.0


def tool(name: str) -> str:
    """Return the path of a program; without it the test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def status(number: int, state: State = State.PROTECTED, name: str = "trainer") -> ContainerStatus:
    """Return a container that only its number tells from others."""
    identity = f"{number:064x}"
    scope = f"docker-{identity}.scope"
    return ContainerStatus(scope, f"/system.slice/{scope}", identity, "docker", state, name=name)


async def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until the condition holds; fail after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)
