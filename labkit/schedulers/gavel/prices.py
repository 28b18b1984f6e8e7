"""What a GPU costs: dollars per GPU and hour by device type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from labkit.core.device_names import SLICE, slice_of
from labkit.core.errors import InputError
from labkit.core.resources import Floats

PRICES: Final = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
"""Dollars per GPU and hour of a public cloud, as in Gavel's evaluation."""

_EXPECTED: Final = "expected dollars per GPU and hour by device type, such as {'v100': 2.48, 'k80': 0.45}."


def refuse_odd_prices(prices: Any) -> None:
    """Raise if prices are no mapping of device types to numbers > 0.

    Raise InputError with the first price that cannot be one.
    """
    if not isinstance(prices, Mapping) or not prices:
        raise InputError(f"gavel: prices is {prices!r}; {_EXPECTED}")
    for kind, price in prices.items():
        number = isinstance(price, int | float) and not isinstance(price, bool)
        if not (isinstance(kind, str) and number and math.isfinite(price) and price > 0):
            raise InputError(f"gavel: the price of {kind!r} is {price!r}; {_EXPECTED}")


def prices_of(device_types: Sequence[str], prices: Mapping[str, float], *, policy: object) -> Floats:
    """Return the price of each device type, (T,); NaN where a policy that asks for none is not told one.

    A slice of MIG costs as large a part of what its GPU costs, unless it has a price of its own. Raise InputError if
    the policy is about cost, and a type has no price.
    """
    of_gpu = {kind: prices.get(SLICE.sub("", kind), math.nan) * (slice_of(kind) or 1.0) for kind in device_types}
    found = [prices.get(kind, of_gpu[kind]) for kind in device_types]
    unpriced = [kind for kind, price in zip(device_types, found, strict=True) if math.isnan(price)]
    if unpriced and getattr(policy, "wants_prices", False):
        name = f"gavel_{type(policy).__name__.lower()}"
        example = ", ".join(f"'{kind}': DOLLARS" for kind in device_types)
        raise InputError(
            f"{name}: no price is known for device type{'s' if len(unpriced) > 1 else ''} {', '.join(unpriced)}; give "
            f"dollars per GPU and hour: {name}(prices={{{example}}})."
        )
    return np.array(found)
