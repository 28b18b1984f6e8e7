"""Going on from a checkpoint: the same training, to the bit, or a refusal that says what differs."""

from __future__ import annotations

import hashlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from labkit.core.errors import InputError
from labkit.elastic import JobError, start, train
from labkit.elastic.checkpoint.resume import losses_before
from labkit.elastic.data import as_dataset

pytestmark = pytest.mark.usefixtures("by_value")

SAME: dict[str, Any] = {
    "steps": 12, "batch": 16, "shards": 4, "workers": 1, "servers": 1, "seed": 9, "optimizer": "momentum", "lr": 0.1,
}  # fmt: skip


def model(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 2))


def data(n: int = 96) -> Any:
    numbers = torch.arange(4 * n, dtype=torch.float32).reshape(n, 4).sin()
    return as_dataset((numbers, numbers[:, :2]))


def loss(module: nn.Module, batch: Any) -> Any:
    return nn.functional.mse_loss(module(batch[0]), batch[1])


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_job_goes_on_as_if_never_interrupted_with_all_its_losses_and_not_as_another_one(tmp_path: Path) -> None:
    """Before, another seed, batch or number of shards was taken without a word: samples twice, others never."""
    whole = train(model(), data(), loss, **SAME)
    folder = tmp_path / "job"
    train(model(), data(), loss, **{**SAME, "steps": 7}, folder=folder)
    before = content(folder)
    for options, what in (
        ({"seed": 10}, r"up to step 7, are of seed=9 \(not 10\): give the same, or another folder; resume=\"anyway\""),
        ({"batch": 32}, r"batch=16 \(not 32\)"),
        ({"shards": 8}, r"n_shards=4 \(not 8\)"),
        ({"seed": 1, "batch": 8}, r"seed=9 \(not 1\) and batch=16 \(not 8\)"),
        ({"optimizer": "sgd"}, "of the optimizer momentum; expected sgd"),
        ({"sync": False}, "are of synchronous training: continue with sync=True"),
        ({"steps": 7}, "of step 7 of 7: there is nothing left to do"),
        ({"data": data(97)}, r"a dataset of 96 samples \(not 97\)"),
        ({"model": model(9)}, r"of another model.*: there '0.weight' \(8, 4\), here '0.weight' \(9, 4\)"),
    ):
        given = {"model": model(), "data": data(), "loss": loss, **SAME, "folder": folder, **options}
        with pytest.raises(InputError, match=what):
            start(given.pop("model"), given.pop("data"), given.pop("loss"), **given)
        assert content(folder) == before
    result = train(model(), data(), loss, **SAME, folder=str(folder))
    assert result.digest == whole.digest
    assert result.losses == whole.losses
    assert result.losses_from == 0
    (folder / "0-events.jsonl").unlink()
    other = train(model(), data(), loss, **{**SAME, "seed": 10, "steps": 14}, folder=folder, resume="anyway")
    assert [e["from"] for e in other.events if e["event"] == "differs"] == [["seed=9 (not 10)"]]
    assert (other.losses_from, len(other.losses)) == (7, 7)
    assert other.losses[:5] == whole.losses[7:]


def test_a_job_that_has_not_trained_yet_begins_with_what_it_is_given(tmp_path: Path) -> None:
    """A first start that came to nothing, with another model, is in no job's way."""
    folder = tmp_path / "job"

    def fails(module: nn.Module, batch: Any) -> Any:
        raise ValueError("no loss today")

    with start(model(5), data(), fails, **SAME, folder=folder) as job, pytest.raises(Exception, match="no loss today"):
        job.wait()
    result = train(model(), data(), loss, **{**SAME, "steps": 1}, folder=folder)
    assert (result.version, len(result.losses)) == (1, 1)


def test_what_a_later_job_did_again_counts_once(tmp_path: Path) -> None:
    def told(n: int, began: int, steps: range, loss: float) -> None:
        lines = [f'{{"event": "began", "version": {began}}}']
        lines += [f'{{"time": 0, "event": "loss", "version": {step}, "loss": {loss}}}' for step in steps]
        (tmp_path / f"{n}-events.jsonl").write_text("\n".join(lines) + '\n{"event": "loss", "vers')

    told(0, 0, range(8), 0.5)
    told(1, 5, range(5, 7), 0.25)
    for n in range(2, 11):  # the tenth comes after the ninth
        told(n, 7, range(7, 8), n)
    assert losses_before(tmp_path, step=8) == {**dict.fromkeys(range(5), 0.5), 5: 0.25, 6: 0.25, 7: 10}
    assert losses_before(tmp_path, step=6) == {**dict.fromkeys(range(5), 0.5), 5: 0.25}
    told(11, 0, range(0), 0)  # all over again
    assert losses_before(tmp_path, step=8) == {}


# A folder that does not last ------------------------------------------------------------------------------------------


class Gated:
    """Samples that wait at some fetch until a file is there."""

    def __init__(self, gate: Path, *, at: int) -> None:
        self.samples, self.gate, self.at, self.n = data(), gate, at, 0

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, indices: list[int]) -> Any:
        self.n += 1
        while self.n > self.at and not self.gate.exists():
            threading.Event().wait(0.01)
        return self.samples.fetch(indices)


@pytest.mark.parametrize("kept", [True, False])
def test_a_last_state_that_cannot_be_saved_in_the_folder_is_saved_elsewhere_and_is_the_result(
    tmp_path: Path, kept: bool
) -> None:
    """Before, all steps were done, the servers had the state, and the job failed without it."""
    gate = tmp_path / "gate"
    given = {"folder": tmp_path / "job"} if kept else {}
    with start(model(), Gated(gate, at=20), loss, **SAME, **given, proof="off") as job:
        next(event for event in job.events() if event["event"] == "loss")
        shutil.rmtree(job.folder / "checkpoints")
        (job.folder / "checkpoints").write_text("no folder any more")
        gate.touch()
        result = job.wait()
    assert result.digest == train(model(), data(), loss, **SAME).digest
    (rescued,) = (event for event in result.events if event["event"] == "rescued")
    assert Path(rescued["folder"]).exists() == kept
    assert any("the last state is saved in" in event["what"] for event in result.events if event["event"] == "told")
    shutil.rmtree(rescued["folder"], ignore_errors=True)


def test_a_job_whose_folder_is_removed_ends_within_a_lease_and_its_state_is_saved_anew(tmp_path: Path) -> None:
    """Before, it said "training" for hundreds of steps, then raised a FileNotFoundError, and the model was gone."""
    options = {**SAME, "steps": 1_000_000, "folder": tmp_path / "job", "lease_s": 1.0}
    with start(model(), data(), loss, **options) as job:
        next(event for event in job.events() if event["event"] == "loss")
        shutil.rmtree(job.folder)
        with pytest.raises(JobError, match=r"the folder .*job was removed while the job trained.* saved in a new one"):
            job.wait()
        assert job.saved().version > 0
