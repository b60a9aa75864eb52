"""What a container's OCI specification (config.json of its bundle) says, as far as it matters here.

https://github.com/opencontainers/runtime-spec/blob/main/config-linux.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Optional

from gpuguard.model.json_text import Value, parse_json
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import BLOCK, CHAR, Rule
from gpuguard.model.spec_devices import parse_devices

_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
# mknod's "u" is a character device.
_KINDS = {CHAR: CHAR, "u": CHAR, BLOCK: BLOCK}


@dataclass(frozen=True)
class Mount:
    """One of the mounts that the runtime makes in the container. `source` is "" for one that has none."""

    destination: str
    source: str = ""
    type: str = ""


@dataclass(frozen=True)
class Hook:
    """A program that the runtime starts on the host for this container, at the stage "prestart" or another.

    `args` has the program's name first; `env` is all of its environment, "NAME=value".
    """

    stage: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


@dataclass(frozen=True)
class OciSpec:
    """The parts of one specification.

    `allowed` is what linux.resources.devices comes down to, with denies applied; `unrestricted`: it allows all. `nodes`
    are linux.devices: the path in the container, and the number: that makes a node and gives no right to open it. `env`
    is process.env, of a name that is there twice the last. `capabilities` is the bounding set, None where the process
    has no `capabilities` at all: then it keeps all that the runtime has. `namespaces` are the types that the runtime
    makes anew ("mount", "user", ...), without those that it joins by a path.
    """

    cgroups_path: str = ""
    allowed: frozenset[Rule] = frozenset()
    unrestricted: bool = False
    nodes: Mapping[str, DeviceNumber] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    capabilities: Optional[frozenset[str]] = None
    namespaces: frozenset[str] = frozenset()


def parse_spec(text: str) -> OciSpec:
    """Read the text of a config.json. Raises SpecError on all that its runtime would not have taken."""
    spec = parse_json(text)
    if not isinstance(spec.value, dict):
        spec.refuse("an object")
    linux, process = spec.member("linux"), spec.member("process")
    devices = parse_devices(linux.member("resources").member("devices"))
    return OciSpec(
        cgroups_path=linux.member("cgroupsPath").text(),
        allowed=devices.allowed,
        unrestricted=devices.unrestricted,
        nodes=dict(_nodes(linux.member("devices"))),
        env=_environment(process.member("env")),
        mounts=tuple(_mount(value) for value in spec.member("mounts").items()),
        hooks=tuple(_hooks(spec.member("hooks"))),
        annotations=spec.member("annotations").strings(),
        capabilities=_capabilities(process.member("capabilities")),
        namespaces=frozenset(_new_namespaces(linux.member("namespaces"))),
    )


def _nodes(devices: Value) -> Iterator[tuple[str, DeviceNumber]]:
    for device in devices.items():
        kind = _KINDS.get(device.member("type").text())
        major, minor = device.member("major").number(), device.member("minor").number()
        # A number that is not there is 0 for the runtimes; a pipe has none.
        if kind is not None:
            yield device.member("path").text(), DeviceNumber(kind, major or 0, minor or 0)


def _environment(entries: Value) -> dict[str, str]:
    parts = (entry.partition("=") for entry in entries.texts())
    return {name: value for name, equals, value in parts if equals}


def _mount(value: Value) -> Mount:
    return Mount(value.member("destination").text(), value.member("source").text(), value.member("type").text())


def _hooks(hooks: Value) -> Iterator[Hook]:
    for stage in _STAGES:
        for hook in hooks.member(stage).items():
            yield Hook(stage, hook.member("path").text(), hook.member("args").texts(), hook.member("env").texts())


def _capabilities(capabilities: Value) -> Optional[frozenset[str]]:
    if capabilities.absent:
        return None
    # crun knows them by libcap, which does not tell capitals from small letters.
    return frozenset(name.upper() for name in capabilities.member("bounding").texts())


def _new_namespaces(namespaces: Value) -> Iterator[str]:
    for namespace in namespaces.items():
        if not namespace.member("path").text():
            yield namespace.member("type").text()
