"""pyroute2's netlink sockets without the rest of pyroute2.

To import any module of a package runs the package's own first, and pyroute2's imports every protocol that it knows
and a database: 9 MB and 0.1 s for what takes 1 MB. So the package stands there with that still to be done, and it is
done in full as soon as anybody in this process uses what it defines.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple, Optional

from gpuguard.errors import SourceError

_NAME = "pyroute2"
# Of the names with underscores these two are the package's; others are asked of every module there is (warnings).
_PUBLIC = frozenset({"__all__", "__version__"})
_lock = threading.Lock()


class Netlink(NamedTuple):
    """The modules of pyroute2 that gpuguard uses."""

    netlink: ModuleType
    nlsocket: ModuleType
    uevent: ModuleType
    cn_proc: ModuleType


class _Package(ModuleType):
    """The package before its own module has run. The first use of a name that is not there runs it."""

    loader_thread: Optional[int] = None

    def __getattr__(self, name: str) -> object:
        dunder = name.startswith("__") and name not in _PUBLIC
        # While the pieces are loaded, the import system asks for modules that are not there yet.
        if dunder or _Package.loader_thread == threading.get_ident():
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.complete()
        return getattr(self, name)

    def complete(self) -> None:
        """Run the package's own module. Raises what that raises, and is then as it was."""
        spec = self.__spec__
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.__name__} has lost its loader")
        self.__class__ = ModuleType  # type: ignore[assignment]
        try:
            spec.loader.exec_module(self)
        except BaseException:
            self.__class__ = _Package
            raise


def load() -> Netlink:
    """Return the modules, loaded at the first call, which takes some 30 ms. Raises SourceError without pyroute2."""
    with _lock:
        if _NAME in sys.modules:
            return _ordinary()
        spec = importlib.util.find_spec(_NAME)
        if spec is None or spec.loader is None:
            raise SourceError("pyroute2 is not installed: no netlink events")
        return _alone(spec) or _ordinary()


def _alone(spec: ModuleSpec) -> Optional[Netlink]:
    """Load the modules alone; None, and nothing left behind, where they need what the package defines."""
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Package
    sys.modules[_NAME] = package
    _Package.loader_thread = threading.get_ident()
    try:
        return _import()
    except (ImportError, AttributeError, NameError):
        for name in [name for name in sys.modules if name == _NAME or name.startswith(f"{_NAME}.")]:
            del sys.modules[name]
        return None
    finally:
        _Package.loader_thread = None


def _ordinary() -> Netlink:
    try:
        return _import()
    except ImportError as error:
        raise SourceError(f"pyroute2 cannot be loaded: {error}; no netlink events") from error


def _import() -> Netlink:
    from pyroute2 import netlink  # noqa: PLC0415 -- not when the daemon starts
    from pyroute2.netlink import nlsocket, uevent  # noqa: PLC0415
    from pyroute2.netlink.connector import cn_proc  # noqa: PLC0415

    return Netlink(netlink, nlsocket, uevent, cn_proc)
