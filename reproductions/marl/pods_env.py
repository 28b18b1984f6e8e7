"""Pods as agents for learners from outside: PettingZoo environments over `PlacementEnv`; needs pettingzoo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Floats
from reproductions.marl.episode import MOST, PlacementEnv

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv
try:
    from pettingzoo import AECEnv

    Base: Any = AECEnv[str, dict[str, Any], np.int64]
except ModuleNotFoundError:  # the module can be read, and no environment be made
    Base = object


class PodsAEC(Base):
    """Each pod is an agent: it places the task that is due in it, or forwards its job to another pod.

    Actions are those of `PlacementEnv`. An observation is {"observation": what the agent sees of its own pod and of the
    job that is due, "action_mask": (P + N,)}; each agent can be observed at any time, and the mask of one that is not
    due is 0. Numbers are scaled by log(1 + x). The reward of an agent is the progress of the jobs that arrived in its
    pod, wherever they run: over an episode it gets as many as there are such jobs.

    `env`: what is played.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "labkit_pods_v0", "is_parallelizable": True, "render_modes": [],
    }  # fmt: skip

    def __init__(self, env: PlacementEnv) -> None:
        if Base is object:
            raise InputError("pods as agents need the package pettingzoo; pip install pettingzoo.")
        super().__init__()
        self._env, self.render_mode = env, None
        self.possible_agents = [f"pod_{k}" for k in range(env.graphs.n_agents)]
        self._n_actions = int(env.action_space.n)  # type: ignore[attr-defined]
        boxes = {
            name: gym.spaces.Box(0.0, float(np.log1p(MOST)), box.shape, np.float32)
            for name, box in env.observation_space.items() if name != "agent"  # type: ignore[attr-defined]
        }  # fmt: skip
        mask = gym.spaces.Box(0, 1, (self._n_actions,), np.int8)
        self._seen_space = gym.spaces.Dict({"observation": gym.spaces.Dict(boxes), "action_mask": mask})
        self._action_spaces = {agent: gym.spaces.Discrete(self._n_actions) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gym.Space[Any]:  # noqa: ARG002
        """Return the space of what an agent sees; it is the same for all."""
        return self._seen_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of an agent's actions."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode, at its first task."""
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        seen, _ = self._env.reset(seed=seed, options=options)
        self.agent_selection = self.possible_agents[int(seen["agent"])]

    def observe(self, agent: str) -> dict[str, Any]:
        """Return what an agent sees."""
        mask = np.zeros(self._n_actions, np.int8)
        if agent == self.agent_selection and not (self.terminations[agent] or self.truncations[agent]):
            mask[:] = self._env.action_masks()
        seen = self._env.view_of(self.possible_agents.index(agent))
        return {"observation": {name: np.log1p(value) for name, value in seen.items()}, "action_mask": mask}

    def step(self, action: np.int64 | None) -> None:
        """Let the agent that is due act; what is not allowed lets its job wait."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert action is not None
        self._cumulative_rewards[agent] = 0.0
        seen, _, over, stopped, _ = self._env.step(action)
        self.rewards = dict(zip(self.possible_agents, self._shares().tolist(), strict=True))
        self._accumulate_rewards()
        self.agent_selection = self.possible_agents[int(seen["agent"])]
        if over or stopped:
            self.terminations = dict.fromkeys(self.agents, over)
            self.truncations = dict.fromkeys(self.agents, stopped)
            self.agent_selection = self.agents[0]

    def _shares(self) -> Floats:
        """Return the progress of the jobs of each pod, (N,), in the intervals that the last action let pass."""
        home, n = self._env.home, len(self.possible_agents)
        shares: Floats = np.bincount(np.where(home >= 0, home, 0), self._env.gained, n)[:n].astype(np.float64)
        return shares


def pods_parallel(env: PlacementEnv) -> ParallelEnv[str, dict[str, Any], np.int64]:
    """Return the same for learners that ask all agents at once: the action of the agent that is due counts."""
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel

    made: ParallelEnv[str, dict[str, Any], np.int64] = turn_based_aec_to_parallel(PodsAEC(env))
    return made
