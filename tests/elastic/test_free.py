"""Asynchronous training with real processes: each update is made once, whatever comes, goes and dies on the way."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter as Multiset
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from labkit.core.errors import InputError
from labkit.elastic import Job, Result, start
from labkit.elastic.shards import prove
from tests.elastic import counting
from tests.hang import HANG_S

SAMPLES, BATCH, EPOCHS = 96, 8, 20
STEPS = EPOCHS * SAMPLES // BATCH

Doing = Callable[[Job], None]


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Let processes get the model without this folder."""
    cloudpickle.register_pickle_by_value(sys.modules[counting.__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[counting.__name__])


def run(tmp_path: Path, at: dict[int, Doing] | None = None, **options: Any) -> Result:
    """Train, and do something when so many updates are made, slowly until it is done."""
    todo, slow = dict(at or {}), tmp_path / "slow"
    given = {"steps": STEPS, "batch": BATCH, "workers": 2, "servers": 2, "sync": False, "lr": 1.0, **options}
    data = counting.Numbers(given.pop("n_samples", SAMPLES), slow=slow, pause_s=0.001)
    with start(counting.Counter(len(data)), data, counting.Loss(1), **given) as job:
        for event in job.events():
            if event["event"] == "loss" and any(when <= event["version"] for when in todo):
                slow.touch()
                todo.pop(min(todo))(job)
            if event["event"] in ("scaled", "dropped", "resumed") or (event["event"] == "ready" and event["version"]):
                slow.unlink(missing_ok=True)
        assert not todo
        return job.wait(timeout_s=HANG_S)


def assert_once(result: Result, *, epochs: int = EPOCHS, n_samples: int = SAMPLES) -> None:
    """Every sample had its effect once in every epoch: the parameters say so, and so does the ledger."""
    assert counting.effects(result.model) == [[float(epochs)] * n_samples] * counting.N_PARTS
    prove(result.ledger, n_samples=n_samples, epochs=epochs)


def test_every_sample_has_its_effect_once_in_every_epoch(tmp_path: Path) -> None:
    """Also where an epoch is no whole number of batches: its last one is smaller."""
    result = run(tmp_path, n_samples=92, save_every=50)
    assert_once(result, n_samples=92)
    assert result.version == STEPS == len(result.losses)
    assert {commit.worker for commit in result.ledger} - {""} == {"worker-0", "worker-1"}


@pytest.mark.parametrize("strategy", ["handover", "suspend", "checkpoint"])
def test_scaling_repeats_and_loses_no_update(tmp_path: Path, strategy: str) -> None:
    at: dict[int, Doing] = {
        10: lambda job: job.scale(servers=1, workers=1, strategy=strategy),
        11: lambda job: job.scale(servers=-1, workers=-1, strategy=strategy),
    }
    result = run(tmp_path, at)
    assert_once(result)
    events = Multiset(event["event"] for event in result.events)
    assert events["scaled"] == 2
    if strategy == "handover":
        assert events["suspended"] <= 3  # of each worker, once: while the last checkpoint is copied


def test_a_killed_controller_loses_no_update(tmp_path: Path) -> None:
    """Workers go on with what they have leased; what was done meanwhile is told to the next controller, losses too.

    Before, of each lease the last loss alone was told, and `losses` began after the last one that was missing.
    """
    result = run(tmp_path, {20: lambda job: os.kill(job.pid, signal.SIGKILL)})
    assert_once(result)
    assert (len(result.losses), result.losses_from) == (STEPS, 0)
    assert Multiset(event["event"] for event in result.events)["loss"] == STEPS
    assert "resumed" in [event["event"] for event in result.events]


def test_what_a_killed_worker_had_is_done_by_others(tmp_path: Path) -> None:
    """The ledger is exact; of the update that it was at, blocks may have had their part: it is made again."""
    result = run(tmp_path, {20: _kill("worker-0")})
    prove(result.ledger, n_samples=SAMPLES, epochs=EPOCHS)
    for counts in counting.effects(result.model):
        assert {*counts} <= {EPOCHS, EPOCHS + 1}
        assert counts.count(EPOCHS + 1) <= BATCH


def test_a_killed_server_sends_all_back_to_the_last_checkpoint_with_its_shard_queue(tmp_path: Path) -> None:
    result = run(tmp_path, {100: _kill("ps-0")}, save_every=30)
    assert_once(result)
    began = [event["version"] for event in result.events if event["event"] == "began"]
    assert len(began) == 2
    assert began[1] >= 30


def test_staleness_is_how_many_updates_others_made_meanwhile(tmp_path: Path) -> None:
    alone = run(tmp_path, workers=1, steps=24)
    assert {event["staleness"] for event in alone.events if event["event"] == "loss"} == {0}
    two = run(tmp_path, workers=2, steps=96)
    assert max(event["staleness"] for event in two.events if event["event"] == "loss") >= 1


@pytest.mark.parametrize("sync", [False, True])
def test_training_goes_on_from_the_folder_of_a_run_before(tmp_path: Path, sync: bool) -> None:
    folder = tmp_path / "job"
    given = {"sync": sync, "folder": folder, "shards": 1}
    run(tmp_path, steps=24, **given)
    longer = run(tmp_path, steps=60, **given)
    assert longer.version == 60
    assert counting.effects(longer.model) == [[5.0] * SAMPLES] * counting.N_PARTS
    assert (len(longer.losses), longer.losses_from) == (60, 0)  # those of the run before too
    with pytest.raises(InputError, match="synchronous training: continue with"):
        run(tmp_path, steps=70, **{**given, "sync": not sync})
    with pytest.raises(InputError, match="there is nothing left to do"):
        run(tmp_path, steps=60, **given)


def _kill(name: str) -> Doing:
    def kill(job: Job) -> None:
        pids = {e["name"]: e["pid"] for e in job.events(follow=False) if e["event"] == "started"}
        os.kill(pids[name], signal.SIGKILL)

    return kill
