"""Replicas of blocks on other servers, kept at the owner's version so that they can replace it at any time.

A replica receives the same gradients as the owner, sums them in the same order and makes the same updates, so that it
has the same bits. It starts like a hand-over: the owner announces to workers from which version on a replica exists,
and streams the block at that version.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import reports
from labkit.elastic.protocol.messages.blocks import (
    AwaitReplicas,
    BlockState,
    Gradient,
    ReplicasAdded,
    ReplicasReady,
    ReplicatedBlock,
    SentFollower,
)
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode, encode, era_and_version
from labkit.elastic.protocol.messages.orders import BlockMoves, BlockTurn, NewReplica
from labkit.elastic.server.block import Block
from labkit.elastic.server.slots import BlockSlot, BlockTable, ConnectedPeers, Follower, PendingAck
from labkit.elastic.transport import Channel, Message, TransportError

BLOCKS_OF_A_NOTICE = 400
"""Most blocks in one notice, so that a notice stays small."""
BLOCKS_OF_A_REPORT = 100
"""Blocks that a report to the controller names at most."""


class BlockReplicas:
    """The replicas of one server's blocks, and the replicas that it has of the blocks of others."""

    def __init__(
        self,
        name: str,
        blocks: BlockTable,
        peers: ConnectedPeers,
        *,
        sync: bool,  # whether training is synchronous; only then there are replicas
        report: reports.SendReport,
        settle: Callable[[BlockSlot], None],  # does what follows when a block is installed: see `GradientUpdates`
    ) -> None:
        self.name, self._sync = name, sync
        self._blocks, self._peers = blocks, peers
        self._report, self._settle = report, settle

    # --- the owner's side

    def follow(self, orders: Iterable[NewReplica]) -> None:
        """Announce replicas of own blocks, (block, server, turn), each from the block's next version on."""
        notices: dict[str, list[ReplicatedBlock]] = defaultdict(list)
        with ExitStack() as locks:
            slots = []
            for number, name, turn in orders:
                slot = self._blocks.slot(number)
                locks.enter_context(slot.lock)
                block, known = slot.block, slot.follower
                if block is None or slot.shadow is not None or (known is not None and known.turn >= turn):
                    continue  # another server owns it: the controller repeats the order to that one
                slot.follower = Follower(name, block.version + 1, turn)
                slots.append(slot)
            for slot in slots:
                if slot.follower is not None:
                    notices[slot.follower.name].append(_notice(slot, slot.follower))
            for name, blocks in notices.items():
                for i in range(0, len(blocks), BLOCKS_OF_A_NOTICE):
                    added = ReplicasAdded(name, blocks[i : i + BLOCKS_OF_A_NOTICE])
                    self._peers.notify_workers(FrameKind.REPLICAS_ADDED, added)

    def greet(self, channel: Channel) -> None:
        """Send a worker that has just connected the replicas of all blocks."""
        for slot in self._blocks.slots():
            with slot.lock:
                if slot.follower is not None and slot.block is not None:
                    added = ReplicasAdded(slot.follower.name, [_notice(slot, slot.follower)])
                    self._peers.post(channel, FrameKind.REPLICAS_ADDED, meta=encode(added))

    def follower(self, slot: BlockSlot, *, owner: str) -> SentFollower | None:
        """Return the replica of a block that is handed over, for its new owner; None if that is the owner itself."""
        follower = slot.follower
        if follower is None or follower.name == owner:
            return None
        return SentFollower(follower.name, follower.version, follower.turn, follower.sent)

    def take_over(self, slot: BlockSlot, arrived: BlockState) -> None:
        """Take the replica of a block over with the block, from its former owner."""
        slot.shadow, slot.follower = None, None if arrived.follower is None else Follower(*arrived.follower)

    def advanced(self, slot: BlockSlot, block: Block) -> None:
        """Acknowledge a new version to workers that asked, and stream the block to a replica that starts with it."""
        asks, slot.asks = slot.asks, []
        for ask in asks:
            if ask.version <= block.version:
                self._answer(ask, slot.number)
            else:
                slot.asks.append(ask)
        follower = slot.follower
        if follower is not None and not follower.sent and follower.version <= block.version:
            follower.sent = True
            self._stream(slot, block, follower)

    def _stream(self, slot: BlockSlot, block: Block, follower: Follower) -> None:
        """Stream a copy of a block, because the next update may come before all of it is sent."""
        number, version = slot.number, block.version

        def failed(why: object) -> None:
            self._report(reports.ReplicaFailed(number, follower.turn, follower.name, str(why)[:200]))

        sent = encode(replace(block.description(), replica_turn=follower.turn))
        try:
            reply = self._peers.channel_to(follower.name).request(
                FrameKind.STATE, *[vector.copy() for vector in block.vectors()],
                meta=sent, block=number, step=at(self._blocks.era, version),
            )  # fmt: skip
        except TransportError as error:
            failed(error)
            return
        reply.add_done_callback(lambda done: failed(done.exception()) if done.exception() is not None else None)

    # --- the replica's side

    def is_early(self, slot: BlockSlot, block: Block, step: int, pushed: Gradient) -> bool:
        """Return whether gradients are of a later version that is on its way, rather than of a version that is lost."""
        known = slot.shadow is not None or pushed.moves > block.moves
        return self._sync and step > block.version and known

    def install(self, slot: BlockSlot, channel: Channel, message: Message, arrived: BlockState) -> None:
        """Start a replica from a block that its owner has streamed; the slot is locked."""
        turn, block = arrived.replica_turn or 0, slot.block
        mine = block is not None and slot.shadow is None and block.moves >= arrived.moves
        if mine or (slot.shadow is not None and slot.shadow >= turn):
            with contextlib.suppress(TransportError):
                channel.refuse(message, f"block {slot.number} is here already, and no shadow of an earlier turn")
            return
        slot.shadow, slot.follower = turn, None
        self._blocks.put(slot, Block.arrived(slot.number, message.payload, arrived))
        with contextlib.suppress(TransportError):  # the sender is gone, which is noticed elsewhere
            channel.reply(message)
        self.report_replica(slot)
        self._settle(slot)

    def report_replica(self, slot: BlockSlot) -> None:
        """Report to the controller that a block is a replica, and its version."""
        if slot.block is not None and slot.shadow is not None:
            self._report(reports.HasReplica(slot.number, slot.shadow, slot.block.version))

    def ask(self, channel: Channel, message: Message) -> None:
        """Acknowledge a version to a worker: now, or when the replicas of all its blocks have made it."""
        era, version = era_and_version(message.head.step)
        if era != self._blocks.era:
            return
        numbers = decode(AwaitReplicas, message.meta).blocks
        ask = PendingAck(channel, version, set(numbers))
        for number in numbers:
            slot = self._blocks.slot(number)
            with slot.lock:
                here = slot.block is not None and slot.block.version >= version
                if here or (slot.gone is not None and slot.gone.blocks[0].version >= version):
                    self._answer(ask, number)
                else:
                    slot.asks.append(ask)

    def _answer(self, ask: PendingAck, block: int) -> None:
        if ask.done(block):
            step = at(self._blocks.era, ask.version)
            self._peers.post(ask.channel, FrameKind.REPLICAS_READY, meta=encode(ReplicasReady(self.name)), step=step)

    def promote(self, blocks: Iterable[BlockMoves]) -> None:
        """Make replicas the owners of their blocks after the owner's death: (block, moves)."""
        late: dict[int, list[int]] = defaultdict(list)
        lacking = []
        for number, moves in blocks:
            slot = self._blocks.slot(number)
            with slot.lock:
                block = slot.block
                if block is None:
                    lacking.append(number)
                    continue
                if slot.shadow is not None or block.moves < moves:
                    block.moves, slot.shadow, slot.follower, slot.gone = moves, None, None, None
                for version in [due for due in block.due if due < block.version]:
                    block.due.discard(version)
                    late[version].append(slot.number)
                era = self._blocks.era
                self._report(reports.OwnsBlock(slot.number, block.version, block.moves, era=era))
                self._settle(slot)
        for version, numbers in late.items():
            self._report(reports.CopyLate(version, numbers[:BLOCKS_OF_A_REPORT]))
        if lacking:
            self._report(reports.LacksReplicas(lacking[:BLOCKS_OF_A_REPORT]))

    def unfollow(self, blocks: Iterable[BlockTurn]) -> None:
        """Drop replicas that started in a turn or before it: (block, turn)."""
        for number, turn in blocks:
            slot = self._blocks.slot(number)
            with slot.lock:
                if slot.shadow is None or slot.shadow > turn:
                    continue
                slot.shadow = None
                self._blocks.drop(slot)
                asks, slot.asks = slot.asks, []
                for ask in asks:
                    self._answer(ask, slot.number)


def _notice(slot: BlockSlot, follower: Follower) -> ReplicatedBlock:
    return ReplicatedBlock(slot.number, follower.version, follower.turn)


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """The copy of a block: its vectors, and what a checkpoint needs besides."""

    block: int
    step: int
    vectors: list[Vector]
    described: BlockState


SendCopy = Callable[[KeptCopy, int], None]
"""Sends the controller a copy, with the turn of its order."""


class KeptCopies:
    """The copies of one server.

    The controller asks for a few at a time, as fast as they are written, so that its memory does not grow with the
    model.
    """

    def __init__(self, *, report: reports.SendReport, send: SendCopy) -> None:
        self._report, self._send_one = report, send
        self._lock = threading.Lock()
        self._kept: dict[int, dict[int, KeptCopy]] = {}
        """Copies by `at(era, version)` and block."""

    def keep(self, block: int, step: int, vectors: list[Vector], described: BlockState) -> None:
        """Keep the copy of a block, and report it."""
        with self._lock:
            self._kept.setdefault(step, {})[block] = KeptCopy(block, step, vectors, described)
        era, version = era_and_version(step)
        fault.at("ps.copy.kept")
        self._report(reports.BlockCopied(block, version, era=era))

    def send(self, blocks: Iterable[int], *, era: int, version: int, turn: int) -> None:
        """Send copies and forget them, and those of earlier versions; report those that are not here."""
        step, missing = at(era, version), []
        self.drop(step - 1)
        for block in blocks:
            with self._lock:
                copy = self._kept.get(step, {}).pop(block, None)
            if copy is None:
                missing.append(block)
            else:
                fault.at("ps.copy.sending")
                self._send_one(copy, turn)
        if missing:
            self._report(reports.CopyLate(version, missing[:100], era=era))

    def drop(self, step: int) -> None:
        """Forget the copies of a version, given as `at(era, version)`, and of earlier ones."""
        with self._lock:
            for old in [known for known in self._kept if known <= step]:
                del self._kept[old]
