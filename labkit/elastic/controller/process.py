"""The process of a job's controller: carries out what the state machine decides, and tells it what happens."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Cause
from labkit.elastic.checkpoint.store import check_blocks
from labkit.elastic.controller.deaths import RESTARTS, WITHIN_S
from labkit.elastic.controller.losses import STOP, NotFiniteError, StepLosses, encoded
from labkit.elastic.controller.members import JobTerms, Member
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.failure import last_line
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.causes import BY_FORCE, FAILED, NO_MEMORY, OOM_KILLED, of_exit, told
from labkit.elastic.process.credentials import Credentials, Secrets
from labkit.elastic.process.launchers import Launcher, StartRequest
from labkit.elastic.process.limits import Amounts
from labkit.elastic.process.local_launcher import LocalLauncher
from labkit.elastic.process.remote_launcher import RemoteLauncher
from labkit.elastic.process.time_limits import PATIENCE_LEASES
from labkit.elastic.process.usage import EVERY_S, Gauge, MemberUsage, UsageReading, heard, readings
from labkit.elastic.protocol.blocks import TENSOR
from labkit.elastic.protocol.commands import Command, End, Keep, Load, Note, Over, Start, Tell
from labkit.elastic.protocol.messages import FrameKind, at, era_and_version
from labkit.elastic.protocol.network import HOST, NetworkConfig, NetworkMode, Refusals, checked_address, claimed
from labkit.elastic.protocol.program import FILE as PROGRAM
from labkit.elastic.protocol.sites import hosts_of, launcher_name
from labkit.elastic.protocol.spec import CONTROLLER_SOCKET, SPEC, Spec
from labkit.elastic.server.block import Block
from labkit.elastic.shards import Record
from labkit.elastic.transport import (
    Access,
    AccessError,
    Address,
    Channel,
    FrameError,
    Handler,
    Lease,
    Listener,
    Message,
    Peer,
    RemoteError,
    TransportError,
)
from labkit.oom import is_memory
from labkit.proc import wait_for_end

PLAN, EVENTS, STATE, LOCK = "plan.json", "events.jsonl", "controller.json", "controller.lock"
LEASES = "leases.jsonl"
"""Journal of the shard service."""


TICKS_OF_A_LEASE = 12
MEANINGS = {
    NO_MEMORY: "out of memory", OOM_KILLED: "out of memory: killed by the kernel", BY_FORCE: "ended by its watchdog",
}  # fmt: skip
"""Of exit codes."""
LOST_KNOWN = 20
"""Processes that were lost of late, of which a status tells."""
REQUESTS_KNOWN = 64
"""Requests whose repetition is recognised."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """How a job begins."""

    place: dict[str, tuple[int, int]]
    """Workers and servers of each site."""
    save_every: int = 0
    standby: bool = False
    parent: int = 0
    """Process with which the job ends; 0: it goes on by itself."""
    restarts: int = RESTARTS
    restarts_within_s: float = WITHIN_S
    differs: list[str] = field(default_factory=list)
    """How it is another training than the one from whose checkpoint it goes on."""

    def save(self, folder: Path) -> None:
        """Write it into the folder of the job."""
        (folder / PLAN).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> JobConfig:
        """Read it."""
        return cls(**json.loads((folder / PLAN).read_text()))


def now() -> float:
    """Return the time of day, as events of several processes are told on one machine's clock."""
    return time.time()  # noqa: TID251 - for people, and to compare with what they did


def records(folder: Path) -> list[Record]:
    """Return the journal of the shard service; a last line that was cut off is of a change that never was."""
    lines = (folder / LEASES).read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


class FromMember(Handler):
    """What a member, or a client, says to the controller."""

    def __init__(self, name: str, role: str, inbox: queue.SimpleQueue[tuple[Any, ...]]) -> None:
        self._name, self._role, self._inbox = name, role, inbox

    def received(self, channel: Channel, message: Message) -> None:
        """Pass it on, if it is for such a process to say."""
        kind = message.head.kind
        if (kind == FrameKind.TELL) != (self._role == "client") or (
            kind == FrameKind.SNAPSHOT and self._role != "server"
        ):
            raise AccessError(f"a {self._role[:20]} may not send the controller a frame of kind {kind}.")
        if self._role == HOST:
            self._inbox.put(("hosted", self._name, channel, dict(message.meta)))
        elif kind == FrameKind.REPORT:
            self._inbox.put(("report", self._name, dict(message.meta), now()))
        elif kind == FrameKind.SNAPSHOT:
            self._inbox.put(("copy", message))
        elif kind == FrameKind.TELL:
            self._inbox.put(("asked", channel, message))

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        """Pass it on."""
        self._inbox.put(("closed", self._name, channel))


class ControllerProcess:
    """A running job.

    Parameters
    ----------
    folder : Path
        Of the job, which only its owner can enter.
    secrets : Secrets, optional
        Of a job whose processes talk over TCP.
    """

    def __init__(self, folder: Path, *, secrets: Secrets | None = None) -> None:
        from labkit.elastic.controller.block_assignment import reassign

        self.folder, self.spec = folder, Spec.load(folder)
        self.plan = JobConfig.load(folder)
        self.lease = Lease(self.spec.lease_s)
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.channels: dict[str, Channel] = {}
        self.pids: dict[str, int] = {}
        """Of everybody who was started; 0: nobody knows yet."""
        self.seats: dict[str, str] = {}
        """Sites of everybody who was started."""
        self.unregistered: dict[str, tuple[Any, ...]] = {}
        """Who has connected before the launcher of its host said that it runs."""
        self.sites = self.spec.places
        self.ended: set[str] = set()
        self.codes: dict[str, int] = {}
        self.written: dict[str, Any] = {}
        self._do: dict[type, Callable[[Any], None]] = {
            End: self._end, Tell: self._tell, Load: self._load, Note: self._note,
            Over: self._finish, Keep: self._keep,
        }  # fmt: skip
        self.checkpoints = self.spec.checkpoints(folder)
        (folder / CONTROLLER_SOCKET).unlink(missing_ok=True)  # of a controller that died
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self.copies: dict[int, dict[int, Block]] = {}
        self.events = (folder / EVENTS).open("ab", buffering=0)
        self.unwritten = b""
        self.leases = None if self.spec.sync else (folder / LEASES).open("a", buffering=1)
        self.losses = StepLosses(self.spec.n_shards)
        self.amounts: dict[str, Amounts] = {}
        """What members are to have, by name."""
        self.gauge, self.meter = Gauge(), Gauge()
        """What members use, for a status and for events: they are told at times of their own."""
        self.elsewhere: dict[str, UsageReading] = {}
        """What members on other hosts have used, as their launchers told last."""
        self.used: dict[str, MemberUsage] = {}
        self._next_look_s = self._next_measure_s = 0.0
        self.short_gb = math.inf
        """Memory of the last process that ran out of it; infinite: none did."""
        self.left_at: dict[str, float] = {}
        self.absences: dict[str, int] = {}
        """How often a process was without a connection."""
        self.awaited: dict[str, threading.Timer] = {}
        """Those who were started and have not come."""
        self.begun: dict[str, float] = {}
        """When each was started, on a clock that all controllers of this machine have."""
        self.asked: dict[str, int] = {}
        """Scalings that were asked for, by what their request is known by."""
        self.why: dict[str, Cause] = {}
        """Of processes that are killed from here, and had not ended by themselves."""
        self.lost: deque[list[Any]] = deque(maxlen=LOST_KNOWN)
        """Processes that were lost of late: name, role, cause, reason, time."""
        self.over: Over | None = None
        self.loss: float | str | None = None
        self._next_tick_s = 0.0
        self.machine = Controller(
            JobTerms(
                sizes=[n for _, n in self.spec.extents],
                n_shards=self.spec.n_shards,
                n_steps=self.spec.n_steps,
                save_every=self.plan.save_every,
                restarts=self.plan.restarts,
                restarts_within_s=self.plan.restarts_within_s,
                standby=self.plan.standby,
                sync=self.spec.sync,
                n_samples=self.spec.n_samples,
                batch=self.spec.batch,
                seed=self.spec.seed,
                lease_s=self.lease.base_s,
                sites={site.name: site.host for site in self.sites.values()},
                tensors=self.spec.layout.tensors if self.spec.partition == TENSOR else (),
            ),
            reassign=reassign,
            journal=None if self.spec.sync else self._journal,
        )
        reach = NetworkConfig(**self.spec.reach)
        self.network, self.homes = reach.network, Credentials(folder, reach=reach, secrets=secrets)
        self.launchers, self.there = self._launchers()
        refused = Refusals(lambda **columns: self.inbox.put(("refused", columns)))
        terms: dict[str, Any] = {"welcome": self._welcome, "lease": self.lease, "refused": refused}
        gate = self.homes.gate(**terms)  # who comes in here may ask for its address
        here = Listener(Address.parse(f"unix:{folder / CONTROLLER_SOCKET}"), access=Access(), **terms)
        self.listeners = [door for door in (here, gate) if door is not None]

    def _launchers(self) -> tuple[dict[str, Launcher], dict[str, RemoteLauncher]]:
        """Return who starts members, by host; and those of other hosts, by the name of their launchers."""

        def ended(name: str, code: int) -> None:
            self.inbox.put(("ended", name, code))

        sites = list(self.sites.values())
        home, *others = hosts_of(sites)
        told: dict[str, Any] = {"started": self._started, "ended": ended}
        there = {launcher_name(host, sites): RemoteLauncher(host, papers=self.homes.papers, **told) for host in others}
        launchers: dict[str, Launcher] = {one.host: one for one in there.values()}
        return {home: LocalLauncher(self.folder, furnish=self._furnish, **told), **launchers}, there

    def _furnish(self, name: str, role: str) -> Path:
        return self.homes.furnish(name, role, files=(SPEC, PROGRAM) if role == "worker" else (SPEC,))

    def _launcher(self, name: str) -> Launcher:
        """Return who has started a member."""
        return self.launchers[self.sites[self.seats[name]].host]

    def _welcome(self, peer: Peer) -> Handler:
        """Let in the launcher over the socket of this machine, and members the way that the job's network is."""
        name, role = claimed(peer)
        secured = peer.proved.startswith("certificate")
        if secured != (role != "client" and self.network != NetworkMode.LOCAL):
            raise AccessError(f"{name[:60]} is a {role[:20]}, and may not come in by this door.")
        if (role == HOST) != (name in self.there):
            raise AccessError(f"{name[:60]} is no {role[:20]} of this job.")
        address = checked_address(str(peer.hello.get("address", "")), network=self.network)
        return _Joining(name, role, self.inbox, address=address, unable=str(peer.hello.get("unable", "")))

    # --- the loop

    def run(self) -> None:
        """Run the job to its end; where this process fails, another one goes on with the members, who train on.

        Its exit code says so, and controller.log why. Before the job has begun, no member is left behind.
        """
        try:
            self._run()
        except BaseException as error:
            if isinstance(error, Exception) and (self.folder / STATE).exists():
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(NO_MEMORY if is_memory(error) else FAILED)
            for name in set(self.pids) - self.ended:
                self._launcher(name).kill(name)
            for there in self.there.values():
                there.end()
            raise

    def _run(self) -> None:
        if self.plan.parent:
            threading.Thread(target=self._watch, args=(self.plan.parent,), daemon=True).start()
        self._begin()
        while self.over is None or set(self.pids) - self.ended:
            try:
                item = self.inbox.get(timeout=self._pause_s())
                self.machine.now_s = time.monotonic()
                getattr(self, f"_{item[0]}")(*item[1:])
            except queue.Empty:
                pass
            if not self.spec.sync:
                self._tick()
            self._measure()
        self._write(now(), "over", self._verdict())
        for there in self.there.values():
            there.end()
        for listener in self.listeners:
            listener.close()
        self.homes.close()
        self.writer.shutdown()
        self.events.close()

    def _pause_s(self) -> float:
        """Return for how long nothing is due."""
        look_s = min(EVERY_S, self.spec.measure_every_s or EVERY_S)
        return look_s if self.spec.sync else min(look_s, self.lease.base_s / TICKS_OF_A_LEASE)

    def _verdict(self) -> dict[str, Any]:
        """Return how the job has ended; no cause where it is as it should be."""
        over = self.over or Over()
        return {"failure": over.failure, "cause": told(over.cause) if over.failure else None}

    def _begin(self) -> None:
        before, plan = self.folder / STATE, self.plan
        if before.exists():
            self._take_over(json.loads(before.read_text()))
            return
        if plan.differs:
            self._write(now(), "differs", {"from": plan.differs})
        self._carry_out(self.machine.start(place=plan.place))

    def _take_over(self, state: dict[str, Any]) -> None:
        """Go on with the processes of a controller that died; those that are gone have left."""
        known = [] if self.spec.sync else records(self.folder)
        self.pids.update(state["pids"])
        self.seats.update(state["seats"])
        for name, pid in state["pids"].items():
            self._launcher(name).adopt(name, pid, self.sites[self.seats[name]])
        self.begun.update(state["begun"])
        self.asked.update(state["asked"])
        names = [path.stem for path in self.folder.glob("*-*.log")]  # some may have been started unknown to the state
        self._carry_out(self.machine.take_over(state["machine"], names=names, records=known, now_s=time.monotonic()))
        for name, pid in state["pids"].items():
            if not self._has_come(name):
                self._await(name)
            elif pid:
                self._expect(name, leases=2)
        for there in self.there.values():
            self._expect_host(there, leases=2 if there.busy else PATIENCE_LEASES)

    def _remember(self) -> None:
        """Write down, before anything is done, what a controller after this one must know."""
        pids = {name: pid for name, pid in self.pids.items() if name not in self.ended}
        state = {
            "machine": self.machine.state(), "pids": pids, "seats": {name: self.seats[name] for name in pids},
            "begun": {name: self.begun[name] for name in pids if not self._has_come(name)}, "asked": dict(self.asked),
        }  # fmt: skip
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

    # --- what members use

    def _measure(self) -> None:
        """Look at what members use once a second, and tell it in events where the job asks for that."""
        now_s, every_s = time.monotonic(), self.spec.measure_every_s
        due = bool(every_s) and now_s >= self._next_measure_s
        if not due and now_s < self._next_look_s:
            return
        found = self._readings()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + EVERY_S
            self.used = self.gauge.used(found)
        if due:
            self._next_measure_s = now_s + every_s
            self._tell_used(self.meter.used(found))

    def _readings(self) -> dict[str, UsageReading]:
        """Return what each member that runs has used so far, here and on other hosts."""
        here = {
            name: pid for name, pid in self.pids.items()
            if name not in self.ended and not isinstance(self._launcher(name), RemoteLauncher)
        }  # fmt: skip
        away = {name: one for name, one in self.elsewhere.items() if name in self.pids and name not in self.ended}
        return {**readings(here), **away}

    def _tell_used(self, found: dict[str, MemberUsage]) -> None:
        when = now()
        for name, used in found.items():
            limit = self.amounts.get(name, Amounts())
            columns = {**used._asdict(), "most_cores": limit.cpus, "most_gb": limit.memory_gb}
            self._write(when, "used", {"name": name, **columns})

    def _watch(self, parent: int) -> None:
        """Wait for the end of the process that started the job: it ends with it."""
        wait_for_end(parent)
        self.inbox.put(("abandoned",))

    def _abandoned(self) -> None:
        self._carry_out(self.machine.stop())

    def _opened(self, name: str, role: str, address: str, unable: str, channel: Channel) -> None:
        if role in (HOST, "client"):
            return  # it says next who runs there, or what it wants
        pid = self.pids.get(name)
        if pid == 0 and name not in self.ended:
            self.unregistered[name] = name, role, address, unable, channel
            return
        if pid != channel.peer.hello.get("pid") or name in self.ended:
            self._send_away(channel)  # nobody knows it: its controller died before it could write
            return
        self._await_no_more(name)
        self.channels[name] = channel
        joined = self.machine.unable(name, why=unable) if unable else self.machine.joined(name, address=address)
        self._carry_out(joined)
        if name in self.amounts:
            self._resize(name)

    def _send_away(self, channel: Channel) -> None:
        with contextlib.suppress(TransportError):
            channel.send(FrameKind.TELL, meta={"do": "stop"})

    # --- other hosts

    def _hosted(self, name: str, channel: Channel, meta: dict[str, Any]) -> None:
        """Take note of what the launcher of another host says."""
        there, event = self.there[name], meta["event"]
        if event == "hosting":
            self._write(now(), "host", {"host": there.host, "running": sorted(meta["running"])})
            self._carry_out(self.machine.host_back(there.host))
            there.here(channel, meta["running"])
        elif channel is there.channel:
            self._hears(name, event, meta)

    def _hears(self, launcher: str, event: str, meta: dict[str, Any]) -> None:
        there = self.there[launcher]
        if event == "started":
            there.started(meta["name"], meta["pid"])
        elif event == "ended":
            there.ended(meta["name"], meta["code"])
        elif event == "unable" and not there.wait(meta["name"], timeout_s=0):
            self._unable(meta["name"], meta["why"])
        elif event == "used":
            self.elsewhere.update(heard(meta.get("readings")))
        elif event == "leaving":
            there.channel = None
            self._host_missed(there, there.turn)

    def _expect_host(self, there: RemoteLauncher, *, leases: int) -> None:
        """See to it that a launcher comes (back), or its host counts as lost if somebody should be there."""
        turn = there.turn

        def wait() -> None:
            threading.Event().wait(leases * self.lease.base_s)
            self.inbox.put(("host_missed", there, turn))

        threading.Thread(target=wait, name=f"waiting for {there.host}", daemon=True).start()

    def _host_missed(self, there: RemoteLauncher, turn: int) -> None:
        members = [] if there.turn != turn or there.channel is not None else there.lost()
        if not members:
            return
        why = "its launcher is away for too long" if there.seen else "its launcher has not come"
        for member in members:
            self.left_at.setdefault(member, now())
            self.ended.add(member)
            self.unregistered.pop(member, None)
            if member in self.channels:
                self._send_away(self.channels.pop(member))
        self._carry_out(self.machine.host_lost(there.host, why=why))

    def _unable(self, name: str, why: str) -> None:
        self._carry_out(self.machine.unable(name, why=why))

    def _refused(self, columns: dict[str, Any]) -> None:
        self._write(now(), "refused", {"name": "controller", **columns})

    def _report(self, name: str, meta: dict[str, Any], when: float) -> None:
        event = str(meta.pop("event"))
        if event == "losses":
            mean = self.losses.told(int(meta["version"]), meta["losses"], again="again" in meta)
            if mean is not None:
                self._write(when, "loss", {"version": int(meta["version"]), "loss": encoded(mean)})
            return
        if event not in ("loss", "loads"):
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
        try:
            if self.spec.on_nan == STOP:
                check_blocks(state.values(), self.spec.layout, step=version)
            by_owner: dict[str, list[Block]] = {}
            for number, block in state.items():
                by_owner.setdefault(self.machine.owner[number], []).append(block)
            self.checkpoints.save(version, by_owner, queue=queue_state, mixed=not self.spec.sync)
        except NotFiniteError as error:
            self.inbox.put(("hopeless", str(error)))
        except LabkitError as error:
            self.inbox.put(("unsaved", version, str(error)))
        except (OSError, MemoryError, LookupError) as error:
            self.inbox.put(("unsaved", version, f"{type(error).__name__}: {error}"))
        else:
            self.inbox.put(("saved", version))

    def _saved(self, version: int) -> None:
        self._carry_out(self.machine.saved_at(version))

    def _unsaved(self, version: int, why: str) -> None:
        self._carry_out(self.machine.unsaved(version, why))

    def _closed(self, name: str, channel: Channel) -> None:
        if name in self.there:
            if self.there[name].away(channel):
                self._expect_host(self.there[name], leases=2)
        elif name in self.unregistered and self.unregistered[name][-1] is channel:
            del self.unregistered[name]
        elif self.channels.get(name) is channel:
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
        if not self._launcher(name).wait(name, timeout_s=timeout_s):
            self.inbox.put(("missed", name, turn))

    def _has_come(self, name: str) -> bool:
        """Tell whether a process has ever joined; one that nobody knows any more is not waited for either."""
        return name not in self.machine.members or self.machine.members[name].came

    def _await(self, name: str) -> None:
        """See to it that a process comes that was started, by this controller or one before, or is given up."""
        spent_s = time.monotonic() - self.begun.setdefault(name, time.monotonic())
        left_s = max(self.spec.start_s - spent_s, 2 * self.lease.base_s)
        timer = threading.Timer(left_s, self.inbox.put, [("absent", name)])
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
            self.why[name] = Cause.UNREACHABLE
            self._launcher(name).kill(name)

    def _ended(self, name: str, code: int) -> None:
        """Note the end of a process, after all that it has said."""
        self.left_at.setdefault(name, now())
        if name in self.channels:
            self.codes[name] = code
            return
        self.ended.add(name)
        self._note_shortage(self.amounts.pop(name, Amounts()), of_exit(code))
        self.elsewhere.pop(name, None)
        self._await_no_more(name)
        self.unregistered.pop(name, None)
        self.homes.clear(name)
        said = MEANINGS.get(code) or (last_line(self.folder / f"{name}.log") if code > 0 else "")
        reason = f"exit code {code}{said and f': {said}'}"
        cause = of_exit(code)
        if cause == Cause.KILLED:
            cause = self.why.pop(name, cause)
        self._carry_out(self.machine.left(name, reason=reason, by_itself=code > 0, cause=cause, code=code))

    def _note_shortage(self, had: Amounts, cause: Cause) -> None:
        """Note what a process had that ran out of memory: with more, the next one may not."""
        if cause == Cause.OUT_OF_MEMORY:
            self.short_gb = had.memory_gb or 0.0

    def _unloaded(self, name: str, era: int, why: str) -> None:
        """Replace a server that does not take a block of the checkpoint: training would wait for it."""
        if era == self.machine.era and name not in self.ended:
            self._write(now(), "unloaded", {"name": name, "why": why})
            self.why[name] = Cause.UNREACHABLE
            self._launcher(name).kill(name)

    def _loaded(self, era: int, version: int, queue_state: Any) -> None:
        if era == self.machine.era:
            self._carry_out(self.machine.loaded(version, queue=queue_state))

    def _asked(self, channel: Channel, message: Message) -> None:
        """Do what a client asks for; it may be gone when that is done."""
        try:
            answer = self._answer(dict(message.meta))
        except InputError as error:
            with contextlib.suppress(TransportError):
                channel.refuse(message, str(error))
        else:
            with contextlib.suppress(TransportError):
                channel.reply(message, meta=answer)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what is answered; a scaling that is asked for again, on another connection, is done once."""
        if asked.get("do") == "status":
            return self._status()
        if asked.get("do") == "stop":
            self._carry_out(self.machine.stop(save=bool(asked.get("save"))))
            return {}
        if asked.get("do") == "resize":
            return self._resized(asked.get("amounts"))
        if asked.get("do") not in ("scale", "balance"):
            told = f"a request '{str(asked.get('do'))[:40]}'; expected scale, balance, resize, status or stop."
            raise InputError(told)
        ask = str(asked.get("ask", ""))
        if ask not in self.asked:
            commands = self._scaled(asked)
            self.asked = {**dict(list(self.asked.items())[-REQUESTS_KNOWN:]), ask: self.machine.n_asked}
            self._carry_out(commands)
        return {"scaling": self.asked[ask]}

    def _scaled(self, asked: dict[str, Any]) -> list[Command]:
        strategy = str(asked.get("strategy"))
        if asked.get("do") == "balance":
            return self.machine.balance(strategy=strategy)
        return self.machine.scale(
            servers=asked.get("servers", 0), workers=asked.get("workers", 0), replace=asked.get("replace", ()),
            place=asked.get("place"), strategy=strategy,
        )  # fmt: skip

    def _resized(self, asked: Any) -> dict[str, Any]:
        """Let members have other cores and memory; one that is still to join, once it has."""
        if not isinstance(asked, dict):
            raise InputError(f"amounts {str(asked)[:80]}; expected cores and GB by name of a member.")
        there = [name for name, member in self.machine.members.items() if not member.leaving]
        amounts = {}
        for name, given in asked.items():
            if name not in there:
                raise InputError(f"no '{str(name)[:40]}' to resize; there are {', '.join(sorted(there))}.")
            amounts[name] = Amounts(*given)
        if any(one.memory_gb is None or one.memory_gb > self.short_gb for one in amounts.values()):
            self.machine.fed()
        self.amounts.update(amounts)
        for name in amounts:
            self._resize(name)
        return {}

    def _resize(self, name: str) -> None:
        wanted = self.amounts[name]
        self._say(name, {"do": "resize", "cpus": wanted.cpus, "memory_gb": wanted.memory_gb})

    def _status(self) -> dict[str, Any]:
        """Return where the job is: progress, and who is there to stay."""
        machine = self.machine
        stay = (*machine.of("server"), *machine.of("worker"))
        members = [self._seat(m) for m in stay]
        lost = list(self.lost)
        return {"phase": machine.phase, "step": machine.progress, "loss": self.loss, "members": members, "lost": lost}

    def _seat(self, member: Member) -> list[Any]:
        """Return a member, where it sits, what it uses and what it may."""
        used, limit = self.used.get(member.name, MemberUsage()), self.amounts.get(member.name, Amounts())
        where = [member.name, member.role, member.site, self.pids.get(member.name, 0), member.joined]
        return [*where, used.cores, used.memory_gb, limit.cpus, limit.memory_gb]

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
        when = now()
        if command.event == "left" and not columns["expected"]:
            self.lost.append([columns["name"], columns["role"], columns["cause"], columns["reason"], when])
        self._write(when, command.event, columns)
        fault.at(f"controller.{command.event}")

    def _finish(self, command: Over) -> None:
        self.over = command

    def _start(self, command: Start) -> None:
        scales = self.machine.phase == "training" and self.machine.scaling is not None
        self.pids[command.name], self.seats[command.name] = 0, command.site
        self.begun[command.name] = time.monotonic()
        order = StartRequest(command.name, command.role, self.sites[command.site], gently=scales)
        launcher = self._launcher(command.name)
        if isinstance(launcher, RemoteLauncher) and launcher.channel is None:
            self._expect_host(launcher, leases=PATIENCE_LEASES)
        try:
            launcher.start(order)  # who is started for somebody who died is missed: not gently
        except (OSError, RuntimeError, MemoryError, subprocess.SubprocessError) as error:
            self.inbox.put(("unable", command.name, f"cannot be started: {error}"))
            self.inbox.put(("ended", command.name, -1))
        else:
            self._await(command.name)

    def _started(self, name: str, pid: int) -> None:
        """Note that a member runs; who came before that was known may come in now."""
        if self.pids[name] == pid:
            return
        self.pids[name] = pid
        role = "worker" if name.startswith("worker") else "server"
        site = self.sites[self.seats[name]]
        columns = {"name": name, "role": role, "pid": pid, "site": site.name, "host": site.host}
        self._write(now(), "started", columns)
        if name in self.unregistered:
            self._opened(*self.unregistered.pop(name))
        elif isinstance(self._launcher(name), RemoteLauncher):
            self._remember()

    def _end(self, command: End) -> None:
        name = command.name
        if name not in self.pids or name in self.ended:
            return
        if command.kill or name not in self.channels:  # who has not come yet has nothing to lose
            self._launcher(name).kill(name)
            return
        self._say(name, {"do": "stop"})
        threading.Thread(target=self._insist, args=(name,), daemon=True).start()

    def _insist(self, name: str) -> None:
        """Kill a process that does not end by itself within two leases."""
        if not self._launcher(name).wait(name, timeout_s=2 * self.lease.base_s):
            self.inbox.put(("overdue", name))

    def _overdue(self, name: str) -> None:
        if name not in self.ended:
            self._launcher(name).kill(name)

    def _say(self, name: str, what: dict[str, Any]) -> None:
        channel = self.channels.get(name)
        if channel is None:
            return
        try:
            channel.send(FrameKind.TELL, meta=what)
        except FrameError as error:  # to leave it out would let somebody wait for ever
            self.inbox.put(("hopeless", f"'{what.get('do')}' cannot be told to {name}: {error}"))
        except TransportError:
            return

    def _hopeless(self, why: str) -> None:
        self._carry_out(self.machine.give_up(why))

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

        def settled(owner: str, done: Future[Message]) -> None:
            """Count a block that has arrived; where a link broke, its server ends, or comes back and says so."""
            nonlocal left
            failure = done.exception()
            if failure is not None:
                if isinstance(failure, RemoteError):
                    self.inbox.put(("unloaded", owner, command.era, str(failure)))
                return
            with lock:
                left -= 1
                if not left:
                    self.inbox.put(("loaded", command.era, newest.step, newest.queue))

        for number, saved in newest.blocks.items():
            owner = command.owner[number]
            channel = self.channels.get(owner)
            if channel is None:
                return  # it died: its end begins another era
            block = Block(
                number=number, params=saved.params, state=dict(saved.state), version=saved.version,
                seen=dict(saved.seen),
            )  # fmt: skip
            with contextlib.suppress(TransportError):
                reply = channel.request(
                    FrameKind.STATE,
                    *block.vectors(),
                    meta=block.card(),
                    block=number,
                    step=at(command.era, newest.step),
                )
                reply.add_done_callback(partial(settled, owner))

    def _write(self, when: float, event: str, columns: dict[str, Any]) -> None:
        if event == "loss":
            self.loss = columns["loss"]
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
        ControllerProcess(folder, secrets=Secrets.read(raw) if raw else None).run()


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
