"""Which config.toml NVIDIA's hook in a specification reads, and what it says.

By nvidia-container-toolkit, cmd/nvidia-container-runtime-hook/hook_config.go: the one of its arguments, else the usual
one; up to 1.17 one in a driver container goes before that. The GPU operator installs a program of the hook's name that
hands over the one beside it (cmd/nvidia-ctk-installer/toolkit/installer/executables.go). Without a file: the defaults.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import replace
from pathlib import Path
from typing import Optional

from gpuguard.errors import RuntimeFileAbsentError, RuntimeFileError, ToolkitError
from gpuguard.model.nvidia_request import HookRequest
from gpuguard.model.toolkit import Toolkit, parse_toolkit
from gpuguard.runtimes.trusted import TrustedFiles

USUAL = "/etc/nvidia-container-runtime/config.toml"
# Where the GPU operator mounts the root of a driver container; the directory stays when that is gone.
_DRIVER_CONTAINERS = "/run/nvidia"
_DRIVER_CONTAINER = f"{_DRIVER_CONTAINERS}/driver"
_BESIDE = ".config/nvidia-container-runtime/config.toml"
_MAX_BYTES = 1 << 18


class ToolkitFiles:
    """The toolkit's files on a host, as `root` shows them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = TrustedFiles(root)

    def of(self, request: HookRequest) -> Toolkit:
        """Return the configuration that the hook reads. Raises ToolkitError where that is not known."""
        if request.configuration is not None:
            return self._read(request.configuration)
        directory = posixpath.dirname(request.hook.path)
        beside = f"{directory}/{_BESIDE}"
        if self._exists(beside):
            return self._read(beside)
        if posixpath.basename(directory) not in {"bin", "sbin"}:
            raise ToolkitError(f"{request.hook.path}: which configuration it reads is not known: {beside} is not there")
        if self._changed(_DRIVER_CONTAINER) is not None:
            why = f"whether {request.hook.path} reads a configuration there hangs on its version"
            raise ToolkitError(f"{_DRIVER_CONTAINER} is there: {why}")
        found = self._read(USUAL) if self._exists(USUAL) else Toolkit(changed=self._without(USUAL))
        return replace(found, changed=max(found.changed, self._changed(_DRIVER_CONTAINERS) or 0.0))

    def _read(self, path: str) -> Toolkit:
        try:
            found = self._files.read(path, _MAX_BYTES)
        except RuntimeFileError as error:
            raise ToolkitError(str(error)) from error
        # A file that came with its directory, by another name before, keeps its own times.
        return parse_toolkit(found.text, path, max(found.changed, self._without(path)))

    def _exists(self, path: str) -> bool:
        """Whether there is such a file, or something that cannot be believed."""
        try:
            self._files.read(path, _MAX_BYTES)
        except RuntimeFileAbsentError:
            return False
        except RuntimeFileError:
            return True
        return True

    def _without(self, path: str) -> float:
        """Return when another file may last have been there, or none: when the nearest directory changed."""
        times = (self._changed(str(directory)) for directory in Path(path).parents)
        return next((changed for changed in times if changed is not None), 0.0)

    def _changed(self, path: str) -> Optional[float]:
        """Return when a directory changed, or came to have its name; None where there is none."""
        try:
            status = (self._root / path.lstrip("/")).lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ToolkitError(f"{path}: cannot be read: {os.strerror(error.errno or 0)}") from error
        return max(status.st_mtime, status.st_ctime)
