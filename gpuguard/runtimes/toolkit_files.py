"""Which config.toml NVIDIA's hook in a specification reads, and what it says.

By nvidia-container-toolkit, cmd/nvidia-container-runtime-hook/hook_config.go: the one of its arguments, else the usual
one; up to 1.17 one in a driver container goes before that. The GPU operator installs a program of the hook's name that
hands over the one beside it (cmd/nvidia-ctk-installer/toolkit/installer/executables.go). Without a file: the defaults.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from gpuguard.errors import RuntimeFileAbsentError, RuntimeFileError, ToolkitError
from gpuguard.model.nvidia_request import HookRequest
from gpuguard.model.toolkit import Toolkit, parse_toolkit
from gpuguard.runtimes.trusted import TrustedFiles

USUAL = "/etc/nvidia-container-runtime/config.toml"
_OF_DRIVER_CONTAINER = f"/run/nvidia/driver{USUAL}"
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
        if self._exists(_OF_DRIVER_CONTAINER):
            raise ToolkitError(f"{_OF_DRIVER_CONTAINER}: whether {request.hook.path} reads it hangs on its version")
        return self._read(USUAL) if self._exists(USUAL) else Toolkit(changed=self._without(USUAL))

    def _read(self, path: str) -> Toolkit:
        try:
            found = self._files.read(path, _MAX_BYTES)
        except RuntimeFileError as error:
            raise ToolkitError(str(error)) from error
        return parse_toolkit(found.text, path, found.changed)

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
        """Return when a file that is not there may last have been there: when the directory it would be in changed."""
        for directory in Path(path).parents:
            try:
                status = (self._root / directory.relative_to("/")).lstat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ToolkitError(f"{directory}: cannot be read: {os.strerror(error.errno or 0)}") from error
            return max(status.st_mtime, status.st_ctime)
        return 0.0
