"""Validation while a job trains: exact values, the best state, an early stop, errors; and logs of all of it."""

from __future__ import annotations

import csv
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from labkit.core.errors import InputError
from labkit.elastic import JobError, TrainingLog, Validation, start, training_log
from labkit.elastic.checkpoint.resume import BEST
from labkit.elastic.validation import QUEUED
from tests.hang import HANG_S

GENERATOR = torch.Generator().manual_seed(5)
X, Y = torch.randn(64, 8, generator=GENERATOR), torch.randn(64, 3, generator=GENERATOR)
OTHER = TensorDataset(torch.randn(30, 8, generator=GENERATOR), torch.randn(30, 3, generator=GENERATOR))
MANY = 1_000_000


class Slow(TensorDataset):
    """Samples that take a while, so that a job is still under way when its validation has a say."""

    def __getitem__(self, index: int) -> Any:
        threading.Event().wait(0.002)
        return super().__getitem__(index)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 3))


def loss(model: nn.Module, batch: Any) -> Any:
    out = model(batch[0])
    value = nn.functional.mse_loss(out, batch[1])
    return value, {"error": (out - batch[1]).abs().mean()}


def job(folder: Path, validate: Validation | None, **options: Any) -> Any:
    how = {"steps": 12, "batch": 16, "shards": 4, "workers": 1, "servers": 1, "lr": 0.05}
    return start(net(), Slow(X, Y), loss, folder=folder / "job", validate=validate, **{**how, **options})


def validated(result: Any) -> list[dict[str, Any]]:
    return [event for event in result.events if event["event"] == "validated"]


def test_each_saved_state_is_measured_as_a_loop_would_and_the_best_one_is_kept(tmp_path: Path) -> None:
    with job(tmp_path, Validation(data=OTHER, every=4, batch=7, metric="error")) as running:
        found = running.wait()
    told = validated(found)
    assert [event["version"] for event in told] == [4, 8, 12]
    model = found.model.eval()
    with torch.no_grad():
        expected, metrics = loss(model, OTHER.tensors)
    assert told[-1]["values"]["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert told[-1]["values"]["error"] == pytest.approx(float(metrics["error"]), rel=1e-5)
    best = min(told, key=lambda event: event["values"]["error"])
    assert found.best is not None
    assert (found.best.version, found.best.values) == (best["version"], best["values"])
    with torch.no_grad():
        again = loss(found.best.model.eval(), OTHER.tensors)[1]["error"]
    assert float(again) == pytest.approx(best["values"]["error"], rel=1e-5)
    assert set(found.best.state_dict()) == set(net().state_dict())
    assert not (tmp_path / "job" / QUEUED).exists()


def test_without_a_better_state_the_job_ends_early_and_a_later_one_goes_on_from_the_best(tmp_path: Path) -> None:
    away = Validation(data=OTHER, every=3, patience=2)
    with job(tmp_path, away, steps=MANY, lr=0.0) as running:  # a state like the first is never better
        found = running.wait(timeout_s=HANG_S)
    told = validated(found)
    assert [event["best"] for event in told[:3]] == [True, False, False]
    assert [event["stops"] for event in told[:3]] == [False, False, True]
    assert len(told) == 3
    assert 9 <= found.version < MANY
    assert found.best is not None
    assert found.best.version == told[0]["version"]
    assert (tmp_path / "job" / BEST).is_dir()


def test_values_are_the_same_with_more_workers(tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        with job(tmp_path / str(workers), Validation(data=OTHER, every=6), workers=workers) as running:
            found.append([(event["version"], event["values"]) for event in validated(running.wait())])
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_asynchronous_training_is_validated_too(tmp_path: Path) -> None:
    with job(tmp_path, Validation(data=OTHER, every=6), sync=False, workers=2) as running:
        told = validated(running.wait())
    assert told[-1]["version"] == 12


class Late:
    """Samples that cannot be read from the second time on."""

    def __init__(self) -> None:
        self.n = 0

    def __len__(self) -> int:
        return 4

    def fetch(self, indices: list[int]) -> Any:
        self.n += 1
        if self.n > 1:
            raise OSError("the disk is gone")
        return X[indices], Y[indices]


def test_a_validation_that_fails_ends_the_job_with_its_state_saved(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"step \d+: validation raised OSError: the disk is gone"):
        job(tmp_path, Validation(data=Late(), every=3), steps=MANY).wait(timeout_s=HANG_S)
    assert any((tmp_path / "job" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"every": 0}, "every is 0"),
        ({"every": 5, "patience": 0}, "patience is 0"),
        ({"every": 5, "best": "lowest"}, "best is 'lowest'; expected 'min' or 'max'"),
        ({"every": 5, "metric": "accuracy"}, "metric is 'accuracy'; the loss function returns loss, error"),
        ({"every": 5, "data": [1]}, "validation raised"),
        ({"every": 5, "data": 3}, "data is a int"),
        ({"every": 5, "loss": lambda model, batch: None}, "validation raised TypeError"),
    ],
)
def test_a_validation_that_cannot_be_is_refused_before_anything_starts(
    given: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=what):
        job(tmp_path, Validation(**{"data": OTHER, **given}))
    with pytest.raises(InputError, match="every is 5, save_every 3; expected a multiple"):
        job(tmp_path, Validation(data=OTHER, every=5), save_every=3)
    assert not (tmp_path / "job").exists()


def test_a_saved_state_can_be_looked_at_while_the_job_trains(tmp_path: Path) -> None:
    with job(tmp_path, None, steps=MANY, save_every=2) as running:
        next(event for event in running.events() if event["event"] == "saved")
        look = running.saved()
        running.stop()
        running.wait()
    assert look.version >= 2
    assert not torch.equal(look.state_dict()["0.weight"], net().state_dict()["0.weight"])


def test_a_csv_file_and_tensorboard_have_every_loss_metric_and_validation(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's files are written by tensorboardX")
    with job(tmp_path, Validation(data=OTHER, every=6)) as running:
        n = training_log(running, csv=tmp_path / "log.csv", tensorboard=tmp_path / "board")
        found = running.wait()
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert len(rows) == n == 12 + 12 + 2 * 2
    assert [float(row["value"]) for row in rows if row["name"] == "loss"] == found.losses
    assert {row["step"] for row in rows if row["name"] == "validation/error"} == {"6", "12"}
    (board,) = (tmp_path / "board").iterdir()
    assert board.read_bytes().count(b"validation/error") == 2
    assert training_log(found, csv=tmp_path / "after.csv") == n
    table = found.metrics
    assert list(table["loss"].dropna()) == pytest.approx(found.losses)
    assert list(table["validation/loss"].dropna().index) == [6, 12]


def test_a_log_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="a log of nothing"):
        TrainingLog()
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        TrainingLog(csv=tmp_path / "nowhere" / "log.csv")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"need tensorboardX \(pip install 'cluster-labkit\[train\]'\); a CSV file"):
        TrainingLog(tensorboard=tmp_path / "board")
