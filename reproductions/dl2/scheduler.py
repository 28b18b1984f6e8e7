"""DL2 as published: its weights in files, and the scheduler that gives tasks as its network over J jobs says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.snapshot import Snapshot
from labkit.core.weights import Tensors, WeightsFiles, fault_of, names, other_names, seconds
from labkit.schedulers.dl2.drafts import draft_of, placement_of
from reproductions.dl2.policy import BEST, DRAWN, FlatNet, Form, decide, open_slot, room

FILES: Final = WeightsFiles(
    policy="dl2 as published",
    version="1",
    remedy="Train it: labkit train-policy dl2 --published.",
    of="weights of DL2's own network",
    other={"dl2": "Without published=True it may be what you want."},
)


@dataclass(frozen=True, eq=False)
class FlatWeights:
    """A trained network of the paper's form."""

    net: FlatNet
    form: Form
    """`net` and `form`: the network, and what it sees and may do."""
    models: tuple[str, ...]
    """(L,) names of models that it tells apart."""
    slot_s: float
    """Seconds of a slot in its training."""
    source: str
    """How it was made."""

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        FILES.write(
            path, self.net._asdict(), form=json.dumps(self.form._asdict()), models=json.dumps(self.models),
            slot_s=repr(self.slot_s), source=self.source,
        )  # fmt: skip


def load_flat(path: str | Path) -> FlatWeights:
    """Return weights from a file; InputError if it holds something else."""
    tensors, values = FILES.load(path, misfit=_fault, form=_form, models=names, slot_s=seconds, source=str)
    return FlatWeights(FlatNet(**tensors), *values)


def _form(text: str) -> Form:
    """Return a form; raise TypeError or ValueError if it is none."""
    form = Form(**json.loads(text))
    if not all(isinstance(value, int) for value in form):
        raise TypeError(text)
    return form


def _fault(tensors: Tensors, form: Form, models: tuple[str, ...], *_: object) -> str:
    n_models = len(models)
    if fault := other_names(tensors, FlatNet._fields):
        return fault
    if form.n_models != n_models:
        return f"its form is for {form.n_models} models; expected {n_models}, as it names"
    n, m = tensors["first_bias"].size, len(tensors["middle"])
    expected = {
        "first": (form.n_jobs * form.n_features, n), "first_bias": (n,), "middle": (m, n, n), "middle_bias": (m, n),
        "gain": (m + 1, n), "shift": (m + 1, n), "last": (n, form.n_actions), "last_bias": (form.n_actions,),
    }  # fmt: skip
    return fault_of(tensors, expected, why=f" for J = {form.n_jobs}, L = {n_models}")


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
        return placement_of(snapshot, batch.placed[0])


def refuse_other_jobs(form: Form, jobs: Jobs) -> None:
    """Raise if a form has no actions for some jobs.

    Raise InputError, which names the first one.
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
