"""Which files a reload would read for a unit, in which order. test_real_node.py compares with a real systemd."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuguard.errors import UnitFileError
from gpuguard.systemd import unit_files
from gpuguard.systemd.unit_files import UnitFile, drop_in_names, texts

NAME = "docker-1.scope"
FRAGMENT = "/run/systemd/transient/docker-1.scope"


def put(root: Path, path: str, text: str) -> str:
    """Write a file and return its path."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


def read(root: Path, name: str = NAME, fragment: str = FRAGMENT) -> list[str]:
    """Return the texts in order."""
    return [file.text for file in texts(fragment, name, str(root))]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("docker-1.scope", ["docker-1.scope", "docker-.scope"]),
        ("cri-containerd-1.scope", ["cri-containerd-1.scope", "cri-containerd-.scope", "cri-.scope"]),
        ("a.service", ["a.service"]),
        ("-a.service", ["-a.service"]),
        ("a--b.service", ["a--b.service", "a--.service", "a-.service"]),
        ("a-b@c-d.service", ["a-b@c-d.service", "a-b@.service", "a-.service", "a-@c-d.service", "a-@.service"]),
    ],
)
def test_drop_ins_hold_for_prefixes_that_end_in_a_dash(name: str, names: list[str]) -> None:
    """A unit has the drop-ins of its own name, its template's, and those of each prefix, most specific first."""
    assert list(drop_in_names(name)) == names


def test_the_fragment_comes_first_then_drop_ins_by_file_name(tmp_path: Path) -> None:
    """Drop-ins of all directories are applied in the order of their file names, whatever directory they are in."""
    put(tmp_path, "run/systemd/transient/docker-1.scope", "fragment")
    put(tmp_path, "usr/lib/systemd/system/scope.d/10-a.conf", "10")
    put(tmp_path, "run/systemd/transient/docker-1.scope.d/50-DeviceAllow.conf", "50")
    put(tmp_path, "etc/systemd/system/docker-.scope.d/20-b.conf", "20")
    assert read(tmp_path) == ["fragment", "10", "20", "50"]


def test_each_file_is_given_with_its_path(tmp_path: Path) -> None:
    """The path is there for messages to people."""
    path = put(tmp_path, "run/systemd/transient/docker-1.scope", "x")
    assert texts(FRAGMENT, NAME, str(tmp_path)) == [UnitFile(path, "x")]


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        ("etc/systemd/system/docker-1.scope.d", "run/systemd/system/docker-1.scope.d"),
        ("run/systemd/transient/docker-1.scope.d", "etc/systemd/system/docker-1.scope.d"),
        ("etc/systemd/system/docker-1.scope.d", "etc/systemd/system/docker-.scope.d"),
        ("etc/systemd/system/docker-.scope.d", "run/systemd/system/docker-1.scope.d"),
        ("usr/lib/systemd/system/docker-.scope.d", "etc/systemd/system/scope.d"),
    ],
)
def test_of_equal_file_names_one_holds(tmp_path: Path, winner: str, loser: str) -> None:
    """The higher directory hides the lower; within one, the more specific name; the type-wide ones come last."""
    put(tmp_path, f"{loser}/50-x.conf", "loser")
    put(tmp_path, f"{winner}/50-x.conf", "winner")
    assert read(tmp_path) == ["winner"]


def test_a_masked_drop_in_hides_those_below(tmp_path: Path) -> None:
    """A link to /dev/null, an empty file and a dangling link each hide the file of that name and set nothing."""
    for name, target in (("a.conf", "/dev/null"), ("b.conf", "/nowhere")):
        put(tmp_path, f"usr/lib/systemd/system/{NAME}.d/{name}", "hidden")
        link = tmp_path / "etc/systemd/system/docker-1.scope.d" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    assert "".join(read(tmp_path)) == ""


def test_other_files_in_a_drop_in_directory_do_not_count(tmp_path: Path) -> None:
    """Only visible names that end in .conf are read."""
    for name in (".a.conf", "b.conf~", "c.txt", "README"):
        put(tmp_path, f"etc/systemd/system/{NAME}.d/{name}", "no")
    assert read(tmp_path) == []


def test_a_new_fragment_higher_up_is_what_a_reload_reads(tmp_path: Path) -> None:
    """A file of the unit's name in a higher directory counts, not the fragment of the last load."""
    put(tmp_path, "usr/lib/systemd/system/a.service", "old")
    put(tmp_path, "etc/systemd/system/a.service", "new")
    assert read(tmp_path, "a.service", "/usr/lib/systemd/system/a.service") == ["new"]


def test_an_instance_has_its_templates_fragment(tmp_path: Path) -> None:
    """The template's file counts unless the instance has its own."""
    put(tmp_path, "usr/lib/systemd/system/a@.service", "template")
    assert read(tmp_path, "a@1.service", "/usr/lib/systemd/system/a@.service") == ["template"]
    put(tmp_path, "usr/lib/systemd/system/a@1.service", "instance")
    assert read(tmp_path, "a@1.service", "/usr/lib/systemd/system/a@.service") == ["instance"]


def test_a_fragment_elsewhere_is_read_where_it_is(tmp_path: Path) -> None:
    """A linked unit's file is outside the directories that systemd searches."""
    put(tmp_path, "opt/a.service", "linked")
    assert read(tmp_path, "a.service", "/opt/a.service") == ["linked"]


def test_a_unit_without_files_has_none(tmp_path: Path) -> None:
    """A unit without fragment, or whose fragment has gone, has its drop-ins alone."""
    put(tmp_path, f"etc/systemd/system/{NAME}.d/a.conf", "a")
    assert read(tmp_path, fragment="") == ["a"]
    assert read(tmp_path) == ["a"]


def test_bytes_that_are_no_text_are_kept_apart(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 come as surrogates, at which the parser stops as systemd does."""
    path = put(tmp_path, "run/systemd/transient/docker-1.scope", "")
    Path(path).write_bytes(b"# \xff\n[Scope]\n")
    assert read(tmp_path) == ["# \udcff\n[Scope]\n"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """What cannot be read is an error, for leaving it out would be a guess."""
    directory = tmp_path / f"etc/systemd/system/{NAME}.d/a.conf"
    directory.mkdir(parents=True)
    with pytest.raises(UnitFileError, match=r"a\.conf"):
        read(tmp_path)


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    """The same holds for a directory."""
    loop = tmp_path / f"etc/systemd/system/{NAME}.d"
    loop.parent.mkdir(parents=True)
    loop.symlink_to(loop.name)
    with pytest.raises(UnitFileError, match=r"docker-1\.scope\.d"):
        read(tmp_path)


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than MAX_SIZE bytes are read of any file."""
    monkeypatch.setattr(unit_files, "MAX_SIZE", 100)
    put(tmp_path, "run/systemd/transient/docker-1.scope", "x" * 101)
    with pytest.raises(UnitFileError, match="longer than 100"):
        read(tmp_path)


def test_the_machine_itself_can_be_read() -> None:
    """Without a root it is this machine's own files that are read."""
    assert all(os.path.isabs(file.path) for file in texts("", "dbus.service"))  # noqa: PTH117 -- paths are texts here
