"""Hosts that are gone, as the controller sees them: all who were there are dead at once, and nobody starts there."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.core.events import Cause
from labkit.elastic.controller.data_leases import DataLeases
from labkit.elastic.controller.members import Member, left
from labkit.elastic.controller.placement import ROLES
from labkit.elastic.controller.replica_placement import LEAST_SERVERS
from labkit.elastic.controller.scaling import Scaling
from labkit.elastic.protocol.commands import Command, Note, Role


class HostLoss(DataLeases):
    """What happens when a host goes for good, or is back."""

    def host_back(self, host: str) -> list[Command]:
        """Note that a host is there again; who was there has left."""
        if host in self.lost:
            self.lost.discard(host)
            self._out.append(Note("host_back", {"host": host}))
        return self._taken()

    def host_lost(self, host: str, *, why: str = "") -> list[Command]:
        """Go on with those who are left: a host is gone, and all who were there; if they were to go, that is all."""
        gone = [m for m in self.members.values() if self.terms.sites[m.site] == host]
        missed = [m for m in gone if not m.leaving]
        if missed:
            self.lost.add(host)
            self._out.append(Note("lost_host", {"host": host, "members": [m.name for m in gone], "why": why}))
        for member in gone:
            self._part_with(member, host)
        if missed and self.phase != "over":
            self._give_up_places(host)
            self._outlive_all(missed, host)
        if self.phase != "over":
            self._note_death()
        self._go_on()
        return self._taken()

    def _part_with(self, member: Member, host: str) -> None:
        del self.members[member.name]
        self._forget_worker(member.name)
        if self.scaling is not None and member.leaving:
            self._forget(self.scaling, member)
        expected = member.leaving or self.phase == "over"
        columns = left(member, expected=expected, reason=f"host {host} is lost", cause=Cause.HOST_LOST)
        self._out.append(Note("left", columns))

    def _give_up_places(self, host: str) -> None:
        """Drop requests that need the host; those that wait and have somebody come for a dead one come elsewhere."""
        why = f"host {host} is lost"
        for scaling in [s for s in self.queue if self._needs(s, host)]:
            self.queue.remove(scaling)
            self._out.append(Note("dropped", {"scaling": scaling.number, "why": why}))
        now = self.scaling
        if now is None:
            return
        here = [name for name in now.new if name in self.members]
        short, now.new = len(here) < len(now.new), here
        if now.phase in ("asked", "registration", "saving") and (short or self._needs(now, host)):
            if now.phase == "saving":
                self._walk_on()
            self._drop(now, why)

    def _needs(self, scaling: Scaling, host: str) -> bool:
        """Tell whether somebody is to sit on a host."""
        seats = {} if scaling.place is None else scaling.place
        return any(any(n) and self.terms.sites[site] == host for site, n in seats.items())

    def _outlive_all(self, gone: Sequence[Member], host: str) -> None:
        """Go on without members who are gone together: it counts as one death."""
        if not gone:
            return
        came = any(member.came for member in gone)
        enough = self.deaths.note(f"all on host {host}", now_s=self.now_s, joined=came)
        if enough:
            self._end(enough, cause=Cause.HOST_LOST)
            return
        if not self.members:
            self._end(f"host {host} is lost, and nobody of the job is anywhere else.", cause=Cause.HOST_LOST)
            return
        for member in gone:
            if self.scaling is not None:
                self._forget(self.scaling, member)
        self._keep_enough()
        self._without_servers({m.name for m in gone if m.role == "server"})
        if any(m.role == "worker" for m in gone):
            self._workers_died()
        for role in ROLES:
            self._fill_up(role)

    def _keep_enough(self) -> None:
        """Let those stay who were to go, if nobody else of their role is left."""
        if self.scaling is None:
            return
        for role in ROLES:
            if not any(m.name not in self.scaling.going for m in self.of(role)):
                self.scaling.going = [n for n in self.scaling.going if self.members[n].role != role]

    def _without_servers(self, gone: set[str]) -> None:
        if not gone:
            return
        if self.terms.standby and self.phase in ("training", "taking_over"):
            if not self._survive(gone, repair=()):
                self._go_back()
            elif self.phase == "training":
                self._copy_again()
        elif self.phase in ("training", "loading") and gone & set(self.owner.values()):
            self._go_back()

    def _fill_up(self, role: Role) -> None:
        """Start as many as a job must have, where others of it are; the rest is for whoever places jobs to decide."""
        least = LEAST_SERVERS if role == "server" and self.terms.standby else 1
        sites = [m.site for m in self.members.values() if not m.leaving]
        missing = least - len(self.of(role))
        if missing < 1 or not sites or self.phase == "over":
            return
        if role == "server" and self.phase == "training":
            self._repair(sites[:1] * missing)
            return
        for _ in range(missing):
            self._launch(role, sites[0])

    def _copy_again(self) -> None:
        """Order copies again that may have died with a server."""
        raise NotImplementedError

    def _workers_died(self) -> None:
        """Let others compute what workers were at that are gone."""
        raise NotImplementedError

    def _go_back(self) -> None:
        """Give up what was done since the last checkpoint."""
        raise NotImplementedError
