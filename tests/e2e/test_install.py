"""`make install` and `make uninstall` on a node at work."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import gpuguard
from tests.lab.containers import Docker
from tests.lab.devices import GPU0
from tests.lab.node import ROOT, Node
from tests.lab.poll import until
from tests.lab.prober import Prober

pytestmark = pytest.mark.timeout(400)

CONFIG = "etc/gpuguard/gpuguard.toml"
DOC = "/usr/share/doc/gpuguard"
SOURCE = "/srv/source-of-gpuguard"
SHIPPED = ("gpuguard", "systemd", "deploy", "docs", "tools", "pyproject.toml", "README.md", "CHANGELOG.md")
# Where pip gets its packages from, should this machine have told it by the environment.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}


def tool(node: Node, name: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run tools/install or tools/uninstall from the node's own copy of the source."""
    return node.run([f"{SOURCE}/tools/{name}"], check=check, timeout=180, env=ENVIRONMENT)


def last_reload(node: Node) -> int:
    """Return when the node's systemd last reloaded: microseconds of the monotonic clock, 0 for never since the boot."""
    return int(node.run(["systemctl", "show", "--value", "--property=UnitsLoadTimestampMonotonic"]).stdout)


def files(node: Node) -> set[str]:
    """Return the paths in the node's system directories that have to do with gpuguard."""
    found = node.run(
        ["find", "/usr/bin", "/usr/lib", "/usr/share/doc", "/lib/systemd", "/etc", "-name", "*gpuguard*"]
    ).stdout
    return {path for path in found.split() if not path.startswith(("/usr/lib/gpuguard/", "/usr/lib/python3"))}


@pytest.fixture
def source(node: Node) -> Iterator[Path]:
    """Put a copy of the source into the node, which a test may change; return its path from outside."""
    node.run(["mkdir", "-p", SOURCE])
    node.run(["cp", "-r", *(str(ROOT / name) for name in SHIPPED), SOURCE])
    copy = node.path(SOURCE)
    # A node shares the network with the machine: its default port may be taken.
    (copy / "deploy" / "gpuguard.toml").write_text('[metrics]\nlisten = ""\n')
    yield copy
    tool(node, "uninstall")
    node.run(["rm", "-rf", SOURCE, "/etc/gpuguard", "/run/gpuguard", "/var/lib/gpuguard"])


def test_nobody_loses_a_device_by_it(node: Node, docker: Docker, prober: Prober, source: Path) -> None:
    """Install, an upgrade with a changed unit, and uninstall: systemd never reloads and no open of a GPU is denied."""
    container = docker.run("trainer", [GPU0])
    before = last_reload(node)
    with prober.loop(container.cgroup, GPU0) as loop:
        tool(node, "install")
        assert node.run(["systemctl", "is-active", "gpuguard"]).stdout == "active\n"
        assert node.run(["systemctl", "is-enabled", "gpuguard"]).stdout == "enabled\n"
        with (source / "systemd" / "gpuguard.service").open("a") as unit:
            unit.write("# changed\n")
        assert "gpuguard.service has changed" in tool(node, "install").stdout
        tool(node, "uninstall")
        report = loop.stop()
    assert report.opens > 0
    assert (report.denied, report.odd) == (0, {})
    assert last_reload(node) == before
    # One would have been seen; and what was declared outlives the guard.
    node.run(["systemctl", "daemon-reload"])
    assert last_reload(node) > before
    assert prober.open(container.cgroup, GPU0).allowed


@pytest.mark.usefixtures("source")
def test_what_is_installed_works_and_goes_again(node: Node) -> None:
    """The command works anywhere and from nobody's environment; uninstall leaves only the configuration."""
    before = files(node)
    tool(node, "install")
    done = node.run(["gpuguard", "--version"], env={"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    assert done.stdout == f"gpuguard {gpuguard.__version__}\n"
    assert json.loads(node.run(["gpuguard", "status", "--json"]).stdout)["node"]["daemon"] == "running"
    assert node.run(["gpuguard", "check"]).stdout.startswith("GPUGUARD OK - ")
    node.run(["systemctl", "reload", "gpuguard"])
    active = partial(node.run, ["systemctl", "is-active", "gpuguard"], check=False)
    until(lambda: active().stdout == "active\n", 20, "the end of the reload")
    assert node.run(["journalctl", "--list-catalog"]).stdout.count("gpuguard") > 0
    for place in re.findall(r"\]\(([\w/.-]+)\)", node.path(f"{DOC}/README.md").read_text()):
        assert node.path(f"{DOC}/{place}").exists(), f"README.md leads to {place}"
    natives = node.run(["find", "/usr/lib/gpuguard", "-name", "*.so"]).stdout
    assert natives == ""
    tool(node, "uninstall")
    assert files(node) - before == {"/etc/gpuguard", f"/{CONFIG}"}
    assert node.run(["systemctl", "show", "--value", "-p", "LoadState", "gpuguard"]).stdout == "not-found\n"
    assert "gpuguard" not in node.run(["journalctl", "--list-catalog"]).stdout


@pytest.mark.usefixtures("source")
def test_the_configuration_is_the_administrators(node: Node) -> None:
    """No install touches it; one that finds it bad changes nothing and stops nobody. Each line says whose it is."""
    first, again = tool(node, "install"), tool(node, "install")
    assert f"install: /{CONFIG}: good\n" in again.stdout
    assert [line for line in (first.stdout + again.stdout).splitlines() if not line.startswith("install: ")] == []
    config = node.path(CONFIG)
    config.write_text('[guard]\nmode = "obsevre"\n')
    refused = tool(node, "install", check=False)
    assert refused.returncode == 78
    assert 'did you mean "observe"?' in refused.stderr
    assert config.read_text() == '[guard]\nmode = "obsevre"\n'
    assert node.run(["systemctl", "is-active", "gpuguard"]).stdout == "active\n"


@pytest.mark.usefixtures("source")
def test_a_machine_that_cannot_be_served_is_left_alone(node: Node) -> None:
    """Where gpuguard sees no device cgroups it says so before anything is written."""
    config = node.path(CONFIG)
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('[metrics]\nlisten = ""\n[paths]\ncgroup = "/srv"\n')
    before = files(node)
    refused = tool(node, "install", check=False)
    assert refused.returncode == 1
    assert "/srv: neither a v1 devices hierarchy" in refused.stderr
    assert "nothing is installed" in refused.stderr
    assert files(node) == before
    assert not node.path("/usr/lib/gpuguard").exists()
    assert not node.path("/usr/lib/gpuguard.new").exists()


@pytest.mark.usefixtures("source")
def test_without_a_package_index_nothing_happens(node: Node) -> None:
    """Pip's own words are there, and after them what to do; nothing is installed or left behind."""
    before = files(node)
    offline = {**ENVIRONMENT, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    refused = node.run([f"{SOURCE}/tools/install"], check=False, timeout=180, env=offline)
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("install: pip cannot build gpuguard or fetch what it needs")
    for word in ("nothing is installed", "PIP_INDEX_URL", "PIP_FIND_LINKS"):
        assert word in last
    assert files(node) == before
    assert not node.path("/usr/lib/gpuguard.new").exists()


def test_a_textfile_goes_along(node: Node, source: Path) -> None:
    """Nobody would write it any more, also where the daemon was killed and could not remove it."""
    textfile = node.path("/srv/gpuguard.prom")
    with (source / "deploy" / "gpuguard.toml").open("a") as config:
        config.write('textfile = "/srv/gpuguard.prom"\n')
    tool(node, "install")
    until(textfile.exists, 20, "the textfile")
    node.run(["systemctl", "kill", "--signal=SIGKILL", "gpuguard"])
    node.run(["systemctl", "stop", "gpuguard"])
    textfile.write_text("gpuguard_build_info{} 1\n")
    tool(node, "uninstall")
    assert not textfile.exists()


def test_a_service_that_does_not_start_is_told_with_its_last_words(node: Node, source: Path) -> None:
    """Who installs learns at once, and why, when the guard does not run."""
    (source / "gpuguard" / "daemon.py").write_text("raise SystemExit('no such luck')\n")
    failed = tool(node, "install", check=False)
    assert failed.returncode == 1
    assert "no such luck" in failed.stderr
    assert "the service does not start" in failed.stderr
