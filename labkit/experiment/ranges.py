"""What a search may give to an option of a scheduler: a range of numbers, or a list of values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from labkit.core.calls import literal
from labkit.core.errors import InputError
from labkit.core.text import split_names

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

EXPECTED = "NAME=LOW:HIGH, NAME=LOW:HIGH:log, or NAME=A,B,..., such as quantum_s=60:3600:log or placer=pack,spread"
Value = str | int | float | bool | None


@dataclass(frozen=True)
class Range:
    """The values that an option may have.

    Attributes
    ----------
    name : str
        Of the option.
    low, high : float
        Of a range, both included; whole numbers are searched where both are whole.
    log : bool
        Factors count in a range, not differences.
    values : tuple
        Of a list; () in a range.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    values: tuple[Value, ...] = ()

    @classmethod
    def read(cls, text: str) -> Range:
        """Return the range as it was typed.

        >>> Range.read("quantum_s=60:3600:log"), Range.read("placer=pack,spread").values
        (Range(name='quantum_s', low=60, high=3600, log=True, values=()), ('pack', 'spread'))

        Raises
        ------
        InputError
            If it cannot be read, or a range is empty.
        """
        name, equals, rest = (part.strip() for part in text.partition("="))
        if not (name.isidentifier() and equals and rest):
            raise InputError(f"--param '{text}' cannot be read; expected {EXPECTED}.")
        if ":" not in rest:
            return cls(name, values=tuple(literal(value) for value in split_names(rest)))
        low, high, *scale = (literal(part.strip()) for part in rest.split(":"))
        if not (_is_number(low) and _is_number(high)) or scale not in ([], ["log"]):
            raise InputError(f"--param '{text}' cannot be read; expected {EXPECTED}.")
        if low >= high or (scale and low <= 0):
            raise InputError(
                f"--param '{text}' is empty; expected a lower end{' > 0' * bool(scale)} below the upper one."
            )
        return cls(name, low, high, bool(scale))

    def fitting(self, own: Any) -> Range:
        """Return the range for an option that has such a value by itself: fractions are searched where it has one."""
        return replace(self, low=float(self.low), high=float(self.high)) if isinstance(own, float) else self

    def holds(self, value: Value) -> bool:
        """Return whether a value may be proposed."""
        if self.values:
            return any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in self.values)
        return _is_number(value) and self.low <= float(value or 0) <= self.high

    def at_edge(self, value: Value) -> bool:
        """Return whether a value is within a fiftieth of an end of a range: what is better may lie beyond."""
        if self.values or not _is_number(value):
            return False
        scaled = [float(x or 0) for x in (self.low, value, self.high)]
        if self.log:
            from math import log

            scaled = [log(x) for x in scaled]
        low, here, high = scaled
        return min(here - low, high - here) <= 0.02 * (high - low)

    def distribution(self) -> BaseDistribution:
        """Return the distribution that Optuna draws from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.values:
            return CategoricalDistribution(self.values)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
