"""A process of a job: `python -m labkit.elastic.process.member FOLDER ROLE NAME [SITE [DEVICE]]`."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Cause
from labkit.elastic.controller.losses import STOP
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.causes import NO_MEMORY, told
from labkit.elastic.process.endpoints import Endpoints
from labkit.elastic.process.gpus import local_name
from labkit.elastic.process.launchers import end_orphans
from labkit.elastic.process.limits import BRAKE, Amounts, limits_here
from labkit.elastic.process.time_limits import Waking, Watchdog
from labkit.elastic.protocol.blocks import BLOCKS, Layout, Param
from labkit.elastic.protocol.messages import FrameKind
from labkit.elastic.protocol.network import NetworkConfig, Refusals, claimed
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site
from labkit.elastic.server.busy_time import update_s
from labkit.elastic.transport import (
    Channel,
    FrameError,
    Handler,
    Lease,
    Message,
    Peer,
    Scheme,
    TransportError,
    connect,
)
from labkit.oom import is_memory

if TYPE_CHECKING:
    from labkit.elastic.checkpoint.store import Checkpoints

SPEC = "job.json"
CONTROLLER = "controller.sock"
CHECKPOINTS = "checkpoints"
SEEK_LEASES = 2
"""Leases that a process tries to reach a server again before it says that it cannot."""
BLOCKS_OF_A_NOTICE = 400
"""So that what is told of blocks fits into frames."""
KEEP_S = 0.25
"""Seconds at a time that a worker waits for the sake of its share of cores: it may be told to stop meanwhile."""
LOOK_AT_MEMORY_S = 0.25
"""Between two looks at the memory of a process that limits itself."""
PATIENCE_LEASES = 10
"""Leases that a process goes on without a controller before it ends itself."""
LOOKS = 10
"""Times in its patience that a worker looks whether it still comes forward."""
END_LEASES = 2
"""Leases that a process has to end by itself; then its watchdog ends it, whatever it is doing."""
ATTEMPTS = 3
"""To connect to a server that is said to be there."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What every process of a job knows.

    Attributes
    ----------
    params : list
        Name, first number in the flat vector, and shape of each parameter.
    extents : list
        First parameter and number of parameters of each block.
    optimizer : str
        Name; `options` are its own.
    batch, n_shards, n_steps : int
        Samples of a global batch, V, and steps of the training.
    seed : int
        Of the order of samples, and of whatever a model draws.
    sync : bool
        Whether all workers make an update together, or each its own.
    n_samples : int
        Of the dataset.
    lease_s : float
        From which every other timeout derives.
    start_s, patience_s : float
        How long a process may take to come, and a worker for the gradient of one logical shard or minibatch.
    scheme : str
        Of the connections between processes: shm, unix, tls, tcp.
    reach : dict
        Where processes can be reached: see `NetworkConfig`.
    sites : list of dict
        Where they may sit: see `Site`; none for a job that is all in one place.
    on_nan : str
        What happens where a loss is no finite number: "stop" or "continue".
    paths : list of str
        Where the process that started the job finds modules.
    loads_every_s : float
        Seconds between two events in which a server tells the gradient bytes that have come; 0: it does not.
    measure_every_s : float
        Seconds between two events that tell what each process uses; 0: there are none.
    partition : str
        "blocks" or "tensor": see `labkit.elastic.protocol.blocks`.
    """

    params: list[tuple[str, int, list[int]]]
    extents: list[tuple[int, int]]
    optimizer: str
    options: dict[str, Any]
    batch: int
    n_shards: int
    n_steps: int
    seed: int = 0
    sync: bool = True
    n_samples: int = 0
    lease_s: float = 3.0
    start_s: float = 300.0
    patience_s: float = 300.0
    scheme: str = "shm"
    devices: tuple[str, ...] = ()
    reach: dict[str, Any] = field(default_factory=dict)
    sites: list[dict[str, Any]] = field(default_factory=list)
    on_nan: str = STOP
    paths: list[str] = field(default_factory=list)
    loads_every_s: float = 0.0
    measure_every_s: float = 0.0
    partition: str = BLOCKS

    @property
    def places(self) -> dict[str, Site]:
        """Where members may sit, by name; `here` for a job without sites."""
        sites = [Site.read(said) for said in self.sites] or [NOWHERE_ELSE]
        return {site.name: site for site in sites}

    def reach_at(self, site: str) -> NetworkConfig:
        """Return where a member on a site can be reached; of a job without sites, any member."""
        reach = NetworkConfig(**self.reach)
        return replace(reach, hosts=(self.places[site].address,)) if site else reach

    def save(self, folder: Path) -> None:
        """Write it into the folder of the job."""
        (folder / SPEC).write_text(json.dumps(asdict(self)))

    @property
    def layout(self) -> Layout:
        """Where parameters and blocks lie."""
        params = tuple(Param(name, first, tuple(shape)) for name, first, shape in self.params)
        return Layout(params, tuple((first, n) for first, n in self.extents))

    def checkpoints(self, folder: Path) -> Checkpoints:
        """Return the checkpoints of the job in this folder."""
        from labkit.elastic.checkpoint.store import Checkpoints
        from labkit.elastic.server.optimizers import optimizer

        return Checkpoints(
            folder / CHECKPOINTS, layout=self.layout, optimizer=optimizer(self.optimizer, **self.options),
            training=self.training,
        )  # fmt: skip

    @property
    def training(self) -> dict[str, int]:
        """What decides which samples a step takes, and the order of their sum."""
        return {"seed": self.seed, "batch": self.batch, "n_shards": self.n_shards, "n_samples": self.n_samples}

    @classmethod
    def load(cls, folder: Path) -> Spec:
        """Read it."""
        return cls(**json.loads((folder / SPEC).read_text()))


class FromController(Handler):
    """What the controller says, into a queue."""

    def __init__(
        self,
        take: Any,
        *,
        opened: Callable[[Channel], None],
        closed: Callable[[Channel, TransportError | None], None],
        exhausted: Callable[[BaseException], None],
    ) -> None:
        self._take, self._opened, self._closed, self._exhausted = take, opened, closed, exhausted

    def opened(self, channel: Channel) -> None:
        """Make it known before the first order comes: it may ask for an answer."""
        self._opened(channel)

    def received(self, channel: Channel, message: Message) -> None:
        """Pass on what the controller tells; blocks go to whoever installs them."""
        if message.head.kind == FrameKind.TELL:
            self._take(dict(message.meta))
        elif message.head.kind == FrameKind.STATE:
            self._take({"do": "install", "channel": channel, "message": message})

    def exhausted(self, error: BaseException) -> None:
        """End this process."""
        self._exhausted(error)

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Note that the controller is away."""
        self._closed(channel, reason)


class MemberProcess:
    """What servers and workers have in common: the controller, and connections to servers."""

    role = ""

    def __init__(self, folder: Path, name: str, site: str = "") -> None:
        self.folder, self.name = folder, name
        fault.arm(folder, name=name)
        fault.at("member.begins")
        self.spec = Spec.load(folder)
        self.lease = Lease(self.spec.lease_s)
        self.watchdog = Watchdog(name)
        limit_s = self.spec.start_s + PATIENCE_LEASES * self.lease.base_s
        self.watchdog.limit(limit_s, "it was started, and has not joined its job")
        self.ways = Endpoints(
            folder, reach=self.spec.reach_at(site), scheme=self.spec.scheme, name=name, role=self.role
        )
        self.orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.servers: dict[str, Channel] = {}
        self.addresses: dict[str, str] = {}
        self.seeking: set[str] = set()
        self.over = threading.Event()
        self.abandoned = False
        """Whether it ends because there has been no controller for too long."""
        self.met = threading.Lock()
        self.controller: Channel | None = None
        self.limits = limits_here()
        self._watched = False

    def report(self, event: str, **columns: Any) -> None:
        """Tell the controller; what it does not hear it asks for when it is back.

        What cannot be told at all ends the job: to leave it out would let others wait for ever.
        """
        channel = self.controller
        if channel is None:
            return
        try:
            channel.send(FrameKind.REPORT, meta={"event": event, **columns})
        except FrameError as error:
            with contextlib.suppress(TransportError):
                channel.send(
                    FrameKind.REPORT, meta={"event": "failed", "why": f"'{event}' cannot be told: {error}"[:2000]}
                )
        except TransportError:
            return

    def hello(self) -> dict[str, Any]:
        """Return what this process says about itself."""
        ways = self.ways
        unable = {"unable": ways.unable} if ways.unable else {}
        return {"name": self.name, "role": self.role, "pid": os.getpid(), "address": ways.address, **unable}

    def join(self) -> bool:
        """Connect to the controller; False if there is none for too long."""
        until = time.monotonic() + PATIENCE_LEASES * self.lease.base_s
        pause, why = threading.Event(), ""
        while time.monotonic() < until:
            try:
                channel = connect(
                    **self._routed("controller", self.ways.to_controller()), hello=self.hello(), lease=self.lease,
                    handler=FromController(
                        self.take, opened=self._found, closed=self._lost, exhausted=self.exhausted
                    ),
                )  # fmt: skip
            except TransportError as error:
                why = str(error)
                pause.wait(self.lease.heartbeat_s)
            else:
                self.ways.admitted(channel.peer)
                return True
        print(f"{self.name} ends, {PATIENCE_LEASES * self.lease.base_s} s without a controller: {why}", file=sys.stderr)
        return False

    def _found(self, controller: Channel) -> None:
        self.watchdog.free()
        self.controller = controller

    def _lost(self, controller: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        """Note that the controller is away: without one this process ends, in its own time or by force."""
        if not self.over.is_set():
            limit_s = (PATIENCE_LEASES + END_LEASES) * self.lease.base_s
            self.watchdog.limit(limit_s, "it lost its controller")
        self._check_memory(reason)
        self.take({"do": "alone"})

    def _check_memory(self, reason: TransportError | None) -> None:
        """End this process if a connection broke for want of memory: it would break again and again."""
        if reason is not None and is_memory(reason):
            self.exhausted(reason)

    def exhausted(self, error: BaseException) -> None:
        """End this process, which ran out of memory: what it has may be half changed."""
        why = f"out of memory: {error}"[:300]
        print(f"{self.name} ends: {why}", file=sys.stderr, flush=True)
        self.report("no_memory", why=why)
        if self.controller is not None:
            with contextlib.suppress(TransportError, TimeoutError):
                self.controller.flush(timeout_s=self.lease.base_s)
        os._exit(NO_MEMORY)

    def _routed(self, to: str, way: dict[str, Any]) -> dict[str, Any]:
        return {**way, "address": fault.route(self.folder, way["address"], of=self.name, to=to)}

    def take(self, order: dict[str, Any]) -> None:
        """Take an order, in the thread of the controller's connection."""
        self.orders.put(order)

    def resize(self, order: Mapping[str, Any]) -> Amounts:
        """Limit this process to other cores and memory from now on, tell of it, and return them."""
        amounts = Amounts(order["cpus"], order["memory_gb"])
        unable = self.limits.apply(os.getpid(), amounts)
        cores, how = sorted(os.sched_getaffinity(0)), self.limits.how
        self.report("resized", cpus=amounts.cpus, memory_gb=amounts.memory_gb, cores=cores, how=how, unable=unable)
        if amounts.memory_gb is not None and self.limits.how == BRAKE and not self._watched:
            self._watched = True
            threading.Thread(target=self._watch_memory, name="memory", daemon=True).start()
        return amounts

    def _watch_memory(self) -> None:
        """End this process when it has more memory than it may, where the kernel does not see to that."""
        while not self.over.wait(LOOK_AT_MEMORY_S):
            why = self.limits.exceeded()
            if why:
                self.exhausted(MemoryError(why))

    def meet(self, name: str, address: str, handler: Handler) -> None:
        """Connect to a server before it is needed."""
        if name in self.seeking:
            return
        if name not in self.servers:
            self.addresses[name] = address
            try:
                self._keep(name, self._reached(name, address, handler))
            except (TransportError, InputError) as error:
                self.report("unmet", name=name, why=str(error)[:300])
                return
        self.report("met", name=name)

    def _keep(self, name: str, channel: Channel) -> None:
        with self.met:
            self.servers[name] = channel
            self.seeking.discard(name)
        self.connected(name, channel)

    def connected(self, name: str, channel: Channel) -> None:
        """Note a connection to a server."""

    def broke(self, channel: Channel, reason: TransportError | None) -> None:
        """Tell of a connection that ended without a goodbye: a cut, a silence, a frame that was refused."""
        if reason is not None and not self.over.is_set():
            name = str(channel.peer.hello.get("name", ""))[:60]
            self.report("cut", peer=name, reason=reason.reason, why=str(reason)[:300])

    def ended(self, channel: Channel, reason: TransportError | None) -> None:
        """Note the end of a connection to a server; one that broke is made again."""
        self.broke(channel, reason)
        self._check_memory(reason)
        with self.met:
            name = next((name for name, known in self.servers.items() if known is channel), None)
            if name is not None:
                del self.servers[name]
        if name is not None and reason is not None and not self.over.is_set():
            self.orders.put({"do": "seek", "name": name})

    def seek(self, name: str, handler: Handler) -> None:
        """Try to reach a server until it answers, or the controller must hear that it does not."""
        if name not in self.servers and name not in self.seeking:
            self.seeking.add(name)
            threading.Thread(target=self._seek, args=(name, handler), name=f"seeking {name}", daemon=True).start()

    def _seek(self, name: str, handler: Handler) -> None:
        until, why = time.monotonic() + SEEK_LEASES * self.lease.base_s, ""
        while time.monotonic() < until and not self.over.wait(self.lease.heartbeat_s):
            try:
                self._keep(name, self._reached(name, self.addresses[name], handler, attempts=1))
            except (TransportError, InputError) as error:
                why = str(error)[:300]
            else:
                self.report("met", name=name)
                return
        self.seeking.discard(name)
        if not self.over.is_set():
            self.report("unmet", name=name, why=why)

    def _reached(self, name: str, address: str, handler: Handler, *, attempts: int = ATTEMPTS) -> Channel:
        """Return a connection to a server; it may be too busy to answer the first time."""
        way, pause = self._routed(name, self.ways.to_server(name, address)), threading.Event()
        for _ in range(attempts - 1):
            with contextlib.suppress(TransportError):
                return connect(**way, handler=handler, hello=self.hello(), lease=self.lease)
            pause.wait(self.lease.heartbeat_s)
        return connect(**way, handler=handler, hello=self.hello(), lease=self.lease)

    def close(self) -> None:
        """Say goodbye to everybody."""
        self.over.set()
        for channel in (*self.servers.values(), self.controller):
            if channel is not None:
                channel.close()

    def loop(self) -> None:
        """Do what the controller says until it says stop, or is away for too long."""
        while True:
            order = self.orders.get()
            if order["do"] == "stop":
                self.watchdog.limit(END_LEASES * self.lease.base_s, "it was told to stop")
                return
            if order["do"] == "alone":
                self.controller = None
                if not self.join():
                    self.abandoned = True
                    return
                continue
            self.do(order)

    def do(self, order: Mapping[str, Any]) -> None:
        """Carry out one order."""
        raise NotImplementedError

    def run(self) -> None:
        """Be this process, to its end."""
        raise NotImplementedError


class ServerMember(MemberProcess):
    """The process of a parameter server."""

    role = "server"

    def __init__(self, folder: Path, name: str, site: str = "") -> None:
        from labkit.elastic.server.arrivals import Arrivals
        from labkit.elastic.server.optimizers import optimizer
        from labkit.elastic.server.server import ParameterServer
        from labkit.elastic.transport.shared_arrays import SharedArrayPool

        super().__init__(folder, name, site)
        chosen = optimizer(self.spec.optimizer, **self.spec.options)
        chosen.init(1)  # compiles what an update needs
        self.server = ParameterServer(
            name,
            optimizer=chosen,
            n_shards=self.spec.n_shards,
            sync=self.spec.sync,
            report=self.report,
            copy=self._copy,
            shared_pool=SharedArrayPool() if self.spec.sync and self.spec.scheme == Scheme.SHM else None,
        )

        def welcome(peer: Peer) -> Handler:
            _, role = claimed(peer)
            return Arrivals(
                self.server, role=role, ended=self._ended_by_peer, exhausted=self.exhausted, keep=self._let_wait
            )

        self._welcome = welcome
        self._arrivals = Arrivals(
            self.server, role="server", ended=self.ended, exhausted=self.exhausted, keep=self._let_wait
        )
        self._known: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "install": self._install, "meet": self._meet_server, "era": self._begin_era, "tell": self._tell_all,
            "hand_over": self._hand_over, "take_back": self._take_back, "copy": self._copy_at,
            "seek": self._seek_server, "forget": self._forget, "follow": self._follow, "own": self._own,
            "unfollow": self._unfollow, "resize": self.resize, "loads": self._tell_each_load,
        }  # fmt: skip
        self.ways.reserve()

    def _copy(self, block: int, step: int, vectors: list[Any], card: dict[str, Any]) -> None:
        channel = self.controller
        if channel is not None:
            with contextlib.suppress(TransportError):  # the next controller asks again
                channel.send(FrameKind.SNAPSHOT, *vectors, meta=card, block=block, step=step)

    def _let_wait(self) -> None:
        """Let a connection wait for the sake of this server's share of cores, but not for half a lease."""
        self.limits.keep(most_s=self.lease.base_s / 2)

    def _ended_by_peer(self, channel: Channel, reason: TransportError | None) -> None:
        self.broke(channel, reason)
        self._check_memory(reason)

    def do(self, order: Mapping[str, Any]) -> None:
        """Carry out one order."""
        try:
            self._known[order["do"]](order)
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_memory(error):
                raise
            self.exhausted(error)

    def _install(self, order: Mapping[str, Any]) -> None:
        self.server.handover.install(order["channel"], order["message"])

    def _begin_era(self, order: Mapping[str, Any]) -> None:
        self.server.begin_era(order["era"])

    def _hand_over(self, order: Mapping[str, Any]) -> None:
        moves = {int(block): name for block, name in order["moves"]}
        mine, of = order.get("turn", (0, 1))
        self.server.handover.hand_over(moves, version=order["version"], turn=(mine, of))

    def _take_back(self, order: Mapping[str, Any]) -> None:
        self.server.handover.take_back(order["blocks"])

    def _follow(self, order: Mapping[str, Any]) -> None:
        self.server.replicas.follow(order["blocks"])

    def _own(self, order: Mapping[str, Any]) -> None:
        self.server.replicas.promote(order["blocks"])

    def _unfollow(self, order: Mapping[str, Any]) -> None:
        self.server.replicas.unfollow(order["blocks"])

    def _copy_at(self, order: Mapping[str, Any]) -> None:
        late = self.server.copy_at(order["version"])
        if late:
            self.report("late", version=order["version"], blocks=late[:100], era=self.server.era)

    def _tell_all(self, _: Mapping[str, Any]) -> None:
        """Tell a new controller which blocks are here."""
        version = 0
        for block, at_version, moves in self.server.blocks.owned():
            self.report("owns", block=block, version=at_version, moves=moves, era=self.server.era)
            version = max(version, at_version)
        for block, at_version, moves, owner in self.server.handover.unconfirmed():
            self.report(
                "unsure", block=block, version=at_version, owner=owner, moves=moves, era=self.server.era,
                why="the controller was away",
            )  # fmt: skip
        for block, owner in self.server.handover.moving():
            self.report("moving", block=block, owner=owner, era=self.server.era)
        for slot in self.server.blocks.slots():
            self.server.replicas.report_replica(slot)
        self.report("here", version=version, has=self.server.era)

    def _meet_server(self, order: Mapping[str, Any]) -> None:
        self.meet(order["name"], order["address"], self._arrivals)

    def connected(self, name: str, channel: Channel) -> None:
        """Hand blocks over through it."""
        self.server.peers.add_server(name, channel, self.addresses[name])

    def _seek_server(self, order: Mapping[str, Any]) -> None:
        self.seek(order["name"], self._arrivals)

    def _forget(self, order: Mapping[str, Any]) -> None:
        self.server.handover.forget(order["blocks"])

    def run(self) -> None:
        """Serve until told to stop."""
        if self.join():
            listener = self.ways.listen(
                welcome=self._welcome,
                hello={"name": self.name},
                lease=self.lease,
                refused=Refusals(partial(self.report, "refused")),
            )
            if self.spec.loads_every_s:
                threading.Thread(target=self._tell_loads, name="loads", daemon=True).start()
            self.loop()
            if self.abandoned:
                self._end_orphans()
            if listener is not None:
                listener.close()
        self.close()

    def _tell_loads(self) -> None:
        """Tell now and then how many bytes of gradients came and how long updates took, if the job asks."""
        before, model_bytes = 0, 4 * self.spec.layout.n
        while not self.over.wait(self.spec.loads_every_s):
            taken = self.server.blocks.taken_bytes()
            came = taken - before if taken >= before else taken  # an era begins at 0
            took_s = update_s(self.server.busy.taken_s(), n_bytes=came, model_bytes=model_bytes)
            self.report("served", bytes=came, **({} if took_s is None else {"update_s": took_s}))
            before = taken

    def _tell_each_load(self, order: Mapping[str, Any]) -> None:
        """Tell the load of each block, as a request to balance them asks."""
        loads = [[block, round(per_s, 1)] for block, per_s in self.server.blocks.loads()]
        for i in range(0, max(len(loads), 1), BLOCKS_OF_A_NOTICE):
            last = i + BLOCKS_OF_A_NOTICE >= len(loads)
            columns = {"number": order["number"], "loads": loads[i : i + BLOCKS_OF_A_NOTICE], "last": last}
            self.report("loads", **columns, era=self.server.era)

    def _end_orphans(self) -> None:
        """End those who should have ended by now: a worker may hold its interpreter's lock, and its watchdog up."""
        self.watchdog.free()
        threading.Event().wait((END_LEASES + 1) * self.lease.base_s)
        ended = end_orphans(self.folder)
        if ended:
            print(f"{self.name} ended {', '.join(ended)}: no controller, and they hung.", file=sys.stderr, flush=True)
        self.watchdog.limit(END_LEASES * self.lease.base_s, "it lost its controller")


class WorkerMember(MemberProcess):
    """The process of a worker."""

    role = "worker"

    def __init__(self, folder: Path, name: str, site: str = "", device: str = "") -> None:
        import torch

        from labkit.elastic.protocol.program import Program, find_modules
        from labkit.elastic.transport.shared_arrays import SharedRegions
        from labkit.elastic.worker.arrivals import FromServers
        from labkit.elastic.worker.asynchronous import AsyncWorker
        from labkit.elastic.worker.flat import FlatModel
        from labkit.elastic.worker.forward import SampleLoss
        from labkit.elastic.worker.synchronous import Worker

        super().__init__(folder, name, site)
        torch.set_num_threads(1)
        self._n_threads = self._set_threads = 1
        find_modules(self.spec.paths)
        self.program = Program.load(folder)
        devices = self.spec.devices or ("cpu",)
        number = int(name.rsplit("-", 1)[1])
        self.device = local_name(device) if device else devices[number % len(devices)]
        common: dict[str, Any] = {
            "extents": [(first, n) for first, n in self.spec.extents], "channel_of": self._channel,
            "report": self.report, "finite": self.spec.on_nan == STOP,
            "keep": partial(self.limits.keep, most_s=KEEP_S),
        }  # fmt: skip
        spec = self.spec
        lender = SharedRegions() if spec.sync and spec.scheme == Scheme.SHM else None
        flat = FlatModel(self.program.model, device=self.device, lender=lender)
        self._forward = SampleLoss(self.program, device=self.device, seed=spec.seed)
        self.worker: Worker | AsyncWorker = (
            Worker(flat, loss_of=self._loss, n_shards=spec.n_shards, n_steps=spec.n_steps, **common)
            if spec.sync
            else AsyncWorker(
                flat, loss_of=self._loss_between, batch=spec.batch, number=number, lease_s=spec.lease_s, **common
            )
        )
        self._handler = FromServers(
            self.worker, fetch=getattr(self.worker, "fetch", None), ended=self.ended, exhausted=self.exhausted
        )

    def _channel(self, server: str) -> Channel:
        channel = self.servers.get(server)
        if channel is None:
            raise TransportError(f"{server} is not connected")  # `connected` asks again as soon as it is
        return channel

    def _loss(self, step: int, leaf: int) -> Any:
        """Return the loss of one logical shard; what a model draws depends on seed, step and shard alone."""
        from labkit.elastic.shards import samples_of

        spec = self.spec
        samples = samples_of(
            step, leaf, n_samples=spec.n_samples, batch=spec.batch, n_shards=spec.n_shards, seed=spec.seed
        )
        return self._forward(samples.tolist(), (step, leaf))

    def _loss_between(self, epoch: int, start: int, end: int) -> Any:
        """Return the loss of some positions of the order of an epoch."""
        from labkit.elastic.shards import order

        self._follow_cores()
        samples = order(self.spec.n_samples, self.spec.seed, epoch)[start:end]
        return self._forward(samples.tolist(), (epoch, start))

    def _follow_cores(self) -> None:
        """Compute with as many threads as this worker was given cores, from the next gradient on.

        Only where training is asynchronous: sums may depend on the number of threads, and synchronous training has the
        same bits whatever happens.
        """
        if self._set_threads != self._n_threads:
            import torch

            self._set_threads = self._n_threads
            torch.set_num_threads(self._set_threads)

    def resize(self, order: Mapping[str, Any]) -> Amounts:
        """Let the threads follow too."""
        amounts = super().resize(order)
        cores = len(os.sched_getaffinity(0)) if amounts.cpus is not None else 1
        self._n_threads = min(cores, math.ceil(amounts.cpus or 1))
        return amounts

    def _found(self, controller: Channel) -> None:
        """Tell first of all what one before may not have heard: this one may not know this worker, and send it away."""
        super()._found(controller)
        self.worker.repeat_losses()

    def take(self, order: dict[str, Any]) -> None:
        """Pass on what concerns the steps at once."""
        if order["do"] in (
            "meet",
            "seek",
            "alone",
            "tell",
            "resize",
        ):  # an answer waits until the new controller is known here
            self.orders.put(order)
            if order["do"] == "alone":
                self.worker.on_order(order)
        elif order["do"] == "moved":
            self.worker.on_moved(order)
        else:
            self.worker.on_order(order)
            if order["do"] == "stop":
                self.orders.put(order)

    def do(self, order: Mapping[str, Any]) -> None:
        """Connect to a server, or tell a new controller how far this worker is."""
        if order["do"] == "tell":
            self.worker.on_order(dict(order))
            self.report("here", **self.worker.progress())
        elif order["do"] == "resize":
            self.resize(order)
        elif order["do"] == "seek":
            self.seek(order["name"], self._handler)
        else:
            self.meet(order["name"], order["address"], self._handler)

    def connected(self, name: str, channel: Channel) -> None:  # noqa: ARG002
        """Ask again for what did not come."""
        self.worker.reconnected(name)

    def run(self) -> None:
        """Train until told to stop."""
        if not self.join():
            return
        threading.Thread(target=self._attend, name="orders", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            self.worker.run()
            self.close()
        except Exception as error:  # the user's model: the job ends with what it said
            named = "" if isinstance(error, LabkitError) else f"{type(error).__name__}: "
            cause = Cause.OUT_OF_MEMORY if is_memory(error) else Cause.ERROR
            self.report("failed", why=f"{named}{error}"[:2000], cause=told(cause))
            if self.controller is not None:
                with contextlib.suppress(TransportError, TimeoutError):
                    self.controller.flush(timeout_s=self.lease.base_s)
            raise

    def _watch(self) -> None:
        """Tell when data or model take so long that they will never come back."""
        patience_s = self.spec.patience_s
        waking, seen, since_s = Waking(), self.worker.busy, 0.0
        while not self.over.wait(patience_s / LOOKS):
            busy, awake_s = self.worker.busy, waking.look(every_s=patience_s / LOOKS)
            if busy != seen:
                seen, since_s = busy, awake_s
            if busy is not None and awake_s - since_s >= patience_s:
                where = "step {}, logical shard {}" if self.spec.sync else "epoch {}, minibatch at {}"
                why = f"{where.format(*busy[0])}: no gradient after {patience_s:g} s; the data or the model hangs"
                self.report("stuck", place=list(busy[0]), why=why)

    def _attend(self) -> None:
        self.loop()
        self.worker.on_order({"do": "stop"})


def main(arguments: list[str]) -> None:
    """Be a process of a job."""
    folder, role, name, *seat = arguments
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 writes into the log what every thread is doing
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides when it is over
    kinds: dict[str, type[MemberProcess]] = {"server": ServerMember, "worker": WorkerMember}
    kinds[role](Path(folder), name, *seat).run()
    os._exit(0)  # all is sent and closed; what libraries do at the end of a process takes a second


if __name__ == "__main__":
    main(sys.argv[1:])
