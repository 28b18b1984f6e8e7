"""Blocks that follow those of another server, version by version, so that they can take their place at any time.

One who follows gets the same gradients as the owner, sums them in the same order and makes the same updates: the same
bits. It begins as in a hand-over: the owner says from which version on somebody follows, and streams the block then.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.elastic.protocol.messages import FrameKind, at, era_and_version
from labkit.elastic.server.block import Block
from labkit.elastic.transport import Channel, Message, TransportError

if TYPE_CHECKING:
    from labkit.elastic.server.server import BlockSlot, ParameterServer


@dataclass(slots=True)
class Follower:
    """Who follows a block from which version on; `sent` tells whether it was given the block."""

    name: str
    version: int
    turn: int
    sent: bool = False


@dataclass(slots=True)
class PendingAck:
    """A worker that wants to hear when blocks that follow have made a version."""

    channel: Channel
    version: int
    left: set[int]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def done(self, block: int) -> bool:
        """Note that a block has; tell whether it was the last one."""
        with self.lock:
            known = block in self.left
            self.left.discard(block)
            return known and not self.left


class BlockReplicas:
    """What a server does for blocks that follow, its own and those of others.

    Parameters
    ----------
    server : ParameterServer
        Whose blocks they are.
    post, report : callable
        Send to a worker, if it is still there, and tell the controller an event.
    """

    def __init__(
        self, server: ParameterServer, *, post: Callable[..., int | None], report: Callable[..., None]
    ) -> None:
        self._server, self._post, self._report = server, post, report

    # --- the owner's side

    def follow(self, orders: Iterable[Sequence[Any]]) -> None:
        """Let others follow own blocks, (block, name, turn), each from its next version on."""
        server, notices = self._server, defaultdict(list)
        with ExitStack() as locks:
            slots = []
            for number, name, turn in orders:
                slot = server.slot(int(number))
                locks.enter_context(slot.lock)
                block, known = slot.block, slot.follower
                if block is None or slot.shadow is not None or (known is not None and known.turn >= turn):
                    continue  # it is elsewhere: the controller says it again to whoever has it
                slot.follower = Follower(str(name), block.version + 1, int(turn))
                slots.append(slot)
            for slot in slots:
                if slot.follower is not None:
                    notices[slot.follower.name].append(_notice(slot, slot.follower))
            for name, blocks in notices.items():
                server.tell_workers(FrameKind.FOLLOWED, {"name": name}, blocks)

    def met_worker(self, channel: Channel) -> None:
        """Tell a worker that has just come who follows what."""
        for slot in self._server.slots():
            with slot.lock:
                if slot.follower is not None and slot.block is not None:
                    meta = {"name": slot.follower.name, "blocks": [_notice(slot, slot.follower)]}
                    self._post(channel, FrameKind.FOLLOWED, meta=meta)

    def card(self, slot: BlockSlot, *, owner: str) -> dict[str, Any]:
        """Return who follows, for the server that is to be the owner, unless it is that one itself."""
        follower = slot.follower
        return {} if follower is None or follower.name == owner else {"follower": astuple(follower)}

    def settled(self, slot: BlockSlot, message: Message) -> None:
        """Note who follows a block that was handed over to this server."""
        follower = message.meta.get("follower")
        slot.shadow, slot.follower = None, None if follower is None else Follower(*follower)

    def advanced(self, slot: BlockSlot, block: Block) -> None:
        """Answer who asks about a new version, and give the block to one who follows from it on."""
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
        """Send a copy of a block as it is now: the next update comes before all of it is sent."""
        server, number, version = self._server, slot.number, block.version

        def failed(why: object) -> None:
            self._report("unfollowed", block=number, turn=follower.turn, follower=follower.name, why=str(why)[:200])

        try:
            reply = server.channel_to(follower.name).request(
                FrameKind.STATE, *[vector.copy() for vector in block.vectors()],
                meta={**block.card(), "shadow": follower.turn}, block=number, step=at(server.era, version),
            )  # fmt: skip
        except TransportError as error:
            failed(error)
            return
        reply.add_done_callback(lambda done: failed(done.exception()) if done.exception() is not None else None)

    # --- the side of one who follows

    def is_early(self, slot: BlockSlot, block: Block, step: int, message: Message) -> bool:
        """Tell whether gradients are of a later version, and not of one that was lost: they wait for the block."""
        known = slot.shadow is not None or int(message.meta.get("moves", 0)) > block.moves
        return self._server.sync and step > block.version and known

    def install(self, slot: BlockSlot, channel: Channel, message: Message) -> None:
        """Begin to follow with a block as its owner has it; the slot is locked."""
        turn, moves, block = int(message.meta["shadow"]), int(message.meta["moves"]), slot.block
        mine = block is not None and slot.shadow is None and block.moves >= moves
        if mine or (slot.shadow is not None and slot.shadow >= turn):
            with contextlib.suppress(TransportError):
                channel.refuse(message, f"block {slot.number} is here already, and no shadow of an earlier turn")
            return
        slot.shadow, slot.follower = turn, None
        self._server.put(slot, Block.arrived(slot.number, message.payload, dict(message.meta)))
        with contextlib.suppress(TransportError):  # whoever sent it is gone: that is noticed elsewhere
            channel.reply(message)
        self.report_shadow(slot)
        self._server.settle(slot)

    def report_shadow(self, slot: BlockSlot) -> None:
        """Tell the controller that a block follows."""
        if slot.block is not None and slot.shadow is not None:
            self._report("shadows", block=slot.number, turn=slot.shadow, version=slot.block.version)

    def ask(self, channel: Channel, message: Message) -> None:
        """Answer when blocks that follow have made a version."""
        era, version = era_and_version(message.head.step)
        if era != self._server.era:
            return
        numbers = [int(number) for number in message.meta["blocks"]]
        ask = PendingAck(channel, version, set(numbers))
        for number in numbers:
            slot = self._server.slot(number)
            with slot.lock:
                here = slot.block is not None and slot.block.version >= version
                if here or (slot.gone is not None and slot.gone["blocks"][0][1] >= version):
                    self._answer(ask, number)
                else:
                    slot.asks.append(ask)

    def _answer(self, ask: PendingAck, block: int) -> None:
        if ask.done(block):
            server = self._server
            self._post(ask.channel, FrameKind.ABREAST, meta={"name": server.name}, step=at(server.era, ask.version))

    def own(self, blocks: Iterable[Sequence[int]]) -> None:
        """Be the owner of blocks that followed one who is dead: (block, moves)."""
        late: dict[int, list[int]] = defaultdict(list)
        lacking = []
        for number, moves in blocks:
            slot = self._server.slot(int(number))
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
                era = self._server.era
                self._report("owns", block=slot.number, version=block.version, moves=block.moves, era=era)
                self._server.settle(slot)
        for version, numbers in late.items():
            self._report("late", version=version, blocks=numbers[:100])
        if lacking:
            self._report("lacks", blocks=lacking[:100])

    def unfollow(self, blocks: Iterable[Sequence[int]]) -> None:
        """Follow no more where it began in this turn or before it: (block, turn)."""
        for number, turn in blocks:
            slot = self._server.slot(int(number))
            with slot.lock:
                if slot.shadow is None or slot.shadow > turn:
                    continue
                slot.shadow = None
                self._server.drop(slot)
                asks, slot.asks = slot.asks, []
                for ask in asks:
                    self._answer(ask, slot.number)


def _notice(slot: BlockSlot, follower: Follower) -> list[int]:
    return [slot.number, follower.version, follower.turn]
