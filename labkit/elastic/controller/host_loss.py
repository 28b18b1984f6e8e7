"""The loss of a host: all its members are dead at once, and no member starts there until it is back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.core.events import Cause
from labkit.elastic.controller.barrier import WorkerBarrier
from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member, leave_columns
from labkit.elastic.controller.era_start import EraStart
from labkit.elastic.controller.member_loss import MemberLoss
from labkit.elastic.controller.outcome import JobOutcome
from labkit.elastic.controller.placement import ROLES
from labkit.elastic.controller.replica_placement import LEAST_SERVERS
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.scaling_requests import ScalingQueue, ScalingRequest
from labkit.elastic.protocol.roles import Role


@dataclass(slots=True, eq=False)
class HostLoss:
    """Handles the loss of a host, and its return.

    Parameters
    ----------
    job : ControllerState
        With members, and the hosts that are lost.
    out : CommandBuffer
        For all commands.
    requests, replication, barrier, member_loss, eras, outcome
        Parts of the controller that a loss concerns.
    """

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    replication: Replication
    barrier: WorkerBarrier
    member_loss: MemberLoss
    eras: EraStart
    outcome: JobOutcome

    def on_back(self, host: str) -> None:
        """Note that a host is back; its former members have ended."""
        if host in self.job.lost:
            self.job.lost.discard(host)
            self.out.note("host_back", host=host)

    def on_lost(self, host: str, why: str) -> None:
        """Drop the members of a lost host, fail scalings that need it, restart what the job cannot do without."""
        job = self.job
        gone = [m for m in job.members.values() if job.terms.sites[m.site] == host]
        unexpected = [m for m in gone if not m.leaving]
        if unexpected:
            job.lost.add(host)
            self.out.note("lost_host", host=host, members=[m.name for m in gone], why=why)
        for member in gone:
            self._remove(member, host)
        if unexpected and job.phase != "over":
            self._drop_requests(host)
            self._replace(unexpected, host)
        if job.phase != "over":
            self.replication.forget_dead()
        self.member_loss.tell_owners(gone)

    def _remove(self, member: Member, host: str) -> None:
        del self.job.members[member.name]
        self.member_loss.forget(member.name)
        if member.leaving:
            self.requests.forget(member)
        expected = member.leaving or self.job.phase == "over"
        reason = f"host {host} is lost"
        self.out.note("left", **leave_columns(member, expected=expected, reason=reason, cause=Cause.HOST_LOST))

    def _drop_requests(self, host: str) -> None:
        """Drop requests that need the host; repairs that wait will start their servers on other hosts."""
        why = f"host {host} is lost"
        for request in [request for request in self.requests.waiting if self._needs(request, host)]:
            self.requests.drop_waiting(request, why)
        now = self.requests.current
        if now is None:
            return
        alive = [name for name in now.new if name in self.job.members]
        short, now.new = len(alive) < len(now.new), alive
        if now.phase in ("asked", "registration", "saving") and (short or self._needs(now, host)):
            if now.phase == "saving":
                self.barrier.release()
            self.requests.drop(why)

    def _needs(self, request: ScalingRequest, host: str) -> bool:
        """Tell whether a request places members on a host."""
        place = {} if request.place is None else request.place
        return any(any(n) and self.job.terms.sites[site] == host for site, n in place.items())

    def _replace(self, gone: Sequence[Member], host: str) -> None:
        """Go on without members that died together, which counts as one death, and start what is missing."""
        job = self.job
        joined = any(member.ever_joined for member in gone)
        too_many = self.member_loss.deaths.note(f"all on host {host}", now_s=job.now_s, joined=joined)
        if too_many:
            self.outcome.end(too_many, cause=Cause.HOST_LOST)
            return
        if not job.members:
            self.outcome.end(f"host {host} is lost, and the job has no member on another host.", cause=Cause.HOST_LOST)
            return
        for member in gone:
            self.requests.forget(member)
        self._keep_a_member_of_each_role()
        self._without_servers({m.name for m in gone if m.role == "server"})
        if any(m.role == "worker" for m in gone):
            self.member_loss.on_workers_dead()
        for role in ROLES:
            self._fill_up(role)

    def _keep_a_member_of_each_role(self) -> None:
        """Cancel planned removals that would leave a role empty."""
        scaling = self.requests.current
        if scaling is None:
            return
        for role in ROLES:
            if not any(m.name not in scaling.going for m in self.job.of(role)):
                scaling.going = [name for name in scaling.going if self.job.members[name].role != role]

    def _without_servers(self, gone: set[str]) -> None:
        if not gone:
            return
        if self.job.terms.standby and self.job.phase in ("training", "taking_over"):
            self.member_loss.survive(gone, repair=())
        elif self.job.phase in ("training", "loading") and gone & set(self.job.owner.values()):
            self.eras.go_back()

    def _fill_up(self, role: Role) -> None:
        """Start as many members of a role as the job cannot do without; its scheduler decides on more."""
        job = self.job
        least = LEAST_SERVERS if role == "server" and job.terms.standby else 1
        sites = [m.site for m in job.members.values() if not m.leaving]
        missing = least - len(job.of(role))
        if missing < 1 or not sites or job.phase == "over":
            return
        if role == "server" and job.phase == "training":
            self.requests.repair(sites[:1] * missing)
            return
        for _ in range(missing):
            self.out.launch(role, sites[0])
