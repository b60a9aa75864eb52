"""What an OCI specification says: real ones, made ones, and any text at all."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import SpecError
from gpuguard.model.json_text import parse_json
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.oci_spec import Hook, Mount, OciSpec, parse_spec
from gpuguard.model.rule import Rule

DATA = Path(__file__).parent / "data" / "specs"


def spec(**members: Any) -> OciSpec:  # noqa: ANN401 -- any JSON
    """Parse a specification with these members."""
    return parse_spec(json.dumps(members))


def test_an_empty_specification() -> None:
    """What is not there is empty; without capabilities nothing is taken from the process."""
    assert parse_spec("{}") == OciSpec()
    assert parse_spec('{"linux": null, "process": null}') == OciSpec()
    assert parse_spec("{}").capabilities is None


def test_the_parts() -> None:
    """Every part of the specification that matters here."""
    read = spec(
        linux={
            "cgroupsPath": "system.slice:docker:x",
            "devices": [
                {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
                {"path": "/dev/sda", "type": "b", "major": 8},
                {"path": "/dev/pipe", "type": "p"},
                {"path": "/dev/odd", "type": "u", "major": 1, "minor": 3},
            ],
            "namespaces": [{"type": "mount"}, {"type": "user", "path": "/proc/1/ns/user"}, {"type": "pid", "path": ""}],
        },
        process={"env": ["A=1", "B=2=3", "A=4", "C"], "capabilities": {"bounding": ["CAP_KILL", "cap_mknod"]}},
        mounts=[{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}, {"destination": "/x"}],
        hooks={"prestart": [{"path": "/usr/bin/hook", "args": ["hook", "prestart"]}], "poststop": [{"path": "/b"}]},
        annotations={"a": "b"},
    )
    assert read.cgroups_path == "system.slice:docker:x"
    assert read.nodes == {
        "/dev/nvidia0": DeviceNumber("c", 195, 0),
        "/dev/sda": DeviceNumber("b", 8, 0),
        "/dev/odd": DeviceNumber("c", 1, 3),
    }
    assert read.namespaces == {"mount", "pid"}
    assert read.env == {"A": "4", "B": "2=3"}
    assert read.capabilities == frozenset({"CAP_KILL", "CAP_MKNOD"})
    assert read.mounts == (Mount("/dev", "tmpfs", "tmpfs"), Mount("/x"))
    assert read.hooks == (Hook("prestart", "/usr/bin/hook", ("hook", "prestart")), Hook("poststop", "/b"))
    assert read.annotations == {"a": "b"}


def test_capabilities_without_a_bounding_set() -> None:
    """Capabilities that do not name a bounding set leave it empty."""
    assert spec(process={"capabilities": {}}).capabilities == frozenset()


def test_a_device_node_gives_no_right() -> None:
    """linux.devices alone allows nothing."""
    assert (
        spec(linux={"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}).allowed
        == frozenset()
    )


@pytest.mark.invariant(1)
def test_a_huge_environment_hides_nothing() -> None:
    """The kernel takes one of 1.1 million characters (a quarter of an 8 MB stack): all else is read as well."""
    read = spec(
        process={"env": [f"A{n}=" + "x" * 125_000 for n in range(9)], "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}
    )
    assert (len(read.env), read.capabilities) == (9, frozenset({"CAP_SYS_ADMIN"}))


@pytest.mark.invariant(10)
def test_a_user_s_many_annotations_cost_little() -> None:
    """They are a user's choice: others wait for as long as it takes to read them."""
    text = json.dumps({"annotations": {str(number): "" for number in range(300_000)}})
    began = time.process_time()
    assert len(parse_spec(text).annotations) == 300_000
    spent, began = time.process_time() - began, time.process_time()
    parse_json(text)
    assert spent < 1.7 * (time.process_time() - began) + 0.05


@pytest.mark.parametrize("annotations", [[], {"a": 1}, {"a": ["b"]}])
def test_annotations_are_texts(annotations: object) -> None:
    """Their types are checked as all others."""
    with pytest.raises(SpecError, match="annotations"):
        spec(annotations=annotations)
    assert spec(annotations={"a": None, "b": "c"}).annotations == {"a": "", "b": "c"}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "[]",
            "1",
            "null",
            '"x"',
            '{"linux": []}',
            '{"mounts": {}}',
            '{"annotations": {"a": 1}}',
            '{"hooks": []}',
        ),
        *('{"process": {"env": [1]}}', '{"process": {"capabilities": []}}', '{"linux": {"devices": 1}}'),
    ],
)
def test_what_no_runtime_takes(text: str) -> None:
    """Another shape than the specification's is refused."""
    with pytest.raises(SpecError):
        parse_spec(text)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_real_specifications(path: Path) -> None:
    """What real engines wrote for a container with /dev/nvidia0 is read, with that device and its cgroup."""
    read = parse_spec(path.read_text(encoding="utf-8"))
    assert Rule.parse("c 195:0 rwm") in read.allowed
    assert not read.unrestricted
    assert read.cgroups_path.count(":") == 2
    assert read.capabilities is not None
    assert "CAP_SYS_ADMIN" not in read.capabilities
    assert "mount" in read.namespaces


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
_NAMES = st.sampled_from([
    *("linux", "resources", "devices", "type", "major", "minor", "access", "allow", "env", "process", "mounts"),
    *("hooks", "prestart", "args", "path", "annotations", "capabilities", "bounding", "namespaces", "cgroupsPath", "x"),
])  # fmt: skip
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=6), max_leaves=30
)


def test_lone_surrogates_are_texts() -> None:
    """What is no character of Unicode's is kept as it is: who makes a path or a name of it has to look."""
    assert parse_spec('{"annotations": {"a": "\\ud800"}}').annotations == {"a": "\ud800"}


_ANY = st.text(st.characters(exclude_categories=[]))


@given(
    st.text()
    | _ANY.map(json.dumps)
    | st.dictionaries(_ANY, _ANY).map(json.dumps)
    | _JSON.map(json.dumps)
    | st.dictionaries(_NAMES, _JSON).map(json.dumps)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing else than SpecError comes out of any text."""
    try:
        parse_spec(text)
    except SpecError:
        return
