"""A recent rate: an amount per second in which older amounts weigh less."""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 20.0
"""Seconds after which the amount so far is halved, together with its time."""
LEAST_S: Final = 0.05
"""Shortest time in seconds that an amount is divided by."""


class Rate:
    """An amount per second.

    Examples
    --------
    >>> rate = Rate(now_s=0.0)
    >>> rate.add(30.0, now_s=10.0)
    >>> rate.per_s(10.0)
    3.0
    """

    __slots__ = ("_amount", "_begun_s")

    def __init__(self, *, now_s: float) -> None:
        self._amount, self._begun_s = 0.0, now_s

    def add(self, amount: float, *, now_s: float) -> None:
        """Add an amount."""
        age_s = now_s - self._begun_s
        if age_s > WINDOW_S:
            self._amount, self._begun_s = self._amount / 2, self._begun_s + age_s / 2
        self._amount += amount

    def per_s(self, now_s: float) -> float:
        """Return the amount per second."""
        return self._amount / max(now_s - self._begun_s, LEAST_S)
