"""The process of a job's controller: carries out what the state machine decides, and tells it what happens."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from labkit.core.errors import InputError, LabkitError
from labkit.elastic import fault
from labkit.elastic.commands import Command, End, Keep, Load, Note, Over, Start, Tell
from labkit.elastic.controller import Controller
from labkit.elastic.crew import Terms
from labkit.elastic.homes import Homes, Secrets
from labkit.elastic.losses import Losses
from labkit.elastic.member import CONTROLLER, SPEC, Spec
from labkit.elastic.network import Network, Reach, Refusals, checked_address, claimed
from labkit.elastic.program import FILE as PROGRAM
from labkit.elastic.protocol import Kind, at, era_and_version
from labkit.elastic.shards import Record
from labkit.elastic.store import Block
from labkit.elastic.transport import (
    Access,
    AccessError,
    Address,
    Channel,
    Handler,
    Lease,
    Listener,
    Message,
    Peer,
    TransportError,
)

PLAN, EVENTS, STATE, LOCK = "plan.json", "events.jsonl", "controller.json", "controller.lock"
LEASES = "leases.jsonl"
"""Journal of the shard service."""


TICKS_OF_A_LEASE = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """How a job begins."""

    servers: int
    workers: int
    save_every: int = 0
    standby: bool = False
    parent: int = 0
    """Process with which the job ends; 0: it goes on by itself."""


def now() -> float:
    """Return the time of day, as events of several processes are told on one machine's clock."""
    return time.time()  # noqa: TID251 - for people, and to compare with what they did


def records(folder: Path) -> list[Record]:
    """Return the journal of the shard service; a last line that was cut off is of a change that never was."""
    lines = (folder / LEASES).read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _wait_for_end(pid: int, *, timeout_s: float | None = None) -> bool:
    """Wait for the end of any process; False if it still runs."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def _is_member(pid: int, folder: Path, name: str) -> bool:
    """Tell whether a process number is still that of a process of this job: numbers are used again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return name in words and any(Path(word).is_relative_to(folder) for word in words)


def _kill(pid: int, folder: Path, name: str) -> None:
    if _is_member(pid, folder, name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class FromMember(Handler):
    """What a member, or a client, says to the controller."""

    def __init__(self, name: str, role: str, inbox: queue.SimpleQueue[tuple[Any, ...]]) -> None:
        self._name, self._role, self._inbox = name, role, inbox

    def received(self, channel: Channel, message: Message) -> None:
        """Pass it on, if it is for such a process to say."""
        kind = message.head.kind
        if (kind == Kind.TELL) != (self._role == "client") or (kind == Kind.SNAPSHOT and self._role == "worker"):
            raise AccessError(f"a {self._role[:20]} may not send the controller a frame of kind {kind}.")
        if kind == Kind.REPORT:
            self._inbox.put(("report", self._name, dict(message.meta), now()))
        elif kind == Kind.SNAPSHOT:
            self._inbox.put(("copy", message))
        elif kind == Kind.TELL:
            self._inbox.put(("asked", channel, message))

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        """Pass it on."""
        self._inbox.put(("closed", self._name, channel))


class Control:
    """A running job.

    Parameters
    ----------
    folder : Path
        Of the job, which only its owner can enter.
    secrets : Secrets, optional
        Of a job whose processes talk over TCP.
    """

    def __init__(self, folder: Path, *, secrets: Secrets | None = None) -> None:
        from labkit.elastic.assign import reassign

        self.folder, self.spec = folder, Spec.load(folder)
        self.plan = Plan(**json.loads((folder / PLAN).read_text()))
        self.lease = Lease(self.spec.lease_s)
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.channels: dict[str, Channel] = {}
        self.clients: dict[str, Channel] = {}
        self.pids: dict[str, int] = {}
        self.ended: set[str] = set()
        self.codes: dict[str, int] = {}
        self.written: dict[str, Any] = {}
        self._do: dict[type, Callable[[Any], None]] = {
            End: self._end, Tell: self._tell, Load: self._load, Note: self._note,
            Over: self._finish, Keep: self._keep,
        }  # fmt: skip
        self.checkpoints = self.spec.checkpoints(folder)
        (folder / CONTROLLER).unlink(missing_ok=True)  # of a controller that died
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self.copies: dict[int, dict[int, Block]] = {}
        self.events = (folder / EVENTS).open("ab", buffering=0)
        self.unwritten = b""
        self.leases = None if self.spec.sync else (folder / LEASES).open("a", buffering=1)
        self.losses = Losses(self.spec.n_shards)
        self.left_at: dict[str, float] = {}
        self.absences: dict[str, int] = {}
        """How often a process was without a connection."""
        self.awaited: dict[str, threading.Timer] = {}
        """Those who were started and have not come."""
        self.over: str | None = None
        self._next_tick_s = 0.0
        self.machine = Controller(
            Terms(
                sizes=[n for _, n in self.spec.extents],
                n_shards=self.spec.n_shards,
                n_steps=self.spec.n_steps,
                save_every=self.plan.save_every,
                standby=self.plan.standby,
                sync=self.spec.sync,
                n_samples=self.spec.n_samples,
                batch=self.spec.batch,
                seed=self.spec.seed,
                lease_s=self.lease.base_s,
            ),
            reassign=reassign,
            journal=None if self.spec.sync else self._journal,
        )
        reach = Reach(**self.spec.reach)
        self.network, self.homes = reach.network, Homes(folder, reach=reach, secrets=secrets)
        refused = Refusals(lambda **columns: self.inbox.put(("refused", columns)))
        terms: dict[str, Any] = {"welcome": self._welcome, "lease": self.lease, "refused": refused}
        here = Listener(Address.parse(f"unix:{folder / CONTROLLER}"), access=Access(), **terms)
        self.listeners = [door for door in (here, self.homes.gate(**terms)) if door is not None]

    def _welcome(self, peer: Peer) -> Handler:
        """Let in the launcher over the socket of this machine, and members the way that the job's network is."""
        name, role = claimed(peer)
        secured = peer.proved.startswith("certificate")
        if secured != (role != "client" and self.network != Network.LOCAL):
            raise AccessError(f"{name[:60]} is a {role[:20]}, and may not come in by this door.")
        address = checked_address(str(peer.hello.get("address", "")), network=self.network)
        return _Joining(name, role, self.inbox, address=address, unable=str(peer.hello.get("unable", "")))

    # --- the loop

    def run(self) -> None:
        """Run the job to its end; where that fails, leave nobody behind."""
        try:
            self._run()
        except BaseException:
            for name in set(self.pids) - self.ended:
                _kill(self.pids[name], self.folder, name)
            raise

    def _run(self) -> None:
        if self.plan.parent:
            threading.Thread(target=self._watch, args=(self.plan.parent,), daemon=True).start()
        before = self.folder / STATE
        if before.exists():
            self._take_over(json.loads(before.read_text()))
        else:
            self._carry_out(self.machine.start(servers=self.plan.servers, workers=self.plan.workers))
        while self.over is None or set(self.pids) - self.ended:
            try:
                item = self.inbox.get(timeout=None if self.spec.sync else self.lease.base_s / TICKS_OF_A_LEASE)
                getattr(self, f"_{item[0]}")(*item[1:])
            except queue.Empty:
                pass
            if not self.spec.sync:
                self._tick()
        self._write(now(), "over", {"failure": self.over})
        for listener in self.listeners:
            listener.close()
        self.homes.close()
        self.writer.shutdown()
        self.events.close()

    def _take_over(self, state: dict[str, Any]) -> None:
        """Go on with the processes of a controller that died; those that are gone have left."""
        known = [] if self.spec.sync else records(self.folder)
        self.pids.update(state["pids"])
        names = [path.stem for path in self.folder.glob("*-*.log")]  # some may have been started unknown to the state
        self._carry_out(self.machine.take_over(state["machine"], names=names, records=known, now_s=time.monotonic()))
        for name, pid in state["pids"].items():
            self._expect(name, leases=2)
            threading.Thread(target=self._wait_for_other, args=(name, pid), daemon=True).start()

    def _wait_for_other(self, name: str, pid: int) -> None:
        """Wait for the end of a process of this job that this process did not start."""
        if _is_member(pid, self.folder, name):
            _wait_for_end(pid)
        self.inbox.put(("ended", name, -1))

    def _remember(self) -> None:
        """Write down, before anything is done, what a controller after this one must know."""
        state = {"machine": self.machine.state(), "pids": {n: p for n, p in self.pids.items() if n not in self.ended}}
        if state == self.written:
            return
        try:
            self._write_state(json.dumps(state))
        except OSError as error:
            self._write(now(), "unwritten", {"what": STATE, "why": str(error)})
        else:
            self.written = state

    def _write_state(self, text: str) -> None:
        fault.at("controller.write")
        partial = self.folder / f".{STATE}"
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fault.at("controller.wrote")
        partial.rename(self.folder / STATE)
        fault.at("controller.written")

    def _journal(self, record: Record) -> None:
        """Write down a change of the shard service before anything comes of it."""
        if record[1] != "renewed" and self.leases is not None:
            self.leases.write(json.dumps(record) + "\n")

    def _tick(self) -> None:
        """Let leases run out, a few times in a lease."""
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + self.lease.base_s / TICKS_OF_A_LEASE
            self._carry_out(self.machine.tick(list(self.channels), now_s=now_s))

    def _watch(self, parent: int) -> None:
        """Wait for the end of the process that started the job: it ends with it."""
        _wait_for_end(parent)
        self.inbox.put(("abandoned",))

    def _abandoned(self) -> None:
        self._carry_out(self.machine.stop())

    def _opened(self, name: str, role: str, address: str, unable: str, channel: Channel) -> None:
        if role == "client":
            self.clients[name] = channel
            return
        if self.pids.get(name) != channel.peer.hello.get("pid") or name in self.ended:
            with contextlib.suppress(TransportError):  # nobody knows it: its controller died before it could write
                channel.send(Kind.TELL, meta={"do": "stop"})
            return
        self._await_no_more(name)
        self.channels[name] = channel
        joined = self.machine.unable(name, why=unable) if unable else self.machine.joined(name, address=address)
        self._carry_out(joined)

    def _refused(self, columns: dict[str, Any]) -> None:
        self._write(now(), "refused", {"name": "controller", **columns})

    def _report(self, name: str, meta: dict[str, Any], when: float) -> None:
        event = str(meta.pop("event"))
        if event == "losses":
            mean = self.losses.told(int(meta["version"]), meta["losses"], again="again" in meta)
            if mean is not None:
                self._write(when, "loss", {"version": int(meta["version"]), "loss": mean})
            return
        if event != "loss":
            self._write(when, event, {"name": name, **meta})
        self._carry_out(self.machine.reported(name, event, {**meta, "now_s": time.monotonic()}))

    def _copy(self, message: Message) -> None:
        era, version = era_and_version(message.head.step)
        if era != self.machine.era:
            return
        state = self.copies.setdefault(version, {})
        state[message.head.block] = Block.arrived(message.head.block, message.payload, dict(message.meta))
        if len(state) == len(self.spec.extents):
            for old in [v for v in self.copies if v < version]:
                del self.copies[old]
            self._carry_out(self.machine.copied(version))

    def _keep(self, command: Keep) -> None:
        state = self.copies.pop(command.version)
        self.writer.submit(self._save, command.version, state, command.queue)

    def _save(self, version: int, state: dict[int, Block], queue_state: Any) -> None:
        """Write a checkpoint, in a thread of its own."""
        by_owner: dict[str, list[Block]] = {}
        for number, block in state.items():
            by_owner.setdefault(self.machine.owner[number], []).append(block)
        try:
            self.checkpoints.save(version, by_owner, queue=queue_state, mixed=not self.spec.sync)
        except LabkitError as error:
            self.inbox.put(("unsaved", version, str(error)))
        else:
            self.inbox.put(("saved", version))

    def _saved(self, version: int) -> None:
        self._carry_out(self.machine.saved_at(version))

    def _unsaved(self, version: int, why: str) -> None:
        self._carry_out(self.machine.unsaved(version, why))

    def _closed(self, name: str, channel: Channel) -> None:
        self.clients.pop(name, None)
        if self.channels.get(name) is channel:
            del self.channels[name]
            if name in self.codes:
                self._ended(name, self.codes.pop(name))
            else:
                self._expect(name, leases=1)

    def _expect(self, name: str, *, leases: int) -> None:
        """See to it that a process without a connection comes back, or is gone."""
        self.absences[name] = turn = self.absences.get(name, 0) + 1
        arguments = (name, turn, leases * self.lease.base_s)
        threading.Thread(target=self._wait_for_return, args=arguments, daemon=True).start()

    def _wait_for_return(self, name: str, turn: int, timeout_s: float) -> None:
        if not _wait_for_end(self.pids[name], timeout_s=timeout_s):
            self.inbox.put(("missed", name, turn))

    def _await(self, name: str) -> None:
        """See to it that a process comes that was started, or is given up."""
        timer = threading.Timer(self.spec.start_s, self.inbox.put, [("absent", name)])
        timer.daemon = True
        self.awaited[name] = timer
        timer.start()

    def _await_no_more(self, name: str) -> None:
        timer = self.awaited.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _absent(self, name: str) -> None:
        if self.awaited.pop(name, None) is not None and name not in self.ended:
            why = f"did not come within {self.spec.start_s:g} s; what it did is in {self.folder / name}.log."
            self._carry_out(self.machine.unable(name, why=why))

    def _missed(self, name: str, turn: int) -> None:
        """Give up a process that did not come back; one that came and went again has a lease of its own for that."""
        if turn == self.absences[name] and name not in self.channels and name not in self.ended:
            self._write(now(), "missed", {"name": name})
            _kill(self.pids[name], self.folder, name)

    def _ended(self, name: str, code: int) -> None:
        """Note the end of a process, after all that it has said."""
        self.left_at.setdefault(name, now())
        if name in self.channels:
            self.codes[name] = code
            return
        self.ended.add(name)
        self._await_no_more(name)
        self.homes.clear(name)
        self._carry_out(self.machine.left(name, reason=f"exit code {code}"))

    def _loaded(self, era: int, version: int, queue_state: Any) -> None:
        if era == self.machine.era:
            self._carry_out(self.machine.loaded(version, queue=queue_state))

    def _asked(self, channel: Channel, message: Message) -> None:
        meta = dict(message.meta)
        try:
            if meta["do"] == "scale":
                commands = self.machine.scale(
                    servers=meta["servers"], workers=meta["workers"], replace=meta["replace"], strategy=meta["strategy"]
                )
            else:
                commands = self.machine.stop()
        except InputError as error:
            channel.refuse(message, str(error))
            return
        channel.reply(message)
        self._carry_out(commands)

    # --- commands

    def _carry_out(self, commands: list[Command]) -> None:
        """Start who is to be started, remember all, and then do the rest."""
        if not commands:
            return
        for command in commands:
            if isinstance(command, Start):
                self._start(command)
        fault.at("controller.started")
        self._remember()
        for command in commands:
            if not isinstance(command, Start):
                self._do[type(command)](command)

    def _tell(self, command: Tell) -> None:
        fault.at(f"controller.tell.{command.what['do']}")
        self._say(command.to, dict(command.what))

    def _note(self, command: Note) -> None:
        columns = dict(command.columns)
        if command.event == "promoted":
            columns["seconds"] = now() - self.left_at.get(columns["from"], now())
        self._write(now(), command.event, columns)
        fault.at(f"controller.{command.event}")

    def _finish(self, command: Over) -> None:
        self.over = command.failure

    def _start(self, command: Start) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        scales = self.machine.phase == "training" and self.machine.scaling is not None
        entry = "newcomer" if scales else "member"  # who is started for somebody who died is missed
        files = (SPEC, PROGRAM) if command.role == "worker" else (SPEC,)
        home = self.homes.furnish(command.name, command.role, files=files)
        log = (self.folder / f"{command.name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", f"labkit.elastic.{entry}", str(home), command.role, command.name],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        log.close()
        self.pids[command.name] = process.pid
        self._write(now(), "started", {"name": command.name, "role": command.role, "pid": process.pid})
        threading.Thread(target=self._wait_for, args=(command.name, process), daemon=True).start()
        self._await(command.name)

    def _wait_for(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.inbox.put(("ended", name, process.wait()))

    def _end(self, command: End) -> None:
        pid = self.pids.get(command.name)
        if pid is None or command.name in self.ended:
            return
        if command.kill or command.name not in self.channels:  # who has not come yet has nothing to lose
            _kill(pid, self.folder, command.name)
            return
        self._say(command.name, {"do": "stop"})
        threading.Thread(target=self._insist, args=(pid, command.name), daemon=True).start()

    def _insist(self, pid: int, name: str) -> None:
        """Kill a process that does not end by itself within two leases."""
        if not _wait_for_end(pid, timeout_s=2 * self.lease.base_s):
            _kill(pid, self.folder, name)

    def _say(self, name: str, what: dict[str, Any]) -> None:
        channel = self.channels.get(name)
        if channel is not None:
            with contextlib.suppress(TransportError):
                channel.send(Kind.TELL, meta=what)

    def _load(self, command: Load) -> None:
        """Send every block of the newest good checkpoint to its owner."""
        self.copies.clear()
        try:
            newest = self.checkpoints.newest(on_bad=lambda bad: self._write(now(), "bad_checkpoint", {"why": str(bad)}))
        except LabkitError as error:
            self._carry_out(self.machine.give_up(str(error)))
            return
        left = len(newest.blocks)
        lock = threading.Lock()

        def settled(_: Any) -> None:
            nonlocal left
            with lock:
                left -= 1
                if not left:
                    self.inbox.put(("loaded", command.era, newest.step, newest.queue))

        for number, saved in newest.blocks.items():
            channel = self.channels.get(command.owner[number])
            if channel is None:
                return  # it died: its end begins another era
            block = Block(
                number=number, params=saved.params, state=dict(saved.state), version=saved.version,
                seen=dict(saved.seen),
            )  # fmt: skip
            with contextlib.suppress(TransportError):
                reply = channel.request(
                    Kind.STATE, *block.vectors(), meta=block.card(), block=number, step=at(command.era, newest.step)
                )
                reply.add_done_callback(settled)

    def _write(self, when: float, event: str, columns: dict[str, Any]) -> None:
        self.unwritten += json.dumps({"time": when, "event": event, **columns}).encode() + b"\n"
        with contextlib.suppress(OSError):  # a full disk: it is written with the next one that can be
            fault.at("controller.event")
            self.unwritten = self.unwritten[self.events.write(self.unwritten) :]


class _Joining(FromMember):
    """A member or client that has just connected."""

    def __init__(
        self, name: str, role: str, inbox: queue.SimpleQueue[tuple[Any, ...]], *, address: str, unable: str
    ) -> None:
        super().__init__(name, role, inbox)
        self._address, self._unable = address, unable

    def opened(self, channel: Channel) -> None:
        """Tell the loop."""
        self._inbox.put(("opened", self._name, self._role, self._address, self._unable, channel))


def main(arguments: list[str]) -> None:
    """Be the controller of a job: one at a time, whoever else believes to be it."""
    folder = Path(arguments[0])
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 writes into the log what every thread is doing
    with (folder / LOCK).open("a+") as lock:
        _lock(lock, folder)
        raw = b"" if sys.stdin is None else sys.stdin.buffer.read()
        fault.arm(folder, name="controller")
        Control(folder, secrets=Secrets.read(raw) if raw else None).run()


def _lock(file: TextIO, folder: Path) -> None:
    """Become the only controller, or end: one that stands still and goes on later must find all as it left it."""
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


if __name__ == "__main__":
    main(sys.argv[1:])
