"""A parameter server: takes gradients of the blocks that it has, answers with parameters, hands blocks over."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import FrameKind, at, era_and_version
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.server.block import Block, Pushed, Updates
from labkit.elastic.server.busy_time import BusyTime
from labkit.elastic.server.copy_on_write import CopyOnWriteUpdates, SeqlockUpdates
from labkit.elastic.server.growing import GrowingValues
from labkit.elastic.server.handover_pace import HandoverPace, departures
from labkit.elastic.server.rate import Rate
from labkit.elastic.server.replicas import BlockReplicas, Follower, PendingAck
from labkit.elastic.transport import AccessError, Channel, FrameError, Handler, Head, Message, TransportError
from labkit.elastic.transport.shared_arrays import SharedArrayPool, TransferBuffers
from labkit.oom import is_memory

BLOCKS_OF_A_NOTICE = 400
"""So that a notice stays small."""

SPARE = 64
"""Used buffers of one size that are kept for gradients to come: fresh memory costs more than what is done with it."""

Report = Callable[..., None]
"""Tells the controller an event and its columns."""


@dataclass(slots=True)
class BlockSlot:
    """What a server knows of one block, whether it has it, had it, or will have it."""

    number: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    block: Block | None = None
    wanted: list[tuple[Channel, int]] = field(default_factory=list)
    """Who waits for which version."""
    sent: list[tuple[Channel, int]] = field(default_factory=list)
    """Frames with the parameters that may not be out yet."""
    parked: list[tuple[Channel, Message]] = field(default_factory=list)
    """Gradients that came before the block."""
    leaving: tuple[str, int] | None = None
    """To whom, and from which version on."""
    gone: dict[str, Any] | None = None
    """The notice that tells who has it now."""
    shadow: int | None = None
    """The turn in which it began to follow another server's block; None: it does not."""
    follower: Follower | None = None
    """Who follows it."""
    taken_bytes: int = 0
    """Of gradients, so far."""
    rate: Rate = field(default_factory=lambda: Rate(now_s=time.monotonic()))
    """Of their bytes, since this server has the block."""
    asks: list[PendingAck] = field(default_factory=list)
    """Who wants to hear of a version that it has not made."""

    def notice(self, moves: int) -> dict[str, Any] | None:
        """Return who has the block; None if that is old: who asks has heard of more moves, so it is coming back."""
        return self.gone if self.gone is not None and moves <= int(self.gone["blocks"][0][2]) else None


class ParameterServer:
    """The blocks of one server, and everything that arrives for them; its methods run in the threads of connections.

    Parameters
    ----------
    name : str
        Of this server.
    optimizer : Updates
        Makes the updates.
    n_shards : int
        V, logical gradients of a batch.
    sync : bool
        Whether a version needs all V, or each gradient makes one.
    report : callable
        Tells the controller an event.
    copy : callable
        Sends the controller a copy of a block: (block, vectors, card).
    shelf : SharedArrayPool, optional
        Where parameters lie so that workers on this host read them in place; only in synchronous mode.
    """

    def __init__(
        self,
        name: str,
        *,
        optimizer: Updates,
        n_shards: int,
        sync: bool,
        report: Report,
        copy: Callable[[int, int, list[Vector], dict[str, Any]], None],
        shelf: SharedArrayPool | None = None,
    ) -> None:
        self.shelf = shelf if sync else None
        self.name, self.optimizer, self.n_shards, self.sync = name, optimizer, n_shards, sync
        self.era = 0
        self._report, self._copy = report, copy
        self._slots: dict[int, BlockSlot] = {}
        self._kept: dict[int, Block] = {}  # streamed to somebody who did not say that it has them
        self._moving: dict[int, str] = {}  # streamed to somebody who has not answered yet
        self._lock = threading.Lock()
        self._workers: dict[Channel, int] = {}
        self._pace = HandoverPace()
        self.busy = BusyTime()
        self._crates = TransferBuffers()
        self._servers: dict[str, tuple[Channel, str]] = {}
        self._spare: dict[int, deque[Vector]] = defaultdict(lambda: deque(maxlen=SPARE))
        self.shadows = BlockReplicas(self, post=self._post, report=report)

    def slot(self, number: int) -> BlockSlot:
        """Return what is known of a block."""
        with self._lock:
            return self._slots.setdefault(number, BlockSlot(number))

    def slots(self) -> list[BlockSlot]:
        """Return what is known of all blocks."""
        with self._lock:
            return list(self._slots.values())

    # --- who is there

    def met_worker(self, channel: Channel, *, number: int) -> None:
        """Note a worker, by its number: it is told what moves."""
        with self._lock:
            self._workers[channel] = number
        self.shadows.met_worker(channel)

    def met_server(self, name: str, channel: Channel, address: str) -> None:
        """Note another server, to hand blocks over to."""
        with self._lock:
            self._servers[name] = (channel, address)

    def lost(self, channel: Channel) -> None:
        """Forget a peer."""
        with self._lock:
            self._workers.pop(channel, None)
            for name in [name for name, (known, _) in self._servers.items() if known is channel]:
                del self._servers[name]

    # --- gradients in, parameters out

    def buffer(self, n_bytes: int) -> Vector:
        """Return a buffer for gradients that are about to arrive."""
        with contextlib.suppress(IndexError):
            return self._spare[n_bytes].pop()
        return np.empty(n_bytes // 4, np.float32)

    def push(self, channel: Channel, message: Message) -> None:
        """Take gradients of a block."""
        slot = self.slot(message.head.block)
        with slot.lock:
            era, step = era_and_version(message.head.step)
            if era != self.era:
                return
            block = slot.block
            if block is None or self.shadows.is_early(slot, block, step, message):
                self._elsewhere(slot, channel, message)
                return
            grad = np.frombuffer(message.payload, np.float32)
            slot.taken_bytes += grad.nbytes
            slot.rate.add(grad.nbytes, now_s=time.monotonic())
            if self.sync:
                node = Node.unpack(message.head.offset)
                what = block.push(
                    grad, step=step, node=node, n_shards=self.n_shards, optimizer=self._careful(slot, block)
                )
            else:
                worker, number = message.head.offset, int(message.meta["n"])
                what = block.push_alone(grad, worker=worker, number=number, optimizer=self._careful(slot, block))
                slot.wanted.append((channel, block.version))
            self._recycle(block)
            if what is Pushed.APPLIED or not self.sync:
                fault.at("ps.updated")
                self._advanced(slot, block)
                self._replay(slot)
            elif what is Pushed.KEPT:
                fault.at("ps.aggregating")
            elif what is Pushed.EARLY:  # a version was given out that is lost
                self._report("amiss", block=slot.number, version=block.version, step=step, era=era)

    def taken_bytes(self) -> int:
        """Return the bytes of gradients that were taken in, of all blocks that are known in this era."""
        return sum(slot.taken_bytes for slot in self.slots())

    def loads(self) -> list[tuple[int, float]]:
        """Return (block, bytes of gradients per second) of every block that it owns."""
        now_s = time.monotonic()
        return [(s.number, s.rate.per_s(now_s)) for s in self.slots() if s.block is not None and s.shadow is None]

    def _recycle(self, block: Block) -> None:
        while block.freed:
            buffer = block.freed.pop()
            self._spare[buffer.nbytes].append(buffer)

    def _careful(self, slot: BlockSlot, block: Block) -> Updates:
        """Return the optimizer, with regard for whoever still reads the parameters as they are."""
        if block.place is not None:
            return SeqlockUpdates(self.optimizer, block.place)
        chosen = self.optimizer if block.pages is None else GrowingValues(self.optimizer, block.pages)
        return CopyOnWriteUpdates(chosen, block, slot.sent, self.buffer) if slot.sent else chosen

    def _elsewhere(self, slot: BlockSlot, channel: Channel, message: Message) -> None:
        notice = None if message.head.kind == FrameKind.BESIDE else slot.notice(int(message.meta.get("moves", 0)))
        if notice is None:
            if self.sync:  # what is older than others will never be of use
                slot.parked = [held for held in slot.parked if held[1].head.step >= message.head.step]
            slot.parked.append((channel, message))
        else:
            self._post(channel, FrameKind.MOVED, meta=notice)

    def pull(self, channel: Channel, message: Message) -> None:
        """Send blocks at a version, or later as soon as they have it."""
        era, version = era_and_version(message.head.step)
        numbers = message.meta["blocks"]
        for number, moves in zip(numbers, message.meta.get("moves", [0] * len(numbers)), strict=True):
            slot = self.slot(int(number))
            with slot.lock:
                if era != self.era:
                    return
                notice = slot.notice(int(moves)) if slot.block is None else None
                if notice is not None:
                    self._post(channel, FrameKind.MOVED, meta=notice)
                elif slot.block is None or slot.block.version < version:
                    slot.wanted.append((channel, version))
                else:
                    self._send(slot, slot.block, channel)

    def _send(self, slot: BlockSlot, block: Block, channel: Channel) -> None:
        """Send the parameters, and say up to which of its updates this worker's are in them."""
        if block.place is not None:
            self._lend(slot, block, channel)
            return
        last = block.seen.get(self._workers.get(channel, -1), 0)
        number = self._post(
            channel, FrameKind.PARAMS, block.params, block=slot.number, offset=last, step=at(self.era, block.version)
        )
        if number is not None:
            slot.sent.append((channel, number))

    def _lend(self, slot: BlockSlot, block: Block, channel: Channel) -> None:
        """Say where the parameters are and which stamp they bear; send them to whom that is of no use."""
        if block.place is None or self.shelf is None:
            return
        try:
            lent = self.shelf.lend(channel)
        except TransportError:
            return
        whole = block.place.whole if lent else block.params.copy()  # what is on its way must not change
        step = at(self.era, block.version)
        self._post(channel, FrameKind.PARAMS, whole, block=slot.number, offset=block.place.stamp, step=step)

    def _post(self, channel: Channel, kind: FrameKind, *buffers: Any, **columns: Any) -> int | None:
        try:
            return channel.send(kind, *buffers, **columns)
        except FrameError as error:
            self._report("failed", why=f"a frame of kind {kind} cannot be sent: {error}")
            return None
        except TransportError:
            return None  # whoever it was is gone, and noticed elsewhere

    def _advanced(self, slot: BlockSlot, block: Block) -> None:
        """Answer who waits for a new version, copy what is due, and let go what is to leave."""
        self._pace.advanced(block.version, now_s=time.perf_counter())
        waiting, slot.wanted = slot.wanted, []
        for channel, version in waiting:
            if version <= block.version:
                self._send(slot, block, channel)
                fault.at("ps.replying")
            else:
                slot.wanted.append((channel, version))
        for version in sorted(block.due) if slot.shadow is None else ():
            if version <= block.version:
                block.due.discard(version)
                self._copy(slot.number, at(self.era, block.version), block.copies(), block.card())
        self.shadows.advanced(slot, block)
        if slot.leaving is not None and slot.leaving[1] <= block.version:
            self._hand_over(slot, block, slot.leaving[0])

    # --- blocks that move

    def install(self, channel: Channel, message: Message) -> None:
        """Take a block over, and what came for it before."""
        slot = self.slot(message.head.block)
        with slot.lock:
            fault.at("ps.install.arrived" if message.meta["moves"] else "ps.load.arrived")
            era, _ = era_and_version(message.head.step)
            known = -1 if slot.gone is None else int(slot.gone["blocks"][0][2])
            least = known if "shadow" in message.meta else known + 1  # who had it may follow the one who has it now
            if era != self.era or int(message.meta["moves"]) < least:
                with contextlib.suppress(TransportError):
                    channel.refuse(message, f"block {slot.number} has moved on since, or is of another era")
                return
            if "shadow" in message.meta:
                self.shadows.install(slot, channel, message)
                return
            block = self.put(slot, Block.arrived(slot.number, message.payload, dict(message.meta)))
            self.shadows.settled(slot, message)
            fault.at("ps.install.placed" if block.moves else "ps.load.placed")
            with contextlib.suppress(TransportError):  # whoever sent it asks again, or is gone
                channel.reply(message)
            fault.at("ps.install.replied" if block.moves else "ps.load.replied")
            self._report("owns", block=slot.number, version=block.version, moves=block.moves, era=era)
            self.settle(slot)

    def put(self, slot: BlockSlot, block: Block) -> Block:
        """Put a block into its slot; one that follows it and is as far has the same bits, and more gradients."""
        here = slot.block
        if here is not None and here.version >= block.version:
            here.moves, here.due = block.moves, block.due
            block = here
        else:
            self._unshelve(here)
            self._shelve(block)
        slot.block, slot.gone, slot.leaving = block, None, None
        slot.rate = Rate(now_s=time.monotonic())
        return block

    def settle(self, slot: BlockSlot) -> None:
        """Do what waits for a block that has come, with what came before it."""
        if slot.block is not None:
            self._advanced(slot, slot.block)
        self._replay(slot)

    def _replay(self, slot: BlockSlot) -> None:
        """Take what came too early."""
        parked, slot.parked = slot.parked, []
        for sender, held in parked:
            self.push(sender, held)

    def drop(self, slot: BlockSlot) -> None:
        """Have a block no more."""
        block, slot.block = slot.block, None
        self._unshelve(block)

    def _shelve(self, block: Block) -> None:
        """Put the parameters where workers on this host can read them."""
        block.buffer = self.buffer
        block.place = None if self.shelf is None else self.shelf.take(block.params)
        if block.place is not None:
            block.params, block.pages = block.place.params, None

    def _unshelve(self, block: Block | None) -> None:
        """Use the place of a block for another one: this one is of no use any more, and on its way to nobody."""
        if block is not None and self.shelf is not None:
            place, block.place = block.place, None
            self.shelf.give(place)

    def hand_over(self, moves: dict[int, str], *, version: int | None, turn: tuple[int, int] = (0, 1)) -> None:
        """Let blocks go to other servers: all at a version, or some with each of the next versions.

        `turn` (i, n): of n servers that do so at the same time this is the i-th, and each n-th version is its turn.

        Workers are told before they get the version from which on somebody else has the block, over the same
        connection: they never ask the wrong one. Gradients of that version wait with the new owner for the block.
        If training is asynchronous, all go at once.
        """
        found = {number: (slot.block, slot.leaving) for number, slot in ((n, self.slot(n)) for n in moves)}
        staying = {number: block for number, (block, leaving) in found.items() if block is not None and leaving is None}
        turns = self._departures(list(staying.values()), at_once=version is not None, turn=turn)
        later = dict(zip(staying, turns, strict=True))
        for number, owner in moves.items():
            slot = self.slot(number)
            with slot.lock:  # of one block at a time: the others go on with the step
                self._let_go(slot, owner, version=version, later=later.get(number, 0))

    def _let_go(self, slot: BlockSlot, owner: str, *, version: int | None, later: int) -> None:
        """Say to whom a block goes, and from which version on; let it go if that is now."""
        block = slot.block
        if block is None:
            return
        if slot.leaving is None:
            from_version = block.version + later if version is None else max(version, block.version)
            slot.leaving = owner, from_version
            self._announce(owner, [[slot.number, from_version, block.moves + 1]])
            fault.at("ps.handover.announced")
        if slot.leaving[1] <= block.version:
            self._hand_over(slot, block, slot.leaving[0])

    def _departures(self, blocks: list[Block], *, at_once: bool, turn: tuple[int, int]) -> list[int]:
        """Return after how many versions from now each block leaves."""
        if at_once or not self.sync:
            return [0] * len(blocks)
        n_bytes = [sum(vector.nbytes for vector in block.vectors()) for block in blocks]
        mine, of = turn
        return [1 + of * step + mine for step in departures(n_bytes, per_step=self._pace.bytes_per_step())]

    def _announce(self, owner: str, blocks: list[list[int]]) -> None:
        with self._lock:
            address = self._servers[owner][1] if owner in self._servers else ""
        self.tell_workers(FrameKind.MOVED, {"owner": owner, "address": address, "era": self.era}, blocks)

    def tell_workers(self, kind: FrameKind, meta: dict[str, Any], blocks: list[list[int]]) -> None:
        """Tell all workers something of blocks."""
        with self._lock:
            workers = list(self._workers)
        for i in range(0, len(blocks), BLOCKS_OF_A_NOTICE):
            for channel in workers:
                self._post(channel, kind, meta={**meta, "blocks": blocks[i : i + BLOCKS_OF_A_NOTICE]})

    def channel_to(self, name: str) -> Channel:
        """Return the connection to another server; raise TransportError where there is none."""
        if name not in self._servers:
            raise TransportError(f"{name} is not connected")
        return self._servers[name][0]

    def _hand_over(self, slot: BlockSlot, block: Block, owner: str) -> None:
        """Stream a block to its new owner, and keep it until that one has it."""
        channel, address = self._servers.get(owner, (None, ""))
        slot.block, slot.leaving = None, None
        card = {**block.card(), "moves": block.moves + 1, **self.shadows.card(slot, owner=owner)}
        gone = [[slot.number, block.version, block.moves + 1]]
        slot.gone = {"owner": owner, "address": address, "blocks": gone, "gone": True, "era": self.era}
        for waiting, _ in slot.wanted:
            self._post(waiting, FrameKind.MOVED, meta=slot.gone)
        slot.wanted.clear()
        began, era = time.perf_counter(), self.era
        crate: Vector | None = None

        def settled(failure: BaseException | None) -> None:
            if failure is None:
                self._crates.give(crate)
                self._arrived(slot, era)
                fault.at("ps.handover.acknowledged")
                spent = time.perf_counter() - began
                n_bytes = sum(vector.nbytes for vector in block.vectors())
                self._report(
                    "handed_over", block=slot.number, version=block.version, owner=owner, moves=card["moves"], era=era,
                    seconds=spent, bytes=n_bytes,
                )  # fmt: skip
                self._unshelve(block)
                return
            with slot.lock:
                if era != self.era:
                    self._unshelve(block)
                    return  # training has gone back since: nobody wants it
                self._kept[slot.number] = block
                self._arrived(slot, era)
            self._report(
                "unsure", block=slot.number, version=block.version, owner=owner, era=era, moves=block.moves + 1,
                why=str(failure)[:200],
            )  # fmt: skip

        if channel is None:
            settled(TransportError(f"{owner} is not connected"))
            return
        fault.at("ps.handover.stream")
        self._moving[slot.number] = owner
        try:
            crate = None if self.shelf is None else self._crates.pack(block.vectors(), channel)
            parts = block.vectors() if crate is None else [crate]
            reply = channel.request(FrameKind.STATE, *parts, meta=card, block=slot.number, step=at(era, block.version))
        except TransportError as error:
            settled(error)
            return
        fault.at("ps.handover.streaming")
        reply.add_done_callback(lambda done: settled(done.exception()))

    def _arrived(self, slot: BlockSlot, era: int) -> None:
        """Note that a block is on its way no more."""
        if era == self.era:
            self._moving.pop(slot.number, None)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Own blocks again that their new owner never had; the controller has made sure of that."""
        for number in numbers:
            slot = self.slot(number)
            with slot.lock:
                block = self._kept.pop(number, None)
                if block is None or slot.block is not None:
                    self._unshelve(block)
                    continue
                block.moves += 2
                slot.block, slot.gone = block, None
                self._announce(self.name, [[number, 0, block.moves]])  # also to those who turned away from it already
                fault.at("ps.handover.took_back")
                self._report("owns", block=number, version=block.version, moves=block.moves, era=self.era)
                self._advanced(slot, block)

    # --- eras, copies

    def begin_era(self, era: int) -> None:
        """Forget every block: training goes back to a checkpoint, whose blocks will come."""
        with self._lock:
            self.era = era
            slots, self._slots = list(self._slots.values()), {}
            kept, self._kept = list(self._kept.values()), {}
            self._moving = {}
        for block in kept:
            self._unshelve(block)
        for slot in slots:
            with slot.lock:
                self.drop(slot)
                slot.gone = {"owner": "", "address": "", "blocks": [[slot.number, 0, 1 << 30]]}

    def copy_at(self, version: int) -> list[int]:
        """Promise a copy of every block at a version; return the blocks that are past it already.

        In asynchronous training a copy is made now; `version` only names it.
        """
        late = []
        for slot in self.slots():
            with slot.lock:
                block = slot.block
                if block is None:
                    continue
                if not self.sync:
                    self._copy(slot.number, at(self.era, version), block.copies(), block.card())
                elif slot.shadow is not None:  # to be made, or told to be late, should it become the owner
                    block.due = {version, *(due for due in block.due if due >= version)}
                elif block.version > version:
                    late.append(slot.number)
                else:
                    block.due.add(version)
                    self._advanced(slot, block)
        return late

    def owned(self) -> list[list[int]]:
        """Return (block, version, moves) of every block that it owns."""
        return [
            [s.number, s.block.version, s.block.moves] for s in self.slots() if s.block is not None and s.shadow is None
        ]

    def moving(self) -> list[tuple[int, str]]:
        """Return (block, to whom) of blocks that are on their way."""
        return list(self._moving.items())

    def unsettled(self) -> list[tuple[int, int, int, str]]:
        """Return (block, version, moves, owner) of blocks that somebody did not say that it has."""
        return [
            (number, block.version, block.moves + 1, str((self.slot(number).gone or {}).get("owner", "")))
            for number, block in list(self._kept.items())
        ]

    def forget(self, numbers: Iterable[int]) -> None:
        """Keep blocks no longer that somebody else has, as is known by now."""
        for number in numbers:
            with self.slot(number).lock:
                self._unshelve(self._kept.pop(number, None))


class Arrivals(Handler):
    """What arrives at a server from one peer."""

    def __init__(
        self,
        server: ParameterServer,
        *,
        role: str,
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        exhausted: Callable[[BaseException], None] | None = None,
        keep: Callable[[], object] | None = None,
    ) -> None:
        self._server, self._role, self._ended, self._exhausted, self._keep = server, role, ended, exhausted, keep

    def opened(self, channel: Channel) -> None:
        """Note a worker."""
        if self._role == "worker":
            self._server.met_worker(channel, number=int(str(channel.peer.hello["name"]).rsplit("-", 1)[1]))

    def place(self, head: Head) -> Vector | None:
        """Return where gradients go."""
        return self._server.buffer(head.payload_bytes) if head.kind in (FrameKind.PUSH, FrameKind.BESIDE) else None

    def exhausted(self, error: BaseException) -> None:
        """Pass it on: the server cannot go on."""
        if self._exhausted is not None:
            self._exhausted(error)

    def received(self, channel: Channel, message: Message) -> None:
        """Take a message, and wait for the server's share of cores; gradients and that wait count as busy."""
        if message.head.kind not in (FrameKind.PUSH, FrameKind.BESIDE):
            self._receive(channel, message)
            return
        with self._server.busy.working():
            self._receive(channel, message)

    def _receive(self, channel: Channel, message: Message) -> None:
        """Take a message; without the memory for it a block may be half changed, and the server cannot go on."""
        try:
            self._take(channel, message)
        except (MemoryError, OSError, RuntimeError) as error:
            if is_memory(error):
                self.exhausted(error)
            raise
        if self._keep is not None:
            self._keep()  # what comes next waits in the connection: a server that may use less answers later

    def _take(self, channel: Channel, message: Message) -> None:
        kind = message.head.kind
        if kind in (FrameKind.PUSH, FrameKind.BESIDE):
            self._server.push(channel, message)
        elif kind == FrameKind.PULL:
            self._server.pull(channel, message)
        elif kind == FrameKind.ASK:
            self._server.shadows.ask(channel, message)
        elif kind == FrameKind.STATE:
            if self._role != "server":
                raise AccessError(f"a {self._role[:20]} sent a block with its state; only servers may.")
            self._server.install(channel, message)
        else:
            raise FrameError(f"a {self._role[:20]} sent a frame of kind {kind}, which says nothing to a server.")

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Forget a peer."""
        self._server.lost(channel)
        if self._ended is not None:
            self._ended(channel, reason)
