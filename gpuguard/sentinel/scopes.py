"""The scopes that are watched: their files, and the marks on these.

Three fanotify groups. What was denied comes first, and is not queued behind the dozen rules that systemd then allows.
Of scopes of which systemd knows everything nothing is heard at once: who is woken by its deny takes the processor from
it in the middle of its rewrite, and lengthens the very gap that there is (decision 15).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from gpuguard.errors import FanotifyError
from gpuguard.kernel.device_files import OpenHierarchy
from gpuguard.kernel.fanotify import Fanotify
from gpuguard.model.backoff import Backoff
from gpuguard.model.write import Watched
from gpuguard.sentinel.scope import Scope
from gpuguard.sentinel.settings import Settings


class Scopes:
    """Opens, marks and closes. Raises FanotifyError where there is no fanotify."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._hierarchy = OpenHierarchy(settings.cgroup / "devices")
        handles = _handles(self._hierarchy.root)
        self.denies, self.allows, self.calm = (Fanotify(handles=handles) for _ in range(3))
        self._by_name: dict[str, Scope] = {}
        self.by_key: dict[bytes, Scope] = {}
        # Those whose lists are still being filled, by their control groups.
        self.growing: set[str] = set()

    def __iter__(self) -> Iterator[Scope]:
        """Go through them; they may be dropped meanwhile."""
        return iter(list(self._by_name.values()))

    def named(self, control_group: str) -> Optional[Scope]:
        """Return the scope of this control group, None when it is not watched."""
        return self._by_name.get(control_group)

    def of_file(self, key: bytes) -> Optional[Scope]:
        """Return the scope that a written file belongs to, None when nobody listens to it now."""
        scope = self.by_key.get(key)
        return None if scope is None or scope.resting else scope

    def open(self, watched: Watched) -> Scope:
        """Take a scope in and watch it. Raises CgroupGoneError, CgroupUnreadableError, FanotifyError."""
        limits = self._settings
        files = self._hierarchy.files(watched.control_group, watched.inode)
        scope = Scope(watched, files, Backoff(limits.max_repairs, limits.window, limits.pause))
        self._by_name[watched.control_group] = scope
        try:
            scope.keys = (self.denies.key(files.deny), self.allows.key(files.allow))
        except FanotifyError:
            files.close()
            del self._by_name[watched.control_group]
            raise
        self.by_key.update(dict.fromkeys(scope.keys, scope))
        self._note(scope)
        self.listen(scope)
        return scope

    def listen(self, scope: Scope) -> None:
        """Hear of its writes: at once, or in calm where all is systemd's own to write.

        Raises FanotifyError; the scope is dropped then.
        """
        at_once = self._at_once(scope)
        urgent, calm = (self.denies, self.allows), (self.calm, self.calm)
        marked, before = (urgent, calm) if at_once else (calm, urgent)
        files = (scope.files.deny, scope.files.allow)
        try:
            for group, file in zip(marked, files):
                group.mark(file)
        except FanotifyError:
            self.drop(scope)
            raise
        for group, file in zip(before, files):  # only now: nothing is to be missed in between
            group.unmark(file)
        scope.resting, scope.hushed, scope.heard_at_once = False, False, at_once

    def hush(self, scope: Scope) -> None:
        """Have what is allowed in it wake nobody, until it is listened to again: the dozer hears it, with its writer.

        Raises FanotifyError; nothing has changed then.
        """
        if not scope.hushed:
            self.calm.mark(scope.files.allow)
            self.allows.unmark(scope.files.allow)
            scope.hushed = True

    def tune(self, scope: Scope) -> None:
        """Hear of its writes as is due after new orders. Raises FanotifyError; the scope is dropped then."""
        self._note(scope)
        if not scope.resting and scope.heard_at_once != self._at_once(scope):
            self.listen(scope)

    def _note(self, scope: Scope) -> None:
        noted = self.growing.add if scope.watched.growing else self.growing.discard
        noted(scope.watched.control_group)

    def _at_once(self, scope: Scope) -> bool:
        return scope.urgent or not self.calm.handles

    def rest(self, scope: Scope) -> None:
        """Hear no more of its writes, until it is listened to again."""
        scope.resting, scope.hushed = True, False
        for group in (self.denies, self.allows, self.calm):
            group.unmark(scope.files.deny)
            group.unmark(scope.files.allow)

    def drop(self, scope: Scope) -> None:
        """Let go of a scope."""
        scope.closed = True
        self.rest(scope)
        del self._by_name[scope.watched.control_group]
        self.growing.discard(scope.watched.control_group)
        for key in scope.keys:
            self.by_key.pop(key, None)
        scope.files.close()


def _handles(root: Path) -> bool:
    """Whether the kernel names the files of a hierarchy by handles."""
    try:
        fd = os.open(root / "devices.deny", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    group = None
    try:
        group = Fanotify(handles=True)
        group.key(fd)
        group.mark(fd)
    except FanotifyError:
        return False
    else:
        return True
    finally:
        os.close(fd)
        if group is not None:
            group.close()
