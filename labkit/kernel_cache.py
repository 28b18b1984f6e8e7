"""Keep compiled kernels where they are found again, and only as long as their sources are the same.

numba's own cache looks at the file of a kernel and not at those of the kernels that it calls, so after an update it may
run an old mixture. Here the cache's folder is named after the contents of all files that hold kernels.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

KEPT_DAYS = 14


def root() -> Path:
    """Return the folder of all of labkit's kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "kernels"


def folder() -> Path:
    """Return the folder for kernels compiled from the sources as they are now."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text:
            digest.update(text)
    return root() / digest.hexdigest()[:16]


def use() -> None:
    """Tell numba to keep its kernels there, unless the user named a folder or there is no place to write."""
    try:
        named = os.environ.get("NUMBA_CACHE_DIR")
        if named and Path(named).parent != root():  # not one that a parent process of ours set
            return
        cache = folder()
        fresh = not cache.exists()
        cache.mkdir(parents=True, exist_ok=True)
        os.utime(cache)
        if fresh:
            _forget_old(cache.parent)
    except (OSError, RuntimeError):  # read-only or no home: numba keeps its kernels beside the sources
        return
    os.environ["NUMBA_CACHE_DIR"] = str(cache)
    if "numba" in sys.modules:  # it has read its environment already
        sys.modules["numba"].config.CACHE_DIR = str(cache)


def _forget_old(root: Path) -> None:
    """Delete caches that were not used for two weeks."""
    for old in root.iterdir():
        if time.time() - old.stat().st_mtime > KEPT_DAYS * 86400:  # noqa: TID251 - compared with a file's date
            shutil.rmtree(old, ignore_errors=True)
