"""The runtimes' files as the guard asks for them: a container's bundle and its names."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from gpuguard.model.runtime_record import Bundle, Identity
from gpuguard.model.scope_name import NSPAWN, ContainerScope
from gpuguard.runtimes.bundles import Bundles
from gpuguard.runtimes.identity import find_identity
from gpuguard.runtimes.nspawn import is_container
from gpuguard.runtimes.trusted import TrustedFiles


class RuntimeFiles:
    """All raises are RuntimeFileError or SpecError. Each call reads anew, some files of some ten kilobytes."""

    def __init__(self, root: Path, proc: Optional[Path] = None) -> None:
        """`root` is where the host's root directory is seen, `proc` its /proc (root/proc)."""
        self._files = TrustedFiles(root)
        self._bundles = Bundles(self._files, proc if proc is not None else root / "proc")

    def find(self, container: ContainerScope, control_group: str) -> tuple[Optional[Bundle], Identity]:
        """Return the bundle of a container's present run, None where there is none, and its names.

        Raises RuntimeFileError or SpecError where a bundle is there and not believed.
        """
        bundle = self._bundles.find(container, control_group)
        return bundle, find_identity(self._files, container, bundle)

    def confirmed(self, container: ContainerScope) -> bool:
        """Whether it is a container: of a machine that systemd-machined says so, once it has registered it.

        Raises RuntimeFileError or SpecError where what it says is not believed.
        """
        return container.runtime != NSPAWN or is_container(self._files, container)
