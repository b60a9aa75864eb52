"""`python -m gpuguard` is `gpuguard`."""

from __future__ import annotations

import sys

from gpuguard.cli.main import main

sys.exit(main())
