"""A session as a Gymnasium environment: in each slot an agent gives tasks to jobs, one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labkit.core.clock import spent_s
from labkit.core.draft import BOTH, FEATURES, MOST, PS, WORKER
from labkit.core.errors import InputError, unknown
from labkit.core.events import Events, Kind, Role
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.experiment.cadence import every_slot
from labkit.experiment.experiment import Experiment
from labkit.experiment.session import Session

Observation = NDArray[np.float32]
ExperimentOf = Callable[[np.random.Generator], Experiment]
REWARDS: Final = ("progress", "time")


class SlotEnv(gym.Env[Observation, np.int64]):
    """Each slot begins with no tasks; each action gives some to a job, and the last one lets the slot pass.

    Actions of J jobs are 3 J + 1 numbers, as in DL2 [1]_: 3 j + 0 a worker for job j, 3 j + 1 a parameter server,
    3 j + 2 both, and 3 J the end of the slot. Jobs are those that are active, by arrival; a rigid job takes its whole
    gang or nothing. `info["action_mask"]` says which actions find room; any other one ends the slot. Tasks go to the
    first device group that holds them.

    Parameters
    ----------
    experiments : Experiment or callable
        What is simulated: always this, or what the callable returns for a generator, anew with each episode.
    n_jobs : int
        J: jobs that are seen at once; later ones wait, and `info["n_unseen"]` counts them.
    slot_s : float
        Seconds of a slot.
    models : sequence of str
        Names of models, L of them, whose jobs are told apart; others are of none of them.
    reward : str
        "progress": the fractions of their declared steps that jobs have done in the slot, DL2's reward; N in all.
        "time": minus the slots that jobs spent in the system, over N; minus the mean JCT in all.
    patience : int
        Slots in which nothing happens after which an episode is truncated.

    Attributes
    ----------
    session : Session
        Of the episode.

    References
    ----------
    .. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", sec. IV.

    Examples
    --------
    >>> experiment = Experiment.of("traces/dl2-small.csv", cluster="dl2-6n")  # doctest: +SKIP
    >>> env = SlotEnv(experiment, models=experiment.jobs.models)  # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        experiments: Experiment | ExperimentOf,
        *,
        n_jobs: int = 20,
        slot_s: float = 1200.0,
        models: Sequence[str] = (),
        reward: str = "progress",
        patience: int = 100,
    ) -> None:
        if n_jobs < 1:
            raise InputError(f"n_jobs is {n_jobs}; expected a number of jobs >= 1.")
        if reward not in REWARDS:
            raise unknown("reward", reward, REWARDS)
        self.experiment_of: ExperimentOf = experiments if callable(experiments) else lambda _: experiments
        self.slot_s, self.models, self.reward, self.patience = float(slot_s), tuple(models), reward, patience
        self._n_jobs, self._cadence = n_jobs, every_slot(slot_s)
        shape = n_jobs, len(self.models) + len(FEATURES)
        self.observation_space = gym.spaces.Box(0.0, MOST, shape, np.float32)
        self.action_space = gym.spaces.Discrete(3 * n_jobs + 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        experiment = self.experiment_of(self.np_random)
        self.session = Session(
            experiment.simulator(), cadence=self._cadence, runs_on=experiment.speed.runs_on(), patience=self.patience,
            on_stall="stop", quotas=experiment.quotas, reservations=experiment.reservations,
            hosting=experiment.hosting,
        )  # fmt: skip
        self._kinds = _kinds_of(experiment.jobs, self.session.runs_on)
        self._done_s = np.full(len(experiment.jobs), np.inf)
        self._worth_before = 0.0
        self._begin_slot()
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Give tasks to a job, or let the slot pass; the reward comes with its end."""
        j, what = divmod(int(action), 3)
        if j < len(self._jobs) and self._give(int(self._jobs[j]), what):
            return self._observation(), 0.0, False, False, self._info()
        happened = self.session.step(self._trial.placement(), source="SlotEnv")
        reward = self._reward_of(happened)
        self._begin_slot()
        over = self.session.ledger.n_done == len(self._done_s)
        return self._observation(), reward, over, bool(self.session.stalled), self._info()

    # --- the slot

    @classmethod
    def at(cls, snapshot: Snapshot, *, n_jobs: int, models: Sequence[str] = ()) -> Self:
        """Return an environment at the slot that a snapshot shows; no other slot can be played in it."""
        env = cls(_no_episode, n_jobs=n_jobs, models=models)
        env._kinds = _kinds_of(snapshot.table, snapshot.runs_on)
        env._begin_slot(snapshot)
        return env

    def _begin_slot(self, snapshot: Snapshot | None = None) -> None:
        self._snapshot = self.session.snapshot() if snapshot is None else snapshot
        jobs = self._snapshot.jobs
        self._jobs = jobs.number[: self._n_jobs]
        self._trial = Trial(self._snapshot, without=jobs.number)
        self._past = np.column_stack([jobs.n_slots_run, jobs.epochs_left])[: self._n_jobs]

    def _requested_tasks(self, job: int, what: int) -> list[tuple[Role, int]]:
        """Return the tasks that an action adds to those of a job; none: it may not have them."""
        table, trial = self._snapshot.table, self._trial
        if not table.malleable[job]:
            whole = [(Role.WORKER, int(table.n_workers[job])), (Role.PS, int(table.n_ps[job]))]
            return whole if what == BOTH and not trial.n_workers[job] else []
        has = ((Role.WORKER, trial.n_workers, table.max_workers), (Role.PS, trial.n_ps, table.max_ps))
        wanted = [(role, int(now[job]), int(most[job])) for role, now, most in has if what in (role, BOTH)]
        return [(role, 1) for role, _, _ in wanted] if all(now < most for _, now, most in wanted) else []

    def _give(self, job: int, what: int) -> bool:
        """Add what an action asks for; where it finds no room, all is as before."""
        placed: list[tuple[Role, int]] = []
        requested = self._requested_tasks(job, what)
        for role, n in requested:
            for _ in range(n):
                groups = np.flatnonzero(self._trial.room(job, role))
                if not len(groups):
                    self._take_back(job, placed)
                    self._placed = []
                    return False
                placed.append((role, int(groups[0])))
                self._trial.add(job, *placed[-1])
        self._placed = placed
        return bool(requested)

    def _take_back(self, job: int, placed: list[tuple[Role, int]]) -> None:
        for role, group in placed:
            self._trial.remove(job, role, group)

    def action_masks(self) -> Bools:
        """Return which actions find room, (3 J + 1,); the end of the slot always does."""
        mask = np.zeros(3 * self._n_jobs + 1, np.bool_)
        mask[-1] = True
        finds: dict[Hashable, bool] = {}  # jobs that ask for the same tasks find the same room
        for j, job in enumerate(self._jobs.tolist()):
            for what in (WORKER, PS, BOTH):
                requested = tuple(self._requested_tasks(job, what))
                kind = requested, self._kinds[job]
                if kind not in finds:
                    finds[kind] = self._give(job, what)
                    self._take_back(job, self._placed)
                mask[3 * j + what] = finds[kind]
        return mask

    # --- what is seen, and what it was worth

    def _observation(self) -> Observation:
        """Return the state, (J, L + 5); rows without a job are 0."""
        seen = np.zeros((self._n_jobs, len(self.models) + len(FEATURES)), np.float32)
        n, jobs, trial, table = len(self._jobs), self._jobs, self._trial, self._snapshot.table
        for k, name in enumerate(self.models):
            if name in table.models:
                seen[:n, k] = table.model[jobs] == table.models.index(name)
        workers, servers = trial.n_workers[jobs, None], trial.n_ps[jobs, None]
        held = workers * table.worker_demand[jobs] + servers * table.ps_demand[jobs]
        there = self._snapshot.cluster.capacity.sum(axis=0)
        share = (held / np.maximum(there, 1e-12)).max(axis=1, keepdims=True, initial=0.0)
        seen[:n, len(self.models) :] = np.minimum(np.hstack([self._past, share, workers, servers]), MOST)
        return seen

    def _info(self) -> dict[str, Any]:
        unseen = max(len(self._snapshot.jobs) - self._n_jobs, 0)
        return {"action_mask": self.action_masks(), "n_unseen": unseen, "now_s": self.session.now_s}

    def _reward_of(self, happened: Events) -> float:
        """Return the reward at the end of a slot: the gain in the run's value."""
        rows = happened[happened["kind"] == Kind.COMPLETED]
        self._done_s[rows["job"]] = rows["time_s"]
        worth, before = self._worth(), self._worth_before
        self._worth_before = worth
        return worth - before

    def _worth(self) -> float:
        """Return the sum of all rewards so far."""
        jobs, now_s, n = self.session.backend.jobs, self.session.now_s, len(self._done_s)
        if self.reward == "time":
            return -float(spent_s(jobs.arrival_s, self._done_s, now_s).sum()) / self.slot_s / n
        steps = self.session.ledger.steps_done(np.arange(n, dtype=np.int32), now_s)
        done = np.where(np.isfinite(self._done_s), 1.0, np.minimum(steps / jobs.total_steps, 1.0))
        return float(done.sum())


def _kinds_of(table: Jobs, runs_on: Bools) -> list[int]:
    """Return which jobs ask for the same tasks and may go to the same device types, (N,)."""
    kinds = np.column_stack([table.worker_demand, table.ps_demand, runs_on])
    found: list[int] = np.unique(kinds, axis=0, return_inverse=True)[1].ravel().tolist()
    return found


def _no_episode(_: np.random.Generator) -> Experiment:
    raise InputError("this environment shows one slot of a run; make one of an experiment to play episodes.")
