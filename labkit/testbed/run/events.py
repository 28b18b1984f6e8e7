"""What jobs and hosts tell, as events: of jobs that train, fail, rest and are given up, of hosts that go and come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from labkit.core.checks import SINGLE
from labkit.core.cluster import Cluster
from labkit.core.errors import EndedError
from labkit.core.events import Cause, Events, Kind, Role, joined
from labkit.core.jobs import Jobs
from labkit.core.ledger import Ledger
from labkit.core.resources import CPUS, MEMORY_GB
from labkit.elastic.controller.placement import JobPlacement
from labkit.elastic.event_quantities import MemberName
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.amounts import Given
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.event_rows import hosts_of, row, seats
from labkit.testbed.run.inbox import InboxItem
from labkit.testbed.run.progress import JobUpdate, LostTask
from labkit.testbed.run.remote_job import RemoteJob
from labkit.testbed.run.retries import Failures, Retries
from labkit.testbed.run.task_of_member import Row
from labkit.testbed.run.training import site_names


class Happenings:
    """Turns what was heard into events, and sees to what follows at once.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Of the run.
    ledger : Ledger
        What is known of them; not written here.
    hosts, backups : AgentPool, CheckpointCache
        Of the run.
    retries : Retries
        How patient it is with jobs that fail and hosts that fail jobs.
    now_s : callable
        Returns the second of the run.
    note : callable
        Keeps a sentence for people.
    remember : callable
        Writes down where jobs are.

    Attributes
    ----------
    deployments : sequence of RemoteJob
        One for each job.
    places : dict
        Job -> where its tasks are, as it was told last.
    amounts : dict
        Job -> what its tasks were given, where they were given anything.
    resizing : set of int
        Jobs of which a decision changed only that, and that have not told yet that they have it.
    training : set of int
        Jobs that have begun to train where they are.
    steps : array
        Of each job, (N,).
    done_early : dict
        Job -> steps, of those that came to their end while they were told to stop.
    aside : dict
        Hosts that are set aside -> until which second.
    out : set of str
        Hosts that take no jobs: they have left, or are set aside.
    dropped : dict
        Jobs that were given up, by id -> why.
    """

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        ledger: Ledger,
        hosts: AgentPool,
        backups: CheckpointCache,
        retries: Retries,
        now_s: Callable[[], float],
        note: Callable[[str], None],
        remember: Callable[[], None],
    ) -> None:
        self.jobs, self.cluster, self.hosts = jobs, cluster, hosts
        self._ledger, self._backups, self._failures = ledger, backups, Failures(retries)
        self._now_s, self._note, self._remember = now_s, note, remember
        self.deployments: Sequence[RemoteJob] = ()
        self.places: dict[int, JobPlacement] = {}
        self.amounts: dict[int, list[Given]] = {}
        self.resizing: set[int] = set()
        self._unable: set[tuple[int, str]] = set()
        self.training: set[int] = set()
        self.steps = np.zeros(len(jobs))
        self.done_early: dict[int, float] = {}
        self.aside: dict[str, float] = {}
        self.out: set[str] = set()
        self.dropped: dict[str, str] = {}
        self._lost_life: dict[int, int] = {}
        """The last start of a job that was lost with a host."""

    def due(self) -> list[Events]:
        """Return the hosts that were set aside for long enough."""
        over = [host for host, until_s in self.aside.items() if until_s <= self._now_s()]
        return [each for host in over for each in self.returned(host)]

    def of(self, heard: InboxItem) -> list[Events]:
        """Return what follows from what was heard.

        Raises
        ------
        EndedError
            If somebody has ended the run on its hosts.
        """
        if heard.rows is not None:
            rows = self._numbered(heard.rows[np.isin(heard.rows["job"], list(self.training))])
            return [rows] if len(rows) else []
        if heard.told is None:
            return self._host_came(heard.host) if heard.up else self._host_went(heard.host, heard.why)
        return self._of_job(heard.job, heard.told)

    def _numbered(self, rows: Events) -> Events:
        """Return measurements of members as those of tasks; a member that is coming or going is no task."""
        kept = np.ones(len(rows), np.bool_)
        for job in np.unique(rows["job"]).tolist():
            tasks = self.deployments[job].seating.tasks(self.rows_of(job))
            for i in np.flatnonzero((rows["job"] == job) & (rows["task"] >= 0)).tolist():
                number = tasks.get(MemberName(Role(rows["role"][i]), int(rows["task"][i])), -1)
                rows["task"][i], kept[i] = number, number >= 0
        return rows[kept]

    def rows_of(self, job: int) -> list[Row]:
        """Return role, site and number of tasks of each row of a job, in order."""
        _, role, group, count = self._ledger.book.of(np.array([job], np.int32))
        names = site_names(self.cluster)
        return [(r, names[g], n) for r, g, n in zip(role.tolist(), group.tolist(), count.tolist(), strict=True)]

    def _of_job(self, job: int, told: JobUpdate) -> list[Events]:
        if told.life <= self._lost_life.get(job, -1):
            return []
        self.steps[job] = told.steps
        if told.what == "ended":
            raise EndedError(
                f"the run was ended on host {told.host} from elsewhere ({told.why}); labkit attach goes on with it."
            )
        if told.why and self._is_news(job, told):
            self._note(f"job {self.jobs.id[job]} {told.what}: {told.why}")
        if job not in self.places:
            if told.what == "done":
                self.done_early[job] = told.steps
            return []
        if told.what in ("done", "failed"):
            return self._came_to_an_end(job, told)
        return self._went_on(job, told)

    def _is_news(self, job: int, told: JobUpdate) -> bool:
        """Return whether what a job cannot have was not told before: each of its processes says so each time."""
        said = (job, told.why)
        known = told.what == "resized" and said in self._unable
        self._unable.add(said)
        return not known

    def _went_on(self, job: int, told: JobUpdate) -> list[Events]:
        if told.what == "resized" and job in self.resizing:
            self.resizing.discard(job)
            return [row(Kind.RESIZED, job=job, value=told.steps)]
        if told.what == "dropped":
            return self._stays(job)
        if told.task is not None:
            return self._lost_task(job, told, told.task)
        if told.what not in ("began", "scaled", "progressed"):
            return []
        if job not in self.training:
            self.training.add(job)
            self._remember()  # it has a home now
            return [row(Kind.STARTED, job=job, value=told.steps, speed=self._speed(job, told))]
        if told.what == "scaled":
            return [row(Kind.RESCALED, job=job, value=told.steps, speed=self._speed(job, told))]
        return self._progressed(job, told)

    def _lost_task(self, job: int, told: JobUpdate, lost: LostTask) -> list[Events]:
        """Return that a task ended which the job replaces by itself."""
        columns = {"role": lost.member.role, "task": lost.member.number, "machine": self._machine(lost.host)}
        return [row(Kind.TASK_FAILED, job=job, cause=told.cause, value=lost.code, **columns)]

    def _stays(self, job: int) -> list[Events]:
        """Return that a job is where it was, after a scaling that came to nothing.

        Where its place was given to others meanwhile, it stops and has to be placed again.
        """
        place = self.deployments[job].place
        if place is None or place == self.places[job]:
            return []  # something else was decided since
        rows = self._seats(job, place)
        if self._fits(job, joined(rows)):
            self.places[job] = place
            return rows
        self.deployments[job].want(None)
        self._note(f"job {self.jobs.id[job]} stops: where it was, others were placed meanwhile")
        self.let_go(job)
        return [self._fell_back(job, cause=Cause.NO_ROOM)]

    def _fell_back(self, job: int, *, cause: Cause, host: str = "") -> Events:
        """Return that a job has failed, and is as far as what is saved of it."""
        saved = float(self.deployments[job].progress.saved)
        return row(Kind.FAILED, job=job, value=saved, speed=0.0, cause=cause, machine=self._machine(host))

    def _seats(self, job: int, place: JobPlacement) -> list[Events]:
        return seats(
            self.cluster, job, place, with_ps=bool(self.jobs.n_ps[job]), amounts=self.amounts.get(job, ())
        )  # fmt: skip

    def _fits(self, job: int, rows: Events) -> bool:
        """Return whether there is room for a job where nobody else was placed."""
        free = self._ledger.book.free_without(np.array([job], np.int32))
        each = self._ledger.book.demand[rows["role"], job]
        for r, given in ((CPUS, rows["cpus"]), (MEMORY_GB, rows["memory_gb"])):
            each[:, r] = np.where(np.isnan(given), each[:, r], given)
        np.subtract.at(free, rows["group"], each * rows["value"][:, None])
        there = self._ledger.up[self.cluster.group_machine]  # nobody is placed on the others
        return bool((free[there] >= -SINGLE).all())

    def _progressed(self, job: int, told: JobUpdate) -> list[Events]:
        self._failures.well(self.deployments[job].home)
        rows = [row(Kind.PROGRESSED, job=job, value=told.steps, speed=self._speed(job, told))]
        if np.isfinite(told.loss):
            rows.append(row(Kind.LOSS, job=job, value=told.loss))
        return rows

    def _speed(self, job: int, told: JobUpdate) -> float:
        """Return the speed that was measured; where none was yet, the last one known."""
        return told.speed if np.isfinite(told.speed) else float(self._ledger.belief["speed"][job])

    def let_go(self, job: int) -> None:
        """Note that a job has no tasks."""
        self.places.pop(job, None)
        self.amounts.pop(job, None)
        self.resizing.discard(job)
        self.training.discard(job)

    def _came_to_an_end(self, job: int, told: JobUpdate) -> list[Events]:
        self.let_go(job)
        if told.what == "done":
            self._backups.forget(self.deployments[job].task)
            return [row(Kind.COMPLETED, job=job, value=told.steps, speed=0.0)]
        return self._failed(job, told)

    def _failed(self, job: int, told: JobUpdate) -> list[Events]:
        """Return what follows from the failure of a job: it rests, its host is set aside, or it is given up."""
        others = [host for host in self.cluster.machines if self._in_service(host) and host != told.host]
        busy = any(told.host in hosts_of(place) for place in self.places.values())
        verdict = self._failures.failed(
            job,
            host=told.host,
            why=told.why,
            steps=told.steps,
            now_s=self._now_s(),
            own=told.own,
            others=others,
            busy=busy,
        )
        name, machine = self.jobs.id[job], self._machine(told.host)
        rows = [each for host in verdict.back if host in self.aside for each in self.returned(host)]
        if verdict.drop:
            self.dropped[str(name)] = verdict.drop
            self._note(f"job {name} is given up: {verdict.drop}")
            self._remember()
            dropped = row(Kind.DROPPED, job=job, value=told.steps, speed=0.0, machine=machine, cause=told.cause)
            return [dropped, *rows]
        self.deployments[job].rest(verdict.wait_s)
        n = self._failures.n_of(job)
        self._note(f"job {name} may start again in {verdict.wait_s:g} s, after {n} failure{'s'[: n > 1]} on end")
        columns = {"value": told.steps, "speed": 0.0, "machine": machine, "cause": told.cause}
        rows.insert(0, row(Kind.FAILED, job=job, **columns))
        return rows + (self._set_aside(told.host, verdict.aside, f"job {name} failed there") if verdict.aside else [])

    # --- hosts

    def _machine(self, host: str) -> int:
        return self.cluster.machines.index(host) if host in self.cluster.machines else -1

    def _in_service(self, host: str) -> bool:
        return host not in self.out and self.hosts.up[host]

    def _set_aside(self, host: str, seconds: float, why: str) -> list[Events]:
        """Let nothing be placed on a host for a while; what trains there goes on."""
        self.aside[host] = self._now_s() + seconds
        self._note(f"host {host} is set aside for {seconds:g} s: {why}")
        return self._left(host, Cause.ERROR)

    def _left(self, host: str, cause: Cause) -> list[Events]:
        if host in self.out:
            return []
        self.out.add(host)
        return [row(Kind.LEFT, machine=self._machine(host), cause=cause)]

    def returned(self, host: str) -> list[Events]:
        """Return that a host takes jobs again, if it can be reached and is not set aside any more."""
        self.aside.pop(host, None)
        if host not in self.out or not self.hosts.up[host]:
            return []
        self.out.discard(host)
        self._note(f"host {host} takes jobs again")
        return [row(Kind.JOINED, machine=self._machine(host))]

    def _host_came(self, host: str) -> list[Events]:
        for deployment in self.deployments:
            deployment.host_back(host)
        return [] if host in self.aside else self.returned(host)

    def _host_went(self, host: str, why: str) -> list[Events]:
        """Return what is left of the jobs that had tasks there, and that the machine is gone."""
        rows: list[Events] = []
        for job, place in list(self.places.items()):
            left = {site: counts for site, counts in place.items() if site.rpartition("/")[0] != host}
            whole = any(w for w, _ in left.values()) and any(s for _, s in left.values())
            if self.deployments[job].home != host and left == place:
                continue
            rest = left if whole and self.deployments[job].home != host else None
            self._lost_with(job, host, rest)
            rows += self._gone_on(job, rest, host)
        self._note(f"host {host} left: {why or 'it does not answer'}")
        return [*rows, *self._left(host, Cause.HOST_LOST)]

    def _lost_with(self, job: int, host: str, rest: JobPlacement | None) -> None:
        life = self.deployments[job].host_lost(host, rest)
        if rest is None:
            self._lost_life[job] = life

    def _gone_on(self, job: int, rest: JobPlacement | None, host: str) -> list[Events]:
        """Return that a job goes on with what is left, or failed."""
        if rest is None:
            self._note(f"job {self.jobs.id[job]} failed: its host was lost")
            self.let_go(job)
            return [self._fell_back(job, cause=Cause.HOST_LOST, host=host)]
        self.places[job] = rest
        return [*self._seats(job, rest), row(Kind.RESCALED, job=job, value=self.steps[job], speed=float("nan"))]
