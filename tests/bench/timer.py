"""The best that is known without gpuguard: `python timer.py SECONDS GROUP RULE…` gives back what is lost on a timer.

Every SECONDS it reads the devices.list of GROUP, a directory on cgroup v1, and writes to its devices.allow those of
the RULEs that are not in it. Prints "ready" first.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    """Look and give back, for ever."""
    seconds, group = float(sys.argv[1]), Path(sys.argv[2])
    print("ready", flush=True)
    while True:
        time.sleep(seconds)
        lines = (group / "devices.list").read_text(encoding="ascii")
        for rule in sys.argv[3:]:
            if rule not in lines:
                (group / "devices.allow").write_text(rule, encoding="ascii")


if __name__ == "__main__":
    main()
