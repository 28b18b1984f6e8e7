"""Training the placement policy: whole traces are simulated right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.experiment import Experiment
from labkit.learning.marl.episodes import ActionRule, play, record
from labkit.learning.marl.plays import blame_of
from labkit.learning.marl.settings import Setting, world_of
from labkit.learning.marl.trainer import (
    MOST_BETTER,
    Policy,
    _parts,
    better_than_all,
    better_than_others,
)
from labkit.learning.training import TrainingDivergedError
from labkit.schedulers.marl.network import FEATURES, N_TOP, Net, desk_of
from labkit.schedulers.marl.scheduler import Marl
from labkit.schedulers.marl.weights import TrainedFor, Weights
from labkit.speed.interference.levels import level
from labkit.speed.step_time import step_time
from labkit.speed.what_if import learned
from labkit.topology import build
from labkit.workloads.expressions import trace
from labkit.workloads.readers.own import write
from tests.learning.trainers import CLUSTER, MARL, TRACE, marl_trainer, same, trained


def test_a_loss_that_is_not_finite_stops_with_the_weights_from_before():
    made = marl_trainer()
    made.update()
    before = made.policy.net()
    made.recipe = replace(MARL, rate=float("nan"), n_epochs=3)
    with pytest.raises(TrainingDivergedError, match=r"the loss of update 2 is .*; the weights are those of update 1"):
        made.update()
    assert same(made.policy.net(), before)


def test_a_trace_in_compiled_code_is_the_session_of_the_scheduler(tmp_path):
    made, known, cluster = marl_trainer(), level("calibrated"), build(CLUSTER)
    assert known is not None
    net = trained(made, 1)
    net = Net(*(part.astype(np.float32).astype(np.float64) for part in net))
    Weights(net, "labkit train-policy marl", TrainedFor.of(known)).save(tmp_path / "a.safetensors")
    jobs = trace(TRACE, seed=5)
    scene, world = world_of(jobs, cluster, model=known.model, uses=known.uses)
    play(
        scene, world, learned(net.seen, net.out), net, ActionRule(False, False, 0.0, False), desk_of(scene), record(1),
        np.random.default_rng(0),
    )  # fmt: skip
    speed = step_time(jobs, cluster, share="equal", slowdown=known.slowdown(jobs, cluster))
    run = Experiment.of(jobs, cluster=cluster, speed=speed).run(Marl(str(tmp_path / "a.safetensors")))
    jct_s = world.done_s - world.arrival_s
    assert run.summary["mean_jct_s"] == pytest.approx(jct_s.mean(), rel=1e-3)
    assert np.median(np.abs(run.table["jct_s"].to_numpy() / jct_s - 1)) < 1e-6


def test_torch_and_compiled_code_see_the_same_worth():
    made = marl_trainer()
    trained(made, 1)
    rec, how = record(200), ActionRule(True, False, 0.0, False)
    scene, world = made.worlds(np.random.default_rng(3))
    net, desk = made.policy.net(), desk_of(scene)
    play(scene, world, learned(net.seen, net.out), net, how, desk, rec, np.random.default_rng(0))
    part = _parts(rec, scene.home, 1, taught=False)
    last = len(part.action) - 1
    worth = made.policy(part.features, part.cost, part.agent)[last].detach().numpy()
    n_top = int(rec.n_top[rec.n[0] - 1])
    assert worth[:n_top] == pytest.approx(desk.logit[:n_top], rel=1e-4, abs=1e-4)
    if np.isfinite(desk.logit[n_top]):
        assert worth[N_TOP] == pytest.approx(desk.logit[n_top], rel=1e-4)


def test_gradients_are_those_of_small_differences():
    torch.manual_seed(0)
    policy = Policy(3, 4, 2).double()
    torch.nn.init.normal_(policy.last)
    seen, cost = torch.randn(3, N_TOP + 1, len(FEATURES)).double(), torch.rand(3, N_TOP).double()
    agent, felt = torch.tensor([0, 1, 0]), torch.rand(7, 6).double()

    def loss() -> torch.Tensor:
        told: torch.Tensor = torch.log_softmax(policy(seen, cost, agent), 1)[:, 2].sum()
        return told + policy.predicted(felt).square().mean()

    loss().backward()
    for part in policy.parameters():
        assert part.grad is not None
        flat, slope = part.data.view(-1), part.grad.view(-1)
        for i in range(0, len(flat), 7):
            there, step = float(flat[i]), 1e-6
            flat[i] = there + step
            more = float(loss().detach())
            flat[i] = there - step
            less = float(loss().detach())
            flat[i] = there
            assert float(slope[i]) == pytest.approx((more - less) / (2 * step), rel=1e-4, abs=1e-6)


@given(seed=st.integers(0, 1000), k=st.integers(2, 5))
def test_what_is_better_in_one_play_is_worse_in_the_others(seed: int, k: int) -> None:
    blame = np.random.default_rng(seed).normal(size=(k, 400)) * 0.1 + 5
    better = better_than_others(blame)
    kept = (np.abs(better) < MOST_BETTER).all(axis=0)  # nothing was cut off
    assert kept.mean() > 0.9
    assert better[:, kept].sum(axis=0) == pytest.approx(np.zeros(kept.sum()), abs=1e-9)
    assert (np.argmin(blame, axis=0) == np.argmax(better, axis=0)).mean() > 0.95


def test_without_the_other_plays_long_jobs_are_worse_than_short_ones_whatever_was_done():
    blame = np.array([[1.0, 9.0], [2.0, 8.0]])
    assert np.argsort(better_than_all(blame).ravel()).tolist() == [1, 3, 2, 0]
    assert (better_than_others(blame) > 0).tolist() == [[True, False], [False, True]]


def test_a_job_is_blamed_for_its_own_time_and_for_that_of_jobs_on_its_machines():
    made = marl_trainer()
    scene, world = made.worlds(np.random.default_rng(3))
    net = made.policy.net()
    play(
        scene, world, learned(net.seen, net.out), net, ActionRule(True, False, 0.0, False), desk_of(scene), record(1),
        np.random.default_rng(0),
    )  # fmt: skip
    blame, jct = blame_of(scene, world), (world.done_s - world.arrival_s) / 1800
    assert (blame >= jct - 1e-9).all()
    lonely = np.array([_met_nobody(world, j) for j in range(len(jct))])
    assert blame[lonely] == pytest.approx(jct[lonely])


def _met_nobody(world, job: int) -> bool:
    machine = world.facts.group_machine
    mine = {int(machine[g]) for g in world.where[job] if g >= 0}
    for other in range(len(world.steps)):
        theirs = {int(machine[g]) for g in world.where[other] if g >= 0}
        apart = world.done_s[other] <= world.start_s[job] or world.start_s[other] >= world.done_s[job]
        if other != job and mine & theirs and not apart:
            return False
    return True


def test_a_file_is_learned_from_in_windows_and_judged_by_later_ones(tmp_path):
    jobs = trace("marl_jobs(load=1, n_pods=2, n_slots=30)", seed=1)
    write(jobs, tmp_path / "jobs.csv")
    setting = Setting([CLUSTER], [str(tmp_path / "jobs.csv")])
    rng = np.random.default_rng(0)
    learned = [setting.drawn(rng)[0] for _ in range(30)]
    judged = [setting.held_out(k).jobs for k in range(1, 10)]
    names = [{name for some in part for name in some.id} for part in (learned, judged)]
    assert not names[0] & names[1]
    assert all(len(some) == min(60, len(jobs) // 8) for some in [*learned, *judged])
