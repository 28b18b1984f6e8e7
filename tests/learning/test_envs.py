"""Many environments in lockstep: each is a `SlotEnv`, and so a session, number by number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError, Jobs, Kind
from labkit.core.quotas import Quotas
from labkit.core.resources import GPUS, Bools
from labkit.experiment import Experiment
from labkit.learning import REWARDS, SlotEnv, SlotEnvs
from labkit.simulator import Overheads
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.topology import no_network
from labkit.topology.servers import Server

SLOT_S = 600.0
TABLE = SpeedTable.of(
    np.repeat(["one", "two", "three"], 4), n_ps=[1, 1, 2, 3] * 3, n_workers=[1, 2, 2, 4] * 3,
    samples_per_s=[1, 1.75, 2.5, 3, 0.5, 0.75, 1.5, 1, 2, 2.125, 2.5, 2],
)  # fmt: skip
OLD, NEW = Server("old", ((4, 7, 32),), device_type="k80"), Server("new", ((2, 5, 24), (2, 6, 18)), device_type="v100")


class Picky(MeasuredSpeed):
    """Every third job does not run on the first device type."""

    def runs_on(self) -> Bools:
        runs_on = super().runs_on()
        runs_on[::3, 0] = False
        return runs_on


def experiment_of(rng: np.random.Generator) -> Experiment:
    """Draw jobs of a few models, some of them rigid, without GPUs or particular, on a small cluster."""
    n = int(rng.integers(1, 12))
    is_rigid = rng.random(n) < 0.3
    workers, servers = rng.integers(1, 4, n), rng.integers(1, 3, n)
    gpus = rng.choice([0.0, 1.0, 2.0], n)
    jobs = Jobs.of(
        arrival_s=np.sort(rng.integers(0, 20, n) * SLOT_S / 4), total_steps=rng.integers(1, 20, n) * 150.0,
        true_steps=rng.integers(1, 20, n) * 150.0, duration_s=600.0, steps_per_epoch=100.0,
        n_workers=workers, n_ps=servers, model=rng.choice(["one", "two", "three"], n),
        max_workers=np.where(is_rigid, workers, workers + rng.integers(1, 4, n)),
        max_ps=np.where(is_rigid, servers, servers + rng.integers(0, 3, n)),
        worker_demand=np.column_stack([gpus, rng.choice([1.0, 2.5], n), np.full(n, 4.0)]),
        ps_demand=np.column_stack([rng.choice([0.0, 0.0, 1.0], n), rng.choice([1.0, 2.0], n), np.full(n, 2.0)]),
    )  # fmt: skip
    of_one_type = int(rng.integers(1, 3))
    cluster = no_network(of_one_type + 2, servers=[(of_one_type, OLD), (2, NEW)])
    return Experiment.of(jobs, cluster=cluster, speed=Picky(jobs, cluster, table=TABLE))


def same(one: Any, of: Any, what: str) -> None:
    np.testing.assert_allclose(one, of, rtol=1e-9, atol=1e-9, err_msg=what)


@given(seed=st.integers(0, 10_000), reward=st.sampled_from(REWARDS), lazy=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_each_is_a_session_number_by_number(seed: int, reward: str, lazy: float) -> None:
    options: dict[str, Any] = {
        "n_jobs": 8, "slot_s": SLOT_S, "models": ("two", "one"), "reward": reward, "patience": 7
    }  # fmt: skip
    rng = np.random.default_rng(seed)
    several = SlotEnvs(experiment_of, n_envs=3, **options)
    singles = [SlotEnv(experiment_of, **options) for _ in range(3)]
    seen, info = several.reset(seed=seed)
    alone = [env.reset(seed=seed + b) for b, env in enumerate(singles)]
    n_over = np.zeros(3, int)
    over = np.zeros(3, np.bool_)
    while n_over.min() < 2:
        for b, (its_seen, its_info) in enumerate(alone):
            same(seen[b], its_seen, "observation")
            for name in its_info:
                same(info[name][b], its_info[name], name)
        actions = np.array([_action(rng, mask, lazy) for mask in info["action_mask"]])
        over_before = over
        seen, rewards, done, stalled, info = several.step(actions)
        for b, env in enumerate(singles):
            if over_before[b]:
                alone[b] = env.reset()
                assert rewards[b] == 0
                continue
            its_seen, reward_of_it, its_end, its_stall, its_info = env.step(actions[b])
            alone[b] = its_seen, its_info
            same(rewards[b], reward_of_it, "reward")
            assert (done[b], stalled[b]) == (its_end, its_stall)
            rows = env.session.log.rows
            completed = rows[rows["kind"] == Kind.COMPLETED]
            finished = np.isfinite(several.done_s[b])
            assert set(np.flatnonzero(finished)) == set(completed["job"])
            same(several.done_s[b, completed["job"]], completed["time_s"], "moments of completion")
        over = done | stalled
        n_over += over


def _action(rng: np.random.Generator, mask: np.ndarray, lazy: float) -> int:
    """Return an action that finds room, or now and then any other one, which ends the slot."""
    if rng.random() < lazy:
        return int(rng.choice(np.append(np.flatnonzero(~mask), len(mask) - 1)))
    return int(rng.choice(np.flatnonzero(mask)))


def test_a_seed_is_an_episode_and_the_next_ones() -> None:
    first, again = (SlotEnvs(experiment_of, n_envs=2, n_jobs=4, slot_s=SLOT_S) for _ in range(2))
    (seen, _), (same_seen, _) = first.reset(seed=5), again.reset(seed=[5, 6])
    assert np.array_equal(seen, same_seen)
    assert first.observation_space.contains(seen)
    before = seen.copy()
    first.reset()
    assert not np.array_equal(first.reset()[0], before)
    assert np.array_equal(first.reset(seed=5)[0], before)


def test_quotas_hold_in_an_environment_too() -> None:
    """Actions are cut to what a user may hold, as a scheduler's decisions are."""
    plain = experiment_of(np.random.default_rng(0))
    most = float(plain.jobs.gpus.max())
    env = SlotEnv(replace(plain, quotas=Quotas.of(f"*={most}")), n_jobs=8, slot_s=SLOT_S)
    rng, (_, info), over = np.random.default_rng(1), env.reset(seed=0), False
    gpus = np.stack([plain.jobs.worker_demand[:, GPUS], plain.jobs.ps_demand[:, GPUS]])
    while not over:
        _, _, done, stalled, info = env.step(_action(rng, info["action_mask"], 0.1))
        held = env.session.ledger.book.allocations
        assert (held["n_workers"] * gpus[0] + held["n_ps"] * gpus[1]).sum() <= most + 1e-6
        over = done or stalled


def test_it_tells_what_it_does_not_know() -> None:
    rng = np.random.default_rng(0)
    plain = experiment_of(rng)
    with pytest.raises(InputError, match="knows no overheads, and the experiment has some"):
        SlotEnvs(replace(plain, overheads=Overheads(start_s=3)), n_envs=1).reset()
    with pytest.raises(InputError, match="knows no quotas, and the experiment has some"):
        SlotEnvs(replace(plain, quotas=Quotas.of("*=9")), n_envs=1).reset()
    with pytest.raises(InputError, match="such as MeasuredSpeed's; Recorded does not"):
        SlotEnvs(Experiment.of(plain.jobs, cluster=plain.cluster, speed="recorded"), n_envs=1).reset()
    with pytest.raises(InputError, match="n_envs is 0; expected"):
        SlotEnvs(plain, n_envs=0)
    with pytest.raises(InputError, match="call reset"):
        SlotEnvs(plain, n_envs=1).step(np.zeros(1, np.int64))
