"""What systemd-machined notes of a machine in /run/systemd/machines. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpuguard.errors import SpecError

_MAX_LINES = 64


@dataclass(frozen=True)
class Machine:
    """`unit` holds it: a scope, or the service that it runs in. `service` is the program that registered it."""

    name: str
    unit: str
    service: str
    container: bool

    @classmethod
    def parse(cls, text: str) -> Machine:
        """Read the file: lines NAME=value, the values escaped as in C (machined's machine_save). Raises SpecError."""
        values = {}
        for line in text.splitlines()[:_MAX_LINES]:
            name, equals, value = line.partition("=")
            if equals:
                values[name] = value.replace("\\\\", "\\")
        if "NAME" not in values:
            raise SpecError("it names no machine")
        # UNIT is for what is not a scope, from version 256 on.
        unit = values.get("SCOPE") or values.get("UNIT", "")
        return cls(values["NAME"], unit, values.get("SERVICE", ""), values.get("CLASS") == "container")
