"""Why systemd must not be told anything about a unit's devices."""

from __future__ import annotations

import enum


class Refusal(str, enum.Enum):
    """The reasons, as people read them."""

    GATED = "its devices are gated by BPFProgram=: an entry would add a second filter that denies the rest"
    UNFILTERED = "systemd has no device filter for it: one entry would create one"
    NOT_TRANSIENT = "not a transient unit: a declaration would outlive this run of it"
    RESTARTABLE = "a service can be restarted: a declaration would outlive this run of it"
    UNMANAGED = (
        "systemd does not manage this control group (cgroupfs driver): nothing to declare, and no reload touches it"
    )
    BELOW = "this control group is below its unit's: on cgroup v1 no reload touches it, and there is nothing to declare"
