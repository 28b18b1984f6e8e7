"""Pods as agents of PettingZoo: its own checks, what agents see, and whose jobs they are rewarded for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install pettingzoo")
from pettingzoo.test import api_test, parallel_api_test

from labkit.experiment import Experiment
from labkit.topology import build
from labkit.workloads import marl_jobs
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.marl.episode import PlacementEnv
from reproductions.marl.pods_env import PodsAEC, pods_parallel

CLUSTER = build("pods(3, 2)")


def env() -> PlacementEnv:
    def drawn(rng: np.random.Generator) -> Experiment:
        jobs = marl_jobs(1, n_pods=3, per_slot=0.5, n_slots=6, seed=int(rng.integers(1000)))
        return Experiment.of(jobs, cluster=CLUSTER, speed="step-time", interference="calibrated")

    return PlacementEnv(drawn, CLUSTER, DL2_MODELS)


@pytest.mark.filterwarnings("ignore")
def test_pettingzoos_own_checks_pass(capsys: Any) -> None:
    api_test(PodsAEC(env()), num_cycles=60)
    parallel_api_test(pods_parallel(env()), num_cycles=60)


def test_each_agent_is_rewarded_for_the_jobs_that_arrived_in_its_pod():
    made, rng = PodsAEC(env()), np.random.default_rng(0)
    made.reset(seed=1)
    home = made._env.home
    total = dict.fromkeys(made.possible_agents, 0.0)
    for agent in made.agent_iter():
        seen, _, over, stopped, _ = made.last()
        if over or stopped:
            made.step(None)
            continue
        others = [made.observe(other) for other in made.agents if other != agent]
        assert not any(other["action_mask"].any() for other in others)
        assert all(other["observation"]["nodes"].any() for other in others), "each sees its own pod at any time"
        made.step(rng.choice(np.flatnonzero(seen["action_mask"])))
        for other, reward in made.rewards.items():
            total[other] += reward
    np.testing.assert_allclose([*total.values()], np.bincount(home, minlength=3), rtol=1e-6)
