"""DL2: by default a rule on speeds that it learns online (`learned`), else a network (`scheduler`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.core.outside import reproduction
from labkit.core.protocols import Scheduler
from labkit.schedulers.dl2.learned import FILES, LearnedDL2
from labkit.schedulers.dl2.scheduler import DL2, SHIPPED
from labkit.schedulers.dl2.weights import Weights, load, shipped

__all__ = ["DL2", "LearnedDL2", "Weights", "load", "shipped"]

OF_A_NETWORK: Final = ("learns", "learned")
"""Options that only a network has: with one of them and no weights, the shipped networks decide."""


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of `dl2`."""
    from labkit.schedulers import options_of

    of_both = options_of(DL2) | options_of(LearnedDL2)
    return {"dl2": (of_both | {"published": False, "draws": False}, _build)}


def _build(*, published: bool = False, draws: bool = False, **options: Any) -> Scheduler:
    """Return DL2 in the form that its weights are for, or with the network that was published."""
    if published:
        flat: Scheduler = reproduction("dl2").Flat(**{"weights": ""} | options, draws=draws)
        return flat
    if draws:
        raise InputError("dl2: draws is True, and published is False; only the published network draws its actions.")
    asked = {name: value for name, value in options.items() if name not in OF_A_NETWORK or value}
    if any(name in asked for name in OF_A_NETWORK):
        asked.setdefault("weights", SHIPPED)
    return LearnedDL2(**asked) if _sees(asked.get("weights", LearnedDL2.weights)) else DL2(**asked)


def _sees(weights: str | Sequence[str]) -> bool:
    """Return whether weights are numbers, and not those of a network."""
    if not isinstance(weights, str):
        return False
    if weights in FILES.shipped():
        return True
    return Path(weights).suffix == ".safetensors" and FILES.is_of(Path(weights))
