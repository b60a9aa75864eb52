"""Files that root alone can have written: real ones, with real owners and modes."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpuguard.errors import RuntimeFileAbsentError, RuntimeFileError
from gpuguard.runtimes import trusted
from gpuguard.runtimes.trusted import TrustedFiles
from tests.runtimes.tree import Tree, needs_root

pytestmark = needs_root

PATH = "/run/x/config.json"
NOBODY = 65534


def refused(tree: Tree, path: str = PATH) -> str:
    """Return why a file is refused, which is not for want of it."""
    with pytest.raises(RuntimeFileError) as raised:
        TrustedFiles(tree.root).read(path)
    assert not isinstance(raised.value, RuntimeFileAbsentError)
    return str(raised.value)


def test_a_file_of_root_s_is_read(tree: Tree) -> None:
    """Its text, and when it last changed: a time that was set back does not help."""
    status = tree.write(PATH, "schön", changed=1.0).stat()
    read = TrustedFiles(tree.root).read(PATH)
    assert read.text == "schön"
    assert read.changed == status.st_ctime > 1.0


@pytest.mark.invariant(1)
def test_a_time_to_come_counts(tree: Tree) -> None:
    """The later of a file's two times is when it last changed, also where somebody has set it."""
    status = tree.write(PATH, "", changed=time.time() + 3600.0).stat()
    assert TrustedFiles(tree.root).read(PATH).changed == status.st_mtime > status.st_ctime


@pytest.mark.parametrize("missing", ["/run/x/other", "/run/y/config.json", "/var/config.json"])
def test_what_is_not_there(tree: Tree, missing: str) -> None:
    """Absence has an error of its own, whichever name is missing."""
    tree.write(PATH, "")
    with pytest.raises(RuntimeFileAbsentError, match="there is no such file"):
        TrustedFiles(tree.root).read(missing)
    with pytest.raises(RuntimeFileAbsentError):
        TrustedFiles(tree.root / "nowhere").read(PATH)


@pytest.mark.invariant(1)
@pytest.mark.parametrize("which", [PATH, "/run/x", "/run"])
def test_another_owner(tree: Tree, which: str) -> None:
    """Neither the file nor a directory above it may belong to somebody else."""
    tree.write(PATH, "")
    os.chown(tree.path(which), NOBODY, 0)
    assert refused(tree) == f"{which}: not believed: it belongs to user {NOBODY}, not to root"


def test_who_looks_believes_himself() -> None:
    """An ordinary user's own files are as good as root's to him; the daemon is root, to which they are nobody's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as reachable:
        tree = Tree(Path(reachable))
        tree.write(PATH, "his")
        for which in (PATH, "/run/x", "/run", "/"):
            os.chown(tree.path(which), NOBODY, 0)
        assert refused(tree) == f"/: not believed: it belongs to user {NOBODY}, not to root"
        os.seteuid(NOBODY)
        try:
            read = TrustedFiles(tree.root).read(PATH)
        finally:
            os.seteuid(0)
    assert read.text == "his"


@pytest.mark.invariant(1)
@pytest.mark.parametrize("which", [PATH, "/run/x", "/run", "/"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_others_may_write(tree: Tree, which: str, mode: int) -> None:
    """Nor may a group or others write it: a sticky directory such as /tmp is no better."""
    tree.write(PATH, "")
    tree.path(which).chmod(mode)
    assert refused(tree) == f"{which}: not believed: others than root may write it (mode {mode:o})"
    tree.path(which).chmod(0o755)


@pytest.mark.invariant(1)
@pytest.mark.parametrize("which", [PATH, "/run/x", "/run"])
def test_links_are_not_followed(tree: Tree, which: str) -> None:
    """A symbolic link is refused wherever it stands, even one of root's to a good file."""
    moved = tree.write(PATH, "").parent.parent.with_name("moved")
    path = tree.path(which)
    path.rename(moved)
    path.symlink_to(moved)
    assert refused(tree) == f"{which}: not believed: it is a symbolic link"


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "device"])
def test_what_is_no_file(tree: Tree, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no plain file is refused, and nobody waits for a writer of a pipe."""
    path = tree.directory("/run/x") / "config.json"
    if kind == "fifo":
        os.mkfifo(path, 0o644)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        os.mknod(path, 0o20644, os.makedev(1, 3))
    else:
        monkeypatch.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("config.json")
        path.chmod(0o644)
    assert refused(tree) == f"{PATH}: not believed: it is not a plain file"


def test_a_file_in_the_way(tree: Tree) -> None:
    """A file where a directory should be is told apart from nothing."""
    tree.write("/run/x", "")
    assert refused(tree) == "/run/x: not believed: it is not a directory"


def test_too_long(tree: Tree) -> None:
    """A file is read up to its limit, and one more byte refuses it."""
    tree.write(PATH, "x" * 100)
    files = TrustedFiles(tree.root)
    assert files.read(PATH, 100).text == "x" * 100
    with pytest.raises(RuntimeFileError, match="not read: it has more than 99 bytes"):
        files.read(PATH, 99)


def test_an_endless_file_ends() -> None:
    """A file that says it is empty is read no further than its limit: those of /proc are such."""
    with pytest.raises(RuntimeFileError, match="more than 10 bytes"):
        TrustedFiles(Path("/")).read("/proc/filesystems", 10)


def test_not_utf_8(tree: Tree) -> None:
    """No runtime writes anything but UTF-8."""
    tree.write(PATH, "\udcff")
    assert refused(tree) == f"{PATH}: not UTF-8: invalid start byte"


@pytest.mark.parametrize(
    "path",
    [
        *("", "config.json", "run/x/config.json", "//run/x/config.json", "/run//x/config.json", "/", "/run/x\0/a"),
        *("/run/./x/config.json", "/run/x/config.json/", "/run/x/../x/config.json", "/run/\udcff", "/run/\ud800"),
        "/x" * 2049,
    ],
)
def test_paths_that_may_lead_elsewhere(tree: Tree, path: str) -> None:
    """Only a plain absolute path is taken, and the complaint about another can be printed."""
    tree.write(PATH, "")
    said = refused(tree, path)
    assert "not a plain absolute path" in said
    assert said.isprintable()


def test_names_of_a_directory(tree: Tree) -> None:
    """The names in a directory, under the same conditions."""
    tree.write("/run/x/b", "")
    tree.directory("/run/x/a")
    files = TrustedFiles(tree.root)
    assert files.names("/run/x") == ("a", "b")
    with pytest.raises(RuntimeFileAbsentError):
        files.names("/run/y")
    tree.path("/run/x").chmod(0o777)
    with pytest.raises(RuntimeFileError, match="others than root may write it"):
        files.names("/run/x")


@pytest.mark.invariant(10)
def test_more_names_than_are_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come first are."""
    monkeypatch.setattr(trusted, "MAX_NAMES", 3)
    for number in range(5):
        tree.directory(f"/run/x/{number}")
    assert TrustedFiles(tree.root).names("/run/x") == ("0", "1", "2")


def test_no_descriptor_is_left_open(tree: Tree) -> None:
    """Whatever happens, all that was opened is closed."""
    tree.write(PATH, "")
    tree.path("/run/link").symlink_to("x")
    files = TrustedFiles(tree.root)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- the number is what counts
    for path in (PATH, "/run/link/config.json", "/run/none", "/run/x", "relative"):
        with suppress(RuntimeFileError):
            files.read(path)
    files.names("/run/x")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.invariant(1)
def test_a_race_of_links_gains_nothing(tree: Tree, tmp_path: Path) -> None:
    """While somebody swaps a directory for a link to his own, his file is never read."""
    tree.write(PATH, "root's")
    theirs = tree.directory("/theirs")
    (theirs / "config.json").write_text("theirs", encoding="utf-8")
    os.chown(theirs, NOBODY, NOBODY)
    link, place, aside = tmp_path / "run" / "link", tmp_path / "run" / "x", tmp_path / "run" / "aside"
    link.symlink_to(theirs)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            place.rename(aside)
            link.rename(place)
            place.rename(link)
            aside.rename(place)

    swapping = threading.Thread(target=swap)
    swapping.start()
    files = TrustedFiles(tree.root)
    try:
        for _ in range(2000):
            with suppress(RuntimeFileError):
                assert files.read(PATH).text == "root's"
    finally:
        over.set()
        swapping.join()
