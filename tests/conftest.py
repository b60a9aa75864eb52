"""Fixtures for all tests; each plugin has its own subject.

Hypothesis has no deadline: the machine may be busy with other things.
"""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["tests.lab.fixtures", "tests.lab.sim.fixtures"]

settings.register_profile("gpuguard", deadline=None)
settings.load_profile("gpuguard")
