"""Hand-over of blocks between servers: announced to workers, streamed to the new owner, taken back if that fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import FrameKind, at, era_and_version
from labkit.elastic.server.block import Block
from labkit.elastic.server.handover_pace import HandoverPace, departures
from labkit.elastic.server.peers import ConnectedPeers
from labkit.elastic.server.replicas import BlockReplicas
from labkit.elastic.server.slots import BlockSlot, BlockTable
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

    Parameters
    ----------
    name : str
        Of the server.
    blocks, peers, replicas
        Those of the server.
    sync : bool
        Whether training is synchronous: blocks then leave at a version that workers know beforehand.
    report : callable
        Sends the controller an event with its columns.
    settle, advanced : callable
        Do what follows when a block is installed, and when it has a new version: see `GradientUpdates`.
    """

    def __init__(
        self,
        name: str,
        blocks: BlockTable,
        peers: ConnectedPeers,
        replicas: BlockReplicas,
        *,
        sync: bool,
        report: Callable[..., None],
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
        slot = self._blocks.slot(message.head.block)
        with slot.lock:
            fault.at("ps.install.arrived" if message.meta["moves"] else "ps.load.arrived")
            era, _ = era_and_version(message.head.step)
            known = -1 if slot.gone is None else int(slot.gone["blocks"][0][2])
            least = known if "shadow" in message.meta else known + 1  # a former owner may become the replica
            if era != self._blocks.era or int(message.meta["moves"]) < least:
                with contextlib.suppress(TransportError):
                    channel.refuse(message, f"block {slot.number} has moved on since, or is of another era")
                return
            if "shadow" in message.meta:
                self._replicas.install(slot, channel, message)
                return
            block = self._blocks.put(slot, Block.arrived(slot.number, message.payload, dict(message.meta)))
            self._replicas.take_over(slot, message)
            fault.at("ps.install.placed" if block.moves else "ps.load.placed")
            with contextlib.suppress(TransportError):  # the sender asks again, or is gone
                channel.reply(message)
            fault.at("ps.install.replied" if block.moves else "ps.load.replied")
            self._report("owns", block=slot.number, version=block.version, moves=block.moves, era=era)
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
            self._announce(owner, [[slot.number, from_version, block.moves + 1]])
            fault.at("ps.handover.announced")
        if slot.leaving[1] <= block.version:
            self.stream(slot, block, slot.leaving[0])

    def _departures(self, blocks: list[Block], *, at_once: bool, turn: tuple[int, int]) -> list[int]:
        """Return after how many versions from now each block leaves."""
        if at_once or not self._sync:
            return [0] * len(blocks)
        n_bytes = [sum(vector.nbytes for vector in block.vectors()) for block in blocks]
        mine, of = turn
        return [1 + of * step + mine for step in departures(n_bytes, per_step=self.pace.bytes_per_step())]

    def _announce(self, owner: str, blocks: list[list[int]]) -> None:
        meta = {"owner": owner, "address": self._peers.address_of(owner), "era": self._blocks.era}
        self._peers.notify_workers(FrameKind.MOVED, meta, blocks)

    def stream(self, slot: BlockSlot, block: Block, owner: str) -> None:
        """Stream a block to its new owner, and keep it until the owner confirms it; the slot is locked."""
        channel, address = self._peers.servers.get(owner, (None, ""))
        era, moves = self._blocks.era, block.moves + 1
        card = {**block.card(), "moves": moves, **self._replicas.card(slot, owner=owner)}
        self._leave(slot, {"owner": owner, "address": address, "blocks": [[slot.number, block.version, moves]]})
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
            reply = channel.request(FrameKind.STATE, *parts, meta=card, block=slot.number, step=at(era, block.version))
        except TransportError as error:
            self._failed(transfer, error)
            return
        fault.at("ps.handover.streaming")
        reply.add_done_callback(lambda done: self._answered(transfer, done.exception()))

    def _leave(self, slot: BlockSlot, notice: dict[str, object]) -> None:
        """Empty a slot, and redirect the pulls that wait for its block."""
        slot.block, slot.leaving = None, None
        slot.gone = {**notice, "gone": True, "era": self._blocks.era}
        for waiting, _ in slot.wanted:
            self._peers.post(waiting, FrameKind.MOVED, meta=slot.gone)
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
        self._report(
            "handed_over", block=block.number, version=block.version, owner=transfer.owner, moves=transfer.moves,
            era=transfer.era, seconds=time.perf_counter() - transfer.began_s,
            bytes=sum(vector.nbytes for vector in block.vectors()),
        )  # fmt: skip
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
        self._report(
            "unsure", block=block.number, version=block.version, owner=transfer.owner, era=era, moves=transfer.moves,
            why=str(failure)[:200],
        )  # fmt: skip

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
                self._announce(self.name, [[number, 0, block.moves]])  # also for workers that have been redirected
                fault.at("ps.handover.took_back")
                self._report("owns", block=number, version=block.version, moves=block.moves, era=self._blocks.era)
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
            (number, block.version, block.moves + 1, str((self._blocks.slot(number).gone or {}).get("owner", "")))
            for number, block in list(self._unconfirmed.items())
        ]

    def begin_era(self) -> list[Block]:
        """Drop all hand-overs, and return the blocks that were kept for them; the caller holds the table's lock."""
        kept, self._unconfirmed, self._moving = list(self._unconfirmed.values()), {}, {}
        return kept
