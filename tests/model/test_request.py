"""What command lines ask systemd for."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.request import Request, request_of


def asked(line: str) -> object:
    """Return what a line of a shell asks for."""
    return request_of(shlex.split(line))


@pytest.mark.parametrize(
    ("line", "cause", "word"),
    [
        ("systemctl daemon-reload", "reload", "daemon-reload"),
        ("/usr/bin/systemctl --system daemon-reload", "reload", "daemon-reload"),
        ("systemctl -q daemon-reload", "reload", "daemon-reload"),
        ("systemctl daemon-reload --quiet", "reload", "daemon-reload"),
        ("systemctl -- daemon-reload", "reload", "daemon-reload"),
        ("systemctl daemon-reexec", "reexec", "daemon-reexec"),
        ("systemctl --no-reload daemon-reload", "reload", "daemon-reload"),
        ("systemctl enable --now x.service", "reload", "enable"),
        ("systemctl disable x y", "reload", "disable"),
        ("systemctl mask --runtime x", "reload", "mask"),
        ("systemctl preset-all", "reload", "preset-all"),
        ("systemctl --preset-mode enable-only preset x", "reload", "preset"),
        ("systemctl set-default multi-user.target", "reload", "set-default"),
        ("systemctl edit x", "reload", "edit"),
        ("systemctl -n 5 -o cat enable x", "reload", "enable"),
        ("systemctl -n5 -ocat enable x", "reload", "enable"),
        ("systemctl -qn 5 enable x", "reload", "enable"),
        ("systemctl --output cat --type=service enable x", "reload", "enable"),
        ("systemctl enable -- --no-reload", "reload", "enable"),
        ("telinit q", "reload", "q"),
        ("/sbin/init u", "reexec", "u"),
        ("telinit --no-wall U", "reexec", "U"),
    ],
)
def test_what_makes_systemd_rewrite_everything(line: str, cause: str, word: str) -> None:
    """Options may stand before and after the verb, with their arguments or joined to them."""
    assert asked(line) == Request(cause, word)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "systemctl",
        "systemctl --help daemon-reload",
        "systemctl -h",
        "systemctl --version",
        "systemctl start daemon-reload",
        "systemctl restart x",
        "systemctl -- --user",
        "systemctl --type daemon-reload",
        "systemctl -t daemon-reload",
        "systemctl -p",
        "systemctl --output",
        "systemctl -",
        "systemctl --user daemon-reload",
        "systemctl daemon-reload --user",
        "systemctl --global enable x",
        "systemctl --root=/mnt enable x",
        "systemctl --root /mnt enable x",
        "systemctl --image=disk.raw enable x",
        "systemctl -H other daemon-reload",
        "systemctl -Hother daemon-reload",
        "systemctl -qH other daemon-reload",
        "systemctl --host=other daemon-reload",
        "systemctl -M guest daemon-reload",
        "systemctl --machine guest set-property x.scope CPUWeight=1",
        "systemctl -C capsule daemon-reload",
        "systemctl enable --no-reload x",
        "telinit 3",
        "telinit",
        "init --help",
        "bash -c 'systemctl daemon-reload'",
        "busctl list",
        "busctl --user call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager Reload",
        "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager Reload",
        "busctl call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager ListUnits",
        "dbus-send --session --dest=org.freedesktop.systemd1 / org.freedesktop.systemd1.Manager.Reload",
    ],
)
def test_what_does_not(line: str) -> None:
    """Other verbs, other machines, other managers, and files alone."""
    assert asked(line) is None


@pytest.mark.parametrize(
    ("line", "unit", "properties"),
    [
        ("set-property x.scope CPUWeight=200", "x.scope", ("CPUWeight",)),
        ("set-property --runtime -- x.scope CPUWeight=200 MemoryMax=1G", "x.scope", ("CPUWeight", "MemoryMax")),
        ("--runtime set-property x DeviceAllow=", "x.service", ("DeviceAllow",)),
        ("set-property x.scope 'DeviceAllow=/dev/null rw'", "x.scope", ("DeviceAllow",)),
        ("set-property x.scope", "x.scope", ()),
        ("set-property", None, ()),
    ],
)
def test_a_property(line: str, unit: str, properties: tuple[str, ...]) -> None:
    """The unit and the names are told, not the values."""
    assert asked(f"systemctl {line}") == Request("property", "set-property", unit, properties)


BUS = "org.freedesktop.systemd1"


@pytest.mark.parametrize(
    ("line", "request_made"),
    [
        (f"busctl call {BUS} /org/freedesktop/systemd1 {BUS}.Manager Reload", Request("reload", "Reload")),
        (f"busctl --timeout=9 call {BUS} / {BUS}.Manager Reexecute", Request("reexec", "Reexecute")),
        (
            f"busctl call {BUS} / {BUS}.Manager SetUnitProperties 'sba(sv)' x.scope true 1 CPUWeight t 200",
            Request("property", "SetUnitProperties", "x.scope"),
        ),
        (
            f"gdbus call --system --dest {BUS} --object-path / --method {BUS}.Manager.Reload",
            Request("reload", "Reload"),
        ),
        (
            f"gdbus call -y -d {BUS} -o / --method={BUS}.Manager.SetUnitProperties \"'x.scope'\" true []",
            Request("property", "SetUnitProperties", "x.scope"),
        ),
        (
            f"dbus-send --system --dest={BUS} / {BUS}.Manager.SetUnitProperties string:x.scope boolean:true",
            Request("property", "SetUnitProperties", "x.scope"),
        ),
        (
            f"dbus-send --system --dest={BUS} /org/freedesktop/systemd1/unit/x {BUS}.Unit.SetProperties boolean:true",
            Request("property", "SetProperties"),
        ),
    ],
)
def test_a_call_of_the_bus(line: str, request_made: Request) -> None:
    """The same is asked for by those who call the bus by hand."""
    assert asked(line) == request_made


@pytest.mark.parametrize(
    "line",
    [
        "runc --root /run/docker/runtime-runc/moby --log /x update --resources - 0123abc",
        "/usr/sbin/runc update --cpu-share=5 0123abc",
        "crun update --resources=/tmp/x 0123abc",
    ],
)
def test_an_update_of_a_container(line: str) -> None:
    """A runtime has systemd change the unit of that container, and of no other."""
    found = request_of(shlex.split(line))
    assert found == Request("runtime", "update", container="0123abc")
    assert [found.concerns(unit) for unit in ("docker-0123abc.scope", "docker-0123.scope", "abc.scope")] == [
        *(True, False, False)
    ]


@pytest.mark.parametrize(
    "line", ["runc", "runc update", "runc update --help", "runc create update", "runc kill x KILL"]
)
def test_what_a_runtime_does_without_systemd(line: str) -> None:
    """Other verbs change nothing of a unit that is there."""
    assert asked(line) is None


def test_whom_it_concerns() -> None:
    """A reload concerns every unit, a property's change one."""
    assert Request("reload", "daemon-reload").concerns("x.scope")
    assert Request("property", "set-property", "x.scope").concerns("x.scope")
    assert not Request("property", "set-property", "y.scope").concerns("x.scope")


WORDS = st.sampled_from([
    *("systemctl", "busctl", "daemon-reload", "set-property", "enable", "x.scope", "A=b", "--", "-", "-H", "-n"),
    *("--user", "--root", "--root=/", "--no-reload", "Reload", BUS, f"{BUS}.Manager.SetUnitProperties", ""),
])  # fmt: skip


@given(st.lists(WORDS | st.text(max_size=5)))
def test_any(command: list[str]) -> None:
    """No command line is an error, and what is asked for is one of four things."""
    found = request_of(command)
    assert found is None or found.cause in {"reload", "reexec", "property", "runtime"}
    assert found is None or found.cause == "property" or (found.unit, found.properties) == (None, ())
