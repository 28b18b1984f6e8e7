"""What a worker sends to servers: it pushes gradients block by block, and pulls parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.frame_kinds import FrameKind, at
from labkit.elastic.protocol.messages.blocks import AwaitReplicas, Gradient, Pull
from labkit.elastic.protocol.messages.codec import encode
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.transport import Channel, FrameError, TransportError
from labkit.elastic.worker.directives import BlockOwners, Extent
from labkit.elastic.worker.replicas import StepReplicas

if TYPE_CHECKING:
    from labkit.elastic.transport.shared_arrays import SharedRegions


class Target(NamedTuple):
    """The server to which a block's gradient goes.

    Attributes
    ----------
    block : int
        Number of the block.
    owner : str
        Name of its server.
    moves : int
        How often the block has changed its owner.
    base : int
        Version of the block that the gradient was computed with.
    """

    block: int
    owner: str
    moves: int
    base: int


class PushPull:
    """The frames that one worker sends to servers.

    Parameters
    ----------
    channel_of : callable
        Returns the connection to a server by name; raises TransportError if there is none.
    extents : sequence
        (first, n) of each block in the flat vector.
    lender : SharedRegions, optional
        Shared memory that gradients lie in, for servers on this host to read them in place.
    """

    def __init__(
        self, channel_of: Callable[[str], Channel], *, extents: Sequence[Extent], lender: SharedRegions | None = None
    ) -> None:
        self._channel_of, self._extents, self._lender = channel_of, extents, lender
        self._last: dict[Channel, int] = {}  # number of the last frame on each connection

    def push_sum(
        self,
        node: Node,
        gradient: Vector,
        blocks: Sequence[int],
        *,
        step: int,
        owners: BlockOwners,
        replicas: StepReplicas,
        weight: float | None = None,
    ) -> None:
        """Push the gradient sum of some logical shards to the owners of blocks and to their replicas.

        Parameters
        ----------
        node : Node
            The logical shards, as a node of the summation tree.
        gradient : array
            (N,) float32, over all blocks; it must not change before all of them have acknowledged the step.
        blocks : sequence
            Numbers of the blocks.
        step : int
            Era and version that the gradient was computed with.
        owners, replicas
            Servers of each block.
        weight : float, optional
            Sum of the weights of these logical shards; None: each loss is a mean.
        """
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

        Parameters
        ----------
        gradient : array
            (N,) float32, over all blocks.
        targets : iterable
            Blocks and their servers.
        era : int
            In which the targets are right; servers ignore frames of an earlier era.
        worker, number : int
            Number of this worker, and of its update: a server applies each once.
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
