"""DL2: a policy that was trained (`policy`), its weights in files (`weights`), and the scheduler that decides by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.core.errors import InputError
from labkit.core.outside import reproduction
from labkit.core.protocols import Scheduler
from labkit.schedulers.dl2.scheduler import DL2
from labkit.schedulers.dl2.weights import Weights, load, shipped

__all__ = ["DL2", "Weights", "load", "shipped"]


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of `dl2`."""
    from labkit.schedulers import options_of

    return {"dl2": (options_of(DL2) | {"published": False, "draws": False}, _build)}


def _build(*, published: bool = False, draws: bool = False, **options: Any) -> Scheduler:
    """Return DL2 with the network that all jobs share, or with the one that was published."""
    if published:
        flat: Scheduler = reproduction("dl2").Flat(**{"weights": ""} | options, draws=draws)
        return flat
    if draws:
        raise InputError("dl2: draws is True, and published is False; only the published network draws its actions.")
    return DL2(**options)
