"""What takes long says where it is: on standard error, beside the tables."""

from __future__ import annotations

import sys
import time


def tell(text: str) -> None:
    """Print one line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
