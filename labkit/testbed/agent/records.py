"""State of runs and tasks on the disk of a host, written before it is acted upon."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from labkit.system.proc import Identity
from labkit.testbed.agent.places import LABEL, read_json, write_whole

FORMAT: Final = "labkit run 1"
"""Format in the label of a run's folder; a folder without it is never removed."""

BOOT: Final = "LABKIT_BOOT_ID"
"""Environment variable: a file to read instead of the kernel's boot id, for hosts of a laptop testbed."""

KERNELS: Final = "/proc/sys/kernel/random/boot_id"


class Phase(StrEnum):
    """State of a task."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True)
class TaskRecord:
    """A task: its first process, and all processes that it started.

    Attributes
    ----------
    token : str
        Distinguishes this start from others of the same name.
    gpus : list of str, optional
        Identifiers of the GPUs that it holds; None: none were requested, and it sees all.
    leaving : list of str
        GPUs that it has given back, and that its processes may still see.
    code : int, optional
        Exit code; None if a signal ended it, or if it is unknown.
    how : str
        How it ended, in words.
    server : str
        Socket of the fork server that reports its end; empty for a plain process.
    """

    name: str
    token: str
    argv: list[str]
    cores: list[int] | None = None
    gpus: list[str] | None = None
    leaving: list[str] = field(default_factory=list)
    phase: Phase = Phase.STARTING
    pid: int = 0
    start: int = 0
    started_s: float = 0.0
    ended_s: float | None = None
    code: int | None = None
    signal: str | None = None
    how: str = ""
    server: str = ""

    @property
    def first_process(self) -> Identity:
        """First process of the task."""
        return Identity(self.pid, self.start)

    @classmethod
    def read(cls, values: dict[str, Any]) -> TaskRecord:
        """Read what `asdict` returned."""
        known = {each.name for each in fields(cls)}
        task = cls(**{name: value for name, value in values.items() if name in known})
        task.phase = Phase(task.phase)
        return task


@dataclass(slots=True)
class AgentRunRecord:
    """A run.

    Attributes
    ----------
    boot : str
        Start of the host that `until_s` counts from.
    until_s : float
        End of its lease, in seconds since that start.
    over : str
        Why it is over; empty while it goes on.
    over_s : float, optional
        When it was over, in seconds since 1970.
    saying : dict, optional
        The event that belongs to this state: number, kind and values.
    """

    run: str
    boot: str
    lease_s: float
    until_s: float
    over: str = ""
    over_s: float | None = None
    saying: dict[str, Any] | None = None
    tasks: dict[str, TaskRecord] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it into the folder of the run."""
        write_whole(folder / LABEL, json.dumps({"format": FORMAT, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> AgentRunRecord | None:
        """Read it from the folder of a run; None where there is no label, or it is of another run."""
        label = read_json(folder / LABEL)
        if label is None or label.get("format") != FORMAT or label.get("run") != folder.name:
            return None
        try:
            tasks = {name: TaskRecord.read(task) for name, task in label["tasks"].items()}
            names = ("run", "boot", "lease_s", "until_s", "over", "over_s", "saying")
            return cls(**{name: label[name] for name in names}, tasks=tasks)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    @property
    def running(self) -> list[TaskRecord]:
        """Its tasks that have not ended."""
        return [task for task in self.tasks.values() if task.phase != Phase.ENDED]


def machine_id() -> str:
    """Return the kernel's boot id: hosts with the same id are one machine, and share its cores."""
    return Path(KERNELS).read_text().strip()


def boot_id() -> str:
    """Return an id of this start of the host."""
    return Path(os.environ.get(BOOT) or KERNELS).read_text().strip()
