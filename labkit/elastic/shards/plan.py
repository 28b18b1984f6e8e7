"""The settings of a shard service, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from labkit.core.errors import InputError

Poison = Literal["stop", "set_aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """The settings of a shard service, see `ShardService`."""

    n_samples: int
    epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    base_shard: int = 32
    lease_s: float = 3.0
    max_tries: int = 3
    overlap: bool = False
    poison: Poison = "stop"
    target_s: float = 3.0
    most_minibatches: int = 64

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            value: Any = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} is {value!r}; expected a whole number from {least}.")
        for name in ("lease_s", "target_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and isfinite(value)):
                raise InputError(f"{name} is {value!r}; expected seconds, above 0.")
        if self.poison not in ("stop", "set_aside"):
            raise InputError(f"poison is {self.poison!r}; expected 'stop' or 'set_aside'.")


_WHOLE = {"n_samples": 0, "epochs": 1, "seed": 0, "base_shard": 1, "max_tries": 1, "most_minibatches": 1}
