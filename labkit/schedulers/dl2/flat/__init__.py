"""DL2's own network: what it sees (`form`), how it decides (`slots`), explores, and is kept in files (`weights`)."""

from labkit.schedulers.dl2.flat.form import Form
from labkit.schedulers.dl2.flat.scheduler import Flat
from labkit.schedulers.dl2.flat.weights import FlatWeights, load_flat

__all__ = ["Flat", "FlatWeights", "Form", "load_flat"]
