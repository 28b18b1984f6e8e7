"""The process of a worker: loads model and data, computes gradients, and watches that they come."""

from __future__ import annotations

import math
import os
import sys
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.controller.losses import STOP
from labkit.elastic.process.causes import Waking, name_of
from labkit.elastic.process.limits import Amounts
from labkit.elastic.process.member_process import (
    WHY_CHARS,
    ControllerLost,
    InstallBlock,
    MemberProcess,
    MemberTask,
    SeekServer,
)
from labkit.elastic.protocol.messages.orders import ConnectTo, ReportState, SetLimits, Stop, TrainingOrder, WorkerOrder
from labkit.elastic.protocol.messages.reports import Failed, Raised, Stuck
from labkit.elastic.protocol.sites import local_name
from labkit.elastic.transport import Channel, FrameError, Scheme, TransportError
from labkit.system.oom import is_memory

if TYPE_CHECKING:
    from labkit.elastic.worker.asynchronous import AsyncWorker
    from labkit.elastic.worker.synchronous import Worker

KEEP_S: Final = 0.25
"""Longest single wait of a worker for its share of cores, in seconds: the order `stop` may come meanwhile."""
LOOKS: Final = 10
"""Times in its patience that a worker checks whether it makes progress."""


def sum_in_one_order() -> None:
    """Let CUDA, cuBLAS and cuDNN compute equal bits from equal inputs, as the documentation of each says."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when a process first multiplies
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


class WorkerMember(MemberProcess):
    """The process of a worker.

    `device`: device that the launcher chose, such as "cuda:0"; "": one of `Spec.devices`, by the number of the worker.
    """

    role = "worker"
    takes = WorkerOrder

    def __init__(self, folder: Path, name: str, site: str = "", device: str = "") -> None:
        import torch

        from labkit.elastic.loading import Loader, Samples
        from labkit.elastic.protocol.program import Program, find_modules
        from labkit.elastic.worker.forward import SampleLoss
        from labkit.elastic.worker.push_pull import FromServers

        super().__init__(folder, name, site)
        torch.set_num_threads(1)
        self._n_threads = self._set_threads = 1
        find_modules(self.spec.paths)
        self.program = Program.load(folder)
        self.program.train()
        devices = self.spec.devices or ("cpu",)
        number = int(name.rsplit("-", 1)[1])
        self.device = local_name(device) if device else devices[number % len(devices)]
        if self.device.startswith("cuda"):
            sum_in_one_order()
        self._forward = SampleLoss(
            self.program, device=self.device, seed=self.spec.seed, precision=self.spec.precision,
            moving=self.spec.moving,
        )  # fmt: skip
        self._samples = Samples(self.program.data, self.spec)
        self._loader = Loader(
            self.program, self._samples.of, self._forward.seed_at, self.spec.loaders, self.spec.n_steps
        ) if self.spec.loaders and self.spec.sync else None  # fmt: skip
        self.worker = self._make_worker(number)
        self._handler = FromServers(self.worker, ended=self.server_closed, exhausted=self.exhausted)

    def _make_worker(self, number: int) -> Worker | AsyncWorker:
        from labkit.elastic.server.optimizers import TORCH
        from labkit.elastic.transport.shared_arrays import SharedRegions
        from labkit.elastic.worker.asynchronous import AsyncWorker
        from labkit.elastic.worker.shard_gradients import FlatModel
        from labkit.elastic.worker.synchronous import Worker

        spec = self.spec
        lender = SharedRegions() if spec.sync and spec.scheme == Scheme.SHM else None
        flat = FlatModel(
            self.program.model, device=self.device, lender=lender, cut=spec.layout,
            on_untouched=None if spec.optimizer == TORCH else self._tell_untouched, precision=spec.precision,
        )  # fmt: skip
        common: dict[str, Any] = {
            "extents": [(first, n) for first, n in spec.extents], "channel_of": self._channel,
            "report": self.report, "finite": spec.on_nan == STOP, "keep": partial(self.limits.keep, most_s=KEEP_S),
            "metrics_of": lambda: self._forward.metrics,
        }  # fmt: skip
        if spec.sync:
            n_normed = sum(first < spec.layout.n_trained for first, _ in spec.extents)
            return Worker(
                flat, loss_of=self._loss, n_shards=spec.n_shards, n_steps=spec.n_steps,
                weight_of=lambda: self._forward.weight, n_normed=n_normed, **common,
            )  # fmt: skip
        return AsyncWorker(
            flat,
            loss_of=self._loss_between,
            batch=spec.batch,
            number=number,
            lease_s=spec.lease_s,
            clip_norm=spec.clip_norm,
            **common,
        )

    def _channel(self, server: str) -> Channel:
        """Return the connection to a server; TransportError without one: `connected` asks again."""
        channel = self.connections.channels.get(server)
        if channel is None:
            raise TransportError(f"{server} is not connected")
        return channel

    # --- losses

    def _tell_untouched(self, number: int) -> None:
        """Print once that a parameter has no gradient, where the update is not one of torch."""
        print(
            f"labkit: '{self.spec.params[number][0]}' has no gradient in a shard. If no shard of a step has one, "
            f"{self.spec.optimizer} takes zeros, where one of torch skips it (optimizer=torch.optim.SGD(...)).",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def _loss(self, step: int, leaf: int) -> Any:
        """Return the loss of one logical shard; what a model draws depends on seed, step and shard alone."""
        samples = [] if self._loader is not None else self._samples.of(step, leaf)
        epoch = self.spec.epoch_of(step)
        return self._forward(samples, (step, leaf), step=step, epoch=epoch, loader=self._loader)

    def _loss_between(self, epoch: int, start: int, end: int) -> Any:
        """Return the loss of positions start to end of the order of an epoch."""
        self._follow_cores()
        samples = self._samples.between(start, end, epoch)
        self._samples.begin(epoch)
        loss = self._forward(samples.tolist(), (epoch, start), step=self.worker.version, epoch=epoch)
        return loss / self._forward.weight if self._forward.weight else loss

    def _follow_cores(self) -> None:
        """Set the number of threads to the cores of this worker, from the next gradient on.

        Only in asynchronous training: sums may depend on the number of threads, and synchronous training must give the
        same bits with any number of cores.
        """
        if self._set_threads != self._n_threads:
            import torch

            self._set_threads = self._n_threads
            torch.set_num_threads(self._set_threads)

    # --- orders of the controller

    def resize(self, order: SetLimits) -> Amounts:
        """Limit this process to other cores and memory; the number of threads follows the cores."""
        amounts = super().resize(order)
        cores = len(os.sched_getaffinity(0)) if amounts.cpus is not None else 1
        self._n_threads = min(cores, math.ceil(amounts.cpus or 1))
        return amounts

    def joined(self, channel: Channel) -> None:
        """Repeat the newest reports, which the former controller may have missed: without them this one may end it."""
        super().joined(channel)
        self.worker.repeat_losses()

    def take(self, order: MemberTask) -> None:
        """Pass orders that concern the steps to the thread that computes, at once; queue the others."""
        match order:
            case ConnectTo() | ReportState() | SetLimits() | SeekServer():
                self.orders.put(order)  # an answer waits until the new controller is known here
            case ControllerLost():
                self.orders.put(order)
                self.worker.on_controller_lost()
            case Stop():
                self.worker.on_order(order)
                self.orders.put(order)
            case InstallBlock():
                raise FrameError("a block with its state came to a worker; only servers have use for it.")
            case _ if isinstance(order, TrainingOrder):
                self.worker.on_order(order)
            case _:
                raise NotImplementedError(f"{order} is not for a worker")

    def do(self, task: MemberTask) -> None:
        """Carry out one task: connect to a server, change limits, or report the progress to a new controller."""
        match task:
            case ReportState():
                self.worker.on_order(task)
                self.report(self.worker.state())
            case SetLimits():
                self.resize(task)
            case SeekServer():
                self.connections.seek(task.server, self._handler)
            case ConnectTo():
                self.connections.meet(task.server, task.address, self._handler)
            case _:
                raise NotImplementedError(f"{task} is for the thread that computes")

    def connected(self, name: str, channel: Channel) -> None:  # noqa: ARG002
        """Ask the server again for what did not come."""
        self.worker.reconnected(name)

    # --- the life of the process

    def run(self) -> None:
        """Train until the order `stop`, or until the training is done."""
        if not self.controller.join():
            return
        threading.Thread(target=self._attend, name="orders", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            self.worker.run()
            if self._loader is not None:
                self._loader.close()
            self.close()
        except BaseException as error:  # of the user's model, data or loss, `sys.exit` included
            traceback.print_exc()
            sys.stderr.flush()
            self.report(self._about(error))
            self.controller.flush()
            sys.exit(1)

    def _about(self, error: BaseException) -> Raised | Failed:
        """Return the report of an error: another worker may have more luck, unless the error is one of labkit's own."""
        busy, why = self.worker.busy, f"{type(error).__name__}: {error}".strip()
        if isinstance(error, LabkitError):
            return Failed(str(error)[:WHY_CHARS], name_of(Cause.ERROR))
        if busy is None or is_memory(error):
            cause = Cause.OUT_OF_MEMORY if is_memory(error) else Cause.ERROR
            return Failed(why[:WHY_CHARS], name_of(cause))
        return Raised(busy[0], f"{self._where(busy[0])}: {why[:WHY_CHARS]}".rstrip(".") + ".")

    def _where(self, place: tuple[int, int]) -> str:
        where = "step {}, logical shard {}" if self.spec.sync else "epoch {}, minibatch at {}"
        return where.format(*place)

    def _watch(self) -> None:
        """Report `stuck` when one gradient takes longer than `patience_s` of the time that this process was awake."""
        patience_s = self.spec.patience_s
        waking, seen, since_s = Waking(), self.worker.busy, 0.0
        while not self.over.wait(patience_s / LOOKS):
            busy, awake_s = self.worker.busy, waking.look(every_s=patience_s / LOOKS)
            if busy != seen:
                seen, since_s = busy, awake_s
            if busy is not None and awake_s - since_s >= patience_s:
                why = f"{self._where(busy[0])}: no gradient after {patience_s:g} s; the data or the model hangs"
                self.report(Stuck(busy[0], why))

    def _attend(self) -> None:
        self.loop()
        self.worker.on_order(Stop())
