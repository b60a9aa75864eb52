"""What `gpuguard doctor` shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuguard import __version__
from gpuguard.cli.doctor import document, people
from gpuguard.model.doctor import Examination, Links
from gpuguard.model.reports import SourceReport
from gpuguard.model.state import State
from gpuguard.model.write import Standing
from tests.cli.test_commands import GPU, config
from tests.cli.test_main import gpuguard_command
from tests.lab.sim.node import SimNode
from tests.model.examined import ID, NAMES, container, examined

__all__ = ["config"]  # a fixture


class TestPeople:
    """The text."""

    def test_a_healthy_node(self) -> None:
        """Versions, daemon, sentinel, device nodes, sources, containers."""
        assert people(examined(container(State.PROTECTED))).splitlines() == [
            "Node:",
            "  gpuguard 1.0, Python 3.11.7",
            "  cgroup v1, systemd 252, kernel 6.1.0",
            "  daemon running (version 1.0), mode enforce",
            "  the sentinel runs in the real-time class (SCHED_RR)",
            "  guarded device nodes: 1, all with a link in /dev/char",
            "",
            "Event sources:",
            "  SOURCE    STATE  WHY",
            "  monitor   up     -",
            "  sentinel  up     -",
            "  signals   up     -",
            "  units     up     -",
            "",
            "Containers:",
            "  1 protected",
            "",
            "What to do:",
            "  Nothing: all is well.",
        ]

    def test_what_systemd_does_not_manage(self) -> None:
        """It is said how many and why, and that is nothing to be done about."""
        loose = replace(container(State.PROTECTED, reason="nothing to declare"), managed=False)
        text = people(examined(loose, replace(loose, name="b"), container(State.PROTECTED)))
        assert "Containers:\n  3 protected\n  2 containers: nothing to declare\n" in text
        assert text.endswith("What to do:\n  Nothing: all is well.")

    def test_what_is_wrong(self) -> None:
        """Each finding with its gravity and, below it, the advice; the gravest first."""
        down = (SourceReport("monitor", up=False, reason="access denied"),)
        seen = examined(container(State.LOST, reason="blocked"), sources=down, standing=Standing("nice", "EPERM"))
        lines = people(seen).splitlines()
        assert "  monitor  DOWN   access denied" in lines
        assert "  the sentinel runs ahead of ordinary programs by its nice level: EPERM" in lines
        advice = lines[lines.index("What to do:") + 1 :]
        assert advice[:2] == ["  broken: trainer is lost: blocked", f"    `gpuguard explain {ID[:12]}`"]
        assert [line.split(":")[0] for line in advice[::2]] == ["  broken", "  advice", "  advice"]

    @pytest.mark.invariant(4)
    def test_what_is_not_known(self) -> None:
        """Without a daemon the sources are unknown, and without cgroups everything is."""
        stopped = people(examined(daemon="stopped", version=None, sources=None, standing=None))
        assert "  not known: only a daemon at work has any" in stopped.splitlines()
        assert "  daemon stopped, mode enforce" in stopped.splitlines()
        assert "sentinel" not in stopped
        older = people(examined(sources=None, standing=None))
        assert "  not known: the daemon does not tell" in older.splitlines()
        seen = examined()
        nothing = people(Examination(replace(seen.versions, systemd=None, daemon=None), None, "no cgroups here"))
        assert "  cgroup cannot be told, systemd does not answer, kernel 6.1.0" in nothing.splitlines()
        assert "  guarded device nodes: cannot be told" in nothing.splitlines()
        assert "Containers:\n  cannot be told" in nothing
        assert "broken: no cgroups here" in nothing

    def test_device_nodes(self) -> None:
        """How many there are, and how many of them have a link."""
        two = ("/dev/nvidia0", "/dev/nvidiactl")
        assert "guarded device nodes: 2, 1 with a link" in people(examined(links=Links(two, two[:1])))
        assert "guarded device nodes: none on this host" in people(examined(links=Links()))

    def test_names_from_outside_cannot_command_the_terminal(self) -> None:
        """Reasons, versions and file names come from outside."""
        evil = "\x1b[31m\n\u202e"
        seen = examined(
            container(State.LOST, name=evil, reason=evil),
            version=evil,
            trouble=evil,
            sources=(SourceReport(evil, up=False, reason=evil),),
            standing=Standing(evil, evil),
            fault=evil,
        )
        text = people(seen)
        assert "\x1b" not in text
        assert "\u202e" not in text

    def test_colour_changes_nothing_else(self) -> None:
        """With colours the text is the same."""
        for seen in (examined(), examined(container(State.LOST), container(State.AT_RISK))):
            plain, coloured = people(seen), people(seen, colours=True)
            assert "\x1b[3" in coloured
            for code in ("31", "32", "33", "0"):
                coloured = coloured.replace(f"\x1b[{code}m", "")
            assert coloured == plain

    def test_hundreds_of_containers_do_not_hide_the_rest(self) -> None:
        """What is wrong with node and guard is told; of the containers some, and where the others are found."""
        lost = (container(State.LOST, f"job{n}") for n in range(200))
        at_risk = (container(State.AT_RISK, f"web{n}") for n in range(200))
        text = people(examined(*lost, *at_risk, daemon="stopped", systemd=None))
        shown = [line.strip() for line in text.partition("What to do:\n")[2].splitlines()]
        assert len(shown) == 68
        assert shown[0].startswith("broken: systemd does not answer")
        assert shown[32] == "broken: 185 more"
        assert "`gpuguard status`" in shown[33]
        assert shown[34].startswith("advice: the daemon is stopped")
        assert shown[66] == "advice: 185 more"


class TestJson:
    """The document."""

    def test_is_the_documented_document(self) -> None:
        """Every key, and nothing but JSON's own types."""
        seen = examined(container(State.AT_RISK), without_effect=(("[guard] shield", "on cgroup v2"),))
        shown = json.loads(json.dumps(document(seen)))
        assert list(shown) == [
            *("version", "verdict", "versions", "node", "trouble", "sources", "sentinel", "links", "containers"),
            *("settings", "findings"),
        ]
        assert (shown["version"], shown["verdict"]) == (1, "advice")
        assert shown["versions"] == {
            "gpuguard": "1.0",
            "daemon": "1.0",
            "python": "3.11.7",
            "systemd": 252,
            "kernel": "6.1.0",
        }
        assert shown["node"]["daemon"] == "running"
        assert shown["sources"] == [{"name": name, "up": True, "reason": None} for name in NAMES]
        assert shown["sentinel"] == {"scheduling": "rr", "reason": None}
        assert shown["links"] == {"nodes": ["/dev/nvidia0"], "missing": []}
        assert [one["state"] for one in shown["containers"]] == ["at-risk"]
        assert shown["settings"] == {
            "fault": None,
            "without_effect": [{"setting": "[guard] shield", "where": "on cgroup v2"}],
        }
        assert [list(one) for one in shown["findings"]] == [["gravity", "text", "advice"]] * 2

    @pytest.mark.invariant(4)
    def test_says_null_where_it_cannot_be_told(self) -> None:
        """Unknown is a value of its own."""
        shown = document(Examination(examined().versions, None, "no cgroups here"))
        assert [shown[key] for key in ("node", "sources", "sentinel", "links", "containers")] == [None] * 5
        assert (shown["verdict"], shown["trouble"]) == ("broken", "no cgroups here")


class TestCommand:
    """The program on a simulated node, without a daemon."""

    def test_a_node_without_a_daemon(self, sim: SimNode, config: str) -> None:
        """Advice is exit code 1, and each container at risk is part of it."""
        scope = sim.scope(hook_rules=GPU)
        done = gpuguard_command("doctor", "--json", "--config", config)
        assert (done.returncode, done.stderr) == (1, "")
        shown = json.loads(done.stdout)
        assert (shown["verdict"], shown["sources"], shown["sentinel"]) == ("advice", None, None)
        assert shown["versions"]["gpuguard"] == __version__
        assert [(one["scope"], one["state"]) for one in shown["containers"]] == [(scope.name, "at-risk")]
        text = gpuguard_command("doctor", "--config", config).stdout
        assert "not known: only a daemon at work has any" in text
        assert "is at-risk" in text

    def test_a_lost_node_is_broken(self, sim: SimNode, config: str) -> None:
        """Without a bus, and with a file that is no configuration, the rest is told all the same."""
        sim.scope(hook_rules=GPU)
        sim.stop_bus()
        with Path(config).open("a") as file:
            file.write("[guard.nonsense]\n")
        done = gpuguard_command("doctor", "--json", "--config", config)
        assert done.returncode == 2
        shown = json.loads(done.stdout)
        assert config in shown["settings"]["fault"]
        assert [one["gravity"] for one in shown["findings"]][:2] == ["broken", "broken"]
        assert len(shown["containers"]) == 1

    def test_a_node_without_cgroups_is_broken(self, tmp_path: Path) -> None:
        """What hinders every look is told as such, not as the 1 of an error."""
        file = tmp_path / "gpuguard.toml"
        file.write_text(f'[paths]\ncgroup = "{tmp_path}"\nrun = "{tmp_path}"\n')
        done = gpuguard_command("doctor", "--config", str(file))
        assert (done.returncode, done.stderr) == (2, "")
        assert f"broken: {tmp_path}: neither a v1 devices hierarchy" in done.stdout
