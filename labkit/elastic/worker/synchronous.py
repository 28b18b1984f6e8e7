"""A worker: computes gradients of its logical shards, pushes them block by block, and waits for the next version."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np

from labkit.elastic.controller.losses import NotFiniteError, check_finite, encoded
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import FrameKind, at, era_and_version
from labkit.elastic.protocol.summation_tree import Node, cover, halves
from labkit.elastic.transport import Channel, FrameError, Handler, Head, Message, TransportError
from labkit.elastic.transport.frames import SHARED
from labkit.elastic.transport.shared_arrays import fetch
from labkit.elastic.worker.flat import FlatModel
from labkit.elastic.worker.replicas import StepReplicas

LOSSES_TOLD = 512
"""Steps whose losses are told again to a controller that may not have heard them."""

Extent = tuple[int, int]
"""First number of a block in the flat vector, and how many."""


def unlimited() -> bool:
    """Wait for nothing: no limit asks for it."""
    return False


class Halted(Exception):  # noqa: N818 - not a failure: training goes on elsewhere
    """What is under way is of no use any more: training goes back to a checkpoint, or ends."""


@dataclass(slots=True)
class Directives:
    """What a worker was told last; guarded by the worker's condition."""

    era: int = 0
    start: int | None = None
    """Version with which the era begins."""
    leaves: Extent = (0, 0)
    """Its logical shards, from first to before last."""
    dealt: bool = False
    """Whether they have just been dealt anew."""
    hold_at: int | None = None
    """Version at which to stand still until told to go on."""
    stop: bool = False
    afresh: bool = False
    """Whether what is under way is of no use any more."""
    owner: dict[int, str] = field(default_factory=dict)
    moves: dict[int, int] = field(default_factory=dict)
    """With how many moves the owner has a block: one that had it before, and does not have it yet, waits for it."""
    known: dict[int, int] = field(default_factory=dict)
    """Moves of a block of which the worker has heard."""
    coming: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    """From which version on a block has other owners: (version, moves, owner), in order of the moves."""
    moved: set[int] = field(default_factory=set)
    """Blocks that have a new owner, which has not been asked yet."""


class Worker:
    """The training loop of one worker in synchronous mode.

    Parameters
    ----------
    flat : FlatModel
        The model.
    extents : sequence
        Of each block.
    loss_of : callable
        Tensor of the loss of logical shard `leaf` at step `step`: (step, leaf).
    n_shards : int
        V.
    n_steps : int
        Of the whole training.
    channel_of : callable
        Connection to a server by name; raises TransportError where there is none.
    report : callable
        Tells the controller an event and its columns.
    finite : bool
        Whether a loss that is NaN or infinite ends training, before its gradient goes anywhere.
    keep : callable
        Lets this thread wait, after a piece of work, for as long as a limit of cores asks, but not for long; tells
        whether more is to be waited.
    """

    def __init__(
        self,
        flat: FlatModel,
        *,
        extents: Sequence[Extent],
        loss_of: Callable[[int, int], Any],
        n_shards: int,
        n_steps: int,
        channel_of: Callable[[str], Channel],
        report: Callable[..., None],
        finite: bool = True,
        keep: Callable[[], bool] = unlimited,
    ) -> None:
        self._finite, self._keep = finite, keep
        self.flat, self.extents, self.n_shards, self.n_steps = flat, extents, n_shards, n_steps
        self._loss_of, self._channel_of, self._report = loss_of, channel_of, report
        self._changed = threading.Condition()
        self._orders = Directives()
        self._wanted = -1
        self._era = 0
        """Of the step that is under way."""
        self.version = 0
        """Of the parameters that it computes with."""
        self.training = False
        """Whether it has such parameters."""
        self._missing: set[int] = set()
        self._beside = StepReplicas()
        self._finishing = False
        self._fetching = 0
        """Copies out of servers' memory that are under way."""
        self._sums: dict[Node, Vector] = {}
        self._out: dict[Channel, int] = {}
        self._losses: dict[int, float] = {}
        self._told: deque[tuple[int, list[list[float | str]]]] = deque(maxlen=LOSSES_TOLD)
        self.busy: tuple[tuple[int, int], float] | None = None
        """The (step, logical shard) that it computes, and since when (time.monotonic)."""

    # --- what arrives, in the threads of connections

    def place(self, head: Head) -> Vector | None:
        """Return where the parameters of a block go: into the version that is waited for."""
        era, version = era_and_version(head.step)
        if era != self._orders.era or version != self._wanted or head.block not in self._missing:
            return None
        first, n = self.extents[head.block]
        return self.flat.versions[version % 2][first : first + n]

    def fetch(self, message: Message) -> bool:
        """Copy a block out of a server's memory if it is waited for; False if it changed meanwhile."""
        with self._changed:
            place = self.place(message.head)
            if place is None:
                return True
            self._fetching += 1
        whole = False
        try:
            whole = fetch(message.payload, message.head.offset, place)
        finally:
            with self._changed:
                self._fetching -= 1
                self._changed.notify_all()
        return whole

    def params(self, message: Message) -> None:
        """Note that a block is there."""
        era, version = era_and_version(message.head.step)
        with self._changed:
            if era == self._orders.era and version == self._wanted:
                self._missing.discard(message.head.block)
            elif era == self._orders.era and version > self._wanted and message.head.block in self._missing:
                self._orders.start, self._orders.afresh = version + 1, True  # the others went on: catch up with them,
                self._report("behind", version=version, era=era)  # and have no part in what they do meanwhile
            if self._complete() or self._orders.afresh:
                self._changed.notify_all()

    def beside(self, message: Message) -> None:
        """Note who follows blocks, from a version that nobody has yet, or that one who follows has made a version."""
        name = str(message.meta["name"])
        with self._changed:
            if message.head.kind == FrameKind.FOLLOWED:
                self._beside.known.add(name, message.meta["blocks"])
            elif message.head.step == at(self._orders.era, self._wanted):
                self._beside.behind.pop(name, None)
                self._changed.notify_all()

    def _complete(self) -> bool:
        """Tell whether the version that is waited for is here, and those who follow have made it too."""
        return not self._missing and not self._beside.behind

    def moved(self, meta: dict[str, Any]) -> None:
        """Note new owners of blocks."""
        with self._changed:
            if meta.get("era", self._orders.era) != self._orders.era:
                return
            for block, version, moves in meta["blocks"]:
                if meta.get("gone") and meta["owner"] and moves > self._orders.moves.get(block, -1):
                    self._turn(block, meta["owner"], moves)
                elif moves > self._orders.known.get(block, -1) and meta["owner"]:
                    self._orders.known[block] = moves
                    before = [known for known in self._orders.coming.get(block, ()) if known[0] < version]
                    self._orders.coming[block] = [*before, (version, moves, meta["owner"])]
            if self._era == self._orders.era:  # else what is wanted is of an era that is over: see `_want`
                self._orders.moved |= self._turned(self._wanted - 1)
            self._changed.notify_all()

    def _turned(self, version: int) -> set[int]:
        """Turn to the owners that blocks have from now on; return the blocks."""
        orders = self._orders
        turned = {block for block, moves in orders.coming.items() if moves[0][0] <= version}
        for block in turned:
            moves = orders.coming.pop(block)
            while moves and moves[0][0] <= version:
                _, orders.moves[block], orders.owner[block] = moves.pop(0)
            if moves:
                orders.coming[block] = moves
        return turned

    def _turn(self, block: int, owner: str, moves: int) -> None:
        """Turn to the owner that a block has already, and ask it for what is missing."""
        orders = self._orders
        if orders.owner[block] != owner and block in self._missing:
            orders.moved.add(block)
        orders.owner[block], orders.moves[block] = owner, moves
        orders.known[block] = max(moves, orders.known.get(block, -1))
        orders.coming[block] = [later for later in orders.coming.pop(block, []) if later[1] > moves]
        if not orders.coming[block]:
            del orders.coming[block]

    def _read_map(self, meta: dict[str, Any]) -> None:
        """Turn to the owners that blocks really have by now."""
        if meta["era"] == self._orders.era:
            for block, owner, moves in meta["map"]:
                if moves >= self._orders.moves.get(block, -1):
                    self._turn(block, owner, moves)

    def reconnected(self, server: str) -> None:
        """Ask again, and push again, what was on its way when a connection broke; what comes twice is ignored."""
        with self._changed:
            self._orders.moved |= {block for block in self._missing if self._orders.owner.get(block) == server}
            self._beside.again.add(server)
            self._changed.notify_all()

    def whereabouts(self) -> dict[str, Any]:
        """Return what a controller that comes back must know."""
        with self._changed:
            return {"version": self.version, "has": self._orders.era, "training": self.training}

    def retell(self) -> None:
        """Tell the losses of the last steps again: a controller that was away may not have heard them."""
        for version, losses in list(self._told):
            self._report("losses", version=version, losses=losses, again=True)

    def told(self, meta: dict[str, Any]) -> None:
        """Take an order of the controller."""
        with self._changed:
            orders, do = self._orders, meta["do"]
            if do == "begin":
                self._told_to_begin(meta)
            elif do == "followers":
                self._beside.settle(meta["rows"], owner=orders.owner, here=meta["here"])
            elif do == "deal":
                first, last = meta["leaves"]
                orders.leaves, orders.dealt = (first, last), True
            elif do == "map":
                self._read_map(meta)
            elif do in ("hold", "go_on"):
                orders.hold_at = meta.get("version")
            elif do == "halt":
                orders.era, orders.start, orders.afresh = meta["era"], None, True
            else:
                orders.stop |= do == "stop"
                self._finishing |= do == "finish"
            self._changed.notify_all()

    def _told_to_begin(self, meta: dict[str, Any]) -> None:
        if self._orders.owner and meta["era"] == self._orders.era:  # others may still read what it has computed in it
            self._read_map(meta)
            self._beside.known.settle(meta.get("followers", ()), begin=True)
            return
        first, last = meta["leaves"]
        orders = Directives(era=meta["era"], start=meta["version"], leaves=(first, last), afresh=True)
        for block, owner, moves in meta["map"]:
            orders.owner[block] = owner
            orders.moves[block] = orders.known[block] = moves
        self._orders = orders  # whole: the loop may be pushing, and looks owners up without the lock
        self._beside.known.settle(meta.get("followers", ()), begin=True)

    # --- the loop

    def run(self) -> None:
        """Train until all steps are done or the controller says stop; or `finish`: then to the end of the step."""
        version = None
        while not self._ends():
            try:
                version = self._begin() if version is None else self._step(version)
            except Halted:
                version = None
            with self._changed:
                self.version, self.training = self.version if version is None else version, version is not None
            if version == self.n_steps:
                self._report("done", version=version, era=self._era)
                version = None

    def _ends(self) -> bool:
        return self._orders.stop or self._finishing

    def _begin(self) -> int:
        """Fetch the version with which to begin, once the controller has named it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends() or self._orders.start is not None)
            orders = self._orders
            if orders.stop or orders.start is None:
                raise Halted
            version, orders.start, orders.afresh = orders.start, None, False
        self._want(version)
        self._wait_for_version()
        self._report("ready", version=version, era=self._era)
        return version

    def _step(self, version: int) -> int:
        """Do one step; return the next version."""
        self._hold(version)
        began = time.perf_counter()
        self._want(version + 1)
        self.flat.use(version)
        self._compute(version)
        computed = time.perf_counter()
        self._wait_for_version(computing=version)
        self._finish_step(version, began, computed)
        return version + 1

    def _hold(self, version: int) -> None:
        """Stand still where the controller wants it."""
        orders = self._orders
        if orders.hold_at is None or version < orders.hold_at:
            return
        began = time.perf_counter()
        self._report("holds", version=version)
        with self._changed:
            self._changed.wait_for(lambda: self._may_go_on(version))
        self._report("held", version=version, seconds=time.perf_counter() - began)

    def _may_go_on(self, version: int) -> bool:
        orders = self._orders
        return orders.hold_at is None or orders.hold_at > version or orders.stop or orders.afresh

    def _want(self, version: int) -> None:
        """Ask for a version of all blocks."""
        with self._changed:
            self._changed.wait_for(lambda: not self._fetching)  # nothing of before is still written where this goes
            self._check()
            self._era, self._wanted, self._missing = self._orders.era, version, set(range(len(self.extents)))
            self._turned(version - 1)
            self._orders.moved.clear()
            beside = self._beside.begin(version - 1, self._orders.owner)
        self._ask(range(len(self.extents)), version)
        self._ask_beside(beside, version)

    def _ask(self, blocks: Sequence[int], version: int) -> None:
        by_owner: dict[str, list[int]] = defaultdict(list)
        for block in blocks:
            by_owner[self._orders.owner[block]].append(block)
        for owner, numbers in by_owner.items():
            moves = [self._orders.moves[block] for block in numbers]
            meta = {"blocks": numbers, "moves": moves}
            self._send(owner, FrameKind.PULL, step=at(self._era, version), meta=meta)

    def _ask_beside(self, asked: Mapping[str, Sequence[int]], version: int) -> None:
        for name, numbers in asked.items():
            self._send(name, FrameKind.ASK, step=at(self._era, version), meta={"blocks": numbers})

    def _send(self, owner: str, kind: FrameKind, *buffers: Any, **columns: Any) -> None:
        """Send to a server; where that fails, its blocks will have another owner or training goes back."""
        try:
            channel = self._channel_of(owner)
            if self.flat.lender is not None:
                self.flat.lender.lend(channel)
            self._out[channel] = channel.send(kind, *buffers, **columns)
        except FrameError:  # it would fail for any owner
            raise
        except TransportError:
            return

    def _compute(self, version: int) -> None:
        """Compute and push the logical shards that it has, as far as they are not computed yet."""
        first, last = self._orders.leaves
        done = list(self._sums)
        for node in cover(first, last, n_shards=self.n_shards):
            if not any(known.first <= node.first and node.last <= known.last for known in done):
                self._sums[node] = self._sum(node, version)
                self._tell_losses(node, version)
                self._push(node, range(len(self.extents)), version)

    def _sum(self, node: Node, version: int) -> Vector:
        """Return the sum of the gradients of a node's leaves, in the order of the tree."""
        if node.size == 1:
            self._check()
            gradient = self.flat.borrow()
            self.busy = (version, node.first), time.monotonic()
            loss = self._loss_of(version, node.first)
            self.flat.gradient(loss, gradient)
            self._losses[node.first] = float(loss.detach())
            self.busy = None
            if self._finite:
                self._check_loss(version, node.first)
            while self._keep():
                self._check()
            return gradient
        left, right = (self._sum(half, version) for half in halves(node))
        np.add(left, right, out=left)
        self.flat.give_back([right])
        return left

    def _check_loss(self, version: int, leaf: int) -> None:
        """Tell a loss that is no number, and raise."""
        try:
            check_finite(self._losses[leaf], where=f"step {version}, logical shard {leaf}")
        except NotFiniteError:
            self._report("not_finite", version=version, shard=leaf, loss=encoded(self._losses[leaf]), era=self._era)
            raise

    def _tell_losses(self, node: Node, version: int) -> None:
        """Tell the losses before the gradients: if this process dies between, others tell the same ones."""
        losses = [[leaf, encoded(self._losses[leaf])] for leaf in range(node.first, node.last)]
        self._told.append((version, losses))
        self._report("losses", version=version, losses=losses, era=self._era)

    def _push(self, node: Node, blocks: Sequence[int], version: int) -> None:
        """Send gradients to owners and to those who follow; the step ends when all of them have used them."""
        vector, step = self._sums[node], at(self._era, version)
        fault.at("worker.push")
        for i, block in enumerate(blocks):
            if 2 * i == len(blocks):
                fault.at("worker.push.half")
            first, n = self.extents[block]
            owner, meta = self._orders.owner[block], {"moves": self._orders.moves[block]}
            for name, kind in ((owner, FrameKind.PUSH), *((name, FrameKind.BESIDE) for name in self._beside.of(block))):
                self._send(name, kind, vector[first : first + n], block=block, offset=node.pack(), step=step, meta=meta)
        fault.at("worker.pushed")

    def _check(self) -> None:
        """Raise where what is under way is of no use any more."""
        if self._orders.stop or self._orders.afresh:
            self._drop()
            raise Halted

    def _drop(self) -> None:
        """Use the buffers of gradients again: nobody reads them any more.

        The next version of every block is there, with those who follow too, or others went on to the one after it, or
        an era is over.
        """
        self._settle()
        self.flat.give_all_back()
        self._sums.clear()
        self._losses.clear()

    def _wait_for_version(self, *, computing: int | None = None) -> None:
        """Wait until all blocks are there; meanwhile do what a new dealing or a new owner asks for."""
        while not self._complete():
            with self._changed:
                self._changed.wait_for(self._news)
                self._check()
                orders, again = self._orders, self._beside.once_more()
                moved, orders.moved, orders.dealt = sorted(orders.moved & self._missing), set(), False
            self._ask(moved, self._wanted)
            self._ask_beside(again, self._wanted)
            for node in list(self._sums):
                self._push(node, sorted({*moved, *chain.from_iterable(again.values())}), self._wanted - 1)
            if computing is not None and not self._complete():
                self._compute(computing)

    def _news(self) -> bool:
        orders = self._orders
        told = orders.stop or orders.afresh or orders.moved or orders.dealt or self._beside.again
        return bool(told or self._complete())

    def _settle(self) -> None:
        """Wait until the gradients are out of this process's hands."""
        for channel, number in self._out.items():
            try:
                channel.flush(number)
            except TransportError:
                continue
        self._out.clear()

    def _finish_step(self, version: int, began: float, computed: float) -> None:
        self._settle()
        fault.at("worker.stepped")
        n_shards = len(self._losses)
        self._drop()
        now = time.perf_counter()
        self._report(
            "stepped", version=version, shards=n_shards, compute_s=computed - began, wait_s=now - computed,
            era=self._era,
        )  # fmt: skip


class Receiver(Protocol):
    """What a worker does with what servers send."""

    def place(self, head: Head) -> Vector | None:
        """Return where the parameters of a block go."""
        ...

    def params(self, message: Message) -> None:
        """Note that a block is there."""
        ...

    def moved(self, meta: dict[str, Any]) -> None:
        """Note new owners of blocks."""
        ...

    def beside(self, message: Message) -> None:
        """Note what those who follow say, and the owners of them."""
        ...


class FromServers(Handler):
    """What arrives at a worker from one server.

    Parameters
    ----------
    worker : Receiver
        Takes it.
    fetch : callable, optional
        Copies parameters out of a server's memory: see `Worker.fetch`.
    ended : callable, optional
        Is told of the end of a connection, and why.
    exhausted : callable, optional
        Is told that there is no memory for what arrives.
    """

    def __init__(
        self,
        worker: Receiver,
        *,
        fetch: Callable[[Message], bool] | None = None,
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        exhausted: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._worker, self._fetch, self._ended, self._exhausted = worker, fetch, ended, exhausted

    def place(self, head: Head) -> Vector | None:
        """Return where parameters go."""
        return self._worker.place(head) if head.kind == FrameKind.PARAMS else None

    def exhausted(self, error: BaseException) -> None:
        """Pass it on: this process cannot go on."""
        if self._exhausted is not None:
            self._exhausted(error)

    def received(self, channel: Channel, message: Message) -> None:
        """Take a message."""
        if message.head.kind == FrameKind.PARAMS:
            if not message.head.flags & SHARED or self._fetched(channel, message):
                self._worker.params(message)
        elif message.head.kind == FrameKind.MOVED:
            self._worker.moved(dict(message.meta))
        elif message.head.kind in (FrameKind.FOLLOWED, FrameKind.ABREAST):
            self._worker.beside(message)

    def _fetched(self, channel: Channel, message: Message) -> bool:
        """Fetch parameters; ask again where they changed meanwhile."""
        if self._fetch is None:
            raise FrameError("parameters lie in a server's memory, where this worker does not look.")
        if self._fetch(message):
            return True
        channel.send(FrameKind.PULL, step=message.head.step, meta={"blocks": [message.head.block]})
        return False

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Pass it on."""
        if self._ended is not None:
            self._ended(channel, reason)
