"""`gpuguard config check` and `gpuguard config show`."""

from __future__ import annotations

import argparse

from gpuguard import config
from gpuguard.cli import codes


def run(args: argparse.Namespace) -> int:
    """Read the configuration, which raises ConfigError when it is bad; print a verdict or the settings."""
    settings = config.load(args.config)
    if args.action == "show":
        print(settings.to_toml(), end="")
    elif args.config is None and not config.DEFAULT_FILE.exists():
        print(f"no {config.DEFAULT_FILE}: every setting has its default")
    else:
        print(f"{args.config or config.DEFAULT_FILE}: good")
    return codes.OK
