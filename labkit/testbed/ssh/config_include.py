"""Resolve `Include` of ~/.ssh/config, which paramiko ignores: replace it by the lines of the files."""

from __future__ import annotations

import glob
import os
import re
import shlex
from pathlib import Path

from labkit.core.errors import InputError

MAX_DEPTH = 16
"""As OpenSSH."""
LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*")
BLOCKS = ("host", "match")
EVERY = "Host *"


def expanded(path: Path, *, depth: int = 0) -> str:
    """Return a configuration with included files in place.

    After a file with blocks of its own, the block with the Include continues.

    Raises
    ------
    InputError
        If files include each other without end, or one with `Host` or `Match` is included inside of a block, where
        both would have to hold.
    OSError, UnicodeDecodeError
        If a file cannot be read.
    """
    if depth > MAX_DEPTH:
        raise InputError(f"{path} is included more than {MAX_DEPTH} files deep; does it include itself?")
    lines, block = [], EVERY
    for line in path.read_text("utf-8").splitlines():
        found = LINE.fullmatch(line)
        word = found[1].lower() if found else ""
        if word in BLOCKS:
            block = line
        if found is None or word != "include":
            lines.append(line)
            continue
        brought = [expanded(each, depth=depth + 1) for each in _meant(found[2])]
        if any(map(_has_blocks, brought)) and block != EVERY:
            raise InputError(
                f"{path}: 'Include {found[2]}' stands below '{block.strip()}' and brings Host or Match lines; labkit "
                'reads such a file only above the first Host. Move it there, or set config = "none" in [ssh].'
            )
        lines += [*brought, *([block] if any(map(_has_blocks, brought)) else [])]
    return "\n".join([*lines, ""])


def _meant(words: str) -> list[Path]:
    """Return the files that an Include names, found as ssh does; missing files are skipped."""
    found = []
    for word in shlex.split(words, comments=True):
        path = os.path.expandvars(os.path.expanduser(word))
        found += sorted(glob.glob(path if os.path.isabs(path) else os.path.join(os.path.expanduser("~/.ssh"), path)))
    return [Path(path) for path in found if os.path.isfile(path)]


def _has_blocks(text: str) -> bool:
    return any((found := LINE.fullmatch(line)) and found[1].lower() in BLOCKS for line in text.splitlines())
