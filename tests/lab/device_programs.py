"""Device programs from rules, in the shapes that those who write them give them.

Assembled after what was seen on running nodes (runc 1.1.5 under Docker and Podman, systemd 252) and after what the
sources of older runc, of crun, of LXC's and of libnvidia-container's filters say that they emit.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence

from gpuguard.model.rule import CHAR, Access, Rule

# linux/bpf.h, linux/bpf_common.h: class | operation | source.
ALU32, ALU64, JMP, JMP32 = 0x04, 0x07, 0x05, 0x06
AND, RSH, MOV = 0x50, 0x70, 0xB0
JA, JEQ, JSET, JNE = 0x00, 0x10, 0x40, 0x50
REG = 0x08
LDXW, LDXH, EXIT, LDDW = 0x61, 0x69, 0x95, 0x18

CONTEXT, TYPE, ACCESS, MAJOR, MINOR = 1, 2, 3, 4, 5  # registers, as all the shapes use them but `varied`
_TYPES = {"b": 1, CHAR: 2}


def instruction(opcode: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """Return one instruction; the immediate may be given as an unsigned number."""
    return struct.pack("<BBhI", opcode, dst | src << 4, offset, immediate & 0xFFFFFFFF)


def number(register: int, value: int) -> bytes:
    """Return the two slots that put a 64-bit number into a register."""
    return instruction(LDDW, register, immediate=value) + instruction(0, immediate=value >> 32)


def answer(allow: bool, kind: int = ALU32) -> bytes:
    """Return the end of a program: yes or no."""
    return instruction(kind | MOV, 0, immediate=int(allow)) + instruction(EXIT)


def length(code: bytes) -> int:
    """Return the number of instructions."""
    return len(code) // 8


# A test is what comes before its jump, and the jump; it jumps when the rule does not fit.
Jump = tuple[int, int, int, int]
Test = tuple[bytes, Jump]


def block(tests: Sequence[Test], body: bytes) -> bytes:
    """Return code that runs `body` when no test jumps, and ends behind it otherwise."""
    code = body
    for before, (opcode, dst, src, immediate) in reversed(tests):
        code = before + instruction(opcode, dst, src, length(code), immediate) + code
    return code


HEADER = (
    instruction(LDXW, TYPE, CONTEXT)
    + instruction(ALU32 | AND, TYPE, immediate=0xFFFF)
    + instruction(LDXW, ACCESS, CONTEXT)
    + instruction(ALU32 | RSH, ACCESS, immediate=16)
    + instruction(LDXW, MAJOR, CONTEXT, 4)
    + instruction(LDXW, MINOR, CONTEXT, 8)
)
# Before runc 1.0 and systemd 240, and in libnvidia-container to this day: half a word for the type.
OLD_HEADER = instruction(LDXH, TYPE, CONTEXT) + HEADER[16:]


def _type(rule: Rule) -> list[Test]:
    return [(b"", (JMP | JNE, TYPE, 0, _TYPES[rule.kind]))]


def _access(rule: Rule, scratch: int = CONTEXT) -> list[Test]:
    if rule.access == Access.RWM:
        return []
    masked = instruction(ALU32 | MOV | REG, scratch, ACCESS) + instruction(
        ALU32 | AND, scratch, immediate=int(rule.access)
    )
    return [(masked, (JMP | JNE | REG, scratch, ACCESS, 0))]


def _numbers(rule: Rule) -> list[Test]:
    wanted = ((MAJOR, rule.major), (MINOR, rule.minor))
    return [(b"", (JMP | JNE, register, 0, value)) for register, value in wanted if value is not None]


def runc(rules: Iterable[Rule], header: bytes = HEADER, *, allow: bool = True) -> bytes:
    """Return what runc makes of a list of rules; without `allow`, all is allowed but what the rules say."""
    blocks = [block(_type(rule) + _access(rule) + _numbers(rule), answer(allow)) for rule in rules]
    return header + b"".join(blocks) + answer(not allow)


def runc_rc93(rules: Iterable[Rule]) -> bytes:
    """Return what runc 1.0.0-rc93 makes of a list of rules: an access passes when any part of it is given."""
    blocks = []
    for rule in rules:
        access = [(before, (JMP | JEQ, CONTEXT, 0, 0)) for before, _ in _access(rule)]
        blocks.append(block(_type(rule) + access + _numbers(rule), answer(allow=True)))
    return HEADER + b"".join(blocks) + answer(allow=False)


def crun(rules: Iterable[tuple[Rule, bool]]) -> bytes:
    """Return what crun makes of an OCI spec's rules and whether they allow: the last one that fits decides."""
    blocks = [
        block(_type(rule) + _access(rule) + _numbers(rule), answer(allow, ALU64))
        for rule, allow in reversed(list(rules))
    ]
    return HEADER + b"".join(blocks) + answer(allow=False, kind=ALU64)


def hook(program: bytes, rules: Iterable[Rule]) -> bytes:
    """Return what libnvidia-container makes of an attached program: one more prefix for each device."""
    for rule in rules:
        tests = _type(rule) + _access(rule, scratch=TYPE) + _numbers(rule)
        program = OLD_HEADER + block(tests, answer(allow=True)) + program
    return program


def systemd(rules: Iterable[Rule], header: bytes = HEADER) -> bytes:
    """Return what systemd makes of DeviceAllow: the access comes first, and all ways out end in one exit."""
    deny = instruction(ALU64 | MOV, 0, immediate=0) + instruction(JMP | JA, offset=1)
    code = deny
    entries = list(rules)
    if not entries:
        return answer(allow=False, kind=ALU64)
    for rule in reversed(entries):
        allow = instruction(JMP | JA, offset=length(code))
        code = block(_access(rule) + _type(rule) + _numbers(rule), allow) + code
    return header + code + answer(allow=True, kind=ALU64)


def varied(rules: Iterable[Rule], choose: random.Random) -> bytes:
    """Return a program that nobody writes but the kernel takes: other registers, orders, widths and comparisons."""
    return _Varied(choose).program(rules)


class _Varied:
    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        registers = choose.sample(range(2, 10), 6)
        self._type, self._access, self._major, self._minor, self._scratch, self._other = registers

    def program(self, rules: Iterable[Rule]) -> bytes:
        blocks = [block(self._tests(rule), self._answer(allow=True)) for rule in rules]
        return self._header() + b"".join(blocks) + self._answer(allow=False)

    def _header(self) -> bytes:
        choose = self._choose.choice
        context = CONTEXT
        code = b""
        if choose([True, False]):
            context = 0
            code = instruction(ALU64 | MOV | REG, 0, CONTEXT)
        word = instruction(LDXW, self._type, context)
        types = [
            instruction(LDXH, self._type, context),
            word + instruction(choose([ALU32, ALU64]) | AND, self._type, immediate=0xFFFF),
        ]
        accesses = [
            instruction(LDXH, self._access, context, 2),
            instruction(LDXW, self._access, context)
            + instruction(choose([ALU32, ALU64]) | RSH, self._access, immediate=16),
        ]
        loads = [
            choose(types),
            choose(accesses),
            instruction(LDXW, self._major, context, 4),
            instruction(LDXW, self._minor, context, 8),
        ]
        self._choose.shuffle(loads)
        return code + b"".join(loads)

    def _tests(self, rule: Rule) -> list[Test]:
        tests = [self._differs(self._type, _TYPES[rule.kind])]
        if rule.major is not None:
            tests.append(self._differs(self._major, rule.major))
        if rule.minor is not None:
            tests.append(self._differs(self._minor, rule.minor))
        if rule.access != Access.RWM:
            tests.append(self._exceeds(rule.access))
        self._choose.shuffle(tests)
        return tests

    def _differs(self, register: int, value: int) -> Test:
        wide = self._choose.choice([JMP, JMP32])
        return self._choose.choice(
            [
                (b"", (wide | JNE, register, 0, value)),
                (number(self._other, value), (wide | JNE | REG, register, self._other, 0)),
                (number(self._other, value), (wide | JNE | REG, self._other, register, 0)),
                (instruction(wide | JEQ, register, 0, 1, value), (JMP | JA, 0, 0, 0)),
            ]
        )

    def _exceeds(self, access: Access) -> Test:
        rest = int(Access.RWM & ~access)
        masked = instruction(ALU32 | MOV | REG, self._scratch, self._access)
        inside = instruction(ALU64 | AND, self._scratch, immediate=int(access))
        outside = instruction(ALU32 | AND, self._scratch, immediate=rest)
        return self._choose.choice(
            [
                (masked + inside, (JMP | JNE | REG, self._scratch, self._access, 0)),
                (masked + outside, (JMP | JNE, self._scratch, 0, 0)),
                (b"", (self._choose.choice([JMP, JMP32]) | JSET, self._access, 0, rest)),
            ]
        )

    def _answer(self, *, allow: bool) -> bytes:
        return self._choose.choice(
            [
                answer(allow),
                answer(allow, ALU64),
                number(0, int(allow)) + instruction(EXIT),
                number(self._scratch, int(allow))
                + instruction(ALU64 | MOV | REG, 0, self._scratch)
                + instruction(EXIT),
            ]
        )
