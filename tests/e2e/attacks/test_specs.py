"""Specifications that are junk, somebody else's, or not root's alone: they give nothing, and hinder nobody."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Callable

import pytest

from tests.e2e.attacks import specs
from tests.e2e.attacks.arena import Arena, Suspect
from tests.lab.devices import CTL, GPU0, GPU1, UVM
from tests.lab.scope import random_name

pytestmark = pytest.mark.invariant(1)

_USER = 1000
_TOLERANCE = 2.0  # seconds


def huge(file: Path, _text: str) -> None:
    """Put there a hundred megabytes."""
    with file.open("w", encoding="utf-8") as out:
        out.truncate(100 << 20)


def nested(file: Path, _text: str) -> None:
    """Put there lists in lists, a million deep."""
    file.write_text("[" * (1 << 20), encoding="utf-8")


def nested_objects(file: Path, _text: str) -> None:
    """Put there objects in objects, at a place that is read."""
    file.write_text('{"linux":' * 100_000, encoding="utf-8")


def fifo(file: Path, _text: str) -> None:
    """Put there a pipe that nobody writes to."""
    file.unlink()
    os.mkfifo(file)


def endless(file: Path, _text: str) -> None:
    """Put there a device that can be read for ever."""
    file.unlink()
    os.mknod(file, 0o20644, os.makedev(1, 5))


def link(file: Path, text: str) -> None:
    """Put there a link to a specification that would be believed."""
    other = file.with_name("other.json")
    other.write_text(text, encoding="utf-8")
    file.unlink()
    file.symlink_to("other.json")


def directory(file: Path, _text: str) -> None:
    """Put there a directory."""
    file.unlink()
    file.mkdir()


def of_a_user(file: Path, text: str) -> None:
    """Put there a file of a user's."""
    file.write_text(text, encoding="utf-8")
    os.chown(file, _USER, _USER)


def writable(file: Path, text: str) -> None:
    """Put there a file that a group may write."""
    file.write_text(text, encoding="utf-8")
    file.chmod(0o664)


def in_a_writable_directory(file: Path, text: str) -> None:
    """Put there a directory that a group may write."""
    file.write_text(text, encoding="utf-8")
    file.parent.chmod(0o775)


def in_a_users_directory(file: Path, text: str) -> None:
    """Put there a directory of a user's."""
    file.write_text(text, encoding="utf-8")
    os.chown(file.parent, _USER, _USER)


def of_another(file: Path, text: str) -> None:
    """Put there the specification of another container."""
    own = json.loads(text)["linux"]["cgroupsPath"].rpartition(":")[2]
    file.write_text(text.replace(own, "f" * 64), encoding="utf-8")


def changed_later(file: Path, text: str) -> None:
    """Put there one that was changed after the start, and is dated back."""
    file.write_text(text, encoding="utf-8")
    os.utime(file, (0, 0))


def odd_numbers(file: Path, text: str) -> None:
    """Put there numbers that are none, or too large, or fractions, or texts."""
    spec = json.loads(text)
    rule = {"allow": True, "type": "c", "access": "rwm", "minor": 1}
    majors = (1e308, 195.5, -1, 1 << 70, "195", True, [195], 195)
    spec["linux"]["resources"]["devices"] = [{**rule, "major": major} for major in majors]
    file.write_text(json.dumps(spec).replace("1e+308", "1e999"), encoding="utf-8")


def not_text(file: Path, text: str) -> None:
    """Put there bytes that are no UTF-8."""
    file.write_bytes(b"\xff\xfe" + text.encode("utf-16-le") + b"\xed\xa0\x80")


def many_rules(file: Path, text: str) -> None:
    """Put there fifty thousand rules."""
    rule = '{"allow":true,"type":"c","major":240,"minor":%d,"access":"rwm"}'
    many = ",".join(rule % number for number in range(50_000))
    file.write_text(text.replace('"devices": [', f'"devices": [{many},', 1), encoding="utf-8")
    os.utime(file, (0, 0))


JUNK: tuple[Callable[[Path, str], None], ...] = (
    *(huge, nested, nested_objects, fifo, endless, link, directory, of_a_user, writable, in_a_writable_directory),
    *(in_a_users_directory, of_another, changed_later, odd_numbers, not_text, many_rules),
)


def test_specifications_that_are_not_believed(arena: Arena) -> None:
    """Each says that its container was given every GPU; it was given none, or one that it keeps."""
    suspects: dict[Suspect, Callable[[Path, str], None]] = {}
    for number, junk in enumerate(JUNK):
        given = (GPU0,) if number % 2 else ()
        suspects[arena.scope(given, random_name(specs.PREFIX), wait=False)] = junk
    time.sleep(_TOLERANCE)
    places = []
    for suspect, junk in suspects.items():
        specification = specs.of(suspect.scope, [GPU0, GPU1, CTL, UVM])
        places.append(specs.place(arena, suspect, specification))
        junk(places[-1] / "config.json", json.dumps(specification))
    arena.withstand(*suspects, heals=False)
    for place in places:
        shutil.rmtree(place)


def test_first_processes_that_are_not_the_containers(arena: Arena) -> None:
    """A specification of this container that names a process of another, systemd, none, or something else."""
    texts = ("1", "0", "-1", "4194304999", "", "abc", "1\n2", "\x00", str(1 << 80), "self")
    places, suspects = [], []
    for text in texts:
        suspects.append(arena.scope((), random_name(specs.PREFIX)))
        places.append(specs.place(arena, suspects[-1], specs.of(suspects[-1].scope, [GPU1])))
        (places[-1] / "init.pid").write_text(text, encoding="utf-8")
    arena.withstand(*suspects)
    for place in places:
        shutil.rmtree(place)
