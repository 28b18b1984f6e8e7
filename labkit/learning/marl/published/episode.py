"""An episode: schedulers decide at the beginning of each interval, and hear at its end what came of it."""

from __future__ import annotations

import numpy as np

from labkit.core.events import Kind
from labkit.core.placement import Placement
from labkit.core.resources import Floats
from labkit.experiment.cadence import every_slot
from labkit.experiment.experiment import Experiment
from labkit.experiment.session import Session
from labkit.learning.marl.published.learner import Interval
from labkit.schedulers.marl.published.graphs import Graphs, Numbers
from labkit.schedulers.marl.published.network import chances
from labkit.schedulers.marl.published.scheduler import Minds
from labkit.schedulers.marl.published.slot import PlacementSlot
from labkit.schedulers.marl.published.state import Declared, Loads
from labkit.schedulers.marl.published.weights import MarlWeights

PATIENCE = 100
"""Intervals in which nothing happens after which an episode ends."""


class Episode:
    """A session in intervals.

    Parameters
    ----------
    experiment : Experiment
        What is simulated.
    graphs : Graphs
        Of its cluster.
    weights : MarlWeights
        Of the schedulers, or of others that are asked in their place: their form counts.
    slot_s : float
        Seconds of an interval.
    room_elsewhere : bool
        As for `PlacementSlot`.
    """

    def __init__(
        self,
        experiment: Experiment,
        graphs: Graphs,
        weights: MarlWeights,
        *,
        slot_s: float,
        room_elsewhere: bool = True,
    ) -> None:
        self.graphs, self.weights, self._room_elsewhere = graphs, weights, room_elsewhere
        self.session = Session(
            experiment.simulator(), cadence=every_slot(slot_s), runs_on=experiment.speed.runs_on(), patience=PATIENCE,
            on_stall="stop",
        )  # fmt: skip
        self.slot_s, known = slot_s, experiment.interference
        self._declared, self._loads = (
            Declared(experiment.jobs, weights.form),
            Loads(experiment.jobs, experiment.cluster, uses=None if known is None else known.declared),
        )
        self._done_s = np.full(len(experiment.jobs), np.inf)
        self._before = np.zeros(len(experiment.jobs))

    @property
    def over(self) -> bool:
        """Whether all jobs are done, or nothing will ever happen."""
        return self.session.done

    def slot(self, rng: np.random.Generator) -> PlacementSlot:
        """Return the decision that is due."""
        snapshot = self.session.snapshot()
        return PlacementSlot(
            snapshot, self.graphs, self._declared, self.weights.form, rng, room_elsewhere=self._room_elsewhere
        )  # fmt: skip

    def minds(self, slot: PlacementSlot) -> Minds:
        """Return the schedulers' networks for a decision."""
        return Minds(self.weights, slot, self._loads)

    def end(self, slot: PlacementSlot) -> Floats:
        """Let the interval pass; return the fraction of its epochs that each job was trained in it, (N,).

        They sum to 1 for each job over the episode: the text's normalised speed.
        """
        self._step(slot.placement())
        before, self._before = self._before, self.progress()
        return self._before - before

    def skip(self) -> Floats:
        """Let intervals pass in which no job waits; return what jobs gained, as `end`."""
        while not self.over and not len(self.session.snapshot().waiting):
            self._step(Placement.nothing())
        before, self._before = self._before, self.progress()
        return self._before - before

    def _step(self, placement: Placement) -> None:
        happened = self.session.step(placement, source="marl")
        done = happened[happened["kind"] == Kind.COMPLETED]
        self._done_s[done["job"]] = done["time_s"]

    def progress(self) -> Floats:
        """Return which fraction of its epochs each job has been trained, (N,)."""
        jobs, numbers = self.session.backend.jobs, np.arange(len(self._done_s), dtype=np.int32)
        steps = self.session.ledger.steps_done(numbers, self.session.now_s)
        share: Floats = np.where(np.isfinite(self._done_s), 1.0, np.minimum(steps / jobs.total_steps, 1.0))
        return share

    def mean_jct(self) -> float:
        """Return the mean JCT so far in intervals; jobs that are not done count up to now."""
        spent_s = np.minimum(self._done_s, self.session.now_s) - self.session.backend.jobs.arrival_s
        return float(np.maximum(spent_s, 0.0).mean() / self.slot_s)


def decide(episode: Episode, rng: np.random.Generator, *, n_agents: int) -> tuple[PlacementSlot, Interval]:
    """Draw a decision by the networks' chances; return it, and what each scheduler did and saw."""
    slot = episode.slot(rng)
    if slot.over:
        nothing = np.zeros((0, 0), np.float32)
        return slot, Interval.of(n_agents, told=nothing, inner=[], inter=nothing)
    minds = episode.minds(slot)
    did = Interval.of(n_agents, told=minds.told, inner=minds.inner, inter=minds.inter)
    while (task := slot.task) is not None:
        seen = slot.see()
        score = minds.scores(seen)
        action = int(rng.choice(len(score), p=chances(score, seen.mask)))
        slot.take(action)
        did.seen[task.agent].append(seen)
        did.action[task.agent].append(action)
        did.job[task.agent].append(task.job)
    for agent, seen_by in enumerate(did.seen):
        if seen_by:
            seen_by.append(slot.look(agent))
    return slot, did


def rewards(
    did: Interval, gained: Floats, graphs: Graphs, slot: PlacementSlot, *, kind: str, slot_s: float = 1800.0
) -> list[Numbers]:  # fmt: skip
    """Return what each task of each scheduler was worth, as `Published.reward` says: progress of jobs (N,)."""
    if kind in ("own", "speed"):
        if kind == "speed":  # alone it makes slot_s / duration_s of its epochs in an interval; NaN: unknown
            gained = gained * np.fmax(slot.snapshot.table.duration_s / slot_s, 1.0)
        return [gained[job].astype(np.float32) for job in did.job]
    running = [np.array(sorted(mine), np.int64) for mine in slot.held()]
    if kind == "all":
        running = [np.concatenate(running)] * graphs.n_agents
    means = [float(gained[mine].mean()) if len(mine) else 0.0 for mine in running]
    return [np.full(len(job), mean, np.float32) for job, mean in zip(did.job, means, strict=True)]
