"""One job on the testbed: a thread that brings about what was decided, and tells what happens."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, Final

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.controller.placement import JobPlacement
from labkit.elastic.forkserver.place import SWITCH
from labkit.elastic.process import causes
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.errors import AgentError, AgentGone, AgentRefused, AgentTimeout
from labkit.testbed.errors import HostError
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.amounts import Given
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.gpu_claims import Asks, AsksOf, Claims
from labkit.testbed.run.job_events import event_of, result_of
from labkit.testbed.run.progress import JobUpdate, Progress
from labkit.testbed.run.task_of_member import Row, TaskNumbers

EVENTS: Final = "job/events.jsonl"
LOG_TAIL: Final = 500
"""Bytes of the log of a job that died without a word."""

STOP_S: Final = 60.0
"""A job that is told to stop and does not is ended after so long."""

START_S: Final = 120.0
"""For a job's process to begin to listen."""

UNPACK_S: Final = 120.0
UNPACK: Final = 'exec 3<"$1" && rm -f -- "$1" && exec tar -xf - <&3'
"""Unpacks a file that is gone whatever happens meanwhile."""

NOTHING_THERE: Final = ("unknown_run", "unknown_task", "ended", "over")
ENV: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Of a job's process and its launchers: GPUs are seen by workers alone, each of which gets its own."""

Wanted = Callable[[str, JobPlacement], dict[str, Any]]
"""The job.json of a start with a home and a place."""

Tell = Callable[[int, JobUpdate], None]


class RemoteJob:
    """A job of a run.

    `want` says at any time where its tasks are to sit; a thread of its own sees to it. What happens is told as
    `JobUpdate` in that thread or another: began, scaled, progressed, and at the end done, or failed (the job can be
    started again).

    Parameters
    ----------
    number : int
        Of the job.
    hosts : AgentPool
        Who starts processes.
    backups : CheckpointCache
        Where checkpoints are kept.
    wanted : callable
        What to write into job.json.
    n_steps : int
        Updates after which it is done.
    tell : callable
        Hears (number, what happened).
    strategy : str
        How it is rescaled.
    hear : callable
        Hears every event of the job's elastic runtime too, as it comes.
    gpus : callable
        Which GPUs a place needs on a host.
    """

    def __init__(
        self,
        number: int,
        *,
        hosts: AgentPool,
        backups: CheckpointCache,
        wanted: Wanted,
        n_steps: int,
        tell: Tell,
        strategy: str = "handover",
        hear: Callable[[dict[str, Any]], None] = lambda _: None,
        gpus: AsksOf = lambda _host, _place: [],
    ) -> None:
        self.number, self.task = number, f"job-{number}"
        self.home = ""
        """The host of its controller; empty while it does not run."""
        self.progress = Progress()
        self.seating = TaskNumbers()
        """Which of its members is which task."""
        self._hosts, self._backups, self._wanted, self._tell_of = hosts, backups, wanted, tell
        self._n_steps, self._strategy, self._hear_of = n_steps, strategy, hear
        self._claims = Claims(self.task, hosts=hosts, asks=gpus, wanted=lambda: self._want is not None)
        self._change = threading.Condition()
        self._want: JobPlacement | None = None
        self._have: JobPlacement | None = None
        """What its process was asked for last."""
        self._amounts: list[Given] = []
        """What its tasks are to have."""
        self._limited: list[Given] | None = []
        """What its process was told of that last; None: some of its processes may not know."""
        self._repairs: list[Callable[[], None]] = []
        """What is to be done beside that, in order."""
        self._sits: JobPlacement | None = None
        """Where it is, while a scaling is under way."""
        self._asked: dict[int, JobPlacement] = {}
        """Scalings under way, by number."""
        self._asking = threading.Lock()
        self._closed = self._dead = False
        self._life = 0
        """Counts starts."""
        self._launchers: set[str] = set()
        self._uncleared: set[str] = set()
        """Hosts on which something of an earlier life may still run."""
        self._back: set[str] = set()
        self._fetching = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before_s = 0.0
        self._at = ""
        """The host that something is begun on."""

    # --- what others say

    def want(self, place: JobPlacement | None, *, beside: str | None = None, amounts: Sequence[Given] = ()) -> None:
        """Let its tasks sit there from now on, beside those of a job that it shares GPUs with; None: let it stop.

        `amounts`: what they are to have of cores and memory; none: no limits.
        """
        with self._change:
            self._want, self._claims.beside = place or None, beside
            self._amounts = list(amounts)
            self._wake()

    def repair(self, rows: Sequence[Row], tasks: Sequence[tuple[int, int]], *, balance: bool = False) -> None:
        """Let others take the places of tasks (role, number), and blocks be spread anew, once nothing is under way.

        `rows`: those that the job holds, by which its tasks are numbered.
        """
        with self._change:
            self._repairs.append(partial(self._mend, list(rows), list(tasks), balance))
            self._wake()

    @property
    def place(self) -> JobPlacement | None:
        """Where its tasks are to sit: what was wanted last or, where that cannot be had, where they are."""
        with self._change:
            return self._want

    def rest(self, seconds: float) -> None:
        """Do not start again before that time has passed."""
        with self._change:
            self._not_before_s = time.monotonic() + seconds

    def doubt(self, hosts: Iterable[str]) -> None:
        """End what may run of it on hosts before it uses them: of another process, which cannot tell any more."""
        self._uncleared |= {*hosts} - self._launchers - {self.home}

    def adopt(self, home: str, place: JobPlacement, *, amounts: Sequence[Given] = ()) -> None:
        """Go on with a job that runs already."""
        with self._change:
            self._amounts, self._limited = list(amounts), list(amounts)
            self.home, self._have, self._want, self._sits = home, dict(place), dict(place), dict(place)
            self._launchers = {site.rpartition("/")[0] for site, counts in place.items() if any(counts)} - {home}
            self._claims.adopt({home, *self._launchers}, place)
            self._follow(caught_up=False)
            self._wake()

    def host_lost(self, host: str, rest: JobPlacement | None) -> int:
        """Go on with the tasks that are left; None: none are. Return the last start of which nothing counts then."""
        with self._change:
            if host in self._launchers or host == self.home:
                self._uncleared.add(host)
            self._launchers.discard(host)
            self._claims.forget(host)
            if rest is None or host == self.home:
                self._dead, self._want = True, None
            else:
                self._want = dict(rest)
                self._sits = {site: n for site, n in (self._sits or {}).items() if site.rpartition("/")[0] != host}
            self._wake()
            return self._life

    def host_back(self, host: str) -> None:
        """End what may still run on a host that was taken for dead."""
        with self._change:
            if host in self._uncleared:
                self._back.add(host)
                self._wake()

    def close(self) -> None:
        """Bring nothing about any more; what runs goes on."""
        self._claims.close()
        with self._change:
            self._closed = True
            self._change.notify_all()

    @property
    def busy(self) -> bool:
        """Whether something is being brought about, or may be: after `close` only what had begun before."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its thread after `close`, at most for so long."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    # --- its thread

    def _wake(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name=self.task, daemon=True)
            self._thread.start()
        self._change.notify_all()

    def _run(self) -> None:
        while (todo := self._next()) is not None:
            try:
                todo()
            except (LabkitError, OSError) as error:
                self._failed(str(error), ended=isinstance(error, AgentRefused) and error.kind == "over")
            except Exception as error:  # a fault of ours ends this job, not the run
                self._failed(f"{type(error).__name__}: {error}")

    def _next(self) -> Callable[[], None] | None:
        """Wait until there is something to bring about, and return it; None: nothing any more."""
        with self._change:
            while not self._closed:
                if self._back:
                    return self._clear_returned
                if self._dead:
                    return self._end_all
                rests_s = self._not_before_s - time.monotonic() if self._have is None and self._want else 0.0
                if self._want != self._have and rests_s <= 0:
                    return self._todo(self._want)
                if self._is_to_resize:
                    return partial(self._resize, list(self._amounts))
                if self._repairs and self._is_settled:
                    return self._repairs.pop(0)
                if self._want == self._have and self._holds_too_much:
                    return partial(self._claims.give_back, dict(self._sits or {}))
                self._change.wait(rests_s if rests_s > 0 else None)
        return None

    def _todo(self, want: JobPlacement | None) -> Callable[[], None]:
        if want is None:
            return self._stop
        return partial(self._start if self._have is None else self._place, want)

    @property
    def _is_to_resize(self) -> bool:
        """Whether its processes, all of which are there, are to have other cores and memory."""
        return self._is_settled and self._amounts != self._limited

    @property
    def _is_settled(self) -> bool:
        """Whether it runs as it is wanted, and no scaling is under way."""
        return self._have is not None and self._want == self._have and not self._asked

    def _resize(self, amounts: list[Given]) -> None:
        with self._change:
            self._limited = amounts  # also where it fails: that is told, and not tried again and again
        self._ask(do="resize", members=self.seating.amounts(amounts))

    def _mend(self, rows: Sequence[Row], tasks: Sequence[tuple[int, int]], balance: bool) -> None:
        members = [str(found) for role, task in tasks if (found := self.seating.of_task(rows, role, task)) is not None]
        if members:
            self._ask(do="replace", members=members)
        if balance:
            self._ask(do="balance")

    @property
    def _holds_too_much(self) -> bool:
        """Whether GPUs can be given back that no task sits on any more."""
        idle = self._have is not None and not self._asked
        return idle and self._claims.exceed(self._sits or {})

    def _start(self, place: JobPlacement) -> None:
        home = self._at = next((site for site, (workers, _) in place.items() if workers), next(iter(place))).rpartition(
            "/"
        )[0]
        self._clear(home)
        self._restore(home)
        job = self._wanted(home, place)
        self._begin(home, place, module="labkit.testbed.run.job_process", files={"job.json": json.dumps(job).encode()})
        with self._change:
            self.home, self._have, self._sits = home, dict(place), dict(place)
            self._asked.clear()
            self._repairs.clear()
            self._limited = []
        self.seating.clear()
        self._follow()
        self._admit(place)

    def _restore(self, home: str) -> None:
        """Bring the newest checkpoint to a host that has none, or an older one."""
        brought = self._backups.bring(self._hosts.fleet.inventory[home], task=self.task)
        if brought:
            self._once(home, ["/bin/sh", "-c", UNPACK, "sh", f"{self._hosts.agent(home).hello['folder']}/{brought}"])

    def _once(self, host: str, argv: list[str]) -> None:
        """Run a short program in the folder of the task, and wait for its end."""
        agent, run = self._hosts.agent(host), self._hosts.run
        since = max((int(said["last_event"]) for said in agent.list() if said["run"] == run), default=0)
        agent.start(run, task=self.task, argv=argv, lease_s=self._hosts.lease_s)
        watching = agent.watch(run, since=since)
        while True:
            event = watching.next(timeout_s=UNPACK_S)
            if event.get("task") == self.task and event["kind"] == "ended":
                break
        if event.get("code") != 0:
            raise HostError(f"host {host}: {argv[0]} ended with {event.get('how') or event.get('code')}.")

    def _admit(self, place: JobPlacement) -> None:
        """Start a launcher on every other host that gets a task."""
        others = {site.rpartition("/")[0] for site, counts in place.items() if any(counts)} - {self.home}
        for host in sorted(others - self._launchers):
            self._launch(host, place)

    def _launch(self, host: str, place: JobPlacement) -> None:
        self._at = host
        self._clear(host)
        said = self._ask(do="host_home", host=host)
        archive = base64.b64decode(said["archive"])
        self._begin(host, place, module="labkit.elastic.process.host_launcher", files={"home.tar": archive})
        self._launchers.add(host)

    def _begin(self, host: str, place: JobPlacement, *, module: str, files: dict[str, bytes]) -> None:
        """Start a module of the labkit that the agent's bridge came from, with its GPUs, unless it runs already."""
        agent = self._hosts.agent(host)
        path = agent.bridge.get("path")
        switch = {SWITCH: os.environ[SWITCH]} if SWITCH in os.environ else {}
        env = {**ENV, **switch, **({} if path is None else {"PYTHONPATH": str(path)})}
        argv = [str(agent.bridge["python"]), "-m", module, "."]

        def begin(gpus: Asks) -> None:
            agent.start(
                self._hosts.run, task=self.task, argv=argv, env=env, files=files, lease_s=self._hosts.lease_s,
                gpus=gpus, beside=self._claims.beside,
            )  # fmt: skip

        try:
            self._claims.start(host, place, begin)
        except AgentRefused as error:
            if error.kind != "exists":
                raise

    def _place(self, place: JobPlacement) -> None:
        with self._change:
            places = [place, self._sits or {}, *self._asked.values()]
        self._claims.take({self.home, *self._launchers}, places)
        self._admit(place)
        seats = {site: list(counts) for site, counts in place.items()}
        with self._asking:  # it may have come to nothing before the answer is here
            said = self._ask(do="place", place=seats, strategy=self._strategy)
            with self._change:
                self._have = self._asked[int(said["scaling"])] = dict(place)

    def _stop(self) -> None:
        self._ask(do="stop")
        with self._change:
            gone = self._change.wait_for(lambda: self._have is None or self._closed or self._dead, STOP_S)
        if not gone:
            self._hosts.agent(self.home).stop(self._hosts.run, task=self.task)

    def members(self) -> list[dict[str, Any]]:
        """Return name, role, site, pid and whether it has joined of each member of the job that runs; none before."""
        return list(self._ask(do="status")["members"]) if self.home else []

    def _ask(self, **order: Any) -> dict[str, Any]:
        """Ask the job's process on its home host for something.

        Raises
        ------
        LabkitError
            If it refuses, or cannot be reached.
        """
        said = self._hosts.agent(self.home).tell(self._hosts.run, task=self.task, message=order, timeout_s=START_S)
        if "error" in said:
            raise HostError(f"job {self.number} on host {self.home}: {said['error']}")
        return dict(said)

    def _end_all(self) -> None:
        """Be no more, on whatever hosts are still there; who said that a host is lost has told what that means."""
        for host in sorted({*self._launchers, self.home} - {""}):
            self._uncleared.add(host)
            if self._hosts.up[host]:
                with suppress(AgentError, HostError):
                    self._clear(host)
        with self._change:
            self._have, self._dead, self.home = None, False, ""
            self._life += 1
            self._launchers.clear()
            self._claims.forget()

    def _clear_returned(self) -> None:
        """End what is left on hosts that are back."""
        with self._change:
            back, self._back = self._back, set()
        for host in sorted(back):
            with suppress(AgentError, HostError):  # gone again; it is tried once more before the host is used
                self._clear(host)

    def _clear(self, host: str) -> None:
        """End what is left of the job on a host from before it was given up there."""
        if host not in self._uncleared:
            return
        try:
            self._hosts.agent(host).stop(self._hosts.run, task=self.task, grace_s=0.5)
        except AgentRefused as error:
            if error.kind not in NOTHING_THERE:
                raise
        self._uncleared.discard(host)

    def _failed(self, why: str, *, ended: bool = False) -> None:
        """Tell that what was decided cannot be had; where the job still runs, it goes on as it is.

        `ended`: a host will have nothing more of the run.
        """
        with self._change:
            if self._dead or self._closed:
                return
            self._want = self._have
            running, life = self._have is not None, self._life
        if running:
            told = JobUpdate("dropped", self.progress.steps, why=why, life=life)
        else:
            what = "ended" if ended else "failed"
            told = JobUpdate(what, self.progress.saved, why=why, host=self._at, life=life, cause=Cause.ERROR)
        self._tell_of(self.number, told)

    # --- what the job tells

    def _follow(self, *, caught_up: bool = True) -> None:
        self.progress = Progress(steps=self.progress.steps, saved=self.progress.saved, n_steps=self._n_steps)
        self._life += 1
        target, arguments = self._hear, (self.home, caught_up, self._life)
        threading.Thread(target=target, args=arguments, name=f"{self.task} events", daemon=True).start()

    def _hear(self, home: str, caught_up: bool, life: int) -> None:
        """Follow the events of the job until it has ended, over as many connections as that takes.

        What has happened before this process came is not told again, only what it came to. A job whose host was lost
        is another one when it starts again: what its old host says, should it come back, is not heard.
        """
        offset, known = 0, 0
        while self._lives(life):
            agent = None
            try:
                agent = self._hosts.agent(home)
                self._await_start(agent)
                if not caught_up:
                    known = agent.read(self._hosts.run, task=self.task, file=EVENTS, n_bytes=1).size
                lines = agent.follow(self._hosts.run, task=self.task, file=EVENTS, offset=offset)
                for line in takewhile(lambda _: self._lives(life), lines):
                    offset = lines.last
                    self._heard(event_of(line), quiet=offset < known)
                    caught_up = caught_up or offset >= known
                self._ended(home, life)
                return
            except (AgentGone, AgentTimeout, HostError):
                self._lost(home, agent, life=life)
            except (LabkitError, OSError, ValueError) as error:
                blamed = "" if isinstance(error, AgentRefused) and error.kind in NOTHING_THERE else home
                self._over(
                    JobUpdate("failed", self.progress.saved, why=str(error), host=blamed, cause=Cause.ERROR), life
                )
                return

    def _lost(self, home: str, agent: Agent | None, *, life: int) -> None:
        """Let go of a connection that broke, and wait a little."""
        if agent is not None:
            self._hosts.lost(home, agent)
        with self._change:
            self._change.wait_for(lambda: not self._lives(life), 0.5)

    def _lives(self, life: int) -> bool:
        """Return whether what a start tells is to be heard."""
        return life == self._life and not self._closed and not self._dead

    def _heard(self, event: dict[str, Any], *, quiet: bool) -> None:
        told = self.progress.note(event)
        self.seating.note(event)
        if event["event"] in ("scaled", "dropped"):
            self._came_of(int(event["scaling"]), sits=event["event"] == "scaled")
        if quiet:
            return
        if event["event"] in ("started", "scaled") and self._amounts:
            with self._change:
                self._limited = None  # there are processes that know nothing of it
                self._change.notify_all()
        self._hear_of(event)
        if event["event"] == "saved" and self.progress.saved < self._n_steps:
            threading.Thread(target=self._back_up, daemon=True).start()
        if told is not None:
            self._tell_of(self.number, replace(told, life=self._life))

    def _came_of(self, scaling: int, *, sits: bool) -> None:
        """Note what came of a scaling; where it was the last one asked for and came to nothing, all is as it was."""
        with self._asking, self._change:
            place = self._asked.pop(scaling, None)
            if place is not None and sits:
                self._sits = place
            elif place is not None and place == self._have and not self._asked:
                self._want = self._sits if self._want == self._have else self._want
                self._have = self._sits
            self._change.notify_all()  # GPUs may be due to be given back

    def _back_up(self) -> None:
        home = self.home
        try:
            self._fetch(home)
        except (LabkitError, OSError) as error:
            if self.home == home and not self._closed:
                unsaved = JobUpdate("unsaved", self.progress.steps, why=f"no copy here: {error}", life=self._life)
                self._tell_of(self.number, unsaved)

    def _fetch(self, home: str) -> None:
        machine = self._hosts.fleet.inventory[home]
        folder = machine.path("runs", self._hosts.run, self.task)
        with self._fetching:
            self._backups.fetch(machine, folder=folder, task=self.task)

    def fetch_from(self, home: str, *, run: str) -> str:
        """Bring the checkpoints of an earlier run of this job here; return why that fails, and what is here stays."""
        machine = self._hosts.fleet.inventory[home]
        try:
            self._backups.fetch(machine, folder=machine.path("runs", run, self.task), task=self.task)
        except (LabkitError, OSError) as error:
            return str(error)
        return ""

    def _await_start(self, agent: Agent) -> None:
        """Wait until the job answers, or has ended: the events of a start before it have another name then."""
        with suppress(AgentRefused):
            agent.tell(self._hosts.run, task=self.task, message={"do": "status"}, timeout_s=START_S)

    def _ended(self, home: str, life: int) -> None:
        """Tell how it ended: done, stopped, or failed."""
        if not self._lives(life):
            return
        result = self._result(home)
        steps = float(result["steps"] or 0)
        if result["failure"]:
            own = bool(result.get("own"))
            cause = causes.read(result.get("cause"))
            failed = JobUpdate("failed", self.progress.saved, why=result["failure"], host=home, own=own, cause=cause)
            self._over(failed, life)
        elif steps >= self._n_steps:
            self._over(JobUpdate("done", steps), life)
        else:
            self.progress.saved = int(steps)
            self._fetch(home)
            self._over(JobUpdate("stopped", steps), life)

    def _result(self, home: str) -> dict[str, Any]:
        """Return what the job has written at its end; where it could not, the end of its log as its failure."""
        agent, run = self._hosts.agent(home), self._hosts.run
        try:
            return result_of(agent.read(run, task=self.task, file="result.json").data)
        except AgentRefused as error:
            if error.kind != "no_file":
                raise
        size = agent.read(run, task=self.task, file="log", n_bytes=1).size
        tail = agent.read(run, task=self.task, file="log", offset=max(size - LOG_TAIL, 0)).data.decode(errors="replace")
        why = f"it died: {tail.strip()[-LOG_TAIL:] or 'its log is empty'}"
        return {"steps": None, "failure": why, "cause": causes.told(self._died_of(agent))}

    def _died_of(self, agent: Agent) -> Cause:
        """Return why its process is gone, which has left no result, as its agent saw it."""
        tasks: Mapping[str, Any] = next((said["tasks"] for said in agent.list(self._hosts.run)), {})
        how = str(tasks.get(self.task, {}).get("how") or "")
        name = how.removeprefix("killed by ")
        if name == how:
            return Cause.ERROR if how.startswith("exited with") else Cause.UNKNOWN
        number = getattr(signal.Signals, name, None)
        return Cause.KILLED if number is None else causes.of_exit(-number)

    def _over(self, told: JobUpdate, life: int) -> None:
        """Note that it runs no more, unless it was given up and perhaps started again meanwhile."""
        with self._change:
            if not self._lives(life):
                return
            self._have, self._dead, self.home = None, False, ""
            self._life += 1
            self._claims.forget()
            self._uncleared |= self._launchers  # they end by themselves, but perhaps not before it starts again there
            self._launchers.clear()
            if told.what != "stopped":
                self._want = None
            elif self._want is not None:
                told = replace(told, why="its host ended it, as when a lease is over; it starts again from that step")
            self._change.notify_all()
        self._tell_of(self.number, replace(told, life=life))
