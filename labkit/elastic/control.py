"""The process of a job's controller: carries out what the state machine decides, and tells it what happens."""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.commands import Command, End, Load, Note, Over, Start, Tell
from labkit.elastic.controller import Controller
from labkit.elastic.crew import Terms
from labkit.elastic.member import CONTROLLER, Spec
from labkit.elastic.protocol import Kind, at, era_and_version
from labkit.elastic.store import Block
from labkit.elastic.transport import (
    Access,
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


@dataclass(frozen=True, slots=True)
class Plan:
    """How a job begins."""

    servers: int
    workers: int
    save_every: int = 0
    parent: int = 0
    """Process with which the job ends; 0: it goes on by itself."""


def now() -> float:
    """Return the time of day, as events of several processes are told on one machine's clock."""
    return time.time()  # noqa: TID251 - for people, and to compare with what they did


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
    return str(folder) in words and name in words


def _kill(pid: int, folder: Path, name: str) -> None:
    if _is_member(pid, folder, name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class FromMember(Handler):
    """What a member, or a client, says to the controller."""

    def __init__(self, name: str, inbox: queue.SimpleQueue[tuple[Any, ...]]) -> None:
        self._name, self._inbox = name, inbox

    def received(self, channel: Channel, message: Message) -> None:
        """Pass it on."""
        kind = message.head.kind
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
    """

    def __init__(self, folder: Path) -> None:
        from labkit.elastic.assign import reassign

        self.folder, self.spec = folder, Spec.load(folder)
        self.plan = Plan(**json.loads((folder / PLAN).read_text()))
        self.lease = Lease(self.spec.lease_s)
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.channels: dict[str, Channel] = {}
        self.clients: dict[str, Channel] = {}
        self.pids: dict[str, int] = {}
        self.ended: set[str] = set()
        self.written: dict[str, Any] = {}
        self._do: dict[type, Callable[[Any], None]] = {
            End: self._end, Tell: self._tell, Load: self._load, Note: self._note,
            Over: self._finish,
        }  # fmt: skip
        self.checkpoints = self.spec.checkpoints(folder)
        (folder / CONTROLLER).unlink(missing_ok=True)  # of a controller that died
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self.copies: dict[int, dict[int, Block]] = {}
        self.events = (folder / EVENTS).open("a", buffering=1)
        self.losses: dict[int, dict[int, float]] = {}
        self.over: str | None = None
        self.machine = Controller(
            Terms(
                sizes=[n for _, n in self.spec.extents],
                n_shards=self.spec.n_shards,
                n_steps=self.spec.n_steps,
                save_every=self.plan.save_every,
            ),
            reassign=reassign,
        )
        self.listener = Listener(
            Address.parse(f"unix:{folder / CONTROLLER}"),
            welcome=self._welcome,
            access=Access(),
            lease=self.lease,
        )

    def _welcome(self, peer: Peer) -> Handler:
        name = str(peer.hello.get("name", ""))
        return _Joining(name, str(peer.hello.get("role", "")), str(peer.hello.get("address", "")), self.inbox)

    # --- the loop

    def run(self) -> None:
        """Run the job to its end."""
        if self.plan.parent:
            threading.Thread(target=self._watch, args=(self.plan.parent,), daemon=True).start()
        before = self.folder / STATE
        if before.exists():
            self._take_over(json.loads(before.read_text()))
        else:
            self._carry_out(self.machine.start(servers=self.plan.servers, workers=self.plan.workers))
        while self.over is None or set(self.pids) - self.ended:
            item = self.inbox.get()
            getattr(self, f"_{item[0]}")(*item[1:])
        self._write(now(), "over", {"failure": self.over})
        self.listener.close()
        self.writer.shutdown()
        self.events.close()

    def _take_over(self, state: dict[str, Any]) -> None:
        """Go on with the processes of a controller that died; those that are gone have left."""
        self._carry_out(self.machine.take_over(state["machine"]))
        for name, pid in state["pids"].items():
            self.pids[name] = pid
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
        partial = self.folder / f".{STATE}"
        with partial.open("w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self.folder / STATE)
        self.written = state

    def _watch(self, parent: int) -> None:
        """Wait for the end of the process that started the job: it ends with it."""
        _wait_for_end(parent)
        self.inbox.put(("abandoned",))

    def _abandoned(self) -> None:
        self._carry_out(self.machine.stop())

    def _opened(self, name: str, role: str, address: str, channel: Channel) -> None:
        if role == "client":
            self.clients[name] = channel
            return
        self.channels[name] = channel
        self._carry_out(self.machine.joined(name, address=address))

    def _report(self, name: str, meta: dict[str, Any], when: float) -> None:
        event = str(meta.pop("event"))
        if event == "stepped":
            self._note_losses(int(meta["version"]), meta["losses"])
        if event != "loss":
            self._write(when, event, {"name": name, **{k: v for k, v in meta.items() if k != "losses"}})
        self._carry_out(self.machine.reported(name, event, meta))

    def _note_losses(self, version: int, losses: Iterable[Any]) -> None:
        known = self.losses.setdefault(version, {})
        known.update((int(leaf), float(loss)) for leaf, loss in losses)
        if len(known) == self.spec.n_shards:
            self._write(now(), "loss", {"version": version, "loss": sum(known.values()) / len(known)})

    def _copy(self, message: Message) -> None:
        era, version = era_and_version(message.head.step)
        if era != self.machine.era:
            return
        state = self.copies.setdefault(version, {})
        state[message.head.block] = Block.arrived(message.head.block, message.payload, dict(message.meta))
        if len(state) == len(self.spec.extents):
            for old in [v for v in self.copies if v <= version]:
                del self.copies[old]
            self.writer.submit(self._save, version, state)

    def _save(self, version: int, state: dict[int, Block]) -> None:
        """Write a checkpoint, in a thread of its own."""
        by_owner: dict[str, list[Block]] = {}
        for number, block in state.items():
            by_owner.setdefault(self.machine.owner[number], []).append(block)
        try:
            self.checkpoints.save(version, by_owner)
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

    def _ended(self, name: str, code: int) -> None:
        self.ended.add(name)
        self._carry_out(self.machine.left(name, reason=f"exit code {code}"))

    def _loaded(self, era: int, version: int) -> None:
        if era == self.machine.era:
            self._carry_out(self.machine.loaded(version))

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
        self._remember()
        for command in commands:
            if not isinstance(command, Start):
                self._do[type(command)](command)

    def _tell(self, command: Tell) -> None:
        self._say(command.to, dict(command.what))

    def _note(self, command: Note) -> None:
        self._write(now(), command.event, dict(command.columns))

    def _finish(self, command: Over) -> None:
        self.over = command.failure

    def _start(self, command: Start) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        entry = "newcomer" if self.machine.phase == "training" else "member"
        log = (self.folder / f"{command.name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", f"labkit.elastic.{entry}", str(self.folder), command.role, command.name],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        log.close()
        self.pids[command.name] = process.pid
        self._write(now(), "started", {"name": command.name, "role": command.role, "pid": process.pid})
        threading.Thread(target=self._wait_for, args=(command.name, process), daemon=True).start()

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
        newest = self.checkpoints.newest(on_bad=lambda bad: self._write(now(), "bad_checkpoint", {"why": str(bad)}))
        left = len(newest.blocks)
        lock = threading.Lock()

        def settled(_: Any) -> None:
            nonlocal left
            with lock:
                left -= 1
                if not left:
                    self.inbox.put(("loaded", command.era, newest.step))

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
        self.events.write(json.dumps({"time": when, "event": event, **columns}) + "\n")


class _Joining(FromMember):
    """A member or client that has just connected."""

    def __init__(self, name: str, role: str, address: str, inbox: queue.SimpleQueue[tuple[Any, ...]]) -> None:
        super().__init__(name, inbox)
        self._role, self._address = role, address

    def opened(self, channel: Channel) -> None:
        """Tell the loop."""
        self._inbox.put(("opened", self._name, self._role, self._address, channel))


def main(arguments: list[str]) -> None:
    """Be the controller of a job: one at a time, whoever else believes to be it."""
    folder = Path(arguments[0])
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Control(folder).run()


if __name__ == "__main__":
    main(sys.argv[1:])
