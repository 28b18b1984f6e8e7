"""From counts to device groups. To add a placer: a file here with a class that has `place` (labkit.core.Placer)."""

from typing import Final

from labkit.core.errors import unknown
from labkit.core.protocols import Placer
from labkit.placers.by_network import ByNetwork
from labkit.placers.even import Even
from labkit.placers.first_fit import FirstFit
from labkit.placers.least_interference import LeastInterference
from labkit.placers.pack import Pack
from labkit.placers.spread import Spread

__all__ = ["ByNetwork", "Even", "FirstFit", "LeastInterference", "Pack", "Spread", "available", "make"]

_PLACERS: Final[dict[str, type[Placer]]] = {
    "by_network": ByNetwork,
    "even": Even,
    "first_fit": FirstFit,
    "least_interference": LeastInterference,
    "pack": Pack,
    "spread": Spread,
}


def available() -> list[str]:
    """Return the names of all placers."""
    return sorted(_PLACERS)


def make(name: str) -> Placer:
    """Return a placer by name.

    >>> make("pack")
    Pack()

    Raises
    ------
    InputError
        If there is none of that name; the message tells the nearest.
    """
    if name not in _PLACERS:
        raise unknown("placer", name, _PLACERS)
    return _PLACERS[name]()
