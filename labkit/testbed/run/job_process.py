"""A job on its home host: `python -m labkit.testbed.run.job_process FOLDER` starts it there, and stays with it.

FOLDER/job.json says what to train and where (`JobRequest`). FOLDER/job is the folder of the elastic job: its events are
in FOLDER/job/events.jsonl. FOLDER/task.sock takes orders, one JSON object to a line, and answers each with one:

>>> ORDERS["place"]
'{"do": "place", "place": {"a/0": [2, 1]}, "strategy": "handover"} -> {"scaling": 1}'

A line that cannot be answered is answered with {"error": why}. SIGTERM is {"do": "stop"}: the job saves its state and
ends. At the end FOLDER/result.json says what has come out. A second start in the same folder goes on from the newest
checkpoint.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Cause
from labkit.elastic.errors import JobError
from labkit.elastic.process.causes import told

if TYPE_CHECKING:
    from labkit.elastic import Job, Result
    from labkit.elastic.protocol.program import Program

JOB, TASK, RESULT, RUNS = "job.json", "task.sock", "result.json", "job"
ORDERS: Final = {
    "place": '{"do": "place", "place": {"a/0": [2, 1]}, "strategy": "handover"} -> {"scaling": 1}',
    "resize": '{"do": "resize", "members": {"worker-0": [2.0, null]}} -> {"members": 3}',
    "replace": '{"do": "replace", "members": ["ps-1"]} -> {}',
    "balance": '{"do": "balance"} -> {}',
    "stop": '{"do": "stop", "save": true} -> {}',
    "host_home": '{"do": "host_home", "host": "b"} -> {"archive": a tar, in base64}',
    "status": '{"do": "status"} -> {"phase", "step", "loss", "members": [{"name", "pid", "cores", ...}]}',
}
PREDECESSOR_S: Final = 20.0
"""Seconds that a start waits for the end of a job that is still running in the folder: its parent was killed."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The dataset of a model: how many samples, and which."""

    size: int = 4096
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What job.json says.

    Attributes
    ----------
    name : str
        Of the model, one of `labkit.elastic.models.available()`; empty with `program`.
    program : bool
        Whether FOLDER holds a saved program (`labkit.elastic.protocol.program.Program.save`) to train instead.
    width, seed, data
        Of the model and its samples.
    lr : float, optional
        Learning rate; by default one that suits the model.
    options : dict
        Whatever else the optimizer takes.
    sites : list of dict
        See `labkit.elastic.protocol.sites.Site`; the first one is on this host.
    place : dict
        Workers and servers of each site at the beginning.
    steps, batch, shards, optimizer, sync, save_every, standby, lease_s, network, ports, loads_every_s
        As `labkit.elastic.start` takes them.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    name: str = ""
    program: bool = False
    width: float = 1.0
    seed: int = 0
    data: DatasetSpec = field(default_factory=DatasetSpec)
    steps: int
    batch: int = 32
    shards: int = 8
    optimizer: str = "adam"
    lr: float | None = None
    options: dict[str, float] = field(default_factory=dict)
    sync: bool = True
    save_every: int = 0
    standby: bool = False
    lease_s: float = 3.0
    network: str = "tls"
    ports: tuple[int, int] | None = None
    sites: list[dict[str, Any]] = field(default_factory=list)
    place: dict[str, tuple[int, int]] | None = None
    loads_every_s: float = 0.0

    @classmethod
    def read(cls, path: Path) -> JobRequest:
        """Read a job.json.

        Raises
        ------
        InputError
            With every fault of the file.
        """
        from pydantic import TypeAdapter, ValidationError

        from labkit.core.faults import told

        try:
            wanted = TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; expected a job's description there.") from None
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}" for fault in error.errors()]
            raise InputError(told(str(path), faults)) from None
        if bool(wanted.name) == wanted.program:
            raise InputError(f'{path}: expected either the name of a model, or "program": true, and not both.')
        return wanted

    def made(self, folder: Path) -> Program:
        """Return what is to be trained."""
        from labkit.elastic import models
        from labkit.elastic.data import dataset
        from labkit.elastic.protocol.program import Program

        if self.program:
            return Program.load(folder)
        name = models.size_of(self.name, width=self.width).name
        samples = dataset(name, n=self.data.size, seed=self.data.seed, width=self.width)
        return Program(models.build(name, width=self.width, seed=self.seed), samples, models.loss(name))

    def start(self, folder: Path) -> Job:
        """Start the job; as `labkit.elastic.start`."""
        from labkit.elastic import models, start
        from labkit.elastic.protocol.sites import Site

        program = self.made(folder)
        lr = self.lr if self.lr is not None or self.program else models.learning_rate(self.name)
        options: dict[str, Any] = {**self.options, **({} if lr is None else {"lr": lr})}
        return start(
            program.model, program.data, program.loss, steps=self.steps, batch=self.batch, shards=self.shards,
            optimizer=self.optimizer, sync=self.sync, seed=self.seed, save_every=self.save_every,
            standby=self.standby, lease_s=self.lease_s, network=self.network, ports=self.ports,
            sites=[Site.read(site) for site in self.sites], place=self.place, folder=folder / RUNS,
            loads_every_s=self.loads_every_s, **options,
        )  # fmt: skip


def started(wanted: JobRequest, folder: Path) -> Job:
    """Start the job as soon as the one before it in this folder is over: it ends with its parent, if that is killed."""
    from labkit.elastic.job_folder import RunningError

    until, pause = time.monotonic() + PREDECESSOR_S, threading.Event()
    while True:
        try:
            return wanted.start(folder)
        except RunningError:
            if time.monotonic() > until:
                raise
            pause.wait(0.2)


class JobRequestHandler:
    """What task.sock can be asked for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "place": self._place, "resize": self._resize, "replace": self._replace, "balance": self._balance,
            "stop": self._stop, "host_home": self._host_home,
            "status": self._status,
        }  # fmt: skip

    def answer(self, line: bytes) -> dict[str, Any]:
        """Carry out an order; what cannot be done is told."""
        from labkit.elastic.transport import TransportError

        try:
            said = json.loads(line)
            do = said.get("do") if isinstance(said, dict) else None
            if do not in self._known:
                return {"error": f"{line[:100]!r} is no order; expected one of {' '.join(ORDERS.values())}"}
            return self._known[do](said)
        except (LabkitError, TransportError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": str(error) if isinstance(error, LabkitError) else f"{type(error).__name__}: {error}"}

    def _place(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"scaling": self._job.place(said["place"], strategy=said.get("strategy", "handover"))}

    def _resize(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Give members cores and GB by name; all others have no limits, and who has gone has none to be told."""
        given = {str(name): tuple(each) for name, each in said["members"].items()}
        amounts = {seat.name: given.get(seat.name, (None, None)) for seat in self._job.status().members}
        self._job.resize(amounts)
        return {"members": len(amounts)}

    def _replace(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Let other processes take the places of some members."""
        self._job.scale(replace=[str(name) for name in said["members"]])
        return {}

    def _balance(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Spread the blocks of the servers anew by their measured load."""
        self._job.balance()
        return {}

    def _stop(self, said: Mapping[str, Any]) -> dict[str, Any]:
        self._job.stop(save=bool(said.get("save", True)))
        return {}

    def _host_home(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"archive": base64.b64encode(self._job.host_home(said["host"])).decode()}

    def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        status = self._job.status()
        return {**asdict(status), "members": [seat._asdict() for seat in status.members]}


def summary(result: Result, wanted: JobRequest) -> dict[str, Any]:
    """Return what a job has come to, for result.json; losses are those of all starts in its folder."""
    losses = result.losses
    return {
        "steps": result.version, "done": result.version == wanted.steps, "digest": result.digest,
        "first_loss": losses[0] if losses else None, "last_loss": losses[-1] if losses else None, "failure": "",
    }  # fmt: skip


def run(folder: Path) -> dict[str, Any]:
    """Run the job of a folder to its end, answer orders meanwhile, and return what has come out.

    One that had come to its end, and was killed before it could say so, has come to its end.
    """
    from labkit.elastic.checkpoint.resume import NothingLeftError
    from labkit.testbed.run.order_socket import serving

    nothing = dict.fromkeys(("steps", "digest", "first_loss", "last_loss"))
    try:
        wanted = JobRequest.read(folder / JOB)
        with started(wanted, folder) as job, serving(folder, TASK, JobRequestHandler(job).answer):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: threading.Thread(target=_stop, args=(job,), daemon=True).start())
            return summary(job.wait(), wanted)
    except NothingLeftError as error:
        saved = error.saved
        return {**nothing, "steps": saved.step, "done": True, "digest": saved.digest, "failure": ""}
    except LabkitError as error:
        return {**nothing, "done": False, "failure": str(error), "own": _own(error), "cause": told(_cause(error))}


def _cause(error: LabkitError) -> Cause:
    """Return what lies behind a failure, as far as it is known."""
    return error.cause if isinstance(error, JobError) else Cause.ERROR


def _own(error: LabkitError) -> bool:
    """Whether a job would fail like that on any host: what it is to train is wrong."""
    from labkit.elastic.job_folder import RunningError

    return isinstance(error, InputError) and not isinstance(error, RunningError)


def _stop(job: Job) -> None:
    from labkit.elastic.transport import TransportError

    with contextlib.suppress(LabkitError, TransportError):  # it is over already
        job.stop(save=True)


def main(arguments: list[str]) -> None:
    """Run the job of a folder; exit code 0 if it has done what it should."""
    if len(arguments) != 1:
        sys.exit("expected: python -m labkit.testbed.run.job_process FOLDER")
    folder = Path(arguments[0]).absolute()
    result = run(folder)
    partial = folder / f".{RESULT}"
    partial.write_text(json.dumps(result))
    partial.rename(folder / RESULT)
    if result["failure"]:
        print(result["failure"], file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if result["failure"] else 0)  # all is written; what libraries do at the end takes a second


if __name__ == "__main__":
    main(sys.argv[1:])
