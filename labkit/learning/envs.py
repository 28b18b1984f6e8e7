"""Many slot environments in lockstep, in compiled code: for learning, where a policy needs thousands of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from labkit.core import draft
from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats
from labkit.experiment.experiment import Experiment
from labkit.learning import episodes
from labkit.learning.env import ExperimentOf, Observation, SlotEnv
from labkit.speed.tabled import ByCounts

Actions = NDArray[np.int64]
DISTURBANCES: Final = ("overheads", "variation", "faults", "losses", "troubles", "quotas", "reservations", "hosting")
"""Fields of an experiment that only a session knows."""


class SlotEnvs(gym.vector.VectorEnv[Any, Any, Any]):  # its rewards are floats, its ends bools
    """B episodes of `SlotEnv` side by side: the same numbers, a hundred times as fast.

    It knows runs in which only the numbers of workers and parameter servers count: a speed model such as
    `MeasuredSpeed`, and none of `DISTURBANCES`; a `SlotEnv` takes any experiment. An episode that is over begins anew
    with the next step, which ignores its action (Gymnasium's NEXT_STEP).

    `info` holds "action_mask" (B, 3 J + 1), "n_unseen" (B,) and "now_s" (B,), as that of a `SlotEnv`. Observations,
    masks and rewards are views of what the next step overwrites; copy what is to be kept.

    Parameters
    ----------
    experiments : Experiment or callable
        What is simulated: always this, or what the callable returns for the generator of an episode.
    n_envs : int
        B.
    options
        Those of `SlotEnv`.

    Examples
    --------
    >>> envs = SlotEnvs(experiment, n_envs=64, models=experiment.jobs.models)  # doctest: +SKIP
    >>> observations, info = envs.reset(seed=0)  # doctest: +SKIP
    """

    def __init__(self, experiments: Experiment | ExperimentOf, *, n_envs: int, **options: Any) -> None:
        if n_envs < 1:
            raise InputError(f"n_envs is {n_envs}; expected a number of episodes >= 1.")
        one = SlotEnv(experiments, **options)
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.num_envs = n_envs
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.observation_space = batch_space(one.observation_space, n_envs)
        self.action_space = batch_space(one.action_space, n_envs)
        self._of, self._models = one.experiment_of, one.models
        self.rules = episodes.EpisodeRules(one.slot_s, one.patience, one.reward == "time")
        self._shape = self.observation_space.shape or ()
        self._rngs: list[np.random.Generator] = []
        self._over, self._rewards = np.zeros(n_envs, np.bool_), np.zeros(n_envs)
        self._batch: draft.Batch | None = None

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin all episodes; episode b of a seed is that of a `SlotEnv` with seed + b."""
        seeds = [seed + b for b in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        if not self._rngs or seed is not None:
            self._rngs = [gym.utils.seeding.np_random(one)[0] for one in seeds]
        for b in range(self.num_envs):
            self._begin(b)
        self._over[:] = False
        return self.batch.observation, self._info()

    def step(self, actions: Actions) -> tuple[Observation, Floats, Bools, Bools, dict[str, Any]]:
        """Take one action in each episode."""
        for b in np.flatnonzero(self._over).tolist():
            self._begin(b)
        episodes.step(self.batch, np.asarray(actions, np.int64), self.rules, self._over, self._rewards)
        episode = self.batch.episode
        done, stalled = episode["n_done"] == episode["n_jobs"], episode["stalled"].copy()
        np.logical_or(done, stalled, out=self._over)
        return self.batch.observation, self._rewards, done, stalled, self._info()

    @property
    def done_s(self) -> Floats:
        """(B, N) when the jobs of each episode were completed; inf: not yet, NaN: there is no such job."""
        there = np.arange(self.batch.job.shape[1]) < self.batch.episode["n_jobs"][:, None]
        return np.where(there, self.batch.job["done_s"], np.nan)

    # --- inside

    @property
    def batch(self) -> draft.Batch:
        """The episodes as they are, for compiled code.

        Raises
        ------
        InputError
            If none has begun.
        """
        if self._batch is None:
            raise InputError("no episode has begun; call reset() first.")
        return self._batch

    def _info(self) -> dict[str, Any]:
        episode = self.batch.episode
        return {
            "action_mask": self.batch.mask,
            "n_unseen": episode["n_active"] - episode["n_observed"],
            "now_s": episode["now_s"].copy(),
        }

    def _begin(self, b: int) -> None:
        """Begin an episode with an experiment of its own."""
        experiment = self._of(self._rngs[b])
        speed = _only_counts(experiment)
        jobs, cluster = experiment.jobs, experiment.cluster
        sizes = len(jobs), cluster.n_groups, *speed.grid.shape, cluster.capacity.shape[1]
        if self._batch is None or not _holds(self._batch, sizes):
            self._batch = _grown(self._batch, self._shape, sizes)
        batch, n = self._batch, len(jobs)
        batch.episode[b] = 0
        batch.episode["n_jobs"][b], batch.episode["n_groups"][b] = n, cluster.n_groups
        batch.capacity[b, : cluster.n_groups] = cluster.capacity
        batch.there[b] = cluster.capacity.sum(axis=0)
        _fill(batch.speed[b], speed.grid)
        column = {name: self._models.index(name) for name in jobs.models if name in self._models}
        rows = batch.job[b, :n]
        rows["arrival_s"], rows["total_steps"], rows["true_steps"] = jobs.arrival_s, jobs.total_steps, jobs.true_steps
        rows["steps_per_epoch"], rows["row"], batch.malleable[b, :n] = jobs.steps_per_epoch, speed.row, jobs.malleable
        rows["model"] = np.array([column.get(name, -1) for name in jobs.models], np.int32)[jobs.model]
        batch.requested[b, :n] = np.column_stack([jobs.n_workers, jobs.n_ps])
        batch.most[b, :n] = np.column_stack([jobs.max_workers, jobs.max_ps])
        demands = np.stack([jobs.worker_demand, jobs.ps_demand], axis=1)
        episodes.begin(batch, b, self.rules, demands, experiment.speed.runs_on(), cluster.group_type.astype(np.int32))


def hindrance(experiment: Experiment) -> str:
    """Return a sentence on the parts of an experiment that compiled episodes lack; empty: none."""
    for name in DISTURBANCES:
        if getattr(experiment, name) is not None:
            return f"SlotEnvs knows no {name}, and the experiment has some; drop them, or take SlotEnv."
    if isinstance(experiment.speed, ByCounts):
        return ""
    return (
        f"SlotEnvs needs speeds that depend on numbers of tasks alone, such as MeasuredSpeed's; "
        f"{type(experiment.speed).__name__} does not tell them. Take another speed model, or SlotEnv."
    )


def _only_counts(experiment: Experiment) -> ByCounts:
    """Return the speed model of an experiment in which nothing else counts.

    Raise InputError if something does; it names that.
    """
    if why := hindrance(experiment):
        raise InputError(why)
    assert isinstance(experiment.speed, ByCounts)
    return experiment.speed


def _fill(grid: Floats, by_count: Floats) -> None:
    """Copy a grid of speeds into a larger one; beyond its edge speeds stay what they are there."""
    n_rows, n_ps, n_workers = by_count.shape
    grid[:n_rows, :n_ps, :n_workers] = by_count
    grid[:n_rows, n_ps:, :n_workers] = by_count[:, -1:]
    grid[:n_rows, :, n_workers:] = grid[:n_rows, :, n_workers - 1 : n_workers]


def _holds(batch: draft.Batch, sizes: tuple[int, ...]) -> bool:
    """Return whether arrays are large enough for jobs, groups, rows, parameter servers and workers of an episode."""
    return all(size <= has for size, has in zip(sizes, _sizes(batch), strict=True))


def _sizes(batch: draft.Batch) -> tuple[int, ...]:
    return batch.job.shape[1], batch.capacity.shape[1], *batch.speed.shape[1:], batch.capacity.shape[2]


def _grown(old: draft.Batch | None, shape: tuple[int, ...], sizes: tuple[int, ...]) -> draft.Batch:
    """Return arrays for episodes of some sizes, with those that are under way."""
    if old is not None:
        sizes = tuple(max(size, has) for size, has in zip(sizes, _sizes(old), strict=True))
    n_envs, n_observed, n_features = shape
    batch = draft.empty(n_envs, *sizes, n_observed=n_observed, n_features=n_features)
    if old is not None:
        for name, new in batch._asdict().items():
            before = getattr(old, name)
            if name == "speed":
                for b in range(n_envs):
                    _fill(new[b], before[b])
            else:
                new[tuple(slice(size) for size in before.shape)] = before
    return batch
