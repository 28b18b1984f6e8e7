"""Real processes: the same bits whatever the number of workers and servers, and whatever comes and goes on the way."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from labkit.core.errors import InputError
from labkit.elastic import Job, JobError, Result, train
from labkit.elastic.data import dataset
from tests.elastic import slow_training

pytestmark = pytest.mark.usefixtures("by_value")

STEPS = 60
begin, run = (partial(each, steps=STEPS) for each in (slow_training.begin, slow_training.run))


@pytest.fixture(scope="module")
def control(by_value: None) -> Result:
    """A run that nothing happens to."""
    return run()


def test_a_job_learns_and_leaves_nothing_behind(control: Result) -> None:
    result = control
    assert result.version == STEPS
    assert len(result.losses) == STEPS
    assert sum(result.losses[-5:]) < 0.5 * sum(result.losses[:5])
    pids = [event["pid"] for event in result.events if event["event"] == "started"]
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 4)])
def test_the_numbers_of_workers_and_servers_do_not_change_a_bit(control: Result, workers: int, servers: int) -> None:
    assert run(workers=workers, servers=servers).digest == control.digest


@pytest.mark.parametrize("strategy", ["handover", "suspend", "checkpoint"])
def test_scaling_does_not_change_a_bit(control: Result, strategy: str, tmp_path: Path) -> None:
    """One more server and one more worker; then the first server goes."""
    at = {
        5: lambda job: job.scale(servers=1, workers=1, strategy=strategy),
        STEPS // 2: lambda job: job.scale(servers=-1, strategy=strategy),
    }
    result = run(at, slow=tmp_path / "slow")
    assert result.digest == control.digest
    assert result.losses == control.losses
    events = [event["event"] for event in result.events]
    assert events.count("scaled") >= 1
    if strategy == "handover":
        assert "held" not in events


@pytest.mark.parametrize("victim", ["worker-0", "ps-0"])
def test_a_killed_process_costs_no_bit(control: Result, victim: str) -> None:
    """A killed worker's shards are done by another; a killed server's blocks come back from the last checkpoint."""
    pids: dict[str, int] = {}

    def kill(job: Job) -> None:
        pids.update({e["name"]: e["pid"] for e in job.events(follow=False) if e["event"] == "started"})
        os.kill(pids[victim], signal.SIGKILL)

    result = run({20: kill}, save_every=10)
    assert result.digest == control.digest
    left = [e for e in result.events if e["event"] == "left" and e["name"] == victim]
    assert [e["expected"] for e in left] == [False]
    assert any(e["event"] == "goes_back" for e in result.events) == (victim == "ps-0")


def test_training_goes_on_without_its_controller_and_the_next_one_takes_over(control: Result, tmp_path: Path) -> None:
    """Workers and servers are not disturbed: nothing is stopped, nothing is loaded again, and it can be scaled."""
    at = {10: lambda job: os.kill(job.pid, signal.SIGKILL), STEPS - 20: lambda job: job.scale(servers=-1)}
    result = run(at, slow=tmp_path / "slow")
    assert result.digest == control.digest
    events = [event["event"] for event in result.events]
    assert events.count("taken_over") == events.count("resumed") == 1
    assert "goes_back" not in events
    assert events.count("began") == 1
    assert events.count("started") == 4


def test_an_error_in_the_model_ends_the_job_and_is_told() -> None:
    from torch import nn

    model, data = nn.Linear(3, 2), dataset("digits-like", n=64)

    def loss(module: nn.Module, batch: Any) -> Any:
        return module(batch[0].flatten(1)).sum()

    with pytest.raises(JobError, match=r"worker-.: step 0, logical shard .: RuntimeError: mat1 and mat2 shapes"):
        train(model, data, loss, steps=5, batch=8, servers=1, lr=0.1)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"batch": 30}, "cannot be cut into 8 equal logical shards"),
        ({"batch": 1024}, "fewer than one batch of 1024"),
        ({"workers": 0}, "expected at least one"),
        ({"servers": 999}, "expected at most one per block"),
        ({"optimizer": "sdg"}, "Did you mean 'sgd'"),
        ({"steps": 0}, "expected at least one"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        begin(**options)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda nn: nn.Flatten(), "nothing can be trained"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_name(make: Any, what: str) -> None:
    from torch import nn

    with pytest.raises(InputError, match=what):
        train(make(nn), dataset("digits-like", n=64), lambda *_: None, steps=5, batch=8, servers=1, lr=0.1)


def test_a_request_that_makes_no_sense_leaves_the_job_as_it_was(control: Result) -> None:

    def refused(job: Job) -> None:
        for request in ({"workers": -2}, {"servers": 99}, {"replace": ["ps-7"]}, {"strategy": "hope"}):
            with pytest.raises(InputError):
                job.scale(**request)

    assert run({3: refused}).digest == control.digest
