"""Schedulers of a cluster in pods: one for each pod, which forwards what does not fit there (`partitioned`).

The others are its names with a placer: one more is one more line in `NAMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from labkit import placers
from labkit.core.protocols import Placer, Scheduler
from labkit.placers import Even, LeastAllocated, LeastInterference, MachineFirst, Spread, WholeGang
from labkit.schedulers.pods.partitioned import Partitioned

__all__ = ["Partitioned", "recipes"]

NAMES: Final[dict[str, tuple[Callable[[], Placer], bool]]] = {
    "even": (partial(Even, keep_order=True), False),
    "even_pods": (partial(Even, keep_order=True), True),
    "kubernetes": (LeastAllocated, True),
    "least_interference": (LeastInterference, True),
    "load_balance": (Spread, True),
    "tetris_pods": (MachineFirst, True),
    "whole_gang": (WholeGang, True),
}
"""Of each name: the placer, and whether each pod has a scheduler of its own."""


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of `partitioned`, and of each name that has a placer of its own."""
    options = {"forward": "most_free"}
    found: dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]] = {
        "partitioned": ({"placer": "even", "pods": True} | options, _partitioned)
    }
    for name, (made, pods) in NAMES.items():
        found[name] = ({"pods": pods} | options, partial(_named, made, pods))
    return found


def _named(make_placer: Callable[[], Placer], in_pods: bool, *, pods: bool | None = None, **options: Any) -> Scheduler:
    return Partitioned(make_placer(), pods=in_pods if pods is None else pods, **options)


def _partitioned(*, placer: Placer | str = "even", **options: Any) -> Scheduler:
    made = placers.make(placer) if isinstance(placer, str) else placer
    return Partitioned(Even(keep_order=True) if made == Even() else made, **options)
