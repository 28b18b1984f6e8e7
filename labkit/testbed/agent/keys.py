"""Remove the keys of a run that is over; its logs stay."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

SECRET: Final = (".key", "home.tar")
"""Endings of the names of files with keys: keys, and archives of launchers' folders that were never unpacked."""


def forget_keys(folder: Path) -> int:
    """Remove the keys below a folder, without following links; return their number."""
    n_gone = 0
    for _, _, names, handle in os.fwalk(folder, follow_symlinks=False):
        for name in names:
            if name.endswith(SECRET):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=handle)
                    n_gone += 1
    return n_gone
