"""The training of attention: torch's network is numpy's, its compiled runs are a session's, seeds repeat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import labkit
from labkit.core import InputError, Kind
from labkit.core.errors import LabkitError
from labkit.learning.marl.plays import mean_jct_of
from labkit.learning.marl.settings import Setting
from labkit.learning.training import Course
from reproductions.attention import trainer as module
from reproductions.attention.placer import SHAPES, load, scores
from reproductions.attention.trainer import Policy, Recipe, Trainer, played

SMALL = Setting(["single_switch(4, gbps=10)"], ["marl_jobs(load=2, n_pods=1, n_slots=4)"])
SHORT = Recipe(n_rounds=3, n_draws=3)


def test_torch_scores_machines_as_numpy_does() -> None:
    torch.manual_seed(3)
    policy, rng = Policy(), np.random.default_rng(3)
    seen, task = rng.random((5, 6, SHAPES["machine"][0])), rng.random((5, SHAPES["task"][0]))
    there = np.ones((5, 6), np.bool_)
    there[0, 4:] = False  # a pod of fewer machines: they are not summed up
    with torch.no_grad():
        by_torch = policy(*(torch.from_numpy(c.astype(np.float32)) for c in (seen, task)), torch.from_numpy(there))
    for i in range(5):
        n = int(there[i].sum())
        np.testing.assert_allclose(by_torch[i, :n], scores(policy.net(), seen[i, :n], task[i]), atol=1e-5)


def test_gradients_are_those_of_differences() -> None:
    torch.manual_seed(0)
    policy = Policy().double()
    seen, task = torch.rand(3, 4, SHAPES["machine"][0]).double(), torch.rand(3, SHAPES["task"][0]).double()
    there, weight = torch.ones(3, 4, dtype=torch.bool), torch.rand(3, 4).double()

    def worth() -> torch.Tensor:
        return (policy(seen, task, there) * weight).sum()

    worth().backward()
    for name, part in policy.named_parameters():
        flat, at = part.data.view(-1), part.numel() // 2
        with torch.no_grad():
            flat[at] += 1e-6
            more = worth()
            flat[at] -= 2e-6
            less = worth()
            flat[at] += 1e-6
        assert part.grad.view(-1)[at] == pytest.approx(float(more - less) / 2e-6, rel=1e-4, abs=1e-8), name


@pytest.mark.parametrize("cluster", ["single_switch(12, gbps=10)", "pods(3, 4)"])
def test_a_compiled_run_is_that_of_a_session(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal shares, where only network cards bind; a session packs gangs that attention finds no room for."""

    monkeypatch.setattr("labkit.placers.base.place_by", lambda *_, **__: labkit.core.Placement.nothing())
    setting = Setting([cluster], [f"marl_jobs(load=2, n_pods={cluster.count('pods') * 2 + 1}, n_slots=8)"])
    jobs, built = setting.drawn(np.random.default_rng(5))
    _, world, _ = played(setting, load(), 5, None)
    run = labkit.simulate(jobs, cluster=built, scheduler="attention", interference="calibrated")
    done = run.events[run.events["kind"] == Kind.COMPLETED]
    jct = (done["time_s"] - jobs.arrival_s[done["job"]]).mean() / 1800
    assert mean_jct_of(world) == pytest.approx(jct, rel=0.02)  # the session shares links max-min


@pytest.mark.parametrize("credit", ["job", "return"])
def test_a_seed_gives_the_same_weights(credit: str) -> None:
    made = []
    for _ in range(2):
        trainer = Trainer(SMALL, seed=4, recipe=replace(SHORT, credit=credit))
        assert [update.number for update in trainer.updates()] == [0, 1, 2]
        made.append(trainer.weights("").net)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*made, strict=True))
    assert not np.array_equal(made[0].key, Trainer(SMALL, seed=5, recipe=SHORT).weights("").net.key)


def test_a_training_goes_on_where_it_was_stopped_and_ends_alike(tmp_path: Path) -> None:
    whole = Trainer(SMALL, seed=4, recipe=SHORT)
    list(whole.updates())
    first = Trainer(SMALL, seed=4, recipe=SHORT)
    first.update()
    torch.save(first.state(), tmp_path / "half.state")
    second = Trainer(SMALL, seed=4, recipe=SHORT).go_on(torch.load(tmp_path / "half.state", weights_only=True))
    list(second.updates())
    assert second.weights("").net.out.tobytes() == whole.weights("").net.out.tobytes()
    with pytest.raises(InputError, match="seed"):
        Trainer(SMALL, seed=5, recipe=SHORT).go_on(first.state())


def test_it_learns_to_keep_gangs_together() -> None:
    """From nothing: tasks anywhere are far behind a gang on one machine."""
    setting = Setting(["single_switch(8, gbps=10)"], ["marl_jobs(load=3, n_pods=1, n_slots=6, per_slot=2)"])
    trainer = Trainer(setting, seed=1, recipe=Recipe(n_rounds=10, n_draws=8, rate=1e-2))
    before = np.mean([mean_jct_of(played(setting, trainer.policy.net(), seed, None)[1]) for seed in range(5)])
    list(trainer.updates())
    after = np.mean([mean_jct_of(played(setting, trainer.policy.net(), seed, None)[1]) for seed in range(5)])
    assert after < 0.8 * before


def test_a_loss_that_is_no_number_ends_it_with_the_last_good_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, n = Trainer(SMALL, seed=4, recipe=SHORT), 0
    good = []

    def judged(scene, world):
        nonlocal n
        n += 1
        if n == SHORT.n_draws + 1:
            good.append(trainer.weights("").net)
        return np.full(len(world.steps), np.nan if n > SHORT.n_draws else float(n))

    monkeypatch.setattr(module, "blame_of", judged)
    out = tmp_path / "mine.safetensors"
    with pytest.raises(LabkitError, match=r"the loss of update 2 is nan; the weights are those of update 1\."):
        Course(out=out, source="", say=lambda _: None).run(trainer)
    np.testing.assert_array_equal(load(str(out)).key, good[0].key.astype(np.float32))


def test_a_recipe_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown credit of attention 'jobs'\. Did you mean 'job'"):
        Recipe(credit="jobs")
    with pytest.raises(InputError, match="2 plays or more"):
        Recipe(n_draws=1)
