"""The synchronous worker: in each step it computes and pushes its gradients, then waits for the next parameters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, assert_never

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import orders, reports
from labkit.elastic.protocol.messages.blocks import BlockNorms, BlocksMoved, ReplicasAdded, WholeNorm
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode, era_and_version
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.server.update_rule import whole_norm
from labkit.elastic.transport import Channel, Head, Message
from labkit.elastic.transport.shared_arrays import fetch
from labkit.elastic.worker.push_pull import Directives, Extent, Halted, PushPull, StepReplicas, unlimited, unweighted
from labkit.elastic.worker.shard_gradients import FlatModel, ShardGradients


class Worker:
    """The training loop of one worker in synchronous mode."""

    def __init__(
        self,
        flat: FlatModel,
        *,
        extents: Sequence[Extent],  # (first, n) of each block in the flat vector
        loss_of: Callable[[int, int], Any],  # (step, leaf): returns the loss of a logical shard, a tensor
        n_shards: int,  # V, logical shards of a batch
        n_steps: int,
        # returns the connection to a server by name; raises TransportError if there is none
        channel_of: Callable[[str], Channel],
        report: reports.SendReport,
        finite: bool = True,  # whether a loss that is NaN or infinite ends training, before its gradient is pushed
        # waits, after a piece of work, as long as a limit of cores requires, but only briefly at a time; returns
        # whether it must be called again
        keep: Callable[[], bool] = unlimited,
        # returns the metrics by name that the loss function returned beside the last loss
        metrics_of: Callable[[], Mapping[str, float]] = dict,
        # returns the weight of the last loss, a sum; None: it is a mean
        weight_of: Callable[[], float | None] = unweighted,
        n_normed: int = 0,  # blocks of parameters, the first ones, where the norm of the whole gradient is limited
    ) -> None:
        self.flat, self.extents, self.n_steps = flat, extents, n_steps
        # `version`: of the parameters that it computes with; `training`: whether it has such parameters
        self.version, self.training = 0, False
        self._blocks = range(len(extents))
        self._report = report
        self._servers = PushPull(channel_of, extents=extents, lender=flat.lender)
        self._gradients = ShardGradients(
            flat, loss_of=loss_of, n_shards=n_shards, check=self._check, report=report, finite=finite, keep=keep,
            metrics_of=metrics_of, weight_of=weight_of,
        )  # fmt: skip
        self._changed = threading.Condition()
        self._orders = Directives()
        self._replicas = StepReplicas()
        self._finishing = False
        self._era = 0  # of the step in progress
        self._wanted = -1  # the version that it waits for
        self._missing: set[int] = set()  # blocks that have not arrived at that version
        self._fetching = 0  # copies out of servers' memory in progress
        self._n_normed = n_normed
        self._norms: dict[int, list[int]] = {}  # of the gradients of blocks in the step in progress
        self._norm: int | None = None  # that of the whole gradient
        self._norm_due = False  # whether servers are to have it

    @property
    def busy(self) -> tuple[tuple[int, int], float] | None:
        """The (step, logical shard) that it computes, and since when (time.monotonic); None between two of them."""
        return self._gradients.busy

    # --- frames from servers, in the threads of connections

    def place(self, head: Head) -> Vector | None:
        """Return the slice for a block's parameters, in the version that is waited for; None: not wanted."""
        era, version = era_and_version(head.step)
        if era != self._orders.era or version != self._wanted or head.block not in self._missing:
            return None
        first, n = self.extents[head.block]
        return self.flat.versions[version % 2][first : first + n]

    def fetch(self, message: Message) -> bool:
        """Copy a block out of a server's memory if it is wanted; return False if it changed during the copy."""
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

    def on_params(self, message: Message) -> None:
        """Record that a block has arrived; if it is of a later version, start anew with the version after it."""
        era, version = era_and_version(message.head.step)
        with self._changed:
            if era == self._orders.era and version == self._wanted:
                self._missing.discard(message.head.block)
            elif era == self._orders.era and version > self._wanted and message.head.block in self._missing:
                self._orders.start, self._orders.afresh = version + 1, True  # the job has gone on without this worker
                self._report(reports.FellBehind(version, era=era))
            if self._complete() or self._orders.afresh:
                self._changed.notify_all()

    def on_replicas_added(self, notice: ReplicasAdded) -> None:
        """Record new replicas of blocks."""
        with self._changed:
            self._replicas.known.add(notice.server, notice.blocks)

    def on_replicas_ready(self, server: str, step: int) -> None:
        """Record that the replicas of a server have made the version that is waited for."""
        with self._changed:
            if step == at(self._orders.era, self._wanted):
                self._replicas.behind.pop(server, None)
                self._changed.notify_all()

    def on_norms(self, message: Message) -> None:
        """Record the norms of a block, or that of the whole gradient, which those of all blocks give."""
        head = message.head
        with self._changed:
            now = at(self._era, self._wanted - 1)
            if head.step != now or self._era != self._orders.era or self._norm is not None:
                return
            if head.kind == FrameKind.WHOLE_NORM:
                self._norm = decode(WholeNorm, message.meta).bits
            else:
                self._norms[head.block] = decode(BlockNorms, message.meta).bits
                if len(self._norms) == self._n_normed:
                    self._norm = whole_norm(self._norms)
            if self._norm is not None:
                self._norm_due = True
                self._changed.notify_all()

    def on_moved(self, notice: BlocksMoved) -> None:
        """Record new owners of blocks, present ones or from a later version on."""
        with self._changed:
            if notice.era != self._orders.era:
                return
            owners = self._orders.owners
            for block, version, moves in notice.blocks if notice.owner else ():
                if notice.gone and moves > owners.moves.get(block, -1):
                    owners.correct(block, notice.owner, moves, missing=self._missing)
                else:
                    owners.schedule(block, (version, moves, notice.owner))
            if self._era == self._orders.era:  # else what is wanted is of an era that is over: see `_want`
                owners.changed |= owners.advance(self._wanted - 1)
            self._changed.notify_all()

    def _complete(self) -> bool:
        """Return whether the wanted version has arrived, and all replicas have made it."""
        return not self._missing and not self._replicas.behind

    # --- what happens to connections, and the controller's orders

    def reconnected(self, server: str) -> None:
        """Pull and push again what a broken connection may have lost; servers ignore duplicates."""
        with self._changed:
            owners = self._orders.owners
            owners.changed |= {block for block in self._missing if owners.owner.get(block) == server}
            self._replicas.again.add(server)
            self._changed.notify_all()

    def state(self) -> reports.StateReported:
        """Return the state of this worker for a new controller."""
        with self._changed:
            return reports.StateReported(self.version, self._orders.era, self.training)

    def repeat_losses(self) -> None:
        """Report the losses of the last steps again, to a controller that may not have received them."""
        self._gradients.repeat_losses()

    def on_controller_lost(self) -> None:
        """Do nothing: steps go on without a controller."""

    def on_order(self, order: orders.TrainingOrder) -> None:
        """Take an order of the controller."""
        with self._changed:
            self._take(order)
            self._changed.notify_all()

    def _take(self, order: orders.TrainingOrder) -> None:  # noqa: C901 - a case for each order
        latest = self._orders
        match order:
            case orders.BeginTraining():
                self._begin_era(order)
            case orders.SetReplicas():
                self._replicas.settle(order.blocks, owner=latest.owners.owner, here=order.servers)
            case orders.AssignShards():
                latest.shards, latest.dealt = (order.first, order.last), True
            case orders.SetOwners():
                self._correct_owners(order.era, order.owners)
            case orders.PauseAtVersion():
                latest.hold_at = order.version
            case orders.Resume():
                latest.hold_at = None
            case orders.Halt():
                latest.era, latest.start, latest.afresh = order.era, None, True
            case orders.FinishStep():
                self._finishing = True
            case orders.Stop():
                latest.stop = True
            case orders.GrantLease() | orders.ConfirmLeases() | orders.RevokeLease():
                pass  # of asynchronous training
            case orders.Pause() | orders.ReportState():
                pass  # of asynchronous training, too
            case _:
                assert_never(order)

    def _begin_era(self, order: orders.BeginTraining) -> None:
        if self._orders.owners.owner and order.era == self._orders.era:
            # without a new start: servers may still read the gradients of this step
            self._correct_owners(order.era, order.owners)
        else:
            latest = Directives(era=order.era, start=order.version, shards=order.shards, afresh=True)
            latest.owners.begin(order.owners)
            self._orders = latest  # replaced as a whole: a loop that is pushing reads owners without the lock
        self._replicas.known.settle(order.replicas, begin=True)

    def _correct_owners(self, era: int, owned: Sequence[orders.OwnedBlock]) -> None:
        """Set the present owners of blocks, as the controller knows them."""
        owners = self._orders.owners
        if era == self._orders.era:
            for block, owner, moves in owned:
                if moves >= owners.moves.get(block, -1):
                    owners.correct(block, owner, moves, missing=self._missing)

    # --- the loop

    def run(self) -> None:
        """Train until all steps are done, or until an order to stop, or to finish after the step."""
        version = None
        while not self._ends():
            try:
                version = self._begin() if version is None else self._step(version)
            except Halted:
                version = None
            with self._changed:
                self.version, self.training = self.version if version is None else version, version is not None
            if version == self.n_steps:
                self._report(reports.TrainingDone(version, era=self._era))
                version = None

    def _ends(self) -> bool:
        return self._orders.stop or self._finishing

    def _begin(self) -> int:
        """Pull the version that the era begins with, once the controller has named it; return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends() or self._orders.start is not None)
            latest = self._orders
            if latest.stop or latest.start is None:
                raise Halted
            version, latest.start, latest.afresh = latest.start, None, False
        self._want(version)
        self._wait_for_version()
        self._report(reports.TrainingBegun(version, era=self._era))
        return version

    def _step(self, version: int) -> int:
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
        latest = self._orders
        if latest.hold_at is None or version < latest.hold_at:
            return
        began = time.perf_counter()
        self._report(reports.Paused(version))
        with self._changed:
            self._changed.wait_for(lambda: self._may_go_on(version))
        self._report(reports.Resumed(version, time.perf_counter() - began))

    def _may_go_on(self, version: int) -> bool:
        latest = self._orders
        return latest.hold_at is None or latest.hold_at > version or latest.stop or latest.afresh

    def _want(self, version: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._fetching)  # an old copy must not write into the new version
            self._check()
            self._era, self._wanted, self._missing = self._orders.era, version, set(self._blocks)
            self._norms, self._norm, self._norm_due = {}, None, False
            owners = self._orders.owners
            owners.advance(version - 1)
            owners.changed.clear()
            replicas = self._replicas.begin(version - 1, owners.owner)
        self._pull(self._blocks)
        self._servers.ask_replicas(replicas, step=at(self._era, version))

    def _pull(self, blocks: Sequence[int]) -> None:
        owners = self._orders.owners
        self._servers.pull(blocks, step=at(self._era, self._wanted), owner=owners.owner, moves=owners.moves)

    def _compute(self, version: int) -> None:
        """Compute and push this worker's logical shards that have not been computed in this step."""
        for node in self._gradients.missing(*self._orders.shards):
            self._push(node, self._gradients.compute(node, version, self._era), self._blocks, version)

    def _push(self, node: Node, gradient: Vector, blocks: Sequence[int], version: int) -> None:
        step, owners = at(self._era, version), self._orders.owners
        weight = self._gradients.weight(node)
        self._servers.push_sum(node, gradient, blocks, step=step, owners=owners, replicas=self._replicas, weight=weight)

    def _check(self) -> None:
        """Raise Halted if the step in progress must be dropped."""
        if self._orders.stop or self._orders.afresh:
            self._drop()
            raise Halted

    def _drop(self) -> None:
        """Reuse the memory of the step's gradients.

        No server reads it any more: the owners and replicas of all blocks have made the next version, or the job has
        gone on without this worker, or the era is over.
        """
        self._servers.flush()
        self._gradients.drop()

    def _wait_for_version(self, *, computing: int | None = None) -> None:
        """Wait until all blocks have arrived; meanwhile serve new owners, and compute shards that are dealt anew."""
        while not self._complete():
            with self._changed:
                self._changed.wait_for(self._has_news)
                self._check()
                latest, again = self._orders, self._replicas.once_more()
                moved = sorted(latest.owners.changed & self._missing)
                latest.owners.changed, latest.dealt = set(), False
                norm = self._norm if self._norm_due or moved or again else None
                self._norm_due = False
            self._pull(moved)
            self._servers.ask_replicas(again, step=at(self._era, self._wanted))
            for node, gradient in list(self._gradients.sums.items()):
                blocks = sorted({*moved, *chain.from_iterable(again.values())})
                self._push(node, gradient, blocks, self._wanted - 1)
            if norm is not None:
                servers = {*latest.owners.owner.values(), *self._replicas.servers()}
                self._servers.send_norm(sorted(servers), norm, step=at(self._era, self._wanted - 1))
            if computing is not None and not self._complete():
                self._compute(computing)

    def _has_news(self) -> bool:
        latest = self._orders
        news = latest.stop or latest.afresh or latest.owners.changed or latest.dealt or self._replicas.again
        return bool(news or self._norm_due or self._complete())

    def _finish_step(self, version: int, began: float, computed: float) -> None:
        self._servers.flush()
        fault.at("worker.stepped")
        n_shards = len(self._gradients.losses)
        self._drop()
        now = time.perf_counter()
        self._report(reports.StepDone(version, n_shards, computed - began, now - computed, era=self._era))
