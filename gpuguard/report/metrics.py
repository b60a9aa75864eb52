"""What Prometheus is told. One method for each thing that can happen, in the words of the field."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Optional, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from gpuguard.model.status import ContainerStatus
from gpuguard.report.clean import Capped, clean
from gpuguard.report.containers import ContainersCollector
from gpuguard.report.requester import kind_of_requester

DriftKind = Literal["lost", "at_risk", "excess", "stale"]
Method = Literal["write", "declare"]
Result = Literal["ok", "failed", "refused"]
ReloadKind = Literal["reload", "reexec"]
CAUSES = frozenset({"reload", "reexec", "property", "runtime", "manual", "unknown"})
MAX_WRITERS = 50
MAX_REQUESTERS = 50
MAX_SOURCES = 50

_PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# From a loss that is healed at the write, and systemd's own gap between deny and allow (50 to 100 µs both), to a node
# that nobody looked at for an hour.
_OUTAGES = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
# A direct write takes some 10 to 50 µs; a declaration waits for systemd, which is busy for seconds on a large node.
_DEEDS = (
    1e-5,
    2.5e-5,
    5e-5,
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    2.5e-3,
    5e-3,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
_ROUNDS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """All metrics, in a registry of their own. What comes from outside is cleaned and capped."""

    def __init__(self) -> None:
        # A setting of the whole process. Without it there is a second series beside each counter and histogram.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it
        self._own = own = CollectorRegistry()
        self._served = CollectorRegistry()
        self._served.register(own)
        ProcessCollector(registry=self._served)
        self._writer = Capped(MAX_WRITERS)
        self._requester = Capped(MAX_REQUESTERS)
        self._source = Capped(MAX_SOURCES)
        self._containers = ContainersCollector()
        own.register(self._containers)
        self._build = Gauge(
            "gpuguard_build_info",
            "Always 1; the labels tell the versions and the cgroup mode.",
            ("version", "python", "systemd", "cgroup"),
            registry=own,
        )
        self._drift = Counter(
            "gpuguard_drift_total",
            "Departures of a container's device list from what the container was given.",
            ("kind", "cause", "writer"),
            registry=own,
        )
        self._requests = Counter(
            "gpuguard_drift_requests_total",
            "Losses, by what the rewrite was done for: the outermost program or unit of the chain of requesters.",
            ("cause", "requester"),
            registry=own,
        )
        self._writes = Counter(
            "gpuguard_device_writes_total",
            "Times that somebody else rewrote the device rules of a guarded container.",
            ("writer",),
            registry=own,
        )
        self._repairs = Counter(
            "gpuguard_repairs_total",
            "Deeds: rules written to the kernel, or declared to systemd. Refused are those that the back-off forbade "
            "since what was done is undone again and again.",
            ("method", "result"),
            registry=own,
        )
        self._repair_seconds = Histogram(
            "gpuguard_repair_seconds", "Time of one deed.", ("method",), registry=own, buckets=_DEEDS
        )
        self._outage_seconds = Histogram(
            "gpuguard_outage_seconds",
            "Until the kernel's list was whole again: from the write as it was noticed where it was healed at once, a "
            "lower bound; else from the start of the reload or the last look that found it whole, an upper bound.",
            registry=own,
            buckets=_OUTAGES,
        )
        self._reloads = Counter("gpuguard_reloads_total", "systemd reloads seen.", ("kind",), registry=own)
        self._sentinel = Gauge(
            "gpuguard_sentinel_info",
            "Always 1; the label tells how the process that heals at the write is scheduled: rr, nice or normal.",
            ("scheduling",),
            registry=own,
        )
        self._source_up = Gauge(
            "gpuguard_source_up", "Whether an event source works: 1 or 0.", ("source",), registry=own
        )
        self._source_events = Counter(
            "gpuguard_source_events_total", "Events from an event source.", ("source",), registry=own
        )
        self._source_last_event = Gauge(
            "gpuguard_source_last_event_timestamp_seconds",
            "When an event source last said something; 0 is never.",
            ("source",),
            registry=own,
        )
        self._poll_seconds = Histogram(
            "gpuguard_poll_seconds", "One whole round of the clock over all containers.", registry=own, buckets=_ROUNDS
        )
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        # increase() does not see the first step of a counter that is not there before it.
        for method in get_args(Method):
            self._repair_seconds.labels(method)
            for result in get_args(Result):
                self._repairs.labels(method, result)
        for kind in get_args(ReloadKind):
            self._reloads.labels(kind)

    def build(self, version: str, python: str, systemd: str, cgroup: str) -> None:
        """Say what runs here; what was said before is forgotten."""
        self._build.clear()
        self._build.labels(clean(version), clean(python), clean(systemd), clean(cgroup)).set(1)

    def containers(self, statuses: Sequence[ContainerStatus]) -> None:
        """Say what the last look found. The sequence is read at the next scrape: it must not change."""
        self._containers.statuses = statuses

    def drift(self, kind: DriftKind, cause: str, writer: Optional[str]) -> None:
        """Count one departure: a cause that is not in CAUSES is "unknown"; `writer` is the program's name, if known."""
        self._drift.labels(kind, _known(cause), self._writer(writer)).inc()

    def drift_request(self, cause: str, requester: Optional[str]) -> None:
        """Count one loss by its requester: the outermost name of the chain, such as "unattended-upgrade.service".

        Sessions, runs, instances and containers are counted by their kind.
        """
        self._requests.labels(_known(cause), self._requester(requester and kind_of_requester(requester))).inc()

    def device_write(self, writer: Optional[str]) -> None:
        """Count one rewrite of a guarded container's device rules; `writer` is the program's name, if known."""
        self._writes.labels(self._writer(writer)).inc()

    def sentinel(self, scheduling: Optional[str]) -> None:
        """Say how the sentinel runs; None: there is none. What was said before is forgotten."""
        self._sentinel.clear()
        if scheduling is not None:
            self._sentinel.labels(clean(scheduling)).set(1)

    def repair(self, method: Method, result: Result, seconds: float) -> None:
        """Count one deed. The time of a refused one is not recorded, since nothing was done."""
        self._repairs.labels(method, result).inc()
        if result != "refused":
            self._repair_seconds.labels(method).observe(seconds)

    def outage(self, seconds: float) -> None:
        """Record one outage that is over."""
        self._outage_seconds.observe(seconds)

    def reload(self, kind: ReloadKind) -> None:
        """Count one reload of systemd."""
        self._reloads.labels(kind).inc()

    def source_up(self, source: str, up: bool) -> None:  # noqa: FBT001 - it is the gauge's value
        """Say whether an event source works."""
        label = self._source(source)
        self._source_up.labels(label).set(up)
        self._source_events.labels(label)
        self._source_last_event.labels(label)

    def source_event(self, source: str) -> None:
        """Count one event of a source, now."""
        label = self._source(source)
        self._source_events.labels(label).inc()
        self._source_last_event.labels(label).set(time.time())

    def poll(self, seconds: float) -> None:
        """Record one round of the clock."""
        self._poll_seconds.observe(seconds)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return content type and text: OpenMetrics when the Accept header names it, else Prometheus' text format."""
        if "application/openmetrics-text" in accept:
            text: bytes = generate_openmetrics(self._served)  # type: ignore[no-untyped-call]  # no types either
            return _OPENMETRICS, text
        return _PLAIN, generate_latest(self._served)

    def write_textfile(self, path: Path) -> None:
        """Write the metrics for node_exporter's textfile collector, atomically. Blocks on the disk; raises OSError.

        Without process_*: node_exporter has its own, and answers a scrape that has them twice with an error.
        """
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(generate_latest(self._own))
                os.fchmod(file.fileno(), 0o644)
                file.flush()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink()
                raise


def _known(cause: str) -> str:
    return cause if cause in CAUSES else "unknown"
