"""Attach to a job that another process has started: it outlives that process, and can be watched, changed and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from labkit.core.errors import InputError
from labkit.elastic import Validation, attach, start
from tests.hang import HANG_S

STARTER = """
import os, sys, threading, torch
from torch import nn
from torch.utils.data import TensorDataset
from labkit.elastic import start

GATE = sys.argv[1] + "/go"

class Gated(TensorDataset):
    n = 0

    def __getitem__(self, index):
        self.n += 1
        while self.n > 100 and not os.path.exists(GATE):
            threading.Event().wait(0.01)
        return super().__getitem__(index)

def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])

torch.manual_seed(0)
model, x, y = nn.Linear(4, 2), torch.randn(64, 4), torch.randn(64, 2)
job = start(model, Gated(x, y), loss, steps=int(sys.argv[2]), batch=16, shards=4, workers=1, servers=1, lr=0.1,
            folder=sys.argv[1], detached=True)
next(event for event in job.events() if event["event"] == "loss")
"""


def started(folder: Path, *, steps: int) -> None:
    """Start a job in a process that ends as soon as it trains; it waits for the file `go` after some steps."""
    subprocess.run([sys.executable, "-c", STARTER, str(folder), str(steps)], check=True, timeout=HANG_S)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def in_this_process(folder: Path, *, steps: int, **options: Any) -> Any:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2), torch.randn(64, 4), torch.randn(64, 2)
    return start(
        model, TensorDataset(x, y), loss, steps=steps, batch=16, shards=4, workers=1, servers=1, lr=0.1, folder=folder,
        **options,
    )  # fmt: skip


def test_a_detached_job_outlives_its_starter_and_is_watched_scaled_and_waited_for_by_another(tmp_path: Path) -> None:
    started(tmp_path / "job", steps=60)
    with attach(tmp_path / "job") as job:
        assert job.status().phase == "training"
        job.scale(workers=+1)
        (tmp_path / "job" / "go").touch()
    result = attach(tmp_path / "job").wait(timeout_s=HANG_S)  # leaving the block before did not end it
    with in_this_process(tmp_path / "other", steps=60) as other:
        assert result.digest == other.wait().digest
    assert len(result.losses) == 60
    assert attach(tmp_path / "job").wait(timeout_s=HANG_S).digest == result.digest  # over by now


def test_a_second_start_in_a_folder_is_refused_before_the_first_ones_controller_is_up(tmp_path: Path) -> None:
    """Before, both were accepted, and had the same result: a training with the other's learning rate."""
    with in_this_process(tmp_path / "job", steps=1_000_000) as job:  # it must not be done before the second start
        with pytest.raises(InputError, match="a job is running in"):
            in_this_process(tmp_path / "job", steps=40)
        other = attach(tmp_path / "job")
        other.stop(save=True)
        version = other.wait(timeout_s=HANG_S).version  # nor is it told to have ended
        assert job.wait(timeout_s=HANG_S).version == version
    with in_this_process(tmp_path / "job", steps=version + 10) as again:
        assert again.wait(timeout_s=HANG_S).version == version + 10


def test_a_job_is_stopped_from_another_process_and_its_starter_gets_the_result(tmp_path: Path) -> None:
    with in_this_process(tmp_path / "job", steps=1_000_000) as job:
        next(event for event in job.events() if event["event"] == "loss")
        other = attach(tmp_path / "job")
        other.stop(save=True)
        assert other.wait(timeout_s=HANG_S).digest == job.wait(timeout_s=HANG_S).digest


def test_an_attached_process_follows_the_controller_that_replaces_a_killed_one(tmp_path: Path) -> None:
    with in_this_process(tmp_path / "job", steps=1_000_000) as job:
        next(event for event in job.events() if event["event"] == "loss")
        other = attach(tmp_path / "job")
        os.kill(job.pid, signal.SIGKILL)
        assert other.status().phase in ("training", "taking_over")
        other.stop(save=True)
        assert other.wait(timeout_s=HANG_S).version > 0


def test_what_cannot_be_attached_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no job was started in .*nowhere; expected the folder of start"):
        attach(tmp_path / "nowhere")
    with in_this_process(tmp_path / "job", steps=2) as job:
        job.wait()
    (tmp_path / "job" / "events.jsonl").unlink()  # as of a job whose controller was killed before its end
    with pytest.raises(InputError, match="has no controller: it ended with the process that started it"):
        attach(tmp_path / "job")
    with pytest.raises(InputError, match="detached=True without a folder"):
        start(nn.Linear(4, 2), TensorDataset(torch.ones(64, 4)), loss, steps=1, lr=0.1, detached=True)
    validate = Validation(data=TensorDataset(torch.ones(8, 4), torch.ones(8, 2)), every=1)
    with pytest.raises(InputError, match=r"detached=True with validate=\.\.\."):
        in_this_process(tmp_path / "more", steps=1, detached=True, validate=validate)
