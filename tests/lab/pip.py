"""Lets pip in a node fetch packages as this machine's pip does, whatever it has been told."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

from tests.lab.node import Node


def lend(node: Node) -> dict[str, str]:
    """Show the node the files that this machine's pip is told of; return the environment that tells the node's pip."""
    environment = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    listing = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
    # The environment's settings come first there; they are the strongest.
    told: dict[str, str] = {}
    for line in reversed(lines):
        key, _, literal = line.partition("=")
        section, _, option = key.partition(".")
        if section in {"global", ":env:"}:
            told[f"PIP_{option.upper().replace('-', '_')}"] = str(ast.literal_eval(literal))
    for path in {path for value in told.values() for word in value.split() if (path := _file(word))}:
        node.share(path.resolve(), path)
    return {**environment, **told}


def _file(word: str) -> Optional[Path]:
    """Return the file or directory that a word of a setting names; an index's files may lie beside it (PEP 503)."""
    path = Path(word.removeprefix("file://"))
    if not path.is_absolute() or not path.exists():
        return None
    return path.parent if path.name == "simple" else path
