"""Small models have few blocks: enough for their servers, with the same bits; checkpoints keep their cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from labkit.core.errors import InputError
from labkit.elastic import loading, start
from labkit.elastic.protocol.blocks import ENOUGH_BLOCKS, layout

GENERATOR = torch.Generator().manual_seed(5)
X, Y = torch.randn(64, 40, generator=GENERATOR), torch.randn(64, 30, generator=GENERATOR)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 30))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def job(folder: Path, *, steps: int = 6, **options: Any) -> Any:
    return start(
        net(), TensorDataset(X, Y), loss, steps=steps, batch=16, shards=4, lr=0.1, folder=folder,
        **{"workers": 1, "servers": 1, **options},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("n", "n_blocks", "found"), [(250_000, 4, 4), (250_000, 6, 6), (1_000_000, 4, 16), (4_010_000, 4, 64), (100, 16, 7)]
)
def test_models_below_16_mb_have_as_many_blocks_as_are_asked_for_or_some_of_250_kb(
    n: int, n_blocks: int, found: int
) -> None:
    assert layout([("p", n)], n_blocks=n_blocks).n_blocks == found
    assert layout([("p", n)], n_blocks=ENOUGH_BLOCKS) == layout([("p", n)])


def test_the_number_of_blocks_changes_no_bit(tmp_path: Path) -> None:
    with job(tmp_path / "few") as few, job(tmp_path / "many", most_servers=12) as many:
        a, b = few.wait(), many.wait()
    assert (len(a.blocks), len(b.blocks)) == (4, 12)
    assert (a.digest, a.losses) == (b.digest, b.losses)


def test_a_training_goes_on_with_the_blocks_of_its_checkpoints_whatever_it_would_have_now(tmp_path: Path) -> None:
    with job(tmp_path / "whole") as whole:
        expected = whole.wait()
    with job(tmp_path / "job", steps=3, most_servers=ENOUGH_BLOCKS) as before:  # as all jobs were cut once
        n_blocks = len(before.wait().blocks)
    with job(tmp_path / "job", servers=3) as after:
        found = after.wait()
    assert len(found.blocks) == n_blocks != len(expected.blocks)
    assert found.digest == expected.digest
    assert found.losses == expected.losses


def test_more_servers_than_blocks_are_refused_with_the_argument_that_helps(tmp_path: Path) -> None:
    with job(tmp_path / "job", steps=100_000) as running:
        with pytest.raises(InputError, match=r"5 servers for 4 blocks; .* start\(most_servers=5\)"):
            running.scale(servers=4)
        running.stop()
        running.wait()


@pytest.mark.skipif(loading.has_accelerator(), reason="torch seeds the GPU that is here")
def test_seeding_a_shard_leaves_nothing_behind_in_torch() -> None:
    """torch.manual_seed queues a call with its stack for a GPU that is never used: 0.1 ms and 1 KB each time."""
    before = len(torch.cuda._queued_calls)
    loading.seed_all(3)
    drawn = torch.rand(3)
    loading.seed_all(4)
    assert len(torch.cuda._queued_calls) == before
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), drawn)
