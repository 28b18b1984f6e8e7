"""The exit code that a task wrote itself: for the case that no process saw it end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from labkit.testbed.agent.places import RESULT, open_file
from labkit.testbed.agent.wire import Refusal

LARGEST: Final = 1 << 20


def code_of(folder: Path, task: str) -> int | None:
    """Return `code` of result.json in the folder of a task, or None."""
    try:
        file = open_file(folder, [task, RESULT])
    except Refusal:
        return None
    if file is None:
        return None
    try:
        result = json.loads(os.read(file, LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(file)
    code = result.get("code") if isinstance(result, dict) else None
    return code if type(code) is int and -(2**31) <= code < 2**31 else None
