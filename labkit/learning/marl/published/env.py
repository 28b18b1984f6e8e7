"""MARL's decisions as a Gymnasium environment: task by task, whichever scheduler is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.resources import Bools
from labkit.experiment.experiment import Experiment
from labkit.learning.env import ExperimentOf
from labkit.learning.marl.published.episode import Episode
from labkit.learning.marl.published.switches import Published
from labkit.schedulers.marl.published.graphs import graphs_of
from labkit.schedulers.marl.published.slot import PlacementSlot
from labkit.schedulers.marl.published.state import AgentView
from labkit.schedulers.marl.published.weights import MarlWeights

MOST = 1e6
"""The largest number in an observation."""

Observation = dict[str, Any]


class PlacementEnv(gym.Env[Observation, np.int64]):
    """Each action places a task of the job that is due, or forwards the job to another scheduler.

    Actions are P + N numbers: the places (groups of GPUs, or servers) of the scheduler that is due, P of the largest
    pod, then the schedulers. `info["action_mask"]` says which are allowed; with any other one the job waits until the
    next interval. When no task is due an interval passes, and its reward comes with the action before: the fractions of
    their epochs that jobs were trained in it, N in all for N jobs.

    Parameters
    ----------
    experiments : Experiment or callable
        What is simulated, on `cluster`: always this, or what the callable returns for a generator, with each episode.
    cluster : Cluster
        Where; its pods are the schedulers.
    models : sequence of str
        (M,) names of models.
    slot_s : float
        Seconds of an interval.
    switches : Published, optional
        What is seen and may be done: `level`, `agents`, `n_jobs`, `current_first`, `room_elsewhere`.

    Attributes
    ----------
    graphs : Graphs
        The inner graph of each scheduler, and the graph among them.

    Examples
    --------
    >>> env = PlacementEnv(experiment, experiment.cluster, experiment.jobs.models)  # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        experiments: Experiment | ExperimentOf,
        cluster: Cluster,
        models: Sequence[str],
        *,
        slot_s: float = 1800.0,
        switches: Published | None = None,
    ) -> None:
        self.experiment_of: ExperimentOf = experiments if callable(experiments) else lambda _: experiments
        self.switches, self.slot_s = switches or Published(), slot_s
        self.graphs = graphs_of(cluster, level=self.switches.level, agents=self.switches.agents)
        self._form = form = self.switches.form(tuple(models), self.graphs)
        self._n_places = max(graph.n_places for graph in self.graphs.inner)
        shapes = {
            "nodes": (self._n_places, form.n_node), "models": (form.n_jobs, len(form.models)),
            "demands": (form.n_jobs, form.n_demand), "task": (form.n_task,),
        }  # fmt: skip
        boxes = {name: gym.spaces.Box(0.0, MOST, shape, np.float32) for name, shape in shapes.items()}
        n = self.graphs.n_agents
        self.observation_space = gym.spaces.Dict({**boxes, "agent": gym.spaces.Discrete(n)})
        self.action_space = gym.spaces.Discrete(self._n_places + n)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, at its first task."""
        super().reset(seed=seed, options=options)
        no_agents = MarlWeights((), self._form, self.slot_s, "")
        self._episode = Episode(
            self.experiment_of(self.np_random), self.graphs, no_agents, slot_s=self.slot_s,
            room_elsewhere=self.switches.room_elsewhere,
        )  # fmt: skip
        self._slot: PlacementSlot = self._episode.slot(self.np_random)
        self._pass()
        return self._seen(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place a task or forward a job; what is not allowed lets the job wait."""
        if self.action_masks()[int(action)]:
            self._slot.take(self._own(int(action)))
        elif not self._slot.over:
            self._slot.drop()
        reward = self._pass()
        session = self._episode.session
        return self._seen(), reward, session.done and not session.stalled, bool(session.stalled), self._info()

    def action_masks(self) -> Bools:
        """Return which actions are allowed, (P + N,); none when the episode is over."""
        mask = np.zeros(self._n_places + self.graphs.n_agents, np.bool_)
        task = self._slot.task
        if task is not None:
            n = self.graphs.inner[task.agent].n_places
            mask[:n], mask[self._n_places :] = self._slot.mask[:n], self._slot.mask[n:]
        return mask

    def _own(self, action: int) -> int:
        """Return the number of an action among those of the scheduler that is due, whose pod may be smaller."""
        task = self._slot.task
        assert task is not None
        return action if action < self._n_places else action - self._n_places + self.graphs.inner[task.agent].n_places

    def _pass(self) -> float:
        """Let intervals pass until a task is due; return what they were worth."""
        reward = 0.0
        while self._slot.over and not self._episode.over:
            reward += float(self._episode.end(self._slot).sum())
            self._slot = self._episode.slot(self.np_random)
        return reward

    def _seen(self) -> Observation:
        seen: AgentView = self._slot.look(0) if self._slot.over else self._slot.see()
        nodes = np.zeros((self._n_places, self._form.n_node), np.float32)
        nodes[: len(seen.nodes)] = seen.nodes
        told = {"nodes": nodes, "models": seen.models, "demands": seen.demands, "task": seen.task.copy()}
        return {**told, "agent": np.int64(seen.agent)}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), "now_s": self._episode.session.now_s}
