"""How the sentinel is started."""

from __future__ import annotations

import sys
from pathlib import Path

import gpuguard

# Where the package is, be it a source tree, a virtual environment or /usr/lib/gpuguard. Last on the path: nothing
# that lies beside it stands in for a module of Python's own.
_HOME = str(Path(gpuguard.__file__).resolve().parent.parent)
_START = "import sys; sys.path.append(sys.argv.pop(1)); from gpuguard.sentinel.main import main; sys.exit(main())"


def command(  # noqa: PLR0913 - the arguments of a program, each by its name
    fd: int, *, mode: str, cgroup: str, proc: str, max_repairs: int, window: float, pause: float
) -> list[str]:
    """Return the arguments that start the sentinel; `fd` is its end of a stream socket, to be inherited.

    `mode` is v1 or v2, `cgroup` the root of the hierarchy, `window` and `pause` are in seconds. Without site packages
    (-S) and whatever the environment says (-I): it starts quicker, and stays small.
    """
    numbers = (str(fd), str(max_repairs), repr(window), repr(pause))
    return [sys.executable, "-I", "-S", "-c", _START, _HOME, mode, cgroup, proc, *numbers]
