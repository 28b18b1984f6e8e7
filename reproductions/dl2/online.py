"""DL2 as published in a run: it decides, sees what came of it a slot later, and learns (sec. 3.2, 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.resources import Floats
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.drafts import draft_of, placement_of
from reproductions.dl2.learner import Learned, Learner
from reproductions.dl2.policy import How, decide, open_slot, room
from reproductions.dl2.scheduler import FlatWeights, load_flat, refuse_other_jobs
from reproductions.dl2.switches import Published
from reproductions.dl2.trainer import first_state, jain_of, reward_of_samples
from reproductions.dl2.warm_up import MOST_ACTIONS


@dataclass(eq=False)
class Online:
    """Decide with DL2's own network, and update it once per slot by what jobs trained in it.

    It is a scheduler like others, on simulated clusters and on machines; a slot is the time between two decisions, so
    give the run slots. What it has learned stays with the object: `learned()` returns it, for a file.

    Attributes
    ----------
    weights : str
        The path of a .safetensors file of `labkit train-policy dl2 --published`, with which it begins.
    switches : Published
        How it learns; its form is that of the weights.
    exploration : float, optional
        In place of that of the switches.
    seed : int
        Of what it draws.
    told : list of Learned
        Of each update.

    Examples
    --------
    >>> online = Online("mine.safetensors")  # doctest: +SKIP
    >>> Experiment.of(trace, cluster="dl2-16n", cadence=every_slot(1200.0)).run(online)  # doctest: +SKIP
    >>> online.learned("one run").save("better.safetensors")  # doctest: +SKIP

    On a command line: `--schedulers "reproductions.dl2.online:Online(weights='mine.safetensors')"`.
    """

    knows_types: ClassVar[bool] = False
    stochastic: ClassVar[bool] = True

    weights: str
    switches: Published = field(default_factory=Published)
    exploration: float | None = None
    seed: int = 0
    told: list[Learned] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._policy = load_flat(self.weights)
        form, net = self._policy.form, self._policy.net
        n_units, n_layers = net.first_bias.size, len(net.middle) + 1
        switches = replace(
            self.switches, rules="released" if form.released else "paper", n_jobs=form.n_jobs, n_units=n_units,
            n_layers=n_layers, all_reduce=form.all_reduce, first_bundle=form.first_bundle, scaled=form.scaled,
        )  # fmt: skip
        torch.manual_seed(self.seed)
        self.learner = Learner(switches, form)
        self.learner.adopt(net)
        self._how = How(True, switches.exploration if self.exploration is None else self.exploration)
        self._rng, self._kept = np.random.default_rng(self.seed), room(MOST_ACTIONS, form)
        self._following = np.zeros((form.n_jobs, form.n_features), np.float32)
        self._done, self._evenness = np.zeros(0), 0.0
        self._asked: tuple[int, Placement] | None = None

    def begin(self, context: object) -> None:  # noqa: ARG002
        """Begin a run: what was learned stays, what the last slot of another run was worth is not known."""
        self._done, self._asked = np.zeros(0), None
        self._kept.n[0] = 0
        self._kept.taken[:] = 0

    def unmet(self, jobs: Jobs) -> list[str]:
        """Return the models of some jobs that its training has not met; a run with such jobs has a note."""
        return [name for name in jobs.models if name not in self._policy.models]

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the tasks of all jobs that are there, after learning from the last slot."""
        if self._asked is not None and self._asked[0] == snapshot.number:
            return self._asked[1]
        done = _fractions(snapshot)
        placement = Placement.nothing()
        if len(snapshot.jobs):
            policy = self._policy
            refuse_other_jobs(policy.form, snapshot.table)
            batch = draft_of(snapshot, policy.models)
            open_slot(batch, 0, policy.form)
            first_state(batch, 0, policy.form, policy.slot_s, self._following)
            self._learn(done)
            self._kept.n[0] = 0
            net = self.learner.policy.net()
            decide(batch, 0, policy.slot_s, policy.form, net, self._how, self._kept, self._rng)
            self._evenness = jain_of(batch, 0)
            number = snapshot.jobs.number  # a draft counts active jobs alone
            self._kept.job[:] = np.where(self._kept.job >= 0, number[np.minimum(self._kept.job, len(number) - 1)], -1)
            placement = placement_of(snapshot, batch.placed[0])
        self._done, self._asked = done, (snapshot.number, placement)
        return placement

    def _learn(self, done: Floats) -> None:
        """Learn from the last slot, now that what jobs have done by now (N,) is known."""
        if len(self._done) != len(done) or not self._kept.n[0]:
            return
        trained = done - self._done
        reward = reward_of_samples(self._kept, float(trained.sum()), trained, self.learner.switches.reward)
        reward = reward + self.learner.switches.fairness * self._evenness
        self.learner.remember(self._kept, reward, self._following, over=False)
        if (told := self.learner.update(self._rng)) is not None:
            self.told.append(told)

    def learned(self, source: str) -> FlatWeights:
        """Return the network as it is now."""
        return replace(self._policy, net=self.learner.policy.copy(), source=source)


def _fractions(snapshot: Snapshot) -> Floats:
    """Return the fraction of its declared steps that each job of the run has done, (N,), as far as is known."""
    every = np.arange(len(snapshot.table), dtype=np.int32)
    done = np.minimum(snapshot.steps_done(every) / snapshot.table.total_steps, 1.0)
    active = np.zeros(len(every), np.bool_)
    active[snapshot.jobs.number] = True
    over = ~active & (snapshot.table.arrival_s < snapshot.now_s) & (done > 0)
    return np.where(over, 1.0, done)
