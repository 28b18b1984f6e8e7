"""The process of a job's controller: it carries out what the state machine decides, and tells it what happens.

Its parts: `MemberProcesses` starts and ends members and has their connections, `RemoteHosts` the launchers of other
hosts, `CheckpointKeeper` writes and loads checkpoints, `ResourceUse` measures and limits cores and memory, and
`ClientRequests` answers clients. All run in the thread of one `EventLoop`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO, assert_never

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.checkpoint_keeper import CheckpointKeeper
from labkit.elastic.controller.connections import (
    CLIENT,
    Admission,
    ControllerRuntime,
    EventLoop,
    NewConnection,
    Receivers,
)
from labkit.elastic.controller.controller_state import (
    VERSION,
    AskedScaling,
    Command,
    End,
    JobTerms,
    Keep,
    Load,
    Member,
    Note,
    Over,
    SavedController,
    Start,
    Tell,
)
from labkit.elastic.controller.job_files import (
    LOCK,
    LOCKED,
    STATE,
    EventWriter,
    JobConfig,
    LeaseJournal,
    StateFile,
    now,
    records,
    versions_of_losses,
)
from labkit.elastic.controller.losses import StepLosses, StepMetrics, encoded
from labkit.elastic.controller.member_processes import MemberProcesses, RemoteHosts, ResourceUse
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.causes import FAILED, NO_MEMORY, name_of
from labkit.elastic.process.credentials import Credentials, Secrets
from labkit.elastic.process.limits import EVERY_S
from labkit.elastic.process.local_members import end_members
from labkit.elastic.protocol.blocks import TENSOR
from labkit.elastic.protocol.messages import clients, reports
from labkit.elastic.protocol.messages.codec import JobFileError, MessageError, decode, encode
from labkit.elastic.protocol.program import CONTROLLER_SOCKET, Spec
from labkit.elastic.protocol.sites import HOST, Refusals
from labkit.elastic.transport import Access, Address, Channel, Lease, Listener, Message, TransportError, private_folder
from labkit.system.oom import is_memory
from labkit.system.proc import wait_for_end

GRACE_LEASES: Final = 0.1
"""Part of a lease in which a member may be found dead before it counts as one that cannot be reached."""
LOOK_LEASES: Final = 0.25
"""Part of a lease between two looks whether the job's folder is still there."""
TICKS_OF_A_LEASE: Final = 12
"""How often leases of samples are checked within one lease."""


def job_terms(spec: Spec, config: JobConfig) -> JobTerms:
    """Return the constants of a job for the state machine."""
    return JobTerms(
        sizes=[n for _, n in spec.extents],
        n_shards=spec.n_shards,
        n_steps=spec.n_steps,
        save_every=config.save_every,
        restarts=config.restarts,
        restarts_within_s=config.restarts_within_s,
        standby=config.standby,
        sync=spec.sync,
        n_samples=spec.n_samples,
        batch=spec.batch,
        seed=spec.seed,
        lease_s=Lease(spec.lease_s).base_s,
        sites={site.name: site.host for site in spec.places.values()},
        tensors=spec.layout.tensors if spec.partition == TENSOR else (),
    )


class ControllerProcess:
    """A running job.

    `folder`: of the job, which only its owner can enter. `secrets`: of a job whose processes talk over TCP.
    """

    def __init__(self, folder: Path, *, secrets: Secrets | None = None) -> None:
        self._folder, self._spec, self._config = folder, Spec.load(folder), JobConfig.load(folder)
        journal = None if self._spec.sync else LeaseJournal(folder).write
        self._loop, self._events, self._state_file = EventLoop(), EventWriter(folder), StateFile(folder)
        self._machine = Controller(job_terms(self._spec, self._config), reassign=reassign, journal=journal)
        runtime = ControllerRuntime(
            folder, self._spec, Lease(self._spec.lease_s), self._loop, self._events, self._machine,
            execute=self._execute, remember=self._remember,
        )  # fmt: skip
        self._runtime, self._lease = runtime, runtime.lease
        reach = self._spec.reach
        self._credentials = Credentials(folder, reach=reach, secrets=secrets)
        self._processes = MemberProcesses(runtime, self._credentials)
        self._resources = ResourceUse(runtime, self._processes)
        self._processes.observers.append(self._resources)
        self._hosts = RemoteHosts(runtime, self._processes, self._resources)
        self._checkpoints = CheckpointKeeper(runtime, self._processes)
        self._clients = ClientRequests(runtime, self._processes, self._resources)
        self._losses, self._metrics = StepLosses(self._spec.n_shards), StepMetrics()
        self._over: Over | None = None
        self._next_tick_s = self._next_look_s = 0.0
        self._inode, self._removed = os.stat(folder).st_ino, ""
        self._listeners = self._listen(reach.network)

    def _listen(self, network: str) -> list[Listener]:
        """Listen for clients at a socket in the folder of the job, and for members on its network."""
        (self._folder / CONTROLLER_SOCKET).unlink(missing_ok=True)  # of a controller that died
        refused = Refusals(lambda **columns: self._loop.post(self._on_refused, columns))
        receivers = Receivers(
            opened=self._on_opened, closed=self._on_closed, reported=self._on_report,
            copied=self._checkpoints.on_copy, asked=self._clients.on_request, hosted=self._hosts.on_report,
            refused=refused,
        )  # fmt: skip
        admission = Admission(network, launchers=self._processes.remote, loop=self._loop, receivers=receivers)
        terms: dict[str, Any] = {"welcome": admission, "lease": self._lease, "refused": refused}
        gate = self._credentials.gate(**terms)  # a process that connects here may ask for its address
        local = Listener(Address.parse(f"unix:{self._folder / CONTROLLER_SOCKET}"), access=Access(), **terms)
        return [listener for listener in (local, gate) if listener is not None]

    # --- the loop

    def run(self) -> None:
        """Run the job to its end.

        If this process fails, members continue to train and another controller takes over: the exit code says so, and
        controller.log why. If it fails before the job has begun, no member is left behind. Raise JobFileError if the
        state that the last controller left cannot be used; no other controller could take over either.
        """
        try:
            self._run()
        except JobFileError:
            raise
        except BaseException as error:
            if isinstance(error, Exception) and self._state_file.exists:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(NO_MEMORY if is_memory(error) else FAILED)
            for name in self._processes.running():
                self._processes.launcher(name).kill(name)
            self._hosts.end()
            raise

    def _run(self) -> None:
        if self._config.parent:
            threading.Thread(target=self._watch, args=(self._config.parent,), daemon=True).start()
        self._begin()
        while self._over is None or self._processes.running():
            call = self._loop.next(timeout_s=self._pause_s())
            if call is not None:
                self._machine.job.now_s = time.monotonic()
                call()
                del call  # it may hold the copy of a block
            if not self._spec.sync:
                self._tick()
            self._resources.measure()
            self._look_at_folder()
        self._events.write("over", self._verdict())
        self._hosts.end()
        for listener in self._listeners:
            listener.close()
        self._credentials.close()
        self._checkpoints.close()
        self._events.close()

    def _pause_s(self) -> float:
        """Return the seconds until something may be due."""
        look_s = min(EVERY_S, self._spec.measure_every_s or EVERY_S, self._lease.base_s * LOOK_LEASES)
        return look_s if self._spec.sync else min(look_s, self._lease.base_s / TICKS_OF_A_LEASE)

    def _verdict(self) -> dict[str, Any]:
        over = self._over or Over()
        failure = over.failure or self._removed
        return {"failure": failure, "cause": name_of(over.cause if over.failure else Cause.ERROR) if failure else None}

    def _look_at_folder(self) -> None:
        """End the job if its folder was removed: with its last state and its events, in a new folder of that name."""
        now_s = time.monotonic()
        if self._removed or self._over is not None or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + self._lease.base_s * LOOK_LEASES
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._folder).st_ino == self._inode:
                return
        self._removed = f"the folder {self._folder} was removed while the job trained, so it was ended"
        try:
            private_folder(self._folder)
            self._spec.save(self._folder)
            self._events.restore(self._folder)
        except (OSError, TransportError) as error:
            self._removed += f", and its last state is lost: {error}"
            self._execute(self._machine.give_up(self._removed))
            return
        self._removed += "; its last state was saved in a new one"
        self._execute(self._machine.stop(save=True))

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + self._lease.base_s / TICKS_OF_A_LEASE
            self._execute(self._machine.tick(self._processes.connected(), now_s=now_s))

    def _watch(self, parent: int) -> None:
        """End the job when the process ends that started it; in a thread of its own."""
        wait_for_end(parent)
        self._loop.post(self._on_parent_ended)

    def _on_parent_ended(self) -> None:
        self._execute(self._machine.stop())

    # --- the beginning

    def _begin(self) -> None:
        if self._state_file.exists:
            self._take_over(self._state_file.read(self._spec))
            return
        if any(self._folder.glob("*-*.log")):  # a controller died before its first state; new members get their names
            end_members(self._folder, timeout_s=self._lease.base_s)
        config = self._config
        if config.differs:
            self._events.write("differs", {"from": config.differs})
        for line in config.notices:
            self._events.write("told", {"what": line})
        self._execute(self._machine.start(place=config.place))

    def _take_over(self, state: SavedController) -> None:
        journal = [] if self._spec.sync else records(self._folder)
        heard = set() if self._spec.sync else versions_of_losses(self._folder)
        self._processes.adopt(state.processes)
        self._clients.scalings.update((one.id, one.number) for one in state.asked)
        names = [path.stem for path in self._folder.glob("*-*.log")]  # the state may lack processes started last
        self._execute(
            self._machine.take_over(state.machine, names=names, records=journal, heard=heard, now_s=time.monotonic())
        )
        self._processes.await_adopted()
        self._hosts.expect_all()

    def _remember(self) -> None:
        asked = tuple(AskedScaling(*row) for row in self._clients.scalings.items())
        state = SavedController(VERSION, self._machine.state(), self._processes.state(), asked)
        try:
            self._state_file.write(state)
        except OSError as error:
            self._events.write("unwritten", {"what": STATE, "why": str(error)})

    # --- what arrives

    def _on_opened(self, connection: NewConnection) -> None:
        if connection.hello.role not in (HOST, CLIENT):  # their next message names members, or a request
            self._processes.on_opened(connection)

    def _on_closed(self, name: str, channel: Channel) -> None:
        self._checkpoints.on_closed(name)
        if not self._hosts.on_closed(name, channel):
            self._processes.on_closed(name, channel)

    def _on_refused(self, columns: Mapping[str, Any]) -> None:
        self._events.write("refused", {"name": "controller", **columns})

    def _on_report(self, name: str, report: reports.Report, when: float, *, late: bool = False) -> None:
        if isinstance(report, reports.TransferUnconfirmed) and not late and self._processes.is_running(report.owner):
            self._report_later(name, report, when)
            return
        if isinstance(report, reports.ShardLosses):
            self._on_losses(report, when)
            return
        if isinstance(report, reports.BlockCopied):
            self._checkpoints.on_copied(name, report)
            return
        if isinstance(report, reports.CopyLate):
            self._checkpoints.on_late(report)
        if report.EVENT and not (isinstance(report, reports.UpdateDone) and report.again):
            self._events.write(report.EVENT, {"name": name, **reports.columns_of(report)}, when=when)
        self._execute(self._machine.reported(name, report))

    def _report_later(self, name: str, report: reports.Report, when: float) -> None:
        """Handle a report after a moment: its cause may be the death of a process, whose end says more."""
        handle = partial(self._on_report, name, report, when, late=True)
        timer = threading.Timer(self._lease.base_s * GRACE_LEASES, self._loop.post, (handle,))
        timer.daemon = True
        timer.start()

    def _on_losses(self, report: reports.ShardLosses, when: float) -> None:
        """Write the loss of a step, and its metrics, once those of all its logical shards are known."""
        self._metrics.add(report.version, report.metrics)
        try:
            mean = self._losses.add(report.version, report.losses, weights=report.weights, again=report.again)
        except InputError as error:
            self._runtime.give_up(str(error))
            return
        if mean is None:
            return
        self._events.write("loss", {"version": report.version, "loss": encoded(mean)}, when=when)
        values = {name: encoded(value) for name, value in self._metrics.take(report.version).items()}
        if values:
            self._events.write("metrics", {"version": report.version, "values": values}, when=when)

    # --- commands

    def _execute(self, commands: list[Command]) -> None:
        """Start processes, write the state for the next controller, and then carry out the other commands."""
        if not commands:
            return
        gently = self._machine.job.phase == "training" and self._machine.requests.current is not None
        for command in commands:
            if isinstance(command, Start):
                self._hosts.expect_for(self._processes.sites[command.site])
                self._processes.start(command, gently=gently)
        fault.at("controller.started")
        self._remember()
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Start():
                pass  # done already
            case End():
                self._processes.end(command)
            case Tell():
                fault.at(f"controller.tell.{type(command.order).__name__}")
                self._processes.send(command.to, command.order)
            case Load():
                self._checkpoints.load(command)
            case Keep():
                self._checkpoints.keep(command)
            case Note():
                self._note(command)
            case Over():
                self._over = command

    def _note(self, note: Note) -> None:
        columns = dict(note.columns)
        when = now()
        if note.event == "promoted":
            columns["seconds"] = when - (self._processes.left_at(columns["from"]) or when)
        self._events.write(note.event, columns, when=when)
        fault.at(f"controller.{note.event}")


def _lock(file: TextIO, folder: Path) -> None:
    """Lock the job for this controller, or exit: one that was stopped and continues must find its state unchanged."""
    until, pause = time.monotonic() + Spec.load(folder).lease_s, threading.Event()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                file.seek(0)
                sys.exit(f"process {file.read().strip()} is the controller of the job in {folder}: end it first.")
            pause.wait(0.1)
        else:
            break
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


REQUESTS_KNOWN: Final = 64
"""Requests whose repetition is recognised."""


class ClientRequests:
    """Answers requests."""

    def __init__(self, runtime: ControllerRuntime, processes: MemberProcesses, resources: ResourceUse) -> None:
        self._runtime, self._processes, self._resources = runtime, processes, resources
        self._machine = runtime.machine
        # number of the scaling that each request asked for, by the id that the client gave to the request
        self.scalings: dict[str, int] = {}

    def on_request(self, channel: Channel, message: Message) -> None:
        """Carry out a request and answer it; the client may have disconnected meanwhile."""
        try:
            answer = self._answer(decode(clients.ClientRequest, message.meta))
        except (InputError, MessageError) as error:
            with contextlib.suppress(TransportError):
                channel.refuse(message, str(error))
        else:
            with contextlib.suppress(TransportError):
                channel.reply(message, meta=encode(answer))

    def _answer(self, request: clients.ClientRequest) -> clients.ClientAnswer:
        match request:
            case clients.GetStatus():
                return self._status()
            case clients.StopJob():
                self._runtime.execute(self._machine.stop(save=request.save))
                return clients.Accepted()
            case clients.ResizeMembers():
                self._resources.resize(request.limits)
                return clients.Accepted()
            case clients.ScaleJob() | clients.BalanceJob():
                return clients.ScalingAccepted(self._scaling(request))
            case _:
                assert_never(request)

    def _scaling(self, request: clients.ScaleJob | clients.BalanceJob) -> int:
        """Return the number of a scaling; one that a client repeats on another connection is carried out once."""
        if request.id not in self.scalings:
            commands = self._scale(request)
            known = dict(list(self.scalings.items())[-REQUESTS_KNOWN:])
            self.scalings = {**known, request.id: self._machine.requests.n_asked}
            self._runtime.execute(commands)
        return self.scalings[request.id]

    def _scale(self, request: clients.ScaleJob | clients.BalanceJob) -> list[Command]:
        if isinstance(request, clients.BalanceJob):
            return self._machine.balance(strategy=request.strategy)
        return self._machine.scale(
            servers=request.servers, workers=request.workers, replace=request.replace, place=request.place,
            strategy=request.strategy,
        )  # fmt: skip

    def _status(self) -> clients.JobStatus:
        job, events = self._machine.job, self._runtime.events
        members = [self._member(m) for m in (*job.of("server"), *job.of("worker"))]
        return clients.JobStatus(job.phase, job.progress, events.loss, members, list(events.lost))

    def _member(self, member: Member) -> clients.MemberStatus:
        """Return a member's name, role, site, process number and connection; what it uses, and its limits."""
        used, limit = self._resources.used(member.name), self._resources.limit(member.name)
        return clients.MemberStatus(
            member.name, member.role, member.site, self._processes.pid(member.name), member.joined, used.cores,
            used.memory_gb, limit.cpus, limit.memory_gb,
        )  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run the controller of a job: one process at a time."""
    folder = Path(arguments[0])
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 writes into the log what every thread is doing
    inherited = os.environ.pop(LOCKED, "")
    with open(int(inherited), "a+") if inherited else (folder / LOCK).open("a+") as lock:
        try:
            os.set_inheritable(lock.fileno(), False)
            if not inherited:
                _lock(lock, folder)
            raw = b"" if sys.stdin is None or lock.fileno() == 0 else sys.stdin.buffer.read()
            fault.arm(folder, name="controller")
            ControllerProcess(folder, secrets=Secrets.read(raw) if raw else None).run()
        except JobFileError as error:
            end_members(folder)  # no controller can lead them
            sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
