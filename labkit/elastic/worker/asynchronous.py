"""The asynchronous worker: each of its gradients is an update at once, and it waits for no other worker."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, assert_never

from labkit.elastic.controller.losses import NotFiniteError, check_finite, encoded
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import orders, reports
from labkit.elastic.protocol.messages.blocks import BlocksMoved, ReplicasAdded
from labkit.elastic.protocol.messages.codec import at, era_and_version
from labkit.elastic.protocol.messages.orders import SampleLease
from labkit.elastic.protocol.messages.reports import UpdateDone
from labkit.elastic.transport import Channel, FrameError, Head, Message
from labkit.elastic.worker.push_pull import Extent, Halted, PushPull, Target, unlimited
from labkit.elastic.worker.shard_gradients import FlatModel


class AsyncWorker:
    """The training loop of one worker in asynchronous mode.

    An update of the worker has a number. The worker pushes its gradient block by block. A server applies it once, even
    if it arrives twice, and answers with the parameters after it. When all blocks have answered, the worker reports the
    samples as done.
    """

    def __init__(
        self,
        flat: FlatModel,
        *,
        extents: Sequence[Extent],
        # (epoch, start, end): returns the mean loss of positions `start` to before `end` of the epoch's order, a tensor
        loss_of: Callable[[int, int, int], Any],
        batch: int,  # samples of an update
        number: int,  # of this worker; no other worker ever has it
        # seconds after which the controller may give a lease to another worker if it receives nothing from this one
        lease_s: float,
        channel_of: Callable[[str], Channel],
        report: reports.SendReport,
        finite: bool = True,
        keep: Callable[[], bool] = unlimited,
        metrics_of: Callable[[], Mapping[str, float]] = dict,
        clip_norm: float = 0.0,  # limit of the norm of each gradient; 0: none
    ) -> None:
        self._clip_norm = clip_norm
        self.flat, self.extents, self.batch, self.number = flat, extents, batch, number
        # ((epoch, position), time.monotonic at its start) of the minibatch that is being computed
        self.busy: tuple[tuple[int, int], float] | None = None
        self._finite, self._keep, self._metrics_of = finite, keep, metrics_of
        self._loss_of, self._report, self._blocks = loss_of, report, range(len(extents))
        self._servers = PushPull(channel_of, extents=extents, lender=flat.lender)
        self._changed = threading.Condition()
        self._leases = LeaseQueue(lease_s=lease_s)
        self._era = 0
        self._owner: dict[int, str] = {}
        self._moves: dict[int, int] = {}
        self._start = self._stop = self._finish = self._afresh = False
        self._hold = 0  # number of the pause that the controller wants; 0: none
        self._n_holds = 0  # pauses ordered so far
        self._moved: set[int] = set()  # missing blocks to be asked for again
        self._missing: set[int] = set()  # blocks that have not answered the update in progress
        self._base: dict[int, int] = {}  # version of each block that it computes with
        self._stale: list[int] = []  # other workers' updates in each answer, since its base
        self._n = 0  # number of its last update
        self._awaited = 0  # number of the update that answers must contain
        self._gradient: Vector | None = None

    @property
    def version(self) -> int:
        """The newest version of a block that it has received."""
        return max(self._base.values(), default=0)

    # --- frames from servers, in the threads of connections

    def place(self, head: Head) -> Vector | None:
        """Return the slice for a block's parameters; None: not wanted."""
        if not self._awaits(head):
            return None
        first, n = self.extents[head.block]
        return self.flat.versions[0][first : first + n]

    def _awaits(self, head: Head) -> bool:
        """Return whether a block is missing, and its parameters contain the update in progress."""
        return (
            era_and_version(head.step)[0] == self._era and head.block in self._missing and head.offset >= self._awaited
        )

    def on_params(self, message: Message) -> None:
        """Record that a block has made the update."""
        head = message.head
        version = era_and_version(head.step)[1]
        with self._changed:
            if not self._awaits(head):
                return
            self._stale.append(version - self._base.get(head.block, version - 1) - 1)
            self._base[head.block], self._n = version, max(self._n, head.offset)
            self._missing.discard(head.block)
            if not self._missing:
                self._changed.notify_all()

    def on_replicas_added(self, notice: ReplicasAdded) -> None:
        """Ignore it: asynchronous training has no replicas."""

    def on_replicas_ready(self, server: str, step: int) -> None:
        """Ignore it: asynchronous training has no replicas."""

    def on_norms(self, message: Message) -> None:
        """Ignore it: this worker has the whole gradient."""

    def fetch(self, message: Message) -> bool:  # noqa: ARG002
        """Refuse parameters in a server's memory: FrameError."""
        raise FrameError("parameters lie in a server's memory, where this worker does not look.")

    def on_moved(self, notice: BlocksMoved) -> None:
        """Take the new owners of blocks at once."""
        with self._changed:
            if notice.era != self._era:
                return
            for block, _, moves in notice.blocks if notice.owner else ():
                if moves > self._moves.get(block, -1):
                    self._moves[block], self._owner[block] = moves, notice.owner
                    if block in self._missing:
                        self._moved.add(block)
            self._changed.notify_all()

    # --- what happens to connections, and the controller's orders

    def reconnected(self, server: str) -> None:
        """Push again what a broken connection may have lost; servers ignore duplicates."""
        with self._changed:
            self._moved |= {block for block in self._missing if self._owner.get(block) == server}
            self._changed.notify_all()

    def state(self) -> reports.StateReported:
        """Return the state of this worker for a new controller."""
        with self._changed:
            training = bool(self._base) and not (self._start or self._afresh)
            return reports.StateReported(self.version, self._era, training)

    def repeat_losses(self) -> None:
        """Do nothing: losses are part of the reports on samples, which are repeated on the order `ReportState`."""

    def on_controller_lost(self) -> None:
        """Go on for a limited time only: the controller may give this worker's samples to another one."""
        with self._changed:
            self._leases.disconnect()
            self._changed.notify_all()

    def on_order(self, order: orders.TrainingOrder) -> None:
        """Take an order of the controller."""
        with self._changed:
            self._take(order)
            self._changed.notify_all()

    def _take(self, order: orders.TrainingOrder) -> None:  # noqa: C901 - a case for each order
        match order:
            case orders.BeginTraining():
                self._begin_era(order)
            case orders.SetOwners():
                self._correct_owners(order)
            case orders.GrantLease() | orders.ConfirmLeases() | orders.RevokeLease():
                self._take_leases(order)
            case orders.Pause():
                self._hold, self._n_holds = order.number, self._n_holds + 1
            case orders.Resume():
                self._hold = 0
            case orders.Halt():
                self._era, self._start, self._afresh = order.era, False, True
                self._forget()
            case orders.FinishStep():
                self._finish = True
            case orders.Stop():
                self._stop = True
            case orders.ReportState():
                self._repeat_reports()
            case orders.AssignShards() | orders.SetReplicas() | orders.PauseAtVersion():
                pass  # of synchronous training
            case _:
                assert_never(order)

    def _begin_era(self, order: orders.BeginTraining) -> None:
        self._era, self._start, self._afresh, self._hold = order.era, True, True, order.pause
        self._n_holds += 1
        self._leases.reconnect()
        self._forget()
        for block, owner, moves in order.owners:
            self._owner[block], self._moves[block] = owner, moves

    def _correct_owners(self, order: orders.SetOwners) -> None:
        if order.era == self._era:
            for block, owner, moves in order.owners:
                if moves > self._moves.get(block, -1):
                    self._moves[block], self._owner[block] = moves, owner
                    self._moved |= {block} & self._missing

    def _take_leases(self, order: orders.GrantLease | orders.ConfirmLeases | orders.RevokeLease) -> None:
        if isinstance(order, orders.RevokeLease):
            self._leases.remove(order.token)
        elif order.era != self._era:
            return
        elif isinstance(order, orders.GrantLease):
            self._leases.add(order.lease)
        else:
            self._leases.keep(order.tokens, order.leases)

    def _repeat_reports(self) -> None:
        """Repeat the reports that a new controller may not have received."""
        for done in chain.from_iterable(self._leases.reports.values()):
            self._report(replace(done, again=True))
        self._leases.asked = False

    def _forget(self) -> None:
        self._owner, self._moves, self._base = {}, {}, {}
        self._leases.clear()

    # --- the loop

    def run(self) -> None:
        """Train until the controller orders it to stop."""
        has_parameters = False
        while not self._stop:
            try:
                if has_parameters:
                    self._step(self._next())
                else:
                    self._begin()
                    has_parameters = True
            except Halted:
                has_parameters = False

    def _begin(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._start)
            if self._stop:
                raise Halted
            self._start = self._afresh = False
        self._await(self._blocks, n=0)
        self._pull(self._blocks)
        self._wait_for_blocks(again=self._pull)
        self._report(reports.TrainingBegun(self.version))

    def _await(self, blocks: Iterable[int], *, n: int) -> None:
        with self._changed:
            self._check()
            self._n, self._awaited = max(n, self._n), n
            self._missing, self._stale = set(blocks), []
            self._moved.clear()

    def _pull(self, blocks: Iterable[int]) -> None:
        era, targets = self._targets(blocks)
        owner = {target.block: target.owner for target in targets}
        moves = {target.block: target.moves for target in targets}
        self._servers.pull(owner, step=at(era, 0), owner=owner, moves=moves)

    def _targets(self, blocks: Iterable[int]) -> tuple[int, list[Target]]:
        """Return the era and the owners of blocks at one moment: an order may replace the map during the sending.

        If an owner changes afterwards, the new one is asked again (`_moved`). Servers ignore frames of an old era.
        """
        with self._changed:
            self._check()
            return self._era, [Target(b, self._owner[b], self._moves[b], self._base.get(b, 0)) for b in blocks]

    def _next(self) -> LeaseRest:
        """Return the lease to work on; wait for one, and pause when the controller wants it."""
        while True:
            self._stop |= self._finish
            self._pause()
            with self._changed:
                self._check()
                first = self._leases.first()
                if first is not None:
                    return first
                requested, self._leases.asked = self._leases.asked, True
            if not requested:
                self._report(reports.WantsLease())
            with self._changed:
                self._changed.wait_for(self._has_news)

    def _has_news(self) -> bool:
        work = not self._leases.asked or self._leases.first()
        return bool(work or self._is_over() or self._finish or self._hold)

    def _ask_ahead(self) -> None:
        """Request the next lease while the last minibatch of this one is computed."""
        with self._changed:
            due = self._leases.is_last() and not self._leases.asked
            self._leases.asked |= due
        if due:
            self._report(reports.WantsLease())

    def _is_over(self) -> bool:
        return self._stop or self._afresh

    def _pause(self) -> None:
        """orders.Pause, and again for each new order: a new controller counts pauses from the beginning."""
        while self._hold:
            self._pause_once(self._n_holds, number=self._hold)

    def _pause_once(self, n_holds: int, *, number: int) -> None:
        began = time.perf_counter()
        self._report(reports.Paused(self.version, number))
        with self._changed:
            self._changed.wait_for(lambda: not self._hold or self._n_holds != n_holds or self._is_over())
            self._check()
        self._report(reports.Resumed(self.version, time.perf_counter() - began))

    def _step(self, lease: LeaseRest) -> None:
        began = time.perf_counter()
        end = min(lease.start + self.batch, lease.end)
        if end == lease.end:
            self._ask_ahead()
        loss = self._compute(lease.epoch, lease.start, end)
        computed = time.perf_counter()
        self._update()
        with self._changed:
            self._check()
            done = reports.UpdateDone(
                self.version, lease.token, end, encoded(loss), max(self._stale), computed - began,
                time.perf_counter() - computed, {name: encoded(value) for name, value in self._metrics_of().items()},
            )  # fmt: skip
            self._leases.advance(lease, end, done)
        self._report(done)

    def _compute(self, epoch: int, start: int, end: int) -> float:
        self.flat.use(0)
        if self._gradient is None:
            self._gradient = self.flat.borrow()
        self.busy = (epoch, start), time.monotonic()
        self.flat.begin()
        loss = self._loss_of(epoch, start, end)
        self.flat.gradient(loss, self._gradient)
        if self._clip_norm:
            self.flat.clip(self._clip_norm)
        self.busy = None
        if self._finite:
            self._check_loss(float(loss.detach()), epoch=epoch, start=start)
        while self._keep():
            self._check()
        return float(loss.detach())

    def _check_loss(self, loss: float, *, epoch: int, start: int) -> None:
        try:
            check_finite(loss, where=f"epoch {epoch}, minibatch at {start}")
        except NotFiniteError:
            self._report(reports.NotFinite(self.version, encoded(loss), epoch=epoch, start=start))
            raise

    def _update(self) -> None:
        self._await(self._blocks, n=self._n + 1)
        self._push(self._blocks)
        self._wait_for_blocks(again=self._push)
        self._servers.flush()

    def _push(self, blocks: Iterable[int]) -> None:
        assert self._gradient is not None
        era, targets = self._targets(blocks)
        self._servers.push_update(self._gradient, targets, era=era, worker=self.number, number=self._n)

    def _wait_for_blocks(self, *, again: Callable[[Iterable[int]], None]) -> None:
        """Wait until all blocks have answered; ask new owners again."""
        while self._missing:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over() or not self._missing or self._moved)
                self._check()
                moved, self._moved = sorted(self._moved & self._missing), set()
            if moved:
                again(moved)

    def _check(self) -> None:
        """Raise Halted if the update in progress must be dropped."""
        if self._is_over():
            raise Halted


REPORTS_KEPT = 3
"""Leases whose reports are kept: without a controller a worker ends the lease that it has and the next one."""

ALONE_LEASES = 0.6
"""Lease times that a worker goes on without a controller. The controller lets a lease expire no earlier than 0.75 lease
times after the connection ended. A worker that is only cut off must have stopped by then, because another worker gets
the same samples."""


class LeaseRest(NamedTuple):
    """What is left of a lease."""

    token: int
    epoch: int
    start: int
    end: int
    """`start` and `end`: positions in the epoch's order, from `start` to before `end`."""


class LeaseQueue:
    """The leases that a worker holds; guarded by the worker's condition.

    `lease_s`: seconds after which the controller may give a lease to another worker if it receives nothing from this
    one.
    """

    def __init__(self, *, lease_s: float) -> None:
        self._alone_s = ALONE_LEASES * lease_s
        self._until_s = math.inf  # when it stops without a controller
        self._rests: deque[LeaseRest] = deque()
        self.asked = False  # whether a lease has been requested that has not come
        # reports of each of the latest leases, by token: a new controller may not have received them
        self.reports: dict[int, list[UpdateDone]] = {}

    def clear(self) -> None:
        """Drop all leases: the era is over."""
        self._rests.clear()
        self.reports.clear()
        self.asked = False

    def add(self, lease: SampleLease) -> None:
        """Add a lease that was requested."""
        self.asked = False
        self._rests.append(LeaseRest(*lease))

    def remove(self, token: int) -> None:
        """Remove a lease that has expired: another worker may have it."""
        self._rests = deque(rest for rest in self._rests if rest.token != token)

    def disconnect(self) -> None:
        """Stop after some time without the controller: it may have died, or may take this worker for dead."""
        self._until_s = min(self._until_s, time.monotonic() + self._alone_s)

    def reconnect(self) -> None:
        """Go on without a time limit: the controller is connected."""
        self._until_s = math.inf

    def keep(self, tokens: Collection[int], grants: Iterable[SampleLease]) -> None:
        """Keep only the leases that a controller confirms after a reconnection, and add those that did not arrive.

        `tokens`: leases that are still this worker's. `grants`: each of them. One that is unknown here was granted in a
        lost message.
        """
        self.reconnect()
        known = {rest.token for rest in self._rests} | self.reports.keys()
        mine = [rest for rest in self._rests if rest.token in tokens]
        self._rests = deque([*mine, *(LeaseRest(*grant) for grant in grants if grant.token not in known)])

    def first(self) -> LeaseRest | None:
        """Return the lease to work on; None if there is none, or the time without a controller is over."""
        return self._rests[0] if self._rests and time.monotonic() < self._until_s else None

    def is_last(self) -> bool:
        """Return whether only one lease is left."""
        return len(self._rests) == 1

    def advance(self, rest: LeaseRest, end: int, report: UpdateDone) -> None:
        """Shorten a lease to the positions from `end` on, and keep the report of it.

        A lease that has been removed meanwhile stays removed.
        """
        if self._rests and self._rests[0] == rest:
            self._rests.popleft()
            if end < rest.end:
                self._rests.appendleft(rest._replace(start=end))
        self.reports.setdefault(rest.token, []).append(report)
        while len(self.reports) > REPORTS_KEPT:
            del self.reports[next(iter(self.reports))]
