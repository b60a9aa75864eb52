"""Run a program as on a kernel without a system call: `python without.py NAME PROGRAM…`; it fails with ENOSYS.

A seccomp filter, which children inherit: linux/filter.h, linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_NUMBERS = {"fanotify_init": {"x86_64": 300, "aarch64": 262}}
_LD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # seccomp_data.nr is the first word
_ERRNO, _ALLOW = 0x0005_0000, 0x7FFF_0000
_SET_SECCOMP, _MODE_FILTER = 22, 2


def main() -> None:
    """Install the filter and become the program."""
    name, *program = sys.argv[1:]
    number = _NUMBERS[name][os.uname().machine]
    code = struct.pack("=HBBI", _LD_NUMBER, 0, 0, 0)
    code += struct.pack("=HBBI", _JUMP_IF_EQUAL, 0, 1, number)
    code += struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    code += struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW)
    text = ctypes.create_string_buffer(code, len(code))
    filter_ = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_SECCOMP, _MODE_FILTER, filter_, 0, 0):
        raise SystemExit(f"without: seccomp: {os.strerror(ctypes.get_errno())}")
    os.execvp(program[0], program)  # noqa: S606 - becoming it is the point


if __name__ == "__main__":
    main()
