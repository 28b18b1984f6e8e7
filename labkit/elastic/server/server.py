"""A parameter server: gradients in, updates of blocks, parameters out, over the connections of workers and servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages.blocks import (
    BlockNorms,
    BlocksMoved,
    BlockState,
    Gradient,
    MovedBlock,
    Pull,
    WholeNorm,
)
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode, encode, era_and_version, greeted
from labkit.elastic.protocol.messages.reports import SendReport, VersionLost
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.schedules import ScheduleError
from labkit.elastic.server.block import Block, CopyOnWriteUpdates, GrowingValues, Pushed, SeqlockUpdates, Updates
from labkit.elastic.server.handover import BlockHandover
from labkit.elastic.server.optimizers import UpdateError
from labkit.elastic.server.replicas import BlockReplicas
from labkit.elastic.server.slots import BlockSlot, BlockTable, ConnectedPeers
from labkit.elastic.server.update_rule import NormClipping
from labkit.elastic.transport import AccessError, Channel, FrameError, Handler, Head, Message, TransportError
from labkit.elastic.transport.shared_arrays import SharedArrayPool
from labkit.system.oom import is_memory

CopyBlock = Callable[[int, int, list[Vector], BlockState], None]
"""Sends the controller a copy of a block for a checkpoint: (block, era and version, vectors, description)."""


class GradientUpdates:
    """Sums pushed gradients, makes the updates, and does what follows from a new version of a block.

    `replies`, `replicas` and `handover`: what a new version sets going: answers to pulls, replicas, hand-overs.
    """

    def __init__(
        self,
        blocks: BlockTable,
        peers: ConnectedPeers,
        *,
        replies: ParameterReplies,
        replicas: BlockReplicas,
        handover: BlockHandover,
        optimizer: Updates,
        n_shards: int,  # V, logical gradients of a batch
        sync: bool,
        report: SendReport,
        copy: CopyBlock,
        rule_of: Callable[[int], Updates] | None = None,
        norms: NormClipping | None = None,
    ) -> None:
        self._blocks, self._peers = blocks, peers
        self._replies, self._replicas, self._handover = replies, replicas, handover
        self._rule_of, self._n_shards, self._sync = rule_of or (lambda _: optimizer), n_shards, sync
        self._norms = norms if sync else None
        self._report, self._copy = report, copy

    def push(self, channel: Channel, message: Message) -> None:
        """Take the gradients of a block; with the last ones of a batch, update the block."""
        slot = self._blocks.slot(message.head.block)
        with slot.lock:
            era, step = era_and_version(message.head.step)
            if era != self._blocks.era:
                return
            block, pushed = slot.block, decode(Gradient, message.meta)
            if block is None or self._replicas.is_early(slot, block, step, pushed):
                self._park_or_redirect(slot, channel, message, pushed)
                return
            grad = np.frombuffer(message.payload, np.float32)
            slot.taken_bytes += grad.nbytes
            slot.rate.add(grad.nbytes, now_s=time.monotonic())
            optimizer = self._guarded(slot, block)
            if self._sync:
                node = Node.unpack(message.head.offset)
                what = block.push(
                    grad, step=step, node=node, n_shards=self._n_shards, optimizer=optimizer, weight=pushed.weight,
                    hold=self._norms is not None and self._norms.applies_to(slot.number),
                )  # fmt: skip
            else:
                worker = message.head.offset
                what = block.push_alone(grad, worker=worker, number=pushed.update, optimizer=optimizer)
                slot.wanted.append((channel, block.version))
            self._blocks.recycle(block)
            if what is Pushed.APPLIED or not self._sync:
                self._updated(slot, block)
            elif what is Pushed.HELD:
                self._await_norm(slot, block)
            elif what is Pushed.KEPT:
                fault.at("ps.aggregating")
            elif what is Pushed.EARLY:  # a version was given out that is lost
                self._report(VersionLost(slot.number, block.version, step, era=era))

    def _updated(self, slot: BlockSlot, block: Block) -> None:
        fault.at("ps.updated")
        self.advanced(slot, block)
        if slot.parked:
            self._replay(slot)

    def _await_norm(self, slot: BlockSlot, block: Block) -> None:
        """Update at once if the norm of the whole gradient is known; else send the workers that of this block."""
        if self._norms is None or block.held is None:
            return
        step = at(self._blocks.era, block.version)
        bits = self._norms.at(step)
        if bits is not None:
            self._release(slot, block, bits)
        elif slot.shadow is None:
            notice = BlockNorms(self._norms.of_block(slot.number, block.held))
            self._peers.notify_workers(FrameKind.BLOCK_NORMS, notice, block=slot.number, step=step)

    def _release(self, slot: BlockSlot, block: Block, bits: int) -> None:
        if self._norms is not None and block.held is not None:
            self._norms.limit(block.held, bits)
            block.release(self._guarded(slot, block))
            self._blocks.recycle(block)
            self._updated(slot, block)

    def take_norm(self, message: Message) -> None:
        """Take the norm of the whole gradient of a version, and update the blocks that wait for it."""
        era, version = era_and_version(message.head.step)
        if self._norms is None or era != self._blocks.era:
            return
        bits = decode(WholeNorm, message.meta).bits
        self._norms.take(message.head.step, bits)
        for slot in self._blocks.slots():
            with slot.lock:
                block = slot.block
                if block is not None and block.version == version and era == self._blocks.era:
                    self._release(slot, block, bits)

    def _guarded(self, slot: BlockSlot, block: Block) -> Updates:
        """Return the optimizer, wrapped so that readers of the current parameters never get half an update."""
        optimizer = self._rule_of(slot.number)
        if block.place is not None:
            return SeqlockUpdates(optimizer, block.place)
        chosen = optimizer if block.pages is None else GrowingValues(optimizer, block.pages)
        return CopyOnWriteUpdates(chosen, block, slot.sent, self._blocks.buffer) if slot.sent else chosen

    def _park_or_redirect(self, slot: BlockSlot, channel: Channel, message: Message, pushed: Gradient) -> None:
        """Keep gradients until their block arrives, or answer with the block's owner if it has been handed over."""
        notice = None if message.head.kind == FrameKind.PUSH_REPLICA else slot.notice(pushed.moves)
        if notice is None:
            if self._sync:  # gradients of an earlier step than these will never be used
                slot.parked = [held for held in slot.parked if held[1].head.step >= message.head.step]
            slot.parked.append((channel, message))
        else:
            self._peers.post(channel, FrameKind.MOVED, meta=encode(notice))

    def advanced(self, slot: BlockSlot, block: Block) -> None:
        """Do what follows from a new version: answers to pulls, due copies, replicas, hand-over; the slot is locked."""
        self._handover.pace.advanced(block.version, now_s=time.perf_counter())
        self._replies.answer_waiting(slot, block)
        for version in sorted(block.due) if slot.shadow is None else ():
            if version <= block.version:
                block.due.discard(version)
                self._copy(slot.number, at(self._blocks.era, block.version), block.copies(), block.description())
        self._replicas.advanced(slot, block)
        if slot.leaving is not None and slot.leaving[1] <= block.version:
            self._handover.stream(slot, block, slot.leaving[0])

    def settle(self, slot: BlockSlot) -> None:
        """Use what has arrived before a block that is installed now; the slot is locked."""
        if slot.block is not None:
            self.advanced(slot, slot.block)
        self._replay(slot)

    def _replay(self, slot: BlockSlot) -> None:
        parked, slot.parked = slot.parked, []
        for sender, held in parked:
            self.push(sender, held)


class ParameterReplies:
    """The answers to pulls."""

    def __init__(self, blocks: BlockTable, peers: ConnectedPeers, *, norms: NormClipping | None = None) -> None:
        self._blocks, self._peers, self._norms = blocks, peers, norms

    def pull(self, channel: Channel, message: Message) -> None:
        """Send blocks at a version: now, or as soon as they have reached it."""
        era, version = era_and_version(message.head.step)
        self._send_norm(channel, message.head.step - 1)
        wanted = decode(Pull, message.meta)
        for number, moves in zip(wanted.blocks, wanted.moves, strict=True):
            slot = self._blocks.slot(number)
            with slot.lock:
                if era != self._blocks.era:
                    return
                notice = slot.notice(moves) if slot.block is None else None
                if notice is not None:
                    self._peers.post(channel, FrameKind.MOVED, meta=encode(notice))
                elif slot.block is None or slot.block.version < version:
                    slot.wanted.append((channel, version))
                    self._send_norms(slot, channel)
                else:
                    self._send(slot, slot.block, channel)

    def _send_norm(self, channel: Channel, step: int) -> None:
        """Send the norm of the whole gradient that makes a version: this worker may have missed it."""
        bits = None if self._norms is None else self._norms.at(step)
        if bits is not None:
            self._peers.post(channel, FrameKind.WHOLE_NORM, meta=encode(WholeNorm(bits)), step=step)

    def _send_norms(self, slot: BlockSlot, channel: Channel) -> None:
        """Send the norms of a block that waits with a complete sum, as `GradientUpdates` has sent all workers."""
        block = slot.block
        if self._norms is not None and block is not None and block.held is not None:
            notice = BlockNorms(self._norms.of_block(slot.number, block.held))
            step = at(self._blocks.era, block.version)
            self._peers.post(channel, FrameKind.BLOCK_NORMS, meta=encode(notice), block=slot.number, step=step)

    def answer_waiting(self, slot: BlockSlot, block: Block) -> None:
        """Answer the pulls that waited for the version that a block has reached; the slot is locked."""
        waiting, slot.wanted = slot.wanted, []
        for channel, version in waiting:
            if version <= block.version:
                self._send(slot, block, channel)
                fault.at("ps.replying")
            else:
                slot.wanted.append((channel, version))

    def _send(self, slot: BlockSlot, block: Block, channel: Channel) -> None:
        """Send the parameters, with the number of the last update of this worker that they contain."""
        if block.place is not None:
            self._lend(slot, block, channel)
            return
        last = block.seen.get(self._peers.workers.get(channel, -1), 0)
        step = at(self._blocks.era, block.version)
        number = self._peers.post(channel, FrameKind.PARAMS, block.params, block=slot.number, offset=last, step=step)
        if number is not None:
            slot.sent.append((channel, number))

    def _lend(self, slot: BlockSlot, block: Block, channel: Channel) -> None:
        """Send the place of the parameters in shared memory and their stamp; a copy where memory is not shared."""
        pool = self._blocks.shared_pool
        if block.place is None or pool is None:
            return
        try:
            lent = pool.lend(channel)
        except TransportError:
            return
        whole = block.place.whole if lent else block.params.copy()  # the next update must not change what is sent
        step = at(self._blocks.era, block.version)
        self._peers.post(channel, FrameKind.PARAMS, whole, block=slot.number, offset=block.place.stamp, step=step)


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
    """One server. The methods of its parts run in the threads of connections, each under the lock of one block."""

    def __init__(
        self,
        name: str,
        *,
        optimizer: Updates,
        n_shards: int,  # V, logical gradients of a batch
        sync: bool,  # whether a version is the sum of V gradients; else each pushed gradient makes a version
        report: SendReport,
        copy: CopyBlock,  # sends the controller a copy of a block: see `CopyBlock`
        # shared memory for parameters, so that workers on this host read them in place; only in synchronous mode
        shared_pool: SharedArrayPool | None = None,
        # from the number of a block to its updates; None: `optimizer` makes those of all blocks
        rule_of: Callable[[int], Updates] | None = None,
        norms: NormClipping | None = None,  # limits the norm of the whole gradient; None: nothing does
    ) -> None:
        self.name, self.sync = name, sync
        self._copy = copy
        self.busy = BusyTime()  # seconds spent on gradients
        self.blocks = BlockTable(shared_pool=shared_pool if sync else None)  # a slot for each block
        self.peers = ConnectedPeers(report=report)  # connected workers and servers
        self.replies = ParameterReplies(self.blocks, self.peers, norms=norms)
        self.replicas = BlockReplicas(
            name, self.blocks, self.peers, sync=sync, report=report, settle=self._settle
        )  # fmt: skip
        self.handover = BlockHandover(
            name, self.blocks, self.peers, self.replicas, sync=sync, report=report, settle=self._settle,
            advanced=self._advanced,
        )  # fmt: skip
        # `gradients`, `replies`, `handover`, `replicas`: the handlers of pushes, pulls, hand-overs and replicas
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
    """The server's end of a connection with one peer."""

    def __init__(
        self,
        server: ParameterServer,
        *,
        role: str,  # of the peer: worker or server
        # called when the connection has ended, with the reason
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        # called when there is no memory for a frame: the server cannot go on
        exhausted: Callable[[BaseException], None] | None = None,
        # called with the error of a user's function of updates: no server can go on
        failed: Callable[[Exception], None] | None = None,
        # waits, after a frame, as long as the server's share of processor cores requires
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
