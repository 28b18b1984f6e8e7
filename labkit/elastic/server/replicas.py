"""Replicas of blocks on other servers, kept at the owner's version so that they can replace it at any time.

A replica receives the same gradients as the owner, sums them in the same order and makes the same updates, so that it
has the same bits. It starts like a hand-over: the owner announces to workers from which version on a replica exists,
and streams the block at that version.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from typing import Any

from labkit.elastic.protocol.messages import FrameKind, at, era_and_version
from labkit.elastic.server.block import Block
from labkit.elastic.server.peers import ConnectedPeers
from labkit.elastic.server.slots import BlockSlot, BlockTable, Follower, PendingAck
from labkit.elastic.transport import Channel, Message, TransportError

BLOCKS_OF_A_REPORT = 100
"""Blocks that a report to the controller names at most."""


class BlockReplicas:
    """The replicas of one server's blocks, and the replicas that it has of the blocks of others.

    Parameters
    ----------
    name : str
        Of the server.
    blocks, peers
        Those of the server.
    sync : bool
        Whether training is synchronous; only then there are replicas.
    report : callable
        Sends the controller an event with its columns.
    settle : callable
        Does what follows when a block is installed: see `GradientUpdates`.
    """

    def __init__(
        self,
        name: str,
        blocks: BlockTable,
        peers: ConnectedPeers,
        *,
        sync: bool,
        report: Callable[..., None],
        settle: Callable[[BlockSlot], None],
    ) -> None:
        self.name, self._sync = name, sync
        self._blocks, self._peers = blocks, peers
        self._report, self._settle = report, settle

    # --- the owner's side

    def follow(self, orders: Iterable[Sequence[Any]]) -> None:
        """Announce replicas of own blocks, (block, server, turn), each from the block's next version on."""
        notices = defaultdict(list)
        with ExitStack() as locks:
            slots = []
            for number, name, turn in orders:
                slot = self._blocks.slot(int(number))
                locks.enter_context(slot.lock)
                block, known = slot.block, slot.follower
                if block is None or slot.shadow is not None or (known is not None and known.turn >= turn):
                    continue  # another server owns it: the controller repeats the order to that one
                slot.follower = Follower(str(name), block.version + 1, int(turn))
                slots.append(slot)
            for slot in slots:
                if slot.follower is not None:
                    notices[slot.follower.name].append(_notice(slot, slot.follower))
            for name, blocks in notices.items():
                self._peers.notify_workers(FrameKind.FOLLOWED, {"name": name}, blocks)

    def greet(self, channel: Channel) -> None:
        """Send a worker that has just connected the replicas of all blocks."""
        for slot in self._blocks.slots():
            with slot.lock:
                if slot.follower is not None and slot.block is not None:
                    meta = {"name": slot.follower.name, "blocks": [_notice(slot, slot.follower)]}
                    self._peers.post(channel, FrameKind.FOLLOWED, meta=meta)

    def card(self, slot: BlockSlot, *, owner: str) -> dict[str, Any]:
        """Return the replica of a block that is handed over, for its new owner; {} if that is the new owner itself."""
        follower = slot.follower
        return {} if follower is None or follower.name == owner else {"follower": astuple(follower)}

    def take_over(self, slot: BlockSlot, message: Message) -> None:
        """Take the replica of a block over with the block, from its former owner."""
        follower = message.meta.get("follower")
        slot.shadow, slot.follower = None, None if follower is None else Follower(*follower)

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
            self._report("unfollowed", block=number, turn=follower.turn, follower=follower.name, why=str(why)[:200])

        try:
            reply = self._peers.channel_to(follower.name).request(
                FrameKind.STATE, *[vector.copy() for vector in block.vectors()],
                meta={**block.card(), "shadow": follower.turn}, block=number, step=at(self._blocks.era, version),
            )  # fmt: skip
        except TransportError as error:
            failed(error)
            return
        reply.add_done_callback(lambda done: failed(done.exception()) if done.exception() is not None else None)

    # --- the replica's side

    def is_early(self, slot: BlockSlot, block: Block, step: int, message: Message) -> bool:
        """Return whether gradients are of a later version that is on its way, rather than of a version that is lost."""
        known = slot.shadow is not None or int(message.meta.get("moves", 0)) > block.moves
        return self._sync and step > block.version and known

    def install(self, slot: BlockSlot, channel: Channel, message: Message) -> None:
        """Start a replica from a block that its owner has streamed; the slot is locked."""
        turn, moves, block = int(message.meta["shadow"]), int(message.meta["moves"]), slot.block
        mine = block is not None and slot.shadow is None and block.moves >= moves
        if mine or (slot.shadow is not None and slot.shadow >= turn):
            with contextlib.suppress(TransportError):
                channel.refuse(message, f"block {slot.number} is here already, and no shadow of an earlier turn")
            return
        slot.shadow, slot.follower = turn, None
        self._blocks.put(slot, Block.arrived(slot.number, message.payload, dict(message.meta)))
        with contextlib.suppress(TransportError):  # the sender is gone, which is noticed elsewhere
            channel.reply(message)
        self.report_replica(slot)
        self._settle(slot)

    def report_replica(self, slot: BlockSlot) -> None:
        """Report to the controller that a block is a replica, and its version."""
        if slot.block is not None and slot.shadow is not None:
            self._report("shadows", block=slot.number, turn=slot.shadow, version=slot.block.version)

    def ask(self, channel: Channel, message: Message) -> None:
        """Acknowledge a version to a worker: now, or when the replicas of all its blocks have made it."""
        era, version = era_and_version(message.head.step)
        if era != self._blocks.era:
            return
        numbers = [int(number) for number in message.meta["blocks"]]
        ask = PendingAck(channel, version, set(numbers))
        for number in numbers:
            slot = self._blocks.slot(number)
            with slot.lock:
                here = slot.block is not None and slot.block.version >= version
                if here or (slot.gone is not None and slot.gone["blocks"][0][1] >= version):
                    self._answer(ask, number)
                else:
                    slot.asks.append(ask)

    def _answer(self, ask: PendingAck, block: int) -> None:
        if ask.done(block):
            step = at(self._blocks.era, ask.version)
            self._peers.post(ask.channel, FrameKind.ABREAST, meta={"name": self.name}, step=step)

    def promote(self, blocks: Iterable[Sequence[int]]) -> None:
        """Make replicas the owners of their blocks after the owner's death: (block, moves)."""
        late: dict[int, list[int]] = defaultdict(list)
        lacking = []
        for number, moves in blocks:
            slot = self._blocks.slot(int(number))
            with slot.lock:
                block = slot.block
                if block is None:
                    lacking.append(int(number))
                    continue
                if slot.shadow is not None or block.moves < moves:
                    block.moves, slot.shadow, slot.follower, slot.gone = int(moves), None, None, None
                for version in [due for due in block.due if due < block.version]:
                    block.due.discard(version)
                    late[version].append(slot.number)
                era = self._blocks.era
                self._report("owns", block=slot.number, version=block.version, moves=block.moves, era=era)
                self._settle(slot)
        for version, numbers in late.items():
            self._report("late", version=version, blocks=numbers[:BLOCKS_OF_A_REPORT])
        if lacking:
            self._report("lacks", blocks=lacking[:BLOCKS_OF_A_REPORT])

    def unfollow(self, blocks: Iterable[Sequence[int]]) -> None:
        """Drop replicas that started in a turn or before it: (block, turn)."""
        for number, turn in blocks:
            slot = self._blocks.slot(int(number))
            with slot.lock:
                if slot.shadow is None or slot.shadow > turn:
                    continue
                slot.shadow = None
                self._blocks.drop(slot)
                asks, slot.asks = slot.asks, []
                for ask in asks:
                    self._answer(ask, slot.number)


def _notice(slot: BlockSlot, follower: Follower) -> list[int]:
    return [slot.number, follower.version, follower.turn]
