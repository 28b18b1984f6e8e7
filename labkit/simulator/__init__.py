"""Backends without machines: virtual time (`Simulator`), the same as time passes (`Paced`), a recording (`Replay`)."""

from labkit.simulator.backend import Simulator
from labkit.simulator.disturbances import Faults, Losses, Overheads, Variation, loss_targets
from labkit.simulator.paced import Paced
from labkit.simulator.replay import Replay
from labkit.simulator.troubles import Troubles

__all__ = ["Faults", "Losses", "Overheads", "Paced", "Replay", "Simulator", "Troubles", "Variation", "loss_targets"]
