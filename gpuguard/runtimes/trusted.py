"""Files that root alone can have written: every directory on the way is checked, and no link is followed.

Who runs gpuguard is believed as well: to the daemon that is root, and who only looks may believe himself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import RuntimeFileAbsentError, RuntimeFileError, RuntimeFileUnreadableError
from gpuguard.model.pathname import NO_NAMES

MAX_BYTES = 1 << 22
# Of one directory. A node has some hundred containers.
MAX_NAMES = 4096

_WHATEVER_IT_IS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
# linux/limits.h
_PATH_MAX = 4096


@dataclass(frozen=True)
class TrustedText:
    """A file's text. `changed` is when it, its owner or its mode last changed, in seconds since the epoch."""

    text: str
    changed: float


class TrustedFiles:
    """The host's files as `root` shows them; paths are the host's own.

    All raises are RuntimeFileError: its kind RuntimeFileAbsentError where there is no such file, and
    RuntimeFileUnreadableError where no container's user can be the reason.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str, limit: int = MAX_BYTES) -> TrustedText:
        """Return the text of a plain file of no more than `limit` bytes. Raises RuntimeFileError."""
        *directory, name = _names(path)
        with self._directory(directory) as above, _complaints(path):
            with _opened(name, _WHATEVER_IT_IS, above) as thing:
                _check(os.fstat(thing), stat.S_ISREG, "a plain file", path)
            with _opened(name, _READ, above) as file:
                status = os.fstat(file)
                _check(status, stat.S_ISREG, "a plain file", path)
                if status.st_size > limit:
                    raise RuntimeFileError(f"{path}: not read: it has more than {limit} bytes")
                content = _content(file, limit + 1)
        if len(content) > limit:
            raise RuntimeFileError(f"{path}: not read: it has more than {limit} bytes")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RuntimeFileError(f"{path}: not UTF-8: {error.reason}") from error
        return TrustedText(text, max(status.st_mtime, status.st_ctime))

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted; no more than MAX_NAMES. Raises RuntimeFileError."""
        with self._directory(_names(path)) as above, _complaints(path), _opened(".", _LIST, above) as directory:
            names = sorted(os.listdir(directory))  # noqa: PTH208 -- a descriptor, not a path
        return tuple(names[:MAX_NAMES])

    @contextmanager
    def _directory(self, names: list[str]) -> Iterator[int]:
        """Open a directory, one name after the other, and give its descriptor."""
        seen = "/"
        with _complaints(seen):
            current = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check(os.fstat(current), stat.S_ISDIR, "a directory", seen)
            for number, name in enumerate(names, 1):
                seen = "/" + "/".join(names[:number])
                with _complaints(seen):
                    below = os.open(name, _WHATEVER_IT_IS, dir_fd=current)
                os.close(current)
                current = below
                _check(os.fstat(current), stat.S_ISDIR, "a directory", seen)
            yield current
        finally:
            os.close(current)


def _names(path: str) -> list[str]:
    """Return the names that a path is made of. Raises RuntimeFileError for one that may lead elsewhere."""
    first, *names = path.split("/")
    if first or not names or len(path) > _PATH_MAX or not NO_NAMES.isdisjoint(names) or not path.isprintable():
        raise RuntimeFileError(f"{path[:200]!a}: not a plain absolute path")
    return names


def _check(status: os.stat_result, kind: Callable[[int], bool], wanted: str, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise RuntimeFileUnreadableError(f"{path}: not believed: it is a symbolic link")
    if not kind(status.st_mode):
        raise RuntimeFileUnreadableError(f"{path}: not believed: it is not {wanted}")
    if status.st_uid not in {_ROOT, os.geteuid()}:
        raise RuntimeFileUnreadableError(f"{path}: not believed: it belongs to user {status.st_uid}, not to root")
    if status.st_mode & _OTHERS_WRITE:
        raise RuntimeFileUnreadableError(
            f"{path}: not believed: others than root may write it (mode {status.st_mode & 0o7777:o})"
        )


@contextmanager
def _opened(name: str, flags: int, directory: int) -> Iterator[int]:
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _complaints(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RuntimeFileAbsentError(f"{path}: there is no such file") from error
    except OSError as error:
        raise RuntimeFileUnreadableError(f"{path}: cannot be read: {error.strerror}") from error


def _content(file: int, limit: int) -> bytes:
    parts = []
    left = limit
    while left > 0:
        part = os.read(file, min(left, 1 << 16))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
