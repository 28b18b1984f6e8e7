"""Training MARL as published: episodes of intervals, with one update of each scheduler after each interval."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import torch

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.learning.dl2 import Update
from labkit.learning.env import ExperimentOf
from labkit.learning.marl.published.episode import Episode, decide, rewards
from labkit.learning.marl.published.learner import Learned, Learner
from labkit.learning.marl.published.switches import Published
from labkit.schedulers.marl.published.graphs import graphs_of
from labkit.schedulers.marl.published.weights import MarlWeights

LONGEST = 1000
"""Intervals of an episode."""


@dataclass(eq=False)
class Trainer:
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
    n_done: int = field(default=0, init=False)
    slots: int = field(default=0, init=False)
    _cpu_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        switches = self.switches
        self.graphs = graphs_of(self.cluster, level=switches.level, agents=switches.agents)
        self.form = switches.form(tuple(self.models), self.graphs)
        self.learner = Learner(switches, self.form, self.graphs)
        self._rng = np.random.default_rng(self.seed)

    @property
    def n_updates(self) -> int:
        """How many epochs there are in all."""
        return self.switches.n_epochs

    def updates(self) -> Iterator[Update]:
        """Yield what came of each epoch: its mean JCT in intervals, and means over its updates."""
        while self.n_done < self.n_updates:
            yield self.update()

    def update(self) -> Update:
        """Play an episode, and learn after each interval.

        Raises
        ------
        NotFiniteError
            If a loss is not finite; the weights are those before it.
        """
        began_s, k = time.process_time(), self.n_done
        mean_jct, learned = self._play()
        self.n_done += 1
        self._cpu_s += time.process_time() - began_s
        return Update("round", k, self.slots, mean_jct, learned.loss, learned.entropy, self._cpu_s)

    def _play(self) -> tuple[float, Learned]:
        """Play an episode; return its mean JCT in intervals, and the means of what updates told."""
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
                worth = rewards(did, gained, self.graphs, slot, kind=self.switches.reward)
                told.extend(one for one in [self.learner.update(did, worth)] if one is not None)
            episode.skip()
            if episode.over:
                break
        means = [float(np.mean([getattr(one, name) for one in told])) if told else 0.0 for name in Learned.__slots__]
        return episode.mean_jct(), Learned(*means)

    # --- what is kept

    def weights(self, source: str) -> MarlWeights:
        """Return the networks for schedulers; learning goes on in them until they are saved."""
        return MarlWeights(self.learner.params(), self.form, self.slot_s, source)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, for `torch.save`."""
        return self._asked() | {
            "n_done": self.n_done, "slots": self.slots, "cpu_s": self._cpu_s, "rng": self._rng.bit_generator.state,
            "learner": self.learner.state(),
        }  # fmt: skip

    def _asked(self) -> dict[str, Any]:
        """Return what makes it this training and no other."""
        asked = {"models": list(self.models), "cluster": self.cluster.name, "slot_s": self.slot_s, "seed": self.seed}
        return asdict(self.switches) | asked

    def go_on(self, state: dict[str, Any]) -> Self:
        """Go on from a state; more epochs than it had are fine.

        Raises
        ------
        InputError
            If it is that of another training.
        """
        for name, value in self._asked().items():
            if name != "n_epochs" and state.get(name) != value:
                raise InputError(
                    f"the training to go on with has {name} {state.get(name)!r:.80}; expected {value!r:.80}. "
                    "Give it the same options, or another file."
                )
        self.learner.go_on(state["learner"])
        self._rng.bit_generator.state = state["rng"]
        self.n_done, self.slots, self._cpu_s = state["n_done"], state["slots"], state["cpu_s"]
        return self
