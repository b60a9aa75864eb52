"""The configuration: TOML text to typed, checked, frozen settings. Every key has a default."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from gpuguard.errors import ConfigError
from gpuguard.model.device_classes import BUILT_IN
from gpuguard.model.rule import MAX_MAJOR
from gpuguard.model.schema import Table, read, rows, setting, write
from gpuguard.model.setting import Choice, Count, Duration, Flag, ListOf, Size, Text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_FILE = Path("/etc/gpuguard/gpuguard.toml")

_PATH = Text(r"/.*", "an absolute path")
_PATH_OR_NONE = Text(r"(/.*)?", 'an absolute path, or ""')
_UNIT = Text(r"[^/\s]+\.(service|scope)", 'a unit or a pattern that ends in .service or .scope, e.g. "ollama.service"')
_UNIT_OR_GROUP = Text(
    r"[^/\s]+\.(service|scope)|/\S+",
    'a unit or a pattern that ends in .service or .scope, or that of a control group, e.g. "/docker/*"',
)
_NONEMPTY = Text(r".+", "a text that is not empty")
_PROGRAM = ListOf(_NONEMPTY)
_LISTEN = Text(
    r"((\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/\[\]]+):\d{1,5}|unix:/.+|)",
    'a host and port ("127.0.0.1:10195", "[::1]:10195"), "unix:/a/path", or "" for no endpoint',
)
_BUS = Text(r"unix:(path|abstract)=[^,;]+", 'a D-Bus address such as "unix:path=/run/dbus/system_bus_socket"')


@dataclass(frozen=True)
class Guard(Table):
    """[guard]: what is done at all, and how often one looks. Times in seconds."""

    mode: str = setting("enforce", Choice(("enforce", "observe")))
    poll_interval: float = setting(5.0, Duration("100ms", "5m"))
    settle: float = setting(1.0, Duration("0s", "5m"))
    declare: bool = setting(default=True, kind=Flag())
    shield: bool = setting(default=False, kind=Flag())


@dataclass(frozen=True)
class CustomDevices(Table):
    """[[devices.custom]]: a device class of the site's own, by exactly one of its three marks.

    `drivers` are patterns of names in /proc/devices, `nodes` patterns of paths below /dev.
    """

    name: str = setting("", Text(r"[a-z][a-z0-9_-]{0,31}", "a name of small letters, digits, _ and -"))
    majors: tuple[int, ...] = setting((), ListOf(Count(1, MAX_MAJOR)))
    drivers: tuple[str, ...] = setting((), ListOf(Text(r"[^/\s]*[^/\s*?][^/\s]*", "a driver's name or pattern")))
    nodes: tuple[str, ...] = setting((), ListOf(Text(r"/dev/[^*?\[].*", 'a path or pattern such as "/dev/kgpu*"')))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong between the keys."""
        if not self.name:
            yield "name: missing"
        if self.name in BUILT_IN:
            yield f"name: {self.name} is a built-in class; name it in [devices] classes instead"
        if sum(map(bool, (self.majors, self.drivers, self.nodes))) != 1:
            yield "want exactly one of majors, drivers and nodes, and not an empty one"


@dataclass(frozen=True)
class Devices(Table):
    """[devices]: which devices are guarded."""

    classes: tuple[str, ...] = setting(("nvidia",), ListOf(Choice(tuple(BUILT_IN))))
    custom: tuple[CustomDevices, ...] = rows(CustomDevices)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong between the keys."""
        names = [custom.name for custom in self.custom]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"custom: the name {name} is there more than once"


@dataclass(frozen=True)
class Scopes(Table):
    """[scopes]: further units to guard, and scopes to leave alone; both are shell patterns."""

    units: tuple[str, ...] = setting((), ListOf(_UNIT))
    exclude: tuple[str, ...] = setting((), ListOf(_UNIT_OR_GROUP))


@dataclass(frozen=True)
class Backoff(Table):
    """[backoff]: `max_repairs` of one scope within `window` seconds, then a rest of `pause` seconds."""

    max_repairs: int = setting(5, Count(1, 1000))
    window: float = setting(60.0, Duration("100ms", "1d"))
    pause: float = setting(30.0, Duration("100ms", "1d"))


@dataclass(frozen=True)
class Escalate(Table):
    """[escalate]: a program to run when a repair has been impossible for `after` seconds; () is none."""

    after: float = setting(30.0, Duration("0s", "1d"))
    command: tuple[str, ...] = setting((), _PROGRAM)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong between the keys."""
        if self.command and not self.command[0].startswith("/"):
            yield "command: want the program's absolute path first, since a service has no useful PATH"


@dataclass(frozen=True)
class Metrics(Table):
    """[metrics]: the HTTP endpoint ("host:port", "unix:/path", or "") and the textfile; "" is none."""

    listen: str = setting("127.0.0.1:10195", _LISTEN)
    tls_cert: str = setting("", _PATH_OR_NONE)
    tls_key: str = setting("", _PATH_OR_NONE)
    client_ca: str = setting("", _PATH_OR_NONE)
    textfile: str = setting("", _PATH_OR_NONE)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong between the keys."""
        if bool(self.tls_cert) != bool(self.tls_key):
            yield "tls_cert, tls_key: want both or none"
        if self.client_ca and not self.tls_cert:
            yield "client_ca: wants tls_cert and tls_key too, since a client's certificate is asked for in TLS"
        port = self.listen.rpartition(":")[2]
        if port.isdecimal() and int(port) > (1 << 16) - 1:
            yield f"listen: want a port from 0 to 65535, not {port}"


@dataclass(frozen=True)
class Incidents(Table):
    """[incidents]: where the evidence is kept and how much: files, bytes, seconds."""

    dir: str = setting("/var/lib/gpuguard/incidents", _PATH)
    keep: int = setting(500, Count(1, 100_000))
    max_bytes: int = setting(64 << 20, Size("64KiB", "1TiB"))
    max_age: float = setting(30 * 86_400.0, Duration("1m", "3650d"))


@dataclass(frozen=True)
class Paths(Table):
    """[paths]: where the node's file systems and its bus are seen from here; `root` is where its unit files are."""

    root: str = setting("/", _PATH)
    cgroup: str = setting("/sys/fs/cgroup", _PATH)
    proc: str = setting("/proc", _PATH)
    dev: str = setting("/dev", _PATH)
    run: str = setting("/run/gpuguard", _PATH)
    bus: str = setting("unix:path=/run/dbus/system_bus_socket", _BUS)


@dataclass(frozen=True)
class Log(Table):
    """[log]: how and how much is logged."""

    format: str = setting("auto", Choice(("auto", "journal", "json", "console")))
    level: str = setting("info", Choice(("debug", "info", "warning", "error")))


@dataclass(frozen=True)
class Settings(Table):
    """All settings, one attribute per TOML table. The defaults are a good configuration."""

    guard: Guard = Guard()
    devices: Devices = Devices()
    scopes: Scopes = Scopes()
    backoff: Backoff = Backoff()
    escalate: Escalate = Escalate()
    metrics: Metrics = Metrics()
    incidents: Incidents = Incidents()
    paths: Paths = Paths()
    log: Log = Log()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], source: str = "the settings") -> Settings:
        """Check what a TOML parser returned. Raises ConfigError that lists all faults at once."""
        faults: list[str] = []
        settings = read(cls, mapping, faults)
        if faults:
            heading = f"{source}: " if len(faults) == 1 else f"{source}: {len(faults)} faults\n  "
            raise ConfigError(heading + "\n  ".join(faults))
        return settings

    def to_toml(self) -> str:
        """Return all settings as TOML that from_mapping reads back to the same."""
        return write(self)


def load(path: Optional[Path] = None) -> Settings:
    """Read a configuration file; without a path the default one, which need not exist.

    Raises ConfigError, also when a file that was named is missing.
    """
    data = _read(path)
    return Settings() if data is None else parse(data, str(path or DEFAULT_FILE))


def parse(data: bytes, source: str) -> Settings:
    """Return the settings of a TOML text. Raises ConfigError."""
    return Settings.from_mapping(_mapping(data, source), source)


def remains(path: Optional[Path] = None) -> Settings:
    """Return what a file that load() refuses says all the same: those of its tables that are good by themselves."""
    try:
        mapping = _mapping(_read(path) or b"", "")
    except ConfigError:  # load() has told
        return Settings()
    return Settings.from_mapping({name: table for name, table in mapping.items() if _good(name, table)})


def _good(name: str, table: object) -> bool:
    try:
        Settings.from_mapping({name: table})
    except ConfigError:
        return False
    return True


def _read(path: Optional[Path]) -> Optional[bytes]:
    file = path or DEFAULT_FILE
    try:
        return file.read_bytes()
    except FileNotFoundError:
        if path is None:
            return None
        raise ConfigError(f"{file}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def _mapping(data: bytes, source: str) -> Mapping[str, object]:
    try:
        mapping: Mapping[str, object] = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{source}: line {line}: not UTF-8 text, which TOML has to be") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from error
    return mapping
