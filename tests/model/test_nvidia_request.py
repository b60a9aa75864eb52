"""What NVIDIA's hook is asked for, and what its toolkit makes of it.

The cases are those of the toolkit's own documentation and of its sources; the specifications are made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.nvidia_request import MAX_DEVICES, Honoured, HookRequest, honoured, request_of
from gpuguard.model.oci_spec import Hook, Mount, OciSpec
from gpuguard.model.toolkit import CAPABILITIES, Toolkit

HOOK = Hook("prestart", "/usr/bin/nvidia-container-runtime-hook", ("nvidia-container-runtime-hook", "prestart"))
STARTED = 100.0
TOOLKIT = Toolkit("/etc/config.toml", changed=50.0)
CLOSED = replace(TOOLKIT, envvar_when_unprivileged=False)
VOLUMES = replace(CLOSED, volume_mounts=True)
ADMIN = frozenset({"CAP_SYS_ADMIN"})
USUAL = frozenset({"compute", "utility"})
NOTHING: Mapping[str, str] = {}


def spec(
    *devices: str,
    hooks: tuple[Hook, ...] = (HOOK,),
    capabilities: frozenset[str] = frozenset(),
    env: Mapping[str, str] = NOTHING,
) -> OciSpec:
    """Return a specification whose variable asks for devices, and with others."""
    variables = {"NVIDIA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
    return OciSpec(env={**variables, **env}, hooks=hooks, capabilities=capabilities)


def volume(*devices: str, source: str = "/dev/null") -> tuple[Mount, ...]:
    """Return mounts that ask for devices."""
    return tuple(Mount(f"/var/run/nvidia-container-devices/{device}", source, "bind") for device in devices)


def answer(asked: OciSpec, toolkit: Toolkit = TOOLKIT, started: float = STARTED) -> Union[Honoured, str]:
    """Return what the toolkit makes of a specification that has the hook."""
    request = request_of(asked)
    assert request is not None
    return honoured(request, asked, toolkit, started)


def devices(asked: OciSpec, toolkit: Toolkit = TOOLKIT) -> tuple[str, ...]:
    """Return the devices that are given."""
    found = answer(asked, toolkit)
    assert isinstance(found, Honoured), found
    return found.devices


def refusal(asked: OciSpec, toolkit: Toolkit = TOOLKIT, started: float = STARTED) -> str:
    """Return why nothing is given."""
    found = answer(asked, toolkit, started)
    assert isinstance(found, str), found
    return found


class TestHook:
    """Which hook is NVIDIA's, and what it is told."""

    @pytest.mark.invariant(1)
    def test_without_the_hook_nothing_is_asked(self) -> None:
        """CUDA images set the variable themselves: it is nobody's request."""
        other = Hook("prestart", "/usr/bin/other", ("other", "prestart"))
        assert request_of(spec("all", hooks=())) is None
        assert request_of(spec("all", hooks=(other,))) is None

    @pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
    @pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "nvidia-container-toolkit"])
    def test_both_names(self, stage: str, name: str) -> None:
        """It has had two names, and two stages run it on the host before the program."""
        hook = Hook(stage, f"/usr/bin/{name}", (name, "prestart"))
        assert request_of(spec("all", hooks=(hook,))) == HookRequest(hook)

    @pytest.mark.parametrize("stage", ["createContainer", "startContainer", "poststart", "poststop"])
    def test_other_stages_give_nothing(self, stage: str) -> None:
        """They run in the container, or later."""
        assert request_of(spec("all", hooks=(replace(HOOK, stage=stage),))) is None

    @pytest.mark.parametrize("args", [(), ("hook",), ("hook", "poststop"), ("hook", "-debug"), ("prestart",)])
    def test_it_does_nothing_without_its_command(self, args: tuple[str, ...]) -> None:
        """Only `prestart` gives devices; the first argument is its name."""
        assert request_of(spec("all", hooks=(replace(HOOK, args=args),))) is None

    @pytest.mark.parametrize(
        "args",
        [
            ("-config", "/a.toml"),
            ("--config=/a.toml",),
            ("-debug", "-config=/a.toml"),
            ("--config", "/a.toml", "-debug"),
        ],
    )
    def test_its_arguments_name_a_configuration(self, args: tuple[str, ...]) -> None:
        """In all the ways that Go's flags can be written."""
        hook = replace(HOOK, args=("hook", *args, "prestart"))
        assert request_of(spec(hooks=(hook,))) == HookRequest(hook, "/a.toml")

    @pytest.mark.parametrize(
        "hook",
        [
            replace(HOOK, args=("hook", "-dance", "prestart")),
            replace(HOOK, args=("hook", "-config")),
            replace(HOOK, env=("NVIDIA_CTK_CONFIG_FILE_PATH=/a.toml",)),
            replace(HOOK, env=("PATH=/bin", "XDG_CONFIG_HOME=/a")),
        ],
    )
    def test_what_is_not_known_of_it_grants_nothing(self, hook: Hook) -> None:
        """An argument, or a configuration that its environment names."""
        assert "/usr/bin/nvidia-container-runtime-hook: its " in refusal(spec("all", hooks=(hook,)))

    def test_the_first_that_does_something_counts(self) -> None:
        """A second hook of the kind would find its work done."""
        first = replace(HOOK, args=("hook", "poststop"))
        assert request_of(spec(hooks=(first, HOOK))) == HookRequest(HOOK)


class TestVariable:
    """NVIDIA_VISIBLE_DEVICES and its kin."""

    @pytest.mark.parametrize(
        ("value", "wanted"),
        [
            ("all", ("all",)),
            ("0", ("0",)),
            (" 0, 2 ,", ("0", "2")),
            ("GPU-1,MIG-2,0:1", ("GPU-1", "MIG-2", "0:1")),
            ("none", ()),
            ("0,none", ()),
            ("0,all", ("all",)),
        ],
    )
    def test_lists_and_words(self, value: str, wanted: tuple[str, ...]) -> None:
        """`none` is the driver without a GPU; special words win over the rest."""
        assert devices(spec(value)) == wanted

    @pytest.mark.parametrize("value", ["void", "", " , ", "0,void", "all,void,none"])
    def test_void_is_nothing_at_all(self, value: str) -> None:
        """`void` and an empty value are no request."""
        assert "asks for nothing" in refusal(OciSpec(env={"NVIDIA_VISIBLE_DEVICES": value}, hooks=(HOOK,)))

    @pytest.mark.invariant(10)
    def test_thousands(self) -> None:
        """The same twice is once, and more than a host can have are not looked for."""
        many = [str(number) for number in range(MAX_DEVICES)]
        assert devices(spec(*many, *many)) == tuple(many)
        why = refusal(spec(*many, "x"))
        assert "more than 1024 devices" in why
        assert len(why) < 400

    def test_what_cannot_be_printed(self) -> None:
        """It is told without it."""
        found = answer(spec("0\n\x1b[2J"))
        assert isinstance(found, Honoured)
        assert found.why.isprintable()

    def test_not_set(self) -> None:
        """A hook that runs for all containers gives most of them nothing."""
        assert refusal(spec()) == "NVIDIA_VISIBLE_DEVICES is not set"

    @pytest.mark.invariant(1)
    def test_an_old_image_is_nobodys_request(self) -> None:
        """The hook gives all GPUs where only CUDA_VERSION is set; no one has asked for them."""
        assert "only CUDA_VERSION asks" in refusal(spec(env={"CUDA_VERSION": "9.0"}))

    @pytest.mark.invariant(1)
    def test_the_toolkit_may_want_privileges(self) -> None:
        """Then it takes the variable from containers with CAP_SYS_ADMIN in their bounding set only."""
        assert "from privileged containers only" in refusal(spec("all"), CLOSED)
        assert devices(spec("all", capabilities=ADMIN), CLOSED) == ("all",)
        assert "privileged" in refusal(replace(spec("all"), capabilities=None), CLOSED)

    def test_swarm_variables_go_first(self) -> None:
        """Where one is configured and set, the usual one does not count."""
        swarm = replace(TOOLKIT, swarm_resource="DOCKER_RESOURCE_GPU")
        assert devices(spec("all", env={"DOCKER_RESOURCE_GPU": "GPU-1"}), swarm) == ("GPU-1",)
        assert devices(spec("0"), swarm) == ("0",)
        assert "DOCKER_RESOURCE_GPU= asks for nothing" in refusal(spec("all", env={"DOCKER_RESOURCE_GPU": ""}), swarm)
        assert "privileged" in refusal(
            spec(env={"DOCKER_RESOURCE_GPU": "0"}), replace(CLOSED, swarm_resource="DOCKER_RESOURCE_GPU")
        )

    def test_several_swarm_variables_are_read_in_two_ways(self) -> None:
        """Some versions take the list for one name."""
        swarm = replace(TOOLKIT, swarm_resource="A,B")
        assert "not all versions" in refusal(spec("all", env={"A": "0"}), swarm)
        assert devices(spec("1"), swarm) == ("1",)

    def test_cdi_names_are_not_the_hooks(self) -> None:
        """Such devices are in the specification itself, or the container does not start."""
        assert "CDI devices" in refusal(spec("nvidia.com/gpu=0"))
        assert "CDI devices" in refusal(spec("0", "nvidia.com/gpu=0"))


class TestVolumes:
    """Requests by mounts of /dev/null."""

    def test_they_go_before_the_variable(self) -> None:
        """Where the toolkit takes them: what an image has set does not count then."""
        asked = replace(spec("all"), mounts=volume("0", "GPU-1"))
        assert devices(asked, VOLUMES) == ("0", "GPU-1")
        assert devices(asked, replace(VOLUMES, envvar_when_unprivileged=True)) == ("0", "GPU-1")

    @pytest.mark.invariant(1)
    def test_the_toolkit_may_refuse_them(self) -> None:
        """By default it does, and looks at the variable."""
        asked = replace(spec("2"), mounts=volume("0"))
        assert devices(asked) == ("2",)
        assert "privileged" in refusal(asked, CLOSED)

    def test_other_mounts_there_ask_for_nothing(self) -> None:
        """Only /dev/null does."""
        asked = replace(spec(), mounts=(*volume("0", source="/dev/zero"), *volume("1", source="")))
        assert refusal(asked, VOLUMES) == "NVIDIA_VISIBLE_DEVICES is not set"

    @pytest.mark.parametrize(
        ("destination", "source"),
        [
            ("//var/run/nvidia-container-devices/0", "/dev/null"),
            ("/var/run//nvidia-container-devices/./x/../0/", "/dev/null"),
            ("/var/run/nvidia-container-devices/0", "//dev/./null"),
        ],
    )
    def test_paths_are_cleaned_as_by_the_hook(self, destination: str, source: str) -> None:
        """Else the variable would count here, and the mounts there."""
        assert devices(replace(spec("all"), mounts=(Mount(destination, source),)), VOLUMES) == ("0",)

    def test_the_hook_compares_the_beginning_only(self) -> None:
        """A name that is longer than the directory's is a device, which is not there; the variable does not count."""
        mount = Mount("/var/run/nvidia-container-devices-x/0", "/dev/null")
        assert devices(replace(spec("all"), mounts=(mount,)), VOLUMES) == ("-x/0",)
        bare = Mount("/var/run/nvidia-container-devices/", "/dev/null")
        assert "privileged" in refusal(replace(spec("all"), mounts=(bare,)), VOLUMES)

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "directory", ["/var/lib/nvidia-container-devices", "/proc/sys/kernel/a-path-that-is-longer"]
    )
    def test_other_places_ask_for_nothing(self, directory: str) -> None:
        """Engines mount /dev/null over what a container shall not read."""
        mount = Mount(f"{directory}/0", "/dev/null")
        assert "privileged" in refusal(replace(spec("all"), mounts=(mount,)), VOLUMES)

    @pytest.mark.invariant(1)
    def test_imex_channels_and_cdi_are_never_taken(self) -> None:
        """Channels are not GPUs, CDI devices not the hook's."""
        assert refusal(replace(spec(), mounts=volume("imex/0")), VOLUMES) == "NVIDIA_VISIBLE_DEVICES is not set"
        assert "CDI devices" in refusal(replace(spec(), mounts=volume("cdi/nvidia.com/gpu/0")), VOLUMES)


class TestToolkit:
    """What in the configuration keeps the hook from giving anything, or us from knowing."""

    @pytest.mark.invariant(1)
    def test_changed_after_the_start(self) -> None:
        """What it said then is gone."""
        assert "changed after the container's start" in refusal(spec("0"), started=49.9)
        assert devices(spec("0"), replace(TOOLKIT, changed=STARTED)) == ("0",)

    def test_no_cgroups(self) -> None:
        """The hook mounts, and gives no right."""
        assert refusal(spec("0"), replace(TOOLKIT, no_cgroups=True)).startswith("/etc/config.toml keeps the hook")
        why = refusal(spec("0"), Toolkit(no_cgroups=True))
        assert why.startswith("NVIDIA's container toolkit keeps the hook from giving rights: ")
        assert "no-cgroups is set" in why

    def test_another_mode(self) -> None:
        """The hook does nothing."""
        assert "has the hook do nothing" in refusal(spec("0"), replace(TOOLKIT, disabled=True))

    def test_a_driver_elsewhere_is_told(self) -> None:
        """Its nodes are not the host's."""
        found = answer(spec("0"), replace(TOOLKIT, root="/run/nvidia/driver"))
        assert isinstance(found, Honoured)
        assert found.root == "/run/nvidia/driver"


class TestCapabilities:
    """NVIDIA_DRIVER_CAPABILITIES."""

    @pytest.mark.parametrize(
        ("env", "wanted"),
        [
            ({}, USUAL),
            ({"NVIDIA_DRIVER_CAPABILITIES": ""}, USUAL),
            ({"NVIDIA_DRIVER_CAPABILITIES": "utility"}, {"utility"}),
            ({"NVIDIA_DRIVER_CAPABILITIES": " graphics, display"}, {"graphics", "display"}),
            ({"NVIDIA_DRIVER_CAPABILITIES": "all"}, CAPABILITIES),
            ({"NVIDIA_DRIVER_CAPABILITIES": "compute,all"}, CAPABILITIES),
            ({"CUDA_VERSION": "9.0"}, CAPABILITIES),
            ({"CUDA_VERSION": "9.0", "NVIDIA_REQUIRE_CUDA": "cuda>=9.0"}, USUAL),
            ({"CUDA_VERSION": "9.0", "NVIDIA_DRIVER_CAPABILITIES": ""}, USUAL),
        ],
    )
    def test_which(self, env: dict[str, str], wanted: set[str]) -> None:
        """Old images have all of them where they ask for none."""
        found = answer(spec("0", env=env))
        assert isinstance(found, Honoured)
        assert found.capabilities == wanted

    def test_the_toolkit_supports_fewer(self) -> None:
        """More than it supports makes the hook fail, but for "all", which means those."""
        few = replace(TOOLKIT, supported=frozenset({"utility"}))
        assert "does not support: compute" in refusal(
            spec("0", env={"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}), few
        )
        for env in ({}, {"NVIDIA_DRIVER_CAPABILITIES": "all"}):
            found = answer(spec("0", env=env), few)
            assert isinstance(found, Honoured)
            assert found.capabilities == {"utility"}

    def test_unknown_ones(self) -> None:
        """The hook fails."""
        assert "does not support: dance" in refusal(spec("0", env={"NVIDIA_DRIVER_CAPABILITIES": "dance"}))

    @pytest.mark.parametrize("name", ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"])
    def test_to_manage_mig_takes_privileges(self, name: str) -> None:
        """Without them the hook fails; with them other devices are given, which are not taken from the request."""
        assert "privileged container may manage MIG" in refusal(spec("0", env={name: "all"}))
        found = answer(spec("0", capabilities=ADMIN, env={name: "all"}))
        assert isinstance(found, Honoured)
        assert found.manages_mig


@given(
    env=st.dictionaries(
        st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "SWARM", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VERSION"]),
        st.text(max_size=30) | st.sampled_from(["all", "0", "none", "void", "utility"]),
    ),
    changed=st.booleans(),
    off=st.booleans(),
)
@pytest.mark.invariant(1)
def test_whatever_is_asked_a_toolkit_that_refuses_gives_nothing(
    env: dict[str, str], *, changed: bool, off: bool
) -> None:
    """No text in the environment gets around the configuration."""
    toolkit = replace(CLOSED, swarm_resource="SWARM", changed=200.0 if changed else 0.0, no_cgroups=off)
    assert isinstance(answer(OciSpec(env=env, hooks=(HOOK,), capabilities=frozenset({"CAP_MKNOD"})), toolkit), str)
