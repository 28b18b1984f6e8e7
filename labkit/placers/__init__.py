"""From counts to device groups. To add a placer: a file here with a class that has `place`, and its name below."""

from typing import Final

from labkit.core.errors import InputError, unknown
from labkit.core.outside import find, from_packages
from labkit.core.protocols import Placer
from labkit.placers.by_network import ByNetwork
from labkit.placers.even import Even
from labkit.placers.first_fit import FirstFit
from labkit.placers.least_allocated import LeastAllocated
from labkit.placers.least_interference import LeastInterference
from labkit.placers.machine_first import MachineFirst
from labkit.placers.pack import Pack
from labkit.placers.scored import BestFit, DotProduct, Fgd, GpuClustering, GpuPacking, Random
from labkit.placers.spread import Spread
from labkit.placers.whole_gang import WholeGang

__all__ = [
    "BestFit",
    "ByNetwork",
    "DotProduct",
    "Even",
    "Fgd",
    "FirstFit",
    "GpuClustering",
    "GpuPacking",
    "LeastAllocated",
    "LeastInterference",
    "MachineFirst",
    "Pack",
    "Random",
    "Spread",
    "WholeGang",
    "available",
    "make",
]

_PLACERS: Final[dict[str, type[Placer]]] = {
    "best_fit": BestFit,
    "by_network": ByNetwork,
    "dot_product": DotProduct,
    "even": Even,
    "fgd": Fgd,
    "first_fit": FirstFit,
    "gpu_clustering": GpuClustering,
    "gpu_packing": GpuPacking,
    "least_allocated": LeastAllocated,
    "least_interference": LeastInterference,
    "machine_first": MachineFirst,
    "pack": Pack,
    "random": Random,
    "spread": Spread,
    "whole_gang": WholeGang,
}


def available() -> list[str]:
    """Return the names of all placers."""
    return sorted({*_PLACERS, *from_packages("placer")})


def make(name: str) -> Placer:
    """Return a placer by name; one's own by `file.py:Class`, or an entry point of the group `labkit.placers`.

    >>> make("pack"), make("labkit.placers.pack:Pack")
    (Pack(), Pack())

    Raises
    ------
    InputError
        If there is none of that name; the message tells the nearest.
    """
    if name in _PLACERS:
        return _PLACERS[name]()
    if (found := find(name, what="placer")) is None:
        raise unknown("placer", name, available())
    placer = found() if isinstance(found, type) else found
    if not isinstance(placer, Placer):
        raise InputError(
            f"placer {name} is {placer!r:.60}; expected a class that has place(snapshot, gangs) -> Placement."
        )
    return placer
