"""A request in device numbers, on simulated hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.gpu_inventory import GpuInventory, MigInstance, Node, rule_number
from gpuguard.model.gpu_translation import LOADING, Translation, granted, translate
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.nvidia_request import Honoured
from gpuguard.model.rule import CHAR, Access, Rule
from gpuguard.model.toolkit import CAPABILITIES
from tests.model.gpus import CAPS, DRIVER, MADE, STARTED, UVM, gpu, inventory, nodes, rules, uuid

LATER = STARTED + LOADING + 1
UTILITY = frozenset({"utility"})
CONTROL = rules("195:255")
# The order of addresses is another one than that of minors, as on real boards.
HOST = inventory(gpu(0, 2), gpu(1, 0), gpu(2, 1))
MIG = inventory(
    gpu(0, 1),
    gpu(1, 0),
    instances=(MigInstance(1, 3, 0, (165, 166)), MigInstance(1, 5, 1, (183, 185)), MigInstance(0, 1, 0, (12, 13))),
)
# The driver says nothing, as where /proc/driver is another kernel's or there is no driver at all.
SILENT = GpuInventory(nodes=nodes([0, 1]), majors=Majors(frozenset()))


def ask(*devices: str, capabilities: frozenset[str] = UTILITY) -> Honoured:
    """Return a request."""
    return Honoured(devices, capabilities, "NVIDIA_VISIBLE_DEVICES")


def gpus(translation: Translation) -> tuple[frozenset[Rule], frozenset[Rule]]:
    """Return what is exact and what is possible beyond, without the control node, that there must be."""
    assert translation.exact >= CONTROL
    assert translation.possible >= translation.exact
    return translation.exact - CONTROL, translation.possible - translation.exact


def translated(found: GpuInventory, *devices: str) -> tuple[frozenset[Rule], frozenset[Rule]]:
    """Return what a request for devices is, exact and possible beyond, and that it is all known."""
    translation = translate(ask(*devices), found, STARTED)
    assert translation.unknown == ()
    return gpus(translation)


def doubted(found: GpuInventory, *devices: str) -> tuple[frozenset[Rule], frozenset[Rule]]:
    """Return the same for a request that cannot be told wholly."""
    translation = translate(ask(*devices), found, STARTED)
    assert translation.unknown
    return gpus(translation)


def with_node(found: GpuInventory, path: str, made: float = MADE, minor: int = 0, major: int = 195) -> GpuInventory:
    """Return a host with one node more, or another one."""
    return replace(found, nodes={**found.nodes, path: Node(DeviceNumber(CHAR, major, minor), made)})


class TestGpus:
    """Whole GPUs."""

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        ("device", "number"),
        [
            ("0", "195:2"),
            ("1", "195:0"),
            ("02", "195:1"),
            (uuid(0), "195:0"),
            (uuid(1).upper(), "195:1"),
            ("0000:10:00.0", "195:2"),
            ("00000000:11:00.0", "195:0"),
            ("0:12:0.0", "195:1"),
        ],
    )
    def test_one(self, device: str, number: str) -> None:
        """By index in the order of addresses, by UUID, by address: that GPU's minor and no other."""
        assert translated(HOST, device) == (rules(number), frozenset())

    def test_several(self) -> None:
        """Each of the list."""
        assert translated(HOST, "0", uuid(1), "0") == (rules("195:2", "195:1"), frozenset())

    @pytest.mark.parametrize("word", ["all", "ALL"])
    def test_all(self, word: str) -> None:
        """Every GPU that the driver shows."""
        assert translated(HOST, word) == (rules("195:0", "195:1", "195:2"), frozenset())

    def test_none(self) -> None:
        """The driver without a GPU."""
        assert translated(HOST) == (frozenset(), frozenset())

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "device",
        [
            "3",
            "9999",
            uuid(7),
            "GPU-",
            uuid(0)[:20],
            "0000:10:00.1",
            "00:10.0",
            "-1",
            "+0",
            "\u0660",
            "0x0",
            "*",
            "a\n",
        ],
    )
    def test_what_is_not_there(self, device: str) -> None:
        """Nothing is guessed from it."""
        assert doubted(HOST, device) == (frozenset(), frozenset())

    def test_a_gpu_that_the_driver_keeps_from_all(self) -> None:
        """It has a node, and no index."""
        found = replace(with_node(HOST, "/dev/nvidia3", minor=3), excluded=frozenset({3}))
        assert translated(found, "all") == (rules("195:0", "195:1", "195:2"), frozenset())
        assert translated(found, "2") == (rules("195:1"), frozenset())


class TestComings:
    """Hosts that are not any more as they were at the container's start."""

    @pytest.mark.invariant(1)
    def test_a_node_of_later_was_not_given(self) -> None:
        """Neither for certain nor possibly."""
        found = with_node(HOST, "/dev/nvidia0", made=LATER)
        assert doubted(found, "all") == (rules("195:1", "195:2"), frozenset())
        assert gpus(translate(ask(uuid(0)), found, STARTED)) == (frozenset(), frozenset())

    @pytest.mark.invariant(1)
    def test_a_node_of_the_hooks_own_making(self) -> None:
        """Of the first container after a boot: given if it is mounted, and not for certain."""
        young = {path: node._replace(made=STARTED + 2) for path, node in HOST.nodes.items()}
        found = replace(HOST, nodes=young)
        translation = translate(ask("1"), found, STARTED)
        assert translation.exact == frozenset()
        assert translation.possible >= CONTROL | rules("195:0")
        mounted = frozenset({DeviceNumber(CHAR, 195, 255), DeviceNumber(CHAR, 195, 0)})
        assert granted(translation, mounted)[0] == CONTROL | rules("195:0")
        assert granted(translation, None)[0] == frozenset()

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(("seconds", "possible"), [(30.0, True), (31.0, False)])
    def test_how_late_a_node_of_the_hooks_making_may_be(self, seconds: float, possible: bool) -> None:
        """What comes later came with a GPU that nobody had asked for."""
        found = with_node(HOST, "/dev/nvidia0", made=STARTED + seconds)
        assert (rules("195:0") <= translate(ask("all"), found, STARTED).possible) is possible

    def test_what_is_not_there_is_left_out(self) -> None:
        """A host without nvidia-modeset has nothing to give for a display."""
        found = replace(HOST, nodes={path: node for path, node in HOST.nodes.items() if "modeset" not in path})
        assert translate(ask(capabilities=frozenset({"display"})), found, STARTED) == Translation(CONTROL, CONTROL)

    @pytest.mark.invariant(1)
    def test_a_gpu_has_gone_with_its_node(self) -> None:
        """Its minor is missing: an index is another GPU's by now, a UUID is not."""
        found = inventory(gpu(0, 1), gpu(1, 2))
        exact, possible = gpus(translate(ask("1"), found, STARTED))
        assert (exact, possible) == (frozenset(), rules("195:1", "195:2"))
        assert gpus(translate(ask(uuid(2)), found, STARTED))[0] == rules("195:2")

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "found",
        [
            with_node(HOST, "/dev/nvidia3", minor=3),
            with_node(HOST, "/dev/nvidia3", minor=3, made=LATER),
            replace(HOST, nodes={path: node for path, node in HOST.nodes.items() if path != "/dev/nvidia0"}),
        ],
    )
    def test_indexes_shift(self, found: GpuInventory) -> None:
        """With a GPU that has gone or come an index may have been another's; a UUID was not."""
        exact, possible = doubted(found, "1")
        assert exact == frozenset()
        assert possible >= rules("195:1", "195:2")
        assert rules("195:3").isdisjoint(possible) or found.nodes["/dev/nvidia3"].made == MADE
        assert translated(found, uuid(1)) == (rules("195:1"), frozenset())

    def test_all_may_have_been_more(self) -> None:
        """A node that no GPU is behind now may have been one's."""
        found = with_node(HOST, "/dev/nvidia3", minor=3)
        assert doubted(found, "all") == (rules("195:0", "195:1", "195:2"), rules("195:3"))

    @pytest.mark.invariant(1)
    def test_a_node_with_another_number_is_nobodys(self) -> None:
        """The hook refuses it, and so do we."""
        found = with_node(HOST, "/dev/nvidia0", minor=1)
        assert gpus(translate(ask(uuid(0)), found, STARTED)) == (frozenset(), frozenset())
        found = with_node(HOST, "/dev/nvidia0", major=1, minor=0)
        assert gpus(translate(ask(uuid(0)), found, STARTED)) == (frozenset(), frozenset())

    @pytest.mark.invariant(1)
    def test_the_major_is_somebody_elses(self) -> None:
        """A major 195 that is not NVIDIA's any more opens other devices."""
        found = replace(HOST, majors=Majors(frozenset({(CHAR, 195, "other")})))
        assert translate(ask("all"), found, STARTED).possible == frozenset()


class TestControl:
    """The driver's own nodes."""

    @pytest.mark.parametrize(
        ("capabilities", "wanted"),
        [
            (set(), set()),
            ({"utility", "graphics", "ngx", "compat32"}, set()),
            ({"compute"}, rules(f"{UVM}:0", f"{UVM}:1")),
            ({"video"}, rules(f"{UVM}:0", f"{UVM}:1")),
            ({"display"}, rules("195:254")),
            (CAPABILITIES, rules("195:254", f"{UVM}:0", f"{UVM}:1")),
        ],
    )
    def test_by_capability(self, capabilities: set[str], wanted: set[Rule]) -> None:
        """Unified memory for CUDA and video, mode setting for displays, nvidiactl for all."""
        request = ask(capabilities=frozenset(capabilities))
        assert translate(request, HOST, STARTED) == Translation(CONTROL | wanted, CONTROL | wanted)

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "drivers",
        [
            frozenset({(CHAR, 195, "nvidia-frontend"), (CHAR, UVM + 2, "nvidia-uvm")}),
            frozenset({(CHAR, 195, "nvidia-frontend"), (CHAR, UVM, "vfio")}),
        ],
    )
    def test_a_number_of_before_a_reload(self, drivers: frozenset[tuple[str, int, str]]) -> None:
        """A node with a major that the driver has left is not given."""
        found = replace(HOST, majors=Majors(drivers))
        translation = translate(ask(capabilities=frozenset({"compute"})), found, STARTED)
        assert translation.possible == CONTROL
        assert translation.unknown

    def test_a_driver_that_is_not_loaded_has_not_moved(self) -> None:
        """The hook gave the node's number, which is nobody's."""
        found = replace(HOST, majors=Majors(frozenset()))
        request = ask(capabilities=frozenset({"compute"}))
        assert translate(request, found, STARTED).exact == CONTROL | rules(f"{UVM}:0", f"{UVM}:1")

    def test_both_names_of_the_driver(self) -> None:
        """It had one name before 550.40, and has three since."""
        for name in ("nvidia-frontend", "nvidia", "nvidiactl", "nvidia-modeset"):
            found = replace(HOST, majors=Majors(frozenset({(CHAR, 195, name)})))
            assert translate(ask(), found, STARTED).exact == CONTROL


class TestMig:
    """Parts of GPUs."""

    @pytest.mark.invariant(1)
    def test_by_its_old_name(self) -> None:
        """GPU, GPU instance and compute instance: the GPU, and the two minors that open these."""
        exact = rules("195:1", f"{CAPS}:165", f"{CAPS}:166")
        assert translated(MIG, f"MIG-{uuid(1)}/3/0") == (exact, frozenset())

    def test_an_instance_that_is_gone(self) -> None:
        """Its GPU was given; its minors are not told any more."""
        assert doubted(MIG, f"MIG-{uuid(1)}/3/1") == (rules("195:1"), frozenset())
        assert doubted(MIG, f"MIG-{uuid(5)}/3/1") == (frozenset(), frozenset())

    @pytest.mark.invariant(1)
    def test_by_index(self) -> None:
        """Only NVML counts instances: one of those of this GPU."""
        possible = rules(f"{CAPS}:165", f"{CAPS}:166", f"{CAPS}:183", f"{CAPS}:185")
        assert doubted(MIG, "0:1") == (rules("195:1"), possible)
        assert doubted(MIG, "5:0") == (frozenset(), frozenset())

    @pytest.mark.invariant(1)
    def test_indexes_shift(self) -> None:
        """With another GPU since then the first is another one: any GPU may have been meant, and any instance."""
        exact, possible = doubted(with_node(MIG, "/dev/nvidia7", minor=7, made=LATER), "0:1")
        assert exact == frozenset()
        caps = (12, 13, 165, 166, 183, 185)
        assert possible == rules("195:0", "195:1", *(f"{CAPS}:{minor}" for minor in caps))

    @pytest.mark.invariant(1)
    def test_a_gpu_without_instances_has_none(self) -> None:
        """It is not one that a part was asked of."""
        found = replace(MIG, instances=tuple(one for one in MIG.instances if one.gpu == 0))
        _, possible = doubted(found, "MIG-3f0a9a3c-1111-2222-3333-444444444444")
        assert possible == rules("195:0", f"{CAPS}:12", f"{CAPS}:13")

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("device", ["x", "gpu-3f0a9a3c", "0000:10:00.1"])
    def test_what_is_no_instance(self, device: str) -> None:
        """It may have been none of them, nor a GPU whose address or UUID is not known."""
        odd = replace(gpu(2, 2), bus="0000:13:00.1", uuid="")
        found = replace(MIG, gpus=(*(MIG.gpus or ()), odd), nodes={**MIG.nodes, **nodes([2])})
        assert doubted(found, device) == (frozenset(), frozenset())

    @pytest.mark.invariant(1)
    def test_by_uuid(self) -> None:
        """Which GPU it is of is not told: any that has instances, and any of these."""
        exact, possible = doubted(MIG, "MIG-3f0a9a3c-1111-2222-3333-444444444444")
        assert exact == frozenset()
        caps = (12, 13, 165, 166, 183, 185)
        assert possible == rules("195:0", "195:1", *(f"{CAPS}:{minor}" for minor in caps))

    def test_all(self) -> None:
        """Every GPU for certain; the instances of now may not be those of then."""
        exact, possible = translated(MIG, "all")
        assert exact == rules("195:0", "195:1")
        assert possible == rules(*(f"{CAPS}:{minor}" for minor in (12, 13, 165, 166, 183, 185)))

    @pytest.mark.invariant(1)
    def test_the_right_to_manage_mig_is_never_taken_from_a_request(self) -> None:
        """The hook gives other minors then, none of which is granted."""
        for device in ("all", f"MIG-{uuid(1)}/3/0", "0:1"):
            translation = translate(replace(ask(device), manages_mig=True), MIG, STARTED)
            assert all(rule.major != CAPS for rule in translation.possible)
            assert "rights to manage MIG are not taken from a request" in translation.unknown

    @pytest.mark.invariant(1)
    def test_a_node_that_is_another_capabilitys(self) -> None:
        """A node of an instance's name with the number that manages MIG is not given; the hook refuses it as well."""
        found = with_node(MIG, "/dev/nvidia-caps/nvidia-cap165", minor=1, major=CAPS)
        exact = rules("195:1", f"{CAPS}:166")
        assert translate(ask(f"MIG-{uuid(1)}/3/0"), found, STARTED).exact - CONTROL == exact

    @pytest.mark.parametrize("device", ["all", "MIG-3f0a9a3c-1111-2222-3333-444444444444"])
    def test_without_the_drivers_capabilities(self, device: str) -> None:
        """Without the driver nvidia-caps in /proc/devices there are no such numbers."""
        found = replace(MIG, majors=Majors(DRIVER - {(CHAR, CAPS, "nvidia-caps")}))
        assert all(rule.major != CAPS for rule in translate(ask(device), found, STARTED).possible)


class TestSilent:
    """A driver that says nothing: only the nodes tell."""

    @pytest.mark.parametrize("devices", [("all",), ("0", "1"), ("1", "0", "1")])
    def test_all_of_them(self, devices: tuple[str, ...]) -> None:
        """Whichever is which, all were given."""
        assert translated(SILENT, *devices) == (rules("195:0", "195:1"), frozenset())

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("devices", [("0",), ("1",), ("0", "1", "2"), (uuid(0),), ("0:0",), ("0", "1", "x")])
    def test_others_are_possible_only(self, devices: tuple[str, ...]) -> None:
        """Which one is not guessed."""
        assert doubted(SILENT, *devices) == (frozenset(), rules("195:0", "195:1"))

    @pytest.mark.invariant(1)
    def test_a_node_of_later(self) -> None:
        """It was not given; with it indexes say nothing."""
        found = with_node(SILENT, "/dev/nvidia2", minor=2, made=LATER)
        assert translated(found, "all") == (rules("195:0", "195:1"), frozenset())
        assert doubted(found, "0", "1", "2") == (frozenset(), rules("195:0", "195:1"))

    def test_without_the_control_node(self) -> None:
        """The hook fails without it: that it is not there now is a doubt."""
        found = replace(SILENT, nodes={path: node for path, node in SILENT.nodes.items() if path != "/dev/nvidiactl"})
        translation = translate(ask("all"), found, STARTED)
        assert translation.exact == rules("195:0", "195:1")
        assert translation.unknown == ("/dev/nvidiactl is not there as at the container's start",)

    def test_nothing_at_all(self) -> None:
        """A host without a GPU grants none."""
        translation = translate(ask("all", "0"), GpuInventory(), STARTED)
        assert (translation.exact, translation.possible) == (frozenset(), frozenset())


class TestGranted:
    """What a request entitles to, with what mounts say."""

    TRANSLATION = Translation(rules("195:0"), rules("195:0", "195:1", "195:2"), ("some doubt",))

    def test_without_mounts(self) -> None:
        """What is exact alone."""
        found, doubts = granted(self.TRANSLATION, None)
        assert found == rules("195:0")
        assert doubts == ("some doubt", *(f"c 195:{n} may have been given, which cannot be told" for n in (1, 2)))

    @pytest.mark.invariant(1)
    def test_with_mounts(self) -> None:
        """What was possible and is mounted; a mount of another device changes nothing."""
        mounted = frozenset({DeviceNumber(CHAR, 195, 1), DeviceNumber(CHAR, 195, 9)})
        found, doubts = granted(self.TRANSLATION, mounted)
        assert found == rules("195:1")
        assert doubts == ("some doubt", "c 195:0 was asked for, but is not mounted in the container")

    @pytest.mark.invariant(10)
    @pytest.mark.parametrize("mounted", [None, frozenset()])
    def test_doubts_without_end(self, mounted: Optional[frozenset[DeviceNumber]]) -> None:
        """Some are told, and how many are left."""
        translation = Translation(unknown=tuple(map(str, range(1000))))
        assert granted(translation, mounted)[1] == (*map(str, range(16)), "and 984 more of these")
        few = translation.unknown[:16]
        assert granted(replace(translation, unknown=few), mounted)[1] == few

    def test_mounts_from_another_dev(self) -> None:
        """A driver's container has nodes of its own, which are not the host's."""
        elsewhere = replace(self.TRANSLATION, elsewhere=True)
        assert granted(elsewhere, frozenset())[0] == rules("195:0")
        assert translate(replace(ask("0"), root="/run/nvidia/driver"), HOST, STARTED).elsewhere


# Every kernel has it: a node with its major is not one of NVIDIA's.
MEM = frozenset({(CHAR, 1, "mem")})
_DEVICES = st.sampled_from(
    ["all", "0", "1", "2", "7", "*", "", "0:0", "0:*", uuid(0), uuid(1), "MIG-x", f"MIG-{uuid(1)}/3/0", "0000:10:00.0"]
) | st.text(max_size=12)
_PATHS = st.sampled_from([*MIG.nodes, "/dev/nvidia7", "/dev/nvidia-caps-imex-channels/channel0"])
_NUMBERS = st.builds(
    DeviceNumber, st.sampled_from([CHAR, "b"]), st.sampled_from([1, 195, UVM, CAPS]), st.integers(0, 255)
)
_HOSTS = st.builds(
    GpuInventory,
    gpus=st.none() | st.just(MIG.gpus),
    instances=st.sampled_from([(), MIG.instances]),
    nodes=st.builds(
        lambda given, made: {**given, **made},
        st.sampled_from([{}, MIG.nodes]),
        st.dictionaries(_PATHS, st.builds(Node, _NUMBERS, st.sampled_from([MADE, STARTED + 1, LATER])), max_size=4),
    ),
    majors=st.sampled_from([Majors(MEM), Majors(MEM | DRIVER), Majors(MEM | {(CHAR, 195, "other")})]),
)


@pytest.mark.invariant(1)
@given(
    devices=st.lists(_DEVICES, max_size=4),
    host=_HOSTS,
    capabilities=st.frozensets(st.sampled_from(sorted(CAPABILITIES))),
    mounted=st.none() | st.frozensets(_NUMBERS, max_size=6),
    manages=st.booleans(),
)
def test_no_wildcard_and_nothing_but_old_nodes(
    devices: list[str],
    host: GpuInventory,
    capabilities: frozenset[str],
    mounted: frozenset[DeviceNumber] | None,
    *,
    manages: bool,
) -> None:
    """Whatever is asked of whatever host: one number a rule, "rw", of a node of before the start, and no management."""
    request = Honoured(tuple(devices), capabilities, "", manages_mig=manages)
    translation = translate(request, host, STARTED)
    old = {node.number for node in host.nodes.values() if node.made <= STARTED}
    loaded = {node.number for node in host.nodes.values() if node.made < LATER}
    assert all(rule_number(rule) in old for rule in translation.exact)
    for rule in translation.possible:
        assert rule_number(rule) in loaded
        assert rule.access == Access.RW
        assert rule.kind == CHAR
        assert rule.major in {195, UVM, CAPS}
        assert (rule.major, rule.minor) not in {(CAPS, 1), (CAPS, 2)}
    found, _ = granted(translation, mounted)
    assert found <= translation.possible
    assert mounted is None or all(rule_number(rule) in mounted for rule in found)
