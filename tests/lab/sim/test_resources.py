"""What DevicePolicy and DeviceAllow mean to the fake systemd."""

from __future__ import annotations

from typing import Optional

import pytest

from tests.lab.sim.faults import BusFault
from tests.lab.sim.resources import DeviceSettings

PROC_DEVICES = "Character devices:\n  1 mem\n136 pts\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n  8 sd\n 65 sd\n"


def number(path: str) -> Optional[str]:
    """Stand for a /dev with one node."""
    return "c 195:0" if path == "/dev/nvidia0" else None


def rules(*entries: tuple[str, str], policy: str = "strict") -> list[str]:
    """Return what is written to devices.allow for these entries, the last-named first as systemd keeps them."""
    settings = DeviceSettings(policy)
    settings.merge(entries)
    return [text for verb, text in settings.writes(number, PROC_DEVICES) if verb == "allow"]


def test_the_path_is_the_key() -> None:
    """A known path gets the new access in its place, a new one comes first."""
    settings = DeviceSettings(allow=[("/dev/a", "rw"), ("/dev/b", "rw")])
    settings.merge([("/dev/b", "r"), ("/dev/c", "")])
    assert settings.allow == [("/dev/c", "rwm"), ("/dev/a", "rw"), ("/dev/b", "r")]


def test_an_empty_list_clears() -> None:
    """An empty DeviceAllow takes all entries away, as runc uses it."""
    settings = DeviceSettings(allow=[("/dev/a", "rw")])
    settings.merge([])
    assert settings.allow == []


@pytest.mark.parametrize("path", ["/srv/x", "/dev/../x", "/dev//x", "/dev/x/", "/dev/a b", "char", "/dev/"])
def test_what_is_no_device_is_refused(path: str) -> None:
    """A path that could not be a device's is refused, and what came before it is not taken."""
    settings = DeviceSettings()
    with pytest.raises(BusFault, match="requires device node or pattern"):
        settings.merge([("/dev/null", "rw"), (path, "rw")])
    assert settings.allow == []


@pytest.mark.parametrize(
    ("path", "devices"),
    [
        ("/dev/char/195:7", ["c 195:7"]),
        ("/dev/block/8:1", ["b 8:1"]),
        ("/dev/char/195:*", []),
        ("/dev/nvidia0", ["c 195:0"]),
        ("/dev/nvidia1", []),
        ("char-pts", ["c 136:*"]),
        ("char-nvidia*", ["c 195:*", "c 195:*"]),
        ("char-188", ["c 188:*"]),
        ("char-*", ["c *:*"]),
        ("block-sd", ["b 8:*", "b 65:*"]),
        ("char-sd", []),
    ],
)
def test_what_an_entry_means(path: str, devices: list[str]) -> None:
    """Numbers are read from the text, names from /proc/devices; what is not there is passed over."""
    assert rules((path, "rw")) == [f"{device} rw" for device in devices]


@pytest.mark.parametrize("policy", ["auto", "closed"])
def test_standard_devices_come_with_a_policy_that_is_not_strict(policy: str) -> None:
    """With one entry "auto" is like "closed": the standard devices, then the list."""
    found = rules(("/dev/nvidia0", "rw"), policy=policy)
    assert found[0] == "c 1:3 rwm"
    assert found[-2:] == ["c 136:* rw", "c 195:0 rw"]


def test_auto_without_entries_allows_all() -> None:
    """A unit without a device setting is opened wide."""
    assert list(DeviceSettings().writes(number, PROC_DEVICES)) == [("allow", "a")]


def test_everything_is_denied_first() -> None:
    """A list is written after a deny of everything: the gap that containers see."""
    assert next(DeviceSettings("strict").writes(number, PROC_DEVICES)) == ("deny", "a")
