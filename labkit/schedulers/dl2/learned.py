"""DL2 that sees: the rule of `slot_aware` on speeds that it learns online, with numbers that were trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.events import Doubt
from labkit.core.life import Context, begin
from labkit.core.placement import Placement
from labkit.core.protocols import Placer, Scheduler
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.core.weights import Tensors, WeightsFiles, fault_of, mapping, other_names
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.dl2.beliefs import BelievedSpeeds, Numbers, numbers_of
from labkit.schedulers.dl2.monitor import Monitor
from labkit.schedulers.dl2.scheduler import fallback_of
from labkit.schedulers.dl2.weights import KEY
from labkit.schedulers.marginal_gain import allocate, by_urgency, penalties
from labkit.schedulers.slot_aware import slots_to_end

LOOK_AHEAD: Final = 6
"""Most tasks in one addition, as in `slot_aware`."""

FILES: Final = WeightsFiles(
    policy="dl2-numbers",
    version="1",
    remedy="Train it again: labkit train-policy dl2.",
    folder=Path(__file__).with_name("numbers"),
    optional={KEY: "{}"},
    tensors={"numbers": f"the {len(Numbers._fields)} numbers of the policy: {', '.join(Numbers._fields)}"},
)


@dataclass(frozen=True, eq=False)
class NumbersFile:
    """Numbers as a file holds them, with how they were made (the command) and the scenario of their training."""

    numbers: Numbers
    source: str
    scenario: dict[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        import json

        tensors = {"numbers": np.array(self.numbers)}
        FILES.write(path, tensors, source=self.source, **({KEY: json.dumps(self.scenario)} if self.scenario else {}))


def load_numbers(name: str | Path) -> NumbersFile:
    """Return numbers by the name of those that ship, or from a file.

    Raises
    ------
    InputError
        If there are none of that name, or the file holds something else.
    """
    tensors, (source, scenario) = FILES.load(name, _fault, source=str, scenario=mapping)
    return NumbersFile(numbers_of(tensors["numbers"].tolist()), source, scenario)


def _fault(tensors: Tensors) -> str:
    return other_names(tensors, ("numbers",)) or fault_of(tensors, {"numbers": (len(Numbers._fields),)})


@dataclass(eq=False)
class LearnedDL2:
    """Give the tasks that save most for what they take, on speeds that are learned online: what `dl2` is by default.

    It sees no model's name and carries no table of speeds. Of each kind of job it measures the gangs that `optimus`
    measures before a run and observes those that run; a Gaussian process corrects the fit to them
    (`labkit.schedulers.dl2.beliefs`). Gangs then follow the rule of `slot_aware`, in which the price of work that is
    left for later grows with the backlog and jobs with little work left come first, as seven trained numbers say.
    Where decisions fall on events, too, what a job leaves is given away at once: a task is worth the factor by which it
    makes its job faster, as in `lookahead(gain="speed")`.

    It is watched: after 5 slots, then 10, then each `window`, it is rehearsed against its fallbacks on the jobs and
    speeds that were seen; if the jobs would have taken longer by more than `margin`, the best of them decides until a
    later window says otherwise. Events (FELL_BACK) and a note tell it.

    Attributes
    ----------
    weights : str
        "seeing", which ships, or a .safetensors file of `labkit train-policy dl2`.
    quantum_s : float
        A session decides at least this often; a slot where the run has none.
    fallback : str, sequence of str or None
        Schedulers of which the best decides then; None: it is not watched.
    patience, window, margin
        As in `dl2` with the weights of a network.
    n_pre_runs : int
        Gangs of each kind of job that `begin` measures.
    placer : Placer
        Where gangs go.
    """

    knows_types: ClassVar[bool] = False

    weights: str = "seeing"
    quantum_s: float = 1200.0
    fallback: str | Sequence[str] | None = ("optimus", "srtf", "drf")
    patience: int = 5
    window: int = 20
    margin: float = 0.1
    n_pre_runs: int = 10
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    _numbers: Numbers = field(init=False, repr=False)
    _beliefs: BelievedSpeeds = field(init=False, repr=False)
    _slot_s: float = field(default=np.inf, init=False, repr=False)
    _instead: list[Scheduler] = field(default_factory=list, init=False, repr=False)
    _monitor: Monitor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("patience", 1), ("window", 1), ("margin", 0.0), ("n_pre_runs", 1)):
            if not getattr(self, name) >= least:
                raise InputError(f"dl2: {name} is {getattr(self, name)}; expected a number >= {least}.")
        self.use(load_numbers(self.weights).numbers)
        self._instead = [fallback_of(name) for name in self._names]
        if self._names:
            self._monitor = Monitor(self.quantum_s, self.patience, self.window, self.margin, self._rivals, grows=True)

    def use(self, numbers: Numbers) -> None:
        """Decide by other numbers from now on."""
        self._numbers, self._beliefs = numbers, BelievedSpeeds(self.n_pre_runs, numbers=numbers)

    @property
    def _names(self) -> list[str]:
        if self.fallback is None:
            return []
        if not isinstance(self.fallback, str | Sequence):
            raise InputError(
                f"dl2: fallback is {self.fallback!r:.60}; expected the name of a scheduler, several or None."
            )
        return [self.fallback] if isinstance(self.fallback, str) else list(self.fallback)

    def _rivals(self) -> tuple[Scheduler, ...]:
        """Return this policy without its monitor, and its fallbacks, fresh."""
        alone = LearnedDL2(self.weights, self.quantum_s, None, n_pre_runs=self.n_pre_runs, placer=self.placer)
        alone.use(self._numbers)
        return alone, *(fallback_of(name) for name in self._names)

    def begin(self, context: Context) -> None:
        """Begin a run: measure a few gangs of each kind of job, and let the fallbacks do so."""
        self._slot_s = context.slot_s
        self._beliefs.begin(context)
        if self._monitor is not None:
            self._instead = [fallback_of(name) for name in self._names]
            for scheduler in self._instead:
                begin(scheduler, context)
            self._monitor.slot_s = context.slot_s if np.isfinite(context.slot_s) else self.quantum_s
            self._monitor.rehearse = context.rehearse
            self._monitor.begin(context.jobs)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        if not len(snapshot.jobs):
            return Placement.nothing()
        n_workers, n_ps = self.gangs(snapshot)
        answer = place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))
        if self._monitor is None:
            return answer
        doubts = self._monitor.doubts(snapshot, np.column_stack([n_workers, n_ps]), sound=True)
        doubts = [doubt for doubt in doubts if doubt is not Doubt.UNTRIED]  # it has measured gangs before the run
        if not doubts:
            return answer
        return replace(self._instead[self._monitor.best].schedule(snapshot), doubts=np.array(doubts, np.int32))

    def gangs(self, snapshot: Snapshot) -> tuple[Ints, Ints]:
        """Return workers and parameter servers of each active job, (J,)."""
        jobs, table = snapshot.jobs, snapshot.table
        kind, left, seconds = self._beliefs.of(snapshot)
        rows = np.arange(len(jobs), dtype=np.int32)
        if np.isfinite(self._slot_s):
            of, penalty, weight = rows, *self._worth(snapshot, left, seconds[kind])
        else:
            of, (penalty, weight) = kind, penalties("speed", seconds, left)
        return allocate(
            by_urgency(snapshot, left, seconds[kind]), jobs.number, of, weight, penalty, LOOK_AHEAD,
            table.worker_demand, table.ps_demand, table.n_workers, table.n_ps, table.max_workers, table.max_ps,
            table.malleable, capacity(snapshot),
        )  # fmt: skip

    def _worth(self, snapshot: Snapshot, left: Floats, seconds: Floats) -> tuple[Floats, Floats]:
        """Return the slots to the end of each job by gang, (J, P, W), and what they weigh, (J,)."""
        work, numbers = work_left(snapshot, left, seconds) / self._slot_s, self._numbers
        backlog = max(float(np.nansum(work)), 1e-2)
        stretch = np.clip(numbers.stretch * backlog**numbers.load, 1.0, 10.0)
        rank = np.argsort(np.argsort(np.nan_to_num(work), kind="stable"), kind="stable") / len(work)
        slots = slots_to_end(left, seconds, slot_s=self._slot_s, stretch=float(stretch))
        return slots, np.exp(numbers.urgency * (1 - 2 * rank))


def work_left(snapshot: Snapshot, left: Floats, seconds: Floats) -> Floats:
    """Return the seconds of the whole cluster that each job still takes with its most efficient gang, (J,)."""
    number, table = snapshot.jobs.number, snapshot.table
    there = np.maximum(capacity(snapshot), 1e-12)
    worker, ps = ((demand[number] / there).max(axis=1) for demand in (table.worker_demand, table.ps_demand))
    p, w = np.arange(seconds.shape[1])[:, None], np.arange(seconds.shape[2])
    share = np.maximum(ps[:, None, None] * p + worker[:, None, None] * w, 1e-9)
    found: Floats = left * np.fmin.reduce((seconds * share)[:, 1:, 1:], axis=(1, 2))
    return found
