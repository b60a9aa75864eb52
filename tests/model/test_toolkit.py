"""NVIDIA's config.toml: the one that its packages install, and what sites make of it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ToolkitError
from gpuguard.model.toolkit import CAPABILITIES, Toolkit, parse_toolkit, split

PATH = "/etc/nvidia-container-runtime/config.toml"

# Written by hand, with the keys that `nvidia-ctk config default` prints (nvidia-container-toolkit 1.17).
INSTALLED = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false
"""


def read(text: str) -> Toolkit:
    """Read a configuration that was changed at 12."""
    return parse_toolkit(text, PATH, 12.0)


@pytest.mark.parametrize("text", ["", INSTALLED])
def test_the_defaults_are_the_toolkits(text: str) -> None:
    """Requests by variable are honoured for everybody, those by mounts for nobody."""
    assert read(text) == Toolkit(PATH, 12.0)
    assert (Toolkit().envvar_when_unprivileged, Toolkit().volume_mounts) == (True, False)
    assert Toolkit().supported == CAPABILITIES


def test_what_sites_change() -> None:
    """Each key that decides on devices is taken."""
    text = """
        accept-nvidia-visible-devices-envvar-when-unprivileged = false
        accept-nvidia-visible-devices-as-volume-mounts = true
        swarm-resource = "DOCKER_RESOURCE_GPU"
        supported-driver-capabilities = "compute, utility"
        [nvidia-container-cli]
        no-cgroups = true
        root = "/run/nvidia/driver"
    """
    assert read(text) == Toolkit(
        PATH,
        12.0,
        envvar_when_unprivileged=False,
        volume_mounts=True,
        no_cgroups=True,
        swarm_resource="DOCKER_RESOURCE_GPU",
        supported=frozenset({"compute", "utility"}),
        root="/run/nvidia/driver",
    )


@pytest.mark.parametrize(
    ("mode", "skips", "disabled"),
    [
        ("auto", "false", False),
        ("legacy", "false", False),
        ("cdi", "false", True),
        ("jit-cdi", "false", True),
        ("csv", "false", True),
        ("cdi", "true", False),
    ],
)
def test_the_hook_refuses_in_other_modes(mode: str, skips: str, *, disabled: bool) -> None:
    """It works only in legacy mode, which "auto" is for it, unless it is told not to look at the mode."""
    text = (
        f'[nvidia-container-runtime]\nmode = "{mode}"\n[nvidia-container-runtime-hook]\nskip-mode-detection = {skips}'
    )
    assert read(text).disabled is disabled


def test_root_may_be_the_hosts() -> None:
    """The driver that is in the host's root is nowhere else."""
    assert read('[nvidia-container-cli]\nroot = "/"').root == ""


def test_all_capabilities_by_one_word() -> None:
    """The word "all" stands for what the hook knows."""
    assert read('supported-driver-capabilities = "all"').supported == CAPABILITIES


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("accept-nvidia", "not a configuration of NVIDIA's toolkit"),
        ("[" * 5000, "not a configuration of NVIDIA's toolkit"),
        ('accept-nvidia-visible-devices-envvar-when-unprivileged = "false"', "want true or false"),
        ("accept-nvidia-visible-devices-as-volume-mounts = 1", "want true or false"),
        ("swarm-resource = true", "swarm-resource: want a text"),
        ("nvidia-container-cli = 1", "nvidia-container-cli: want a table"),
        ("[nvidia-container-cli]\nno-cgroups = 'no'", "no-cgroups: want true or false"),
        ("[nvidia-container-cli]\nNo-Cgroups = true", "No-Cgroups: not the spelling of no-cgroups"),
        ('supported-driver-capabilities = "compute,dance"', "the hook knows only"),
    ],
)
def test_what_the_hook_fails_on_is_not_believed(text: str, complaint: str) -> None:
    """Another type, no TOML, a spelling that is not documented: it cannot be told what the hook did."""
    with pytest.raises(ToolkitError, match=complaint):
        read(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text does anything else."""
    with suppress(ToolkitError):
        assert read(text).path == PATH


def test_lists_with_commas() -> None:
    """Spaces and empty entries do not count."""
    assert split(" a,,b , ") == ("a", "b")
    assert Toolkit(swarm_resource="A, B,").swarm_variables == ("A", "B")
