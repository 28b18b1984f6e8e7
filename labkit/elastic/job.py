"""A job from outside: start it, scale it, watch it, get the trained model."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.blocks import layout, pack, unpack
from labkit.elastic.control import EVENTS, PLAN, Plan
from labkit.elastic.member import CONTROLLER, Spec
from labkit.elastic.program import Program
from labkit.elastic.protocol import Kind
from labkit.elastic.shards import check_batch
from labkit.elastic.store import Block, Vector
from labkit.elastic.transport import Access, Address, Channel, Handler, Lease, TransportError, connect, private_folder

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


CONTROLLERS = 10
"""Times that a killed controller is started again."""


class JobError(LabkitError):
    """A job ended with an error."""


class Job:
    """A training job that runs in processes of its own.

    Start one with `labkit.elastic.start`, or run one to its end with `labkit.elastic.train`.
    """

    def __init__(self, folder: Path, program: Program, *, keep: bool) -> None:
        self.folder, self._program, self._keep = folder, program, keep
        self._lease = Lease(Spec.load(folder).lease_s)
        self._channel: Channel | None = None
        self._ended, self._closing = threading.Event(), False
        self._process = self._start()
        threading.Thread(target=self._attend, name="controller", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "controller.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "labkit.elastic.control", str(self.folder)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def _attend(self) -> None:
        """Start the controller again if it was killed: training went on meanwhile."""
        for _ in range(CONTROLLERS):
            if self._process.wait() >= 0 or self._closing:
                break
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            self._process = self._start()
        else:
            self._process.wait()
        self._ended.set()

    # --- what a user does

    def scale(
        self, *, servers: int = 0, workers: int = 0, replace: Sequence[str] = (), strategy: str = "handover"
    ) -> None:
        """Add servers and workers (or remove, below 0), or replace some by name, while training goes on.

        Returns as soon as the request is taken; `events` tell how it goes.

        Raises
        ------
        InputError
            If nobody would be left, or there would be more servers than blocks; the job goes on as it was.
        """
        self._ask("scale", servers=servers, workers=workers, replace=list(replace), strategy=strategy)

    def stop(self) -> None:
        """End the job before its last step."""
        self._ask("stop")

    def events(self, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what has happened so far, and what happens until the job is over."""
        path, pause = self.folder / EVENTS, threading.Event()
        while not path.exists() and not self._ended.is_set():
            pause.wait(0.02)
        with path.open() as file:
            rest = ""
            while True:
                ended = self._ended.is_set()
                rest += file.readline()
                if rest.endswith("\n"):
                    yield json.loads(rest)
                    rest = ""
                elif ended or not follow:
                    return
                else:
                    pause.wait(0.02)

    def wait(self, *, timeout_s: float | None = None) -> Result:
        """Wait for the end; return the result, with the model trained.

        Raises
        ------
        JobError
            If the job failed.
        """
        try:
            if not self._ended.wait(timeout_s):
                raise JobError(f"the job is not done after {timeout_s} s.")
            return Result(self)
        finally:
            self._clear()

    @property
    def pid(self) -> int:
        """Of the controller."""
        return self._process.pid

    # --- how

    def _ask(self, do: str, **arguments: Any) -> None:
        reply = self._connected().request(Kind.TELL, meta={"do": do, **arguments})
        try:
            reply.result(2 * self._lease.base_s)
        except TransportError as error:
            raise InputError(str(error)) from None

    def _connected(self) -> Channel:
        address, pause = Address.parse(f"unix:{self.folder / CONTROLLER}"), threading.Event()
        until = time.monotonic() + 10 * self._lease.base_s
        while self._channel is None:
            try:
                self._channel = connect(
                    address, handler=Handler(), access=Access(), hello={"name": "launcher", "role": "client"},
                    lease=self._lease,
                )  # fmt: skip
            except TransportError:
                if self._ended.is_set() or time.monotonic() > until:
                    raise
                pause.wait(0.05)
        return self._channel

    def _clear(self) -> None:
        if not self._ended.is_set():
            with contextlib.suppress(LabkitError, TransportError):
                self.stop()
            if not self._ended.wait(5 * self._lease.base_s):
                self._closing = True
                self._process.kill()
        if self._channel is not None:
            self._channel.close()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Job:
        """Return the job."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._clear()


class Result:
    """What a job has come to.

    Attributes
    ----------
    model : Module
        With the parameters of the last step.
    version : int
        Steps done, as far as they are saved: all of them unless the job was stopped.
    digest : str
        Of all blocks, optimizer state included: equal training has equal digests, bit by bit.
    blocks : dict
        The last state, by number of the block.
    events : list of dict
        All that happened.
    """

    def __init__(self, job: Job) -> None:
        self.events = list(job.events(follow=False))
        last = self.events[-1] if self.events else {}
        if last.get("event") != "over" or last["failure"]:
            log = (job.folder / "controller.log").read_text()[-2000:]
            raise JobError(str(last.get("failure") or f"the controller died: {log.strip() or 'it left no message'}"))
        spec = Spec.load(job.folder)
        saved = spec.checkpoints(job.folder).newest()
        self.model: nn.Module = job._program.model
        self.version, self.digest, self.blocks = saved.step, saved.digest, saved.blocks
        vector = np.concatenate([saved.blocks[number].params for number in sorted(saved.blocks)])
        unpack(vector, self.model)

    @property
    def losses(self) -> list[float]:
        """Mean loss of each step."""
        by_version = {e["version"]: e["loss"] for e in self.events if e["event"] == "loss"}
        return [by_version[v] for v in sorted(by_version)]

    @property
    def steps(self) -> pd.DataFrame:
        """What each worker did in each step, in seconds: `labkit.elastic.measure.steps`."""
        from labkit.elastic import measure

        return measure.steps(self.events)

    @property
    def scalings(self) -> pd.DataFrame:
        """What each scaling took and cost, in DL2's four steps: `labkit.elastic.measure.scalings`."""
        from labkit.elastic import measure

        return measure.scalings(self.events)

    @property
    def faults(self) -> pd.DataFrame:
        """What each death of a process cost: `labkit.elastic.measure.faults`."""
        from labkit.elastic import measure

        return measure.faults(self.events)


def start(
    model: nn.Module,
    data: Any,
    loss: Callable[[nn.Module, Any], Any],
    *,
    steps: int,
    batch: int = 64,
    workers: int = 2,
    servers: int = 2,
    shards: int = 8,
    optimizer: str = "sgd",
    seed: int = 0,
    save_every: int = 0,
    lease_s: float = 3.0,
    devices: Sequence[str] = (),
    folder: Path | None = None,
    **options: Any,
) -> Job:
    """Start a job and return at once; see `train` for the parameters."""
    program = Program(model, data, loss)
    program.check()
    check_batch(len(data), batch=batch, n_shards=shards)
    if steps < 1:
        raise InputError(f"a job of {steps} steps; expected at least one.")
    from labkit.elastic.optimizers import optimizer as by_name

    by_name(optimizer, **options)
    cut = layout(model)
    if servers > cut.n_blocks:
        raise InputError(f"{servers} servers for {cut.n_blocks} blocks of parameters; expected at most one per block.")
    if servers < 1 or workers < 1:
        raise InputError(f"a job with {servers} servers and {workers} workers; expected at least one of each.")
    place = private_folder(Path(tempfile.mkdtemp(prefix="labkit-job-")) if folder is None else folder)
    program.save(place)
    spec = Spec(
        params=[(p.name, p.first, list(p.shape)) for p in cut.params], extents=list(cut.extents), optimizer=optimizer,
        options=options, batch=batch, n_shards=shards, n_steps=steps, seed=seed, lease_s=lease_s,
        devices=tuple(devices),
    )  # fmt: skip
    spec.save(place)
    _save_first(spec, place, pack(model))
    (place / PLAN).write_text(
        json.dumps(asdict(Plan(servers=servers, workers=workers, save_every=save_every, parent=os.getpid())))
    )
    return Job(place, program, keep=folder is not None)


def _save_first(spec: Spec, folder: Path, vector: Vector) -> None:
    """Write the checkpoint with which training begins, unless there is one to go on from."""
    checkpoints = spec.checkpoints(folder)
    if checkpoints.steps():
        checkpoints.newest()  # raises if it is of another model
        return
    blocks = [
        Block(number=number, params=part, state=checkpoints.optimizer.init(len(part)))
        for number, part in enumerate(spec.layout.blocks(vector))
    ]
    checkpoints.save(0, {"launcher": blocks})


def train(model: nn.Module, data: Any, loss: Callable[[nn.Module, Any], Any], **options: Any) -> Result:
    """Train a model on parameter servers and workers in processes of their own; return it when it is done."""
    return start(model, data, loss, **options).wait()
