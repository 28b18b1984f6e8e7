"""A job in one process: the real controller, servers and workers, and a network that delivers in any order it likes.

Frames of a connection arrive in order; which connection is next is drawn. What is sent is read only when it arrives,
as in shared memory, and a worker's gradients become nonsense as soon as it gives their memory back: a server that
relies on them for longer does not end with the right parameters.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.controller_state import (
    Command,
    End,
    JobTerms,
    Keep,
    Load,
    Note,
    Over,
    SavedMachine,
    Start,
    Tell,
)
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.codec import (
    FrameKind,
    at,
    decode,
    encode,
    era_and_version,
    from_json,
    hello,
    to_json,
)
from labkit.elastic.protocol.messages.orders import (
    BeginEra,
    ConnectTo,
    CopyBlocks,
    DropReplicas,
    ForgetBlocks,
    HandOver,
    Order,
    Promote,
    Replicate,
    ReportState,
    Stop,
    TakeBack,
)
from labkit.elastic.protocol.messages.reports import (
    Connected,
    ConnectFailed,
    CopyLate,
    OwnsBlock,
    Report,
    StateReported,
    Transferring,
    TransferUnconfirmed,
)
from labkit.elastic.protocol.summation_tree import Node, halves
from labkit.elastic.server.block import Block
from labkit.elastic.server.optimizers import optimizer
from labkit.elastic.server.server import Arrivals, ParameterServer
from labkit.elastic.transport import ClosedError, Handler, Head, Message, Peer, PeerLostError, RemoteError
from labkit.elastic.worker.push_pull import FromServers
from labkit.elastic.worker.synchronous import Worker
from tests.hang import HANG_S


class HungError(AssertionError):
    """Each process waits for another."""


class Wire:
    """One direction of a connection: what is sent and has not arrived."""

    def __init__(self, network: Network) -> None:
        self.network, self.queue, self.cut = network, deque[Callable[[], None]](), False
        self.n_sent = self.n_arrived = 0

    def put(self, arrive: Callable[[], None]) -> int:
        with self.network.lock:
            self.n_sent += 1
            if not self.cut:
                self.queue.append(arrive)
                self.network.more.notify_all()
            return self.n_sent


class Network:
    """All wires; delivers one frame at a time."""

    def __init__(self, rng: np.random.Generator, *, copies: bool) -> None:
        self.rng, self.lock, self.copies = rng, threading.RLock(), copies
        self.more = threading.Condition(self.lock)
        self.wires: list[Wire] = []
        self.weights: list[float] = []

    def wire(self) -> Wire:
        wire = Wire(self)
        with self.lock:
            self.wires.append(wire)
            self.weights.append(float(self.rng.pareto(0.6)) + 0.01)  # some are much slower than others
        return wire

    def step(self) -> None:
        """Deliver a frame."""
        with self.lock:
            if not self.more.wait_for(lambda: any(w.queue for w in self.wires), HANG_S):
                raise HungError
            if self.rng.random() < 0.02:
                self.lock.release()
                threading.Event().wait(0.0005)  # let workers run ahead now and then
                self.lock.acquire()
            full = [(w, p) for w, p in zip(self.wires, self.weights, strict=True) if w.queue]
            weights = np.array([p for _, p in full])
            wire = full[int(self.rng.choice(len(full), p=weights / weights.sum()))][0]
            arrive = wire.queue.popleft()
            wire.n_arrived += 1
        arrive()


class End_:  # noqa: N801
    """One end of a connection: a Channel."""

    def __init__(self, out: Wire, handler: Handler, *, peer: str) -> None:
        self.out, self.handler, self.closed = out, handler, False
        self.peer = Peer(peer, hello(peer, ""))
        self.other: End_ = self
        self.waiting: dict[int, Future[Message]] = {}

    def send(self, kind: int, *buffers: Any, meta: bytes = b"", block: int = 0, offset: int = 0, step: int = 0) -> int:
        return self._put(kind, buffers, meta, block, offset, step, request=0)

    def request(
        self, kind: int, *buffers: Any, meta: bytes = b"", block: int = 0, offset: int = 0, step: int = 0
    ) -> Future[Message]:
        reply: Future[Message] = Future()
        self.waiting[id(reply)] = reply
        self._put(kind, buffers, meta, block, offset, step, request=id(reply))
        return reply

    def _put(self, kind: int, buffers: Any, meta: bytes, block: int, offset: int, step: int, *, request: int) -> int:
        if self.closed:
            raise ClosedError("closed")
        flat = [np.asarray(b).reshape(-1) for b in buffers]
        if self.out.network.copies:
            flat = [part.copy() for part in flat]
        return self.out.put(lambda: self.other.arrived(kind, flat, meta, block, offset, step, request))

    def arrived(
        self, kind: int, flat: list[Vector], meta: bytes, block: int, offset: int, step: int, request: int
    ) -> None:
        if self.closed:
            return
        if kind in (FrameKind.PUSH, FrameKind.PUSH_REPLICA):
            payload = memoryview(flat[0]).cast("B").toreadonly()
        else:
            payload = memoryview(np.concatenate(flat) if flat else np.empty(0, np.float32)).cast("B")
        head = Head(int(kind), 0, 0, len(payload), block, offset, 0, request, step)
        place = None if kind in (FrameKind.PUSH, FrameKind.PUSH_REPLICA) else self.handler.place(head)
        if place is not None:
            there = memoryview(place).cast("B")
            there[: len(payload)] = payload
            payload = there[: len(payload)]
        self.handler.received(self, Message(head, meta, payload))  # type: ignore[arg-type]

    def reply(self, to: Message, *_: Any, **__: Any) -> int:
        return self.out.put(lambda: self.other.answered(to.head.request, None))

    def refuse(self, to: Message, why: str) -> int:
        return self.out.put(lambda: self.other.answered(to.head.request, RemoteError(why)))

    def answered(self, request: int, failure: Exception | None) -> None:
        reply = self.waiting.pop(request, None)
        if reply is not None and failure is None:
            reply.set_result(Message(Head(16), b"", memoryview(b"")))
        elif reply is not None:
            reply.set_exception(failure)

    def flush(self, number: int | None = None, *, timeout_s: float | None = None) -> None:
        if timeout_s is not None and number is not None and self.out.n_arrived < number:
            raise TimeoutError

    def lose(self) -> None:
        """Hear that the other end is gone."""
        self.closed = True
        for reply in list(self.waiting.values()):
            reply.set_exception(PeerLostError("gone"))
        self.waiting.clear()
        self.handler.closed(self, PeerLostError("gone"))  # type: ignore[arg-type]


class Numbers:
    """A model without torch: what a worker needs of `Flat`."""

    def __init__(self, n: int) -> None:
        self.versions = (np.zeros(n, np.float32), np.zeros(n, np.float32))
        self._used = self.versions[0]
        self.lender = None
        self._made: list[Vector] = []
        self.frozen = False
        """Whether the process is gone: it writes there no more."""

    def use(self, version: int) -> None:
        self._used = self.versions[version % 2]

    def begin(self, leaf: int = 0) -> None:
        """Have no buffers."""

    def gradient(self, loss: Loss, into: Vector) -> None:
        into[:] = gradient(self._used, loss.step, loss.leaf)

    def borrow(self) -> Vector:
        self._made.append(np.empty_like(self._used))
        return self._made[-1]

    def give_back(self, vectors: list[Vector]) -> None:
        pass

    def give_all_back(self) -> None:
        if self.frozen:
            return
        for vector in self._made:
            vector[:] = np.nan
        self._made.clear()


class Loss(float):
    step: int
    leaf: int

    def detach(self) -> Loss:
        return self


def loss(step: int, leaf: int) -> Loss:
    made = Loss(1.0)
    made.step, made.leaf = step, leaf
    return made


def gradient(params: Vector, step: int, leaf: int) -> Vector:
    return np.sin(params * np.float32(leaf + 1) + np.float32(step), dtype=np.float32)


def control(extents: list[tuple[int, int]], *, n_steps: int, n_shards: int) -> Vector:
    """Return the parameters of training to which nothing happens."""
    n = sum(size for _, size in extents)
    params, chosen = np.zeros(n, np.float32), optimizer("momentum", lr=0.1)
    state = chosen.init(n)

    def summed(node: Node, step: int) -> Vector:
        if node.size == 1:
            return gradient(params, step, node.first)
        left, right = halves(node)
        return summed(left, step) + summed(right, step)

    for step in range(n_steps):
        chosen.apply(params, summed(Node(0, n_shards), step), state, step=step + 1, scale=1 / n_shards)
    return params


class Actor:
    """A process: its connections, and what it does with what the controller says."""

    def __init__(self, stage: Stage, name: str, role: str) -> None:
        self.stage, self.name, self.role, self.alive, self.host = stage, name, role, True, ""
        self.ends: list[End_] = []
        self.servers: dict[str, End_] = {}
        self.up, self.down = stage.network.wire(), stage.network.wire()
        self.thread: threading.Thread | None = None
        if role == "server":
            self.server = ParameterServer(
                name, optimizer=optimizer("momentum", lr=0.1), n_shards=stage.n_shards, sync=True,
                report=self.report, copy=self.copy,
            )  # fmt: skip
        else:
            self.worker = Worker(
                Numbers(stage.n), extents=stage.extents, loss_of=loss, n_shards=stage.n_shards,  # type: ignore[arg-type]
                n_steps=stage.n_steps, channel_of=self.channel_of, report=self.report,
            )  # fmt: skip
            self.thread = threading.Thread(target=self.worker.run, daemon=True)

    def report(self, report: Report) -> None:
        raw = encode(report)
        self.up.put(lambda: self.stage.hear(self.name, decode(Report, raw)))

    def copy(self, block: int, step: int, vectors: list[Vector], card: BlockState) -> None:
        self.up.put(lambda: self.stage.copied(block, step, vectors, card))

    def channel_of(self, name: str) -> Any:
        if name not in self.servers:
            raise ClosedError(f"{name} is not connected")
        return self.servers[name]

    def join(self) -> None:
        self.up.put(lambda: self.stage.joined(self.name))

    def take(self, order: Order) -> None:
        """Carry out an order."""
        match order:
            case ConnectTo():
                self.meet(order.server)
            case Stop():
                self.stage.gone(self.name, prefix=False)
            case _ if self.role == "server":
                self.serve(order)
            case ReportState():
                self.report(self.worker.state())
            case _:
                self.worker.on_order(order)  # type: ignore[arg-type]

    def serve(self, order: Order) -> None:  # noqa: C901 - a case for each order
        server = self.server
        match order:
            case ReportState():
                self.tell_all()
            case CopyBlocks():
                late = server.copy_at(order.version)
                if late:
                    self.report(CopyLate(order.version, late))
            case BeginEra():
                server.begin_era(order.era)
            case HandOver():
                server.handover.hand_over(dict(order.moves), version=order.version)
            case TakeBack():
                server.handover.take_back(order.blocks)
            case Replicate():
                server.replicas.follow(order.blocks)
            case Promote():
                server.replicas.promote(order.blocks)
            case DropReplicas():
                server.replicas.unfollow(order.blocks)
            case ForgetBlocks():
                server.handover.forget(order.blocks)
            case _:
                raise AssertionError(order)

    def tell_all(self) -> None:
        version = 0
        for block, at_version, moves in self.server.blocks.owned():
            self.report(OwnsBlock(block, at_version, moves, era=self.server.era))
            version = max(version, at_version)
        for block, at_version, moves, owner in self.server.handover.unconfirmed():
            self.report(TransferUnconfirmed(block, at_version, owner, moves, "", era=self.server.era))
        for block, owner in self.server.handover.moving():
            self.report(Transferring(block, owner, era=self.server.era))
        for slot in self.server.blocks.slots():
            self.server.replicas.report_replica(slot)
        self.report(StateReported(version, self.server.era))

    def meet(self, name: str) -> None:
        other = self.stage.actors.get(name)
        if name not in self.servers:
            if other is None or not other.alive:
                self.report(ConnectFailed(name, "it is gone"))
                return
            handler: Handler = (
                Arrivals(self.server, role="server") if self.role == "server" else FromServers(self.worker)
            )
            mine = End_(self.stage.network.wire(), handler, peer=name)
            theirs = End_(self.stage.network.wire(), Arrivals(other.server, role=self.role), peer=self.name)
            mine.other, theirs.other = theirs, mine
            self.ends.append(mine)
            other.ends.append(theirs)
            theirs.handler.opened(theirs)  # type: ignore[arg-type]
            self.servers[name] = mine
            if self.role == "server":
                self.server.peers.add_server(name, mine, f"unix:/{name}")  # type: ignore[arg-type]
            else:
                self.worker.reconnected(name)
        self.report(Connected(name))


class Stage:
    """A job.

    Parameters
    ----------
    seed : int
        Of everything that is drawn.
    copies : bool
        Whether what is sent is copied at once, as sockets do between hosts, rather than read when it arrives.
    """

    def __init__(
        self, seed: int, *, servers: int = 3, workers: int = 3, n_steps: int = 12, n_blocks: int = 6,
        standby: bool = True, save_every: int = 4, sites: Mapping[str, str] | None = None,
        place: Mapping[str, tuple[int, int]] | None = None, copies: bool = False,
    ) -> None:  # fmt: skip
        self.rng = np.random.default_rng(seed)
        self.network = Network(self.rng, copies=copies)
        self.n_steps, self.n_shards = n_steps, 4
        self.extents = [(3 * b, 3) for b in range(n_blocks)]
        self.n = 3 * n_blocks
        self.terms = JobTerms(
            sizes=[3] * n_blocks, n_shards=self.n_shards, n_steps=n_steps, save_every=save_every, restarts=99,
            standby=standby, sites=sites or {"here": "here"},
        )  # fmt: skip
        self.n_frames = 0
        self.actors: dict[str, Actor] = {}
        self.notes: list[Note] = []
        self.over: str | None = None
        zeros = {b: Block(b, np.zeros(3, np.float32), {"velocity": np.zeros(3, np.float32)}) for b in range(n_blocks)}
        self.saved: dict[int, dict[int, Block]] = {0: zeros}
        self.copies: dict[int, dict[int, Block]] = {}
        self.log: list[str] = []
        self.machine = Controller(self.terms, reassign=reassign)
        self.carry_out(self.machine.start(servers=servers, workers=workers, place=place))

    # --- what the controller's process does

    def carry_out(self, commands: list[Command]) -> None:
        self.state = from_json(SavedMachine, to_json(self.machine.state()))
        do: dict[type, Callable[[Any], None]] = {
            Start: self.start, Tell: lambda c: self.tell(c.to, c.order), End: self.end, Load: self.load,
            Keep: lambda _: None, Note: self.notes.append, Over: self.finish,
        }  # fmt: skip
        for command in commands:
            self.log.append(str(command)[:300])
            do[type(command)](command)

    def start(self, command: Start) -> None:
        actor = self.actors[command.name] = Actor(self, command.name, command.role)
        actor.host = self.terms.sites[command.site]
        actor.join()
        if actor.thread is not None:
            actor.thread.start()

    def end(self, command: End) -> None:
        if command.kill:
            self.kill(command.name)
        else:
            self.tell(command.name, Stop())

    def finish(self, command: Over) -> None:
        self.over = command.failure

    def tell(self, name: str, order: Order) -> None:
        actor = self.actors.get(name)
        if actor is not None:
            raw = encode(order)
            actor.down.put(lambda: actor.take(decode(Order, raw)))

    def load(self, command: Load) -> None:
        self.copies.clear()
        version = max(self.saved)
        left = set(self.saved[version])
        for number, block in self.saved[version].items():
            actor = self.actors.get(command.owner[number])
            if actor is None or not actor.alive:
                return
            payload = memoryview(np.concatenate(block.vectors())).cast("B")
            meta = encode(replace(block.description(), moves=0, due=[]))
            head = Head(20, 0, 0, len(payload), number, 0, 0, 1, at(command.era, version))
            message = Message(head, meta, payload)

            def settled(number: int = number) -> None:
                left.discard(number)
                if not left and command.era == self.machine.job.era:
                    self.carry_out(self.machine.loaded(version))

            reply = _Answer(actor.up, settled)
            actor.down.put(
                lambda actor=actor, message=message, reply=reply: actor.server.handover.install(reply, message)
            )  # type: ignore[misc]

    def joined(self, name: str) -> None:
        if self.actors[name].alive:
            self.carry_out(self.machine.joined(name, address=f"unix:/{name}"))

    def hear(self, name: str, report: Report) -> None:
        self.log.append(f"    {name} {report}"[:300])
        self.carry_out(self.machine.reported(name, report))

    def copied(self, number: int, step: int, vectors: list[Vector], card: BlockState) -> None:
        era, version = era_and_version(step)
        if era != self.machine.job.era:
            return
        state = self.copies.setdefault(version, {})
        state[number] = Block(number, vectors[0], {"velocity": vectors[1]}, version=version)
        if len(state) == len(self.extents):
            self.copies = {v: s for v, s in self.copies.items() if v > version}
            self.saved[version] = state
            self.carry_out(self.machine.copied(version))
            self.carry_out(self.machine.saved_at(version))

    # --- what happens to processes

    def kill(self, name: str) -> None:
        """Let a process be gone from one moment to the next."""
        if name in self.actors and self.actors[name].alive:
            self.gone(name, prefix=True)

    def gone(self, name: str, *, prefix: bool) -> None:
        actor = self.actors[name]
        if not actor.alive:
            return
        self.log.append(f"--- {name} is gone")
        actor.alive = False
        with self.network.lock:
            for end in actor.ends:
                end.closed = True
                self._cut(end.out, prefix=prefix)
                end.out.queue.append(end.other.lose)
                end.other.out.cut = True
                end.other.out.queue.clear()
                end.out.cut = True
            self._cut(actor.up, prefix=prefix)
            actor.up.queue.append(lambda: self.left(name))
            actor.up.cut = actor.down.cut = True
            actor.down.queue.clear()
        if actor.role == "worker":
            actor.worker.flat.frozen = True
            actor.worker.on_order(Stop())

    def _cut(self, wire: Wire, *, prefix: bool) -> None:
        """Lose the end of what was sent: it had not left the process."""
        if prefix and wire.queue:
            for _ in range(int(self.rng.integers(len(wire.queue) + 1))):
                wire.queue.pop()

    def left(self, name: str) -> None:
        self.log.append(f"--- {name} has left")
        self.carry_out(self.machine.left(name, reason="killed"))

    def lose(self, host: str, *, alive: bool = False) -> None:
        """Let a host be gone with all that is there; `alive`: for the controller only, they go on until `perish`."""
        self.log.append(f"--- host {host}")
        for actor in [actor for actor in self.actors.values() if actor.alive and actor.host == host]:
            if not alive:
                self.gone(actor.name, prefix=True)
            with self.network.lock:
                actor.up.cut = actor.down.cut = True
                actor.up.queue.clear()
                actor.down.queue.clear()
        self.carry_out(self.machine.host_lost(host))

    def perish(self) -> None:
        """Let the processes of a lost host be gone: the controller is not told."""
        for actor in self.actors.values():
            if actor.alive and actor.host in self.machine.job.lost:
                self.gone(actor.name, prefix=True)
                with self.network.lock:
                    actor.up.queue.clear()

    def restart_controller(self) -> None:
        """Kill the controller; another one takes over."""
        self.log.append("--- controller")
        known = {member.name for member in self.state.members}
        here = [actor for actor in self.actors.values() if actor.alive and actor.name in known]
        self.machine = Controller(self.terms, reassign=reassign)
        self.copies.clear()
        gone = [m.name for m in self.state.members if m.name not in {a.name for a in here}]
        with self.network.lock:
            for actor in self.actors.values():
                actor.up.queue.clear()
                actor.down.queue.clear()
        self.carry_out(self.machine.take_over(self.state))
        for actor in here:
            actor.join()
        for name in gone:
            self.left(name)

    # --- the run

    def redundant(self, victims: list[str]) -> bool:
        """Tell whether nothing is lost if these die now: all they own is followed by another server."""
        machine = self.machine
        heirs = [
            machine.replication.replicas.get(b, ("", 0))[0]
            for b, owner in machine.job.owner.items()
            if owner in victims
        ]
        return all(h in self.actors and self.actors[h].alive and h not in victims for h in heirs)

    def run(self, at_frames: dict[int, Callable[[Stage], None]] | None = None) -> Vector:
        """Run to the end; return the parameters."""
        todo, n = dict(at_frames or {}), 0
        try:
            while self.over is None:
                self.network.step()
                n = self.n_frames = n + 1
                for when in [w for w in todo if w <= n]:
                    todo.pop(when)(self)
        except HungError:
            told = "\n".join([*self.log[-150:], *self.where_all_stand()])
            raise AssertionError(
                f"it hangs in phase {self.machine.job.phase}, {self.machine.requests.current}\n{told}"
            ) from None
        finally:
            for actor in self.actors.values():
                if actor.role == "worker":
                    actor.worker.on_order(Stop())
        assert self.over == "", self.over
        last = self.saved[self.n_steps]
        return np.concatenate([last[b].params for b in sorted(last)])

    def where_all_stand(self) -> list[str]:
        """Return lines that tell what each process has and waits for."""
        replication = self.machine.replication
        lines = [f"shadow {replication.replicas} coming {replication.pending} owner {self.machine.job.owner}"]
        for actor in (actor for actor in self.actors.values() if actor.alive):
            if actor.role == "worker":
                w, orders = actor.worker, actor.worker._orders
                lines.append(
                    f"{actor.name}: at {w.version} wants {w._wanted}, lacks {w._missing}, behind {w._replicas.behind}, "
                    f"shards {orders.shards}, sums {list(w._gradients.sums)}, {orders}"
                )
                continue
            for slot in actor.server.blocks.slots():
                lines.append(
                    f"{actor.name}: {slot.number} at {slot.block and (slot.block.version, list(slot.block.sums))}, "
                    f"shadow {slot.shadow}, follower {slot.follower}, leaving {slot.leaving}, gone {slot.gone}, "
                    f"{len(slot.parked)} parked, wanted {[v for _, v in slot.wanted]}, {len(slot.asks)} asks"
                )
        return lines

    def events(self) -> list[str]:
        return [note.event for note in self.notes]


class _Answer:
    """The sender of a block of a checkpoint."""

    def __init__(self, wire: Wire, settled: Callable[[], None]) -> None:
        self._wire, self._settled = wire, settled

    def reply(self, _: Message) -> None:
        self._wire.put(self._settled)

    def refuse(self, _: Message, why: str) -> None:
        pass


def bind(vector: Any, model: Any) -> None:
    """Make the parameters of a model views of a flat vector: the model computes with what is written into it."""
    import torch

    params = list(model.parameters())
    for p, part in zip(params, torch.from_numpy(vector).split([p.numel() for p in params]), strict=True):
        p.data = part.view(p.shape)


def part_of(cut: Any, name: str, vector: Any) -> Any:
    """Return a parameter of a flat vector in its shape, as a view."""
    p = next(p for p in cut.params if p.name == name)
    return vector[p.first : p.first + p.n].reshape(p.shape)
