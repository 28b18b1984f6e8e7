"""MARL: several schedulers, each of a pod, that place workers and parameter servers task by task.

`published` is the system as it was published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.core.protocols import Scheduler
from labkit.schedulers.marl.published import PublishedMarl

__all__ = ["PublishedMarl"]


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of `marl`."""
    from labkit.schedulers import options_of

    return {"marl": (options_of(PublishedMarl) | {"published": True}, _build)}


def _build(*, published: bool = True, **options: Any) -> Scheduler:
    """Return MARL as it was published."""
    from labkit.core.errors import InputError

    if not published:
        raise InputError("marl: published is False; expected True: there is no other form here.")
    return PublishedMarl(**options)
