"""Unit files: what systemd will know of a unit's devices after a reload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.fragment import parse_fragments
from gpuguard.model.rule import Access
from gpuguard.model.unit import DeviceAllow, DevicePolicy

# Each case was read by systemd 252 as a service's unit file and drop-ins, and `systemctl show` gave
# what is expected here: the policy, and the entries sorted. Each text stands below [Service].
SEEN = {
    "nothing": ([""], "auto", []),
    "policy and entries": (["DevicePolicy=closed\nDeviceAllow=/dev/fuse rw\n"], "closed", ["/dev/fuse rw"]),
    "access left out": (["DeviceAllow=/dev/fuse\n"], "auto", ["/dev/fuse rwm"]),
    "access in any order, repeated": (["DeviceAllow=/dev/fuse mwrrwm\n"], "auto", ["/dev/fuse rwm"]),
    "a tab between": (["DeviceAllow=/dev/fuse\trw\n"], "auto", ["/dev/fuse rw"]),
    "spaces around": (["  DeviceAllow =  /dev/fuse   rw  \n"], "auto", ["/dev/fuse rw"]),
    "a path twice": (["DeviceAllow=/dev/fuse r\nDeviceAllow=/dev/fuse w\n"], "auto", ["/dev/fuse r", "/dev/fuse w"]),
    "an empty value resets": (["DeviceAllow=/dev/a\n", "DeviceAllow=\nDeviceAllow=/dev/b r\n"], "auto", ["/dev/b r"]),
    "drop-ins add": (["DeviceAllow=/dev/a r\n", "DeviceAllow=/dev/b r\n"], "auto", ["/dev/a r", "/dev/b r"]),
    "the last policy wins": (["DevicePolicy=strict\n", "DevicePolicy=auto\n", "DevicePolicy=closed\n"], "closed", []),
    "an odd policy is ignored": (["DevicePolicy=strict\nDevicePolicy=Closed\nDevicePolicy=\n"], "strict", []),
    "a quoted policy is odd": (["DevicePolicy='strict'\n"], "auto", []),
    "no comment behind a value": (["DevicePolicy=strict # really\nDeviceAllow=/dev/a r # x\n"], "auto", []),
    "comments": (["# DeviceAllow=/dev/a\n ; DeviceAllow=/dev/b\nDeviceAllow=/dev/c r\n"], "auto", ["/dev/c r"]),
    "a continued line": (["DeviceAllow=/dev/a \\\nrw\n"], "auto", ["/dev/a rw"]),
    "a comment in a continued line": (["DeviceAllow=/dev/a \\\n# no\nrw\n"], "auto", ["/dev/a rw"]),
    "a continued comment is not": (["# no \\\nDeviceAllow=/dev/a rw\n"], "auto", ["/dev/a rw"]),
    "continued into the next key": (["DeviceAllow=/dev/a \\\nDeviceAllow=/dev/b\n"], "auto", []),
    "a continued last line": (["DeviceAllow=/dev/a rw\\"], "auto", ["/dev/a rw"]),
    "two backslashes do not continue": (["Description=a\\\\\nDeviceAllow=/dev/b r\n"], "auto", ["/dev/b r"]),
    "other line ends": (["DeviceAllow=/dev/a r\r\nDeviceAllow=/dev/b r\r\n"], "auto", ["/dev/a r", "/dev/b r"]),
    "NUL ends a line": (["DeviceAllow=/dev/a r\0DeviceAllow=/dev/b r\n"], "auto", ["/dev/a r", "/dev/b r"]),
    "form feed is no space": (["DeviceAllow=/dev/a\x0crw\n"], "auto", ["/dev/a\x0crw rwm"]),
    "odd access": (["DeviceAllow=/dev/a x\nDeviceAllow=/dev/a RW\nDeviceAllow=/dev/a r w\n"], "auto", []),
    "not a device": (["DeviceAllow=null\nDeviceAllow=/srv/x r\nDeviceAllow=/dev/../srv/x r\n"], "auto", []),
    "a path is simplified": (["DeviceAllow=/dev//./a/ r\n"], "auto", ["/dev/a r"]),
    "the directory passes": (["DeviceAllow=/dev/ r\n"], "auto", ["/dev r"]),
    "groups": (
        ["DeviceAllow=char-* m\nDeviceAllow=block-*\nDeviceAllow=char-a//b r\nDeviceAllow=char- r\n"],
        "auto",
        ["block-* rwm", "char- r", "char-* m", "char-a//b r"],
    ),
    "inaccessible": (["DeviceAllow=/run/systemd/inaccessible/chr rw\n"], "auto", ["/run/systemd/inaccessible/chr rw"]),
    "quotes": (["DeviceAllow=\"/dev/a b\" rw\nDeviceAllow='/dev/c'\n"], "auto", ["/dev/a b rw", "/dev/c rwm"]),
    "quotes inside": (['DeviceAllow=/dev/"a"b r\n'], "auto", ["/dev/ab r"]),
    "an open quote": (['DeviceAllow="/dev/a r\n'], "auto", []),
    "a backslash inside": (["DeviceAllow=char-t\\ty r\n"], "auto", ["char-tty r"]),
    "a doubled percent sign": (["DeviceAllow=/dev/a%%b r\n"], "auto", ["/dev/a%b r"]),
    "no equals sign": (["DeviceAllow\nDeviceAllow:/dev/a\n=x\n"], "auto", []),
    "keys have their case": (["deviceallow=/dev/a\ndevicepolicy=strict\n"], "auto", []),
    "another section": (["[Unit]\nDeviceAllow=/dev/a r\n[Scope]\nDevicePolicy=strict\n"], "auto", []),
    "an unknown section": (
        ["[X-Vendor]\nDeviceAllow=/dev/a r\n[Service]\nDeviceAllow=/dev/b r\n"],
        "auto",
        ["/dev/b r"],
    ),
    "sections have their case": (["[service]\nDeviceAllow=/dev/a r\n"], "auto", []),
    "a space before a section": ([" [Unit] \nDeviceAllow=/dev/a r\n"], "auto", []),
    "a broken section ends the file": (
        ["", "DeviceAllow=/dev/a r\n[Service\nDeviceAllow=/dev/b r\n", "DeviceAllow=/dev/c r\n"],
        "auto",
        ["/dev/a r", "/dev/c r"],
    ),
    "an unsafe section ends the file": (["", '[Ser"vice]\n[Service]\nDeviceAllow=/dev/b r\n'], "auto", []),
    "bytes that are no UTF-8 end the file": (
        ["", "DeviceAllow=/dev/a r\nDescription=\udcff\nDeviceAllow=/dev/b r\n", "DeviceAllow=/dev/c r\n"],
        "auto",
        ["/dev/a r", "/dev/c r"],
    ),
    "in a comment they do not": (["# \udcff\nDeviceAllow=/dev/b r\n"], "auto", ["/dev/b r"]),
    "letters of other scripts": (
        ["DeviceAllow=/dev/\u00fc r\nDeviceAllow=/dev/b\u00a0r\n"],
        "auto",
        ["/dev/b\u00a0r rwm", "/dev/\u00fc r"],
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_reads_as_systemd_was_seen_to(name: str) -> None:
    """The policy and the entries are those that systemd 252 made of the same texts."""
    texts, policy, entries = SEEN[name]
    found = parse_fragments("x.service", [f"[Service]\n{text}" for text in texts])
    assert (found[0].value, sorted(str(entry) for entry in found[1])) == (policy, entries)


def test_a_byte_order_mark_is_skipped() -> None:
    """A mark at the start of the file hides nothing of its first line."""
    assert parse_fragments("x.scope", ["\ufeff[Scope]\nDevicePolicy=strict\n"]) == (DevicePolicy.STRICT, ())


def test_nothing_counts_before_the_first_section() -> None:
    """An assignment above every section header is ignored; the section of one file does not reach into the next."""
    assert parse_fragments("x.scope", ["[Scope]\n", "DevicePolicy=strict\n"]) == (DevicePolicy.AUTO, ())


@pytest.mark.parametrize("kind", ["scope", "service", "slice", "socket", "mount", "swap"])
def test_the_section_is_that_of_the_unit_s_type(kind: str) -> None:
    """Each unit type has its own section, and no other counts."""
    text = "".join(f"[{other.capitalize()}]\nDeviceAllow=/dev/{other} r\n" for other in ("scope", "service", kind))
    _, entries = parse_fragments(f"a.b-{kind}.{kind}", [text])
    assert {entry.path for entry in entries} == {f"/dev/{kind}"}


def test_a_transient_scope() -> None:
    """The files that runc's calls leave of a container's scope give its policy and its list, in order."""
    fragment = (
        "# This is a transient unit file.\n[Unit]\nDescription=libcontainer container\n\n[Scope]\nSlice=system.slice\n"
    )
    policy_file = "# This is a drop-in unit file extension.\n[Scope]\nDevicePolicy=strict\n"
    allow_file = "[Scope]\nDeviceAllow=\nDeviceAllow=/dev/char/195:0 rw\nDeviceAllow=char-pts rwm\n"
    assert parse_fragments("docker-1.scope", [fragment, policy_file, allow_file]) == (
        DevicePolicy.STRICT,
        (DeviceAllow("/dev/char/195:0", Access.RW), DeviceAllow("char-pts", Access.RWM)),
    )


def test_an_unknown_specifier_keeps_the_entry() -> None:
    """An entry that only systemd can name still counts as one: with it, auto is a filter."""
    policy, entries = parse_fragments("x.service", ["[Service]\nDeviceAllow=/dev/%i r\n"])
    assert policy is DevicePolicy.AUTO
    assert [entry.path for entry in entries] == ["/dev/%i"]


_PIECES = st.sampled_from(
    [
        "[Scope]",
        "DeviceAllow=",
        "DevicePolicy=",
        "/dev/a",
        "char-",
        "rw",
        "\\",
        "\n",
        "\r",
        "\0",
        '"',
        "'",
        "#",
        " ",
        "%",
        "[",
        "]",
    ],
)


@given(st.lists(st.text() | st.lists(_PIECES).map("".join), max_size=3), st.text())
def test_any_text_is_taken(texts: list[str], unit: str) -> None:
    """No text and no unit name makes the parser fail, and each entry has a path and an access."""
    for name in (unit, "x.scope"):
        _, entries = parse_fragments(name, texts)
        assert all(entry.path and entry.access for entry in entries)


_ENTRIES = st.builds(
    DeviceAllow, st.sampled_from(["/dev/char/195:0", "/dev/fuse", "char-pts", "block-*"]), st.integers(1, 7).map(Access)
)


@given(st.sampled_from(DevicePolicy), st.lists(_ENTRIES))
def test_reads_what_systemd_writes(policy: DevicePolicy, entries: list[DeviceAllow]) -> None:
    """A drop-in in systemd's own form is read back to the same policy and list, whatever came before."""
    written = "[Scope]\nDeviceAllow=\n" + "".join(f"DeviceAllow={entry}\n" for entry in entries)
    before = "[Scope]\nDeviceAllow=/dev/kvm rw\n"
    texts = [before, f"[Scope]\nDevicePolicy={policy.value}\n", written]
    assert parse_fragments("x.scope", texts) == (policy, tuple(entries))
