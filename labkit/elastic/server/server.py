"""A parameter server: blocks, connections of workers and servers, and the seconds that updates take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages.blocks import BlocksMoved, MovedBlock
from labkit.elastic.protocol.messages.codec import FrameKind, at, greeted
from labkit.elastic.protocol.messages.reports import SendReport
from labkit.elastic.schedules import ScheduleError
from labkit.elastic.server.block import Block, Updates
from labkit.elastic.server.gradients import CopyBlock, GradientUpdates, ParameterReplies
from labkit.elastic.server.handover import BlockHandover
from labkit.elastic.server.norms import NormClipping
from labkit.elastic.server.optimizers import UpdateError
from labkit.elastic.server.replicas import BlockReplicas
from labkit.elastic.server.slots import BlockSlot, BlockTable, ConnectedPeers
from labkit.elastic.transport import AccessError, Channel, FrameError, Handler, Head, Message, TransportError
from labkit.elastic.transport.shared_arrays import SharedArrayPool
from labkit.system.oom import is_memory


class BusyTime:
    """Counts the seconds in which at least one thread is at work.

    A thread that waits for a lock, or for its process's share of cores, counts as working. So the time for the same
    bytes is longer on a slow server, but not on an idle one.

    Parameters
    ----------
    now_s : callable
        Seconds on a clock.

    Examples
    --------
    >>> now = iter([0.0, 1.0, 3.0])
    >>> busy = BusyTime(now_s=lambda: next(now))
    >>> with busy.working(), busy.working():  # from 0 s
    ...     busy.taken_s()  # to 1 s
    1.0
    >>> busy.taken_s()  # it went on until 3 s
    2.0
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._lock = now_s, threading.Lock()
        self._n = 0
        self._since_s = self._sum_s = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count this thread as at work."""
        with self._lock:
            if not self._n:
                self._since_s = self._now_s()
            self._n += 1
        try:
            yield
        finally:
            with self._lock:
                self._n -= 1
                if not self._n:
                    self._sum_s += self._now_s() - self._since_s

    def taken_s(self) -> float:
        """Return the seconds since the last call, and start again from 0."""
        with self._lock:
            if self._n:
                now_s = self._now_s()
                self._sum_s, self._since_s = self._sum_s + now_s - self._since_s, now_s
            taken, self._sum_s = self._sum_s, 0.0
            return taken


def update_s(busy_s: float, *, n_bytes: int, model_bytes: int) -> float | None:
    """Return the seconds of an update of the whole model; None if there were no gradients.

    >>> update_s(0.5, n_bytes=100, model_bytes=400)
    2.0
    """
    return busy_s * model_bytes / n_bytes if n_bytes > 0 else None


class ParameterServer:
    """One server. The methods of its parts run in the threads of connections, each under the lock of one block.

    Parameters
    ----------
    name : str
        Of this server.
    optimizer : Updates
        Makes the updates.
    n_shards : int
        V, logical gradients of a batch.
    sync : bool
        Whether a version is the sum of V gradients; else each pushed gradient makes a version.
    report : callable
        Sends the controller a report.
    copy : callable
        Sends the controller a copy of a block: see `CopyBlock`.
    shared_pool : SharedArrayPool, optional
        Shared memory for parameters, so that workers on this host read them in place; only in synchronous mode.
    rule_of : callable, optional
        From the number of a block to its updates; None: `optimizer` makes those of all blocks.
    norms : NormClipping, optional
        Limits the norm of the whole gradient; None: nothing does.

    Attributes
    ----------
    blocks : BlockTable
        A slot for each block.
    peers : ConnectedPeers
        Connected workers and servers.
    gradients, replies, handover, replicas
        The handlers of pushes, pulls, hand-overs and replicas.
    busy : BusyTime
        Seconds spent on gradients.
    """

    def __init__(
        self,
        name: str,
        *,
        optimizer: Updates,
        n_shards: int,
        sync: bool,
        report: SendReport,
        copy: CopyBlock,
        shared_pool: SharedArrayPool | None = None,
        rule_of: Callable[[int], Updates] | None = None,
        norms: NormClipping | None = None,
    ) -> None:
        self.name, self.sync = name, sync
        self._copy = copy
        self.busy = BusyTime()
        self.blocks = BlockTable(shared_pool=shared_pool if sync else None)
        self.peers = ConnectedPeers(report=report)
        self.replies = ParameterReplies(self.blocks, self.peers, norms=norms)
        self.replicas = BlockReplicas(
            name, self.blocks, self.peers, sync=sync, report=report, settle=self._settle
        )  # fmt: skip
        self.handover = BlockHandover(
            name, self.blocks, self.peers, self.replicas, sync=sync, report=report, settle=self._settle,
            advanced=self._advanced,
        )  # fmt: skip
        self.gradients = GradientUpdates(
            self.blocks, self.peers, replies=self.replies, replicas=self.replicas, handover=self.handover,
            optimizer=optimizer, n_shards=n_shards, sync=sync, report=report, copy=copy, rule_of=rule_of, norms=norms,
        )  # fmt: skip

    def _settle(self, slot: BlockSlot) -> None:
        self.gradients.settle(slot)

    def _advanced(self, slot: BlockSlot, block: Block) -> None:
        self.gradients.advanced(slot, block)

    @property
    def era(self) -> int:
        """Number of the current era: it changes whenever training goes back to a checkpoint."""
        return self.blocks.era

    def add_worker(self, channel: Channel, *, number: int) -> None:
        """Register a worker, by its number, and send it the replicas of all blocks."""
        self.peers.add_worker(channel, number=number)
        self.replicas.greet(channel)

    def begin_era(self, era: int) -> None:
        """Drop every block: training goes back to a checkpoint, whose blocks are going to be installed."""
        with self.blocks.lock:
            slots = self.blocks.begin_era(era)
            kept = self.handover.begin_era()
        for block in kept:
            self.blocks.release(block)
        for slot in slots:
            with slot.lock:
                self.blocks.drop(slot)
                slot.gone = BlocksMoved("", "", [MovedBlock(slot.number, 0, 1 << 30)], era)

    def copy_at(self, version: int) -> list[int]:
        """Send the controller a copy of every block when it has reached a version; return the blocks that are past it.

        In asynchronous training a copy is made now; `version` only names it.
        """
        late = []
        for slot in self.blocks.slots():
            with slot.lock:
                block = slot.block
                if block is None:
                    continue
                if not self.sync:
                    self._copy(slot.number, at(self.era, version), block.copies(), block.description())
                elif slot.shadow is not None:  # a replica makes the copy, or reports it late, if it becomes the owner
                    block.due = {version, *(due for due in block.due if due >= version)}
                elif block.version > version:
                    late.append(slot.number)
                else:
                    block.due.add(version)
                    self.gradients.advanced(slot, block)
        return late


PUSHES: Final = (FrameKind.PUSH, FrameKind.PUSH_REPLICA)
"""Kinds of frames with gradients."""


class Arrivals(Handler):
    """The server's end of a connection with one peer.

    Parameters
    ----------
    server : ParameterServer
        The server.
    role : str
        Of the peer: worker or server.
    ended : callable, optional
        Called when the connection has ended, with the reason.
    exhausted : callable, optional
        Called when there is no memory for a frame: the server cannot go on.
    failed : callable, optional
        Called with the error of a user's function of updates: no server can go on.
    keep : callable, optional
        Waits, after a frame, as long as the server's share of processor cores requires.
    """

    def __init__(
        self,
        server: ParameterServer,
        *,
        role: str,
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        exhausted: Callable[[BaseException], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        keep: Callable[[], object] | None = None,
    ) -> None:
        self._server, self._role, self._ended, self._exhausted, self._keep = server, role, ended, exhausted, keep
        self._failed = failed
        self._gradients = server.gradients

    def opened(self, channel: Channel) -> None:
        """Register a worker."""
        if self._role == "worker":
            self._server.add_worker(channel, number=int(greeted(channel.peer).name.rsplit("-", 1)[1]))

    def place(self, head: Head) -> Vector | None:
        """Return the buffer that gradients are received into."""
        return self._server.blocks.buffer(head.payload_bytes) if head.kind in PUSHES else None

    def exhausted(self, error: BaseException) -> None:
        """Pass it on: the server cannot go on."""
        if self._exhausted is not None:
            self._exhausted(error)

    def received(self, channel: Channel, message: Message) -> None:
        """Handle a frame, and wait for the server's share of cores; gradients and that wait count as busy."""
        if message.head.kind not in (*PUSHES, FrameKind.WHOLE_NORM):
            self._receive(channel, message)
            return
        with self._server.busy.working():
            self._receive(channel, message)

    def _receive(self, channel: Channel, message: Message) -> None:
        """Handle a frame; without memory for it a block may be half changed, and the server cannot go on."""
        try:
            self._take(channel, message)
        except (MemoryError, OSError, RuntimeError) as error:
            if is_memory(error):
                self.exhausted(error)
            raise
        except (UpdateError, ScheduleError) as error:
            if self._failed is not None:
                self._failed(error)
            raise
        if self._keep is not None:
            self._keep()  # the next frame waits in the connection: a server with fewer cores answers later

    def _take(self, channel: Channel, message: Message) -> None:
        kind = message.head.kind
        if kind in PUSHES:
            self._gradients.push(channel, message)
        elif kind == FrameKind.PULL:
            self._server.replies.pull(channel, message)
        elif kind == FrameKind.WHOLE_NORM:
            self._gradients.take_norm(message)
        elif kind == FrameKind.AWAIT_REPLICAS:
            self._server.replicas.ask(channel, message)
        elif kind == FrameKind.STATE:
            if self._role != "server":
                raise AccessError(f"a {self._role[:20]} sent a block with its state; only servers may.")
            self._server.handover.install(channel, message)
        else:
            raise FrameError(f"a {self._role[:20]} sent a frame of kind {kind}, which says nothing to a server.")

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Remove a peer."""
        self._server.peers.remove(channel)
        if self._ended is not None:
            self._ended(channel, reason)
