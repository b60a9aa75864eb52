"""What hypothesis draws device rules, entries and facts from: small numbers, so that things meet."""

from __future__ import annotations

from hypothesis import strategies as st

from gpuguard.model.deviceallow import NodeFacts
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import BLOCK, CHAR, MAX_MAJOR, MAX_MINOR, Access, Rule
from gpuguard.model.unit import DeviceAllow

KINDS = st.sampled_from([CHAR, BLOCK])
ACCESSES = st.integers(1, 7).map(Access)
_MAJORS = st.integers(0, 3) | st.integers(0, MAX_MAJOR)
_MINORS = st.integers(0, 3) | st.integers(0, MAX_MINOR)

RULES = st.builds(Rule, KINDS, st.none() | _MAJORS, st.none() | _MINORS, ACCESSES)
CLOSE_RULES = st.builds(Rule, KINDS, st.none() | st.integers(0, 2), st.none() | st.integers(0, 2), ACCESSES)

_NAMES = st.sampled_from(["pts", "nvidia", "nvidia-uvm", "nvidia*", "odd name", "misc", "195"])
_DRIVERS = st.frozensets(st.tuples(KINDS, st.integers(1, 3), _NAMES), max_size=6)
_NODES = st.dictionaries(
    st.sampled_from(["/dev/nvidia0", "/dev/nvidia1", "/dev/char/1:1", "/dev/odd name"]),
    st.builds(DeviceNumber, KINDS, st.integers(0, 2), st.integers(0, 2)),
)
NEW_SYSTEMD = st.sampled_from([240, 247, 252, 258])
OLD_SYSTEMD = st.sampled_from([219, 239])
SYSTEMD = NEW_SYSTEMD | OLD_SYSTEMD


def facts(systemd: st.SearchStrategy[int] = SYSTEMD) -> st.SearchStrategy[NodeFacts]:
    """Draw what systemd's reading depends on."""
    return st.builds(NodeFacts, systemd, _DRIVERS.map(Majors), _NODES)


_GROUPS = st.sampled_from(["*", "nvidia*", "nvidia", "pts", "1", "2", "", "odd name", "0x1", "[n]*"])
_DIGITS = st.integers(0, 2)
PATHS = (
    st.builds("{}-{}".format, st.sampled_from(["char", "block"]), _GROUPS)
    | st.builds("/dev/{}/{}:{}".format, st.sampled_from(["char", "block"]), _DIGITS, _DIGITS)
    | st.sampled_from(["/dev/nvidia0", "/dev/nvidia1", "/dev/gone", "/dev/char/x", "/run/systemd/inaccessible/chr"])
)
ENTRIES = st.builds(DeviceAllow, PATHS, ACCESSES)
