"""The metrics of the containers: made at each scrape from what the last look found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus
from gpuguard.report.clean import clean

MAX_ROWS = 1000

_LABELS = ("container", "runtime", "namespace", "pod", "name", "state")
# The states one has to know of come first, so that the cap cuts off healthy containers.
_TROUBLED_FIRST = (State.LOST, State.PARTIAL, State.STALE, State.OPAQUE, State.AT_RISK)


class ContainersCollector(Collector):
    """gpuguard_containers, with every state at all times, and gpuguard_container_info, at most MAX_ROWS of them."""

    def __init__(self) -> None:
        self.statuses: Sequence[ContainerStatus] = ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield both families."""
        statuses = self.statuses
        yield _counts(statuses)
        yield _rows(statuses)


def _counts(statuses: Sequence[ContainerStatus]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("gpuguard_containers", "GPU containers on this node, by state.", labels=["state"])
    counts = Counter(status.state for status in statuses)
    for state in State:
        family.add_metric([state.value], counts[state])
    return family


def _rows(statuses: Sequence[ContainerStatus]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "gpuguard_container_info",
        f"1 for each GPU container, at most {MAX_ROWS}; those in trouble come first.",
        labels=_LABELS,
    )
    chosen = sorted(statuses, key=lambda status: status.state not in _TROUBLED_FIRST)[:MAX_ROWS]
    # Prometheus refuses a whole scrape for one series that is there twice, and cleaning can make two texts one.
    for labels in dict.fromkeys(map(_labels, chosen)):
        family.add_metric(labels, 1)
    return family


def _labels(status: ContainerStatus) -> tuple[str, ...]:
    texts = (status.id, status.runtime, status.namespace, status.pod, status.name, status.state.value)
    return tuple(clean(text or "") for text in texts)
