"""Slurm's trackable resources as text: cpu=8,mem=64G,node=1,gres/gpu=4,gres/gpu:a100=4."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_ITEM: Final = re.compile(r"([a-z]+(?:/[^=,]+)?)=(\d{1,15}(?:\.\d{1,9})?)([KMGTP]?)")
_SIZES: Final = {"": 1 / 1024, "K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0, "P": 1024.0**2}
_COUNTS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_GPU: Final = "gres/gpu"


def read_tres(text: str) -> dict[str, float] | None:
    """Return amounts by name, memory in GB (memory without a unit is in MB); None if it cannot be read.

    >>> read_tres("cpu=8,mem=64G,gres/gpu:a100=4")
    {'cpu': 8.0, 'mem': 64.0, 'gres/gpu:a100': 4.0}
    """
    amounts: dict[str, float] = {}
    for item in filter(None, text.strip().split(",")):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            return None
        name, number, unit = match.groups()
        amounts[name] = float(number) * (_SIZES if name == "mem" else _COUNTS)[unit]
    return amounts


def gpus_of(amounts: Mapping[str, float]) -> tuple[int, str]:
    """Return the number of GPUs, and the type that most of them are of; "" where none is named.

    `gres/gpu` counts GPUs of all types; where the cluster tracks types alone, they are added up.

    >>> gpus_of({"gres/gpu": 4, "gres/gpu:a100": 4}), gpus_of({"gres/gpu:v100": 2}), gpus_of({"cpu": 2})
    ((4, 'a100'), (2, 'v100'), (0, ''))
    """
    typed = {name.partition(":")[2]: n for name, n in amounts.items() if name.startswith(f"{_GPU}:") and n > 0}
    n = amounts.get(_GPU, 0) or sum(typed.values())
    return int(n), max(typed, key=lambda name: typed[name]) if typed and n else ""
