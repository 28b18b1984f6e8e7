"""What DL2's compiled code decides, against the same written plainly with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from labkit.core import Jobs
from labkit.core.draft import BOTH, PS, WORKER, Batch, begin_slot, give
from labkit.experiment import Experiment, Session
from labkit.learning.dl2 import Policy
from labkit.schedulers.dl2 import load
from labkit.schedulers.dl2.drafts import draft_of
from labkit.schedulers.dl2.network import Net
from labkit.schedulers.dl2.policy import BEST, DecisionRecord, How, decide, record
from labkit.topology import no_network
from labkit.topology.servers import Server
from labkit.workloads.catalogue import DL2_MODELS

SLOT_S = 1200.0
OLD, NEW = Server("old", ((4, 7, 32),), device_type="k80"), Server("new", ((2, 5, 24), (2, 6, 18)), device_type="v100")
DRAWS = How(draws=True, keeps=True, lookahead=0, obeys=False)


def untrained(seed: int, scale: float = 1.0) -> Net:
    torch.manual_seed(seed)
    made = Policy(len(DL2_MODELS), 16)
    with torch.no_grad():
        made.worth.weight.normal_(0, scale)
        made.stop.normal_(0, scale)
    return made.net()


def state(seed: int) -> Batch:
    """Draw jobs in the midst of a run, some rigid, without GPUs or of a model that is not told apart."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 14))
    is_rigid, workers, servers = rng.random(n) < 0.2, rng.integers(1, 3, n), rng.integers(0, 3, n)
    jobs = Jobs.of(
        arrival_s=np.zeros(n), total_steps=rng.integers(1, 20, n) * 1500.0, duration_s=6e3, steps_per_epoch=100.0,
        n_workers=workers, n_ps=servers, model=rng.choice([*DL2_MODELS, "another"], n),
        max_workers=np.where(is_rigid, workers, workers + rng.integers(1, 9, n)),
        max_ps=np.where(is_rigid, servers, servers + rng.integers(0, 9, n) * (servers > 0)),
        worker_demand=np.column_stack([rng.choice([0.0, 1.0, 2.0], n), rng.choice([1.0, 2.5], n), np.full(n, 4.0)]),
        ps_demand=np.column_stack([np.zeros(n), rng.choice([1.0, 2.0], n), np.full(n, 2.0)]),
    )  # fmt: skip
    n_old = int(rng.integers(1, 6))
    cluster = no_network(n_old + 2, servers=[(n_old, OLD), (2, NEW)])
    made = Experiment.of(jobs, cluster=cluster, speed="recorded")
    batch = draft_of(Session(made.simulator()).snapshot(), tuple(DL2_MODELS))
    rows = batch.job[0]
    batch.episode[0]["now_s"] = 30 * SLOT_S
    rows["arrival_s"], rows["since_s"] = rng.random(n) * 30 * SLOT_S, 30 * SLOT_S
    rows["steps"], rows["n_slots_run"] = rows["total_steps"] * rng.random(n) * 1.2, rng.integers(0, 30, n)
    begin_slot(batch, 0)
    return batch


def decided(batch: Batch, net: Net, how: How, rng: np.random.Generator | None = None) -> tuple[DecisionRecord, bool]:
    """Return what is decided about a slot that has begun, and whether the network was sound."""
    n = int(batch.episode["n_observed"][0])
    kept = record(1, n_jobs=n, n_features=len(net.seen), actions_per_slot=int(batch.most[0].sum()) + 2 * n + 1)
    return kept, decide(batch, 0, SLOT_S, net, how, kept, rng or np.random.default_rng(0))


def worths(net: Net, seen: np.ndarray, model: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return what a worker, a PS and both are worth to each job, (3 J,), and what stopping is, in numpy."""
    p, w = n[:, PS], n[:, WORKER]
    held = np.column_stack([p / 16, w / 16, np.sqrt(p) / 4, np.sqrt(w) / 4, p == 0, w == 0])
    added = np.stack([row @ net.held[m].astype(np.float64) for row, m in zip(held, model, strict=True)])
    one = np.maximum(seen.astype(np.float64) @ net.seen + net.bias + added, 0)
    two = np.maximum(one @ net.middle + net.middle_bias, 0)
    return np.append(two @ net.worth + net.worth_bias, net.stop)


def allowed(batch: Batch) -> np.ndarray:
    """Return which actions find room and leave no malleable job with tasks that cannot train; the last one: stop."""
    found = batch.mask[0].copy()
    for i in np.flatnonzero(batch.malleable[0]):
        if batch.n[0, i, WORKER] == 0:
            found[3 * i + PS] = False
        if batch.n[0, i, PS] == 0 and batch.most[0, i, PS] > 0:
            found[3 * i + WORKER] = False
    return found


def replay(seed: int, net: Net, kept: DecisionRecord, check: Any) -> Batch:
    """Decide again what was decided, task by task; `check` gets each decision with all worths and what is allowed."""
    batch = state(seed)
    n = int(batch.episode["n_observed"][0])
    for i in range(n):
        if batch.mask[0, 3 * i + BOTH]:
            give(batch, 0, i, BOTH)
    for t in range(int(kept.n[2])):
        may, worth = allowed(batch), worths(net, kept.features[:n], batch.job[0]["model"], batch.n[0])
        np.testing.assert_array_equal(kept.mask[t], may)
        check(t, int(kept.action[t]), np.where(may, worth, -np.inf))
        if kept.action[t] < 3 * n:
            give(batch, 0, kept.action[t] // 3, kept.action[t] % 3)
        else:
            assert t == kept.n[2] - 1
            return batch
    assert not allowed(batch)[:-1].any(), "it went on until nothing found room"
    return batch


@given(seed=st.integers(0, 100_000), trained=st.booleans())
def test_each_action_is_the_best_of_those_that_are_allowed(seed: int, trained: bool) -> None:
    net = load("dl2").net if trained else untrained(seed)
    batch = state(seed)
    kept, sound = decided(batch, net, BEST._replace(keeps=True))

    def check(t: int, action: int, worth: np.ndarray) -> None:
        assert worth[action] >= worth.max() - 1e-4 * max(1, abs(worth.max()))

    again = replay(seed, net, kept, check)
    assert sound
    np.testing.assert_array_equal(again.placed, batch.placed)
    alone = state(seed)
    decide(alone, 0, SLOT_S, net, BEST, record(0, n_jobs=1, n_features=1), np.random.default_rng(0))
    np.testing.assert_array_equal(alone.placed, batch.placed, err_msg="what is not recorded is decided all the same")


@given(seed=st.integers(0, 100_000), scale=st.sampled_from([0.1, 1.0, 300.0]), stop=st.sampled_from([0.0, -1e6, 1e6]))
def test_logarithms_of_chances_are_those_of_a_softmax_however_far_worths_are_apart(
    seed: int, scale: float, stop: float
) -> None:
    net = untrained(seed, scale)
    net = net._replace(stop=net.stop + np.float32(stop))
    kept, _ = decided(state(seed), net, DRAWS, np.random.default_rng(seed))

    def check(t: int, action: int, worth: np.ndarray) -> None:
        most = worth.max()
        expected = worth[action] - most - np.log(np.exp(worth - most).sum())
        assert kept.log_chance[t] == pytest.approx(max(expected, np.log(1e-30)), abs=1e-4 * max(1, scale), rel=1e-4)

    replay(seed, net, kept, check)


def test_actions_are_drawn_by_their_chances() -> None:
    """Pearson's test, for the first decision of a slot."""
    net, rng, seed, n_draws = untrained(3, 0.3), np.random.default_rng(0), 5, 4000
    counts: np.ndarray = np.zeros(3 * int(state(seed).episode["n_observed"][0]) + 1)
    batch = state(seed)
    for _ in range(n_draws):
        begin_slot(batch, 0)
        kept, _ = decided(batch, net, DRAWS, rng)
        counts[kept.action[0]] += 1
    chance = np.zeros(len(counts))

    def check(t: int, action: int, worth: np.ndarray) -> None:
        if t == 0:
            chance[:] = np.exp(worth - worth.max()) / np.exp(worth - worth.max()).sum()

    replay(seed, net, kept, check)
    assert (counts[chance == 0] == 0).all()
    assert (chance > 0).sum() > 5
    assert chisquare(counts[chance > 0], n_draws * chance[chance > 0]).pvalue > 1e-3


@pytest.mark.parametrize("part", Net._fields[:-1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_anywhere_in_the_network_is_told(part: str, value: float) -> None:
    net = load("dl2").net
    spoilt = getattr(net, part).copy()
    spoilt[:] = value
    assert decided(state(1), net, BEST)[1]
    assert not decided(state(1), net._replace(**{part: spoilt}), BEST)[1]


@pytest.mark.parametrize(("room", "told"), [({"actions_per_slot": 1}, "full"), ({"n_jobs": 1}, "full")])
def test_a_record_that_is_full_is_told_before_memory_beyond_it_is_written(room: dict[str, int], told: str) -> None:
    net, batch = load("dl2").net, state(5)
    n = int(batch.episode["n_observed"][0])
    assert n > 1
    small = record(1, **{"n_jobs": n, "n_features": len(net.seen), **room})
    with pytest.raises(IndexError, match=told):
        decide(batch, 0, SLOT_S, net, BEST._replace(keeps=True), small, np.random.default_rng(0))
