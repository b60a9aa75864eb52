"""pyroute2 without most of pyroute2. What a process has imported is its own, so each test has one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Modules of pyroute2 that only its package's own module imports.
REST = "[name for name in sys.modules if name.startswith(('pyroute2.ndb', 'pyroute2.ipdb', 'pyroute2.iproute'))]"


def run(script: str, *options: str, path: Path = ROOT) -> str:
    """Run a script in an interpreter of its own, where warnings are errors; return what it printed."""
    script = f"import sys\nfrom gpuguard.kernel import netlink\n{script}"
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", script],
        env={"PYTHONPATH": f"{path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def package(path: Path, own: str, netlink: str = "NETLINK_CONNECTOR = 11\n") -> Path:
    """Make a pyroute2 with other modules; return where to import it from."""
    for name, text in {
        "pyroute2/__init__.py": own,
        "pyroute2/netlink/__init__.py": netlink,
        "pyroute2/netlink/nlsocket.py": "",
        "pyroute2/netlink/uevent/__init__.py": "",
        "pyroute2/netlink/connector/__init__.py": "",
        "pyroute2/netlink/connector/cn_proc.py": "",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="ascii")
    return path


def test_nothing_is_loaded_before_it_is_used() -> None:
    """To import gpuguard's module loads nothing of pyroute2."""
    assert run("print('pyroute2' in sys.modules)") == "False"


def test_only_the_socket_layer_is_loaded() -> None:
    """The protocols and the database of pyroute2 stay away; its sockets can be made."""
    script = f"loaded = netlink.load()\nprint(loaded.uevent.AsyncUeventSocket.__name__, {REST})"
    assert run(script) == "AsyncUeventSocket []"


def test_a_second_call_returns_the_same() -> None:
    """All parts of the daemon use the same modules."""
    assert run("print(all(a is b for a, b in zip(netlink.load(), netlink.load())))") == "True"


@pytest.mark.parametrize(
    "use",
    [
        "import pyroute2; name = pyroute2.IPRoute.__name__",
        "from pyroute2 import IPRoute; name = IPRoute.__name__",
        "from pyroute2 import iproute; name = iproute.IPRoute.__name__",
        "import pyroute2; pyroute2.__version__; name = pyroute2.IPRoute.__name__",
    ],
)
def test_others_find_the_whole_package(use: str) -> None:
    """Whoever imports pyroute2 later in the same process has all of it, and the same classes."""
    script = f"""loaded = netlink.load()
{use}
import pyroute2
assert pyroute2.netlink.uevent.AsyncUeventSocket is loaded.uevent.AsyncUeventSocket
assert issubclass(pyroute2.AsyncIPRoute, loaded.nlsocket.AsyncNetlinkSocket)
assert type(pyroute2) is type(sys)
print(name, bool({REST}))"""
    assert run(script) == "IPRoute True"


def test_it_was_imported_already() -> None:
    """A pyroute2 that somebody has imported is used as it is."""
    script = """import pyroute2
before = pyroute2.netlink.uevent
print(netlink.load().uevent is before, sys.modules['pyroute2'] is pyroute2)"""
    assert run(script) == "True True"


def test_who_looks_at_every_module_loads_nothing() -> None:
    """Tools ask each module for names that begin with underscores: that is no use of the package."""
    script = f"""netlink.load()
for module in list(sys.modules.values()):
    getattr(module, '__warningregistry__', None), getattr(module, '__file__', None), repr(module)
print({REST})"""
    assert run(script) == "[]"


def test_threads() -> None:
    """Threads that load at once, and one that imports pyroute2 meanwhile, all have what they want."""
    script = """import threading
found, start = [], threading.Barrier(5)
def load():
    start.wait()
    found.append(netlink.load().uevent.AsyncUeventSocket)
def use():
    start.wait()
    from pyroute2 import IPRoute
    found.append(sys.modules['pyroute2'].netlink.uevent.AsyncUeventSocket)
threads = [threading.Thread(target=each) for each in (load, load, load, load, use)]
[each.start() for each in threads]
[each.join() for each in threads]
print(len(found), len(set(found)))"""
    assert run(script) == "5 1"


def test_modules_that_need_the_package(tmp_path: Path) -> None:
    """Where a module uses what the package defines, everything is loaded in the ordinary way."""
    path = package(tmp_path, "CONNECTOR = 11\n", "from pyroute2 import CONNECTOR as NETLINK_CONNECTOR\n")
    script = "loaded = netlink.load()\nprint(loaded.netlink.NETLINK_CONNECTOR, sys.modules['pyroute2'].CONNECTOR)"
    assert run(script, path=path) == "11 11"


def test_a_package_that_is_broken(tmp_path: Path) -> None:
    """What cannot be loaded and is not needed hinders nobody; who needs it is told, each time."""
    script = """loaded = netlink.load()
import pyroute2
for _ in range(2):
    try:
        pyroute2.IPRoute
    except ImportError as error:
        print(error)
print(netlink.load().netlink is loaded.netlink)"""
    path = package(tmp_path, "raise ImportError('no sqlite here')\n")
    assert run(script, path=path) == "no sqlite here\nno sqlite here\nTrue"


@pytest.mark.parametrize(
    ("own", "text"),
    [("X = 1\n", "pyroute2 cannot be loaded: cannot import name 'NOWHERE'"), ("", "pyroute2 cannot be loaded")],
)
def test_modules_that_cannot_be_loaded(tmp_path: Path, own: str, text: str) -> None:
    """What does not work in either way is an error of ours."""
    script = """from gpuguard.errors import SourceError
try:
    netlink.load()
except SourceError as error:
    print(error)"""
    path = package(tmp_path, own, "from pyroute2 import NOWHERE\n")
    assert run(script, path=path).startswith(text)


def test_without_pyroute2() -> None:
    """A machine without pyroute2 has no netlink events, and is told so."""
    script = """from gpuguard.errors import SourceError
try:
    netlink.load()
except SourceError as error:
    print(error)"""
    assert run(script, "-S") == "pyroute2 is not installed: no netlink events"
