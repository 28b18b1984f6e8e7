"""Slots per CPU second of episodes of DL2's size, each with a fresh trace: 48 machines, 60 jobs, a random policy.

python -m benchmarks learning
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle

import numpy as np

from benchmarks import Row, size
from labkit.experiment import Experiment
from labkit.learning import SlotEnv, SlotEnvs
from labkit.topology import build
from labkit.workloads import dl2_jobs

COMMAND = "python -m benchmarks learning"
N_ENVS, N_STEPS, N_JOBS = size(64, short=2), size(5000, short=100), 20
CLUSTER = build("dl2-48n")


def rows() -> list[Row]:
    """Return slots per CPU second in lockstep, and one by one beside it."""
    shape = 101, N_ENVS, 3 * N_JOBS + 1
    draws = cycle(np.random.default_rng(0).random(shape, dtype=np.float32))  # drawn before, to time the episodes alone
    envs = SlotEnvs(_experiment, n_envs=N_ENVS, n_jobs=N_JOBS)
    _, info = envs.reset(seed=0)
    _, _, _, _, info = envs.step(_actions(draws, info["action_mask"]))  # compiled, or loaded
    n_slots, began_s = 0, time.process_time()
    for _ in range(N_STEPS):
        actions = _actions(draws, info["action_mask"])
        n_slots += int((actions == 3 * N_JOBS).sum())
        _, _, _, _, info = envs.step(actions)
    in_lockstep = n_slots / (time.process_time() - began_s)
    n_actions = N_ENVS * N_STEPS / n_slots
    one = _one_by_one(draws)
    return [
        Row(f"slots, {N_ENVS} episodes in lockstep", round(in_lockstep), "slots/CPU s", 10_000, True, COMMAND),
        Row("actions of a slot", round(n_actions, 1), "actions", None, True, COMMAND),
        Row("slots of one episode, as a Session", round(one), "slots/CPU s", None, True, COMMAND),
        Row("lockstep over Session", round(in_lockstep / one, 1), "x", None, True, COMMAND),
    ]  # fmt: skip


def _experiment(rng: np.random.Generator) -> Experiment:
    return Experiment.of(dl2_jobs("short_48n", seed=int(rng.integers(1 << 31))), cluster=CLUSTER)


def _actions(draws: Iterator[np.ndarray], masks: np.ndarray) -> np.ndarray:
    """Return an action for each mask: of those that find room one at random, until there is none."""
    drawn = next(draws)[: len(masks)] * masks
    drawn[:, -1] = 0.0
    return np.where(drawn.any(axis=1), drawn.argmax(axis=1), masks.shape[1] - 1)


def _one_by_one(draws: Iterator[np.ndarray]) -> float:
    env = SlotEnv(_experiment, n_jobs=N_JOBS)
    n_slots, began_s = 0, time.process_time()
    for seed in range(size(2, short=1)):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            action = _actions(draws, info["action_mask"][None])[0]
            n_slots += int(action == 3 * N_JOBS)
            _, _, done, stalled, info = env.step(action)
            over = done or stalled
    return n_slots / (time.process_time() - began_s)
