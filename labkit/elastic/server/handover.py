"""Hand-over of blocks between servers: announced to workers, streamed to the new owner, taken back if that fails."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages.blocks import BlocksMoved, BlockState, MovedBlock
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode, encode, era_and_version
from labkit.elastic.protocol.messages.reports import HandedOver, OwnsBlock, SendReport, TransferUnconfirmed
from labkit.elastic.server.block import Block
from labkit.elastic.server.replicas import BlockReplicas
from labkit.elastic.server.slots import BlockSlot, BlockTable, ConnectedPeers
from labkit.elastic.transport import Channel, Message, TransportError
from labkit.elastic.transport.shared_arrays import TransferBuffers


@dataclass(slots=True)
class _Transfer:
    """A block that is streamed to its new owner, and the buffer in shared memory that it is packed into."""

    slot: BlockSlot
    block: Block
    owner: str
    era: int
    moves: int
    buffer: Vector | None = None
    began_s: float = field(default_factory=time.perf_counter)


class BlockHandover:
    """The blocks that come to one server and leave it.

    `settle` and `advanced`: do what follows when a block is installed, and when it has a new version: see
    `GradientUpdates`.
    """

    def __init__(
        self,
        name: str,
        blocks: BlockTable,
        peers: ConnectedPeers,
        replicas: BlockReplicas,
        *,
        sync: bool,  # whether training is synchronous: blocks then leave at a version that workers know beforehand
        report: SendReport,
        settle: Callable[[BlockSlot], None],
        advanced: Callable[[BlockSlot, Block], None],
    ) -> None:
        self.name, self._sync = name, sync
        self._blocks, self._peers, self._replicas = blocks, peers, replicas
        self._report, self._settle, self._advanced = report, settle, advanced
        self.pace = HandoverPace()
        self.buffers = TransferBuffers()
        self._unconfirmed: dict[int, Block] = {}  # streamed to a server that has not confirmed them
        self._moving: dict[int, str] = {}  # new owner of each block that is being streamed

    # --- blocks that come

    def install(self, channel: Channel, message: Message) -> None:
        """Take a block over from another server or from a checkpoint, then use what arrived for it before."""
        slot, arrived = self._blocks.slot(message.head.block), decode(BlockState, message.meta)
        with slot.lock:
            fault.at("ps.install.arrived" if arrived.moves else "ps.load.arrived")
            era, _ = era_and_version(message.head.step)
            known = -1 if slot.gone is None else slot.gone.blocks[0].moves
            least = known if arrived.replica_turn is not None else known + 1  # a former owner may become the replica
            if era != self._blocks.era or arrived.moves < least:
                with contextlib.suppress(TransportError):
                    channel.refuse(message, f"block {slot.number} has moved on since, or is of another era")
                return
            if arrived.replica_turn is not None:
                self._replicas.install(slot, channel, message, arrived)
                return
            block = self._blocks.put(slot, Block.arrived(slot.number, message.payload, arrived))
            self._replicas.take_over(slot, arrived)
            fault.at("ps.install.placed" if block.moves else "ps.load.placed")
            with contextlib.suppress(TransportError):  # the sender asks again, or is gone
                channel.reply(message)
            fault.at("ps.install.replied" if block.moves else "ps.load.replied")
            self._report(OwnsBlock(slot.number, block.version, block.moves, era=era))
            self._settle(slot)

    # --- blocks that leave

    def hand_over(self, moves: dict[int, str], *, version: int | None, turn: tuple[int, int] = (0, 1)) -> None:
        """Hand blocks over to other servers.

        Workers get the notice over the same connection as the last version of the old owner, and before it, so that
        they never push to the wrong server. Gradients of the next version wait at the new owner for the block.

        Parameters
        ----------
        moves : dict
            New owner of each block.
        version : int or None
            The version at which all blocks leave; None: a few leave with each of the next versions, so that no step
            takes much longer (see `handover_pace`). In asynchronous training all leave at once.
        turn : (int, int)
            (i, n): this server is the i-th of n that hand over at the same time; every n-th version is its turn.
        """
        found = {number: (slot.block, slot.leaving) for number, slot in ((n, self._blocks.slot(n)) for n in moves)}
        staying = {number: block for number, (block, leaving) in found.items() if block is not None and leaving is None}
        turns = self._departures(list(staying.values()), at_once=version is not None, turn=turn)
        later = dict(zip(staying, turns, strict=True))
        for number, owner in moves.items():
            slot = self._blocks.slot(number)
            with slot.lock:  # of one block at a time: the others go on with the step
                self._schedule(slot, owner, version=version, later=later.get(number, 0))

    def _schedule(self, slot: BlockSlot, owner: str, *, version: int | None, later: int) -> None:
        """Announce the new owner of a block and the first version that it makes; stream the block if that is next."""
        block = slot.block
        if block is None:
            return
        if slot.leaving is None:
            from_version = block.version + later if version is None else max(version, block.version)
            slot.leaving = owner, from_version
            self._announce(owner, MovedBlock(slot.number, from_version, block.moves + 1))
            fault.at("ps.handover.announced")
        if slot.leaving[1] <= block.version:
            self.stream(slot, block, slot.leaving[0])

    def _departures(self, blocks: list[Block], *, at_once: bool, turn: tuple[int, int]) -> list[int]:
        if at_once or not self._sync:
            return [0] * len(blocks)
        n_bytes = [sum(vector.nbytes for vector in block.vectors()) for block in blocks]
        mine, of = turn
        return [1 + of * step + mine for step in departures(n_bytes, per_step=self.pace.bytes_per_step())]

    def _announce(self, owner: str, block: MovedBlock) -> None:
        notice = BlocksMoved(owner, self._peers.address_of(owner), [block], self._blocks.era)
        self._peers.notify_workers(FrameKind.MOVED, notice)

    def stream(self, slot: BlockSlot, block: Block, owner: str) -> None:
        """Stream a block to its new owner, and keep it until the owner confirms it; the slot is locked."""
        channel, address = self._peers.servers.get(owner, (None, ""))
        era, moves = self._blocks.era, block.moves + 1
        follower = self._replicas.follower(slot, owner=owner)
        sent = encode(replace(block.description(), moves=moves, follower=follower))
        self._leave(slot, BlocksMoved(owner, address, [MovedBlock(slot.number, block.version, moves)], era, gone=True))
        transfer = _Transfer(slot, block, owner, era, moves)
        if channel is None:
            self._failed(transfer, TransportError(f"{owner} is not connected"))
            return
        fault.at("ps.handover.stream")
        self._moving[slot.number] = owner
        try:
            if self._blocks.shared_pool is not None:
                transfer.buffer = self.buffers.pack(block.vectors(), channel)
            parts = block.vectors() if transfer.buffer is None else [transfer.buffer]
            reply = channel.request(FrameKind.STATE, *parts, meta=sent, block=slot.number, step=at(era, block.version))
        except TransportError as error:
            self._failed(transfer, error)
            return
        fault.at("ps.handover.streaming")
        reply.add_done_callback(lambda done: self._answered(transfer, done.exception()))

    def _leave(self, slot: BlockSlot, notice: BlocksMoved) -> None:
        slot.block, slot.leaving = None, None
        slot.gone = notice
        for waiting, _ in slot.wanted:
            self._peers.post(waiting, FrameKind.MOVED, meta=encode(notice))
        slot.wanted.clear()

    def _answered(self, transfer: _Transfer, failure: BaseException | None) -> None:
        if failure is None:
            self._confirmed(transfer)
        else:
            self._failed(transfer, failure)

    def _confirmed(self, transfer: _Transfer) -> None:
        """Report that the new owner has the block, and free its memory here."""
        block = transfer.block
        self.buffers.give(transfer.buffer)
        self._end(transfer)
        fault.at("ps.handover.acknowledged")
        seconds, n_bytes = time.perf_counter() - transfer.began_s, sum(vector.nbytes for vector in block.vectors())
        self._report(
            HandedOver(block.number, block.version, transfer.owner, transfer.moves, seconds, n_bytes, era=transfer.era)
        )
        self._blocks.release(block)

    def _failed(self, transfer: _Transfer, failure: BaseException) -> None:
        """Keep a block and ask the controller which server has it; after the end of its era it is not needed."""
        block, era = transfer.block, transfer.era
        with transfer.slot.lock:
            if era != self._blocks.era:
                self._blocks.release(block)
                return
            self._unconfirmed[block.number] = block
            self._end(transfer)
        why = str(failure)[:200]
        self._report(TransferUnconfirmed(block.number, block.version, transfer.owner, transfer.moves, why, era=era))

    def _end(self, transfer: _Transfer) -> None:
        if transfer.era == self._blocks.era:
            self._moving.pop(transfer.block.number, None)

    # --- hand-overs that are not confirmed

    def take_back(self, numbers: Iterable[int]) -> None:
        """Own blocks again that their new owner never had, as the controller has found out."""
        for number in numbers:
            slot = self._blocks.slot(number)
            with slot.lock:
                block = self._unconfirmed.pop(number, None)
                if block is None or slot.block is not None:
                    self._blocks.release(block)
                    continue
                block.moves += 2
                slot.block, slot.gone = block, None
                # also for workers that have been redirected
                self._announce(self.name, MovedBlock(number, 0, block.moves))
                fault.at("ps.handover.took_back")
                self._report(OwnsBlock(number, block.version, block.moves, era=self._blocks.era))
                self._advanced(slot, block)

    def forget(self, numbers: Iterable[int]) -> None:
        """Free blocks that their new owner has, as the controller has found out."""
        for number in numbers:
            with self._blocks.slot(number).lock:
                self._blocks.release(self._unconfirmed.pop(number, None))

    def moving(self) -> list[tuple[int, str]]:
        """Return (block, new owner) of blocks that are being streamed."""
        return list(self._moving.items())

    def unconfirmed(self) -> list[tuple[int, int, int, str]]:
        """Return (block, version, moves, new owner) of streamed blocks that the new owner has not confirmed."""
        return [
            (number, block.version, block.moves + 1, self._owner_of(number))
            for number, block in list(self._unconfirmed.items())
        ]

    def _owner_of(self, number: int) -> str:
        gone = self._blocks.slot(number).gone
        return "" if gone is None else gone.owner

    def begin_era(self) -> list[Block]:
        """Drop all hand-overs, and return the blocks that were kept for them; the caller holds the table's lock."""
        kept, self._unconfirmed, self._moving = list(self._unconfirmed.values()), {}, {}
        return kept


LATE_S: Final = 0.003
"""Seconds by which blocks that leave may lengthen a step,"""

SHARE: Final = 0.05
"""or the part of a step, if that is more."""

BYTES_PER_S: Final = 1e9
"""Rate at which a block is streamed and installed on a busy machine."""

REMEMBERED: Final = 9
"""Steps of which the median is taken."""


class HandoverPace:
    """The step time that a server observes: the median of the last steps."""

    def __init__(self) -> None:
        self._version, self._at_s = -1, 0.0
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED)

    def advanced(self, version: int, *, now_s: float) -> None:
        """Record that the first block has reached a version; later ones of that version change nothing."""
        if version <= self._version:
            return
        if version == self._version + 1:
            self._steps_s.append(now_s - self._at_s)
        self._version, self._at_s = version, now_s

    @property
    def step_s(self) -> float:
        """Seconds of a step; 0 while that is unknown."""
        return median(self._steps_s) if self._steps_s else 0.0

    def bytes_per_step(self) -> float:
        """Return the bytes that may leave with one step.

        >>> HandoverPace().bytes_per_step()
        3000000.0
        """
        return BYTES_PER_S * max(LATE_S, SHARE * self.step_s)


def departures(n_bytes: Sequence[int], *, per_step: float) -> list[int]:
    """Return the step, from 0, with which each block leaves: in the given order, at least one in each step.

    >>> departures([4, 4, 4, 4, 1], per_step=8)
    [0, 0, 1, 1, 2]
    >>> departures([9, 9], per_step=8)
    [0, 1]
    """
    steps, step, so_far = [], 0, 0
    for n in n_bytes:
        if so_far and so_far + n > per_step:
            step, so_far = step + 1, 0
        so_far += n
        steps.append(step)
    return steps
