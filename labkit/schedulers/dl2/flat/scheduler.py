"""DL2 as published: a network over J jobs side by side gives one task after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.drafts import draft_of, placement_of
from labkit.schedulers.dl2.flat.form import Form, open_slot
from labkit.schedulers.dl2.flat.slots import BEST, DRAWN, decide, room
from labkit.schedulers.dl2.flat.weights import FlatWeights, load_flat


@dataclass(eq=False)
class Flat:
    """Give tasks one by one as DL2's own network says, by the rules of the paper or of the released code [1]_.

    Which rules, how many jobs it sees and whether jobs have parameter servers stands in the file of weights.

    Attributes
    ----------
    weights : str
        The path of a .safetensors file of `labkit train-policy dl2 --published`.
    quantum_s : float
        A session decides at least this often.
    draws : bool
        Draw actions by their chances, as the released code does; False: the most probable one.
    seed : int
        Of the draws.

    References
    ----------
    .. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021; the code is
       github.com/pengyanghua/DL2 at 2e54920.
    """

    knows_types: ClassVar[bool] = False

    weights: str
    quantum_s: float = 1200.0
    draws: bool = False
    seed: int = 0
    _policy: FlatWeights = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._policy = load_flat(self.weights)
        self._unused = room(0, self._policy.form)

    def unmet(self, jobs: Jobs) -> list[str]:
        """Return the models of some jobs that its training has not met; a run with such jobs has a note."""
        return [name for name in jobs.models if name not in self._policy.models]

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the tasks of all jobs that are there."""
        if not len(snapshot.jobs):
            return Placement.nothing()
        policy = self._policy
        refuse_other_jobs(policy.form, snapshot.table)
        batch = draft_of(snapshot, policy.models)
        rng = np.random.default_rng([self.seed, snapshot.number])
        open_slot(batch, 0, policy.form)
        how = DRAWN if self.draws else BEST
        decide(batch, 0, policy.slot_s, policy.form, policy.net, how, self._unused, rng)
        return placement_of(snapshot, batch.given[0])


def refuse_other_jobs(form: Form, jobs: Jobs) -> None:
    """Raise if a form has no actions for some jobs.

    Raises
    ------
    InputError
        It names the first one.
    """
    if form.all_reduce and (other := np.flatnonzero(jobs.max_ps > 0)).size:
        raise InputError(
            f"dl2: job {jobs.id[other[0]]} has parameter servers, and this network is for all-reduce jobs alone; "
            "expected max_ps = 0. Take weights that were trained without --all-reduce."
        )
    if form.released and (other := np.flatnonzero(~jobs.malleable)).size:
        raise InputError(
            f"dl2: job {jobs.id[other[0]]} is rigid, and the released code's rules give tasks one by one; expected "
            "jobs with max_workers above n_workers. Take weights that were trained by the paper's rules."
        )
