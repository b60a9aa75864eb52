"""Every error that gpuguard raises on purpose; all share one root."""

from __future__ import annotations


class GpuguardError(Exception):
    """Root of gpuguard's errors. The text says what happened, to what, why, and what to do."""


class ConfigError(GpuguardError):
    """A configuration file or value that cannot be used."""


class RuleError(GpuguardError, ValueError):
    """A text that is not a device rule, or a rule that cannot be used there."""


class CgroupGoneError(GpuguardError):
    """The control group is not there any more, or another one has taken its name."""


class CgroupUnreadableError(GpuguardError):
    """The kernel's answer cannot be had. It says nothing about the state of the control group."""


class ProgramGoneError(CgroupUnreadableError):
    """A BPF program was detached between being listed and being read: list the programs again."""


class BpfUnavailableError(CgroupUnreadableError):
    """No bpf(2) for device programs here: the kernel is too old or built without it, or the machine is not known."""


class ProgramError(GpuguardError):
    """A device program that gpuguard cannot follow exactly: what it permits is unknown."""


class DeniedError(GpuguardError):
    """The kernel refuses a rule; the text names the ancestor that denies it."""


class BusError(GpuguardError):
    """The D-Bus peer answered with an error, or the answer is not what was asked for.

    `name` is the D-Bus error name, "" when no peer gave one.
    """

    name = ""


class BusUnavailableError(BusError):
    """No bus, or the connection broke: whether a call in flight was carried out is unknown."""


class BusTimeoutError(BusError):
    """No answer in time: whether the call was carried out is unknown."""


class NoSuchUnitError(BusError):
    """systemd does not know the unit (any more)."""


class SourceError(GpuguardError):
    """An event source that cannot deliver here, or no longer."""


class UnitFileError(GpuguardError):
    """A unit's file on disk cannot be read: what systemd would make of it at its next reload is unknown."""


class LedgerError(GpuguardError):
    """The ledger on disk cannot be read or written."""


class FanotifyError(GpuguardError):
    """Writes to device lists cannot be seen as they happen: no fanotify here, or no right to it, or no more of it."""


class SentinelError(GpuguardError):
    """What the daemon and its sentinel said to each other makes no sense, or there is no sentinel to talk to."""


class TraceUnavailableError(GpuguardError):
    """The kernel's tracer cannot be had: it is not mounted, locked down, or built without what is needed."""


class NotFoundError(GpuguardError):
    """No GPU container, or no device, goes by the name that was given."""


class SpecError(GpuguardError):
    """A text of a container runtime's that cannot be understood: nothing of it is believed."""


class RuntimeFileError(GpuguardError):
    """A file of a runtime's that is not believed. Its container's user may have seen to that, but for the kinds below.

    So it can be too large for having all of his annotations in it.
    """


class RuntimeFileLateError(RuntimeFileError):
    """It could not be read in time: the disk may be slow, or there may be much to read."""


class RuntimeFileUnreadableError(RuntimeFileError):
    """It cannot be read, or others than root may have written it: its container's user has no part in that."""


class RuntimeRunError(RuntimeFileError):
    """What a runtime has noted of a container's run is not true now: that can be the container's own doing."""


class RuntimeFileAbsentError(RuntimeFileError):
    """There is no such file."""


class ToolkitError(GpuguardError):
    """NVIDIA's container toolkit cannot be judged: its configuration is not known, or cannot be understood."""
