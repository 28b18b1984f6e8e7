"""Files of a job that its controller writes: how it starts, its events, and the state for the next controller."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from labkit.elastic.controller.controller_state import SavedController
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.causes import RESTARTS, WITHIN_S
from labkit.elastic.protocol.messages.clients import LostMember
from labkit.elastic.protocol.messages.codec import damaged, load_struct, to_json
from labkit.elastic.protocol.program import Spec
from labkit.elastic.shards import Record

PLAN, EVENTS, STATE, LOCK = "plan.json", "events.jsonl", "controller.json", "controller.lock"
LOCKED: Final = "LABKIT_CONTROLLER_LOCK"
"""Variable with the descriptor of the locked `LOCK` that a controller inherits from the process that starts it."""
LEASES = "leases.jsonl"
"""Journal of the shard service."""
LOST_KNOWN: Final = 20
"""Members that were lost last and that a status names."""


def now() -> float:
    """Return the time of day in seconds, by which events of several processes of a machine are compared."""
    return time.time()  # noqa: TID251 - for people, and to compare with what they did


@dataclass(frozen=True, slots=True)
class JobConfig:
    """How a job starts."""

    place: dict[str, tuple[int, int]]
    """Workers and servers by name of the site."""
    save_every: int = 0
    """Steps between two checkpoints; 0: only the last state is saved."""
    standby: bool = False
    """Whether every block has a replica."""
    parent: int = 0
    """Number of the process with which the job ends; 0: it goes on by itself."""
    restarts: int = RESTARTS
    restarts_within_s: float = WITHIN_S
    """`restarts` and `restarts_within_s`: see `Deaths`."""
    differs: list[str] = field(default_factory=list)
    """How the training differs from the one whose checkpoint it continues."""
    proof: str = "off"
    """See `labkit.elastic.proof.proved`."""
    notices: list[str] = field(default_factory=list)
    """What the user is to know about its start, one event `told` each."""

    def save(self, folder: Path) -> None:
        """Write it into the folder of the job."""
        (folder / PLAN).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> JobConfig:
        """Read what `save` wrote."""
        return cls(**json.loads((folder / PLAN).read_text()))


def records(folder: Path) -> list[Record]:
    """Return the journal of the shard service, without a last line that is incomplete: its change had no effect."""
    lines = (folder / LEASES).read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def versions_of_losses(folder: Path) -> set[int]:
    """Return the versions whose losses are among the events of a job."""
    with (folder / EVENTS).open() as file:
        losses = (json.loads(line) for line in file if '"event": "loss"' in line and line.endswith("\n"))
        return {int(event["version"]) for event in losses}


class LeaseJournal:
    """Journal of the shard service: each change is on disk before it has any effect."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / LEASES).open("a", buffering=1)

    def write(self, record: Record) -> None:
        """Append a change; renewals of leases are left out, since leases are renewed when a controller takes over."""
        if record[1] != "renewed":
            self._file.write(json.dumps(record) + "\n")


class EventWriter:
    """Appends events of the job to a file, and keeps what a status tells of them."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / EVENTS).open("ab", buffering=0)
        self._unwritten = b""
        self.loss: float | str | None = None  # of the latest event "loss", as `encoded`
        self.lost: deque[LostMember] = deque(maxlen=LOST_KNOWN)  # members that were lost last

    def write(self, event: str, columns: Mapping[str, Any], *, when: float | None = None) -> None:
        """Append an event, by default of now; while the disk is full, events are kept and written later."""
        when = now() if when is None else when
        if event == "loss":
            self.loss = columns["loss"]
        if event == "left" and not columns["expected"]:
            self.lost.append(LostMember(columns["name"], columns["role"], columns["cause"], columns["reason"], when))
        self._unwritten += json.dumps({"time": when, "event": event, **columns}).encode() + b"\n"
        with contextlib.suppress(OSError):
            fault.at("controller.event")
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def restore(self, folder: Path) -> None:
        """Write all events so far into a new file, since the folder with the file was removed."""
        with open(f"/proc/self/fd/{self._file.fileno()}", "rb") as removed:
            written = removed.read()
        self._file.close()
        self._file = (folder / EVENTS).open("ab", buffering=0)
        self._unwritten = written + self._unwritten

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StateFile:
    """State of the controller on disk, from which the next one takes over."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATE
        self._written: SavedController | None = None

    @property
    def exists(self) -> bool:
        """Whether a controller of the job has written its state."""
        return self._path.exists()

    def read(self, spec: Spec) -> SavedController:
        """Return the state.

        Raise JobFileError if it is damaged, of another version of labkit, or of a job with another description.
        """
        state = load_struct(self._path, SavedController)
        contradiction = state.contradiction(sites=spec.places, n_blocks=len(spec.extents))
        if contradiction:
            raise damaged(self._path, contradiction)
        return state

    def write(self, state: SavedController) -> None:
        """Write the state atomically, unless it has not changed; OSError if that fails."""
        if state == self._written:
            return
        fault.at("controller.write")
        partial = self._path.with_name(f".{STATE}")
        with partial.open("wb") as file:
            file.write(to_json(state))
            file.flush()
            os.fsync(file.fileno())
        fault.at("controller.wrote")
        partial.rename(self._path)
        fault.at("controller.written")
        self._written = state
