"""Prices of GPUs as they are typed: dollars per GPU and hour by device type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.core.files import refuse_unreadable
from labkit.core.life import Traits
from labkit.core.protocols import Scheduler

_EXPECTED: Final = (
    "expected dollars per GPU and hour by device type, such as v100=2.48,a100=3.2, or a file of such lines"
)


def priced(scheduler: Scheduler, prices: Mapping[str, float] | None) -> Scheduler:
    """Return a scheduler with prices, if it is about cost and was given none of its own."""
    made: Any = scheduler
    own = getattr(made, "__dataclass_fields__", {}).get("prices")
    if prices is None or own is None or Traits.of(scheduler).pays is None:
        return scheduler
    usual = own.default_factory is MISSING or made.prices == own.default_factory()
    with_prices: Scheduler = replace(made, prices=dict(prices)) if usual else scheduler
    return with_prices


def prices_of(source: Mapping[str, float] | str | Path | None) -> dict[str, float] | None:
    """Return prices: themselves, of `type=dollars,...`, or of a file with `type=dollars` or `type,dollars` a line.

    Raise InputError if it is neither; the message names the part that cannot be read.

    >>> prices_of("v100=2.48, a100=3.2")
    {'v100': 2.48, 'a100': 3.2}
    """
    if source is None:
        return None
    told = source.items() if isinstance(source, Mapping) else ()
    text = ",".join(f"{kind}={price}" for kind, price in told) if told else str(source)
    parts = text.split(",") if "=" in text and not Path(text).exists() else _lines(text)
    parts = [part.strip() for part in parts if part.strip()]
    _refuse_twice(parts)
    prices: dict[str, float] = {}
    for i, part in enumerate(parts):
        kind, _, price = (word.strip() for word in part.partition("="))
        try:
            prices[kind] = float(price)
        except ValueError:
            if i == 0 and "=" in part and not any(letter.isdigit() for letter in price):  # a heading
                continue
            raise InputError(f"--prices: '{part}' is no price; {_EXPECTED}.") from None
        if not (kind and 0 < prices[kind] < float("inf")):
            raise InputError(f"--prices: '{part}' is no price; {_EXPECTED}.")
    if not prices:
        raise InputError(f"--prices {text}: it holds no price; {_EXPECTED}.")
    return prices


def _lines(file: str) -> list[str]:
    """Return the lines of a file, each with a price or nothing."""
    if not file.strip("{} "):
        raise InputError(f"--prices: there is none; {_EXPECTED}.")
    refuse_unreadable(Path(file), expected="prices by device type", error=InputError)
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"--prices {file}: there is no such file; {_EXPECTED}.") from None
    return [line.split("#")[0].replace(",", "=") for line in lines]


def _refuse_twice(parts: list[str]) -> None:
    kinds = [part.partition("=")[0].strip() for part in parts]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise InputError(f"--prices: {twice} has {kinds.count(twice)} prices; leave one.")
