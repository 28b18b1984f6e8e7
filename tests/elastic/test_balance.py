"""Blocks that are spread by how much they are used: a server that has most of the load gives some away."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.core.errors import InputError
from labkit.elastic import Job, models, start
from labkit.elastic.data import dataset
from labkit.elastic.server.slots import WINDOW_S, Rate
from labkit.elastic.shards import prove
from tests.hang import HANG_S

NAME = "wide-deep"


def begin(*, sync: bool, partition: str = "tensor", steps: int = 150, **more: Any) -> Job:
    return start(
        models.build(NAME, width=0.2), dataset(NAME, n=2048, width=0.2), models.loss(NAME), steps=steps, batch=64,
        workers=2, servers=2, optimizer="momentum", lr=0.02, sync=sync, partition=partition, **more,
    )  # fmt: skip


def balanced(job: Job) -> dict[str, Any]:
    """Balance a job as soon as it trains; return the event that tells how loads are before and after."""
    number, assignment = 0, {}
    for event in job.events():
        if event["event"] == "loss" and event["version"] >= 20 and not number:
            number = job.balance()
        if event["event"] == "assignment" and event["scaling"] == number:
            assignment = event
        if event["event"] == "scaled" and event["scaling"] == number:
            return assignment
    raise AssertionError("it was never balanced")


@pytest.mark.parametrize("sync", [True, False])
def test_a_hot_server_gives_blocks_away_and_training_stays_what_it_is(sync: bool) -> None:
    with begin(sync=sync, partition="blocks") as job:
        even = job.wait(timeout_s=HANG_S)
    with begin(sync=sync, loads_every_s=0.2) as job:
        told = balanced(job)
        result = job.wait(timeout_s=HANG_S)
    assert max(told["before"].values()) > 0.7
    assert max(told["after"].values()) < 0.53
    assert told["blocks"] > 0
    if sync:
        assert result.digest == even.digest
    else:
        prove(result.ledger, n_samples=2048, epochs=4)


def test_what_is_level_already_stays_where_it_is() -> None:
    with begin(sync=True, partition="blocks") as job:
        assert balanced(job)["blocks"] == 0
        job.stop()


def test_servers_cannot_be_balanced_by_a_restart_and_unknown_partitions_are_refused() -> None:
    with begin(sync=True) as job:
        with pytest.raises(InputError, match="strategy 'checkpoint' to balance servers; expected handover or suspend"):
            job.balance(strategy="checkpoint")
        job.stop()
    with pytest.raises(InputError, match="partition is 'rows'; expected 'blocks' or 'tensor'"):
        begin(sync=True, partition="rows")


def test_a_rate_forgets_what_is_long_ago() -> None:
    rate = Rate(now_s=0.0)
    for second in range(60):
        rate.add(100.0, now_s=float(second))
    for second in range(60, 60 + 6 * int(WINDOW_S)):
        rate.add(1.0, now_s=float(second))
    assert 1.0 <= rate.per_s(60 + 6 * WINDOW_S) < 10.0
