"""The program /usr/bin/nvidia-container-runtime of a node: in its legacy mode it adds the hook and becomes runc."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

HOOK = "/usr/bin/nvidia-container-runtime-hook"
ENTRY = {"path": HOOK, "args": [Path(HOOK).name, "prestart"]}
"""Of the hook, in a specification."""


def main() -> None:
    """Do as nvidia-container-runtime with these arguments."""
    argv = sys.argv[1:]
    if "create" in argv:
        add_hook(_bundle(argv) / "config.json")
    os.execvp("runc", ["runc", *argv])  # noqa: S606  # as found on the node


def _bundle(argv: Sequence[str]) -> Path:
    for flag, value in zip(argv, [*argv[1:], ""]):
        if flag in {"--bundle", "-b", "-bundle"}:
            return Path(value)
        if flag.startswith("--bundle="):
            return Path(flag.partition("=")[2])
    return Path()


def add_hook(config: Path) -> None:
    """Add the hook to a specification that has none."""
    spec = json.loads(config.read_text(encoding="utf-8"))
    prestart = spec.setdefault("hooks", {}).setdefault("prestart", [])
    if not any(Path(known["path"]).name == Path(HOOK).name for known in prestart):
        prestart.append(ENTRY)
    config.write_text(json.dumps(spec), encoding="utf-8")
