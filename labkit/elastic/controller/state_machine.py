"""The controller as a state machine: events in, commands out; no socket, clock, process or thread.

It is off the path of a step: workers and servers go on without it, and tell it where they are when it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic.controller.block_assignment import by_tensor
from labkit.elastic.controller.host_loss import HostLoss
from labkit.elastic.controller.members import JobTerms, Member, Reassign, left
from labkit.elastic.controller.placement import ROLES, checked, of_role
from labkit.elastic.controller.scaling import MARGIN, Scaling
from labkit.elastic.process.causes import read, told
from labkit.elastic.protocol.commands import Command, End, Keep, Load, Note, Over, Tell
from labkit.elastic.shards import Journal, Record


class Controller(HostLoss):
    """All that a job's controller decides.

    Parameters
    ----------
    terms : JobTerms
        Of the job.
    reassign : callable
        See `Reassign`; with no owners at all it makes the first assignment.
    journal : callable, optional
        Takes each record of the shard service before anything comes of it (asynchronous training).
    """

    def __init__(self, terms: JobTerms, *, reassign: Reassign, journal: Journal | None = None) -> None:
        super().__init__(terms, reassign=reassign, journal=journal)
        self.saved = 0
        self.failure, self.cause = "", Cause.UNKNOWN
        self._doubts: list[tuple[str, Mapping[str, Any]]] = []
        self._outdated = False
        """Whether what the controller before this one had written down was old."""
        self._stuck: set[tuple[int, int]] = set()
        """Where a worker did not come forward."""

    def start(
        self, *, servers: int = 0, workers: int = 0, place: Mapping[str, Sequence[int]] | None = None
    ) -> list[Command]:
        """Begin with so many of each, or with so many workers and servers on each site."""
        if place is None:
            place = {next(iter(self.terms.sites)): (workers, servers)}
        seats = checked(place, sites=self.terms.sites, lost=())
        for role in ROLES:
            if sum(of_role(seats, role).values()) < 1:
                raise InputError(f"a job with {sum(of_role(seats, role).values())} {role}s; expected at least one.")
        n_servers = sum(of_role(seats, "server").values())
        if n_servers > len(self.terms.sizes):
            raise InputError(f"{n_servers} servers for {len(self.terms.sizes)} blocks; expected at most one per block.")
        for role in ROLES:
            for site, n in of_role(seats, role).items():
                for _ in range(n):
                    self._launch(role, site)
        return self._taken()

    def state(self) -> dict[str, Any]:
        """Return what another controller must know to take over, as JSON has it; progress is told by who is there."""
        waiting = [s for s in (self.scaling, *self.queue) if s is not None]
        return {
            "members": [[m.name, m.role, m.address, m.leaving, m.site, m.came] for m in self.members.values()],
            "lost": sorted(self.lost),
            "owner": sorted(self.owner.items()), "moves": sorted(self.moves.items()), "era": self.era,
            "phase": self.phase, "saved": self.saved, "deaths": self.deaths.state(),
            "shortages": self.shortages.state(), "numbers": self._numbers,
            "n_scalings": self._n_scalings, "failure": self.failure, "cause": told(self.cause),
            "scaling": [s.number for s in waiting if not s.repair and s.again() is None],
            "again": [[s.number, s.place, s.strategy, s.last] for s in waiting if s.again() is not None],
            "repairs": [[] if s.new else s.at for s in waiting if s.repair],
            "load": self.load, **self._standby_state(),
        }  # fmt: skip

    def take_over(
        self,
        state: Mapping[str, Any],
        *,
        names: Iterable[str] = (),
        records: Iterable[Record] = (),
        now_s: float = 0.0,
    ) -> list[Command]:
        """Begin where another controller was: wait for its processes to come back, each with what it has.

        A scaling that was under way is given up: blocks that have moved stay where they are, newcomers stay. One that
        said who sits where is begun anew: it means the same as before. The state may be old, if the last one could not
        be written: then training goes back to a checkpoint.
        `names` are those that processes have had, `records` are the journal of the shard service, `now_s` the time.
        """
        for name, role, address, leaving, site, came in state["members"]:
            self.members[name] = Member(name, role, address, leaving=leaving, site=site, came=came)
        self.lost = set(state["lost"])
        self.owner, self.moves = dict(state["owner"]), dict(state["moves"])
        self.era, self.saved, self.load = state["era"], state["saved"], state.get("load")
        self.deaths.take_over(state["deaths"])
        self.shortages.take_over(state.get("shortages", ()))
        self._take_over_standby(state)
        self._numbers, self._n_scalings = dict(state["numbers"]), state["n_scalings"]
        self._reserve(names)
        if state["phase"] == "over":
            self._end(state["failure"], cause=read(state["cause"]))
            return self._taken()
        for member in self.members.values():
            if member.leaving:  # whatever it had is elsewhere
                self._out.append(End(member.name, kill=True))
        self.phase = {"training": "taking_over", "starting": "starting"}.get(state["phase"], "restoring")
        self._out.append(Note("taken_over", {"era": self.era, "phase": state["phase"]}))
        if self.phase == "taking_over" and not self.terms.sync:
            self._replay_leases(records, now_s=now_s)
        self._take_over_requests(state)
        return self._taken()

    def _take_over_requests(self, state: Mapping[str, Any]) -> None:
        why = "the controller died"
        for number in state["scaling"]:
            self._out.append(Note("dropped", {"scaling": number, "why": why}))
        for number, place, strategy, last in state["again"]:
            self._out.append(Note("again", {"scaling": number, "why": why}))
            seats = None if place is None else {site: (workers, servers) for site, (workers, servers) in place.items()}
            self.queue.append(Scaling(strategy=strategy, number=number, place=seats, last=last))
        for at in state["repairs"]:
            self._repair(at)

    def _on_here(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Note that a process has told all that it has: after it, or the controller, was away."""
        if self.phase == "taking_over" and int(columns["has"]) > self.era:
            self.era, self._outdated = int(columns["has"]), True
        current = columns["has"] == self.era
        member.told, member.version = True, int(columns["version"]) if current else 0
        member.ready = member.begun = current and bool(columns.get("training", True))
        if self.terms.sync:
            self.progress = max(self.progress, member.version)
        if self.phase != "training":
            return
        if self.scaling is not None and member.ready:
            self.scaling.waiting.discard(member.name)
        if member.role == "worker":
            self._include(member)
            self._deal()
            self._end_when_done()
        elif not current:
            self._catch_up(member)

    def _include(self, worker: Member) -> None:
        """Let a worker that was away know who has what, or begin with it again."""
        if not worker.ready:
            self._begin(worker.name, self.progress + MARGIN, (0, 0))
            return
        self._tell(worker.name, do="map", era=self.era, map=self._map())
        self._tell_leases(worker.name)
        self._tell_followers(to=worker.name)
        if self._still is None and (self.scaling is None or self.scaling.strategy == "handover"):
            self._tell(worker.name, do="go_on")

    def _catch_up(self, server: Member) -> None:
        """Tell a server the era that it has not heard of; if it should have blocks of it, they are lost."""
        if server.name in self.owner.values():
            self._go_back()
        else:
            self._tell(server.name, do="era", era=self.era)

    def _resume(self) -> None:
        """Go on with training once everybody has told: unless blocks were lost, nobody stood still meanwhile."""
        self.phase = "training"
        behind = [m for m in self.of("server") if not m.ready]
        self._note_death(here=[m.name for m in self.of("server") if m.ready])
        absent = set(self.owner.values()) - (set(self.members) - {m.name for m in behind})
        if (
            self._is_lost(absent)
            or (absent and self._promote(absent) is None)
            or (self.terms.sync and not self._n_begun())
        ):
            self._go_back()
            return
        for server in behind:
            self._catch_up(server)
        self._see_to_the_end()
        for worker in self.of("worker"):
            self._include(worker)
        doubts, self._doubts = self._doubts, []
        for name, columns in doubts:
            if name in self.members:
                self._on_unsure(self.members[name], columns)
        self._deal()
        self._order_following(self.coming)
        self._follow(self._followers_to_be())
        self._out.append(Note("resumed", {"era": self.era, "version": self.progress}))

    def _is_lost(self, absent: Collection[str]) -> bool:
        """Tell whether somebody is here who should have a block, and nobody says that it has it."""
        claimed = self._claimed | {int(columns["block"]) for _, columns in self._doubts}
        return self._outdated or any(b not in claimed for b, name in self.owner.items() if name not in absent)

    def _on_moving(self, _: Member, columns: Mapping[str, Any]) -> None:
        """Note a block that is on its way, to somebody who will tell that it is there."""
        if columns["owner"] in self.members:
            self._claimed.add(int(columns["block"]))

    def joined(self, name: str, *, address: str = "") -> list[Command]:
        """Take in a process that has connected."""
        member = self.members.get(name)
        if member is None:
            return [Tell(name, {"do": "stop"})]
        if member.joined:
            return self._rejoined(member)
        if not member.came:
            self.deaths.joined()
            self.shortages.joined()
        member.joined, member.came, member.address = True, True, address
        if self.phase == "taking_over":
            self._tell(name, do="tell")
        self._out.append(Note("joined", {"name": name, "role": member.role}))
        if member.role == "server" and self.phase != "taking_over":
            self._tell(name, do="era", era=self.era)
        self._introduce(member)
        if member.role == "worker" and self.phase == "training":
            self._begin(name, self.progress + MARGIN, (0, 0))
        elif self.scaling is not None and name in self.scaling.waiting:
            others = [m for m in self.members.values() if m.joined and not m.leaving and m is not member]
            self.scaling.waiting.discard(name)
            self.scaling.waiting |= {("met", m.name, name) for m in others}
            self.scaling.waiting |= {("met", name, m.name) for m in others if m.role == "server"}  # so it knows the era
        self._go_on()
        return self._taken()

    def _rejoined(self, member: Member) -> list[Command]:
        """Take in again a process that was cut off: tell it all that it may have missed, and hear what it has."""
        self._out.append(Note("rejoined", {"name": member.name, "role": member.role}))
        if member.leaving:
            self._out.append(End(member.name))
            return self._taken()
        self._introduce(member)
        if self.phase == "loading" and member.role == "server":
            self._go_back()  # nobody knows what arrived
        elif self.phase in ("training", "taking_over"):
            self._tell(member.name, do="tell")
            if self.phase == "training" and member.role == "server":
                self._remind(member)
        self._go_on()
        return self._taken()

    def _remind(self, server: Member) -> None:
        """Tell a server again what it is to do; what it has done already it does not do twice."""
        for version in {self.terms.n_steps, self.saving} if self.terms.sync else {self.saving}:
            if version is not None:
                self._tell(server.name, do="copy", version=version)
        self._order_following([block for block in self.coming if self.owner[block] == server.name])
        scaling = self.scaling
        if scaling is not None and scaling.phase == "migration":
            left = {b: to for b, to in scaling.moves.items() if ("owns", b, to) in scaling.waiting}
            mine = [[b, to] for b, to in left.items() if self.owner[b] == server.name]
            self._tell(server.name, do="hand_over", moves=mine, version=None)

    def left(
        self,
        name: str,
        *,
        reason: str = "",
        by_itself: bool = False,
        cause: Cause = Cause.UNKNOWN,
        code: int | None = None,
    ) -> list[Command]:
        """Note that a process is gone; `by_itself`: it ended with an error, nobody killed it."""
        member = self.members.pop(name, None)
        if member is None:
            return self._taken()
        expected = member.leaving or self.phase == "over"
        self._forget_worker(name, died=not expected)
        self._out.append(Note("left", left(member, expected=expected, reason=reason, cause=cause, code=code)))
        if by_itself and not member.joined and self.phase == "starting":  # the next one would end as this one did
            self._end(f"{name} ended before it had begun, {reason}", cause=cause)
        elif not expected:
            self._died(member, reason, cause=cause)
        elif member.role == "server":
            self._note_death()
        if self.scaling is not None:
            self._forget(self.scaling, member)
        if member.role == "server" and self.phase == "training":
            self._tell_workers(do="map", era=self.era, map=self._map())  # what it said last may not have arrived
        self._go_on()
        return self._taken()

    def reported(self, name: str, event: str, columns: Mapping[str, Any]) -> list[Command]:
        """Take note of what a member says has happened."""
        take = getattr(self, f"_on_{event}", None)
        if take is not None and name in self.members and columns.get("era", self.era) == self.era:
            take(self.members[name], columns)
            self.deaths.reached(self.progress)
            self.shortages.reached(self.progress)
        self._go_on()
        return self._taken()

    def stop(self, *, save: bool = False) -> list[Command]:
        """End the job before its last step; `save`: after a checkpoint, from which it can go on later."""
        if save and self.phase in ("training", "taking_over"):
            self._n_scalings += 1
            self.queue.insert(0, Scaling(strategy="checkpoint", number=self._n_scalings, last=True))
            self._go_on()
        else:
            self._end("")
        return self._taken()

    def fed(self) -> None:
        """Note that a process may have more memory than one that ran out of it: those shortages count no more."""
        self.shortages.forgive()

    def give_up(self, why: str) -> list[Command]:
        """End the job: it cannot go on."""
        self._end(why)
        return self._taken()

    def _go_on(self) -> None:
        """Do the next thing that is due."""
        if self.phase in ("starting", "restoring") and all(m.joined and not m.leaving for m in self.members.values()):
            self._restore()
        elif self.phase == "taking_over" and all(m.told for m in self.members.values() if m.came and not m.leaving):
            self._resume()
        if self.phase == "training":
            self._try_still()
            self._next_scaling()

    def _restore(self) -> None:
        """Give out the blocks of a checkpoint, at first those of the beginning."""
        missing = [role for role in ROLES if not self.of(role)]
        if missing:  # those were dropped, or died, who were to stay
            for role in missing:
                self._launch(role, self._site_for(role))
            return
        self.era += 1
        self.phase = "loading"
        servers = self._with_blocks(m.name for m in self.of("server"))
        self.owner = self._first_owners(servers)
        self.moves = dict.fromkeys(self.owner, 0)
        self._unfollow()
        for server in servers:
            self._tell(server, do="era", era=self.era)
        self._out.append(Load(self.era, dict(self.owner)))

    def _first_owners(self, servers: Sequence[str]) -> dict[int, str]:
        """Return the server of each block: by measured load once there is one, by whole parameters, or by bytes."""
        if self.load is None and self.terms.tensors:
            return dict(enumerate(servers[s] for s in by_tensor(self.terms.sizes, self.terms.tensors, len(servers))))
        return self._reassign({}, self.terms.sizes, servers, load=self.load)

    def loaded(self, version: int, *, queue: Mapping[str, Any] | None = None) -> list[Command]:
        """All blocks of a checkpoint are with their owners; `queue` is what it says of the shard service."""
        if not any(m.joined for m in self.of("worker")):
            self.phase = "restoring"  # all workers died meanwhile: wait for others
            return self._taken()
        self.phase, self.progress, self.saving = "training", version, None
        self._open_leases(queue)
        self._see_to_the_end()
        ranges = self._ranges()
        for name, leaves in ranges.items():
            self._begin(name, version, leaves)
            self.members[name].begun = True
        self._out.append(Note("began", {"era": self.era, "version": version}))
        self._follow(self._followers_to_be())
        if self._restarted is not None:
            scaling, self._restarted = self._restarted, None
            self._out.append(Note("scaled", {"scaling": scaling.number, "strategy": scaling.strategy}))
        self._go_on()
        return self._taken()

    def _see_to_the_end(self) -> None:
        """Order copies of the last version, or make them if everything is done."""
        if self.leases is not None:
            self._save_when_due()
            return
        for server in self.of("server"):
            self._tell(server.name, do="copy", version=self.terms.n_steps)

    def _begin(self, name: str, version: int, leaves: tuple[int, int]) -> None:
        hold = 0 if self._still is None else self._still.number
        told = {"version": version, "leaves": leaves, "map": self._map(), "followers": self._rows()}
        self._tell(name, do="begin", era=self.era, hold=hold, **told)

    def _on_behind(self, member: Member, columns: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Give the leaves of a worker that lacks the parameters of the step to those who have them."""
        member.ready = member.begun = False
        if self.phase == "training" and self._n_begun():
            self._deal()
            self._end_when_done()  # the others may have nothing left to do
        elif self.phase == "training":
            self._go_back()

    def _on_ready(self, member: Member, columns: Mapping[str, Any]) -> None:
        member.ready = member.begun = True
        self._unmoved.discard(member.name)
        member.version = int(columns["version"])
        scaling = self.scaling
        if scaling is not None and member.name in scaling.waiting:
            scaling.waiting.discard(member.name)
        elif self.phase == "training" and self._n_ready() > 1 and member.version > 0:  # it came while training went on
            self._deal()

    def _on_stepped(self, member: Member, columns: Mapping[str, Any]) -> None:
        if self.leases is not None:
            self._committed(member, columns)
            self._save_when_due()
            return
        member.version = int(columns["version"]) + 1
        self.progress = max(self.progress, member.version)
        self._even_out(member, columns)
        every = self.terms.save_every
        settled = self.scaling is None or self.scaling.phase == "registration"
        if every and self.saving is None and settled and self.progress < self.terms.n_steps:
            due = max(self.saved + every, self.progress + MARGIN)
            if self.progress >= due - MARGIN and due < self.terms.n_steps:
                self._save(due)

    def _even_out(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Deal the logical shards anew if some workers turn out to be slower than others."""
        if "compute_s" not in columns:
            return
        self._speeds.measured(member.name, n_shards=int(columns["shards"]), seconds=columns["compute_s"])
        if self.phase == "training" and self.scaling is None and self._speeds.uneven():
            self._deal()
            self._out.append(Note("dealt", {"leaves": dict(self._speeds.ranges)}))

    def _save_when_due(self) -> None:
        """Save a checkpoint of asynchronous training when it is time, and the last one when all is done."""
        assert self.leases is not None
        every, settled = self.terms.save_every, self.scaling is None or self.scaling.phase == "registration"
        due = bool(every) and self.progress >= self.saved + every
        due = due and not self._unmoved  # who was stuck may be so still: nobody waits for it twice
        if self.phase == "training" and self.saving is None and settled and (due or self.leases.done):
            self._save_still(needed=self.leases.done)

    def copied(self, version: int) -> list[Command]:
        """Note that copies of all blocks at a version are here."""
        if self.leases is not None and version != self.saving:
            return self._taken()
        queue = None if self.leases is None else self.leases.state()
        self._out.append(Keep(version, queue))
        if self._still is not None and (self.scaling is None or self.scaling.phase != "saving"):
            self._walk_on()
        self._go_on()
        return self._taken()

    def saved_at(self, version: int) -> list[Command]:
        """Note that a checkpoint is complete and safe."""
        self.saving, self.saved = None if self.saving == version else self.saving, max(self.saved, version)
        self._out.append(Note("saved", {"version": version}))
        scaling = self.scaling
        if scaling is not None and ("saved", version) in scaling.waiting:
            scaling.waiting.discard(("saved", version))
        self._end_when_done()
        if self.leases is not None and self.scaling is None:
            self._save_when_due()
        self._go_on()
        return self._taken()

    def unsaved(self, version: int, why: str) -> list[Command]:
        """Note that a checkpoint could not be written: training goes on, and tries again later."""
        self._out.append(Note("unsaved", {"version": version, "why": why}))
        self.saving = None if self.saving == version else self.saving
        if version == self.terms.n_steps:
            self._end(f"the last state could not be saved: {why}")
        elif self.scaling is not None and ("saved", version) in self.scaling.waiting:
            self._walk_on()
            if self.scaling.last:
                self._end("")
            else:
                self._drop(self.scaling, why)
        self._go_on()
        return self._taken()

    def _on_done(self, member: Member, columns: Mapping[str, Any]) -> None:
        member.version = int(columns["version"])
        self._end_when_done()

    def _end_when_done(self) -> None:
        """End the job once its last state is safe and all workers have told of their last step."""
        last = self.terms.n_steps
        if self.leases is not None:
            if self.leases.done and self.saved >= last:
                self._end("")
        elif self.saved == last and all(m.version == last for m in self.of("worker") if m.ready):
            self._end("")

    def _on_late(self, _: Member, columns: Mapping[str, Any]) -> None:
        """Try a later version: a copy came too late."""
        if self.saving == columns["version"]:
            self.saving = None
            scaling = self.scaling
            if scaling is not None and ("saved", columns["version"]) in scaling.waiting:
                scaling.waiting.clear()
                self._copy_for(scaling)

    def _on_owns(self, member: Member, columns: Mapping[str, Any]) -> None:
        block, moves = int(columns["block"]), int(columns["moves"])
        self._claimed.add(block)
        if moves < self.moves.get(block, -1):
            return  # somebody else has it since
        self.owner[block], self.moves[block] = member.name, moves
        self._inherited(block, member.name)
        self._disown(block, member.name)
        if self.scaling is not None:
            self.scaling.waiting.discard(("owns", block, member.name))
        if block in self.coming:
            self._order_following([block])

    def _on_handed_over(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Note who has a block, which that one may not have told yet; go back if it has died since."""
        self._out.append(Note("moved", {"from": member.name, **columns}))
        block, owner, moves = int(columns["block"]), str(columns["owner"]), int(columns["moves"])
        if columns["era"] != self.era or moves <= self.moves.get(block, -1):
            return
        self.owner[block], self.moves[block] = owner, moves
        if owner not in self.members and self.phase == "training" and self._promote({owner}) is None:
            self._go_back()  # it died before it said that it has the block

    def _on_unfollowed(self, member: Member, columns: Mapping[str, Any]) -> None:  # noqa: ARG002
        """End a server that could not be given a block to follow: workers would wait for it."""
        name = str(columns["follower"])
        if self.coming.get(int(columns["block"])) == (name, int(columns["turn"])) and name in self.members:
            self._cut_off(name, str(columns.get("why", "")))

    def _on_lacks(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Go back where a server has not what it was believed to follow."""
        if self.phase == "training" and any(self.owner[int(b)] == member.name for b in columns["blocks"]):
            self._go_back()

    def _on_unsure(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Settle who has a block that was streamed to somebody who did not say that it is there."""
        block, owner = int(columns["block"]), str(columns["owner"])
        if self.phase == "taking_over":
            self._doubts.append((member.name, columns))  # others may still tell that they have it
            return
        if self.moves.get(block, -1) >= columns["moves"]:  # it got there, and may have gone further
            self._tell(member.name, do="forget", blocks=[block])
            return
        if owner in self.members:
            self._cut_off(owner, str(columns.get("why", "")))  # nobody may believe that it has the block
        if self.phase != "training":
            return
        self._tell(member.name, do="take_back", blocks=[block])
        scaling = self.scaling
        if scaling is not None:
            scaling.waiting.discard(("owns", block, owner))
            self._move_on(scaling, {block: member.name})  # to others it was not let go while it was on its way there

    def _on_amiss(self, _: Member, columns: Mapping[str, Any]) -> None:
        """Go back: somebody has parameters of a version that died with a server."""
        if self.phase == "training":
            self._out.append(Note("amiss", {"block": columns["block"], "version": columns["version"]}))
            self._go_back()

    def _on_stuck(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Do without a worker that does not come forward; at the same place twice it is not the worker's fault."""
        place = (int(columns["place"][0]), int(columns["place"][1]))
        if place in self._stuck:
            self._end(f"{member.name}: {columns['why']}.", cause=Cause.STALLED)
            return
        self._stuck.add(place)
        self._cut_off(member.name, str(columns["why"]), cause=Cause.STALLED)

    def _cut_off(self, name: str, why: str, *, cause: Cause = Cause.UNREACHABLE) -> None:
        self._out.append(End(name, kill=True))
        member = self.members.pop(name)
        self._forget_worker(name)
        reason = why if cause == Cause.OUT_OF_MEMORY else f"cut off: {why}"
        self._out.append(Note("left", left(member, expected=False, reason=reason, cause=cause)))
        self._died(member, why, cause=cause)

    def _on_no_memory(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Do without a server that ends because it ran out of memory: nobody has to guess why."""
        self._cut_off(member.name, str(columns["why"]), cause=Cause.OUT_OF_MEMORY)

    def _on_failed(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._end(f"{member.name}: {columns['why']}", cause=read(columns.get("cause", "error")))

    def _died(self, member: Member, why: str, *, cause: Cause) -> None:
        if self.phase == "over":
            return
        deaths = self.shortages if cause == Cause.OUT_OF_MEMORY else self.deaths
        enough = deaths.note(f"{member.name} ({why})", now_s=self.now_s, joined=member.came)
        if enough:
            self._end(enough, cause=cause)
            return
        going = self.scaling is not None and member.name in self.scaling.going
        if self.scaling is not None:
            self._forget(self.scaling, member)
        if member.role == "worker":
            self._worker_died(member.site)
        elif self.scaling is not None and self._is_stranded(member):
            self._drop_stranded(self.scaling, f"{member.name} died: {why}")
        else:
            self._server_died(member, going=going)

    def _is_stranded(self, dead: Member) -> bool:
        """Tell whether the request under way has nobody left to come or stay, and all blocks are with those who go."""
        going = [] if self.scaling is None else self.scaling.going
        here = self.phase == "training" and dead.name not in self.owner.values()
        return here and all(m.name in going for m in self.of("server"))

    def _server_died(self, member: Member, *, going: bool) -> None:
        if self.terms.standby and self.phase in ("training", "taking_over"):
            if not self._survive({member.name}, repair=() if going else (member.site,)):
                self._go_back()
            elif self.phase == "training":
                self._copy_again()
        elif self.phase == "training" and member.name not in self.owner.values():
            if not going:
                self._repair((member.site,))  # who comes gets its share, as the dead one would have
        else:
            self._launch("server", member.site)
            if self.phase in ("training", "loading") and member.name in self.owner.values():
                self._go_back()

    def _copy_again(self) -> None:
        """Order copies again that may have died with a server."""
        self._see_to_the_end()
        if self.saving is not None:
            self._save(self.saving)

    def _worker_died(self, site: str) -> None:
        self._launch("worker", site)
        self._workers_died()

    def _workers_died(self) -> None:
        """Let others compute what workers were at that are gone."""
        if self.phase == "training" and (self._n_begun() or not self.terms.sync):
            self._deal()
        elif self.phase == "training":
            self._go_back()  # the parameters of its step died with it
        self._end_when_done()

    def _go_back(self) -> None:
        """Give up what was done since the last checkpoint: somebody died who had blocks."""
        self.phase = "restoring"
        self.era += 1
        self._out.append(Note("goes_back", {"era": self.era}))
        self._give_up_scaling()
        self.saving = self._still = None
        for site in [site for scaling in self.queue if scaling.repair for site in scaling.at]:
            self._launch("server", self._site_for("server", rather=site))
        self.queue = [scaling for scaling in self.queue if not scaling.repair]
        for worker in self.of("worker"):
            worker.ready = worker.begun = False
        self._tell_workers(do="halt", era=self.era)
        for name in [m.name for m in self.members.values() if m.role == "worker" and m.leaving]:
            self._out.append(End(name))  # it was to end its step first, which is given up

    def _give_up_scaling(self) -> None:
        """Drop the request under way; one that said who sits where is begun anew later: it means the same then."""
        scaling, self.scaling = self.scaling, None
        if scaling is None:
            return
        again = scaling.again()
        note = "dropped" if again is None else "again"
        self._out.append(Note(note, {"scaling": scaling.number, "why": "a server died"}))
        self.queue[:0] = [] if again is None else [again]

    def _end(self, failure: str, *, cause: Cause = Cause.ERROR) -> None:
        if self.phase == "over":
            return
        self.phase, self.failure, self.cause = "over", failure, cause if failure else Cause.UNKNOWN
        for scaling in (*([self.scaling] if self.scaling is not None else []), *self.queue):
            self._out.append(Note("dropped", {"scaling": scaling.number, "why": "training has ended"}))
        for member in self.members.values():
            member.leaving = True
            self._out.append(End(member.name))
        self._out.append(Over(failure, self.cause))
