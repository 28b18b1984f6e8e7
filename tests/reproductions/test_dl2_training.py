"""Training DL2 as published: gradients, warm-up, replay, updates, switches, and what stops it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError, Jobs, Kind
from labkit.experiment import Experiment, every_slot
from labkit.learning.training import TrainingDivergedError
from labkit.schedulers import make
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2.learner import (
    DenseNetwork,
    Learner,
    Prioritised,
    ReplayBuffer,
    entropy_of,
    importance,
    lesson_loss,
    log_chances,
    policy_loss,
    stale_gradient,
)
from reproductions.dl2.online import Online
from reproductions.dl2.policy import FlatNet, SlotSamples, first_layer, room, scores
from reproductions.dl2.scheduler import load_flat
from reproductions.dl2.switches import Published
from reproductions.dl2.trainer import Trainer, mean_jct
from reproductions.dl2.warm_up import ActionModes, lessons, wanted

MODELS = list(DL2_MODELS)
SLOT_S = 300.0
SMALL = Published(
    n_jobs=6, n_units=12, n_taught=2, n_lessons=1, n_rounds=2, batch=16, replay=64, first_bundle=True, critic_first=3
)
LIKE_RELEASED = Published.released(n_jobs=6, n_taught=2, n_lessons=1, n_rounds=3, batch=16, replay=64)


def experiment(seed: int) -> Experiment:
    return Experiment.of(dl2_jobs("testbed_6n", seed=seed), cluster="dl2-6n", cadence=every_slot(SLOT_S))


def draw(rng: np.random.Generator) -> Experiment:
    return experiment(int(rng.integers(1 << 30)))


def trainer(switches: Published = SMALL, seed: int = 1, **changes: Any) -> Trainer:
    torch.set_num_threads(1)
    return Trainer(draw, MODELS, SLOT_S, seed=seed, switches=replace(switches, **changes))


def trained(made: Trainer, n: int | None = None) -> FlatNet:
    for _ in range(made.n_updates if n is None else n):
        made.update()
    return made.learner.policy.copy()


def same(one: FlatNet, other: FlatNet) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


# --- gradients, by small steps in double precision


def some(seed: int, n: int = 5, n_actions: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    mask = torch.from_numpy(rng.random((n, n_actions)) < 0.7)
    mask[:, -1] = True
    action = torch.tensor([int(rng.choice(np.flatnonzero(row))) for row in mask.numpy()])
    return torch.from_numpy(rng.normal(size=(n, n_actions))), mask, action, torch.from_numpy(rng.normal(size=n))


@pytest.mark.parametrize("kind", ["cross_entropy", "mean_square", "absolute"])
def test_gradients_of_the_three_losses_of_a_warm_up_are_right(kind):
    worth, mask, action, _ = some(1)
    assert torch.autograd.gradcheck(lambda x: lesson_loss(x, mask, action, kind), worth.requires_grad_(True))


@pytest.mark.parametrize("released", [False, True])
def test_the_networks_gradients_are_right(released):
    torch.manual_seed(0)
    form = (LIKE_RELEASED if released else SMALL).form(2)._replace(n_jobs=2)
    net = DenseNetwork(form, form.n_actions, n_units=4, n_layers=3).double()
    state = torch.rand(3, 2, form.n_features, dtype=torch.float64)
    learned = [p for p in net.parameters() if p.requires_grad]
    with torch.no_grad():
        for part in learned:
            part += 0.1 * torch.randn_like(part)  # away from where ReLU has no slope of its own
    assert len(learned) == (8 if released else 6)
    assert torch.autograd.gradcheck(lambda *_: net(state), learned)


def test_the_policy_gradient_is_that_of_eq_2_with_an_advantage_and_of_the_entropy():
    worth, mask, action, better = some(2)
    weight = torch.rand(5, dtype=torch.float64)
    worth.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, mask, action, better, entropy=0.1, weight=weight), worth)
    policy_loss(worth, mask, action, better, entropy=0.0).backward()  # type: ignore[no-untyped-call]
    chance = log_chances(worth.detach(), mask).exp()
    expected = -better[:, None] * (torch.nn.functional.one_hot(action, 7) - chance) / 5
    assert worth.grad is not None
    np.testing.assert_allclose(worth.grad.numpy(), expected.numpy(), atol=1e-12)
    assert (worth.grad[~mask] == 0).all()


@given(st.integers(0, 500), st.booleans())
def test_the_released_gradient_is_the_true_one_only_where_chances_are_still_the_stored_ones(seed, mean):
    worth, _, action, better = some(seed)
    worth.requires_grad_(True)
    chance = torch.softmax(worth, 1)
    loss = -(better * torch.log(chance.gather(1, action[:, None])[:, 0])).mean()
    spread = chance * torch.log(chance + 1e-6)
    loss = loss + 0.1 * (spread.mean() if mean else spread.sum(1).mean())
    loss.backward()  # type: ignore[no-untyped-call]
    told = stale_gradient(chance.detach(), action, better, entropy=0.1, mean=mean)
    assert worth.grad is not None
    np.testing.assert_allclose(told.numpy(), worth.grad.numpy(), atol=1e-9)


def test_a_policy_that_was_sure_of_its_action_learns_next_to_nothing_by_the_released_gradient():
    """What makes its warm-up hurt: stored chances near 1 leave (1 - chance) of the gradient, and so little entropy."""
    sure = torch.tensor([[0.999, 0.0005, 0.0005]], dtype=torch.float64)
    action = torch.tensor([0])
    told = stale_gradient(sure, action, torch.tensor([-1.0], dtype=torch.float64), entropy=0.1, mean=True)
    unsure = stale_gradient(torch.full((1, 3), 1 / 3), action, torch.tensor([-1.0]), entropy=0.1, mean=True)
    assert told.abs().max() < 0.003 * unsure.abs().max()


def test_older_samples_count_by_the_ratio_of_chances_at_most_one():
    logs = torch.log(torch.tensor([[0.2, 0.8], [0.6, 0.4]]))
    ratio = importance(logs, torch.tensor([0, 0]), torch.tensor([0.4, 0.3]))
    np.testing.assert_allclose(ratio.numpy(), [0.5, 1.0], rtol=1e-6)


def test_the_compiled_network_is_the_one_that_learns_and_follows_it():
    for switches in (SMALL, LIKE_RELEASED):
        made = trainer(switches)
        net, state = made.learner.policy.net(), torch.rand(1, 6, made.form.n_features)
        trained(made, 2)
        expected = made.learner.policy(state).detach().numpy()[0]
        np.testing.assert_allclose(scores(net, first_layer(net, state.numpy()[0])), expected, rtol=1e-4, atol=1e-4)


# --- warm-up


def taught(teacher: str, switches: Published, ways: ActionModes, seed: int = 5):
    form = switches.form(len(MODELS))
    return lessons(teacher, [experiment(seed)], form, MODELS, SLOT_S, ways, np.random.default_rng(0)), form


@pytest.mark.parametrize("teacher", ["drf", "fifo", "srtf", "optimus", "tetris", "las", "sjf", "constant", "lookahead"])
def test_any_scheduler_of_counts_can_be_a_teacher(teacher):
    told, form = taught(teacher, replace(SMALL, first_bundle=False), ActionModes(False, True, False))
    assert len(told.action) > 20
    assert told.mask[np.arange(len(told.action)), told.action].all()
    assert told.state.shape[1:] == (6, form.n_features)


def test_lessons_give_the_very_tasks_that_the_teacher_gave():
    told, _ = taught("drf", replace(SMALL, first_bundle=False, n_jobs=20), ActionModes(False, False, False))
    given = np.bincount(told.action % 3, minlength=3)
    scheduler, n_tasks = make("drf"), 0
    session = experiment(5).session(scheduler)
    while not session.done:
        snapshot = session.snapshot()
        placement = scheduler.schedule(snapshot)
        n_tasks += int(wanted(snapshot, placement).sum())
        session.step(placement)
    assert told.n_left_out == 0
    assert given[0] + given[1] + 2 * given[2] == n_tasks > 0
    assert given[0] == given[1] == 0, "DRF gives bundles"


def test_the_released_lessons_know_no_bundle_and_no_void_and_stand_in_any_order():
    told, form = taught("drf(published=True)", LIKE_RELEASED, ActionModes(True, False, True))
    given = np.bincount(np.where(told.action == form.n_actions - 1, 3, told.action % 3), minlength=4)
    assert given[0] == given[1] > 0
    assert given[2] == given[3] == 0
    assert told.n_left_out == 0, "bundles are placed whole, as the teacher places them"
    half = told.state[told.action % 3 == 1]
    assert (half[:, :, 4].sum(axis=1) == half[:, :, 5].sum(axis=1) + 1).all(), "a server follows its worker at once"
    first_rows = (told.state[:, 0, 0] > 0).mean()
    assert 0 < first_rows < 1, "jobs are not always in the first rows"
    ordered, _ = taught("drf(published=True)", LIKE_RELEASED, ActionModes(True, False, False))
    assert (ordered.state[:, 0, 0] > 0).all()


def test_void_is_learned_where_a_teacher_leaves_room():
    told, form = taught("constant", replace(SMALL, first_bundle=False), ActionModes(False, True, False))
    assert (told.action == form.n_actions - 1).any()


def test_a_policy_that_is_warmed_up_is_about_as_good_as_its_teacher():
    """The paper's sec. 4.2; held-out traces, most probable actions."""
    made = trainer(Published(n_jobs=10, n_units=64, n_taught=30, n_lessons=12, n_rounds=0, first_bundle=True), seed=1)
    seeds = range(200, 212)
    before = mean_jct(made.weights(""), experiment, seeds)
    trained(made)
    after = mean_jct(made.weights(""), experiment, seeds)
    teacher = [experiment(seed).run("drf").summary["mean_jct_s"] / SLOT_S for seed in seeds]
    assert after.mean() < 1.15 * np.mean(teacher)
    assert after.mean() < before.mean()


@pytest.mark.parametrize(
    ("teacher", "told"),
    [
        ("srft", "unknown scheduler 'srft'. Did you mean 'srtf'"),
        ("gavel_las(ideal=True)", r"teacher gavel_las\(ideal=True\) shares time among jobs; expected a scheduler"),
        ("gavel_las(published=True)", r"shares time among jobs; expected a scheduler that gives them numbers"),
    ],
)
def test_a_teacher_that_cannot_teach_is_told_in_one_line(teacher, told):
    with pytest.raises(InputError, match=told) as refused:
        taught(teacher, SMALL, ActionModes(False, True, False))
    assert "\n" not in str(refused.value)


# --- replay


def slot_of(n: int, form: Any, first: int) -> SlotSamples:
    kept = room(8, form)
    kept.n[0], kept.action[:n] = n, first + np.arange(n)
    return kept


def test_the_memory_holds_the_latest_samples_and_draws_each_at_most_once():
    form = SMALL.form(len(MODELS))
    memory, nothing = ReplayBuffer(5, form), np.zeros((6, form.n_features), np.float32)
    assert not memory.ready
    for k in range(4):
        memory.add(slot_of(2, form, 2 * k), np.full(2, float(k)), nothing, over=False)
    assert sorted(memory.columns["action"].tolist()) == [3, 4, 5, 6, 7]
    rows = memory.draw(16, np.random.default_rng(0)).rows
    assert sorted(rows.tolist()) == [0, 1, 2, 3, 4]


def test_priorities_are_the_released_codes():
    form = LIKE_RELEASED.form(len(MODELS))
    memory, nothing = Prioritised(4, form), np.zeros((6, form.n_features), np.float32)
    memory.add(slot_of(3, form, 0), np.array([0.0, 0.0, 6.0]), nothing, over=False)
    assert not memory.ready, "it is not full"
    np.testing.assert_allclose(memory.priority[:3], [1, 1, 4])  # 6 - mean of 2; at least 1
    memory.add(slot_of(1, form, 3), np.array([0.0]), nothing, over=False)
    assert memory.ready
    rng = np.random.default_rng(0)
    counts = np.bincount(np.concatenate([memory.draw(7, rng).rows for _ in range(300)]), minlength=4)
    np.testing.assert_allclose(counts / counts.sum(), np.array([1, 1, 4, 1]) / 7, atol=0.02)
    drawn = memory.draw(7, rng)
    correction = 0.1 + 301 * 1e-4
    np.testing.assert_allclose(drawn.weight, (memory.priority[drawn.rows] / 1.0) ** -correction, rtol=1e-5)
    memory.told(drawn._replace(rows=np.array([0, 1, 2])), np.array([0.09, -9.0, 0.0]))
    np.testing.assert_allclose(memory.priority[:3], [0.1**0.9, 4**0.9, 0.01**0.9])


# --- updates


def learner(switches: Published) -> Learner:
    torch.manual_seed(0)
    return Learner(switches, switches.form(len(MODELS)))


def samples(form: Any, n: int = 40) -> SlotSamples:
    rng = np.random.default_rng(0)
    kept = room(n, form)
    kept.n[0], kept.mask[:], kept.behaviour[:] = n, True, 0.5
    kept.state[:] = rng.random(kept.state.shape)
    kept.action[:] = rng.integers(form.n_actions, size=n)
    kept.chance[:] = 1 / form.n_actions
    return kept


@pytest.mark.parametrize(("discount", "over", "expected"), [(0.9, False, 1 + 0.9 * 7), (0.9, True, 1), (0.0, False, 1)])
def test_the_value_network_learns_rewards_and_the_discounted_value_of_the_next_slot(discount, over, expected):
    switches = replace(SMALL, discount=discount, critic_first=0)
    made = learner(switches)
    following = np.ones((6, made.form.n_features), np.float32)
    made.value.forward = lambda state: torch.where((state == 1).all(2).all(1), 7.0, 2.0)[:, None]  # type: ignore
    made.remember(samples(made.form), np.ones(40), following, over=over)
    columns = {name: torch.from_numpy(column[:40]) for name, column in made.memory.columns.items()}
    advantage, loss = made._advantage(columns)
    np.testing.assert_allclose(advantage.numpy(), expected - 2)
    assert loss is not None
    assert float(loss) == pytest.approx((expected - 2) ** 2)


def test_without_a_critic_rewards_are_compared_with_their_moving_average():
    made = learner(replace(SMALL, actor_critic=False))
    nothing = np.zeros((6, made.form.n_features), np.float32)
    for reward in (1.0, 2.0):
        made.remember(samples(made.form), np.full(40, reward), nothing, over=False)
    columns = {name: torch.from_numpy(column[:40]) for name, column in made.memory.columns.items()}
    advantage, loss = made._advantage(columns)
    assert loss is None
    np.testing.assert_allclose(advantage.numpy(), columns["reward"].numpy() - (0.99 * 1 + 0.01 * 2), rtol=1e-5)


def test_without_replay_an_update_learns_from_the_last_slot_alone():
    made = learner(replace(SMALL, replay=0, critic_first=0))
    nothing = np.zeros((6, made.form.n_features), np.float32)
    seen: list[int] = []
    whole = made._policy_gradient
    made._policy_gradient = lambda scores, *rest: (seen.append(len(scores)), whole(scores, *rest))[1]  # type: ignore
    for n in (40, 7):
        made.remember(samples(made.form, n), np.ones(n), nothing, over=False)
        made.update(np.random.default_rng(0))
    assert seen == [40, 7]


def test_the_critic_may_learn_first():
    made = learner(replace(SMALL, critic_first=1))
    made.remember(samples(made.form), np.ones(40), np.zeros((6, made.form.n_features), np.float32), over=False)
    before, rng = made.policy.copy(), np.random.default_rng(0)
    made.update(rng)
    assert same(made.policy.copy(), before)
    made.update(rng)
    assert not same(made.policy.copy(), before)


def test_rewards_that_follow_actions_make_them_more_probable():
    """A contextual bandit of one state: only action 4 is worth something."""
    made = learner(replace(SMALL, rate=1e-2, discount=0.0, critic_first=0, entropy=0.01))
    kept = samples(made.form, 64)
    kept.state[:] = 0.3
    kept.action[:] = np.arange(64) % made.form.n_actions
    made.remember(kept, (kept.action == 4).astype(float), kept.state[0], over=True)
    rng = np.random.default_rng(0)
    for _ in range(150):
        made.update(rng)
    chance = torch.softmax(made.policy(torch.from_numpy(kept.state[:1])).detach(), 1)[0]
    assert int(chance.argmax()) == 4
    assert float(chance[4]) > 0.5


def test_the_rewards_of_an_episode_are_eq_1_and_add_up_to_the_number_of_jobs():
    made = trainer(n_rounds=1, warm_up="")
    told: list[float] = []
    whole = made._rewards
    made._rewards = lambda reward, by_job: (told.append(reward), whole(reward, by_job))[1]  # type: ignore
    made.update()
    assert sum(told) == pytest.approx(10)


def test_a_reward_by_job_is_what_that_job_did_and_void_has_the_mean():
    made = trainer(reward="job")
    made._kept.n[0] = 3
    made._kept.job[:3] = [1, 0, -1]
    np.testing.assert_allclose(made._rewards(0.6, np.array([0.2, 0.4, 0.0])), [0.4, 0.2, 0.3])


# --- the trainer


def test_the_same_seed_gives_the_same_weights_and_another_one_others():
    for switches in (SMALL, LIKE_RELEASED):
        one = trained(trainer(switches))
        assert same(one, trained(trainer(switches)))
        assert not same(one, trained(trainer(switches, seed=2)))


@pytest.mark.parametrize("switches", [SMALL, LIKE_RELEASED])
@pytest.mark.parametrize("n", [1, 2])
def test_a_training_that_goes_on_ends_as_one_that_was_never_stopped(switches, n, tmp_path):
    whole, first = trained(trainer(switches)), trainer(switches)
    trained(first, n)
    torch.save(first.state(), tmp_path / "state")
    again = trainer(switches).go_on(torch.load(tmp_path / "state", weights_only=True))
    assert same(trained(again, again.n_updates - n), whole)
    with pytest.raises(InputError, match=r"has replay 64; expected 32"):
        trainer(switches, replay=32).go_on(first.state())


@pytest.mark.parametrize(
    "changes",
    [
        {"actor_critic": False}, {"exploration": 0.0}, {"replay": 0}, {"entropy": 0.0}, {"reward": "job"},
        {"corrected": True}, {"warm_up": ""}, {"first_bundle": True}, {"scaled": False}, {"sl_loss": "absolute"},
        {"n_layers": 1}, {"n_jobs": 2}, {"warm_up": "srtf", "n_lessons": 2}, {"voids": False},
    ],
)  # fmt: skip
def test_each_switch_changes_the_weights_that_come_of_it(changes):
    """`constant` leaves room, so that void is there to learn; without first bundles states are poor at times."""
    usual = replace(SMALL, warm_up="constant", first_bundle=False)
    made = trainer(replace(usual, **changes))
    other = trained(made)
    assert made.n_done == made.n_updates
    assert all(np.isfinite(part).all() for part in other)
    if not changes.keys() & {"n_layers", "n_jobs"}:
        assert not same(other, trained(trainer(usual)))


def test_all_reduce_jobs_have_one_action_each_and_others_are_refused(tmp_path):
    def rings(rng: np.random.Generator) -> Experiment:
        jobs = Jobs.of(
            arrival_s=np.arange(4) * 300.0, total_steps=rng.uniform(3e3, 9e3, 4), model=["resnet-50", "wlm"] * 2,
            n_workers=1, n_ps=0, max_workers=8, worker_demand=[[1, 2, 0]] * 4, steps_per_epoch=100.0, duration_s=4e3,
        )  # fmt: skip
        return Experiment.of(jobs, cluster="dl2-6n", speed="recorded", cadence=every_slot(SLOT_S))

    switches = replace(SMALL, all_reduce=True)
    told = lessons(
        "drf",
        [rings(np.random.default_rng(0))],
        switches.form(len(MODELS)),
        MODELS,
        SLOT_S,
        ActionModes(False, True, False),
        np.random.default_rng(0),
    )
    assert told.mask.shape[1] == 7
    assert told.state.shape[2] == len(MODELS) + 4
    trainer(all_reduce=True).weights("").save(tmp_path / "w.safetensors")
    run = rings(np.random.default_rng(0)).run(make(f"dl2(published=True, weights='{tmp_path}/w.safetensors')"))
    assert run.summary["n_unfinished"] == 0
    with pytest.raises(InputError, match=r"has parameter servers, and this network is for all-reduce jobs alone"):
        taught("drf", switches, ActionModes(False, True, False))


def test_a_loss_that_is_no_number_stops_with_the_last_good_weights():
    made = trainer()
    made.update()
    good = made.learner.policy.copy()
    made.learner.policy.forward = lambda state: DenseNetwork.forward(made.learner.policy, state) * float("nan")  # type: ignore
    with pytest.raises(TrainingDivergedError, match=r"the loss of update 1 is nan .* The weights are those before it"):
        made.update()
    assert same(made.learner.policy.copy(), good)


def test_it_learns_once_per_slot_in_a_session_from_what_jobs_trained(tmp_path):
    switches = replace(SMALL, critic_first=0)
    trainer(switches).weights("").save(tmp_path / "w.safetensors")
    one, other = (Online(str(tmp_path / "w.safetensors"), switches, seed=s) for s in (3, 3))
    told: list[float] = []
    whole = one.learner.remember

    def remember(kept: SlotSamples, reward: np.ndarray, following: np.ndarray, *, over: bool) -> None:
        told.append(float(reward[0]))
        whole(kept, reward, following, over=over)

    one.learner.remember = remember  # type: ignore[method-assign]
    run = experiment(5).run(one)
    assert run.summary["n_unfinished"] == 0
    n_decisions = int((run.events["kind"] == Kind.DECIDED).sum())
    assert len(one.told) == len(told) >= n_decisions - 3
    assert 9 <= sum(told) + 1e-9 <= 10 + 1e-6, "eq. 1 adds up to the jobs but for what the last slot finished"
    before = load_flat(tmp_path / "w.safetensors").net
    assert not same(one.learned("").net, before)
    assert experiment(5).run(other).summary["mean_jct_s"] == run.summary["mean_jct_s"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rules": "papers"}, "unknown rules 'papers'. Did you mean 'paper'"),
        ({"sl_loss": "mse"}, "unknown sl_loss 'mse'"),
        ({"discount": 1.5}, r"discount is 1.5; expected a number from 0 to 1\."),
        ({"rate": 0.0}, r"rate is 0.0; expected a learning rate > 0\."),
        ({"n_jobs": 0}, r"n_jobs is 0; expected a whole number >= 1\."),
        ({"prioritised": True, "replay": 0}, "expected samples to replay"),
    ],
)
def test_switches_that_cannot_be_are_told_in_one_line(changes, told):
    with pytest.raises(InputError, match=told):
        Published(**changes)


def test_the_released_form_is_that_of_its_parameters():
    """parameters.py: 6 x J, 3 J + 1, two layers of 6 J 2 / 3 units, 8,192 samples, 256 of them an update."""
    made = Published.released(n_jobs=40)
    form = made.form(8)
    assert (form.n_features, form.n_actions, made.n_units, made.n_layers) == (6, 121, 160, 2)
    assert (made.replay, made.batch, made.entropy, made.rate, made.sl_rate) == (8192, 256, 0.1, 1e-4, 5e-3)
    assert (made.discount, made.stale, made.prioritised, made.first_bundle) == (0.0, True, True, True)
    paper = Published()
    assert (paper.discount, paper.exploration, paper.n_units, paper.n_layers) == (0.9, 0.4, 256, 2)
    assert float(entropy_of(torch.log(torch.full((2, 4), 0.25)))) == pytest.approx(np.log(4))
