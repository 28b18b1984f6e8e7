"""Queues of runs on machines: what is planned, running and over, in `queue.json` of the queue's folder.

`runs/<queue>/` holds `queue.json`, `trace.parquet` (the jobs of all its runs), `report.html`, and one folder for each
run that began, as every run has it. One process at a time works a queue: it holds the lock `.writer`, as that of a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from labkit.core.below import read_plain
from labkit.core.errors import InputError, unknown
from labkit.core.faults import fault_report
from labkit.core.files import write_text
from labkit.results.files import writer_of

QUEUE: Final = "queue.json"
TRACE: Final = "trace.parquet"
VERSION: Final = 1
"""Of the form of queue.json."""
MAX_RUNS: Final = 10_000
"""The most runs that a queue is believed to have."""
SLUG: Final = 40
"""The longest name of a scheduler in the id of a run."""


class QueueState(StrEnum):
    """How far a run of a queue has come."""

    PLANNED = "planned"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    CUT = "cut"
    FAILED = "failed"


OVER: Final = (QueueState.DONE, QueueState.CUT, QueueState.FAILED)
"""Nothing is left to do then: all jobs done; ended at the time limit; an error, or a job was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run of a queue."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    run: str
    """Its folder within that of the queue."""
    scheduler: str
    """As it was typed."""
    repeat: int
    """1, 2, ...: runs of one number are compared with each other."""
    state: QueueState = QueueState.PLANNED
    """How far it has come."""
    why: str = ""
    """Why it failed or was cut; empty otherwise."""
    resumed: int = 0
    """How often it was gone on with after its process had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQueue:
    """The content of queue.json."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    version: int = VERSION
    """Of this form."""
    trace: str
    inventory: str
    """`trace` and `inventory`: name of the jobs, and absolute path of the file that describes the hosts."""
    began: str = ""
    command: str = ""
    where: str = ""
    """`began`, `command` and `where`: when it was queued (ISO 8601), what was typed, and in which folder: schedulers
    may be files there."""
    time_limit_s: float | None = None
    """Seconds after which a run is ended."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """See `labkit.testbed.run.training.TrainingTable`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else `labkit.deploy` takes: profile, interference, lease_s."""
    retries: Mapping[str, Any] = field(default_factory=dict)
    """See `labkit.testbed.run.retries.Retries`."""
    runs: Sequence[QueuedRun]
    """In their order."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the queue of a folder; InputError if it is not there, of another version, or damaged: every fault."""
        from pydantic import TypeAdapter, ValidationError

        path = folder / QUEUE
        try:
            queue = TypeAdapter(cls).validate_json(read_plain(path))
        except FileNotFoundError:
            raise InputError(f"{folder} holds no {QUEUE}; it is not the folder of a queue.") from None
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}" for fault in error.errors()]
            raise InputError(fault_report(str(path), faults)) from None
        if queue.version != VERSION:
            raise InputError(f"{path} has version {queue.version}; this labkit reads {VERSION}.")
        names = [each.run for each in queue.runs]
        if odd := next((name for name in names if not FOLDER.fullmatch(name)), None):
            raise InputError(f"{path} names the run {odd!r}; expected letters, digits, '.', '_' and '-'.")
        if len(set(names)) < len(names):
            raise InputError(f"{path} names a run twice; expected a folder for each.")
        return queue

    def write(self, folder: Path) -> None:
        """Write it into a folder, whole or not at all."""
        write_text(folder / QUEUE, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    def changed(self, run: str, /, **columns: Any) -> Self:
        """Return it with a run changed."""
        return replace(self, runs=tuple(replace(each, **columns) if each.run == run else each for each in self.runs))

    @property
    def left(self) -> tuple[QueuedRun, ...]:
        """The runs that are not over."""
        return tuple(each for each in self.runs if each.state not in OVER)

    @property
    def schedulers(self) -> list[str]:
        """The schedulers, each once."""
        return list(dict.fromkeys(each.scheduler for each in self.runs))

    def counts(self, *, worked: bool = False) -> str:
        """Return how many runs are in which state, for people: "2 done, 1 running, 3 planned".

        `worked` tells whether a process carries the queue out: without one, no run is running.
        """
        n = {state: sum(each.state == state for each in self.runs) for state in QueueState}
        order = dict.fromkeys((*OVER, QueueState.RUNNING, QueueState.STOPPED, QueueState.PLANNED))
        return ", ".join(f"{n[state]} {describe_state(state, worked=worked)}" for state in order if n[state])


FOLDER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")


def ordered(schedulers: Sequence[str], *, repeat: int) -> Iterator[QueuedRun]:
    """Yield the runs of a queue in their order: all schedulers once, then all once more, with another one first.

    A testbed that gets slower, or warmer, in the course of a day then favours none of them. Raise InputError if a
    scheduler is named twice, or the runs are none or too many.

    >>> [each.run for each in ordered(["fifo", "las(quantum_s=60)"], repeat=2)]
    ['fifo-1', 'las-quantum_s-60-1', 'las-quantum_s-60-2', 'fifo-2']
    """
    names = list(schedulers)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"scheduler {twice} is named twice; to run it several times, give --repeat.")
    if not 1 <= repeat * len(names) <= MAX_RUNS:
        raise InputError(f"{len(names)} schedulers x {repeat} repeats; expected 1 to {MAX_RUNS:,} runs.")
    slugs: dict[str, str] = {}
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:SLUG] or "scheduler"
        taken = set(slugs.values())
        slugs[name] = next(
            one for one in (slug, *(f"{slug}-v{n}" for n in range(2, len(names) + 2))) if one not in taken
        )
    for number in range(1, repeat + 1):
        first = (number - 1) % len(names)
        for name in names[first:] + names[:first]:
            yield QueuedRun(run=f"{slugs[name]}-{number}", scheduler=name, repeat=number)


def describe_state(state: QueueState, *, worked: bool) -> str:
    """Return the state of a run for people: one that is running in a queue that no process carries out was cut off.

    >>> describe_state(QueueState.RUNNING, worked=True), describe_state(QueueState.RUNNING, worked=False)
    ('running', 'cut off')
    """
    return "cut off" if state == QueueState.RUNNING and not worked else str(state)


def queue_names(runs: Path | str = "runs") -> list[str]:
    """Return the names of the queues in a folder of runs, sorted."""
    return sorted(path.parent.name for path in Path(runs).glob(f"*/{QUEUE}"))


def find_queue(name: str | Path, *, runs: Path | str = "runs") -> Path | None:
    """Return the folder of a queue: that of this path, or of this name under `runs`; None: there is none."""
    for folder in (Path(name), Path(runs) / name):
        if (folder / QUEUE).is_file():
            return folder
    return None


def queue_of(name: str | Path, *, runs: Path | str = "runs") -> Path:
    """Return the folder of a queue; InputError if there is none ("Did you mean ...?")."""
    folder = find_queue(name, runs=runs)
    if folder is not None:
        return folder
    if not (known := queue_names(runs)):
        raise InputError(
            f"no queue '{name}': there is none in {runs}; begin one with 'labkit deploy --schedulers A,B'."
        )
    raise unknown("queue", str(name), known)


def status_of_queue(queue: RunQueue, folder: Path) -> str:
    """Return how a queue is doing, for people: its counts, and which process carries it out or how to go on."""
    if (by := writer_of(folder)) is not None:
        return f"{queue.counts(worked=True)}; worked by process {by.get('pid', '?')} on {by.get('host', '?')}"
    if queue.left:
        return f"{queue.counts()}; nobody works it: labkit deploy --resume {folder.name} --runs {folder.parent}"
    return queue.counts()
