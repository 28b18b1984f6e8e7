"""Losses and states that are no numbers: told, and by default the end of a job, with the good state kept."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labkit.core.errors import InputError
from labkit.elastic import JobError, start, train
from labkit.elastic.checkpoint.store import SavedBlock, check_blocks
from labkit.elastic.controller.losses import NotFiniteError, StepLosses, decoded, encoded, mean
from labkit.elastic.data import as_dataset
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.protocol.program import Spec

pytestmark = pytest.mark.usefixtures("by_value")

DATA = as_dataset((torch.ones(64, 1), torch.zeros(64, 1)))


class Count(nn.Module):
    """A parameter that counts updates, by SGD with lr=1, and one that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.still = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(64))


def spoilt(model: Any, batch: Any) -> Any:
    """Return a loss that is infinite from step 6 on, and NaN from step 8."""
    n = float(model.n.detach())
    return -model.n.sum() + (math.nan if n >= 8 else math.inf if n >= 6 else 0.0)


def steep(model: Any, batch: Any) -> Any:
    """Return a finite loss whose gradient is infinite."""
    return model.n.sum() + (model.still - 1).abs().pow(0.5).sum()


@pytest.mark.parametrize("sync", [True, False])
def test_a_loss_that_is_no_number_ends_the_job_with_the_checkpoint_before(sync: bool, tmp_path: Path) -> None:
    """Step, worker and value are named, and where the last good state is; nothing after it was saved."""
    job = start(
        Count(), DATA, spoilt, steps=20, batch=8, workers=1, servers=1, sync=sync, save_every=3, lr=1.0,
        folder=tmp_path / "job",
    )  # fmt: skip
    with pytest.raises(JobError) as failed:
        job.wait()
    told = failed.value.reason
    where = r"step 6, logical shard 0" if sync else r"epoch 0, minibatch at 48"
    assert re.match(rf"worker-0: {where}: the loss is inf\. Lower the learning rate", told)
    assert "\n" not in told
    named = re.search(r"the newest good checkpoint is (\S+step-(\d+));", told)
    assert named is not None
    assert int(named[2]) in ((0, 3, 6) if sync else range(7))  # steps are shorter here than writing a state
    assert Path(named[1]).is_dir()
    spec = Spec.load(tmp_path / "job")
    saved = spec.checkpoints(tmp_path / "job").newest()
    assert saved.step == int(named[2])
    assert all(np.isfinite(block.params).all() for block in saved.blocks.values())
    (event,) = [e for e in job.events(follow=False) if e["event"] == "not_finite"]
    assert event["loss"] == math.inf


@pytest.mark.parametrize("sync", [True, False])
def test_losses_that_are_no_numbers_are_recorded_where_training_is_to_go_on(sync: bool, tmp_path: Path) -> None:
    """Before, the frame that told them was dropped without a word, and losses were fewer than steps."""
    folder = tmp_path / "job"
    result = train(
        Count(), DATA, spoilt, steps=10, batch=8, workers=1, servers=1, sync=sync, optimizer="sgd", lr=1.0,
        on_nan="continue", folder=folder,
    )  # fmt: skip
    assert result.losses[:6] == [0, -1, -2, -3, -4, -5]
    assert result.losses[6:8] == [math.inf] * 2
    assert [math.isnan(loss) for loss in result.losses[8:]] == [True] * 2
    for line in (folder / "events.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # readers of JSON know no NaN


def test_a_state_that_is_no_number_is_not_saved_though_the_loss_is_finite(tmp_path: Path) -> None:
    told = (
        r"the state at step 1 is not saved: parameter 'still' has (nan|-?inf).*newest good checkpoint is \S+step-000000"
    )
    with pytest.raises(JobError, match=told):
        train(Count(), DATA, steep, steps=1, batch=8, workers=1, servers=1, lr=1.0, folder=tmp_path / "job")


def test_a_model_that_is_no_number_from_the_beginning_is_refused() -> None:
    model = Count()
    nn.init.constant_(model.still, math.nan)
    with pytest.raises(InputError, match="parameter 'still' of the model has NaN"):
        start(model, DATA, spoilt, steps=1, lr=1.0)


def test_the_first_number_that_is_none_is_named_with_its_parameter() -> None:
    cut = layout([("a", 5), ("b", (4, 4)), ("c", 3)], block_bytes=32)

    def blocks(at: int, *, state: bool = False) -> list[SavedBlock]:
        vector = np.zeros(cut.n, np.float32)
        vector[at] = np.nan
        clean = np.zeros(cut.n, np.float32)
        params, velocity = (clean, vector) if state else (vector, clean)
        return [
            SavedBlock(i, 3, cut.block(i, params), {"velocity": cut.block(i, velocity)}) for i in range(cut.n_blocks)
        ]

    for at, name in ((0, "a"), (4, "a"), (5, "b"), (20, "b"), (21, "c"), (23, "c")):
        with pytest.raises(NotFiniteError, match=f"the state at step 3 is not saved: parameter '{name}' has nan"):
            check_blocks(blocks(at), cut, step=3)
    with pytest.raises(NotFiniteError, match="velocity of parameter 'b' has nan"):
        check_blocks(blocks(9, state=True), cut, step=3)


def test_json_has_words_for_what_is_no_number() -> None:
    for value in (0.1, -3.0, math.inf, -math.inf):
        assert decoded(json.loads(json.dumps(encoded(value), allow_nan=False))) == value
    assert math.isnan(decoded(json.loads(json.dumps(encoded(math.nan), allow_nan=False))))


def test_the_mean_of_losses_keeps_what_is_no_number_in_any_order() -> None:
    for values in ([1.0, math.inf], [math.inf, 1.0]):
        assert mean(values) == math.inf
    for values in ([math.inf, -math.inf], [math.nan, 1.0], [1.0, math.nan, math.inf]):
        assert math.isnan(mean(values))
    assert mean([1e308, 1e308]) == 1e308  # their sum is beyond what a number can be
    losses = StepLosses(2)
    losses.add(0, [(1, "nan")])
    assert math.isnan(losses.add(0, [(0, 0.5)]) or 0.0)
