"""bpf(2) against this machine's kernel; what it would not say here is put into its mouth at one place."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pytest

from gpuguard.errors import BpfUnavailableError, CgroupGoneError, CgroupUnreadableError, ProgramGoneError
from gpuguard.kernel import bpf
from tests.lab import bpf as lab
from tests.lab.poll import until

MOST = 64  # BPF_CGROUP_MAX_PROGS
NOBODY = 65534
HARDEN = Path("/proc/sys/net/core/bpf_jit_harden")


class Group:
    """A cgroup with an open descriptor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def own(self) -> tuple[int, ...]:
        """Return the ids of its programs."""
        return bpf.query(self.fd, effective=False)

    def effective(self) -> tuple[int, ...]:
        """Return the ids of its programs and its ancestors'."""
        return bpf.query(self.fd, effective=True)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Return what ends programs and descriptors with the test; skips where there can be none."""
    reason = lab.why_not()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def top(stack: contextlib.ExitStack) -> Group:
    """Return an empty cgroup."""
    return opened(stack, stack.enter_context(lab.scratch()))


@pytest.fixture
def loaded(stack: contextlib.ExitStack) -> lab.Loaded:
    """Return a program that is attached nowhere."""
    return stack.enter_context(lab.program(lab.ALLOW_ALL))


def opened(stack: contextlib.ExitStack, path: Path) -> Group:
    """Open a cgroup, which is made unless it is there, for the time of the test."""
    path.mkdir(exist_ok=True)
    group = Group(path)
    stack.callback(os.close, group.fd)
    return group


def outcome(function: Callable[[], object]) -> object:
    """Return what a function returns or raises."""
    try:
        return function()
    except CgroupUnreadableError as error:
        return error


def as_nobody(group: Group, function: Callable[[], object]) -> object:
    """Return what a function returns or raises in a child process without capabilities."""

    def child() -> object:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return outcome(function)

    return lab.inside(group.path, child)


def descriptors() -> list[str]:
    """Return this process's descriptors; the one that reads them counts each time."""
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def above(group: Group) -> tuple[int, ...]:
    """Return the ids of what this machine itself has attached further up."""
    with contextlib.ExitStack() as stack:
        return opened(stack, group.path.parent).effective()


class TestQuery:
    """Listing."""

    @pytest.mark.parametrize("count", [0, 1, 3, MOST])
    def test_own(self, stack: contextlib.ExitStack, top: Group, count: int) -> None:
        """The ids of a cgroup's programs come in the order in which they were attached."""
        programs = [stack.enter_context(lab.program(lab.ALLOW_ALL)) for _ in range(count)]
        for program in programs:
            lab.attach(top.path, program.fd)
        assert top.own() == tuple(program.id for program in programs)
        assert top.effective() == top.own() + above(top)

    def test_ancestors(self, stack: contextlib.ExitStack, top: Group) -> None:
        """Effective are the cgroup's own programs, then its parent's, and so on upwards."""
        first, second, third = (stack.enter_context(lab.program(lab.ALLOW_ALL)) for _ in range(3))
        middle = opened(stack, top.path / "middle")
        low = opened(stack, middle.path / "low")
        lab.attach(top.path, first.fd)
        lab.attach(low.path, second.fd)
        lab.attach(low.path, third.fd)
        assert (low.own(), middle.own(), top.own()) == ((second.id, third.id), (), (first.id,))
        assert low.effective() == (second.id, third.id, first.id, *above(top))
        assert middle.effective() == (first.id, *above(top))

    def test_more_than_fit_at_once(self, stack: contextlib.ExitStack, top: Group) -> None:
        """Six full levels are more than the buffer holds; none is left out."""
        programs = [stack.enter_context(lab.program(lab.ALLOW_ALL)) for _ in range(MOST)]
        group = top
        for level in range(6):
            group = opened(stack, group.path / f"level{level}")
            for program in programs:
                lab.attach(group.path, program.fd)
        assert len(group.effective()) > bpf._AT_ONCE
        assert group.effective() == tuple(program.id for program in programs) * 6 + above(top)
        assert group.own() == tuple(program.id for program in programs)

    @pytest.mark.invariant(10)
    def test_more_than_it_takes(
        self, stack: contextlib.ExitStack, top: Group, loaded: lab.Loaded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is an end to what is asked for, and a list that is not whole is no list."""
        other = stack.enter_context(lab.program(lab.DENY_ALL))
        for program in (loaded, other):
            lab.attach(top.path, program.fd)
        monkeypatch.setattr(bpf, "_AT_ONCE", 1)
        assert top.own() == (loaded.id, other.id)
        monkeypatch.setattr(bpf, "_AT_MOST", 1)
        with pytest.raises(CgroupUnreadableError, match="too many, or they change without end"):
            top.own()

    def test_replaced_and_detached(self, stack: contextlib.ExitStack, top: Group, loaded: lab.Loaded) -> None:
        """A program in the place of another has its place and an id of its own."""
        last, new = (stack.enter_context(lab.program(lab.ALLOW_ALL)) for _ in range(2))
        lab.attach(top.path, loaded.fd)
        lab.attach(top.path, last.fd)
        lab.replace(top.path, loaded.fd, new.fd)
        assert top.own() == (new.id, last.id)
        lab.detach(top.path, new.fd)
        assert top.own() == (last.id,)

    @pytest.mark.invariant(5)
    @pytest.mark.parametrize("effective", [False, True])
    def test_a_group_that_is_gone(self, stack: contextlib.ExitStack, top: Group, effective: bool) -> None:
        """A kept descriptor says that its cgroup is gone, also when another one has taken the name."""
        low = opened(stack, top.path / "low")
        low.path.rmdir()
        namesake = opened(stack, top.path / "low")
        with pytest.raises(CgroupGoneError, match=r"low.*the control group is gone"):
            bpf.query(low.fd, effective=effective)
        assert namesake.own() == ()

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("path", ["/", "/proc/self/status", "/sys/fs/cgroup/devices"])
    def test_no_cgroup(self, stack: contextlib.ExitStack, path: str) -> None:
        """Another directory, or one of cgroup v1, is no cgroup v2 without programs."""
        if not Path(path).exists():
            pytest.skip(f"needs {path}")
        fd = os.open(path, os.O_RDONLY)
        stack.callback(os.close, fd)
        with pytest.raises(
            CgroupUnreadableError, match=f"^{path if '/self/' not in path else '/proc/'}.*: not a cgroup"
        ):
            bpf.query(fd, effective=True)

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("fd", [-1, 1 << 20])
    def test_no_descriptor(self, fd: int) -> None:
        """A descriptor that is closed has a name in the error all the same."""
        reason = lab.why_not()
        if reason is not None:
            pytest.skip(reason)
        with pytest.raises(CgroupUnreadableError, match=f"descriptor {fd}: .*: not a cgroup v2 directory"):
            bpf.query(fd, effective=False)

    def test_nothing_is_written_past_the_attribute(
        self, top: Group, loaded: lab.Loaded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel writes in the attribute where it is known to (since 6.17 also the revision), not behind it."""
        lab.attach(top.path, loaded.fd)
        memory = bytearray(b"\0" * 144 + b"\xa5" * 256)
        attribute = bpf._QueryAttribute.from_buffer(memory)
        attribute.attach_type, attribute.prog_ids = 6, ctypes.addressof(bpf._ids)
        monkeypatch.setattr(bpf, "_query", attribute)
        arguments = (*bpf._QUERY_ARGUMENTS[:2], ctypes.byref(attribute), *bpf._QUERY_ARGUMENTS[3:])
        monkeypatch.setattr(bpf, "_QUERY_ARGUMENTS", arguments)
        for _ in range(3):
            assert top.own() == (loaded.id,)
            assert top.effective() == (loaded.id, *above(top))
        assert (ctypes.sizeof(attribute), bytes(memory[144:])) == (144, b"\xa5" * 256)
        assert not any(attribute.unused)
        assert not any(attribute.rest)


class TestProgram:
    """Reading one program."""

    @pytest.mark.parametrize(("licence", "compatible"), [("GPL", True), ("Apache", False)])
    @pytest.mark.parametrize("name", ["", "sd_devices", "fifteen_letters"])
    def test_what_was_loaded(self, stack: contextlib.ExitStack, name: str, licence: str, compatible: bool) -> None:
        """Name, licence and instructions are those that it was loaded with."""
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        loaded = stack.enter_context(lab.program(lab.DENY_ALL, name=name, licence=licence))
        program = bpf.program(loaded.id)
        assert (program.id, program.name, program.gpl_compatible) == (loaded.id, name, compatible)
        assert before <= program.load_time <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if HARDEN.read_text(encoding="ascii").strip() != "2":
            assert program.code == lab.DENY_ALL

    def test_the_tag(self, stack: contextlib.ExitStack) -> None:
        """Programs of the same instructions have the same tag, others another one."""
        one, same, other = (
            bpf.program(stack.enter_context(lab.program(code)).id).tag
            for code in (lab.ALLOW_ALL, lab.ALLOW_ALL, lab.DENY_ALL)
        )
        assert one == same != other
        assert (len(one), int(one, 16) >= 0) == (16, True)

    def test_many_instructions(self, stack: contextlib.ExitStack) -> None:
        """A program as long as any runtime makes comes whole."""
        if HARDEN.read_text(encoding="ascii").strip() == "2":
            pytest.skip("net.core.bpf_jit_harden=2: instructions are not those that were loaded")
        code = lab.ALLOW_ALL[:8] * 4000 + lab.ALLOW_ALL[8:]
        assert bpf.program(stack.enter_context(lab.program(code)).id).code == code

    def test_a_name_that_no_kernel_takes(self, loaded: lab.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
        """A name goes into the journal: whatever its bytes are, they are printable there."""
        real = bpf._info

        def renamed(fd: int, program_id: int, code: Optional[ctypes.Array[ctypes.c_char]] = None) -> bpf._ProgramInfo:
            info = real(fd, program_id, code)
            info.name[:] = b"a\x1b[2J\n\xff\xe2\x80\xae\\zzzzz"
            return info

        monkeypatch.setattr(bpf, "_info", renamed)
        name = bpf.program(loaded.id).name
        assert name == r"a\x1b[2J\n\xff\xe2\x80\xae\\zzzzz"
        assert (name.isascii(), name.isprintable()) == (True, True)

    def test_gone(self) -> None:
        """A program that was detached and closed is gone: the list has to be read again."""
        reason = lab.why_not()
        if reason is not None:
            pytest.skip(reason)
        with lab.program(lab.ALLOW_ALL) as loaded:
            assert bpf.program(loaded.id).id == loaded.id
        # The kernel takes the id away after the descriptor's last user.
        until(lambda: isinstance(outcome(lambda: bpf.program(loaded.id)), ProgramGoneError), 20, "the program's end")
        with pytest.raises(ProgramGoneError, match=f"device program {loaded.id} is gone"):
            bpf.program(loaded.id)

    @pytest.mark.invariant(4)
    def test_of_another_type(self, stack: contextlib.ExitStack) -> None:
        """An id that belongs to a program of another type is not the device program that was listed."""
        fd = lab.load(lab.ALLOW_ALL, kind=lab.SOCKET_FILTER)
        stack.callback(os.close, fd)
        with pytest.raises(ProgramGoneError, match="its id belongs to something else now"):
            bpf.program(lab.program_id(fd))

    def test_no_descriptor_is_left_open(self, stack: contextlib.ExitStack, loaded: lab.Loaded) -> None:
        """Neither a program that was read nor one that was refused keeps a descriptor."""
        other = lab.load(lab.ALLOW_ALL, kind=lab.SOCKET_FILTER)
        stack.callback(os.close, other)
        before = descriptors()
        for _ in range(3):
            bpf.program(loaded.id)
            for number in (lab.program_id(other), 0, (1 << 31) - 1):
                with pytest.raises(ProgramGoneError):
                    bpf.program(number)
        assert descriptors() == before


class TestRefused:
    """A kernel that does not answer says nothing about permissions."""

    @pytest.mark.invariant(4)
    def test_query_without_privilege(self, top: Group, loaded: lab.Loaded) -> None:
        """Without CAP_NET_ADMIN the list is unreadable, not empty."""
        lab.attach(top.path, loaded.fd)
        error = as_nobody(top, top.effective)
        assert type(error) is CgroupUnreadableError
        assert str(top.path) in str(error)
        assert "Operation not permitted: gpuguard needs CAP_SYS_ADMIN (CAP_BPF is not enough)" in str(error)

    @pytest.mark.invariant(4)
    def test_program_without_privilege(self, top: Group, loaded: lab.Loaded) -> None:
        """Without CAP_SYS_ADMIN no program can be opened."""
        error = as_nobody(top, lambda: bpf.program(loaded.id))
        assert type(error) is CgroupUnreadableError
        assert f"device program {loaded.id}: cannot open it: Operation not permitted" in str(error)

    @pytest.mark.invariant(4)
    def test_instructions_without_privilege(self, top: Group, loaded: lab.Loaded) -> None:
        """Who was handed an open program and lacks CAP_BPF is told that it has no instructions; it has."""
        error = as_nobody(top, lambda: bpf._read(loaded.fd, loaded.id))
        assert type(error) is CgroupUnreadableError
        assert f"device program {loaded.id}: the kernel hides its instructions: gpuguard needs" in str(error)

    @pytest.mark.invariant(4)
    def test_blinded(self, stack: contextlib.ExitStack, top: Group) -> None:
        """Of a blinded program nobody without CAP_SYSLOG sees the instructions."""
        if HARDEN.read_text(encoding="ascii").strip() != "2":
            pytest.skip("needs net.core.bpf_jit_harden=2, a setting of the whole machine that no test changes")
        if Path("/proc/sys/kernel/perf_event_paranoid").read_text(encoding="ascii").strip() in {"-1", "0", "1"}:
            pytest.skip("needs kernel.perf_event_paranoid=2 or more: below it everybody sees them")
        blinded = stack.enter_context(lab.program(lab.ALLOW_ALL))
        assert bpf.program(blinded.id).code != lab.ALLOW_ALL

        def read() -> object:
            lab.drop(lab.CAP_SYSLOG)
            return outcome(lambda: bpf.program(blinded.id))

        error = lab.inside(top.path, read)
        assert type(error) is CgroupUnreadableError
        assert "give gpuguard CAP_SYSLOG" in str(error)

    @pytest.mark.invariant(4, 10)
    def test_more_instructions_than_can_be_kept(self, loaded: lab.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel takes a million of who may attach programs; no runtime has so many."""
        monkeypatch.setattr(bpf, "_MOST_INSTRUCTIONS", 1)
        error = outcome(lambda: bpf.program(loaded.id))
        assert type(error) is CgroupUnreadableError
        assert f"{loaded.id} cannot be followed: 2 instructions, and gpuguard follows up to 1" in str(error)

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("pointer", [0, 1])
    def test_a_dump_of_zeros(self, loaded: lab.Loaded, monkeypatch: pytest.MonkeyPatch, pointer: int) -> None:
        """Instructions that are all zero, or a pointer that the kernel took away, are no program that denies."""
        real = bpf._info

        def hidden(fd: int, program_id: int, code: Optional[ctypes.Array[ctypes.c_char]] = None) -> bpf._ProgramInfo:
            info = real(fd, program_id)
            info.xlated_prog_insns = pointer if code is not None else 0
            return info

        monkeypatch.setattr(bpf, "_info", hidden)
        with pytest.raises(CgroupUnreadableError, match=r"bpf_jit_harden=2 blinds them.*give gpuguard CAP_SYSLOG"):
            bpf.program(loaded.id)

    @pytest.mark.invariant(4)
    def test_a_part_of_a_dump(self, loaded: lab.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
        """A length that changes between two questions is no program."""
        real = bpf._info

        def longer(fd: int, program_id: int, code: Optional[ctypes.Array[ctypes.c_char]] = None) -> bpf._ProgramInfo:
            info = real(fd, program_id, code)
            info.xlated_prog_len += 8 if code is not None else 0
            return info

        monkeypatch.setattr(bpf, "_info", longer)
        with pytest.raises(CgroupUnreadableError, match="gave a part of its instructions"):
            bpf.program(loaded.id)

    @pytest.mark.parametrize("call", [lambda: bpf.query(0, effective=True), lambda: bpf.program(1)])
    def test_no_bpf(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
        """A machine whose number for bpf(2) is not known is one that has none (ENOSYS, from any kernel)."""
        monkeypatch.setattr(bpf._NUMBER, "value", -1)
        with pytest.raises(BpfUnavailableError, match=r"Function not implemented: this kernel .* cannot be read"):
            call()

    def test_no_such_command(self, top: Group, loaded: lab.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
        """A command or an attach type that the kernel does not know (EINVAL) is missing, not refused."""
        for constant in (bpf._PROG_QUERY, bpf._PROG_GET_FD_BY_ID, bpf._OBJ_GET_INFO_BY_FD):
            monkeypatch.setattr(constant, "value", 30000)
        with pytest.raises(BpfUnavailableError, match="Invalid argument: this kernel"):
            top.own()
        with pytest.raises(BpfUnavailableError, match="Invalid argument: this kernel"):
            bpf.program(loaded.id)
        with pytest.raises(BpfUnavailableError, match="Invalid argument: this kernel"):
            bpf._read(loaded.fd, loaded.id)

    def test_no_such_attach_type(self, top: Group, monkeypatch: pytest.MonkeyPatch) -> None:
        """A kernel without device programs for cgroups says EINVAL too."""
        monkeypatch.setattr(bpf._query, "attach_type", 9999)
        monkeypatch.setattr(bpf, "_CGROUP_DEVICE", 9999)
        with pytest.raises(BpfUnavailableError, match=r"Linux 4\.15 with CONFIG_CGROUP_BPF"):
            top.own()

    @pytest.mark.invariant(6)
    def test_it_only_reads(self) -> None:
        """It knows no command but opening a program by its id, asking about it, and listing."""
        assert {value.value for value in vars(bpf).values() if isinstance(value, ctypes.c_int)} == {13, 15, 16}

    @pytest.mark.parametrize(
        ("machine", "pointer_bytes", "number"),
        [("x86_64", 8, 321), ("aarch64", 8, 280), ("x86_64", 4, -1), ("riscv64", 8, -1), ("", 8, -1)],
    )
    def test_the_number(self, machine: str, pointer_bytes: int, number: int) -> None:
        """A 32-bit Python on a 64-bit kernel has other numbers, and 321 is not bpf(2) among them."""
        assert bpf._syscall_number(machine, pointer_bytes) == number
