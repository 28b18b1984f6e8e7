"""MARL: placement by several schedulers, each of a pod, that learned what neighbours and the network cost.

`network` is the policy, `candidates` what it weighs, `weights` its files, `scheduler` decides by it; `lookahead` is the
oracle that taught it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.core.errors import InputError
from labkit.core.outside import from_packages, reproduction
from labkit.core.protocols import Scheduler
from labkit.schedulers.marl.lookahead import LookAheadPods
from labkit.schedulers.marl.scheduler import Marl
from labkit.schedulers.marl.weights import Weights, load, shipped

__all__ = ["LookAheadPods", "Marl", "Weights", "load", "shipped"]


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builders of `marl` and `look_ahead_pods`."""
    from labkit.schedulers import options_of

    theirs = options_of(reproduction("marl").PublishedMarl) if "marl" in from_packages("reproduction") else {}
    return {
        "marl": (theirs | options_of(Marl) | {"published": False}, _build),
        "look_ahead_pods": (options_of(LookAheadPods), LookAheadPods),
    }


def _build(*, published: bool = False, **options: Any) -> Scheduler:
    """Return the policy, or the system as it was published."""
    from labkit.schedulers import options_of

    kind: Callable[..., Scheduler] = reproduction("marl").PublishedMarl if published else Marl
    if not published:
        options.pop("seed", None)  # sweeps give one to schedulers that draw, and the policy never does
    for name in options:
        if name not in options_of(kind):
            other = "False" if published else "True"
            raise InputError(f"marl: {name} is {options[name]!r}, and published is {published}; it needs {other}.")
    return kind(**options)
