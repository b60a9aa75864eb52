"""The metrics: what is there from the start, what each method counts, and that labels stay bounded."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpuguard.model.state import State
from gpuguard.report.metrics import CAUSES, MAX_REQUESTERS, MAX_SOURCES, MAX_WRITERS, Metrics
from tests.report.support import status, tool


def samples(metrics: Metrics, name: str) -> list[Sample]:
    """Return the samples of one name, as a scrape sees them."""
    _, body = metrics.render()
    return [
        sample
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == name
    ]


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the value of one series, which must be there."""
    (found,) = [sample for sample in samples(metrics, name) if sample.labels == labels]
    return float(found.value)


@pytest.fixture
def full() -> Metrics:
    """Metrics after everything has happened once."""
    metrics = Metrics()
    metrics.build("1.0", "3.11.7", "252", "v1")
    metrics.containers([status(number, state) for number, state in enumerate(State)])
    metrics.drift("lost", "reload", "systemd")
    metrics.drift("at_risk", "unknown", None)
    metrics.drift_request("reload", "unattended-upgrade.service")
    metrics.device_write("systemd")
    metrics.sentinel("rr")
    metrics.repair("write", "ok", 0.0001)
    metrics.repair("declare", "failed", 2)
    metrics.outage(0.003)
    metrics.reload("reexec")
    metrics.source_up("bus", up=True)
    metrics.source_event("bus")
    metrics.poll(0.01)
    return metrics


def test_promtool_has_no_complaint(full: Metrics) -> None:
    """A full exposition is clean to promtool check metrics."""
    _, body = full.render()
    check = subprocess.run([tool("promtool"), "check", "metrics"], input=body, capture_output=True, check=False)
    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")


def test_every_metric_of_the_contract_is_there(full: Metrics) -> None:
    """The names that dashboards and alerts rely on, and the process's own."""
    _, body = full.render()
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert names >= {
        "gpuguard_build_info",
        "gpuguard_containers",
        "gpuguard_container_info",
        "gpuguard_drift",
        "gpuguard_drift_requests",
        "gpuguard_device_writes",
        "gpuguard_sentinel_info",
        "gpuguard_repairs",
        "gpuguard_repair_seconds",
        "gpuguard_outage_seconds",
        "gpuguard_reloads",
        "gpuguard_source_up",
        "gpuguard_source_events",
        "gpuguard_source_last_event_timestamp_seconds",
        "gpuguard_poll_seconds",
        "process_resident_memory_bytes",
        "process_cpu_seconds",
    }


def test_nothing_in_the_default_registry(full: Metrics) -> None:
    """Two instances do not meet, and nothing is left in the library's registry of the process."""
    full.outage(1)
    assert value(Metrics(), "gpuguard_outage_seconds_count") == 0
    assert not [family for family in REGISTRY.collect() if family.name.startswith("gpuguard")]


def test_counters_for_alerts_start_at_zero() -> None:
    """increase() misses a first step from nowhere: repairs and reloads are there from the start."""
    metrics = Metrics()
    repairs = samples(metrics, "gpuguard_repairs_total")
    assert {(sample.labels["method"], sample.labels["result"]) for sample in repairs} == {
        (method, result) for method in ("write", "declare") for result in ("ok", "failed", "refused")
    }
    assert not any(sample.value for sample in [*repairs, *samples(metrics, "gpuguard_reloads_total")])


def test_every_state_is_always_there() -> None:
    """A state without containers is a 0, not a gap."""
    metrics = Metrics()
    assert {sample.labels["state"]: sample.value for sample in samples(metrics, "gpuguard_containers")} == {
        state.value: 0 for state in State
    }
    metrics.containers([status(1), status(2), status(3, State.LOST)])
    assert value(metrics, "gpuguard_containers", state="protected") == 2
    assert value(metrics, "gpuguard_containers", state="lost") == 1
    metrics.containers([])
    assert value(metrics, "gpuguard_containers", state="protected") == 0


def test_build_info_has_one_row() -> None:
    """After systemd was upgraded the old row is gone."""
    metrics = Metrics()
    metrics.build("1.0", "3.11.7", "252", "v1")
    metrics.build("1.0", "3.11.7", "257", "v1")
    (row,) = samples(metrics, "gpuguard_build_info")
    assert row.labels == {"version": "1.0", "python": "3.11.7", "systemd": "257", "cgroup": "v1"}


def test_drift() -> None:
    """Each departure is counted by kind, cause and writer; a cause that is not in the contract is unknown."""
    metrics = Metrics()
    for cause in sorted(CAUSES):
        metrics.drift("lost", cause, "systemd")
    metrics.drift("lost", "full moon", "systemd")
    assert value(metrics, "gpuguard_drift_total", kind="lost", cause="reload", writer="systemd") == 1
    assert value(metrics, "gpuguard_drift_total", kind="lost", cause="unknown", writer="systemd") == 2


def test_writers_are_capped() -> None:
    """A machine full of writers with names of their own makes a bounded number of series."""
    metrics = Metrics()
    for number in range(10 * MAX_WRITERS):
        metrics.drift("lost", "unknown", f"writer{number}\n")
    writers = {sample.labels["writer"] for sample in samples(metrics, "gpuguard_drift_total")}
    assert len(writers) == MAX_WRITERS + 1
    assert "writer0\ufffd" in writers
    assert value(metrics, "gpuguard_drift_total", kind="lost", cause="unknown", writer="other") == 9 * MAX_WRITERS


def test_requests() -> None:
    """A loss is counted by what it was done for; nobody known is unknown, and a node's many requesters are bounded."""
    metrics = Metrics()
    metrics.drift_request("reload", "unattended-upgrade.service")
    metrics.drift_request("full moon", None)
    name = "gpuguard_drift_requests_total"
    assert value(metrics, name, cause="reload", requester="unattended-upgrade.service") == 1
    assert value(metrics, name, cause="unknown", requester="unknown") == 1
    for number in range(10 * MAX_REQUESTERS):
        metrics.drift_request("manual", f"session-{number}.scope")
    assert value(metrics, name, cause="manual", requester="session-*.scope") == 10 * MAX_REQUESTERS
    for number in range(10 * MAX_REQUESTERS):
        metrics.drift_request("manual", f"agent{number}\n")
    assert len({sample.labels["requester"] for sample in samples(metrics, name)}) == MAX_REQUESTERS + 1


def test_device_writes() -> None:
    """Each rewrite is counted by its writer's program, a bounded number of them."""
    metrics = Metrics()
    metrics.device_write("systemd")
    metrics.device_write("systemd")
    metrics.device_write(None)
    assert value(metrics, "gpuguard_device_writes_total", writer="systemd") == 2
    assert value(metrics, "gpuguard_device_writes_total", writer="unknown") == 1
    for number in range(10 * MAX_WRITERS):
        metrics.device_write(f"writer{number}")
    assert len(samples(metrics, "gpuguard_device_writes_total")) == MAX_WRITERS + 1


def test_the_sentinel_has_one_class() -> None:
    """The class that it was in before is gone, and without a sentinel there is none."""
    metrics = Metrics()
    assert samples(metrics, "gpuguard_sentinel_info") == []
    metrics.sentinel("nice")
    metrics.sentinel("rr")
    (row,) = samples(metrics, "gpuguard_sentinel_info")
    assert (row.labels, row.value) == ({"scheduling": "rr"}, 1)
    metrics.sentinel(None)
    assert samples(metrics, "gpuguard_sentinel_info") == []


def test_repairs() -> None:
    """A deed is counted by method and result and timed; a refused one, of which nothing was done, is not timed."""
    metrics = Metrics()
    metrics.repair("write", "ok", 0.004)
    metrics.repair("write", "refused", 0)
    assert value(metrics, "gpuguard_repairs_total", method="write", result="ok") == 1
    assert value(metrics, "gpuguard_repairs_total", method="write", result="refused") == 1
    assert value(metrics, "gpuguard_repair_seconds_count", method="write") == 1
    assert value(metrics, "gpuguard_repair_seconds_sum", method="write") == pytest.approx(0.004)


def test_outage_buckets() -> None:
    """The buckets tell a healing at the write, systemd's gap of 80 µs, and milliseconds apart, and reach an hour."""
    metrics = Metrics()
    for seconds in (0.00004, 0.00008, 0.003, 3000):
        metrics.outage(seconds)
    assert value(metrics, "gpuguard_outage_seconds_bucket", le="5e-05") == 1
    assert value(metrics, "gpuguard_outage_seconds_bucket", le="0.0001") == 2
    assert value(metrics, "gpuguard_outage_seconds_bucket", le="0.005") == 3
    assert value(metrics, "gpuguard_outage_seconds_bucket", le="3600.0") == 4


def test_sources() -> None:
    """A source tells whether it works, how often it spoke and when; it never spoke: 0."""
    metrics = Metrics()
    metrics.source_up("bus", up=True)
    assert value(metrics, "gpuguard_source_up", source="bus") == 1
    assert value(metrics, "gpuguard_source_events_total", source="bus") == 0
    assert value(metrics, "gpuguard_source_last_event_timestamp_seconds", source="bus") == 0
    before = time.time()
    metrics.source_event("bus")
    metrics.source_up("bus", up=False)
    assert value(metrics, "gpuguard_source_up", source="bus") == 0
    assert value(metrics, "gpuguard_source_events_total", source="bus") == 1
    assert before <= value(metrics, "gpuguard_source_last_event_timestamp_seconds", source="bus") <= time.time()


def test_sources_are_capped() -> None:
    """However many sources are named, the series stay bounded."""
    metrics = Metrics()
    for number in range(3 * MAX_SOURCES):
        metrics.source_up(f"source{number}", up=True)
    assert len(samples(metrics, "gpuguard_source_up")) == MAX_SOURCES + 1


def test_poll() -> None:
    """Each round of the clock is timed."""
    metrics = Metrics()
    metrics.poll(0.02)
    assert value(metrics, "gpuguard_poll_seconds_count") == 1


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", b"\n"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", b"\n"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            b"# EOF\n",
        ),
        (
            "application/openmetrics-text;version=x\r",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            b"\n",
        ),
    ],
)
def test_format_is_negotiated(full: Metrics, accept: str, content_type: str, end: bytes) -> None:
    """A scraper that knows OpenMetrics gets it, all others the text format; nothing of the header is echoed."""
    answered, body = full.render(accept)
    assert answered == content_type
    assert body.endswith(end)


def test_no_created_series(full: Metrics) -> None:
    """The library's _created series, which would double the number of counters, are not there."""
    for accept in ("", "application/openmetrics-text"):
        assert b"_created" not in full.render(accept)[1]


def test_textfile(full: Metrics, tmp_path: Path) -> None:
    """The textfile is whole, for everybody to read, alone in its directory, and leaves process_* to node_exporter."""
    path = tmp_path / "gpuguard.prom"
    path.write_text("old")
    full.write_textfile(path)
    text = path.read_text()
    assert "gpuguard_build_info{" in text
    assert "process_" not in text
    assert path.stat().st_mode & 0o7777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_textfile_that_cannot_be_written(full: Metrics, tmp_path: Path) -> None:
    """An error leaves no temporary file behind."""
    path = tmp_path / "gpuguard.prom"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        full.write_textfile(path)
    assert list(tmp_path.iterdir()) == [path]
