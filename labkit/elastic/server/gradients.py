"""Gradients that workers push: summed over the batch, applied to the block by the optimizer, then answered.

`labkit.elastic.server.block` has the sum and the update of one block.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages.blocks import BlockNorms, BlockState, Gradient, Pull, WholeNorm
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode, encode, era_and_version
from labkit.elastic.protocol.messages.reports import SendReport, VersionLost
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.server.block import Block, CopyOnWriteUpdates, GrowingValues, Pushed, SeqlockUpdates, Updates
from labkit.elastic.server.handover import BlockHandover
from labkit.elastic.server.norms import NormClipping
from labkit.elastic.server.replicas import BlockReplicas
from labkit.elastic.server.slots import BlockSlot, BlockTable, ConnectedPeers
from labkit.elastic.transport import Channel, Message, TransportError

CopyBlock = Callable[[int, int, list[Vector], BlockState], None]
"""Sends the controller a copy of a block for a checkpoint: (block, era and version, vectors, description)."""


class GradientUpdates:
    """Sums pushed gradients, makes the updates, and does what follows from a new version of a block.

    Parameters
    ----------
    blocks, peers
        Those of the server.
    replies, replicas, handover
        What a new version sets going: answers to pulls, replicas, hand-overs.
    optimizer : Updates
        Makes the updates.
    n_shards : int
        V, logical gradients of a batch.
    sync : bool
        Whether a version is the sum of V gradients; else each pushed gradient makes a version.
    report : callable
        Sends the controller a report.
    copy : callable
        See `CopyBlock`.
    rule_of, norms
        See `ParameterServer`.
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
        n_shards: int,
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
                self._held(slot, block)
            elif what is Pushed.KEPT:
                fault.at("ps.aggregating")
            elif what is Pushed.EARLY:  # a version was given out that is lost
                self._report(VersionLost(slot.number, block.version, step, era=era))

    def _updated(self, slot: BlockSlot, block: Block) -> None:
        fault.at("ps.updated")
        self.advanced(slot, block)
        if slot.parked:
            self._replay(slot)

    def _held(self, slot: BlockSlot, block: Block) -> None:
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
