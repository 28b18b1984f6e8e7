"""A job on its home host: `python -m labkit.testbed.run.job_process FOLDER` starts it, and stays until it ends.

FOLDER/request.json is the request, and FOLDER/task.sock accepts orders (`labkit.testbed.run.job_messages`). FOLDER/job
is the folder of the elastic job; its events are in FOLDER/job/events.jsonl. SIGTERM has the effect of {"do": "stop"}:
the job saves its state and ends. At the end FOLDER/result.json holds the result
(`labkit.testbed.run.job_events.JobResult`). A second start in the same folder continues from the newest checkpoint.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Cause
from labkit.elastic.errors import JobError
from labkit.elastic.own_training import OwnTraining, arguments_of
from labkit.elastic.process.causes import name_of
from labkit.elastic.proof import OFF
from labkit.elastic.protocol.blocks import ENOUGH_BLOCKS
from labkit.system.private_files import write_private
from labkit.system.unix_sockets import listening, peer_uid
from labkit.testbed.run.job_events import JobResult
from labkit.testbed.run.job_messages import (
    REQUEST,
    BalanceOrder,
    DoneReply,
    ErrorReply,
    HostHomeOrder,
    HostHomeReply,
    JobOrder,
    JobReply,
    JobRequest,
    PlaceOrder,
    ReplaceOrder,
    ResizeOrder,
    ResizeReply,
    ScalingReply,
    StatusOrder,
    StatusReply,
    StopOrder,
    message_of,
    order_of,
)
from labkit.testbed.run.own_scripts import STAGED

if TYPE_CHECKING:
    from labkit.elastic import Job, Result

LONGEST: Final = 1 << 20
"""Bytes of the longest line that is read."""
OrderAnswer = Callable[[bytes], JobReply]
TASK, RESULT, RUNS = "task.sock", "result.json", "job"
PREDECESSOR_S: Final = 20.0
"""Seconds that a start waits for the end of a job that still runs in the folder: its parent was killed."""


@contextlib.contextmanager
def serving(folder: Path, name: str, answer: OrderAnswer) -> Iterator[Path]:
    """Answer orders at a socket in the folder, from processes of the same user; yield its path."""
    with listening(folder / name, backlog=16) as sock:
        threading.Thread(target=_accept, args=(sock, answer), name=name, daemon=True).start()
        try:
            yield folder / name
        finally:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            (folder / name).unlink(missing_ok=True)


def _accept(sock: socket.socket, answer: OrderAnswer) -> None:
    while True:
        try:
            client, _ = sock.accept()
        except OSError:
            return
        if peer_uid(client) == os.getuid():
            threading.Thread(target=_attend, args=(client, answer), name="order", daemon=True).start()
        else:
            client.close()


def _attend(client: socket.socket, answer: OrderAnswer) -> None:
    """Answer each line until the client closes the connection; a line that is too long ends it."""
    with client, client.makefile("rwb") as lines, contextlib.suppress(OSError):
        while (line := lines.readline(LONGEST)).endswith(b"\n"):
            lines.write(json.dumps(message_of(answer(line))).encode() + b"\n")
            lines.flush()


def training_of(request: JobRequest, folder: Path) -> OwnTraining:
    """Return the program that a request names, or that its folder holds."""
    from labkit.elastic.own_training import OwnTraining, catalogued
    from labkit.elastic.protocol.program import Program
    from labkit.testbed.run.own_scripts import training_from

    if request.program:
        saved = Program.load(folder)
        return OwnTraining(saved.model, saved.data, saved.loss)
    if request.script:
        staged = folder.parents[2] / STAGED  # folder is runs/RUN/TASK below labkit's
        data = staged / request.samples if request.samples else None
        code = staged / request.code
        return training_from(request.script, code=code, data=data, seed=request.seed, args=request.args)
    from labkit.elastic import models
    from labkit.elastic.data import dataset

    name = models.size_of(request.name, width=request.width).name
    made = catalogued(name, width=request.width, samples=request.data.size, seed=request.seed)
    return replace(made, data=dataset(name, n=request.data.size, seed=request.data.seed, width=request.width))


def start(request: JobRequest, folder: Path) -> Job:
    """Start the job of a request, as `labkit.elastic.start` does."""
    own = training_of(request, folder)
    asked: dict[str, Any] = {
        "batch": request.batch, "shards": request.shards, "optimizer": request.optimizer, "lr": request.lr,
        "save_every": request.save_every, "seed": request.seed, "standby": request.standby,
    }  # fmt: skip
    usual = {name: field.default for name, field in JobRequest.__dataclass_fields__.items()}
    changed = {name for name, value in asked.items() if value != usual[name] or name == "seed"}
    arguments = {**arguments_of(own, asked, typed=changed), **request.options}
    arguments |= {
        "steps": request.steps, "sync": request.sync, "lease_s": request.lease_s, "network": request.network,
        "ports": request.ports, "sites": request.sites, "place": request.place, "folder": folder / RUNS,
        "loads_every_s": request.loads_every_s, "most_servers": ENOUGH_BLOCKS,
    }  # fmt: skip
    if request.name:  # tests prove the models of the catalogue
        arguments["proof"] = OFF
    return own.start(**arguments)


def start_after_predecessor(request: JobRequest, folder: Path) -> Job:
    """Start a job; if an earlier job still runs in the folder, wait for its end.

    Raise LabkitError if the earlier job has not ended after `PREDECESSOR_S` (it ends with its parent), or the job
    cannot start.
    """
    from labkit.elastic.job_start import RunningError

    until, pause = time.monotonic() + PREDECESSOR_S, threading.Event()
    while True:
        try:
            return start(request, folder)
        except RunningError:
            if time.monotonic() > until:
                raise
            pause.wait(0.2)


class JobRequestHandler:
    """Carries out the orders that arrive at task.sock."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def answer(self, line: bytes) -> JobReply:
        """Carry out the order of a line; return its reply, or an error."""
        from labkit.elastic.transport import TransportError

        try:
            return self._carry_out(order_of(line))
        except (LabkitError, TransportError, ValueError, KeyError, TypeError, AttributeError) as error:
            return ErrorReply(str(error) if isinstance(error, LabkitError) else f"{type(error).__name__}: {error}")

    def _carry_out(self, order: JobOrder) -> JobReply:
        reply: JobReply = DoneReply()
        match order:
            case PlaceOrder():
                reply = ScalingReply(self._job.place(order.place, strategy=order.strategy))
            case ResizeOrder():
                reply = self._resize(order)
            case ReplaceOrder():
                self._job.scale(replace=order.members)
            case BalanceOrder():
                self._job.balance()
            case StopOrder():
                self._job.stop(save=order.save)
            case HostHomeOrder():
                reply = HostHomeReply(base64.b64encode(self._job.host_home(order.host)).decode())
            case StatusOrder():
                reply = self._status()
        return reply

    def _resize(self, order: ResizeOrder) -> ResizeReply:
        """Limit the members that an order names, and remove the limits of all others."""
        amounts = {seat.name: order.members.get(seat.name, (None, None)) for seat in self._job.status().members}
        self._job.resize(amounts)
        return ResizeReply(len(amounts))

    def _status(self) -> StatusReply:
        status = self._job.status()
        return StatusReply(status.phase, status.step, status.loss, status.members, status.lost)


def summary(result: Result, request: JobRequest) -> JobResult:
    """Return the result of a job; losses are those of all starts in its folder."""
    losses = result.losses
    return JobResult(
        steps=result.version, done=result.version == request.steps, digest=result.digest,
        first_loss=losses[0] if losses else None, last_loss=losses[-1] if losses else None,
    )  # fmt: skip


def run(folder: Path) -> JobResult:
    """Run the job of a folder to its end, carry out orders meanwhile, and return its result.

    A job that was killed between its last checkpoint and its result has nothing left to do: it is done.
    """
    from labkit.elastic.checkpoint.resume import NothingLeftError

    try:
        request = JobRequest.read(folder / REQUEST)
        with start_after_predecessor(request, folder) as job, serving(folder, TASK, JobRequestHandler(job).answer):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: threading.Thread(target=_stop, args=(job,), daemon=True).start())
            return summary(job.wait(), request)
    except NothingLeftError as error:
        return JobResult(steps=error.saved.step, done=True, digest=error.saved.digest)
    except LabkitError as error:
        failure = error.reason if isinstance(error, JobError) else str(error)
        cause = error.cause if isinstance(error, JobError) else Cause.ERROR
        return JobResult(failure=failure, own=_own(error), cause=name_of(cause))


def _own(error: LabkitError) -> bool:
    """Return whether a job would fail like that on any host: what it is to train is wrong."""
    from labkit.elastic.job_start import RunningError

    return isinstance(error, InputError) and not isinstance(error, RunningError)


def _stop(job: Job) -> None:
    from labkit.elastic.transport import TransportError

    with contextlib.suppress(LabkitError, TransportError):  # the job has ended
        job.stop(save=True)


def main(arguments: list[str]) -> None:
    """Run the job of a folder; exit code 0 unless it failed."""
    if len(arguments) != 1:
        sys.exit("expected: python -m labkit.testbed.run.job_process FOLDER")
    folder = Path(arguments[0]).absolute()
    result = run(folder)
    write_private(folder / RESULT, json.dumps(asdict(result)))
    if result.failure:
        print(result.failure, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if result.failure else 0)  # all is written; the exit handlers of libraries take a second


if __name__ == "__main__":
    main(sys.argv[1:])
