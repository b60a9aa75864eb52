"""cgroup v2: what the BPF device programs of a control group and of all above it let through together.

Nothing is ever attached, detached or replaced: that is systemd's and the runtime's business.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Optional

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, ProgramError, ProgramGoneError
from gpuguard.kernel import bpf
from gpuguard.kernel.effort import Effort
from gpuguard.kernel.hierarchy import Hierarchy
from gpuguard.model.accepted import accepted_code
from gpuguard.model.asked import asked
from gpuguard.model.container_group import UNIT_SUFFIXES
from gpuguard.model.container_group import parse as parse_group
from gpuguard.model.device_filter import DeviceFilter, Owner, both
from gpuguard.model.device_list import DeviceList
from gpuguard.model.device_program import decode
from gpuguard.model.nested import GroupBelow
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet

_TRIES = 8
_MOST_PROGRAMS = 4096
_MOST_RULES = 4096
# Bytes, of instructions and rules that are kept of programs; a rule takes about 160 (CPython 3.11).
_MOST_BYTES = 1 << 25
_RULE_BYTES = 160
_UNITS = (*UNIT_SUFFIXES, ".slice")
# What is above the root of a cgroup namespace is in force and has no name (cgroup_namespaces(7)).
_ABOVE = "/.."


@functools.lru_cache(maxsize=256)
def _accepted(code: bytes) -> Optional[RuleSet]:
    """Return what a program accepts, None when no list of rules says it."""
    try:
        return accepted_code(code)
    except ProgramError:
        return None


# Up to a quarter of a second for 60 rules and 512 candidates; each reload makes all containers be read anew.
@functools.lru_cache(maxsize=64)
def _asked(code: bytes, candidates: frozenset[Rule]) -> RuleSet:
    return asked(decode(code), candidates)


class _Program(NamedTuple):
    """A program that was read before. `code` is kept of those that no list of rules describes."""

    owner: Owner
    rules: Optional[RuleSet]
    code: bytes


class _Sign(NamedTuple):
    """What tells cheaply whether anything changed: where the container is, and the programs in force there."""

    group: str
    programs: tuple[int, ...]


@dataclass
class _Kept:
    """A control group that was read before: its open directory, and what was seen."""

    directory: int
    inode: int
    effort: Effort
    sign: Optional[_Sign] = None
    asked: frozenset[Rule] = frozenset()
    seen: Optional[DeviceList] = None


class DevicesV2(Hierarchy):
    """The unified hierarchy, mounted at `root`. One descriptor is kept for each control group that was read.

    `candidates` tells what to ask a program about that no list of rules describes, beside what the caller names.
    """

    writable = False

    def __init__(self, root: Path, candidates: Callable[[], Iterable[Rule]]) -> None:
        super().__init__(root)
        self._candidates = candidates
        self._kept: dict[str, _Kept] = {}
        self._programs: dict[int, _Program] = {}
        self._bytes = 0

    def read(self, control_group: str, candidates: Iterable[Rule] = ()) -> DeviceList:
        """Read what the kernel allows now: the same object as before while no program has changed.

        crun runs a container in a group below its scope: what is in force there is what counts.
        Raises CgroupGoneError, CgroupUnreadableError.
        """
        kept = self._keep(control_group)
        candidates = frozenset(candidates)
        kept.effort.begin()
        for _ in range(_TRIES):
            try:
                sign = self._sign(control_group, kept)
                if kept.seen is not None and sign == kept.sign and candidates <= kept.asked:
                    return kept.seen
                seen = DeviceList(kept.inode, *self._filtered(sign, candidates, kept.effort))
                unchanged = sign == self._sign(control_group, kept)
            except CgroupGoneError:
                self.forget(control_group)
                raise
            except ProgramGoneError:
                continue
            except CgroupUnreadableError as error:
                if not _out_of_descriptors(error) or len(self._kept) == 1:
                    raise
                self.close()
                kept = self._keep(control_group)
                continue
            if unchanged:
                kept.sign, kept.asked, kept.seen = sign, candidates, seen
                return seen
        raise CgroupUnreadableError(f"{control_group}: its device programs change faster than they can be read")

    def as_made(self, control_group: str, rules: RuleSet) -> bool:  # noqa: ARG002 - of v1
        """Whether `rules` may be a copy of those above: nothing is copied here."""
        return False

    def allow(self, control_group: str, inode: int, rule: Rule) -> None:  # noqa: ARG002 - of v1
        """Refuse: a program is systemd's or the runtime's."""
        raise CgroupUnreadableError(f"{control_group}: cannot allow '{rule}': there is no list to write on cgroup v2")

    def groups(self, control_group: str) -> tuple[list[GroupBelow], bool]:  # noqa: ARG002 - of v1
        """Return the groups below that have lists: none. A program denies to all below, for as long as it is there."""
        return [], False

    def allow_below(self, control_group: str, inode: int, group: tuple[str, int], rule: Rule) -> None:  # noqa: ARG002
        """Refuse: a program is systemd's or the runtime's."""
        raise CgroupUnreadableError(f"{control_group}: cannot allow '{rule}': there is no list to write on cgroup v2")

    def shield(self, control_group: str, inode: int) -> None:
        """Do nothing: systemd attaches a new program before it detaches the one before, and both must allow."""

    def unshield(self, control_group: str, inode: int) -> bool:  # noqa: ARG002 - of v1
        """Do nothing; return whether there was a shield."""
        return False

    def shielded(self, control_group: str) -> bool:  # noqa: ARG002 - of v1
        """Whether a shield is there."""
        return False

    def forget(self, control_group: str) -> None:
        """Close what was kept of a control group."""
        kept = self._kept.pop(control_group, None)
        if kept is not None:
            os.close(kept.directory)

    def close(self) -> None:
        """Close all descriptors."""
        for control_group in list(self._kept):
            self.forget(control_group)

    def _keep(self, control_group: str) -> _Kept:
        kept = self._kept.get(control_group)
        if kept is None:
            # Half of them are for all else that is opened.
            if len(self._kept) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
                self.close()
            try:
                directory = self._opened(control_group)
            except CgroupUnreadableError as error:
                if not _out_of_descriptors(error):
                    raise
                self.close()
                directory = self._opened(control_group)
            kept = self._kept[control_group] = _Kept(directory, os.fstat(directory).st_ino, Effort(control_group))
        return kept

    def _sign(self, control_group: str, kept: _Kept) -> _Sign:
        # kernfs counts two links and one for each control group below.
        if os.fstat(kept.directory).st_nlink == 3:  # noqa: PLR2004 -- see above
            payload = self._payload(control_group, kept)
            if payload is not None:
                with self._open(payload) as directory:
                    return _Sign(payload, bpf.query(directory, effective=True))
        return _Sign(control_group, bpf.query(kept.directory, effective=True))

    def _payload(self, control_group: str, kept: _Kept) -> Optional[str]:
        """Return the only control group below, if it has programs of its own and all processes are in it.

        With more than one, or with processes beside it, the container lives on the scope itself, and what is below are
        the nested groups of a runtime inside it (docker in docker: init and docker). A nested systemd names its own.
        """
        for name in self._children(control_group):
            payload = f"{control_group}/{name}"
            if name.endswith(_UNITS) or not self._own(payload) or self._populated(control_group, kept.directory):
                return None
            return payload
        return None

    def _populated(self, control_group: str, directory: int) -> bool:
        """Whether a control group has processes of its own, beside those of the groups below it."""
        try:
            processes = os.open("cgroup.procs", os.O_RDONLY, dir_fd=directory)
            try:
                return bool(os.read(processes, 1))
            finally:
                os.close(processes)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # threads of its own
                return True
            raise self._error(error, control_group, "cannot read its processes") from error

    def _own(self, control_group: str) -> tuple[int, ...]:
        try:
            with self._open(control_group) as directory:
                return bpf.query(directory, effective=False)
        except CgroupGoneError:
            return ()

    def _filtered(
        self, sign: _Sign, candidates: frozenset[Rule], effort: Effort
    ) -> tuple[RuleSet, tuple[DeviceFilter, ...]]:
        filters: list[DeviceFilter] = []
        rules = RuleSet(unrestricted=True)
        for group, program_id in self._in_force(sign):
            with effort.spend():
                filters.append(self._filter(group, program_id, candidates))
                rules = both(rules, filters[-1].rules)
            if len(rules) > _MOST_RULES:
                what = "its device programs cannot be followed: they come down to too many rules together"
                raise CgroupUnreadableError(f"{sign.group}: {what}")
        return rules, tuple(filters)

    def _in_force(self, sign: _Sign) -> Iterator[tuple[str, int]]:
        """Yield the programs in force and where they are, those of the container first."""
        left = list(sign.programs)
        for group in (sign.group, *map(str, PurePosixPath(sign.group).parents)):
            if not left:
                return
            own = self._own(group)
            for program_id in own:
                # A group that lets the ones below override it lists programs that are not in force here.
                if program_id in left:
                    yield group, program_id
            left = [program_id for program_id in left if program_id not in own]
        for program_id in left:
            yield _ABOVE, program_id

    def _filter(self, group: str, program_id: int, candidates: frozenset[Rule]) -> DeviceFilter:
        program = self._program(program_id)
        owner = _owner(program.owner, group)
        if program.rules is not None:
            return DeviceFilter(group, program_id, owner, program.rules)
        try:
            rules = _asked(program.code, candidates.union(self._candidates()))
        except ProgramError as error:
            what = f"device program {program_id} on {group}"
            raise CgroupUnreadableError(f"{what} cannot be followed: {error}") from error
        return DeviceFilter(group, program_id, owner, rules, exact=False)

    def _program(self, program_id: int) -> _Program:
        """Return a program; the same id is the same program until the next boot."""
        known = self._programs.get(program_id)
        if known is None:
            if len(self._programs) >= _MOST_PROGRAMS or self._bytes >= _MOST_BYTES:
                self._programs.clear()
                self._bytes = 0
            read = bpf.program(program_id)
            rules = _accepted(read.code)
            owner = Owner.of(read.name, gpl_compatible=read.gpl_compatible)
            known = self._programs[program_id] = _Program(owner, rules, b"" if rules is not None else read.code)
            self._bytes += len(known.code) + _RULE_BYTES * len(rules or ())
        return known


def _out_of_descriptors(error: CgroupUnreadableError) -> bool:
    return getattr(error.__cause__, "errno", None) == errno.EMFILE


def _owner(told: Owner, group: str) -> Owner:
    """Tell more by the level: on a slice is no container's runtime, and on what is no unit systemd attaches nothing."""
    path = PurePosixPath(group)
    if path.name.endswith(UNIT_SUFFIXES):
        return told
    below_a_unit = any(name.endswith(UNIT_SUFFIXES) for name in path.parts)
    if below_a_unit or any(map(parse_group, (group, *map(str, path.parents)))):
        return Owner.RUNTIME if told is Owner.UNKNOWN else told
    return Owner.UNKNOWN if told is Owner.RUNTIME else told
