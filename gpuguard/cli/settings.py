"""The settings of a command that can do without a good configuration file while a daemon runs."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from gpuguard import config
from gpuguard.config import Settings
from gpuguard.errors import ConfigError


def load(path: Optional[Path]) -> tuple[Settings, Optional[ConfigError]]:
    """Return the file's settings, or what remains of a bad file, and what is wrong with it.

    Raises ConfigError for a file that was named and is missing: that is a slip of the pen.
    """
    try:
        return config.load(path), None
    except ConfigError as fault:
        if path is not None and not path.exists():
            raise
        return config.remains(path), fault
