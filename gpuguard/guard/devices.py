"""Which devices are guarded on this host now, and how they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Optional

from gpuguard.config import Devices
from gpuguard.kernel.procfs import Host
from gpuguard.model.device_classes import BUILT_IN, DeviceClass, Guarded
from gpuguard.model.deviceallow import NodeFacts, merge, standard_rules
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.observation import Declared
from gpuguard.model.rule import Access, Rule
from gpuguard.model.unit import DeviceAllow, DevicePolicy

# The minors that a driver's devices have: NVIDIA's control node is 255.
_MINORS = range(256)


class GuardedDevices:
    """The guarded classes in numbers, as the host has them at the last refresh()."""

    def __init__(self, settings: Devices, host: Host) -> None:
        self._host = host
        self.classes = [BUILT_IN[name] for name in settings.classes] + [
            DeviceClass(custom.name, frozenset(custom.majors), custom.drivers, custom.nodes)
            for custom in settings.custom
        ]
        self._majors = Majors()
        self._nodes: dict[str, DeviceNumber] = {}
        self._guarded = Guarded(frozenset())
        self.generation = 0
        """Another one when drivers or nodes have come, gone or got other numbers."""

    def refresh(self) -> None:
        """Read /proc/devices and the device nodes again. Raises CgroupUnreadableError; then nothing changes."""
        majors = Majors.parse(self._host.devices())
        patterns = [glob for known in self.classes for glob in known.nodes]
        nodes = dict(self._host.nodes(patterns))
        if (nodes, majors) != (self._nodes, self._majors):
            self.generation += 1
        self._nodes, self._majors = nodes, majors
        self._guarded = Guarded.of(self.classes, majors, self._nodes.values())

    @property
    def nodes(self) -> Mapping[str, DeviceNumber]:
        """The host's guarded device nodes: path and number, as of the last refresh()."""
        return self._nodes

    @property
    def majors(self) -> Majors:
        """The host's registered drivers, as of the last refresh()."""
        return self._majors

    def __call__(self, rule: Rule) -> bool:
        """Whether the rule lets anybody open a guarded device."""
        return self._guarded(rule)

    def candidates(self) -> Iterator[Rule]:
        """Yield one rule for each device worth asking about: the standard ones, and those of the guarded classes."""
        yield from (rule for rule in standard_rules(DevicePolicy.CLOSED, ()) if rule.minor is not None)
        yield from (Rule(*number, Access.RWM) for number in self._nodes.values())
        yield from (Rule(kind, major, minor, Access.RWM) for kind, major in self._guarded.majors for minor in _MINORS)

    def node_of(self, rule: Rule) -> Optional[str]:
        """Return the host's node of an exact rule, such as /dev/nvidia0, or None."""
        if rule.major is None or rule.minor is None:
            return None
        number = DeviceNumber(rule.kind, rule.major, rule.minor)
        return next(iter(self._facts(0).paths_of(number)), None)

    def merge(
        self, systemd: int, declared: Declared, wanted: Iterable[Rule]
    ) -> tuple[tuple[DeviceAllow, ...], tuple[Rule, ...]]:
        """Return what to send so that systemd of this version declares `wanted`, and what has no spelling."""
        return merge(declared.policy, declared.entries, wanted, self._facts(systemd), disk=declared.disk)

    def _facts(self, systemd: int) -> NodeFacts:
        return NodeFacts(systemd, self._majors, self._nodes)
