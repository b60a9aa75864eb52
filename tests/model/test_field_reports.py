"""The numbers of public reports, through the functions that decide: each number is one that somebody has posted."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpuguard.errors import ProgramError
from gpuguard.guard.cause import Causes
from gpuguard.model.accepted import accepted_code
from gpuguard.model.device_classes import BUILT_IN, Guarded
from gpuguard.model.device_filter import DeviceFilter, Owner
from gpuguard.model.deviceallow import NodeFacts, declared_rules, merge
from gpuguard.model.entitlement import Entitlement, learn
from gpuguard.model.fragment import parse_fragments
from gpuguard.model.gpu_inventory import Gpu, GpuInventory, MigInstance, Node, cap_node
from gpuguard.model.gpu_translation import granted, translate
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.nvidia_request import Honoured
from gpuguard.model.observation import Declared, Observation
from gpuguard.model.plan import Futile, Plan, plan
from gpuguard.model.reload import in_force_v1
from gpuguard.model.rule import CHAR, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.stale import stale
from gpuguard.model.state import State
from gpuguard.model.unit import DevicePolicy
from gpuguard.model.verdict import Verdict, judge
from tests.lab import device_programs
from tests.model.looks import GROUP, SCOPE, entitlement, look, rules
from tests.model.programs import look_at, runtime, systemd

# What runc gives every container, and what systemd makes of it.
DEFAULTS = ("c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm", "c 5:2 rwm", "c 136:* rwm")
EVERYONES = (*DEFAULTS, "c 10:200 rwm", "c *:* m", "b *:* m")

DRIVERS = Majors(frozenset({(CHAR, 195, "nvidia-frontend"), *((CHAR, n, "nvidia-uvm") for n in (507, 508, 509))}))
FACTS = NodeFacts(252, DRIVERS)
NOTHING = Declared(declared_rules(DevicePolicy.STRICT, (), FACTS))


def guarded_with(*drivers: tuple[int, str]) -> Guarded:
    """Return the guarded class of NVIDIA's devices, where the host has these drivers, too."""
    return Guarded.of([BUILT_IN["nvidia"]], Majors(DRIVERS.drivers | {(CHAR, *driver) for driver in drivers}))


guarded = guarded_with()


def planned(seen: Observation, known: Entitlement, verdict: Verdict, **facts: Futile) -> Plan:
    """Plan as the guard does, on a host that has the drivers of above."""

    def spell(declared: Declared, wanted: Iterable[Rule]):  # type: ignore[no-untyped-def] # noqa: ANN202 - Merge
        return merge(declared.policy, declared.entries, wanted, FACTS, disk=declared.disk)

    return plan(seen, known, verdict, guarded=guarded, merge=spell, protect=True, **facts)  # type: ignore[arg-type]


def stripped(before: RuleSet, after: RuleSet) -> tuple[Verdict, Plan]:
    """Learn a list as it was, and judge and plan the list as it became; systemd knows nothing of it."""
    first = learn(None, look(before, NOTHING, at=1.0), guarded, settle=1.0, reloading=False, wall_clock=1.0)
    assert first is not None
    known = learn(first, look(before, NOTHING, at=9.0), guarded, settle=1.0, reloading=False, wall_clock=9.0)
    assert known is not None
    assert known.settled
    seen = look(after, NOTHING, at=10.0)
    verdict = judge(seen, known, guarded)
    return verdict, planned(seen, known, verdict)


class TestLists:
    """Lists of cgroup v1, before and after."""

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        ("before", "after", "lost"),
        [
            pytest.param(
                ["c 195:0 rw", "c 195:254 rw", "c 195:255 rw"],
                ["c 195:* m"],
                ["c 195:0 rw", "c 195:254 rw", "c 195:255 rw"],
                id="NVIDIA/nvidia-container-toolkit#251",
            ),
            pytest.param(
                [*DEFAULTS, "c 195:0 rw", "c 195:255 rw", "c 507:0 rw", "c 507:1 rw"],
                [*DEFAULTS, "c 195:* m", "c 507:* m"],
                ["c 195:0 rw", "c 195:255 rw", "c 507:0 rw", "c 507:1 rw"],
                id="NVIDIA/nvidia-docker#1618",
            ),
            pytest.param(
                [*EVERYONES, "c 195:255 rw", "c 508:0 rw", "c 508:1 rw", "c 195:7 rw"],
                EVERYONES,
                ["c 195:7 rw", "c 195:255 rw", "c 508:0 rw", "c 508:1 rw"],
                id="NVIDIA/nvidia-container-toolkit#192",
            ),
        ],
    )
    def test_a_reload(self, before: list[str], after: list[str], lost: list[str]) -> None:
        """What is left opens nothing, whatever majors it names: all is lost, and just that is given back."""
        verdict, found = stripped(RuleSet.parse("\n".join(before)), RuleSet.parse("\n".join(after)))
        assert (verdict.state, verdict.lost) == (State.LOST, rules(*lost))
        assert list(map(str, found.write)) == lost
        assert verdict.excess == frozenset()

    def test_the_fixed_major_alone(self) -> None:
        """NVIDIA/nvidia-docker#1618: with 195 healed and nvidia-uvm not, nvidia-smi works and CUDA does not."""
        before = RuleSet.of("c 195:0 rw", "c 195:255 rw", "c 507:0 rw")
        verdict, found = stripped(before, RuleSet.of("c 195:0 rw", "c 195:255 rw", "c 507:* m"))
        assert (verdict.state, list(map(str, found.write))) == (State.PARTIAL, ["c 507:0 rw"])


class TestDropIns:
    """NVIDIA/nvidia-container-toolkit#1744: two containers of one host, and what systemd was told of each."""

    OTHERS = ("char-136 rwm", "char-* m", "block-* m", *(f"/dev/char/1:{minor} rwm" for minor in (3, 5, 7, 8, 9)))
    GIVEN = ("195:0", "195:254", "195:255", "509:0", "509:1", "226:1", "226:128")

    @staticmethod
    def declared(entries: Iterable[str]) -> Declared:
        """Read a drop-in as systemd writes it."""
        lines = ["[Scope]", "DeviceAllow=", *(f"DeviceAllow={entry}" for entry in entries)]
        policy, parsed = parse_fragments(SCOPE, ["[Scope]\nDevicePolicy=strict\n", "\n".join(lines)])
        return Declared(declared_rules(policy, parsed, FACTS), None, policy, parsed)

    def test_safe(self) -> None:
        """Its devices are in the drop-in: a reload takes nothing, and there is nothing to do."""
        known = entitlement("c 195:0 rwm", "c 195:254 rwm", "c 195:255 rwm", "c 509:0 rwm", "c 509:1 rwm")
        declared = self.declared([*self.OTHERS, *(f"/dev/char/{number} rwm" for number in self.GIVEN)])
        seen = look(declared.memory, declared)
        verdict = judge(seen, known, guarded)
        assert verdict == Verdict(State.PROTECTED)
        assert planned(seen, known, verdict) == Plan()
        after = [in_force_v1(rule, declared.memory, declared, shield=False, denied_above=False) for rule in known.rules]
        assert all(after)

    @pytest.mark.invariant(1)
    def test_at_risk(self) -> None:
        """They are not: the next reload takes them, and they are declared by their numbers, with their access."""
        known = entitlement("c 195:0 rw", "c 195:254 rw", "c 195:255 rw", "c 509:0 rw", "c 509:1 rw")
        declared = self.declared(self.OTHERS)
        seen = look(RuleSet(declared.memory.rules | known.rules | rules("c 226:1 rw", "c 226:128 rw")), declared)
        verdict = judge(seen, known, guarded)
        assert (verdict.state, verdict.at_risk) == (State.AT_RISK, known.rules)
        sent = {str(entry) for entry in planned(seen, known, verdict).declare}
        assert sent == {f"/dev/char/{number} rw" for number in self.GIVEN}
        after = [in_force_v1(rule, seen.effective, declared, shield=False, denied_above=False) for rule in known.rules]
        assert not any(after)


class TestPrograms:
    """Device programs of cgroup v2."""

    GPU = ("c 195:0 rw", "c 195:255 rw", "c 508:0 rw")
    TOLD = Declared(RuleSet.of(*DEFAULTS))

    def accepted(self, *, hooked: bool) -> RuleSet:
        """Return what the program of the hook, or of systemd, accepts, from its instructions."""
        plain = list(map(Rule.parse, DEFAULTS))
        gpu = list(map(Rule.parse, self.GPU))
        code = device_programs.hook(device_programs.runc(plain), gpu) if hooked else device_programs.systemd(plain)
        return accepted_code(code)

    def test_two_programs(self) -> None:
        """opencontainers/runc#4859: one of them has the device, systemd's has not, and both must allow.

        The first look after it learns what was given from the runtime's program; declared, it comes back.
        """
        ours, theirs = self.accepted(hooked=True), self.accepted(hooked=False)
        assert all(ours.covers(Rule.parse(line)) for line in self.GPU)
        filters = DeviceFilter(GROUP, 11, Owner.RUNTIME, ours), DeviceFilter(GROUP, 12, Owner.SYSTEMD, theirs)
        seen = look_at(*filters, declared=self.TOLD)
        known = learn(None, seen, guarded, settle=1.0, reloading=False, wall_clock=1.0)
        assert known is not None
        assert known.rules == rules(*self.GPU)
        verdict = judge(seen, entitlement(*self.GPU), guarded)
        assert (verdict.state, verdict.blocked) == (State.LOST, frozenset())
        assert verdict.reason is not None
        assert verdict.reason.startswith(f"systemd's program 12 on {GROUP} denies c 195:0 rw")
        sent = {str(entry) for entry in planned(seen, entitlement(*self.GPU), verdict).declare}
        assert sent == {"/dev/char/195:0 rw", "/dev/char/195:255 rw", "/dev/char/508:0 rw"}

    def test_two_levels(self) -> None:
        """containers/crun#1738: systemd's program is on the scope, the runtime's on a group below: the scope denies."""
        below = runtime(*DEFAULTS, *self.GPU, on=f"{GROUP}/container")
        seen = look_at(below, systemd(*DEFAULTS), declared=self.TOLD)
        verdict = judge(seen, entitlement(*self.GPU), guarded)
        assert (verdict.state, verdict.blocked) == (State.LOST, frozenset())
        assert verdict.reason is not None
        assert f"on {GROUP} denies" in verdict.reason
        assert planned(seen, entitlement(*self.GPU), verdict).declare != ()

    def test_sixty_four_programs(self) -> None:
        """opencontainers/runc#2876: no more can be attached (E2BIG), and so systemd's own stays as it is.

        A declaration that has changed nothing is not sent again and again.
        """
        leaked = [DeviceFilter(GROUP, number, Owner.RUNTIME, RuleSet.of(*DEFAULTS, *self.GPU)) for number in range(63)]
        seen = look_at(*leaked, systemd(*DEFAULTS), declared=self.TOLD)
        verdict = judge(seen, entitlement(*self.GPU), guarded)
        assert (verdict.state, verdict.lost) == (State.LOST, rules(*self.GPU))
        assert planned(seen, entitlement(*self.GPU), verdict).declare != ()
        assert planned(seen, entitlement(*self.GPU), verdict, futile=Futile(self.TOLD, rules(*self.GPU))).declare == ()

    @pytest.mark.invariant(4)
    def test_instructions_that_are_hidden(self) -> None:
        """bottlerocket-os/bottlerocket#2504: the kernel gives zeros for them: unknown, and neither lost nor learnt."""
        with pytest.raises(ProgramError):
            accepted_code(bytes(8 * 52))
        seen = look(None, self.TOLD, trouble="the kernel hides its instructions")
        known = entitlement(*self.GPU)
        verdict = judge(seen, known, guarded)
        assert verdict == Verdict(State.OPAQUE, "the kernel hides its instructions")
        assert planned(seen, known, verdict) == Plan()
        assert learn(None, seen, guarded, settle=1.0, reloading=False, wall_clock=1.0) is None


class TestNumbers:
    """Numbers that are given out anew, or are a tenant's own."""

    @pytest.mark.invariant(1)
    def test_a_major_that_moved(self) -> None:
        """wendylabsinc/WendyOS#1888: 497 was the GPU's and is nvidia-caps' now: told, and never given again."""
        old = Rule.parse("c 497:* rw")
        now = Majors.parse("Character devices:\n195 nvidia\n496 nvgpu\n497 nvidia-caps\n")
        found = stale({old}, {(CHAR, 497, "nvgpu")}, now, {}, {})
        assert set(found) == {old}
        assert "now has major 496" in found[old]
        assert "497 is nvidia-caps's" in found[old]
        known = entitlement(str(old))
        guards = Guarded.of([BUILT_IN["nvidia"]], now)
        for effective in (RuleSet(frozenset({old})), RuleSet()):
            seen = look(effective, NOTHING)
            verdict = judge(seen, known, guards, found)
            assert (verdict.state, verdict.excess, verdict.lost) == (State.STALE, effective.rules, frozenset())
            assert "restart" in str(verdict.reason)
            assert planned(seen, known, verdict) == Plan()

    @pytest.mark.invariant(1)
    def test_mig_capabilities(self) -> None:
        """NVIDIA/nvidia-container-toolkit#1740: 237:1 and 237:2 manage and watch MIG on the whole host: not by request.

        The access to an instance (237:102 on) comes only with a proof that it was given.
        """
        number = {minor: DeviceNumber(CHAR, 237, minor) for minor in (1, 2, 102, 103)}
        nodes = {cap_node(minor): Node(known, 1.0) for minor, known in number.items()}
        nodes["/dev/nvidia0"] = Node(DeviceNumber(CHAR, 195, 0), 1.0)
        nodes["/dev/nvidiactl"] = Node(DeviceNumber(CHAR, 195, 255), 1.0)
        majors = Majors(frozenset({(CHAR, 237, "nvidia-caps"), (CHAR, 195, "nvidia")}))
        gpu = Gpu(0, 0, "GPU-0", "0000:10:00.0")
        inventory = GpuInventory((gpu,), frozenset(), (MigInstance(0, 11, 0, (102, 103)),), nodes, majors)
        every = frozenset(node.number for node in nodes.values())
        for manages in (False, True):
            request = Honoured(("all",), frozenset({"utility"}), "NVIDIA_VISIBLE_DEVICES=all", manages_mig=manages)
            translation = translate(request, inventory, started=5.0)
            unproven, _ = granted(translation, None)
            assert unproven == rules("c 195:0 rw", "c 195:255 rw")
            proven, _ = granted(translation, every)
            assert proven == unproven | (frozenset() if manages else rules("c 237:102 rw", "c 237:103 rw"))

    @pytest.mark.invariant(1)
    @pytest.mark.invariant(2)
    def test_imex_channels(self) -> None:
        """NVIDIA/libnvidia-container#242: a channel is a tenant's: 508:0, 508:1 and 508:2047, and no other minor."""
        given = ("c 508:0 rw", "c 508:1 rw", "c 508:2047 rw")
        before = RuleSet.of(*DEFAULTS, *given)
        verdict, found = stripped(before, RuleSet.of(*DEFAULTS))
        assert (verdict.state, list(map(str, found.write))) == (State.LOST, list(given))
        verdict, found = stripped(before, before)
        assert verdict.state is State.AT_RISK
        numbers = {str(entry) for entry in found.declare if "508" in str(entry)}
        assert numbers == {f"/dev/char/{line[2:]}" for line in given}
        declared = declared_rules(DevicePolicy.STRICT, found.declare, FACTS)
        assert not declared.covers(Rule.parse("c 508:2 r"))


def test_two_seconds() -> None:
    """Datura-ai/lium-io#1007: systemd reloads at 09:12:20, and at 09:12:22 the container fails: that was the reload."""
    began = 9 * 3600 + 12 * 60 + 20.0
    causes = Causes()
    causes.reload_began(began)
    assert causes.of_loss(SCOPE, GROUP, began + 0.2).cause == "reload"
    causes.reload_ended(began + 0.4)
    found = causes.of_loss(SCOPE, GROUP, began + 2.0, whole_at=began - 1.0)
    assert (found.cause, found.program, found.since) == ("reload", "systemd", began)
    assert causes.of_loss(SCOPE, GROUP, began + 60.0).cause == "unknown"
