"""From counts to device groups. To add a placer: a file here with a class that has `place` (labkit.core.Placer)."""

from labkit.placers.even import Even
from labkit.placers.first_fit import FirstFit
from labkit.placers.least_interference import LeastInterference
from labkit.placers.pack import Pack
from labkit.placers.spread import Spread

__all__ = ["Even", "FirstFit", "LeastInterference", "Pack", "Spread"]
