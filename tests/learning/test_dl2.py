"""Training DL2's policy: what an update learns from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.core import InputError
from labkit.experiment import Experiment
from labkit.learning.branches import Branching, play
from labkit.learning.dl2 import Policy, Recipe, _Parts, loss_of, mean_jct
from labkit.learning.rollouts import DRAWS
from labkit.learning.settings import Setting
from labkit.learning.training import TrainingDivergedError
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS
from tests.learning.trainers import dl2_trainer, same


def test_branches_of_a_slot_are_worth_nothing_in_the_mean_and_their_decisions_are_all_kept():
    made = dl2_trainer()
    made._play_with_branches()
    rec, recipe = made._record, made.recipe
    n_slots, n_actions = int(rec.n[3]), int(rec.n[2])
    assert n_slots % recipe.n_branches == 0
    worth = rec.reward[:n_slots].reshape(-1, recipe.n_branches)
    np.testing.assert_allclose(worth.sum(axis=1), 0, atol=1e-9)
    assert (worth != 0).any()
    first = rec.first[:n_slots].reshape(-1, recipe.n_branches)
    for slot in first:  # all branches of a slot see the same
        n = int(rec.n_jobs[np.searchsorted(rec.first[:n_slots], slot[0])])
        for k in slot[1:]:
            np.testing.assert_array_equal(rec.features[k : k + n], rec.features[slot[0] : slot[0] + n])
    parts = _Parts(rec, 3)
    assert sum(0 if (part := parts.part(m)) is None else len(part.action) for m in range(3)) == n_actions


def test_chances_in_compiled_code_are_those_of_the_network():
    """PPO's ratios begin at 1: what was drawn from is what is learned."""
    made = dl2_trainer()
    made._play_with_branches()
    part = _Parts(made._record, 1).part(0)
    assert part is not None
    scores = torch.cat(
        [
            made.policy(part.features, part.job, part.tasks)[part.row].flatten(1),
            made.policy.stop.expand(len(part.row), 1),
        ],
        1,
    )
    logs = torch.log_softmax(scores.masked_fill(~part.mask, -1e9), 1).gather(1, part.action[:, None])[:, 0]
    np.testing.assert_allclose(logs.detach().numpy(), part.log_chance.numpy(), atol=1e-4)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_gradients_of_lessons_and_of_rounds_are_those_of_small_differences(clip: float | None) -> None:
    """In double precision, of decisions that were recorded, by a network that has changed since."""
    made = dl2_trainer()
    made._play_with_teacher(1.0) if clip is None else made._play_with_branches()
    part = _Parts(made._record, 40).part(3)
    assert part is not None
    part = replace(
        part, features=part.features.double(), tasks=part.tasks.double(), log_chance=part.log_chance.double(),
        better=part.better.double(),
    )  # fmt: skip
    torch.manual_seed(0)
    policy = Policy(len(DL2_MODELS), 3).double()
    torch.nn.init.normal_(policy.worth.weight)
    learned = list(policy.parameters())
    assert torch.autograd.gradcheck(lambda *_: loss_of(policy, part, clip=clip), learned)


def test_branching_leaves_the_episodes_as_if_it_had_not_branched():
    """The first branch of a slot is how the episode goes on."""
    one, other = dl2_trainer(3), dl2_trainer(3)
    net = one.policy.net()
    for made, share in ((one, 0.0), (other, 1.0)):
        branches = made._episodes.branches
        branches.reset(seed=list(range(6)))
        made._record = made._room(16_000)
        play(branches.batch, branches.rules, net._replace(stop=np.full(1, -1e9, np.float32)), DRAWS,
             made._record, np.random.default_rng(0), Branching(1, 2, share))  # fmt: skip
    worth = [made._episodes.branches.batch.episode["worth"][:4] for made in (one, other)]
    assert np.isfinite(worth).all()
    assert (worth[0] < 0).all()
    assert (other._episodes.branches.batch.episode["n_done"][:4] == 10).all()


def test_a_short_training_beats_the_network_that_it_began_with():
    recipe = Recipe(n_lessons=12, n_rounds=12, n_envs=6, n_parts=4)
    made = dl2_trainer(1, recipe)
    seeds = range(100, 120)
    draw = lambda seed: Experiment.of(dl2_jobs("testbed_6n", seed=seed), cluster="dl2-6n")  # noqa: E731
    before = mean_jct(made.weights(""), draw, seeds)
    for _ in made.updates():
        pass
    after = mean_jct(made.weights(""), draw, seeds)
    difference = after - before
    assert difference.mean() + 2 * difference.std(ddof=1) / np.sqrt(len(seeds)) < 0


def test_a_loss_that_is_not_finite_stops_and_the_weights_are_the_last_good_ones():
    made = dl2_trainer()
    made.update()
    good = made.policy.net()
    made._record.n[:] = 0
    whole = made._learn
    made._learn = lambda *_, **__: (float("nan"), whole(1e9, imitates=True)[1])  # type: ignore[method-assign]
    with pytest.raises(TrainingDivergedError, match="the loss of update 2 is nan; the weights are those of update 1"):
        made.update()
    assert same(made.policy.net(), good)


def test_a_short_file_is_no_trace_to_learn_from():
    with pytest.raises(
        InputError, match=r"trace testbed has 3 jobs; expected 40 or more, as a policy learns from windows"
    ):
        Setting(["dl2-6n"], ["testbed"])(np.random.default_rng(0))
