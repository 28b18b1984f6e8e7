"""Episodes that DL2's policy learns from: in compiled code where numbers of tasks alone count, else in sessions.

A session judges the policy too, so that quotas, reservations, failures and overheads are the same in training:
`labkit.experiment.session` is the one place where time passes under them. It takes ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from labkit.core.clock import spent_s
from labkit.core.events import Kind
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.experiment.cadence import every_slot
from labkit.experiment.session import Session
from labkit.learning.branches import NO_BRANCHES, Branching, play
from labkit.learning.env import ExperimentOf
from labkit.learning.envs import SlotEnvs, hindrance
from labkit.schedulers.dl2.drafts import draft_of
from labkit.schedulers.dl2.keeping import keep
from labkit.schedulers.dl2.network import Net
from labkit.schedulers.dl2.policy import BEST, DecisionRecord, How, decide
from labkit.schedulers.marginal_gain import gang_speeds

PATIENCE: Final = 100
"""Slots in which nothing happens after which an episode ends."""
N_SPARE: Final = 2
"""Episodes beyond those that are played, as room for compiled branches; their seeds are drawn all the same."""
DRAWS: Final = How(draws=True, keeps=False, lookahead=0, obeys=False)
KEEPS: Final = How(draws=True, keeps=True, lookahead=0, obeys=False)


class Episodes(Protocol):
    """Plays episodes under a policy, and records its decisions."""

    def play(self, seeds: Sequence[int], net: Net, how: How, record: DecisionRecord, rng: np.random.Generator) -> float:
        """Play the episode of each seed to its end; return the mean JCT in slots."""

    def explore(
        self, seeds: Sequence[int], net: Net, record: DecisionRecord, rng: np.random.Generator, branching: Branching
    ) -> float:
        """Play all but the last `N_SPARE`, and record what branches of some slots were worth; the rest as in `play`."""


def episodes_of(experiments: ExperimentOf, *, n_envs: int, **options: Any) -> Episodes:
    """Return compiled episodes where an experiment has nothing that they do not know, else sessions."""
    if hindrance(experiments(np.random.default_rng(0))):
        return SessionEpisodes(experiments, **options)
    return CompiledEpisodes(experiments, n_envs=n_envs, **options)


class CompiledEpisodes:
    """Episodes side by side in `SlotEnvs`.

    Parameters
    ----------
    experiments : callable
        The experiment of an episode, for its generator.
    n_envs : int
        Episodes of an update.
    slot_s, models, n_jobs
        Seconds of a slot, models that are told apart, and most jobs that are seen.
    """

    def __init__(self, experiments: ExperimentOf, *, n_envs: int, **options: Any) -> None:
        options |= {"reward": "time", "patience": PATIENCE}
        self.envs = SlotEnvs(experiments, n_envs=n_envs, **options)
        self.branches = SlotEnvs(experiments, n_envs=n_envs + N_SPARE, **options)

    def play(self, seeds: Sequence[int], net: Net, how: How, record: DecisionRecord, rng: np.random.Generator) -> float:
        """Play the episode of each seed to its end; return the mean JCT in slots."""
        self.envs.reset(seed=seeds)
        play(self.envs.batch, self.envs.rules, net, how, record, rng, NO_BRANCHES)
        return -float(self.envs.batch.episode["worth"].mean())

    def explore(
        self, seeds: Sequence[int], net: Net, record: DecisionRecord, rng: np.random.Generator, branching: Branching
    ) -> float:
        """Play all but the last `N_SPARE`, and record what branches of some slots were worth; the rest as in `play`."""
        envs = self.branches
        envs.reset(seed=seeds)
        play(envs.batch, envs.rules, net, DRAWS, record, rng, branching)
        return -float(envs.batch.episode["worth"][:-N_SPARE].mean())


@dataclass(eq=False)
class Recorder:
    """DL2's policy as a scheduler that draws and records its decisions, beside a teacher if `how` has one.

    With `BEST` it decides as `dl2(fallback=None)` does. Parts of a cluster that reservations divide share one record.
    """

    knows_types: ClassVar[bool] = False

    net: Net
    models: Sequence[str]
    slot_s: float
    n_jobs: int
    record: DecisionRecord
    rng: np.random.Generator
    how: How = BEST
    _kind: Ints = field(default_factory=lambda: np.empty(0, np.int32), init=False, repr=False)
    _speeds: Floats = field(default_factory=lambda: np.empty((0, 2, 2)), init=False, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        return self

    def begin(self, context: Context) -> None:
        """Measure every gang of each kind of job, for a teacher."""
        if not self.how.lookahead:
            return
        self._kind, self._speeds = gang_speeds(context)
        rings = np.unique(self._kind[context.jobs.max_ps == 0])
        self._speeds[rings, 0] = self._speeds[rings, 1]
        self._speeds[self._speeds.max(axis=(1, 2)) <= 0] = 1.0  # of jobs that never grow: no gang gains

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the tasks of all jobs that are seen."""
        if not len(snapshot.jobs):
            return Placement.nothing()
        batch = draft_of(snapshot, self.models, n_observed=self.n_jobs)
        if self.how.lookahead:
            batch = batch._replace(speed=self._speeds[None])
            batch.job[0]["row"] = self._kind[snapshot.jobs.number]
        decide(batch, 0, self.slot_s, self.net, self.how, self.record, self.rng)
        return keep(snapshot, batch.placed[0])


class SessionEpisodes:
    """Episodes one by one, each a session: in them is all that an experiment can say.

    Parameters
    ----------
    experiments, slot_s, models, n_jobs
        As `CompiledEpisodes` takes them.
    """

    def __init__(self, experiments: ExperimentOf, *, slot_s: float, models: Sequence[str], n_jobs: int) -> None:
        self._of, self.slot_s, self.models, self.n_jobs = experiments, float(slot_s), tuple(models), n_jobs

    def begin(
        self, seed: int, net: Net, how: How, record: DecisionRecord, rng: np.random.Generator
    ) -> tuple[Session, Recorder]:
        """Return the session of a seed at its first decision, and the policy that decides in it."""
        policy = Recorder(net, self.models, self.slot_s, self.n_jobs, record, rng, how)
        experiment = replace(self._of(np.random.default_rng(seed)), cadence=every_slot(self.slot_s))
        return experiment.session(policy, patience=PATIENCE, on_stall="stop"), policy

    def play(self, seeds: Sequence[int], net: Net, how: How, record: DecisionRecord, rng: np.random.Generator) -> float:
        """Play the episode of each seed to its end; return the mean JCT in slots."""
        spent_slots = []
        for seed in seeds:
            session, policy = self.begin(seed, net, how, record, rng)
            session.run(policy)
            spent_slots.append(mean_spent_s(session) / self.slot_s)
        return float(np.mean(spent_slots))

    def explore(
        self, seeds: Sequence[int], net: Net, record: DecisionRecord, rng: np.random.Generator, branching: Branching
    ) -> float:
        """Play all but the last `N_SPARE`, and record what branches of some slots were worth; the rest as in `play`."""
        spent_slots = []
        for seed in seeds[:-N_SPARE]:
            session, policy = self.begin(seed, net, DRAWS, record, rng)
            while not session.done:
                if rng.random() < branching.share:
                    session = self._branch(session, policy, branching)
                else:
                    policy.how = DRAWS
                    session.run(policy, until_s=_next_decision_s(session))
            spent_slots.append(mean_spent_s(session) / self.slot_s)
        return float(np.mean(spent_slots))

    def _branch(self, session: Session, policy: Recorder, branching: Branching) -> Session:
        """Record what else might be decided now, and what it is worth; return the first branch after its decision."""
        now_s, record, kept = session.now_s, policy.record, session
        edges, spent = [int(record.n[3])], []
        for k in range(branching.n_branches):
            branch = session.fork()
            policy.how = KEEPS
            branch.run(policy, until_s=_next_decision_s(branch))
            kept = branch.fork() if k == 0 else kept
            edges.append(int(record.n[3]))
            policy.how = BEST
            branch.run(policy, until_s=now_s + (branching.n_slots + 0.5) * self.slot_s)
            spent.append(mean_spent_s(branch))
        better = (np.mean(spent) - np.array(spent)) / self.slot_s * len(session.backend.jobs)
        record.reward[edges[0] : edges[-1]] = np.repeat(better, np.diff(edges))
        return kept


def _next_decision_s(session: Session) -> float:
    """Return until when to run so that one decision is made."""
    return math.nextafter(session.now_s, math.inf)


def mean_spent_s(session: Session) -> float:
    """Return the seconds that jobs have spent in the system so far, over all jobs; at the end the mean JCT."""
    rows, jobs = session.log.rows, session.backend.jobs
    done = rows[rows["kind"] == Kind.COMPLETED]
    done_s = np.full(len(jobs), np.inf)
    done_s[done["job"]] = done["time_s"]
    return float(spent_s(jobs.arrival_s, done_s, session.now_s).mean())
