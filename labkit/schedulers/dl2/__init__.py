"""DL2: a policy that was trained (`policy`), its weights in files (`weights`), and the scheduler that decides by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.core.protocols import Scheduler
from labkit.schedulers.dl2.scheduler import DL2
from labkit.schedulers.dl2.weights import Weights, load, shipped

__all__ = ["DL2", "Weights", "load", "shipped"]


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of `dl2`."""
    from labkit.schedulers import options_of

    return {"dl2": (options_of(DL2), DL2)}
