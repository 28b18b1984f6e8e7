"""The environment: what Gymnasium asks of one, and that it is a session, slot by slot and event by event."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import InputError, Jobs, Kind, Placement
from labkit.experiment import Experiment
from labkit.learning import REWARDS, SlotEnv
from labkit.testing import same_events
from labkit.topology import no_network

SLOT_S = 1200.0


def experiment_of(rng: np.random.Generator, *, n: int = 12, rigid: bool = False) -> Experiment:
    workers, servers = rng.integers(1, 4, n), rng.integers(rigid, 3, n) if rigid else np.ones(n, int)
    jobs = Jobs.of(
        arrival_s=np.sort(rng.uniform(0, 5000, n)), total_steps=rng.integers(1, 9, n) * 300.0, duration_s=600.0,
        steps_per_epoch=100.0, n_workers=workers if rigid else 1, n_ps=servers,
        model=["resnet-50", "dssm", "wlm"] * (n // 3),
        max_workers=workers if rigid else 4, max_ps=servers if rigid else 3,
    )  # fmt: skip
    return Experiment.of(jobs, cluster=no_network(3), speed="recorded")


def episode(env: SlotEnv, *, seed: int, lazy: float = 0.1) -> tuple[float, list[Placement], bool]:
    """Go through an episode with random actions that find room; return the sum of rewards and the decisions."""
    rng, total, decisions = np.random.default_rng(seed), 0.0, []
    _, info = env.reset(seed=seed)
    session, step = env.session, env.session.step

    def noted(placement: Placement, **options: str) -> object:
        decisions.append(placement)
        return step(placement, **options)

    session.step = noted  # type: ignore[method-assign, assignment]
    while True:
        mask = info["action_mask"]
        only_end = rng.random() < lazy
        action = len(mask) - 1 if only_end else rng.choice(np.flatnonzero(mask))
        observation, reward, over, stopped, info = env.step(np.int64(action))
        assert env.observation_space.contains(observation)
        total += reward
        if over or stopped:
            return total, decisions, over


@pytest.mark.parametrize("reward", REWARDS)
def test_gymnasium_finds_nothing_wrong(reward: str) -> None:
    env = SlotEnv(experiment_of, n_jobs=8, slot_s=SLOT_S, models=("resnet-50", "dssm"), reward=reward)
    check_env(env, skip_render_check=True)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), rigid=st.booleans())
def test_an_episode_is_a_session_event_by_event(seed: int, rigid: bool) -> None:
    env = SlotEnv(lambda rng: experiment_of(rng, rigid=rigid), n_jobs=6, slot_s=SLOT_S)
    _, decisions, _ = episode(env, seed=seed)
    happened = env.session.log.rows.copy()
    env.reset(seed=seed)
    again = env.session
    assert not again.n_decisions
    for placement in decisions:
        again.step(placement)
    assert same_events(happened, again.log.rows)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), rigid=st.booleans())
def test_rewards_add_up_to_what_they_stand_for(seed: int, rigid: bool) -> None:
    for reward in REWARDS:
        env = SlotEnv(lambda rng: experiment_of(rng, rigid=rigid), n_jobs=20, slot_s=SLOT_S, reward=reward)
        total, _, over = episode(env, seed=seed, lazy=0.02)
        if not over:
            continue
        jobs, rows = env.session.backend.jobs, env.session.log.rows
        done = rows[rows["kind"] == Kind.COMPLETED]
        jct_s = done["time_s"] - jobs.arrival_s[done["job"]]
        assert total == pytest.approx(len(jobs) if reward == "progress" else -jct_s.mean() / SLOT_S)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), rigid=st.booleans(), n_before=st.integers(0, 40))
def test_a_mask_names_the_actions_that_change_something_and_no_other(seed: int, rigid: bool, n_before: int) -> None:
    """By the placer's own rule: an action is allowed if, and only if, it gives a job tasks; else it ends the slot."""
    env = SlotEnv(lambda rng: experiment_of(rng, rigid=rigid), n_jobs=6, slot_s=SLOT_S)

    def begun() -> tuple[np.ndarray, np.ndarray]:
        """Return state and mask of the same moment of an episode, anew."""
        rng = np.random.default_rng(seed)
        seen, info = env.reset(seed=seed)
        for _ in range(n_before):
            action = rng.choice(np.flatnonzero(info["action_mask"]))
            seen, _, over, stopped, info = env.step(np.int64(action))
            if over or stopped:
                break
        return seen, info["action_mask"]

    before, mask = begun()
    assert mask[-1]
    for action in range(len(mask) - 1):
        begun()
        n = env.session.n_decisions
        seen, reward, *_ = env.step(np.int64(action))
        if mask[action]:
            assert (seen[action // 3, -2:].sum() > before[action // 3, -2:].sum(), reward) == (True, 0)
            others = np.arange(6) != action // 3
            np.testing.assert_array_equal(seen[others], before[others])
        assert env.session.n_decisions == n + (not mask[action]), "the slot is over, or it is not"


def test_an_idle_policy_is_truncated() -> None:
    env = SlotEnv(experiment_of, n_jobs=6, slot_s=SLOT_S, patience=5)
    env.reset(seed=0)
    over = stopped = False
    while not (over or stopped):
        *_, over, stopped, _ = env.step(np.int64(18))
    assert stopped
    assert "wait for ever" in env.session.stalled


def test_rigid_jobs_get_their_gang_or_nothing() -> None:
    env = SlotEnv(lambda rng: experiment_of(rng, rigid=True), n_jobs=6, slot_s=SLOT_S)
    _, decisions, _ = episode(env, seed=1)
    table = env.session.ledger.jobs
    for placement in decisions:
        for job in placement.set_jobs.tolist():
            mine = placement.job == job
            n = placement.count[mine & (placement.role == 0)].sum()
            assert n in (0, table.n_workers[job])


@pytest.mark.parametrize(
    ("options", "told"),
    [({"n_jobs": 0}, "n_jobs is 0; expected"), ({"reward": "tine"}, "unknown reward 'tine'. Did you mean 'time'")],
)
def test_what_makes_no_sense_is_refused(options: dict, told: str) -> None:
    with pytest.raises(InputError, match=told):
        SlotEnv(experiment_of, **options)
