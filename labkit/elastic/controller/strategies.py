"""The ways in which a job's members and blocks can change while it trains."""

from __future__ import annotations

from typing import Final, Literal, get_args

from labkit.core.errors import unknown

Strategy = Literal["handover", "suspend", "checkpoint"]
"""Blocks move while training goes on, or while workers pause; or all members restart from a checkpoint."""

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)


def checked_strategy(name: str) -> Strategy:
    """Return the strategy of this name.

    Raises
    ------
    InputError
        If there is none.
    """
    for strategy in STRATEGIES:
        if strategy == name:
            return strategy
    raise unknown("strategy", name, STRATEGIES)
