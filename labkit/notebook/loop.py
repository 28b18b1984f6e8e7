"""The kernel's loop, and errors in a line: what the parts of the notebook share."""

from __future__ import annotations

import asyncio
import traceback

from labkit.core.errors import LabkitError


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def one_line(error: BaseException) -> str:
    """Return what went wrong in one line; for what labkit did not raise on purpose, with the place.

    >>> from labkit.core.errors import InputError
    >>> one_line(InputError("unknown cluster 'dem'."))
    "unknown cluster 'dem'."
    """
    said = " ".join(str(error).split())
    if isinstance(error, LabkitError):
        return said
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if frame.name == "schedule"), frames[-1] if frames else None)
    return f"{type(error).__name__}: {said}" + (f" (in {place.name}, line {place.lineno})." if place else "")
