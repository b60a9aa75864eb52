"""The configuration file: defaults, checks, and what a wrong file is told."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.config import Settings, load, remains
from gpuguard.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The documented defaults, as a literal copy: a change here is a change of what users rely on.
DEFAULTS = """
[guard]
mode = "enforce"
poll_interval = "5s"
settle = "1s"
declare = true
shield = false
[devices]
classes = ["nvidia"]
[scopes]
units = []
exclude = []
[backoff]
max_repairs = 5
window = "1m"
pause = "30s"
[escalate]
after = "30s"
command = []
[metrics]
listen = "127.0.0.1:10195"
tls_cert = ""
tls_key = ""
client_ca = ""
textfile = ""
[incidents]
dir = "/var/lib/gpuguard/incidents"
keep = 500
max_bytes = "64MiB"
max_age = "30d"
[paths]
root = "/"
cgroup = "/sys/fs/cgroup"
proc = "/proc"
dev = "/dev"
run = "/run/gpuguard"
bus = "unix:path=/run/dbus/system_bus_socket"
[log]
format = "auto"
level = "info"
"""
SHIPPED = Path(__file__).parent.parent / "deploy" / "gpuguard.toml"


def read(text: str) -> Settings:
    """Return the settings that a file with this text gives."""
    return Settings.from_mapping(tomllib.loads(text), "test.toml")


def complaint(text: str) -> str:
    """Return what a file with this text is told."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def test_every_default_is_the_documented_one() -> None:
    """What the settings print without any file is the documented list, key for key."""
    assert tomllib.loads(Settings().to_toml()) == tomllib.loads(DEFAULTS)


def test_times_are_seconds_and_sizes_are_bytes() -> None:
    """The typed values carry the units that the docstrings name."""
    settings = read('guard.poll_interval = "250ms"\nincidents.max_age = "1.5h"\nincidents.max_bytes = "1 GiB"')
    assert settings.guard.poll_interval == 0.25
    assert settings.incidents.max_age == 5400.0
    assert settings.incidents.max_bytes == 1 << 30


def test_the_shipped_file_shows_every_key_with_its_default() -> None:
    """deploy/gpuguard.toml as it is changes nothing, and uncommented it is the whole list of defaults."""
    text = SHIPPED.read_text()
    assert read(text) == Settings()
    # "#key = value" is a default, "# Text" a comment.
    uncommented = re.sub(r"(?m)^#(?=\w+ = )", "", text)
    assert tomllib.loads(uncommented) == tomllib.loads(DEFAULTS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("guard.pol_interval = 1", "[guard] pol_interval: unknown key; did you mean poll_interval?"),
        ("guard.xyz = 1", "[guard] xyz: unknown key; known are mode, poll_interval, settle, declare, shield"),
        ("gaurd.mode = 1", "gaurd: unknown key; did you mean guard?"),
        ('listen = ""', "listen: unknown key; it belongs into [metrics]"),
        ("guard = 3", "guard = 3: want a table, [guard]"),
        ('guard.mode = "enfroce"', '[guard] mode = "enfroce": want "enforce" or "observe"; did you mean "enforce"?'),
        ("guard.poll_interval = 5", '[guard] poll_interval = 5: want a time with its unit (ms, s, m, h, d), e.g. "5s"'),
        ('guard.poll_interval = "5"', "want a time with its unit"),
        ('guard.poll_interval = "99ms"', "want a time from 100ms to 5m"),
        ('guard.settle = "-1s"', "want a time with its unit"),
        ('guard.settle = "0.1ms"', "want a time in whole ms"),
        ('guard.shield = "no"', '[guard] shield = "no": want true or false, without quotes'),
        ("backoff.max_repairs = true", "[backoff] max_repairs = true: want a whole number from 1 to 1000"),
        ("backoff.max_repairs = 1.0", "want a whole number"),
        ("backoff.max_repairs = 0", "want a whole number from 1 to 1000"),
        ('incidents.max_bytes = "1kB"', "want a size with its unit (B, KiB, MiB, GiB, TiB)"),
        ('incidents.max_bytes = "1.5B"', "want a size in whole B"),
        (
            'devices.classes = ["nvidia", "intel"]',
            '[devices] classes = ["nvidia", "intel"]: entry 2: want "nvidia", "amd"',
        ),
        ('devices.classes = "nvidia"', "want a list"),
        ('scopes.units = ["system.slice"]', "ends in .service or .scope"),
        ('scopes.units = ["*"]', "ends in .service or .scope"),
        ('escalate.command = ["logger", "lost"]', "[escalate] command: want the program's absolute path"),
        ('metrics.listen = "10195"', "[metrics] listen"),
        ('metrics.listen = "127.0.0.1:99999"', "[metrics] listen: want a port from 0 to 65535"),
        ('metrics.tls_key = "/k"', "[metrics] tls_cert, tls_key: want both or none"),
        ('metrics.client_ca = "/c"', "[metrics] client_ca: wants tls_cert and tls_key too"),
        ('paths.proc = "proc"', '[paths] proc = "proc": want an absolute path'),
        ('paths.run = "/run/a\\u0007b"', "want an absolute path"),
        ('paths.bus = "/run/bus"', "want a D-Bus address"),
    ],
)
def test_a_fault_names_the_key_and_what_is_allowed(text: str, told: str) -> None:
    """Each kind of mistake is told with file, table, key, and what would be right."""
    text = complaint(text)
    assert text.startswith("test.toml: ")
    assert told in text
    assert "\n" not in text


def test_all_faults_are_told_at_once() -> None:
    """A file with three mistakes needs one round of mending, not three."""
    text = complaint('[guard]\nmode = "x"\nsettel = "1s"\n[log]\nlevel = 3')
    assert text.splitlines()[0] == "test.toml: 3 faults"
    assert [line.split()[1] for line in text.splitlines()[1:]] == ["mode", "settel:", "level"]


@pytest.mark.parametrize(
    "marks",
    ["majors = [555, 556]", 'drivers = ["kgpu*"]', 'nodes = ["/dev/kgpu*"]'],
)
def test_a_custom_class_has_one_mark(marks: str) -> None:
    """A site's own device class is told by majors, drivers or nodes, and comes back when printed."""
    settings = read(f'[[devices.custom]]\nname = "kgpu"\n{marks}')
    (custom,) = settings.devices.custom
    assert custom.name == "kgpu"
    assert [bool(custom.majors), bool(custom.drivers), bool(custom.nodes)].count(True) == 1
    assert read(settings.to_toml()) == settings


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('name = "kgpu"', "[[devices.custom]] 1: want exactly one of majors, drivers and nodes"),
        ('name = "kgpu"\nmajors = []', "want exactly one of"),
        ('name = "kgpu"\nmajors = [1]\nnodes = ["/dev/k"]', "want exactly one of"),
        ("majors = [555]", "[[devices.custom]] 1: name: missing"),
        ('name = "nvidia"\nmajors = [555]', "nvidia is a built-in class"),
        ('name = "Kgpu"\nmajors = [555]', "want a name of small letters"),
        ('name = "kgpu"\nmajors = [4096]', "want a whole number from 1 to 4095"),
        ('name = "kgpu"\ndrivers = ["*"]', "want a driver's name or pattern"),
        ('name = "kgpu"\nnodes = ["/dev/*"]', "want a path or pattern"),
        ('name = "kgpu"\nmajor = [555]', "[[devices.custom]] 1: major: unknown key; did you mean majors?"),
        (
            'name = "k"\nmajors = [1]\n[[devices.custom]]\nname = "k"\nmajors = [2]',
            "the name k is there more than once",
        ),
    ],
)
def test_a_custom_class_that_is_wrong_or_too_wide_is_refused(table: str, told: str) -> None:
    """A class without a mark, with two, or one that means every device, is an error."""
    assert told in complaint(f"[[devices.custom]]\n{table}")


@pytest.mark.parametrize("value", ["3", "[3]", "{ name = 'k' }"])
def test_custom_classes_are_an_array_of_tables(value: str) -> None:
    """Anything else below the name `custom` is told the right form."""
    assert "want an array of tables, [[devices.custom]]" in complaint(f"devices.custom = {value}")


@pytest.mark.parametrize(
    "listen", ["", "127.0.0.1:10195", "[::1]:0", "node-7.example.org:9", "unix:/run/gpuguard/http.sock"]
)
def test_ways_to_listen(listen: str) -> None:
    """The endpoint is a host and port, a socket's path, or nothing."""
    assert read(f'metrics.listen = "{listen}"').metrics.listen == listen


def _durations(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(low, high).map(lambda ms: f"{ms}ms")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "guard": st.fixed_dictionaries(
                {"poll_interval": _durations(100, 300_000), "settle": _durations(0, 300_000), "shield": st.booleans()}
            ),
            "escalate": st.fixed_dictionaries({"command": st.lists(st.just("/bin/true"), max_size=1)}),
            "incidents": st.fixed_dictionaries(
                {
                    "dir": st.text().filter(str.isprintable).map("/".__add__),
                    "max_bytes": st.integers(1 << 16, 1 << 40).map("{}B".format),
                    "max_age": _durations(60_000, 3650 * 86_400_000),
                }
            ),
        },
    )
)
def test_settings_survive_being_printed(mapping: dict[str, Any]) -> None:
    """What `config show` prints is a configuration file with the same meaning, whatever the values."""
    settings = Settings.from_mapping(mapping)
    assert Settings.from_mapping(tomllib.loads(settings.to_toml())) == settings


def test_a_missing_default_file_is_a_good_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a file everything has its default."""
    monkeypatch.setattr("gpuguard.config.DEFAULT_FILE", tmp_path / "none.toml")
    assert load() == Settings()


def test_a_default_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without --config the file in /etc counts."""
    file = tmp_path / "gpuguard.toml"
    file.write_text('guard.mode = "observe"')
    monkeypatch.setattr("gpuguard.config.DEFAULT_FILE", file)
    assert load().guard.mode == "observe"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A mistyped --config must not silently mean the defaults."""
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[guard]\nmode = 'observe'\n# caf\xe9\n", r"line 3: not UTF-8"),
        (b"[guard]\nmode =\n", r"not TOML: .*line 2"),
        (b"[guard]\nmode = 'observe'\nmode = 'enforce'\n", r"not TOML: .*line 3"),
    ],
)
def test_a_file_that_is_not_toml_is_told_the_line(tmp_path: Path, data: bytes, told: str) -> None:
    """Bytes and syntax that TOML does not know are told with their line."""
    file = tmp_path / "gpuguard.toml"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=told) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("text", "mode", "run"),
    [
        ('guard.mode = "observe"\npaths.run = "/srv/run"\nmetrics.listen = 7\n', "observe", "/srv/run"),
        ('guard.mode = "dance"\npaths.run = "/srv/run"\n[surprise]\n', "enforce", "/srv/run"),
        ('[guard\npaths.run = "/srv/run"\n', "enforce", "/run/gpuguard"),
        (None, "enforce", "/run/gpuguard"),
    ],
)
def test_what_remains_of_a_bad_file(tmp_path: Path, text: Optional[str], mode: str, run: str) -> None:
    """Tables that are good by themselves count, all else has its default; nothing is raised."""
    file = tmp_path / "gpuguard.toml"
    if text is not None:
        file.write_text(text)
    settings = remains(file)
    assert (settings.guard.mode, settings.paths.run, settings.metrics) == (mode, run, Settings().metrics)


def test_a_directory_is_not_a_configuration(tmp_path: Path) -> None:
    """The reason why the file cannot be read is part of the text."""
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_a_file_without_read_permission_is_told_so(tmp_path: Path) -> None:
    """An unreadable file is not taken for a missing one."""
    file = tmp_path / "gpuguard.toml"
    file.touch(0)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        load(file)
