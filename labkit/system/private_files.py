"""Files that only their owner can read, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file of mode 0600 atomically; OSError leaves the former one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
