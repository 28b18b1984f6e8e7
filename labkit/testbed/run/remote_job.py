"""One job on the testbed: a thread that carries out the decisions about it, and reports what happens to it."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.protocol.messages.clients import MemberStatus
from labkit.elastic.protocol.sites import JobPlacement
from labkit.testbed.agent.fences import FENCED
from labkit.testbed.errors import AgentRefused, HostError
from labkit.testbed.run.agents import AgentPool
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.job_events import JobEvent, JobUpdate, Progress
from labkit.testbed.run.job_follower import START_S, JobFollower, RemoteJobState
from labkit.testbed.run.job_launcher import AsksOf, GpuClaims, JobLauncher
from labkit.testbed.run.job_messages import (
    BalanceOrder,
    DoneReply,
    ErrorReply,
    HostHomeOrder,
    HostHomeReply,
    JobOrder,
    JobRequest,
    PlaceOrder,
    ReplaceOrder,
    ResizeOrder,
    ResizeReply,
    ScalingReply,
    StatusOrder,
    StatusReply,
    StopOrder,
    message_of,
    reply_of,
)
from labkit.testbed.run.tasks import MemberLimits, Row, TaskNumbers, TaskResources, hosts_of

ReplyT = TypeVar("ReplyT")
STOP_S: Final = 60.0
"""Seconds that a job may take to stop before its processes are ended."""
RequestOf = Callable[[str, JobPlacement], JobRequest]
"""From home host and placement to the request of a start."""
OnUpdate = Callable[[int, JobUpdate], None]
"""Takes the number of a job, and what happened to it."""


class JobClient:
    """Sends orders to the process of one job.

    Every method may raise LabkitError: the process refuses the order, or cannot be reached. `home`: returns the host of
    the job's process.
    """

    def __init__(self, hosts: AgentPool, *, task: str, home: Callable[[], str]) -> None:
        self._hosts, self._task, self._home = hosts, task, home

    def place(self, place: JobPlacement, *, strategy: str) -> int:
        """Begin a scaling to a placement; return its number."""
        return self._send(PlaceOrder(place=dict(place), strategy=strategy), ScalingReply).scaling

    def resize(self, members: MemberLimits) -> None:
        """Limit members to (cores, GB) by name, and remove the limits of all others."""
        self._send(ResizeOrder(members=members), ResizeReply)

    def replace(self, members: list[str]) -> None:
        """Replace members by new processes."""
        self._send(ReplaceOrder(members=members), DoneReply)

    def balance(self) -> None:
        """Reassign the blocks of the servers by measured load."""
        self._send(BalanceOrder(), DoneReply)

    def host_home(self, host: str) -> bytes:
        """Return the folder of the launcher of another host, a tar archive."""
        return base64.b64decode(self._send(HostHomeOrder(host=host), HostHomeReply).archive)

    def stop(self) -> None:
        """Begin to end the job, with a checkpoint."""
        self._send(StopOrder(), DoneReply)

    def members(self) -> list[MemberStatus]:
        """Return the members of the job."""
        return self._send(StatusOrder(), StatusReply).members

    def _send(self, order: JobOrder, kind: type[ReplyT]) -> ReplyT:
        home = self._home()
        answer = self._hosts.agent(home).tell(
            self._hosts.run, task=self._task, message=message_of(order), timeout_s=START_S
        )
        reply = reply_of(kind, answer)
        if isinstance(reply, ErrorReply):
            raise HostError(f"job {self._task.removeprefix('job-')} on host {home}: {reply.error}")
        return reply


class RemoteJob:
    """A job of a run.

    `set_target` sets the placement of its tasks; a thread of its own carries that out. What happens is
    reported as `JobUpdate`, from that thread or another: began, scaled, progressed, and at the end done, or failed
    (the job can be started again).
    """

    def __init__(
        self,
        number: int,
        *,
        hosts: AgentPool,
        backups: CheckpointCache,
        request: RequestOf,  # makes the content of request.json
        n_steps: int,
        on_update: OnUpdate,  # takes (number, update)
        strategy: str = "handover",  # how the job is rescaled: handover, suspend or checkpoint
        on_event: Callable[[JobEvent], None] = lambda _: None,  # takes every new event of the job's elastic runtime
        gpus: AsksOf = lambda _host, _place: [],
        bring: Callable[[str], None] = lambda _home: None,
    ) -> None:
        self.number, self.task = number, f"job-{number}"
        self._hosts, self._backups, self._request, self._on_update = hosts, backups, request, on_update
        self._strategy = strategy
        self._state = state = RemoteJobState()
        self._claims = GpuClaims(self.task, hosts=hosts, asks=gpus, wanted=lambda: state.scalings.target is not None)
        self._launcher = JobLauncher(
            self.task, hosts=hosts, backups=backups, claims=self._claims, bring=bring,
            tell=lambda why: on_update(
                number, JobUpdate("restored", self.progress.saved, why=why, generation=state.generation)
            ),
        )  # fmt: skip
        self._client = JobClient(hosts, task=self.task, home=lambda: state.home)
        self._follower = JobFollower(
            self.task, state=state, hosts=hosts, backups=backups, launcher=self._launcher, claims=self._claims,
            n_steps=n_steps, report=lambda update: on_update(number, update), on_event=on_event,
        )  # fmt: skip
        self._repairs: list[Callable[[], None]] = []
        """Repairs to carry out, in order."""
        self._returned: set[str] = set()
        """Hosts that can be reached again, to be cleared."""
        self._thread: threading.Thread | None = None
        self._not_before_s = 0.0

    @property
    def home(self) -> str:
        """Host of its controller; empty while it does not run."""
        return self._state.home

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._state.progress

    @property
    def n_cold(self) -> int:
        """Processes that were started on a host without a warm fork server."""
        return self._launcher.n_cold

    @property
    def task_numbers(self) -> TaskNumbers:
        """Which of its members is which task."""
        return self._state.task_numbers

    # --- decisions

    def set_target(
        self, place: JobPlacement | None, *, beside: str | None = None, amounts: Sequence[TaskResources] = ()
    ) -> None:
        """Set where its tasks are to sit from now on.

        `place`: site -> (workers, servers); None: the job is to stop. `beside`: task of the job that it shares GPUs
        with. `amounts`: cores and memory of its tasks; none: no limits.
        """
        with self._state.change:
            self._state.scalings.target, self._claims.beside = place or None, beside
            self._state.amounts = list(amounts)
            self._wake()

    def repair(self, rows: Sequence[Row], tasks: Sequence[tuple[int, int]], *, balance: bool = False) -> None:
        """Replace tasks (role, number) by new processes, and rebalance blocks, once no scaling is under way.

        `rows`: role, site and count of the tasks that the job holds; they number its tasks.
        """
        with self._state.change:
            self._repairs.append(partial(self._send_repairs, list(rows), list(tasks), balance))
            self._wake()

    @property
    def target(self) -> JobPlacement | None:
        """Where its tasks are to sit: the last target or, where that failed, where they are."""
        with self._state.change:
            return self._state.scalings.target

    @property
    def settled(self) -> bool:
        """Whether its tasks are where they are to be."""
        with self._state.change:
            return self._state.scalings.settled

    def delay_start(self, seconds: float) -> None:
        """Do not start again for some seconds."""
        with self._state.change:
            self._not_before_s = time.monotonic() + seconds

    def mark_stale(self, hosts: Iterable[str]) -> None:
        """End processes of an earlier driver process on hosts before the job uses them."""
        self._launcher.stale |= {*hosts} - self._launcher.launchers - {self.home}

    def adopt(self, home: str, place: JobPlacement, *, amounts: Sequence[TaskResources] = ()) -> None:
        """Take over a job that runs already."""
        with self._state.change:
            self._state.amounts, self._state.limited = list(amounts), list(amounts)
            self._state.home = home
            self._state.scalings.note_start(place)
            self._state.scalings.target = dict(place)
            self._launcher.launchers = hosts_of(place) - {home}
            self._claims.adopt({home, *self._launcher.launchers}, place)
            self._follower.start(from_start=False)
            self._wake()

    def host_lost(self, host: str, rest: JobPlacement | None) -> int:
        """Go on with the tasks that are left (None: stop); return the last generation that is void then."""
        with self._state.change:
            if host in self._launcher.launchers or host == self.home:
                self._launcher.stale.add(host)
            self._launcher.launchers.discard(host)
            self._claims.forget(host)
            if rest is None or host == self.home:
                self._state.dead, self._state.scalings.target = True, None
            else:
                self._state.scalings.note_lost_host(host, rest)
            self._wake()
            return self._state.generation

    def host_returned(self, host: str) -> None:
        """End what may still run on a host that was reported lost."""
        with self._state.change:
            if host in self._launcher.stale:
                self._returned.add(host)
                self._wake()

    def close(self) -> None:
        """Carry out no more decisions; processes go on."""
        self._claims.close()
        with self._state.change:
            self._state.closed = True
            self._state.change.notify_all()

    @property
    def busy(self) -> bool:
        """Whether its thread lives: after `close`, what it had begun is not complete."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its thread after `close`, at most `timeout_s`."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    # --- its thread

    def _wake(self) -> None:
        if self._thread is None and not self._state.closed:
            self._thread = threading.Thread(target=self._run, name=self.task, daemon=True)
            self._thread.start()
        self._state.change.notify_all()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except AgentRefused as error:
                if error.kind != FENCED:  # the run is no longer this process'; its backend says so
                    self._failed(str(error), ended=error.kind == "over")
            except (LabkitError, OSError) as error:
                self._failed(str(error))
            except Exception as error:  # a fault of labkit ends this job, not the run
                self._failed(f"{type(error).__name__}: {error}")

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next action, and return it; None: the job is closed."""
        with self._state.change:
            while not self._state.closed:
                if self._returned:
                    return self._clear_returned
                if self._state.dead:
                    return self._end_all
                delay_s = self._start_delay_s()
                if (action := self._next_scaling(delay_s) or self._next_upkeep()) is not None:
                    return action
                self._state.change.wait(delay_s if delay_s > 0 else None)
        return None

    def _start_delay_s(self) -> float:
        """Return the seconds until the job may start; not above 0 if no start is due."""
        due = self._state.scalings.requested is None and self._state.scalings.target
        return self._not_before_s - time.monotonic() if due else 0.0

    def _next_scaling(self, delay_s: float) -> Callable[[], None] | None:
        target = self._state.scalings.target
        if target == self._state.scalings.requested or delay_s > 0:
            return None
        if target is None:
            return self._stop
        return partial(self._start if self._state.scalings.requested is None else self._place, target)

    def _next_upkeep(self) -> Callable[[], None] | None:
        """Return the next action while the target needs none: limits, repairs, or GPUs to give back."""
        scalings = self._state.scalings
        if scalings.settled and self._state.amounts != self._state.limited:
            return partial(self._resize, list(self._state.amounts))
        if scalings.settled and self._repairs:
            return self._repairs.pop(0)
        current = scalings.current or {}
        if scalings.settled and self._claims.exceed(current):
            return partial(self._claims.give_back, dict(current))
        return None

    def _resize(self, amounts: list[TaskResources]) -> None:
        with self._state.change:
            self._state.limited = amounts  # also if the order fails: the failure is reported, and not repeated
        self._client.resize(self.task_numbers.amounts(amounts))

    def _send_repairs(self, rows: Sequence[Row], tasks: Sequence[tuple[int, int]], balance: bool) -> None:
        found = [self.task_numbers.of_task(rows, role, task) for role, task in tasks]
        if members := [str(member) for member in found if member is not None]:
            self._client.replace(members)
        if balance:
            self._client.balance()

    def _start(self, place: JobPlacement) -> None:
        with_workers = (site for site, (workers, _) in place.items() if workers)
        home = next(with_workers, next(iter(place))).rpartition("/")[0]
        self._launcher.prepare(home)
        self._launcher.start(home, place, request=self._request(home, place).to_json())
        with self._state.change:
            self._state.home = home
            self._state.scalings.note_start(place)
            self._repairs.clear()
            self._state.limited = []
        self.task_numbers.clear()
        self._follower.start()
        self._launch_elsewhere(place)

    def _launch_elsewhere(self, place: JobPlacement) -> None:
        """Start a launcher on every other host that gets a task."""
        for host in sorted(hosts_of(place) - {self.home} - self._launcher.launchers):
            self._launcher.prepare(host)
            self._launcher.launch(host, place, archive=self._client.host_home(host))

    def _place(self, place: JobPlacement) -> None:
        with self._state.change:
            places = [place, *self._state.scalings.occupied()]
        self._claims.take({self.home, *self._launcher.launchers}, places)
        self._launch_elsewhere(place)
        with self._state.sending:  # the scaling may be dropped before its number is here
            scaling = self._client.place(place, strategy=self._strategy)
            with self._state.change:
                self._state.scalings.note_begin(scaling, place)

    def _stop(self) -> None:
        self._client.stop()
        with self._state.change:
            stopped = self._state.change.wait_for(
                lambda: self._state.scalings.requested is None or self._state.closed or self._state.dead, STOP_S
            )
        if not stopped:
            self._hosts.agent(self.home).stop(self._hosts.run, task=self.task)

    def members(self) -> list[MemberStatus]:
        """Return the members of the job; none before it runs; LabkitError if its home host cannot be reached."""
        return self._client.members() if self.home else []

    def fetch_from(self, home: str, *, run: str) -> str:
        """Copy the checkpoints of an earlier run of this job here; return why that failed, empty if it did not."""
        machine = self._hosts.fleet.inventory[home]
        try:
            self._backups.fetch(machine, folder=machine.path("runs", run, self.task), task=self.task)
        except (LabkitError, OSError) as error:
            return str(error)
        return ""

    def _end_all(self) -> None:
        """End all processes of the job, on the hosts that can be reached; the loss of a host is reported elsewhere."""
        hosts = {*self._launcher.launchers, self.home} - {""}
        self._launcher.stale |= hosts
        self._launcher.try_to_clear(host for host in hosts if self._hosts.up[host])
        with self._state.change:
            self._state.scalings.note_end()
            self._state.dead, self._state.home = False, ""
            self._state.new_generation()
            self._launcher.launchers.clear()
            self._claims.forget()

    def _clear_returned(self) -> None:
        with self._state.change:
            returned, self._returned = self._returned, set()
        self._launcher.try_to_clear(returned)

    def _failed(self, why: str, *, ended: bool = False) -> None:
        """Report that a decision could not be carried out; a job that runs goes on as it is.

        `ended`: the run is over on a host.
        """
        with self._state.change:
            if self._state.dead or self._state.closed:
                return
            running, generation = self._state.scalings.requested is not None, self._state.generation
            self._state.scalings.target = self._state.scalings.requested
        if running:
            update = JobUpdate("dropped", self.progress.steps, why=why, generation=generation)
        else:
            what, host = ("ended" if ended else "failed"), self._launcher.host
            update = JobUpdate(
                what, self.progress.saved, why=why, host=host, generation=generation, cause=Cause.ERROR
            )  # fmt: skip
        self._on_update(self.number, update)
