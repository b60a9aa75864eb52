"""cgroup v1 device controller: read devices.list, write devices.allow, make the shield.

Only a scope or service is ever written, never a slice and never the root: every write goes through
a directory that was opened without following links and has the inode that the caller knows.
Kernel side: security/device_cgroup.c; one rule per write(2), CAP_SYS_ADMIN needed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterable
from pathlib import PurePosixPath

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, DeniedError, RuleError
from gpuguard.kernel.hierarchy import Hierarchy
from gpuguard.model.device_list import DeviceList
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet

SHIELD = "gpuguard-shield"


# Most containers of a node have one of a few lists, and most looks find the list of the look before.
@functools.lru_cache(maxsize=256)
def _parse(text: bytes) -> RuleSet:
    return RuleSet.parse(text.decode("ascii"))


class DevicesV1(Hierarchy):
    """The v1 devices hierarchy, mounted at `root`."""

    writable = True

    def read(self, control_group: str, candidates: Iterable[Rule] = ()) -> DeviceList:  # noqa: ARG002 - v2 needs them
        """Read what the kernel allows now. Raises CgroupGoneError, CgroupUnreadableError."""
        with self._open(control_group) as directory:
            return DeviceList(os.fstat(directory).st_ino, self._read_list(directory, control_group))

    def as_made(self, control_group: str, rules: RuleSet) -> bool:
        """Whether `rules` are the list of the control group above, which the kernel copies for a new one.

        Raises CgroupGoneError, CgroupUnreadableError.
        """
        return self.read(str(PurePosixPath(control_group).parent)).rules == rules

    def allow(self, control_group: str, inode: int, rule: Rule) -> None:
        """Add one rule. A return says only that write(2) succeeded: read back what it did.

        Raises CgroupGoneError, DeniedError (names the ancestor that denies), CgroupUnreadableError.
        """
        with self._open(control_group, inode) as directory:
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
                if not self.read(str(parent)).rules.covers(rule):
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
