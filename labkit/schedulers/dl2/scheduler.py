"""DL2: a network that was trained says, slot by slot, which job gets a worker or a parameter server next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.drafts import draft_of, placement_of
from labkit.schedulers.dl2.policy import BEST, NOTHING, decide
from labkit.schedulers.dl2.weights import Weights, load

UNUSED = np.random.default_rng(0)
"""Nothing is drawn where the most probable action is taken."""


@dataclass(eq=False)
class DL2:
    """Give tasks one by one, each to the job to which it is worth most by a network that learned from simulations.

    It is DL2 [1]_ with a network that all jobs share, in place of one that sees a fixed number of jobs side by side.
    Each slot begins with nothing: by arrival, every job gets a worker and a parameter server, a rigid job its whole
    gang; then the most probable action is taken, again and again, until nothing finds room or stopping is it.
    It sees of a job its model, the epochs that it declared and that are left, its age, for how many slots it ran and
    what it holds; of the cluster its size and how many jobs of each model are there. It is told no speeds.

    Tasks go to the first device group with room, as in its training; jobs that hold other tasks than before are moved.

    Attributes
    ----------
    weights : str
        A name of `labkit.schedulers.dl2.shipped()`, or the path of a .safetensors file of `labkit train-policy`.
    quantum_s : float
        A session decides at least this often.

    References
    ----------
    .. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021.
    """

    knows_types: ClassVar[bool] = False

    weights: str = "dl2"
    quantum_s: float = 1200.0
    _policy: Weights = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._policy = load(self.weights)

    def unmet(self, jobs: Jobs) -> list[str]:
        """Return the models of some jobs that its training has not met; a run with such jobs has a note."""
        return [name for name in jobs.models if name not in self._policy.models]

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the tasks of all jobs that are there."""
        if not len(snapshot.jobs):
            return Placement.nothing()
        batch = draft_of(snapshot, self._policy.models)
        decide(batch, 0, self._policy.slot_s, self._policy.net, BEST, NOTHING, UNUSED)
        return placement_of(snapshot, batch)
