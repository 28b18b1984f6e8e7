"""MARL: placement by several schedulers, each of a pod, that learned what neighbours and the network cost.

`network` is the policy, `candidates` what it weighs, `weights` its files, `scheduler` decides by it; `lookahead` is the
oracle that taught it, and `published` the system as it was published.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from labkit.core.errors import InputError
from labkit.core.protocols import Scheduler
from labkit.schedulers.marl.lookahead import LookAheadPods
from labkit.schedulers.marl.scheduler import Marl
from labkit.schedulers.marl.weights import Weights, load, shipped

__all__ = ["LookAheadPods", "Marl", "Weights", "load", "shipped"]


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builders of `marl` and `look_ahead_pods`."""
    from labkit.schedulers import options_of

    return {
        "marl": (options_of(Marl) | {"published": False}, _build),
        "look_ahead_pods": (options_of(LookAheadPods), LookAheadPods),
    }


def _build(*, published: bool = False, **options: Any) -> Scheduler:
    """Return the policy, or the system as it was published."""
    if not published:
        return Marl(**options)
    for name in ("forwards", "waits"):
        if name in options:
            raise InputError(f"marl: {name} is {options[name]}, and published is True; only ours has it.")
    try:
        made: Scheduler = import_module("labkit.schedulers.marl.published").Published(**options)
    except ModuleNotFoundError as error:
        raise InputError(f"marl(published=True) needs {error.name}; pip install labkit[lab], or leave it out.") from None
    return made
