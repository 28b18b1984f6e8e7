"""What the agent knows of runs and tasks, as it lies on the disk: written before anything is done."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from labkit.proc import Identity
from labkit.testbed.agent.places import LABEL, read_json, write_whole

FORMAT: Final = "labkit run 1"
"""The label: what does not bear it is never removed."""

BOOT: Final = "LABKIT_BOOT_ID"
"""Names a file to read instead of the kernel's boot id: hosts of a laptop testbed restart by themselves."""

KERNELS: Final = "/proc/sys/kernel/random/boot_id"


class Phase(StrEnum):
    """How far a task is."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True)
class TaskRecord:
    """A process, and all that it started.

    Attributes
    ----------
    token : str
        Tells this start from others of the same name.
    gpus : list of str, optional
        Identifiers of the GPUs that it holds; None: it was not asked for any, and sees what there is.
    leaving : list of str
        GPUs that it has given back, which processes of it may still see.
    code : int, optional
        With which it ended; None if a signal ended it, or if nobody knows.
    how : str
        In words, how it ended.
    server : str
        Socket of the fork server that knows how it ends; empty for one that was started by itself.
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
    def who(self) -> Identity:
        """Its first process."""
        return Identity(self.pid, self.start)

    @classmethod
    def read(cls, said: dict[str, Any]) -> TaskRecord:
        """Read what `asdict` returned."""
        known = {each.name for each in fields(cls)}
        task = cls(**{name: value for name, value in said.items() if name in known})
        task.phase = Phase(task.phase)
        return task


@dataclass(slots=True)
class AgentRunRecord:
    """A run.

    Attributes
    ----------
    boot : str
        Which start of the host `until_s` counts from.
    until_s : float
        When its lease is over, in seconds since then.
    over : str
        Why it is over; empty while it goes on.
    over_s : float, optional
        When, in seconds since 1970.
    saying : dict, optional
        The event that belongs to this state: its number, its kind, and what it tells.
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
        said = read_json(folder / LABEL)
        if said is None or said.get("format") != FORMAT or said.get("run") != folder.name:
            return None
        try:
            tasks = {name: TaskRecord.read(task) for name, task in said["tasks"].items()}
            names = ("run", "boot", "lease_s", "until_s", "over", "over_s", "saying")
            return cls(**{name: said[name] for name in names}, tasks=tasks)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    @property
    def running(self) -> list[TaskRecord]:
        """Its tasks that have not ended."""
        return [task for task in self.tasks.values() if task.phase != Phase.ENDED]


def machine_id() -> str:
    """Return the kernel's boot id: hosts that share it are one machine, and share its cores."""
    return Path(KERNELS).read_text().strip()


def boot_id() -> str:
    """Return what tells this start of the host from others."""
    return Path(os.environ.get(BOOT) or KERNELS).read_text().strip()
