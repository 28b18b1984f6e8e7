"""Parameters of runs as they are typed: NAME=A,B,..."""

from __future__ import annotations

from typing import Any

from labkit.core.calls import literal
from labkit.core.errors import InputError
from labkit.core.text import split_names


def parameter(text: str) -> tuple[str, list[Any]]:
    """Return the name and the values of a parameter.

    >>> parameter("placer=pack,spread"), parameter("arrival_rate=1,1.5")
    (('placer', ['pack', 'spread']), ('arrival_rate', [1, 1.5]))
    """
    name, equals, values = text.partition("=")
    if not (equals and name.strip().isidentifier() and values.strip()):
        raise InputError(f"--set '{text}' cannot be read; expected NAME=A,B,..., such as placer=pack,spread.")
    if name.strip() in ("trace", "cluster", "scheduler", "schedulers", "seed", "seeds"):
        raise InputError(f"--set '{text}': {name.strip()} has an option of its own; see `labkit sweep --help`.")
    return name.strip(), [literal(value) for value in split_names(values)]
