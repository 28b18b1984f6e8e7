"""Leases of asynchronous training: what is whose when a worker dies, or loses the controller."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import pytest

from labkit.elastic.controller.data_assignment import Leases
from labkit.elastic.protocol.messages.codec import era_and_version
from labkit.elastic.protocol.messages.orders import (
    BeginTraining,
    ConfirmLeases,
    GrantLease,
    Halt,
    OwnedBlock,
    Pause,
    Resume,
    SampleLease,
)
from labkit.elastic.protocol.messages.reports import Paused, Report, WantsLease
from labkit.elastic.shards import PoisonShardError
from labkit.elastic.worker.asynchronous import AsyncWorker, LeaseRest
from labkit.elastic.worker.push_pull import Halted
from tests.elastic.stage import Numbers
from tests.hang import HANG_S


def leases(**plan: Any) -> Leases:
    return Leases.opened(**{"n_samples": 64, "batch": 4, "n_steps": 32, "seed": 0, "lease_s": 5.0, **plan})


def test_samples_that_kill_three_workers_are_named() -> None:
    service = leases()
    for number in range(3):
        grant = service.ask(f"worker-{number}", now_s=number)
        assert grant is not None
        assert grant.start == 0
        service.leave(f"worker-{number}", died=True)
    with pytest.raises(PoisonShardError, match="failed 3 times") as caught:
        service.ask("worker-3", now_s=9)
    assert "worker-2: its process died" in caught.value.what


def test_a_job_that_resumes_tries_again_the_samples_that_ended_the_one_before() -> None:
    some = leases()
    for worker in "abc":
        assert some.ask(worker, now_s=0) is not None
        some.leave(worker, died=True)
    state = some.state()
    with pytest.raises(PoisonShardError):  # within a job, after a checkpoint was loaded
        Leases.restored(state, era=1, n_steps=some.n_steps).ask("d", now_s=0)
    grant = Leases.restored(state, era=1, n_steps=some.n_steps, forgive=True).ask("d", now_s=0)
    assert grant is not None
    assert grant.start == 0


def test_a_worker_that_leaves_as_it_should_or_has_not_begun_blames_no_samples() -> None:
    """Of two leases only the first one was under way."""
    service = leases()
    for number in range(9):
        first, second = (service.ask(f"worker-{number}", now_s=number) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first.start < second.start
        service.commit(first.token, until=first.start + 4, now_s=number)
        service.leave(f"worker-{number}", died=number % 5 == 4)
    assert service.service.poison is None


@pytest.mark.parametrize("n_steps", [1, 10, 13, 32])
def test_no_lease_reaches_beyond_the_updates_asked_for_and_training_is_done_with_the_last(n_steps: int) -> None:
    """Leases of a quick worker grow: it is asked for 8 minibatches at once where 1 is left."""
    some, ends = leases(n_steps=n_steps), []
    while (grant := some.ask("a", now_s=0.1 * len(ends))) is not None:
        assert not some.done
        ends.append(grant.epoch * 64 + grant.end)
        some.commit(grant.token, until=grant.end, now_s=0.1 * len(ends))
    assert some.done
    assert ends[-1] == 4 * n_steps
    assert some.n_done == n_steps


def test_a_worker_that_is_gone_is_granted_nothing_more() -> None:
    some = leases()
    for worker in "ab":
        some.wait(worker)
    some.leave("a")
    assert [grant.worker for grant in some.serve(now_s=1)] == ["b"]


def test_of_a_worker_out_of_reach_only_leases_that_it_was_granted_expire() -> None:
    """What lies beyond the last update is withheld from all workers, and nobody would miss it."""
    some = leases(n_steps=1)
    (grant, nothing) = (some.ask("a", now_s=0) for _ in range(2))
    assert grant is not None
    assert nothing is None
    assert [lease.token for lease in some.tick([], now_s=100)] == [grant.token]
    assert not some.tick([], now_s=200)


def begin(era: int, owners: list[OwnedBlock]) -> BeginTraining:
    return BeginTraining(era, version=0, shards=(0, 0), pause=0, owners=owners)


class Alone:
    """A worker that has begun, and may lose its controller; `asked` tells whether it wants more."""

    def __init__(self, *, lease_s: float = 0.05) -> None:
        self.asked = threading.Event()
        self.holds: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.worker = AsyncWorker(
            Numbers(4), extents=[(0, 4)], loss_of=lambda *_: None, batch=4, number=0,  # type: ignore[arg-type]
            lease_s=lease_s, channel_of=lambda _: None, report=self._report,  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        self.worker.on_order(begin(1, []))
        self.worker._start = self.worker._afresh = False
        self.worker.on_order(GrantLease(1, SampleLease(7, 0, 0, 8)))
        self.found: list[LeaseRest] = []

    def _report(self, report: Report) -> None:
        if isinstance(report, WantsLease):
            self.asked.set()
        elif isinstance(report, Paused):
            assert report.number is not None
            self.holds.put(report.number)

    def lost(self) -> threading.Thread:
        """Lose the controller for longer than the worker may go on; return the thread in which it waits."""
        self.worker.on_controller_lost()
        threading.Event().wait(0.1)
        thread = threading.Thread(target=lambda: self.found.append(self.worker._next()), daemon=True)
        thread.start()
        return thread


def test_a_worker_without_a_controller_goes_on_with_what_it_has_for_a_while() -> None:
    alone = Alone(lease_s=1000)
    alone.worker.on_controller_lost()
    assert alone.worker._next().token == 7


@pytest.mark.parametrize("still_its_own", [True, False])
def test_then_it_waits_and_goes_on_with_what_is_still_its_own(still_its_own: bool) -> None:
    alone = Alone()
    thread = alone.lost()
    assert alone.asked.wait(HANG_S)  # it wants something, and no process answers
    assert not alone.found
    alone.worker.on_order(ConfirmLeases(1, [7] if still_its_own else [], []))
    alone.worker.on_order(GrantLease(1, SampleLease(9, 0, 32, 40)))
    thread.join(HANG_S)
    assert [piece.token for piece in alone.found] == [7 if still_its_own else 9]


def test_it_stands_still_once_more_for_a_controller_that_counts_anew() -> None:
    """The one that asked first has died; the next one lets it go on, and asks again before it has moved."""
    alone = Alone(lease_s=1000)
    alone.worker.on_order(Pause(1))
    thread = threading.Thread(target=alone.worker._next, daemon=True)
    thread.start()
    assert alone.holds.get(timeout=HANG_S) == 1
    with alone.worker._changed:
        alone.worker.on_order(Resume())
        alone.worker.on_order(Pause(1))
    assert alone.holds.get(timeout=HANG_S) == 1
    alone.worker.on_order(Resume())
    thread.join(HANG_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("order", [Halt(2), begin(2, [OwnedBlock(0, "b", 3), OwnedBlock(1, "b", 3)])])
@pytest.mark.parametrize("asks", [True, False])
def test_an_era_that_ends_while_blocks_are_sent_is_no_error(order: Halt | BeginTraining, asks: bool) -> None:
    """The order comes from another thread, after the first of two blocks; the rest is still sent, of the old era."""
    sent: list[int] = []

    class Server:
        def send(self, kind: object, *_: object, step: int, **__: object) -> int:
            sent.append(era_and_version(step)[0])
            if len(sent) == 1:
                thread = threading.Thread(target=worker.on_order, args=(order,))
                thread.start()
                thread.join(HANG_S)
                assert not thread.is_alive()
            return 0

    worker = AsyncWorker(
        Numbers(4), extents=[(0, 2), (2, 2)], loss_of=lambda *_: None, batch=4, number=0,  # type: ignore[arg-type]
        lease_s=1000, channel_of=lambda _: Server(), report=lambda *_, **__: None,  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    worker.on_order(begin(1, [OwnedBlock(0, "a", 0), OwnedBlock(1, "c", 0)]))
    worker._start = worker._afresh = False
    worker._base, worker._gradient = {0: 1, 1: 1}, np.ones(4, np.float32)
    worker._await(range(2), n=1)
    (worker._pull if asks else worker._push)(range(2))
    assert sent == [1, 1]
    with pytest.raises(Halted):
        worker._wait_for_blocks(again=worker._push)
    with pytest.raises(Halted):
        worker._push(range(2))  # a block that moved just then is not sent either
