"""Fixtures for all tests; each plugin has its own subject.

Hypothesis has no deadline: the machine may be busy with other things.
"""

from __future__ import annotations

import signal

from hypothesis import settings

pytest_plugins = ["tests.lab.fixtures", "tests.lab.sim.fixtures"]

settings.register_profile("gpuguard", deadline=None)
settings.load_profile("gpuguard")

# A shell's background job ignores SIGINT, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
