"""The beginning and the end of an era: a checkpoint is loaded into the servers, or given up for an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.elastic.controller.barrier import WorkerBarrier
from labkit.elastic.controller.block_assignment import by_tensor
from labkit.elastic.controller.checkpoint_schedule import CheckpointSchedule
from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Reassign
from labkit.elastic.controller.data_leases import DataLeases
from labkit.elastic.controller.placement import ROLES
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.controller.shard_assignment import ShardAssignment
from labkit.elastic.protocol.commands import Load
from labkit.elastic.protocol.messages.orders import BeginEra, BeginTraining, Halt
from labkit.elastic.shards import SavedShards


@dataclass(slots=True, eq=False)
class EraStart:
    """Loads the blocks of a checkpoint into servers, and starts the workers; goes back to a checkpoint.

    Parameters
    ----------
    job : ControllerState
        With members and block owners, which it sets.
    out : CommandBuffer
        For orders to load, and to workers.
    requests, scaler, replication, barrier, checkpoints, shards, leases
        Parts of the controller that begin anew with an era.
    reassign : callable
        See `Reassign`.
    """

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    scaler: Scaler
    replication: Replication
    barrier: WorkerBarrier
    checkpoints: CheckpointSchedule
    shards: ShardAssignment
    leases: DataLeases
    reassign: Reassign

    def load(self) -> None:
        """Assign the blocks to the servers, and order to load the newest checkpoint: at first, the initial state."""
        job = self.job
        missing = [role for role in ROLES if not job.of(role)]
        if missing:  # members that were to stay have died, or were dropped
            for role in missing:
                self.out.launch(role, job.site_for(role))
            return
        job.era += 1
        job.phase = "loading"
        servers = job.limited_to_blocks(m.name for m in job.of("server"))
        job.owner = self._first_owners(servers)
        job.moves = dict.fromkeys(job.owner, 0)
        self.replication.clear()
        for server in servers:
            self.out.tell(server, BeginEra(job.era))
        self.out.add(Load(job.era, dict(job.owner)))

    def _first_owners(self, servers: Sequence[str]) -> dict[int, str]:
        """Return the server of each block: by measured load if there is one, by whole parameters, or by bytes."""
        terms, load = self.job.terms, self.job.load
        if load is None and terms.tensors:
            return dict(enumerate(servers[s] for s in by_tensor(terms.sizes, terms.tensors, len(servers))))
        return self.reassign({}, terms.sizes, servers, load=load)

    def on_loaded(self, version: int, queue: SavedShards | None) -> None:
        """Begin training: all blocks of a checkpoint are with their owners.

        Parameters
        ----------
        version : int
            Of the checkpoint.
        queue : SavedShards, optional
            What it has kept of the leases of samples.
        """
        job = self.job
        if not any(m.joined for m in job.of("worker")):
            job.phase = "restoring"  # all workers died meanwhile: wait for new ones
            return
        job.phase, job.progress, self.checkpoints.saving = "training", version, None
        self.leases.open(queue)
        self.checkpoints.order_last()
        for name, leaves in self.shards.ranges().items():
            self.begin_worker(name, version, leaves)
            job.members[name].begun = True
        self.out.note("began", era=job.era, version=version)
        self.scaler.place_replicas()
        self.scaler.on_loaded()

    def begin_worker(self, name: str, version: int, leaves: tuple[int, int]) -> None:
        """Order a worker to fetch the parameters of a version and to compute logical shards [first, last)."""
        owners, replicas = self.job.owned_blocks(), self.replication.rows()
        self.out.tell(name, BeginTraining(self.job.era, version, leaves, self.barrier.number, owners, replicas))

    def go_back(self) -> None:
        """Give up all updates since the last checkpoint: a block, or the parameters of all workers, are lost."""
        job = self.job
        job.phase = "restoring"
        job.era += 1
        self.out.note("goes_back", era=job.era)
        repairs = self.requests.roll_back()
        self.checkpoints.saving = self.barrier.pause = None
        for site in repairs:
            self.out.launch("server", job.site_for("server", preferred=site))
        for worker in job.of("worker"):
            worker.ready = worker.begun = False
        self.out.tell_workers(Halt(job.era))
        for name in [m.name for m in job.members.values() if m.role == "worker" and m.leaving]:
            self.out.end(name)  # it was to complete its step first, which is given up
