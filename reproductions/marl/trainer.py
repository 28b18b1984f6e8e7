"""Training MARL as published: traces drawn anew for each epoch, an update of each scheduler after each interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from labkit.core.cluster import Cluster
from labkit.experiment.experiment import Experiment
from labkit.experiment.fitting import refuse_unfit
from labkit.learning.env import ExperimentOf
from labkit.learning.settings import fresh, refuse_files
from labkit.learning.training import Outcome, Training
from labkit.topology import build
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2.learner import Learned
from reproductions.marl.episode import Episode, decide, rewards
from reproductions.marl.graphs import graphs_of
from reproductions.marl.learner import Learner
from reproductions.marl.scheduler import MarlWeights
from reproductions.marl.switches import Published


@dataclass(frozen=True, eq=False)
class Setting:
    """A cluster and generators of traces, of which each epoch draws one.

    Attributes
    ----------
    cluster : str
        A preset or an expression.
    traces : sequence of str
        Generators.
    interference : str
        A level by name, or a file: what `Experiment.of` takes.

    Raises
    ------
    InputError
        If a trace is a file.
    """

    cluster: str
    traces: Sequence[str]
    interference: str = "calibrated"

    def __post_init__(self) -> None:
        refuse_files(self.traces, such_as="marl_jobs(load=5)")

    @cached_property
    def built(self) -> Cluster:
        """The cluster."""
        return build(self.cluster)

    def __call__(self, rng: np.random.Generator) -> Experiment:
        """Return the experiment of an epoch."""
        what = self.traces[int(rng.integers(len(self.traces)))]
        jobs = fresh(what, rng)
        options: dict[str, Any] = {"speed": "step-time", "interference": self.interference}
        return Experiment.of(jobs, cluster=self.built, **options)

    def models(self) -> list[str]:
        """Return the models that occur: the text's eight where they are among them, or those of some traces."""
        rng = np.random.default_rng(0)
        met = list(dict.fromkeys(name for _ in range(5) for name in self(rng).jobs.models))
        return list(DL2_MODELS) if set(met) <= set(DL2_MODELS) else met

    def refuse_unfit(self, *, n: int = 3) -> None:
        """Raise if a job of some epochs fits no machine.

        Raises
        ------
        InputError
            It names the job.
        """
        rng = np.random.default_rng(0)
        for _ in range(n):
            made = self(rng)
            refuse_unfit(made.jobs, made.cluster, made.speed.runs_on())


LONGEST = 1000
"""Intervals of an episode."""


@dataclass(eq=False)
class Trainer(Training):
    """Trains MARL's own networks on one cluster; the same seed gives the same weights.

    Attributes
    ----------
    experiments : callable
        Returns the experiment of an episode (an epoch of the text: a trace) for a generator; all on `cluster`.
    models : sequence of str
        (M,) names of models that the networks tell apart.
    slot_s : float
        Seconds of an interval.
    slots : int
        Intervals that were decided so far.

    Examples
    --------
    >>> trainer = Trainer(experiments, cluster, models, seed=1)  # doctest: +SKIP
    >>> for update in trainer.updates():  # doctest: +SKIP
    ...     print(update.mean_jct)
    >>> trainer.weights("how it was made").save("mine.safetensors")  # doctest: +SKIP
    """

    experiments: ExperimentOf
    cluster: Cluster
    models: Sequence[str]
    slot_s: float = 1800.0
    seed: int = 1
    switches: Published = field(default_factory=Published)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        switches = self.switches
        self.graphs = graphs_of(self.cluster, level=switches.level, agents=switches.agents)
        self.form = switches.form(tuple(self.models), self.graphs)
        self.learner = Learner(switches, self.form, self.graphs)
        self._rng = np.random.default_rng(self.seed)

    @property
    def n_of_kind(self) -> tuple[int, int]:
        """No lessons, and as many rounds as there are epochs."""
        return 0, self.switches.n_epochs

    def _round(self, left: float) -> Outcome:  # noqa: ARG002
        """Play an episode, and learn after each interval."""
        episode = Episode(
            self.experiments(self._rng), self.graphs, self.weights(""), slot_s=self.slot_s,
            room_elsewhere=self.switches.room_elsewhere,
        )  # fmt: skip
        told: list[Learned] = []
        for _ in range(LONGEST):
            slot, did = decide(episode, self._rng, n_agents=self.graphs.n_agents)
            gained = episode.end(slot)
            self.slots += 1
            if did.n_tasks:
                worth = rewards(
                    did, gained, self.graphs, slot, kind=self.switches.reward, slot_s=self.slot_s
                )  # fmt: skip
                told.extend(one for one in [self.learner.update(did, worth)] if one is not None)
            episode.skip()
            if episode.over:
                break
        learned = Learned.mean(told)
        return episode.mean_jct(), learned.loss, learned.entropy

    # --- what is kept

    def weights(self, source: str) -> MarlWeights:
        """Return the networks for schedulers; learning goes on in them until they are saved."""
        return MarlWeights(self.learner.params(), self.form, self.slot_s, source)

    def _identity(self) -> dict[str, Any]:
        asked = {"models": list(self.models), "cluster": self.cluster.name, "slot_s": self.slot_s, "seed": self.seed}
        switches = asdict(self.switches)
        del switches["n_epochs"]  # more epochs than it had are fine
        return switches | asked

    def _learned(self) -> dict[str, Any]:
        return self.learner.state()

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.learner.go_on(learned)
