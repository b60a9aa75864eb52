"""Find a container's OCI specification on disk, and believe it only if it is of this very run.

An id says little: engines let their users choose it, and use it again. A specification is believed if
- it lies in a file that root alone can write,
- its linux.cgroupsPath means the container's own control group,
- a first process is noted beside it that runs in this control group, since the noted moment, and
- it was not written after that process started.
So what is left of another container of the same id is not taken for this one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Optional, Union

from gpuguard.errors import (
    RuntimeFileAbsentError,
    RuntimeFileError,
    RuntimeFileUnreadableError,
    RuntimeRunError,
    SpecError,
)
from gpuguard.model.cgroups_path import control_group as meant_by
from gpuguard.model.json_text import said_of
from gpuguard.model.oci_spec import parse_spec
from gpuguard.model.runtime_record import Bundle
from gpuguard.model.runtime_state import RuntimeState, parse_crun_status, parse_pid, parse_runc_state
from gpuguard.model.scope_name import NSPAWN, ContainerScope
from gpuguard.runtimes import places
from gpuguard.runtimes.first_process import FirstProcesses, seconds_since_epoch
from gpuguard.runtimes.trusted import TrustedFiles

_STATES = (("state.json", parse_runc_state), ("status", parse_crun_status))
_MAX_PID_BYTES = 32
# Between the file system's clock and that of processes, in seconds: ticks, and what a time server corrected since.
_TOLERANCE = 1.0


@dataclass(frozen=True)
class _Run:
    """A run of a container as noted in the file `path`, which was changed at `noted` (seconds since the epoch)."""

    state: RuntimeState
    path: str
    noted: float


class Bundles:
    """The bundles of a host's containers."""

    def __init__(self, files: TrustedFiles, proc: Path) -> None:
        """`proc` is where the host's /proc is seen."""
        self._files = files
        self._processes = FirstProcesses(proc)

    def find(self, container: ContainerScope, control_group: str) -> Optional[Bundle]:
        """Return the bundle of the container's present run, None where there is none.

        Raises RuntimeFileError or SpecError where there is one that is not believed; the text says why. While a
        container starts its first process may not be noted yet.
        """
        if container.runtime == NSPAWN or not places.usable_id(container.id):
            return None
        trouble: Union[RuntimeFileError, SpecError, None] = None
        candidates = self._candidates(container.id)
        while True:
            try:
                # Where a directory is not believed this fails itself, and is at its end then.
                look = next(candidates, None)
                if look is None:
                    break
                return self._believed(look(), control_group)
            except RuntimeFileAbsentError:
                pass
            except (RuntimeFileError, SpecError) as error:
                # What the container's user may have seen to says more than what he has no part in.
                if trouble is None or isinstance(trouble, RuntimeFileUnreadableError):
                    trouble = error
        if trouble is not None:
            raise trouble
        return None

    def _candidates(self, container_id: str) -> Iterator[Callable[[], _Run]]:
        for directory in places.state_directories(self._files, container_id):
            for name, parse in _STATES:
                yield partial(self._noted, f"{directory}/{name}", parse)
        for place in places.bundle_places(self._files, container_id):
            yield partial(self._lying, place)

    def _noted(self, path: str, parse: Callable[[str], RuntimeState]) -> _Run:
        file = self._files.read(path)
        with said_of(path):
            return _Run(parse(file.text), path, file.changed)

    def _lying(self, place: places.BundlePlace) -> _Run:
        file = self._files.read(place.pid_file, _MAX_PID_BYTES)
        with said_of(place.pid_file):
            return _Run(RuntimeState(place.directory, parse_pid(file.text)), place.pid_file, file.changed)

    def _believed(self, run: _Run, control_group: str) -> Bundle:
        path = f"{run.state.bundle}/config.json"
        file = self._files.read(path)
        with said_of(path):
            spec = parse_spec(file.text)
        if meant_by(spec.cgroups_path) != control_group:
            raise RuntimeFileError(f"{path}: not believed: it is for control group {spec.cgroups_path[:200]!a}")
        pid = run.state.pid
        ticks = self._processes.started(pid)
        if ticks is None or not self._processes.is_in(pid, control_group):
            raise RuntimeRunError(f"{run.path}: not believed: process {pid}, which it names, is not in {control_group}")
        started = seconds_since_epoch(ticks)
        if run.state.ticks not in {None, ticks} or run.noted < started - _TOLERANCE:
            raise RuntimeRunError(f"{run.path}: not believed: another process has the number {pid} by now")
        if file.changed > started + _TOLERANCE:
            raise RuntimeFileError(f"{path}: not believed: it was changed after the container started")
        elsewhere = self._processes.gated_elsewhere(pid, control_group)
        return Bundle(path, spec, file.changed, pid, elsewhere)
