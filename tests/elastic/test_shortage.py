"""A job whose server or worker has too little memory: found out, no crash of it, and over once there is more."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from labkit.elastic import Job, start
from labkit.elastic.process.limits import GB, resident_bytes, trees_here
from tests.hang import HANG_S


class Hungry(nn.Module):
    """Has 8 MB of parameters on its servers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2_000_000))


class Numbers:
    def __len__(self) -> int:
        return 4096

    def fetch(self, indices: Any) -> torch.Tensor:
        return torch.as_tensor(list(indices)).float()


def loss(model: Hungry, batch: torch.Tensor) -> torch.Tensor:
    return (model.weight[:100] ** 2).sum() + batch.mean() * model.weight[0]


def until(job: Job, true: Any) -> Any:
    """Wait until something is so of the status of a job."""
    end_s = time.monotonic() + HANG_S
    while time.monotonic() < end_s:
        status = job.status()
        if true(status):
            return status
    raise AssertionError(f"not within {HANG_S} s: {job.status()}")


def limit(job: Job, name: str) -> None:
    """Leave a member 4 MB more than it has; again, if it grew beyond that before the limit came."""
    told = (event for event in job.events() if event["event"] == "resized")
    while True:
        pid = next(seat.pid for seat in job.status().members if seat.name == name)
        job.resize({name: (None, resident_bytes(pid) / GB + 0.004)})
        if not any("already" in each for each in next(told)["unable"]):
            return


WAYS = ["brake", pytest.param("v1", marks=pytest.mark.skipif(trees_here(versions=(1,)) is None, reason="no cgroup v1"))]


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_may_have_no_more_memory_is_replaced_which_is_no_crash(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_LIMITS", way)
    with start(
        Hungry(), Numbers(), loss, steps=10**6, batch=32, workers=1, servers=2, optimizer="adam", lr=0.001, sync=False,
        save_every=20, restarts=0,
    ) as job:  # fmt: skip
        before = until(job, lambda status: status.step > 30)
        limit(job, "ps-0")
        job.scale(servers=-1)  # ps-0 is to take the blocks of the other: 12 MB
        after = until(job, lambda status: status.lost and status.phase == "training" and status.step > before.step + 50)
        assert [(lost.name, lost.cause) for lost in after.lost] == [("ps-0", "out_of_memory")]
        job.stop()
        events = job.wait(timeout_s=HANG_S).events
    resized = [event for event in events if event["event"] == "resized"][-1]
    assert resized["how"] == way
    assert bool(resized["unable"]) == (way == "brake")
