"""Gradients pushed to the owners of blocks, and parameters pulled from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages.blocks import (
    AwaitReplicas,
    BlocksMoved,
    Gradient,
    Pull,
    ReplicasAdded,
    ReplicasReady,
    WholeNorm,
)
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode, encode
from labkit.elastic.protocol.messages.orders import OwnedBlock, ReplicasOfBlock
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.transport import Channel, FrameError, Handler, Head, Message, TransportError
from labkit.elastic.transport.frames import SHARED

if TYPE_CHECKING:
    from labkit.elastic.transport.shared_arrays import SharedRegions


Extent = tuple[int, int]
"""(first, n): first number of a block in the flat vector, and how many."""

Move = tuple[int, int, str]
"""(version, moves, owner): the server that owns a block from a version on, with its number of moves."""


def unlimited() -> bool:
    """Wait for nothing: no limit of cores applies."""
    return False


def unweighted() -> None:
    """Return None: losses are means, without a weight."""


class Halted(Exception):  # noqa: N818 - not a failure: training goes on elsewhere
    """Raised in the training loop when its step must be dropped: training goes back to a checkpoint, or ends."""


@dataclass(slots=True)
class BlockOwners:
    """The server that owns each block, and the owners that it will have; guarded by the worker's condition."""

    owner: dict[int, str] = field(default_factory=dict)
    """Name of the server, by block."""
    moves: dict[int, int] = field(default_factory=dict)
    """How often the block has changed its owner. A server that had the block before, and does not have it yet again,
    parks requests with a later number."""
    known: dict[int, int] = field(default_factory=dict)
    """Number of the latest move that the worker knows of, by block."""
    coming: dict[int, list[Move]] = field(default_factory=dict)
    """Moves at later versions, by block, in order."""
    changed: set[int] = field(default_factory=set)
    """Blocks with a new owner that has not been asked for them yet."""

    def begin(self, rows: Iterable[OwnedBlock]) -> None:
        """Start from the controller's map: each block with its owner and moves."""
        for block, owner, moves in rows:
            self.owner[block] = owner
            self.moves[block] = self.known[block] = moves

    def schedule(self, block: int, move: Move) -> None:
        """Add a move at a later version, unless a newer one is known."""
        version, moves, _ = move
        if moves > self.known.get(block, -1):
            self.known[block] = moves
            before = [known for known in self.coming.get(block, ()) if known[0] < version]
            self.coming[block] = [*before, move]

    def advance(self, version: int) -> set[int]:
        """Make the moves that are due at a version; return the blocks."""
        turned = {block for block, moves in self.coming.items() if moves[0][0] <= version}
        for block in turned:
            moves = self.coming.pop(block)
            while moves and moves[0][0] <= version:
                _, self.moves[block], self.owner[block] = moves.pop(0)
            if moves:
                self.coming[block] = moves
        return turned

    def correct(self, block: int, owner: str, moves: int, *, missing: Collection[int]) -> None:
        """Set the present owner of a block; if the block is in `missing`, the new owner is to be asked for it."""
        if self.owner[block] != owner and block in missing:
            self.changed.add(block)
        self.owner[block], self.moves[block] = owner, moves
        self.known[block] = max(moves, self.known.get(block, -1))
        self.coming[block] = [later for later in self.coming.pop(block, []) if later[1] > moves]
        if not self.coming[block]:
            del self.coming[block]


@dataclass(slots=True)
class Directives:
    """The controller's latest orders; guarded by the worker's condition."""

    era: int = 0
    start: int | None = None
    """Version with which the era begins; None while that is unknown."""
    shards: tuple[int, int] = (0, 0)
    """Logical shards of this worker, from the first to before the last."""
    dealt: bool = False
    """Whether `shards` has changed and the loop has not seen it."""
    hold_at: int | None = None
    """Version at which the worker pauses until it is ordered to go on."""
    stop: bool = False
    """Whether training ends at once."""
    afresh: bool = False
    """Whether the step in progress must be dropped."""
    owners: BlockOwners = field(default_factory=BlockOwners)


One = tuple[str, int]
"""(server, turn): a replica, by its server and the number of the order that created it."""


class ReplicaMap:
    """The servers besides the owner that receive the gradients of each block.

    The owner of a block announces a replica and its first version before it sends that version to any worker. The
    controller announces the end of a replica. Each order has a turn, which counts up for each block, so that messages
    may arrive in any order.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[One, int]] = {}
        self._settled: dict[int, tuple[int, set[One]]] = {}

    def add(self, name: str, blocks: Iterable[Sequence[int]]) -> None:
        """Add replicas on a server: (block, first version, turn)."""
        for block, version, turn in blocks:
            if self.counts(block, (name, turn)):
                self._of.setdefault(block, {}).setdefault((name, turn), version)

    def settle(self, rows: Iterable[ReplicasOfBlock], *, begin: bool = False) -> None:
        """Take the controller's state of blocks; with `begin` add its replicas, for a worker that starts."""
        for block, upto, replicas in rows:
            self._settled[block] = upto, {(name, turn) for name, turn in replicas}
            if begin:
                for name, turn in replicas:
                    self.add(name, [(block, 0, turn)])
        for block, known in self._of.items():
            for one in [one for one in known if not self.counts(block, one)]:
                del known[one]

    def counts(self, block: int, one: One) -> bool:
        """Return whether a replica is valid: not ended by the controller."""
        upto, known = self._settled.get(block, (-1, set()))
        return one[1] > upto or one in known

    def at(self, version: int) -> dict[int, set[One]]:
        """Return the replicas of each block that has any at a version.

        >>> known = ReplicaMap()
        >>> known.add("ps-1", [(0, 5, 1)])
        >>> known.at(4), known.at(5)
        ({}, {0: {('ps-1', 1)}})
        """
        followers = {b: {one for one, first in known.items() if first <= version} for b, known in self._of.items()}
        return {block: those for block, those in followers.items() if those}


class StepReplicas:
    """Replicas that receive this step's gradients, and those that have not acknowledged it.

    Guarded by the worker's condition.
    """

    def __init__(self) -> None:
        self.known = ReplicaMap()  # all replicas
        # blocks of each server whose replicas have not made the version that is waited for
        self.behind: dict[str, set[int]] = {}
        self.again: set[str] = set()  # servers to be asked once more
        self._of: dict[int, set[One]] = {}

    def begin(self, version: int, owner: Mapping[int, str]) -> dict[str, list[int]]:
        """Begin the step from a version to the next; return the blocks to ask each server about."""
        known = self.known.at(version)
        self._of = {block: {one for one in those if one[0] != owner.get(block)} for block, those in known.items()}
        self.behind = self._by_name()
        self.again.clear()
        return {name: sorted(blocks) for name, blocks in self.behind.items()}

    def of(self, block: int) -> tuple[str, ...]:
        """Return the servers besides the owner that receive the gradients of a block."""
        return tuple(sorted({name for name, _ in self._of.get(block, ())}))

    def servers(self) -> set[str]:
        """Return the servers besides the owners that receive gradients of this step."""
        return {name for those in self._of.values() for name, _ in those}

    def _by_name(self) -> dict[str, set[int]]:
        by_name: dict[str, set[int]] = defaultdict(set)
        for block, those in self._of.items():
            for name, _ in those:
                by_name[name].add(block)
        return dict(by_name)

    def settle(self, rows: Iterable[ReplicasOfBlock], *, owner: Mapping[int, str], here: Collection[str]) -> None:
        """Stop waiting for replicas that have ended.

        A replica that has become the owner is still waited for in this step, because no other server may have this
        worker's gradients. `here` has the servers that exist.
        """
        self.known.settle(rows)
        for block, those in self._of.items():
            own = {name for name in here if name == owner.get(block)}
            self._of[block] = {one for one in those if one[0] in own or self.known.counts(block, one)}
        still = self._by_name()
        rest = {name: held & still.get(name, set()) for name, held in self.behind.items()}
        self.again |= {name for name, held in rest.items() if held and held != self.behind[name]}
        self.behind = {name: held for name, held in rest.items() if held}

    def once_more(self) -> dict[str, list[int]]:
        """Return the blocks to ask each server about again."""
        requests = {name: sorted(blocks) for name, blocks in self.behind.items() if name in self.again}
        self.again.clear()
        return requests


class Receiver(Protocol):
    """A worker as its connections see it; its methods run in the threads of connections."""

    def place(self, head: Head) -> Vector | None:
        """Return the slice of the flat vector that a block's parameters are received into; None: not wanted."""
        ...

    def on_params(self, message: Message) -> None:
        """Handle the parameters of a block."""
        ...

    def on_moved(self, notice: BlocksMoved) -> None:
        """Handle a notice of new owners of blocks."""
        ...

    def on_replicas_added(self, notice: ReplicasAdded) -> None:
        """Handle a notice of new replicas."""
        ...

    def on_replicas_ready(self, server: str, step: int) -> None:
        """Handle that the replicas of a server have made a version."""
        ...

    def on_norms(self, message: Message) -> None:
        """Handle the norms of a block's gradient, or that of the whole gradient."""
        ...

    def fetch(self, message: Message) -> bool:
        """Copy parameters out of a server's memory; return False if they changed during the copy."""
        ...


class FromServers(Handler):
    """The worker's end of a connection with one server."""

    def __init__(
        self,
        worker: Receiver,
        *,
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        # called when there is no memory for a frame: the worker cannot go on
        exhausted: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._worker, self._ended, self._exhausted = worker, ended, exhausted

    def place(self, head: Head) -> Vector | None:
        """Return the memory that parameters are received into."""
        return self._worker.place(head) if head.kind == FrameKind.PARAMS else None

    def exhausted(self, error: BaseException) -> None:
        """Pass it on: this process cannot go on."""
        if self._exhausted is not None:
            self._exhausted(error)

    def received(self, channel: Channel, message: Message) -> None:
        """Handle a frame."""
        if message.head.kind == FrameKind.PARAMS:
            if not message.head.flags & SHARED or self._fetched(channel, message):
                self._worker.on_params(message)
        elif message.head.kind == FrameKind.MOVED:
            self._worker.on_moved(decode(BlocksMoved, message.meta))
        elif message.head.kind == FrameKind.REPLICAS_ADDED:
            self._worker.on_replicas_added(decode(ReplicasAdded, message.meta))
        elif message.head.kind == FrameKind.REPLICAS_READY:
            self._worker.on_replicas_ready(decode(ReplicasReady, message.meta).server, message.head.step)

        elif message.head.kind in (FrameKind.BLOCK_NORMS, FrameKind.WHOLE_NORM):
            self._worker.on_norms(message)

    def _fetched(self, channel: Channel, message: Message) -> bool:
        """Copy parameters out of shared memory; if they changed during the copy, pull them again."""
        if self._worker.fetch(message):
            return True
        channel.send(FrameKind.PULL, step=message.head.step, meta=encode(Pull([message.head.block], [0])))
        return False

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Pass it on."""
        if self._ended is not None:
            self._ended(channel, reason)


class Target(NamedTuple):
    """The server to which a block's gradient goes."""

    block: int
    owner: str
    moves: int
    """How often the block has changed its owner."""
    base: int
    """Version of the block that the gradient was computed with."""


class PushPull:
    """The frames that one worker sends to servers.

    `lender`: shared memory that gradients lie in, for servers on this host to read them in place.
    """

    def __init__(
        self, channel_of: Callable[[str], Channel], *, extents: Sequence[Extent], lender: SharedRegions | None = None
    ) -> None:
        self._channel_of, self._extents, self._lender = channel_of, extents, lender
        self._last: dict[Channel, int] = {}  # number of the last frame on each connection

    def push_sum(
        self,
        node: Node,
        # (N,) float32, over all blocks; it must not change before all of them have acknowledged the step
        gradient: Vector,
        blocks: Sequence[int],
        *,
        step: int,  # era and version that the gradient was computed with
        owners: BlockOwners,
        replicas: StepReplicas,
        weight: float | None = None,  # sum of the weights of these logical shards; None: each loss is a mean
    ) -> None:
        """Push the gradient sum of some logical shards to the owners of blocks and to their replicas."""
        fault.at("worker.push")
        offset = node.pack()
        for i, block in enumerate(blocks):
            if 2 * i == len(blocks):
                fault.at("worker.push.half")
            first, n = self._extents[block]
            owner, meta = owners.owner[block], encode(Gradient(owners.moves[block], weight=weight))
            others = ((name, FrameKind.PUSH_REPLICA) for name in replicas.of(block))
            for name, kind in ((owner, FrameKind.PUSH), *others):
                self.send(name, kind, gradient[first : first + n], block=block, offset=offset, step=step, meta=meta)
        fault.at("worker.pushed")

    def push_update(self, gradient: Vector, targets: Iterable[Target], *, era: int, worker: int, number: int) -> None:
        """Push the gradient of an asynchronous update to the owners of blocks.

        `gradient`: (N,) float32, over all blocks. `era`: in which the targets are right; servers ignore frames of an
        earlier era. `worker` and `number`: number of this worker, and of its update: a server applies each once.
        """
        for block, owner, moves, base in targets:
            first, n = self._extents[block]
            self.send(
                owner, FrameKind.PUSH, gradient[first : first + n], block=block, offset=worker, step=at(era, base),
                meta=encode(Gradient(moves, number)),
            )  # fmt: skip

    def pull(self, blocks: Iterable[int], *, step: int, owner: Mapping[int, str], moves: Mapping[int, int]) -> None:
        """Ask the owners of blocks for their parameters at a version, in one frame for each server."""
        by_owner: dict[str, list[int]] = defaultdict(list)
        for block in blocks:
            by_owner[owner[block]].append(block)
        for server, numbers in by_owner.items():
            wanted = Pull(numbers, [moves[block] for block in numbers])
            self.send(server, FrameKind.PULL, step=step, meta=encode(wanted))

    def ask_replicas(self, blocks: Mapping[str, Sequence[int]], *, step: int) -> None:
        """Ask servers to acknowledge that their replicas of blocks have made a version."""
        for name, numbers in blocks.items():
            self.send(name, FrameKind.AWAIT_REPLICAS, step=step, meta=encode(AwaitReplicas(list(numbers))))

    def send_norm(self, servers: Iterable[str], bits: int, *, step: int) -> None:
        """Send servers the norm of the whole gradient of an era and version."""
        for name in servers:
            self.send(name, FrameKind.WHOLE_NORM, step=step, meta=encode(WholeNorm(bits)))

    def send(self, server: str, kind: FrameKind, *buffers: Any, **columns: Any) -> None:
        """Send a frame; if the server is not connected, drop it.

        The blocks of a lost server get another owner, which the worker asks again, or training goes back.
        """
        try:
            channel = self._channel_of(server)
            if self._lender is not None:
                self._lender.lend(channel)
            self._last[channel] = channel.send(kind, *buffers, **columns)
        except FrameError:  # it would fail for any server
            raise
        except TransportError:
            return

    def flush(self) -> None:
        """Wait until the memory of all sent gradients is free: their bytes have left this process."""
        for channel, number in self._last.items():
            try:
                channel.flush(number)
            except TransportError:
                continue
        self._last.clear()
