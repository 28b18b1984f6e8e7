"""A parameter server: its blocks, its peers, and the parts that handle gradients, pulls, hand-overs and replicas."""

from __future__ import annotations

from labkit.elastic.protocol.frame_kinds import at
from labkit.elastic.protocol.messages.blocks import BlocksMoved, MovedBlock
from labkit.elastic.protocol.messages.reports import SendReport
from labkit.elastic.server.block import Block
from labkit.elastic.server.busy_time import BusyTime
from labkit.elastic.server.gradients import CopyBlock, GradientUpdates
from labkit.elastic.server.handover import BlockHandover
from labkit.elastic.server.parameters import ParameterReplies
from labkit.elastic.server.peers import ConnectedPeers
from labkit.elastic.server.replicas import BlockReplicas
from labkit.elastic.server.slots import BlockSlot, BlockTable
from labkit.elastic.server.updates import Updates
from labkit.elastic.transport import Channel
from labkit.elastic.transport.shared_arrays import SharedArrayPool


class ParameterServer:
    """One server. The methods of its parts run in the threads of connections, each under the lock of one block.

    Parameters
    ----------
    name : str
        Of this server.
    optimizer : Updates
        Makes the updates.
    n_shards : int
        V, logical gradients of a batch.
    sync : bool
        Whether a version is the sum of V gradients; else each pushed gradient makes a version.
    report : callable
        Sends the controller a report.
    copy : callable
        Sends the controller a copy of a block: see `CopyBlock`.
    shared_pool : SharedArrayPool, optional
        Shared memory for parameters, so that workers on this host read them in place; only in synchronous mode.

    Attributes
    ----------
    blocks : BlockTable
        A slot for each block.
    peers : ConnectedPeers
        Connected workers and servers.
    gradients, replies, handover, replicas
        The handlers of pushes, pulls, hand-overs and replicas.
    busy : BusyTime
        Seconds spent on gradients.
    """

    def __init__(
        self,
        name: str,
        *,
        optimizer: Updates,
        n_shards: int,
        sync: bool,
        report: SendReport,
        copy: CopyBlock,
        shared_pool: SharedArrayPool | None = None,
    ) -> None:
        self.name, self.sync = name, sync
        self._copy = copy
        self.busy = BusyTime()
        self.blocks = BlockTable(shared_pool=shared_pool if sync else None)
        self.peers = ConnectedPeers(report=report)
        self.replies = ParameterReplies(self.blocks, self.peers)
        self.replicas = BlockReplicas(
            name, self.blocks, self.peers, sync=sync, report=report, settle=self._settle
        )  # fmt: skip
        self.handover = BlockHandover(
            name, self.blocks, self.peers, self.replicas, sync=sync, report=report, settle=self._settle,
            advanced=self._advanced,
        )  # fmt: skip
        self.gradients = GradientUpdates(
            self.blocks, self.peers, replies=self.replies, replicas=self.replicas, handover=self.handover,
            optimizer=optimizer, n_shards=n_shards, sync=sync, report=report, copy=copy,
        )  # fmt: skip

    def _settle(self, slot: BlockSlot) -> None:
        self.gradients.settle(slot)

    def _advanced(self, slot: BlockSlot, block: Block) -> None:
        self.gradients.advanced(slot, block)

    @property
    def era(self) -> int:
        """Number of the current era: it changes whenever training goes back to a checkpoint."""
        return self.blocks.era

    def add_worker(self, channel: Channel, *, number: int) -> None:
        """Register a worker, by its number, and send it the replicas of all blocks."""
        self.peers.add_worker(channel, number=number)
        self.replicas.greet(channel)

    def begin_era(self, era: int) -> None:
        """Drop every block: training goes back to a checkpoint, whose blocks are going to be installed."""
        with self.blocks.lock:
            slots = self.blocks.begin_era(era)
            kept = self.handover.begin_era()
        for block in kept:
            self.blocks.release(block)
        for slot in slots:
            with slot.lock:
                self.blocks.drop(slot)
                slot.gone = BlocksMoved("", "", [MovedBlock(slot.number, 0, 1 << 30)], era)

    def copy_at(self, version: int) -> list[int]:
        """Send the controller a copy of every block when it has reached a version; return the blocks that are past it.

        In asynchronous training a copy is made now; `version` only names it.
        """
        late = []
        for slot in self.blocks.slots():
            with slot.lock:
                block = slot.block
                if block is None:
                    continue
                if not self.sync:
                    self._copy(slot.number, at(self.era, version), block.copies(), block.description())
                elif slot.shadow is not None:  # a replica makes the copy, or reports it late, if it becomes the owner
                    block.due = {version, *(due for due in block.due if due >= version)}
                elif block.version > version:
                    late.append(slot.number)
                else:
                    block.due.add(version)
                    self.gradients.advanced(slot, block)
        return late
