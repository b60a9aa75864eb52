"""Exit codes that more than one command has; each command's own are its verdicts."""

from __future__ import annotations

OK = 0
FAILED = 1
NOT_FOUND = 4
# sysexits.h: a usage error must not look like a verdict, such as the 2 of `gpuguard check`.
USAGE = 64
OUTPUT = 74  # EX_IOERR: what there is to tell cannot be written
NO_PRIVILEGE = 77
CONFIG = 78
# 128 + the signal's number, as shells report it: SIGINT, SIGPIPE.
INTERRUPTED = 130
BROKEN_PIPE = 141
