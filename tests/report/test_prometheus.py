"""The alert rules: promtool's verdict on them, and a real Prometheus that fires and resolves one."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuguard.guard.clock import CLOCK
from gpuguard.guard.sentinel import SENTINEL
from gpuguard.kernel.executions import EXECUTIONS
from gpuguard.kernel.uevents import UEVENTS
from gpuguard.model.state import State
from gpuguard.report.http import Server
from gpuguard.report.metrics import Metrics
from gpuguard.systemd.events import MONITOR, SIGNALS, UNITS
from tests.report.support import PATIENCE, status, tool

DEPLOY = Path(__file__).parents[2] / "deploy/prometheus"
RULES = DEPLOY / "gpuguard.rules.yml"

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: gpuguard
    static_configs: [{{targets: ['127.0.0.1:{port}']}}]
"""


def promtool(*arguments: str) -> str:
    """Run promtool in the directory of the rules; it must find no fault."""
    run = subprocess.run([tool("promtool"), *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_rules_are_valid() -> None:
    """Promtool finds all alerts and no fault in them."""
    assert "7 rules found" in promtool("check", "rules", "--lint-fatal", RULES.name)


def test_rules_do_what_they_should() -> None:
    """Each alert fires, resolves and stays silent as gpuguard.rules.test.yml says."""
    promtool("test", "rules", "gpuguard.rules.test.yml")


def test_each_alert_is_tested_and_explained() -> None:
    """No alert without a test that it fires and one that it does not, nor without summary, description and runbook."""
    text, tests = RULES.read_text(), (DEPLOY / "gpuguard.rules.test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    for alert in alerts:
        checks = re.findall(rf"alertname: {alert}\n( +exp_alerts:)?", tests)
        assert any(checks), f"{alert} is never expected"
        assert not all(checks), f"{alert} is always expected"
    for annotation in ("severity", "summary", "description", "runbook"):
        assert len(re.findall(rf"^ +{annotation}: ", text, re.MULTILINE)) == len(alerts)


def test_rules_use_metrics_that_are_there() -> None:
    """Each metric that an expression names is one that a new daemon already shows, or a source's."""
    metrics = Metrics()
    metrics.source_up(SIGNALS, up=True)
    exposition = metrics.render()[1].decode()
    for expression in re.findall(r"expr: (.+)", RULES.read_text()):
        for name in re.findall(r"gpuguard_\w+", expression):
            assert re.search(rf"^{name}\{{", exposition, re.MULTILINE), name


def test_each_state_that_asks_something_of_somebody_has_an_alert() -> None:
    """A container that `gpuguard check` complains of is one that an alert knows."""
    quiet = {State.PROTECTED, State.UNRESTRICTED, State.SETTLING}
    expressions = " ".join(re.findall(r"expr: (.+)", RULES.read_text()))
    known = {state for matcher in re.findall(r'state=~?"([a-z|-]+)"', expressions) for state in matcher.split("|")}
    assert known == {state.value for state in State if state not in quiet}


def test_rules_are_tested_with_sources_that_there_are() -> None:
    """An alert on a source has the name of one that a daemon has."""
    named = re.findall(r'source="(\w+)"', (DEPLOY / "gpuguard.rules.test.yml").read_text())
    assert set(named) <= {SIGNALS, UNITS, MONITOR, SENTINEL, UEVENTS, EXECUTIONS, CLOCK}


def test_scrape_example_is_valid(tmp_path: Path) -> None:
    """The example is a configuration that Prometheus takes."""
    shutil.copy(RULES, tmp_path)
    shutil.copy(DEPLOY / "scrape.example.yml", tmp_path)
    promtool("check", "config", "--syntax-only", str(tmp_path / "scrape.example.yml"))


@asynccontextmanager
async def prometheus(directory: Path, port: int) -> AsyncIterator[str]:
    """Run a real Prometheus that scrapes the port, and yield its address."""
    program = tool("prometheus")
    (directory / "prometheus.yml").write_text(CONFIG.format(port=port))
    # The real rules, in a hurry.
    (directory / "rules.yml").write_text(re.sub(r"\bfor: \w+", "for: 1s", RULES.read_text()))
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        yield await asyncio.wait_for(_address(process.stderr), PATIENCE)
    finally:
        process.terminate()
        await process.communicate()


async def _address(log: asyncio.StreamReader) -> str:
    seen = b""
    async for line in log:
        seen += line
        found = re.search(rb'"?Listening on"? address=([0-9.:]+)', line)
        if found:
            return found[1].decode()
    pytest.fail(f"prometheus ended: {seen.decode()}")


async def _wait_until(address: str, path: str, wanted: Callable[[Any], bool]) -> None:
    """Ask Prometheus' API until the answer is as wanted."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            answer = await asyncio.to_thread(_get, f"http://{address}/api/v1/{path}")
        except OSError as error:
            answer = error  # not ready yet
        if not isinstance(answer, OSError) and wanted(answer):
            return
        assert asyncio.get_running_loop().time() < deadline, answer
        await asyncio.sleep(0.2)


def _get(url: str) -> Any:  # noqa: ANN401 - what JSON can hold
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 - always http
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        error.close()  # it is an answer as well
        raise


def _healthy(targets: dict[str, Any]) -> bool:
    """Whether a scrape was taken in as a whole."""
    return [target["health"] for target in targets["activeTargets"]] == ["up"]


def _alerts(*wanted: tuple[str, str]) -> Callable[[dict[str, Any]], bool]:
    """Whether exactly these alerts, by name and state, are active."""

    def check(alerts: dict[str, Any]) -> bool:
        return [(alert["labels"]["alertname"], alert["state"]) for alert in alerts["alerts"]] == list(wanted)

    return check


@pytest.mark.timeout(180)
async def test_a_real_prometheus_fires_and_resolves(tmp_path: Path) -> None:
    """A container that loses its GPU fires GpuguardAccessLost; once it has it back, the alert is resolved."""
    metrics = Metrics()
    metrics.build("1.0", "3.11", "252", "v1")
    metrics.containers([status(1)])
    server = Server("127.0.0.1:0", metrics.render, lambda: None)
    await server.start()
    try:
        async with prometheus(tmp_path, server.ports[0]) as address:
            await _wait_until(address, "targets", _healthy)
            await _wait_until(address, "alerts", _alerts())
            metrics.containers([status(1, State.LOST)])
            await _wait_until(address, "alerts", _alerts(("GpuguardAccessLost", "firing")))
            metrics.containers([status(1)])
            await _wait_until(address, "alerts", _alerts())
    finally:
        await server.stop()
