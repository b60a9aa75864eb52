"""Fixtures for all tests; each plugin has its own subject."""

from __future__ import annotations

pytest_plugins = ["tests.lab.fixtures", "tests.lab.sim.fixtures"]
