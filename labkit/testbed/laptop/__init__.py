"""The laptop testbed: real SSH servers on this machine, with the same inventory as real machines."""

from labkit.testbed.laptop.bed import Bed, HostStatus, down

__all__ = ["Bed", "HostStatus", "down"]
