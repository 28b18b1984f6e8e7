"""Which worker computes which logical shards of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member
from labkit.elastic.controller.shard_balance import ShardBalance
from labkit.elastic.protocol.messages.orders import AssignShards
from labkit.elastic.protocol.messages.reports import StepDone


class ShardAssignment:
    """Deals the logical shards of synchronous training to workers, by their measured speed.

    Parameters
    ----------
    job : ControllerState
        With the workers.
    out : CommandBuffer
        For the messages to workers.
    """

    def __init__(self, job: ControllerState, out: CommandBuffer) -> None:
        self._job, self._out = job, out
        self._balance = ShardBalance()

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the logical shards of each worker that has joined."""
        return self._dealt([m.name for m in self._job.of("worker") if m.joined])

    def deal(self) -> None:
        """Deal the logical shards anew to workers that have begun; the others get none for now."""
        job = self._job
        if not job.terms.sync:
            return
        workers = [m.name for m in job.of("worker") if m.joined and m.begun]
        for member in job.members.values():
            if member.role == "worker" and member.joined and member.name not in workers:
                self._out.tell(member.name, AssignShards(0, 0))
        for name, leaves in self._dealt(workers).items():
            self._out.tell(name, AssignShards(*leaves))

    def measured(self, worker: Member, report: StepDone, *, may_deal: bool) -> None:
        """Note how long a step took a worker; deal anew if that would make steps clearly shorter, and if allowed."""
        self._balance.measured(worker.name, n_shards=report.shards, seconds=report.compute_s)
        if may_deal and self._balance.uneven():
            self.deal()
            self._out.note("dealt", leaves=dict(self._balance.ranges))

    def _dealt(self, workers: Sequence[str]) -> dict[str, tuple[int, int]]:
        return self._balance.dealt(workers, n_shards=self._job.terms.n_shards)
