"""Episodes: schedulers decide as each interval begins; and the same as a Gymnasium environment, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from labkit.core.clock import spent_s
from labkit.core.cluster import Cluster
from labkit.core.events import Kind
from labkit.core.placement import Placement
from labkit.core.resources import Bools, Floats, Ints
from labkit.experiment.cadence import every_slot
from labkit.experiment.experiment import Experiment
from labkit.experiment.session import Session
from labkit.learning.env import ExperimentOf
from reproductions.marl.graphs import Graphs, Numbers, graphs_of
from reproductions.marl.learner import Interval
from reproductions.marl.policy import chances
from reproductions.marl.scheduler import MarlWeights, Minds
from reproductions.marl.slot import AgentView, Declared, Loads, PlacementSlot
from reproductions.marl.switches import Published

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
        arrival_s = self.session.backend.jobs.arrival_s
        return float(spent_s(arrival_s, self._done_s, self.session.now_s).mean() / self.slot_s)


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
    gained : array
        (N,) which fraction of its epochs each job was trained in the intervals that the last action let pass.

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
        self.gained = np.zeros(len(self.home))
        while self._slot.over and not self._episode.over:
            self.gained += self._episode.end(self._slot)
            self._slot = self._episode.slot(self.np_random)
        return float(self.gained.sum())

    @property
    def home(self) -> Ints:
        """The pod where each job arrived, (N,)."""
        home: Ints = self._episode.session.backend.jobs.home
        return home

    def _seen(self) -> Observation:
        seen: AgentView = self._slot.look(0) if self._slot.over else self._slot.see()
        return {**self._told(seen), "agent": np.int64(seen.agent)}

    def view_of(self, agent: int) -> Observation:
        """Return what a scheduler sees now, whether a task of it is due or not."""
        task = self._slot.task
        return self._told(self._slot.see() if task is not None and task.agent == agent else self._slot.look(agent))

    def _told(self, seen: AgentView) -> Observation:
        nodes = np.zeros((self._n_places, self._form.n_node), np.float32)
        nodes[: len(seen.nodes)] = seen.nodes
        return {"nodes": nodes, "models": seen.models, "demands": seen.demands, "task": seen.task.copy()}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), "now_s": self._episode.session.now_s}
