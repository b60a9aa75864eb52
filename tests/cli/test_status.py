"""What `gpuguard status` shows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuguard.cli.status import document, people, summary
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.status import NodeStatus
from tests.cli.made import container, device, node


def test_json_is_the_documented_document() -> None:
    """Every key of the contract is there, no other, with the documented types."""
    trainer = replace(
        container("trainer", State.AT_RISK, device(declared=False)),
        reason="undeclarable",
        excess=(Rule.parse("c 195:3 rw"),),
        released=(Rule.parse("c 195:4 r"),),
    )
    assert json.loads(json.dumps(document(node(trainer)))) == {
        "version": 1,
        "node": {"cgroup": "v1", "systemd": 252, "mode": "enforce", "daemon": "running", "trouble": None},
        "containers": [
            {
                "scope": trainer.scope,
                "cgroup": f"/system.slice/{trainer.scope}",
                "id": trainer.id,
                "runtime": "docker",
                "name": "trainer",
                "namespace": None,
                "pod": None,
                "state": "at-risk",
                "managed": True,
                "devices": [
                    {
                        "device": "c 195:0",
                        "node": "/dev/nvidia0",
                        "access": "rw",
                        "entitled_by": "ledger",
                        "effective": True,
                        "declared": False,
                    }
                ],
                "reason": "undeclarable",
                "excess": [{"device": "c 195:3", "access": "rw"}],
                "released": [{"device": "c 195:4", "access": "r"}],
            }
        ],
    }


def test_json_says_null_where_it_cannot_be_told() -> None:
    """Unknown is a value of its own, not false."""
    opaque = container("trainer", State.OPAQUE, device(effective=None, declared=None))
    shown = json.dumps(document(NodeStatus("v2", None, "observe", "stopped", (opaque,))))
    assert '"effective": null, "declared": null' in shown
    assert '"systemd": null' in shown


def test_a_healthy_container_takes_one_line() -> None:
    """Devices that stand alike share a line, which names state, container, id, runtime and devices."""
    lines = people(node(container("trainer", State.PROTECTED, device(0), device(1)))).splitlines()
    assert lines[0] == "cgroup v1, systemd 252, mode enforce, daemon running"
    assert lines[2].split("  ")[0] == "STATE"
    assert lines[3].split() == [
        "protected",
        "trainer",
        "9f86d081884c",
        "docker",
        *["allowed"] * 2,
        "nvidia0",
        "nvidia1",
    ]
    assert lines[-1] == "1 protected"


def test_devices_that_stand_otherwise_take_a_line_of_their_own() -> None:
    """In a partial loss one sees which device is denied and which is not."""
    lost = device(0, effective=False, declared=False)
    lines = people(node(container("trainer", State.PARTIAL, lost, device(1)))).splitlines()
    assert lines[3].split()[-3:] == ["DENIED", "DENIED", "nvidia0"]
    assert lines[4].split() == ["allowed", "allowed", "nvidia1"]


def test_the_worst_comes_first() -> None:
    """Who needs help is on top, whatever order the containers were found in."""
    order = [State.PROTECTED, State.AT_RISK, State.LOST, State.OPAQUE]
    text = people(node(*(container(state.value, state) for state in order)))
    assert [line.split()[0] for line in text.splitlines()[3:7]] == ["lost", "opaque", "at-risk", "protected"]
    assert summary(node(*(container("x", state) for state in order))) == "1 lost, 1 opaque, 1 at-risk, 1 protected"


def test_reason_and_excess_are_told_below_the_table() -> None:
    """The why, and what a container may open without having been given it, have lines of their own."""
    main = replace(container("main", State.AT_RISK), namespace="ml", pod="train-0")
    text = people(node(replace(main, reason="no spelling", excess=(Rule.parse("c 195:3 rw"),))))
    assert "\nml/train-0/main: no spelling\n" in text
    assert "\nml/train-0/main: may also use what it was never given: c 195:3 rw\n" in text


def test_names_with_numbers_are_in_their_order() -> None:
    """Replicas are sorted as people count them; a name that is no number, or is missing, is no obstacle."""
    names = ["train-9", "train-10", "train-10-a", "train-x", None, "7", "²"]
    rows = people(node(*(container(name, State.LOST) for name in reversed(names)))).splitlines()[3:10]
    assert [row.split()[1] for row in rows] == ["7", "-", "train-9", "train-10", "train-10-a", "train-x", "²"]


def test_one_reason_of_many_is_told_once() -> None:
    """Two hundred containers for which the same holds have one line below the table, with some of their names."""
    several = [replace(container(f"job{n}", State.AT_RISK), reason="no spelling") for n in range(7)]
    lines = people(node(*several, replace(container("x", State.LOST), reason="denied"))).splitlines()
    assert lines[-4:-2] == ["x: denied", "job0, job1, job2, job3, job4 and 2 more: no spelling"]


def test_of_two_with_one_name_a_remark_tells_which() -> None:
    """Docker and Podman may both have a trainer: the one that a reason is about is told by its id."""
    podmans = replace(container("trainer", State.LOST), id="podmans.service", reason="denied")
    assert "\ntrainer (podmans.service): denied\n" in people(node(podmans, container("trainer", State.PROTECTED)))


def test_a_reason_does_not_repeat_the_containers_own_path() -> None:
    """A hundred characters that say nothing new; the path of another group stays."""
    lost = container("x", State.LOST)
    reason = f"program 7 on {lost.cgroup} denies c 195:0 rw; program 8 on {lost.cgroup}/below denies c 195:0 rw"
    text = people(node(replace(lost, reason=reason)))
    told = f"x: program 7 on its own group denies c 195:0 rw; program 8 on {lost.cgroup}/below denies c 195:0 rw"
    assert told in text.splitlines()
    assert f"{lost.cgroup} denies" in json.dumps(document(node(replace(lost, reason=reason))))


def test_what_systemd_does_not_manage_is_counted_by_the_reason() -> None:
    """One line for all of them, and no risk where there is none: a reload leaves each as it is."""
    loose = replace(container("a", State.PROTECTED, device(declared=None)), managed=False, reason="nothing to declare")
    lost = replace(container("c", State.LOST, device(effective=False, declared=None)), managed=False, reason="denied")
    text = people(node(loose, replace(loose, name="b"), lost))
    assert "\n2 containers: nothing to declare\n" in text
    assert "\nc: denied\n" in text
    rows = [line.split()[-3:-1] for line in text.splitlines() if line.startswith(("protected", "lost"))]
    assert sorted(rows) == [["DENIED", "DENIED"], ["allowed", "allowed"], ["allowed", "allowed"]]


def test_what_was_released_is_told_while_it_lasts() -> None:
    """Who released a device learns that the container may still use it."""
    text = people(node(replace(container("trainer", State.PROTECTED), released=(Rule.parse("c 195:0 rw"),))))
    assert "\ntrainer: may still use what was released, until somebody takes it away: c 195:0 rw\n" in text


def test_nothing_is_claimed_of_the_next_reload_while_a_container_settles() -> None:
    """It is not declared yet, which is no denial; what is denied now, or declared already, is told all the same."""
    devices = device(0, declared=False), device(1, declared=None), device(2, effective=False), device(3)
    lines = people(node(container("trainer", State.SETTLING, *devices))).splitlines()
    assert [line.split()[-4:] for line in lines[3:5]] == [["allowed", "too", "early", f"nvidia{n}"] for n in (0, 1)]
    assert [line.split()[-3:] for line in lines[5:7]] == [
        ["DENIED", "allowed", "nvidia2"],
        ["allowed"] * 2 + ["nvidia3"],
    ]


def test_what_is_blocked_stays_denied_after_a_reload() -> None:
    """What systemd writes does not matter where another program denies."""
    blocked = replace(device(0, effective=False), blocked=True)
    lines = people(node(container("trainer", State.LOST, blocked))).splitlines()
    assert lines[3].split()[-3:] == ["DENIED", "DENIED", "nvidia0"]


def test_containers_without_a_filter_are_counted_and_shown_on_demand() -> None:
    """A privileged container has nothing to guard: it is not in the way, and not concealed either."""
    both = node(container("trainer", State.PROTECTED, device()), container("root", State.UNRESTRICTED))
    assert "root" not in people(both)
    assert "1 without any device filter" in people(both)
    assert "unrestricted  root" in people(both, everything=True)


def test_an_empty_node_says_so() -> None:
    """No table without rows."""
    assert people(node()).splitlines()[1:] == ["no GPU container on this node"]


def test_a_stopped_daemon_is_told_with_the_cure() -> None:
    """Somebody who looks because of a loss learns that nobody mends it, and what to type."""
    assert "systemctl start gpuguard" in people(node(daemon="stopped"))
    assert "systemctl start gpuguard" not in people(node())


def test_what_is_wrong_with_the_guard_is_told() -> None:
    """That it only observes, cannot be reached, or was told to take a bad configuration: each with what to do."""
    assert "only observes" in people(replace(node(), mode="observe"))
    assert "ask as root" in people(node(daemon="unknown"))
    lines = people(replace(node(), trouble="g.toml: 2 faults\n  guard.mode: \x1b")).splitlines()
    assert lines[2:4] == ["g.toml: 2 faults", "  guard.mode: ?"]
    assert "goes on with the settings from before" in lines[4]


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "\u202eesrever"])
def test_a_name_cannot_command_the_terminal(name: str) -> None:
    """Names and reasons come from outside: what is not printable is replaced."""
    text = people(node(replace(container(name, State.LOST), reason=name)))
    assert name not in text
    assert "\x1b" not in text


def test_colour_is_there_when_asked_for_and_changes_no_column() -> None:
    """The same text with colours is as aligned as without."""
    trainer = node(container("trainer", State.LOST, device(effective=False)))
    plain, coloured = people(trainer), people(trainer, colours=True)
    assert "\x1b[31mlost\x1b[0m" in coloured
    assert "\x1b" not in plain
    assert coloured.replace("\x1b[31m", "").replace("\x1b[32m", "").replace("\x1b[0m", "") == plain


def test_many_devices_are_folded_at_the_terminals_width() -> None:
    """Sixteen GPUs do not break the table on a narrow terminal, and none is left out."""
    devices = [device(minor) for minor in range(16)]
    lines = people(node(container("trainer", State.PROTECTED, *devices)), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.count("nvidia") for line in lines) == 16


def test_a_device_without_a_known_node_is_shown_by_its_numbers() -> None:
    """A rule whose device has no node on the host is still named."""
    assert people(node(container("x", State.LOST, device(7, node=None)))).splitlines()[3].endswith(" c195:7")


def test_a_container_without_a_name_is_known_by_its_id() -> None:
    """The id that `docker ps` shows is there, and not the whole name of the scope."""
    nameless = container(None, State.LOST, device(effective=False))
    assert people(node(nameless)).splitlines()[3].split()[:4] == ["lost", "-", nameless.id[:12], "docker"]
    assert nameless.scope not in people(node(nameless))


def test_an_id_that_somebody_chose_is_shown_whole() -> None:
    """A plain unit's id is its name, and containerd takes any: only generated ones are cut."""
    unit = replace(container(None, State.LOST), id="text-generation.service")
    assert people(node(unit)).splitlines()[3].split()[:3] == ["lost", "-", "text-generation.service"]
