"""DL2 as published, step by step: its states, masks, order, void, rewards, and exploration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.draft import BOTH, FEATURES, PS, WORKER, Batch, begin_slot
from labkit.experiment import Experiment, Session, every_slot
from labkit.learning import SlotEnv, SlotEnvs
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2 import policy as explore
from reproductions.dl2.policy import (
    BEST,
    FlatNet,
    Form,
    How,
    allow,
    best,
    chances,
    decide,
    drawn,
    first_layer,
    look,
    observe,
    open_slot,
    room,
    row_changed,
    scores,
    take,
)
from reproductions.dl2.scheduler import Flat, FlatWeights
from reproductions.dl2.trainer import mean_jct, slot
from tests.reproductions.released_dl2 import Released

MODELS = list(DL2_MODELS)
L = len(MODELS)


def network(form: Form, seed: int = 0, *, n_units: int = 16, scale: float = 0.3, void: float = -2.0) -> FlatNet:
    rng = np.random.default_rng(seed)
    some = lambda *shape: (scale * rng.normal(size=shape)).astype(np.float32)  # noqa: E731
    last = some(form.n_actions)
    last[-1] = void
    return FlatNet(
        some(form.n_jobs * form.n_features, n_units) / 4, some(n_units), some(1, n_units, n_units), some(1, n_units),
        1 + some(2, n_units), some(2, n_units), some(n_units, form.n_actions), last,
    )  # fmt: skip


def form(*, released: bool = False, n_jobs: int = 20, **switches: bool) -> Form:
    given = {"all_reduce": False, "first_bundle": released, "scaled": not released}
    return Form(released, n_jobs, L, **(given | switches))


def experiment(seed: int, *, config: str = "testbed_6n", cluster: str = "dl2-6n") -> Experiment:
    slot_s = 300.0 if config == "testbed_6n" else 1200.0
    return Experiment.of(dl2_jobs(config, seed=seed), cluster=cluster, cadence=every_slot(slot_s))


def episodes(made: Experiment, *, slot_s: float = 300.0) -> SlotEnvs:
    envs = SlotEnvs(made, n_envs=1, n_jobs=64, slot_s=slot_s, models=MODELS, reward="progress")
    envs.reset(seed=0)
    return envs


# --- the released code, against a plain one


@pytest.mark.parametrize(
    ("seed", "config", "cluster", "n_jobs"),
    [(1, "testbed_6n", "dl2-6n", 20), (2, "testbed_6n", "dl2-6n", 3), (3, "short_48n", "dl2-16n", 20)],
)
@pytest.mark.parametrize("explores", [0.0, 1.0])
def test_by_the_released_rules_each_state_mask_and_reward_is_that_of_a_plain_environment(
    seed, config, cluster, n_jobs, explores
):
    made = experiment(seed, config=config, cluster=cluster)
    slot_s = 300.0 if config == "testbed_6n" else 1200.0
    envs, rules = episodes(made, slot_s=slot_s), form(released=True, n_jobs=n_jobs)
    net = network(rules, seed, scale=0.1)
    plain = Released.of(made, slot_s=slot_s, n_seen=n_jobs, models=MODELS)
    kept, rng, n_voids = room(4096, rules), np.random.default_rng(seed), 0
    open_slot(envs.batch, 0, rules)
    while not plain.over:
        plain.begin()
        reward, _ = slot(envs.batch, 0, envs.rules, rules, net, How(True, explores), kept, rng)
        n = int(kept.n[0])
        for t in range(n):
            np.testing.assert_allclose(kept.state[t], plain.state().T, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(kept.mask[t], plain.mask())
            action = int(kept.action[t])
            assert kept.mask[t, action]
            if action == 3 * n_jobs:
                n_voids += 1
                assert t == n - 1, "void ends the slot"
                break
            assert kept.job[t] == plain.window[action // 3].number
            assert plain.act(action)
        else:  # a slot that does not end with void ends where nothing is allowed, or at the first that does not fit
            assert not plain.mask()[:-1].any() or plain.could_fail()
        assert reward == pytest.approx(plain.move(), abs=1e-9)
    jct = envs.done_s[0] / slot_s - np.array([job.arrival for job in plain.jobs])
    np.testing.assert_allclose(jct, [job.end - job.arrival for job in plain.jobs], atol=1e-9)
    assert n_voids or explores


def test_types_of_the_released_code_are_places_among_its_models():
    assert MODELS[0] == "resnet-50"
    assert MODELS[7] == "wlm"


def test_a_job_that_has_all_it_can_use_makes_room_in_the_window():
    made = experiment(5)
    batch, rules = episodes(made).batch, form(released=True, n_jobs=1)
    window, allowed = np.empty(1, np.int32), np.empty(3, np.bool_)
    assert batch.episode["n_observed"][0] >= 2, "the trace begins with two jobs"
    assert look(batch, 0, rules, 0, window) == 1
    assert window[0] == 0
    batch.n[0, batch.active[0, 0]] = batch.most[0, batch.active[0, 0]]
    assert look(batch, 0, rules, 0, window) == 1
    assert window[0] == 1
    batch.n[0, batch.active[0, 1], WORKER] = batch.most[0, batch.active[0, 1], WORKER]
    assert allow(batch, 0, rules, window, allowed)
    assert allowed.tolist() == [False, True, False]


# --- the paper's form


def test_the_state_is_one_hot_types_slots_run_epochs_left_share_workers_and_servers():
    made = experiment(3)
    batch, rules = episodes(made).batch, form(scaled=False, n_jobs=12)
    take(batch, 0, rules, 0, BOTH)
    take(batch, 0, rules, 0, PS)
    window, state = np.empty(12, np.int32), np.empty((12, rules.n_features), np.float32)
    n = look(batch, 0, rules, 0, window)
    observe(batch, 0, rules, 300.0, window, state)
    table = made.jobs
    assert rules.n_features == L + 5
    assert (state[n:] == 0).all()
    assert (state[:n, :L].sum(axis=1) == 1).all()
    assert state[0, MODELS.index(table.models[table.model[0]])] == 1
    held = table.worker_demand[0] + 2 * table.ps_demand[0]
    there = made.cluster.capacity.sum(axis=0)
    share = (held / np.maximum(there, 1e-12)).max()
    expected = [0, table.total_steps[0] / table.steps_per_epoch[0], share, 1, 2]
    np.testing.assert_allclose(state[0, L:], expected, rtol=1e-6)
    assert FEATURES == ("slots run", "epochs left", "dominant share", "workers", "parameter servers")


@pytest.mark.parametrize(("all_reduce", "n_actions", "n_features"), [(False, 3 * 20 + 1, L + 5), (True, 21, L + 4)])
def test_there_are_three_actions_a_job_and_void_or_one_without_servers(all_reduce, n_actions, n_features):
    made = form(all_reduce=all_reduce)
    assert (made.n_actions, made.n_features) == (n_actions, n_features)


@given(st.integers(0, 10_000), st.integers(1, 6), st.booleans())
def test_only_what_finds_room_is_done_and_jobs_beyond_j_come_in_batches(seed, n_jobs, first_bundle):
    """Masks are those of the Gymnasium environment, which asks the session's own book for room."""
    made = experiment(seed % 50)
    rules = form(n_jobs=n_jobs, first_bundle=first_bundle)
    envs, rng, kept = episodes(made), np.random.default_rng(seed), room(2000, rules)
    net = network(rules, seed, void=-1.0)
    env = SlotEnv(made, n_jobs=64, slot_s=300.0, models=MODELS)
    _, info = env.reset(seed=0)
    batch = envs.batch
    for _ in range(3):
        open_slot(batch, 0, rules)
        if first_bundle:
            for i in range(int(batch.episode["n_observed"][0])):
                if info["action_mask"][3 * i + BOTH]:
                    *_, info = env.step(3 * i + BOTH)
        kept.n[0], start = 0, 0
        decide(batch, 0, 300.0, rules, net, How(True, 0.4), kept, rng)
        for t in range(int(kept.n[0])):
            action = int(kept.action[t])
            job = int(kept.job[t])
            if job >= 0:
                at = int(np.flatnonzero(batch.active[0] == job)[0])
                assert at // n_jobs >= start // n_jobs
                start = at // n_jobs * n_jobs
                mask = np.zeros(rules.n_actions, np.bool_)
                shown = info["action_mask"][3 * start : 3 * min(start + n_jobs, 64)]
                mask[: len(shown)], mask[-1] = shown, True
                np.testing.assert_array_equal(kept.mask[t], mask)
                *_, info = env.step(3 * at + action % 3)
            assert kept.chance[t, ~kept.mask[t]].sum() == 0
            assert kept.chance[t].sum() == pytest.approx(1, abs=1e-5)
        *_, over, stalled, info = env.step(3 * 64)
        _pass(envs)
        if over or stalled:
            break


def _pass(envs: SlotEnvs) -> None:
    envs.step(np.array([3 * 64]))


def test_a_session_goes_as_training_did_by_both_rules(tmp_path):
    for released in (False, True):
        rules = form(released=released, first_bundle=True)
        kept = FlatWeights(network(rules, 4, void=-8.0), rules, tuple(MODELS), 300.0, "not trained")
        kept.save(tmp_path / "w.safetensors")
        for seed in (1, 2):
            (expected,) = mean_jct(kept, experiment, [seed])
            run = experiment(seed).run(Flat(weights=str(tmp_path / "w.safetensors")))
            assert run.summary["mean_jct_s"] / 300 == pytest.approx(expected, rel=1e-9)


def test_draws_of_a_decision_are_the_same_each_time_it_is_asked(tmp_path):
    rules = form(first_bundle=True)
    FlatWeights(network(rules), rules, tuple(MODELS), 300.0, "").save(tmp_path / "w.safetensors")
    made = experiment(1)
    snapshot = Session(made.simulator(), cadence=every_slot(300.0)).snapshot()
    one, other = (Flat(str(tmp_path / "w.safetensors"), draws=True, seed=s).schedule(snapshot) for s in (3, 3))
    np.testing.assert_array_equal(one.count, other.count)
    np.testing.assert_array_equal(one.job, other.job)


# --- the network


@given(st.integers(0, 1000), st.booleans())
def test_the_first_layer_is_kept_up_to_date_row_by_row(seed, released):
    rules = form(released=released, n_jobs=5)
    net, rng = network(rules, seed), np.random.default_rng(seed)
    state = rng.random((5, rules.n_features)).astype(np.float32)
    state[rng.integers(5)] = 0
    before, k = first_layer(net, state), int(rng.integers(5))
    new = rng.random(rules.n_features).astype(np.float32)
    row_changed(net, before, k, state[k], new)
    state[k] = new
    np.testing.assert_allclose(before, first_layer(net, state), atol=1e-5)
    np.testing.assert_allclose(before, state.ravel() @ net.first + net.first_bias, atol=1e-5)
    units = np.maximum(before, 0) * net.gain[0] + net.shift[0]
    units = np.maximum(units @ net.middle[0] + net.middle_bias[0], 0) * net.gain[1] + net.shift[1]
    np.testing.assert_allclose(scores(net, before), units @ net.last + net.last_bias, atol=1e-4)


def test_chances_are_a_softmax_over_what_is_allowed_and_draws_follow_them():
    allowed = np.array([True, False, True])
    chance = chances(np.array([1.0, 9.0, 2.0, 0.0], np.float32), allowed)
    np.testing.assert_allclose(chance, np.exp([1, -np.inf, 2, 0]) / np.exp([1, 2, 0]).sum(), rtol=1e-6)
    rng = np.random.default_rng(0)
    counts = np.bincount([drawn(chance, rng) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(counts, chance, atol=0.03)
    assert best(allowed, np.array([1.0, 9.0, 2.0, 2.0], np.float32)) == 2
    assert best(allowed, np.array([1.0, 9.0, 2.0, 3.0], np.float32)) == 3


# --- exploration


def two_jobs(counts: list[tuple[int, int]]) -> tuple[Batch, np.ndarray]:
    """Return a draft whose first jobs hold some workers and servers, and the window that shows them."""
    batch = episodes(experiment(5)).batch
    begin_slot(batch, 0)
    for i, held in enumerate(counts):
        batch.n[0, batch.active[0, i]] = held
    return batch, np.array([*range(len(counts)), -1], np.int32)


@pytest.mark.parametrize(
    ("counts", "action"),
    [
        ([(1, 0), (2, 0)], 3 + PS),  # several workers and no server
        ([(0, 1), (0, 2)], 3 + WORKER),
        ([(1, 1), (11, 1)], 3 + PS),  # more than ten times as many
        ([(1, 11), (1, 1)], WORKER),
        ([(10, 1), (1, 10)], -1),  # ten times is not yet poor
        ([(1, 0), (0, 0)], -1),
    ],
)
def test_poor_states_are_the_papers_three_cases(counts, action):
    batch, window = two_jobs(counts)
    assert explore.better_in(batch, 0, window, np.full(10, 0.1)) == action
    if action >= 0:
        chance = np.full(10, 0.1)
        chance[action] = 0.0
        assert explore.better_in(batch, 0, window, chance) == -1, "it finds no room"


def forced(counts: list[tuple[int, int]], *, ratio: int = 5, taken: tuple[int, int, int] = (0, 0, 0)) -> np.ndarray:
    """Return how often each action is taken in place of void, in a thousand draws of the released rules."""
    batch, window = two_jobs(counts)
    rng, chance = np.random.default_rng(0), np.full(10, 0.1)
    made = [explore.injected(batch, 0, window, chance, 9, ratio, np.array(taken, np.int32), rng) for _ in range(1000)]
    return np.bincount(made, minlength=10) / 1000


def test_the_released_code_forces_actions_as_its_rules_say():
    no_ps = forced([(1, 0), (1, 1)])
    assert no_ps[PS] == 1, "a job without servers gets one, always"
    even = forced([(1, 1)])
    assert even[PS] == pytest.approx(0.495, abs=0.05), "half of the time a server, as there are not twice as many"
    assert even[BOTH] < 0.03
    assert even[9] == pytest.approx(0.5, abs=0.05)
    many = forced([(1, 6)], ratio=5)
    assert many[WORKER] == pytest.approx(0.25, abs=0.05)
    assert many[BOTH] == pytest.approx(0.25, abs=0.05)
    rare = forced([(1, 3)], taken=(2000, 1, 2000))
    assert rare[PS] == 1, "a kind of action below a thousandth is forced"
    poorest = forced([(4, 9), (1, 3)], ratio=7)  # 13 // 4 = 3, above none of 3 to 5
    assert poorest[9] > 0.9
    poorest = forced([(8, 17), (1, 3)], ratio=7)  # 25 // 4 = 6, above all of them
    assert poorest[3 + WORKER] + poorest[3 + BOTH] == pytest.approx(1)


def test_an_exploring_policy_tells_the_chance_with_which_it_took_each_action():
    made = experiment(5)
    rules = form(n_jobs=12)
    kept, rng, told = room(400, rules), np.random.default_rng(0), []
    net = network(rules, 1, scale=0.05, void=-9.0)
    for _ in range(40):
        batch = episodes(made).batch
        kept.n[0] = 0
        decide(batch, 0, 300.0, rules, net, How(True, 0.4), kept, rng)
        n = int(kept.n[0])
        plain = kept.chance[np.arange(n), kept.action[:n]]
        told.append(kept.behaviour[:n] / plain)
    ratio = np.concatenate(told)
    assert ratio.min() == pytest.approx(0.6, abs=1e-3), "what is not the better action of a poor state"
    assert ratio.max() > 2, "what is"
    assert np.isclose(ratio, 1).any()


def test_the_most_probable_action_is_not_kept():
    rules = form()
    kept = room(10, rules)
    decide(episodes(experiment(1)).batch, 0, 300.0, rules, network(rules), BEST, kept, np.random.default_rng(0))
    assert kept.n[0] == 0
