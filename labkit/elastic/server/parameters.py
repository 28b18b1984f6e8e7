"""Parameters that workers pull: sent at the version that was asked for, or read in place from shared memory."""

from __future__ import annotations

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.frame_kinds import FrameKind, at, era_and_version
from labkit.elastic.protocol.messages.blocks import Pull
from labkit.elastic.protocol.messages.codec import decode, encode
from labkit.elastic.server.block import Block
from labkit.elastic.server.peers import ConnectedPeers
from labkit.elastic.server.slots import BlockSlot, BlockTable
from labkit.elastic.transport import Channel, Message, TransportError


class ParameterReplies:
    """The answers to pulls.

    Parameters
    ----------
    blocks : BlockTable
        Blocks of the server.
    peers : ConnectedPeers
        Its workers.
    """

    def __init__(self, blocks: BlockTable, peers: ConnectedPeers) -> None:
        self._blocks, self._peers = blocks, peers

    def pull(self, channel: Channel, message: Message) -> None:
        """Send blocks at a version: now, or as soon as they have reached it."""
        era, version = era_and_version(message.head.step)
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
                else:
                    self._send(slot, slot.block, channel)

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
