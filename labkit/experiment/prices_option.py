"""Prices of GPUs as they are typed: dollars per GPU and hour by device type."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labkit.core.errors import InputError
from labkit.core.files import refuse_unreadable

_EXPECTED: Final = (
    "expected dollars per GPU and hour by device type, such as v100=2.48,a100=3.2, or a file of such lines"
)


def prices_of(text: str) -> dict[str, float]:
    """Return prices from `type=dollars,...`, or from a file with `type=dollars` or `type,dollars` on each line.

    >>> prices_of("v100=2.48, a100=3.2")
    {'v100': 2.48, 'a100': 3.2}

    Raises
    ------
    InputError
        If it is neither; the message names the part that cannot be read.
    """
    if "=" in text and not Path(text).exists():
        parts = text.split(",")
    else:
        refuse_unreadable(Path(text), expected="prices by device type", error=InputError)
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise InputError(f"--prices {text}: there is no such file; {_EXPECTED}.") from None
        parts = [line.split("#")[0].replace(",", "=") for line in lines]
    told = [part.strip() for part in parts if part.strip()]
    _refuse_twice(told)
    prices: dict[str, float] = {}
    for i, part in enumerate(told):
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


def _refuse_twice(parts: list[str]) -> None:
    kinds = [part.partition("=")[0].strip() for part in parts]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise InputError(f"--prices: {twice} has {kinds.count(twice)} prices; leave one.")
