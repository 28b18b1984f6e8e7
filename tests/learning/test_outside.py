"""For learners from outside: the environment by its name, its scale, and a trained module as a scheduler."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch

import labkit.learning  # noqa: F401 - registers the environment
from labkit.core.draft import FEATURES
from labkit.experiment import Experiment, every_slot
from labkit.learning import ModuleScheduler, SlotEnv, scaled

SMALL = {"trace": "dl2_jobs('testbed_6n')", "cluster": "dl2-6n", "slot_s": 300.0}


def test_the_environment_is_made_by_name_and_its_observations_are_in_its_space():
    env = gymnasium.make("labkit/Slots-v0", **SMALL)
    observation, _ = env.reset(seed=0)
    rng, over, total = np.random.default_rng(0), False, 0.0
    while not over:
        assert env.observation_space.contains(observation)
        assert observation.max() < 10
        action = rng.choice(np.flatnonzero(env.unwrapped.action_masks()))
        observation, reward, done, stalled, _ = env.step(action)
        total, over = total + float(reward), done or stalled
    assert total < 0, "minus the mean JCT in slots"


def test_the_vector_environment_shows_what_single_ones_do_before_scaling():
    many = gymnasium.make_vec("labkit/Slots-v0", num_envs=2, **SMALL)
    seen, _ = many.reset(seed=5)
    for b in range(2):
        one, _ = gymnasium.make("labkit/Slots-v0", **SMALL).reset(seed=5 + b)
        np.testing.assert_allclose(scaled(seen[b]), one, rtol=1e-6)


def test_each_episode_of_a_generator_is_another_trace_and_a_seed_gives_the_same():
    env = gymnasium.make("labkit/Slots-v0", **SMALL)
    arrivals = []
    for seed in (1, 1, None):
        env.reset(seed=seed)
        arrivals.append(env.unwrapped.session.backend.jobs.arrival_s.tolist())
    assert arrivals[0] == arrivals[1] != arrivals[2]


class EqualShares(torch.nn.Module):
    """Gives both tasks to the job with the least share."""

    def forward(self, seen: np.ndarray) -> torch.Tensor:
        share = torch.as_tensor(seen[:, FEATURES.index("dominant share") - len(FEATURES)])
        worth = torch.stack([-share - 9, -share - 9, -share], dim=1).flatten()
        return torch.cat([worth, torch.full((1,), -99.0)])


def test_a_module_decides_in_a_run_what_it_would_in_the_environment():
    experiment = Experiment.of("dl2_jobs('testbed_6n')", cluster="dl2-6n", cadence=every_slot(300.0))
    module = EqualShares()
    run = experiment.run(ModuleScheduler(module, n_jobs=50))
    env = SlotEnv(experiment, n_jobs=50, slot_s=300.0, reward="time")
    observation, info = env.reset(seed=0)
    over, total = False, 0.0
    while not over:
        values = module(scaled(observation)).numpy()
        observation, reward, done, stalled, info = env.step(np.where(info["action_mask"], values, -np.inf).argmax())
        total, over = total + reward, done or stalled
    np.testing.assert_allclose(run.summary["mean_jct_s"], -300.0 * total, rtol=1e-9)
