"""The same seed gives the same weights, also if a training is stopped and goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from labkit.core import InputError
from tests.learning.trainers import DL2, MARL, dl2_trainer, marl_trainer, same, trained

TRAINERS: dict[str, tuple[Callable[..., Any], Any]] = {"dl2": (dl2_trainer, DL2), "marl": (marl_trainer, MARL)}
WHOLE: dict[str, Any] = {}


def whole(name: str) -> Any:
    """Return the weights of a training that was never stopped."""
    if name not in WHOLE:
        WHOLE[name] = trained(TRAINERS[name][0]())
    return WHOLE[name]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_seed_decides_all_weights(name: str) -> None:
    trainer, _ = TRAINERS[name]
    assert same(trained(trainer(1)), whole(name))
    assert not same(trained(trainer(2)), whole(name))


@pytest.mark.parametrize(("name", "n"), [("dl2", 1), ("dl2", 2), ("dl2", 3), ("marl", 1), ("marl", 2)])
def test_a_training_that_goes_on_ends_as_one_that_was_never_stopped(name: str, n: int, tmp_path) -> None:
    trainer, _ = TRAINERS[name]
    trained(first := trainer(), n)
    torch.save(first.state(), tmp_path / "state")
    again = trainer().go_on(torch.load(tmp_path / "state", weights_only=True))
    assert same(trained(again, again.n_updates - n), whole(name))


@pytest.mark.parametrize("name", TRAINERS)
def test_a_state_of_another_training_is_refused(name: str) -> None:
    trainer, recipe = TRAINERS[name]
    state = trainer(1).state()
    with pytest.raises(InputError, match=r"has seed 1; expected 2"):
        trainer(2).go_on(state)
    with pytest.raises(InputError, match=rf"has n_units {recipe.n_units}; expected 8"):
        trainer(1, replace(recipe, n_units=8)).go_on(state)


def test_episodes_that_are_longer_than_there_is_room_for_are_recorded_whole(monkeypatch) -> None:
    expected = whole("dl2")
    monkeypatch.setattr("labkit.learning.dl2.USUAL_SLOTS", 1)
    assert same(trained(dl2_trainer()), expected)
