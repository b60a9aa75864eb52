"""cgroup v1 device controller: read devices.list, write devices.allow, make the shield.

Only a container's control group and what is below it is ever written, never a slice and never the root: every write
goes through a directory that was opened without following links and has the inode that the caller knows.
Kernel side: security/device_cgroup.c; one rule per write(2), CAP_SYS_ADMIN needed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, DeniedError, RuleError
from gpuguard.kernel import nested_v1
from gpuguard.kernel.hierarchy import Hierarchy
from gpuguard.model.device_list import DeviceList, Payload
from gpuguard.model.nested import GroupBelow
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet

SHIELD = "gpuguard-shield"

# crun's own name for the group below the scope that it puts a container into (find_systemd_subgroup()).
_PAYLOAD = "container"
# A group of such a name is of a systemd inside the container.
_UNITS = (".scope", ".service", ".slice")


# Most containers of a node have one of a few lists, and most looks find the list of the look before.
@functools.lru_cache(maxsize=256)
def _parse(text: bytes) -> RuleSet:
    return RuleSet.parse(text.decode("ascii"))


class DevicesV1(Hierarchy):
    """The v1 devices hierarchy, mounted at `root`."""

    writable = True

    def read(self, control_group: str, candidates: Iterable[Rule] = ()) -> DeviceList:  # noqa: ARG002 - v2 needs them
        """Read what the kernel allows the container now. Raises CgroupGoneError, CgroupUnreadableError.

        crun runs a container in a group below its scope: that group's list is what counts.
        """
        with self._open(control_group) as directory:
            status, rules = os.fstat(directory), self._read_list(directory, control_group)
            if not nested_v1.has_groups(status):
                return DeviceList(status.st_ino, rules)
            below = self._names_below(directory, control_group)
            payload = self._payload(directory, control_group, below, rules)
            if payload is not None:
                with contextlib.suppress(CgroupGoneError), self._below(directory, control_group, payload) as group:
                    inner = os.fstat(group)
                    own = Payload(f"{control_group}/{payload}", inner.st_ino)
                    inners = self._read_list(group, own.control_group)
                    return DeviceList(status.st_ino, inners, payload=own, nested=nested_v1.has_groups(inner))
            return DeviceList(status.st_ino, rules, nested=bool(below))

    def _rules(self, control_group: str) -> RuleSet:
        """Return a group's own list. Raises CgroupGoneError, CgroupUnreadableError."""
        with self._open(control_group) as directory:
            return self._read_list(directory, control_group)

    def _names_below(self, directory: int, control_group: str) -> list[str]:
        """Return the names of some groups directly below; a few are enough to tell how many there are."""
        try:
            return [name for name in nested_v1.names(directory, 3) if name != SHIELD]
        except OSError as error:
            raise self._error(error, control_group, "cannot list its control groups") from error

    def _payload(self, directory: int, control_group: str, below: list[str], rules: RuleSet) -> Optional[str]:
        """Return the only group below, if the runtime has put the container into it: all processes are there.

        Where the scope has a list of its own it is known by its name alone: another one may be a job's, which its
        manager gave less than it has itself.
        """
        if len(below) != 1 or below[0].endswith(_UNITS) or not (rules.unrestricted or below[0] == _PAYLOAD):
            return None
        try:
            if nested_v1.populated(directory):
                return None
            with self._below(directory, control_group, below[0]) as group:
                lives = nested_v1.populated(group) or nested_v1.has_groups(os.fstat(group))
        except CgroupGoneError:
            return None
        except OSError as error:
            failure = self._error(error, control_group, "cannot read its processes")
            if isinstance(failure, CgroupGoneError):  # the one below, perhaps: the scope itself is read anyway
                return None
            raise failure from error
        return below[0] if lives else None

    def groups(self, control_group: str) -> tuple[list[GroupBelow], bool]:
        """Return the groups below a container's own, and whether there are more than can be looked at.

        Raises CgroupGoneError, CgroupUnreadableError.
        """
        found = []
        with self._open(control_group) as directory:
            walk = nested_v1.Walk(directory, SHIELD)
            try:
                for path, group in walk.groups():
                    with contextlib.suppress(CgroupGoneError):
                        rules = self._read_list(group, f"{control_group}/{path}")
                        found.append(GroupBelow(path, os.fstat(group).st_ino, rules))
            except OSError as error:
                raise self._error(error, control_group, "cannot list its control groups") from error
        return found, walk.cut

    def as_made(self, control_group: str, rules: RuleSet) -> bool:
        """Whether `rules` are the list of the control group above, which the kernel copies for a new one.

        Raises CgroupGoneError, CgroupUnreadableError.
        """
        return self._rules(str(PurePosixPath(control_group).parent)) == rules

    def allow(self, control_group: str, inode: int, rule: Rule) -> None:
        """Add one rule. A return says only that write(2) succeeded: read back what it did.

        Where the container has a payload it goes in there; first into the scope, if that lacks it.
        Raises CgroupGoneError, DeniedError (names the ancestor that denies), CgroupUnreadableError.
        """
        with self._open(control_group, inode) as directory:
            payload, rules = None, None
            if nested_v1.has_groups(os.fstat(directory)):
                rules = self._read_list(directory, control_group)
                payload = self._payload(directory, control_group, self._names_below(directory, control_group), rules)
            if payload is None or rules is None:
                self._write(directory, control_group, rule)
                return
            if not rules.covers(rule):
                self._write(directory, control_group, rule)
            with contextlib.suppress(CgroupGoneError), self._below(directory, control_group, payload) as group:
                self._write_payload(directory, group, (control_group, payload), rule)

    def _write_payload(self, directory: int, group: int, names: tuple[str, str], rule: Rule) -> None:
        scope, payload = names
        try:
            self._write(group, f"{scope}/{payload}", rule)
        except DeniedError:
            # A scope that allows by default shows nothing of what it denies: that is taken back there first.
            self._write(directory, scope, rule)
            self._write(group, f"{scope}/{payload}", rule)

    def allow_below(self, control_group: str, inode: int, group: tuple[str, int], rule: Rule) -> None:
        """Add one rule to a group below a container's own: its path from there, and the inode that it must have.

        Raises CgroupGoneError, DeniedError (names the ancestor that denies), CgroupUnreadableError.
        """
        path, own = group
        with self._open(control_group, inode) as directory, self._below(directory, control_group, path) as below:
            if os.fstat(below).st_ino != own:
                raise CgroupGoneError(f"{control_group}/{path}: another control group has taken this name")
            self._write(below, f"{control_group}/{path}", rule)

    @contextlib.contextmanager
    def _below(self, directory: int, control_group: str, path: str) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            try:
                group = stack.enter_context(nested_v1.opened(directory, path))
            except OSError as error:
                raise self._error(error, f"{control_group}/{path}", "cannot open") from error
            yield group

    def _write(self, directory: int, control_group: str, rule: Rule) -> None:
        try:
            # O_NONBLOCK changes nothing on cgroupfs; it keeps anything else in its place from hanging us.
            allow = os.open("devices.allow", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=directory)
            try:
                os.write(allow, str(rule).encode("ascii"))
            finally:
                os.close(allow)
        except OSError as error:
            raise self._write_error(error, control_group, rule) from error

    def shield(self, control_group: str, inode: int) -> None:
        """Make the empty child that turns systemd's deny-all into EINVAL, which it ignores.

        One that is there already serves as well. Raises CgroupGoneError, CgroupUnreadableError.
        """
        with self._open(control_group, inode) as directory:
            try:
                os.mkdir(SHIELD, 0o755, dir_fd=directory)
            except FileExistsError:
                return
            except OSError as error:
                raise self._error(error, control_group, "cannot make the shield") from error

    def unshield(self, control_group: str, inode: int) -> bool:
        """Remove the shield; return whether there was one. Raises CgroupGoneError, CgroupUnreadableError."""
        with self._open(control_group, inode) as directory:
            try:
                os.rmdir(SHIELD, dir_fd=directory)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise self._error(error, control_group, "cannot remove the shield") from error
            return True

    def shielded(self, control_group: str) -> bool:
        """Whether a shield is there."""
        return os.path.isdir(f"{self._path(control_group)}/{SHIELD}")  # noqa: PTH112 -- see _path()

    def denying_ancestor(self, control_group: str, rule: Rule) -> str:
        """Name the highest ancestor that does not allow `rule`, "" if every one that can be read does."""
        for parent in reversed(PurePosixPath(control_group).parents):
            with contextlib.suppress(CgroupGoneError, CgroupUnreadableError):
                if not self._rules(str(parent)).covers(rule):
                    return str(parent)
        return ""

    def _read_list(self, directory: int, control_group: str) -> RuleSet:
        try:
            listing = os.open("devices.list", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=directory)
            try:
                chunks = []
                while chunk := os.read(listing, 1 << 16):
                    chunks.append(chunk)
            finally:
                os.close(listing)
            return _parse(b"".join(chunks))
        except OSError as error:
            raise self._error(error, control_group, "cannot read devices.list") from error
        except (RuleError, UnicodeDecodeError) as error:
            raise CgroupUnreadableError(f"{control_group}: devices.list makes no sense: {error}") from error

    def _write_error(self, error: OSError, control_group: str, rule: Rule) -> Exception:
        if error.errno != errno.EPERM:
            return self._error(error, control_group, f"cannot allow '{rule}'")
        ancestor = self.denying_ancestor(control_group, rule)
        # A group that allows by default prints `a *:* rwm` and not what it denies.
        hidden = "an ancestor denies it without showing it, or CAP_SYS_ADMIN is missing"
        why = f"its ancestor {ancestor} denies it" if ancestor else hidden
        return DeniedError(f"{control_group}: cannot allow '{rule}': {why}")
