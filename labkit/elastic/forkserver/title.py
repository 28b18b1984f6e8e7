"""Change the command line and the environment of this process in /proc without a new program."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

PR_SET_NAME: Final = 15
PR_SET_MM: Final = 35
PR_SET_MM_MAP: Final = 14
_MAP: Final = struct.Struct("=12QII")
"""`struct prctl_mm_map` of prctl(2)."""
_FIELDS: Final = (26, 27, 45, 46, 47, 28)
"""Numbers of /proc/PID/stat [proc(5)]: code, code's end, data, data's end, heap, stack."""

_kept: list[mmap.mmap] = []
"""Memory from which the kernel reads command line and environment while this process lives."""


def show(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Set /proc/self/cmdline and /proc/self/environ to these arguments and variables.

    It needs no privilege [PR_SET_MM_MAP of prctl(2)], but a kernel with CONFIG_CHECKPOINT_RESTORE.

    Raises
    ------
    OSError
        If the kernel cannot do it.
    """
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    memory = mmap.mmap(-1, len(words) + len(variables) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(words) + len(variables)] = words + variables
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _point_to(at, at + len(words), at + len(words) + len(variables))
    _kept.append(memory)
    name(os.path.basename(argv[0]))


def _point_to(arguments: int, environment: int, end: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    said = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    code, code_end, data, data_end, heap, stack = (int(said[number - 3]) for number in _FIELDS)
    places = (code, code_end, data, data_end, heap, libc.sbrk(0), stack, arguments, environment, environment, end)
    card = _MAP.pack(*places, 0, 0, 0xFFFFFFFF)  # neither another auxiliary vector nor another program
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, card, ctypes.c_ulong(len(card)), 0):
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel does not let a process change its command line: {os.strerror(number)}")


def name(word: str) -> None:
    """Give this process a short name, as `top` shows it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, os.fsencode(word)[:15], 0, 0, 0)
