"""How much comes in a second, of late: what is long ago counts less and less."""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 20.0
"""After so many seconds what came until then counts half."""
LEAST_S: Final = 0.05
"""A rate is not told over less."""


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
        """Note that so much has come."""
        age_s = now_s - self._begun_s
        if age_s > WINDOW_S:
            self._amount, self._begun_s = self._amount / 2, self._begun_s + age_s / 2
        self._amount += amount

    def per_s(self, now_s: float) -> float:
        """Return how much comes in a second."""
        return self._amount / max(now_s - self._begun_s, LEAST_S)
