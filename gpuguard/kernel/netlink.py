"""pyroute2's netlink sockets without the rest of pyroute2.

To import any module of a package runs the package's own first, and pyroute2's imports every protocol that it knows
and a database: 8 MB and 0.15 s for what takes 0.7 MB and 20 ms. So the package is imported without its own module,
which runs as soon as anybody in this process uses what it defines.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
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


def load() -> Netlink:
    """Return the modules, loaded at the first call, which takes some 20 ms. Raises SourceError without pyroute2."""
    with _lock:
        return (None if _NAME in sys.modules else _alone()) or _ordinary()


class _Package(ModuleType):
    """The package while its own module has not run. The first use of a name that is not there runs it."""

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        if spec is None or spec.loader is None or (name.startswith("__") and name not in _PUBLIC):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        try:
            spec.loader.exec_module(self)
        except BaseException:
            self.__class__ = _Package
            raise
        return getattr(self, name)


class _Without(MetaPathFinder, Loader):
    """Imports the package so: in the import system's own way, which makes others that want it wait."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.modules: Optional[Netlink] = None
        self._spec = spec
        self._loader = spec.loader

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        del path, target
        if fullname != _NAME:
            return None
        self._spec.loader = self
        return self._spec

    def exec_module(self, module: ModuleType) -> None:
        self.modules = _import()
        self._spec.loader = module.__loader__ = self._loader
        module.__class__ = _Package


def _alone() -> Optional[Netlink]:
    """Load the modules alone; None, and nothing left behind, where they need what the package defines."""
    spec = importlib.util.find_spec(_NAME)
    if spec is None:
        raise SourceError("pyroute2 is not installed: no netlink events")
    without = _Without(spec)
    sys.meta_path.insert(0, without)
    try:
        importlib.import_module(_NAME)
    except (ImportError, AttributeError, NameError):
        for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
            del sys.modules[name]
    finally:
        sys.meta_path.remove(without)
    return without.modules


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
