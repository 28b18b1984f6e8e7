"""A worker in asynchronous mode: each of its gradients is an update at once, and it waits for nobody."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from labkit.elastic.controller.losses import NotFiniteError, check_finite, encoded
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import FrameKind, at, era_and_version
from labkit.elastic.transport import Channel, FrameError, Head, Message, TransportError
from labkit.elastic.worker.flat import FlatModel
from labkit.elastic.worker.synchronous import Extent, Halted, unlimited

LEASES_TOLD = 3
"""Without a controller a worker ends the lease that it has and the one that it asked for; no more."""


ALONE_LEASES = 0.6
"""Leases that a worker goes on without a controller. That one lets what it has run out no earlier than 0.75 after the
connection ended; a worker that is only cut off must have stopped by then, for another one will do the same samples."""


class LeaseRest(NamedTuple):
    """What is left of a lease: positions `start` to before `end` of the order of an epoch."""

    token: int
    epoch: int
    start: int
    end: int


class Target(NamedTuple):
    """Where a block goes: its owner, how often it moved, and the version of it that the worker computes with."""

    block: int
    owner: str
    moves: int
    base: int


class AsyncWorker:
    """The training loop of one worker in asynchronous mode.

    An update of the worker has a number. It is pushed block by block; a server makes it once, whoever sends it again,
    and answers with the parameters after it. When all blocks have answered, the samples are reported as done.

    Parameters
    ----------
    flat : FlatModel
        The model.
    extents : sequence
        Of each block.
    loss_of : callable
        Tensor of the mean loss of positions `start` to before `end` of the order of an epoch: (epoch, start, end).
    batch : int
        Samples of an update.
    number : int
        Of this worker; no other ever has it.
    lease_s : float
        How long what it has leased is its own when the controller hears nothing of it.
    channel_of : callable
        Connection to a server by name; raises TransportError where there is none.
    report : callable
        Tells the controller an event and its columns.
    finite : bool
        Whether a loss that is NaN or infinite ends training, before its gradient goes anywhere.
    keep : callable
        See `Worker`.
    """

    def __init__(
        self,
        flat: FlatModel,
        *,
        extents: Sequence[Extent],
        loss_of: Callable[[int, int, int], Any],
        batch: int,
        number: int,
        lease_s: float,
        channel_of: Callable[[str], Channel],
        report: Callable[..., None],
        finite: bool = True,
        keep: Callable[[], bool] = unlimited,
    ) -> None:
        self._finite, self._keep = finite, keep
        self.flat, self.extents, self.batch, self.number = flat, extents, batch, number
        self._alone_s = ALONE_LEASES * lease_s
        self._until_s = math.inf  # when it stops without a controller
        self._loss_of, self._channel_of, self._report = loss_of, channel_of, report
        self._changed = threading.Condition()
        self._era = 0
        self._owner: dict[int, str] = {}
        self._moves: dict[int, int] = {}
        self._start = self._stop = self._finish = self._afresh = self._asked = False
        self._hold = 0  # number of the standstill that is wanted
        self._n_holds = 0  # how often one was
        self._pieces: deque[LeaseRest] = deque()
        self._moved: set[int] = set()
        self._missing: set[int] = set()
        self._base: dict[int, int] = {}  # version of each block that it computes with
        self._stale: list[int] = []
        self._n = 0  # of its last update
        self._awaited = 0
        self._gradient: Vector | None = None
        self._done: dict[int, dict[str, Any]] = {}
        """What was said of the last leases: a controller may not have heard it."""
        self._out: dict[Channel, int] = {}
        self.busy: tuple[tuple[int, int], float] | None = None
        """The (epoch, position) from which on it computes a minibatch, and since when (time.monotonic)."""

    @property
    def version(self) -> int:
        """The newest version of a block that it has seen."""
        return max(self._base.values(), default=0)

    # --- what arrives, in the threads of connections

    def place(self, head: Head) -> Vector | None:
        """Return where the parameters of a block go."""
        if not self._awaits(head):
            return None
        first, n = self.extents[head.block]
        return self.flat.versions[0][first : first + n]

    def _awaits(self, head: Head) -> bool:
        """Tell whether a block answers the update that is under way, or an older one."""
        return (
            era_and_version(head.step)[0] == self._era and head.block in self._missing and head.offset >= self._awaited
        )

    def params(self, message: Message) -> None:
        """Note that a block has made the update."""
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

    def beside(self, message: Message) -> None:
        """Nobody follows in asynchronous training."""

    def moved(self, meta: dict[str, Any]) -> None:
        """Turn to the new owners of blocks at once."""
        with self._changed:
            if meta.get("era", self._era) != self._era:
                return
            for block, _, moves in meta["blocks"]:
                if moves > self._moves.get(block, -1) and meta["owner"]:
                    self._moves[block], self._owner[block] = moves, meta["owner"]
                    if block in self._missing:
                        self._moved.add(block)
            self._changed.notify_all()

    def reconnected(self, server: str) -> None:
        """Push again what was on its way when a connection broke; what comes twice is ignored."""
        with self._changed:
            self._moved |= {block for block in self._missing if self._owner.get(block) == server}
            self._changed.notify_all()

    def whereabouts(self) -> dict[str, Any]:
        """Return what a controller that comes back must know."""
        with self._changed:
            training = bool(self._base) and not (self._start or self._afresh)
            return {"version": self.version, "has": self._era, "training": training}

    def retell(self) -> None:
        """Say nothing of losses: they come with the samples, which are told again anyway."""

    def told(self, meta: dict[str, Any]) -> None:
        """Take an order of the controller."""
        with self._changed:
            take = getattr(self, f"_told_{meta['do']}", None)
            if take is not None:
                take(meta)
            self._changed.notify_all()

    def _told_begin(self, meta: dict[str, Any]) -> None:
        self._era, self._start, self._afresh, self._hold = meta["era"], True, True, meta["hold"]
        self._n_holds += 1
        self._until_s = math.inf
        self._forget()
        for block, owner, moves in meta["map"]:
            self._owner[block], self._moves[block] = owner, moves

    def _told_lease(self, meta: dict[str, Any]) -> None:
        if meta["era"] == self._era:
            self._asked = False
            self._pieces.append(LeaseRest(*meta["lease"]))

    def _told_map(self, meta: dict[str, Any]) -> None:
        if meta["era"] == self._era:
            for block, owner, moves in meta["map"]:
                if moves > self._moves.get(block, -1):
                    self._moves[block], self._owner[block] = moves, owner
                    self._moved |= {block} & self._missing

    def _told_lost(self, meta: dict[str, Any]) -> None:
        """Forget a lease that somebody else may have by now."""
        self._pieces = deque(piece for piece in self._pieces if piece.token != meta["token"])

    def _told_alone(self, _: dict[str, Any]) -> None:
        """Go on for a while without the controller: it may have died, or believe that this worker has."""
        self._until_s = min(self._until_s, time.monotonic() + self._alone_s)

    def _told_leases(self, meta: dict[str, Any]) -> None:
        """Go on with what is its own: the controller is back, or it with the controller.

        A lease of which this worker does not know was granted when the word of it was lost: nobody else will have it.
        """
        if meta["era"] == self._era:
            self._until_s = math.inf
            mine = [piece for piece in self._pieces if piece.token in meta["tokens"]]
            known = {piece.token for piece in self._pieces} | self._done.keys()
            new = [
                piece for piece in (LeaseRest(*grant) for grant in meta.get("grants", ())) if piece.token not in known
            ]
            self._pieces = deque([*mine, *new])

    def _told_hold(self, meta: dict[str, Any]) -> None:
        self._hold, self._n_holds = meta["number"], self._n_holds + 1

    def _told_go_on(self, _: dict[str, Any]) -> None:
        self._hold = 0

    def _told_halt(self, meta: dict[str, Any]) -> None:
        self._era, self._start, self._afresh = meta["era"], False, True
        self._forget()

    def _told_finish(self, _: dict[str, Any]) -> None:
        """End, but not before what is under way is done and told."""
        self._finish = True

    def _told_stop(self, _: dict[str, Any]) -> None:
        self._stop = True

    def _told_tell(self, _: dict[str, Any]) -> None:
        """Say again what a new controller may not have heard."""
        for done in self._done.values():
            self._report("stepped", **done)
        self._asked = False

    def _forget(self) -> None:
        self._owner, self._moves, self._base = {}, {}, {}
        self._pieces.clear()
        self._done.clear()
        self._asked = False

    # --- the loop

    def run(self) -> None:
        """Train until the controller says stop."""
        begun = False
        while not self._stop:
            try:
                if begun:
                    self._step(self._next())
                else:
                    self._begin()
                    begun = True
            except Halted:
                begun = False

    def _begin(self) -> None:
        """Fetch all blocks, once the controller has said who has them."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._start)
            if self._stop:
                raise Halted
            self._start = self._afresh = False
            owned = dict(self._owner)
        self._await(range(len(self.extents)), n=0)
        self._each_owner(owned)
        self._wait_for_blocks(again=self._each_owner)
        self._report("ready", version=self.version)

    def _await(self, blocks: Iterable[int], *, n: int) -> None:
        """Expect answers to an update, or (0) blocks as they are."""
        with self._changed:
            self._check()
            self._n, self._awaited = max(n, self._n), n
            self._missing, self._stale = set(blocks), []
            self._moved.clear()

    def _each_owner(self, blocks: Iterable[int]) -> None:
        """Ask for blocks as they are now."""
        by_owner: dict[str, list[Target]] = defaultdict(list)
        era, targets = self._targets(blocks)
        for target in targets:
            by_owner[target.owner].append(target)
        for owner, asked in by_owner.items():
            meta = {"blocks": [target.block for target in asked], "moves": [target.moves for target in asked]}
            self._send(owner, FrameKind.PULL, step=at(era, 0), meta=meta)

    def _targets(self, blocks: Iterable[int]) -> tuple[int, list[Target]]:
        """Return the era, and where blocks go in it, of one moment: an order may replace the map while they are sent.

        An owner that changes afterwards is asked again (`_moved`); what is sent in an era that is over is ignored.
        """
        with self._changed:
            self._check()
            return self._era, [Target(b, self._owner[b], self._moves[b], self._base.get(b, 0)) for b in blocks]

    def _next(self) -> LeaseRest:
        """Return the next minibatch; wait for it, and stand still where the controller wants it."""
        while True:
            self._stop |= self._finish
            self._stand_still()
            with self._changed:
                self._check()
                if self._pieces and time.monotonic() < self._until_s:
                    return self._pieces[0]
                asked, self._asked = self._asked, True
            if not asked:
                self._report("wants")
            with self._changed:
                self._changed.wait_for(self._news)

    def _news(self) -> bool:
        work = not self._asked or (self._pieces and time.monotonic() < self._until_s)
        return bool(work or self._over() or self._finish or self._hold)

    def _ask_ahead(self) -> None:
        """Ask for the next lease while the last minibatch of this one is computed."""
        with self._changed:
            due = len(self._pieces) == 1 and not self._asked
            self._asked |= due
        if due:
            self._report("wants")

    def _over(self) -> bool:
        return self._stop or self._afresh

    def _stand_still(self) -> None:
        """Stand still as often as it is told: a controller that follows one that died counts from the beginning."""
        while self._hold:
            self._stand_still_once(self._n_holds, number=self._hold)

    def _stand_still_once(self, n_holds: int, *, number: int) -> None:
        began = time.perf_counter()
        self._report("holds", version=self.version, number=number)
        with self._changed:
            self._changed.wait_for(lambda: not self._hold or self._n_holds != n_holds or self._over())
            self._check()
        self._report("held", version=self.version, seconds=time.perf_counter() - began)

    def _step(self, piece: LeaseRest) -> None:
        began = time.perf_counter()
        end = min(piece.start + self.batch, piece.end)
        if end == piece.end:
            self._ask_ahead()
        loss = self._compute(piece.epoch, piece.start, end)
        computed = time.perf_counter()
        self._update()
        with self._changed:
            self._check()
            rest = piece._replace(start=end)
            if self._pieces and self._pieces[0] == piece:  # else somebody else may have it by now
                self._pieces.popleft()
                if end < piece.end:
                    self._pieces.appendleft(rest)
            done = {
                "version": self.version, "token": piece.token, "until": end, "loss": encoded(loss),
                "staleness": max(self._stale), "compute_s": computed - began, "wait_s": time.perf_counter() - computed,
            }  # fmt: skip
            self._done[piece.token] = done
            while len(self._done) > LEASES_TOLD:
                del self._done[next(iter(self._done))]
        self._report("stepped", **done)

    def _compute(self, epoch: int, start: int, end: int) -> float:
        self.flat.use(0)
        if self._gradient is None:
            self._gradient = self.flat.borrow()
        self.busy = (epoch, start), time.monotonic()
        loss = self._loss_of(epoch, start, end)
        self.flat.gradient(loss, self._gradient)
        self.busy = None
        if self._finite:
            self._check_loss(float(loss.detach()), epoch=epoch, start=start)
        while self._keep():
            self._check()
        return float(loss.detach())

    def _check_loss(self, loss: float, *, epoch: int, start: int) -> None:
        """Tell a loss that is no number, and raise."""
        try:
            check_finite(loss, where=f"epoch {epoch}, minibatch at {start}")
        except NotFiniteError:
            self._report("not_finite", version=self.version, epoch=epoch, start=start, loss=encoded(loss))
            raise

    def _update(self) -> None:
        """Push the gradient, and wait until every block has made the update."""
        self._await(range(len(self.extents)), n=self._n + 1)
        self._push(range(len(self.extents)))
        self._wait_for_blocks(again=self._push)
        for channel, number in self._out.items():
            try:
                channel.flush(number)
            except TransportError:
                continue
        self._out.clear()

    def _push(self, blocks: Iterable[int]) -> None:
        assert self._gradient is not None
        era, targets = self._targets(blocks)
        for block, owner, moves, base in targets:
            first, n = self.extents[block]
            self._send(
                owner, FrameKind.PUSH, self._gradient[first : first + n], block=block, offset=self.number,
                step=at(era, base), meta={"n": self._n, "moves": moves},
            )  # fmt: skip

    def _send(self, owner: str, kind: FrameKind, *buffers: Any, **columns: Any) -> None:
        """Send to a server; where that fails, its blocks will have another owner or training goes back."""
        try:
            channel = self._channel_of(owner)
            self._out[channel] = channel.send(kind, *buffers, **columns)
        except FrameError:  # it would fail for any owner
            raise
        except TransportError:
            return

    def _wait_for_blocks(self, *, again: Callable[[Iterable[int]], None]) -> None:
        """Wait until all blocks have answered; ask new owners again."""
        while self._missing:
            with self._changed:
                self._changed.wait_for(lambda: self._over() or not self._missing or self._moved)
                self._check()
                moved, self._moved = sorted(self._moved & self._missing), set()
            if moved:
                again(moved)

    def _check(self) -> None:
        if self._over():
            raise Halted
