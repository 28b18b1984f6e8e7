"""Training DL2 as published: it imitates a scheduler, then decides by itself and learns after each slot.

Episodes may differ from what is declared (sec. 6.4, figures 13 to 15): speeds that vary by job, lengths that are wrong,
models that come later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labkit.core.clock import spent_s, steps_at
from labkit.core.draft import Batch, begin_slot
from labkit.core.errors import InputError
from labkit.core.ledger import DONE
from labkit.core.resources import Floats
from labkit.experiment.experiment import Experiment
from labkit.kernels import kernel
from labkit.learning.env import ExperimentOf
from labkit.learning.envs import SlotEnvs
from labkit.learning.episodes import EpisodeRules, end_slot, worth_of
from labkit.learning.rollouts import PATIENCE
from labkit.learning.training import Outcome, Training
from labkit.schedulers import make
from labkit.speed.tabled import ByCounts, of_some, varied
from labkit.workloads import with_epoch_error
from reproductions.dl2.learner import Learned, Learner
from reproductions.dl2.policy import (
    BEST,
    DRAWN,
    N_SHARES,
    FlatNet,
    Form,
    How,
    Numbers,
    SlotSamples,
    decide,
    look,
    observe,
    open_slot,
    room,
)
from reproductions.dl2.scheduler import FlatWeights
from reproductions.dl2.switches import Published
from reproductions.dl2.warm_up import MOST_ACTIONS, ActionModes, Lessons, lessons


def altered(
    experiment: Experiment,
    rng: np.random.Generator,
    *,
    speed_error: float = 0.0,
    epoch_error: float = 0.0,
    models: Collection[str] | None = None,
) -> Experiment:
    """Return an experiment in which jobs differ from what is known of them.

    Raise InputError if no job is left, or speeds depend on more than numbers of tasks.

    Parameters
    ----------
    speed_error : float
        Each job is 1 + error * U(-1, 1) times as fast, as long as it runs.
    epoch_error : float
        True lengths are the declared ones times as much, in whole epochs.
    models : collection of str, optional
        Jobs of others are left out.
    """
    if models is not None:
        experiment = _of_models(experiment, models)
    if epoch_error:
        jobs = with_epoch_error(experiment.jobs, error=epoch_error, rng=rng)
        experiment = replace(experiment, jobs=jobs)
    if speed_error:
        factor = 1 + speed_error * (2 * rng.random(len(experiment.jobs)) - 1)
        speed = varied(_by_counts(experiment), experiment.jobs, experiment.cluster, factor=factor)
        experiment = replace(experiment, speed=speed)
    return experiment


def _of_models(experiment: Experiment, models: Collection[str]) -> Experiment:
    """Return an experiment with the jobs of some models alone."""
    jobs = experiment.jobs
    is_known = np.array([name in models for name in jobs.models])[jobs.model]
    if is_known.all():
        return experiment
    kept = np.flatnonzero(is_known)
    if not len(kept):
        raise InputError(
            f"no job of {jobs.name} trains one of {', '.join(sorted(models))}; expected some. Take more models first."
        )
    fewer = jobs.take(kept)
    speed = of_some(_by_counts(experiment), fewer, experiment.cluster, which=kept)
    return replace(experiment, jobs=fewer, speed=speed)


def _by_counts(experiment: Experiment) -> ByCounts:
    if not isinstance(experiment.speed, ByCounts):
        raise InputError(
            f"{type(experiment.speed).__name__} does not tell speeds by numbers of tasks; expected a model that does, "
            "such as MeasuredSpeed."
        )
    return experiment.speed


HUNDRED: Final = 100
"""Mini-batches of a lesson."""
LONGEST: Final = 1000
"""Slots of an episode, as in the released code."""
MOST_JOBS: Final = 256
"""Jobs that are active at once, in training; later ones wait."""


@kernel
def first_state(batch: Batch, b: int, form: Form, slot_s: float, state: Numbers) -> None:
    """Write what is seen when a slot begins, (J, F)."""
    window = np.empty(form.n_jobs, np.int32)
    look(batch, b, form, 0, window)
    observe(batch, b, form, slot_s, window, state)


@kernel
def progress_of(batch: Batch, b: int, done: Floats) -> None:
    """Write the fraction of its declared steps that each job has done, (N,)."""
    episode = batch.episode[b]
    for j in range(episode.n_jobs):
        job = batch.job[b, j]
        done[j] = 1.0 if job.phase == DONE else min(steps_at(job, episode.now_s) / job.total_steps, 1.0)


@kernel
def jain_of(batch: Batch, b: int) -> float:
    """Return how evenly dominant shares are given in a slot, as Jain's index: 1/J to 1; 0 without jobs or tasks."""
    at, n = batch.observation.shape[2] - N_SHARES, batch.episode[b].n_observed
    total, squares = 0.0, 0.0
    for i in range(n):
        total += batch.observation[b, i, at]
        squares += batch.observation[b, i, at] ** 2
    return total**2 / (n * squares) if squares > 0 else 0.0


@kernel
def slot(
    batch: Batch,
    b: int,
    rules: EpisodeRules,
    form: Form,
    net: FlatNet,
    how: How,
    kept: SlotSamples,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Decide about a slot, let it pass, and begin the next one.

    Returns eq. 1, the fractions of jobs done in it, and how evenly shares were given (`jain_of`).
    """
    kept.n[0] = 0
    decide(batch, b, rules.slot_s, form, net, how, kept, rng)
    evenness = jain_of(batch, b)
    before = batch.episode[b].worth
    end_slot(batch, b, rules)
    worth = worth_of(batch, b, rules)
    batch.episode[b].worth = worth
    begin_slot(batch, b)
    open_slot(batch, b, form)
    return float(worth - before), float(evenness)


@dataclass(eq=False)
class Trainer(Training):
    """Trains DL2's own network; the same seed gives the same weights.

    Attributes
    ----------
    experiments : callable
        Returns the experiment of an episode for a generator, such as a `labkit.learning.settings.Setting`.
    models : sequence of str
        (L,) names of models that it tells apart; types of the released code are their places, from 1 on.
    slot_s : float
        Seconds of a slot.
    slots : int
        Slots that it learned from so far.

    Examples
    --------
    >>> trainer = Trainer(setting, DL2_MODELS, 1200.0, switches=Published(warm_up="drf"))  # doctest: +SKIP
    >>> for update in trainer.updates():  # doctest: +SKIP
    ...     print(update.mean_jct)
    >>> trainer.weights("how it was made").save("mine.safetensors")  # doctest: +SKIP
    """

    experiments: ExperimentOf
    models: Sequence[str]
    slot_s: float
    seed: int = 1
    switches: Published = field(default_factory=Published)
    _taught: Lessons | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        switches = self.switches
        if switches.clusters > 1:
            raise InputError(f"clusters is {switches.clusters}, and a Trainer has one; take a Federated.")
        if self.n_of_kind[0]:
            make(switches.warm_up)  # refused now if there is no such teacher, before anything is written
        self.form = switches.form(len(self.models))
        self.learner = Learner(switches, self.form)
        self._rng = np.random.default_rng(self.seed)
        self._kept = room(MOST_ACTIONS, self.form)
        self._following = np.zeros((self.form.n_jobs, self.form.n_features), np.float32)
        self._envs = SlotEnvs(
            self.episode, n_envs=1, n_jobs=MOST_JOBS, slot_s=self.slot_s, models=self.models, reward="progress",
            patience=PATIENCE,
        )  # fmt: skip

    def episode(self, rng: np.random.Generator) -> Experiment:
        """Return the experiment of an episode: as the switches alter it, with models that are known by now."""
        switches, n = self.switches, self.switches.n_known(self.slots)
        return altered(
            self.experiments(rng), rng, speed_error=switches.speed_error, epoch_error=switches.epoch_error,
            models=None if n is None else self.models[:n],
        )  # fmt: skip

    @property
    def n_of_kind(self) -> tuple[int, int]:
        """How many lessons and rounds there are; without a teacher, no lessons."""
        return self.switches.n_of_kind

    def taught(self) -> Lessons:
        """Return what the teacher did on traces that the seed alone determines."""
        if self._taught is None:
            switches, rng = self.switches, np.random.default_rng([self.seed, 1])
            ways = ActionModes(switches.apart, switches.voids, switches.shuffled)
            shown = [self.episode(rng) for _ in range(max(switches.n_taught, 1))]
            self._taught = lessons(switches.warm_up, shown, self.form, self.models, self.slot_s, ways, rng)
        return self._taught

    def _lesson(self, left: float) -> Outcome:  # noqa: ARG002
        """Learn from a hundred mini-batches; the mean JCT is that of a fresh episode."""
        taught, learned = self.taught(), Learned(0.0, 0.0, 0.0)
        for _ in range(HUNDRED):
            learned = self.learner.study(taught, self._rng)
        return self._play(How(True, 0.0), learns=False)[0], learned.loss, learned.entropy

    def _round(self, left: float) -> Outcome:  # noqa: ARG002
        """Play an episode with an update in each slot."""
        mean_jct, learned = self._play(How(True, self.switches.exploration), learns=True)
        return mean_jct, learned.loss, learned.entropy

    def _play(self, how: How, *, learns: bool) -> tuple[float, Learned]:
        """Play an episode; return its mean JCT in slots, and the means of what updates told."""
        self._envs.reset(seed=[int(self._rng.integers(1 << 31))])
        batch, rules, learner = self._envs.batch, self._envs.rules, self.learner
        episode, told, net = batch.episode[0], [], learner.policy.net()
        before, after = np.zeros(episode["n_jobs"]), np.zeros(episode["n_jobs"])
        self._kept.taken[:] = 0
        open_slot(batch, 0, self.form)
        progress_of(batch, 0, before)
        for _ in range(LONGEST):
            reward, evenness = slot(batch, 0, rules, self.form, net, how, self._kept, self._rng)
            over = bool(episode["n_done"] == episode["n_jobs"] or episode["stalled"])
            if learns:
                progress_of(batch, 0, after)
                first_state(batch, 0, self.form, self.slot_s, self._following)
                rewards = self._rewards(reward, after - before) + self.switches.fairness * evenness
                learner.remember(self._kept, rewards, self._following, over=over)
                before[:] = after
                told.append(learner.update(self._rng))
                self.slots += 1
            if over:
                break
        return mean_jct_of(batch, 0, self.slot_s), Learned.mean([one for one in told if one is not None])

    def _rewards(self, reward: float, by_job: Floats) -> Floats:
        return reward_of_samples(self._kept, reward, by_job, self.switches.reward)

    # --- what is kept

    def weights(self, source: str) -> FlatWeights:
        """Return the network as it is, for a scheduler."""
        return FlatWeights(self.learner.policy.copy(), self.form, tuple(self.models), self.slot_s, source)

    def _identity(self) -> dict[str, Any]:
        return asdict(self.switches) | {"models": list(self.models), "slot_s": self.slot_s, "seed": self.seed}

    def _learned(self) -> dict[str, Any]:
        return self.learner.state()

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.learner.go_on(learned)


def reward_of_samples(kept: SlotSamples, reward: float, by_job: Floats, kind: str) -> Floats:
    """Return what each sample of a slot was worth, (n,): the slot's reward, or that of its job alone (N,).

    By job, void is worth the mean over jobs that trained, as in the released code (get_job_reward).
    """
    job = kept.job[: int(kept.n[0])]
    if kind == "slot":
        return np.full(len(job), reward)
    trained = max(int((by_job > 0).sum()), 1)
    return np.where(job >= 0, by_job[np.maximum(job, 0)], reward / trained)


def mean_jct_of(batch: Batch, b: int, slot_s: float) -> float:
    """Return the mean JCT of an episode so far, in slots; jobs that are not done count up to now."""
    episode, jobs = batch.episode[b], batch.job[b, : batch.episode["n_jobs"][b]]
    return float(spent_s(jobs["arrival_s"], jobs["done_s"], episode["now_s"]).mean() / slot_s)


def mean_jct(
    weights: FlatWeights, experiments: Any, seeds: Sequence[int], *, draws: bool = False
) -> NDArray[np.float64]:
    """Return the mean JCT in slots of the experiment of each seed, (S,).

    Jobs that have not ended when nothing happens any more, or after 1,000 slots, count up to then.
    """
    told, form, kept, left = [], weights.form, room(0, weights.form), iter(seeds)
    for seed in seeds:
        envs = SlotEnvs(
            lambda _: experiments(next(left)), n_envs=1, n_jobs=MOST_JOBS, slot_s=weights.slot_s,
            models=weights.models, reward="progress", patience=PATIENCE,
        )  # fmt: skip
        envs.reset(seed=0)
        batch, rng, episode = envs.batch, np.random.default_rng(seed), envs.batch.episode[0]
        open_slot(batch, 0, form)
        for _ in range(LONGEST):
            slot(batch, 0, envs.rules, form, weights.net, DRAWN if draws else BEST, kept, rng)
            if episode["n_done"] == episode["n_jobs"] or episode["stalled"]:
                break
        told.append(mean_jct_of(batch, 0, weights.slot_s))
    return np.array(told)
