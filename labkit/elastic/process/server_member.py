"""The process of a parameter server: orders of the controller become calls of `ParameterServer`."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

from labkit.core.events import Cause
from labkit.elastic.process.causes import END_LEASES, name_of
from labkit.elastic.process.local_members import end_orphans
from labkit.elastic.process.member_process import WHY_CHARS, InstallBlock, MemberProcess, MemberTask, SeekServer
from labkit.elastic.protocol.messages import orders, reports
from labkit.elastic.protocol.messages.codec import FrameKind, at, encode
from labkit.elastic.protocol.sites import Refusals, claimed
from labkit.elastic.transport import Channel, Handler, Peer, Scheme, TransportError
from labkit.system.oom import is_memory

if TYPE_CHECKING:
    from labkit.elastic.server.replicas import KeptCopy
    from labkit.elastic.server.update_rule import UpdateRule

BLOCKS_OF_A_NOTICE: Final = 400
"""Most blocks in one report, so that it fits into a frame."""


class ServerMember(MemberProcess):
    """The process of a parameter server; parameters as those of `MemberProcess`."""

    role = "server"
    takes = orders.ServerOrder

    def __init__(self, folder: Path, name: str, site: str = "") -> None:
        from labkit.elastic.server.optimizers import optimizer
        from labkit.elastic.server.replicas import KeptCopies
        from labkit.elastic.server.server import Arrivals, ParameterServer
        from labkit.elastic.server.update_rule import NormClipping
        from labkit.elastic.transport.shared_arrays import SharedArrayPool

        super().__init__(folder, name, site)
        spec = self.spec
        chosen = optimizer(spec.optimizer, **spec.options)
        chosen.init(1)  # compiles the update
        rule = self._rule()
        self._copies = KeptCopies(report=self.report, send=self._send_copy)
        self.server = ParameterServer(
            name, optimizer=rule.applied(chosen), n_shards=spec.n_shards, sync=spec.sync, report=self.report,
            copy=self._copies.keep, shared_pool=SharedArrayPool() if spec.sync and spec.scheme == Scheme.SHM else None,
            rule_of=rule.of_blocks(spec, chosen) if rule.torch is not None or spec.n_buffers else None,
            norms=NormClipping(spec.clip_norm, spec.layout) if spec.clip_norm else None,
        )  # fmt: skip
        arrivals = partial(Arrivals, self.server, exhausted=self.exhausted, failed=self._failed, keep=self._keep_share)
        self._arrivals = arrivals(role="server", ended=self.server_closed)
        self._arrivals_of = partial(arrivals, ended=self.peer_closed)
        self.endpoints.reserve()

    def _rule(self) -> UpdateRule:
        """Return what the job adds to its optimizer; torch computes with one thread, as in workers."""
        from labkit.elastic.protocol.program import find_modules
        from labkit.elastic.server.optimizers import TORCH
        from labkit.elastic.server.update_rule import UpdateRule

        if self.spec.clip_norm or self.spec.optimizer == TORCH:
            import torch

            torch.set_num_threads(1)
        if not self.spec.has_rule:
            return UpdateRule()
        find_modules(self.spec.paths)
        return UpdateRule.load(self.folder)

    def _failed(self, error: Exception) -> None:
        """End the job: a function of its updates fails here, and would on any server."""
        traceback.print_exception(error.__cause__ or error, file=sys.stderr)
        sys.stderr.flush()
        self.report(reports.Failed(str(error)[:WHY_CHARS], name_of(Cause.ERROR)))

    def _welcome(self, peer: Peer) -> Handler:
        return self._arrivals_of(role=claimed(peer).role)

    def _send_copy(self, copy: KeptCopy, turn: int) -> None:
        """Send a block to the controller, for a checkpoint; without a connection the controller gives this one up."""
        channel, meta = self.controller.channel, encode(copy.described)
        if channel is not None:
            with contextlib.suppress(TransportError):
                channel.send(
                    FrameKind.SNAPSHOT, *copy.vectors, meta=meta, block=copy.block, offset=turn, step=copy.step
                )  # fmt: skip

    def _keep_share(self) -> None:
        """Delay a connection to keep this server's share of cores, for less than half a lease."""
        self.limits.keep(most_s=self.lease.base_s / 2)

    def connected(self, name: str, channel: Channel) -> None:
        """Note a connection over which blocks can be handed to another server."""
        self.server.peers.add_server(name, channel, self.connections.addresses[name])

    # --- orders of the controller

    def do(self, task: MemberTask) -> None:
        """Carry out one task."""
        try:
            self._do(task)
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_memory(error):
                raise
            self.exhausted(error)

    def _do(self, task: MemberTask) -> None:
        match task:
            case InstallBlock():
                self.server.handover.install(task.channel, task.message)
            case SeekServer():
                self.connections.seek(task.server, self._arrivals)
            case orders.ConnectTo():
                self.connections.meet(task.server, task.address, self._arrivals)
            case orders.ReportState():
                self._report_all()
            case orders.SetLimits():
                self.resize(task)
            case _ if isinstance(task, orders.BlockOrder):
                self._do_with_blocks(task)
            case _:
                raise NotImplementedError(f"{task} is not for a server")

    def _do_with_blocks(self, order: orders.BlockOrder) -> None:  # noqa: C901 - a case for each order
        server = self.server
        match order:
            case orders.BeginEra():
                server.begin_era(order.era)
                self._copies.drop(at(order.era, 0))
            case orders.HandOver():
                server.handover.hand_over(dict(order.moves), version=order.version, turn=order.turn)
            case orders.TakeBack():
                server.handover.take_back(order.blocks)
            case orders.ForgetBlocks():
                server.handover.forget(order.blocks)
            case orders.Replicate():
                server.replicas.follow(order.blocks)
            case orders.Promote():
                server.replicas.promote(order.blocks)
            case orders.DropReplicas():
                server.replicas.unfollow(order.blocks)
            case orders.CopyBlocks():
                self._copy_at(order.version)
            case orders.SendCopies():
                self._copies.send(order.blocks, era=server.era, version=order.version, turn=order.turn)
            case orders.DropCopies():
                self._copies.drop(at(server.era, order.version))
            case orders.MeasureLoads():
                self._report_each_load(order.number)
            case _:
                assert_never(order)

    def _copy_at(self, version: int) -> None:
        late = self.server.copy_at(version)
        if late:
            self.report(reports.CopyLate(version, late[:100], era=self.server.era))

    def _report_all(self) -> None:
        """Report the blocks of this server to a new controller."""
        version, era = 0, self.server.era
        for block, at_version, moves in self.server.blocks.owned():
            self.report(reports.OwnsBlock(block, at_version, moves, era=era))
            version = max(version, at_version)
        for block, at_version, moves, owner in self.server.handover.unconfirmed():
            why = "the controller was away"
            self.report(reports.TransferUnconfirmed(block, at_version, owner, moves, why, era=era))
        for block, owner in self.server.handover.moving():
            self.report(reports.Transferring(block, owner, era=era))
        for slot in self.server.blocks.slots():
            self.server.replicas.report_replica(slot)
        self.report(reports.StateReported(version, era))

    def _report_each_load(self, number: int) -> None:
        """Report the load of each block, for a request to balance them."""
        loads = [reports.BlockLoad(block, round(per_s, 1)) for block, per_s in self.server.blocks.loads()]
        for i in range(0, max(len(loads), 1), BLOCKS_OF_A_NOTICE):
            last = i + BLOCKS_OF_A_NOTICE >= len(loads)
            self.report(reports.BlockLoads(number, loads[i : i + BLOCKS_OF_A_NOTICE], last, era=self.server.era))

    # --- the life of the process

    def run(self) -> None:
        """Serve until the order `stop`."""
        if self.controller.join():
            refused = Refusals(self._report_refused)
            listener = self.endpoints.listen(
                welcome=self._welcome, hello=self.hello(), lease=self.lease, refused=refused
            )
            if self.spec.loads_every_s:
                threading.Thread(target=self._report_load, name="loads", daemon=True).start()
            self.loop()
            if self.abandoned:
                self._end_orphans()
            if listener is not None:
                listener.close()
        self.close()

    def _report_refused(self, *, reason: str, n: int, why: str) -> None:
        self.report(reports.PeerRefused(reason, n, why))

    def _report_load(self) -> None:
        """Report every `loads_every_s` seconds the gradient bytes that came, and the seconds of an update."""
        from labkit.elastic.server.server import update_s

        before, model_bytes = 0, 4 * self.spec.layout.n
        while not self.over.wait(self.spec.loads_every_s):
            taken = self.server.blocks.taken_bytes()
            came = taken - before if taken >= before else taken  # an era begins at 0
            took_s = update_s(self.server.busy.taken_s(), n_bytes=came, model_bytes=model_bytes)
            self.report(reports.GradientsReceived(came, took_s))
            before = taken

    def _end_orphans(self) -> None:
        """End members that should have ended by now: one may hold its interpreter's lock, and so its watchdog up."""
        self.watchdog.free()
        threading.Event().wait((END_LEASES + 1) * self.lease.base_s)
        ended = end_orphans(self.folder)
        if ended:
            print(f"{self.name} ended {', '.join(ended)}: no controller, and they hung.", file=sys.stderr, flush=True)
        self.watchdog.limit(END_LEASES * self.lease.base_s, "it lost its controller")
