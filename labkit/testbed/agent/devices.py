"""The GPUs of a host: which task holds which, and what is free; a GPU is held until nothing is left that may use it.

The records of runs are the journal: an agent that takes over from one that was killed knows from them which GPUs its
tasks hold. Agents of other users are detected by a name in the kernel's abstract socket namespace, which goes with the
process that holds it; programs that no agent started, by the processes that the driver reports.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from labkit.system.private_files import write_private
from labkit.system.proc import variables
from labkit.testbed.agent.folder_layout import Phase, TaskRecord
from labkit.testbed.agent.messages import GpuReading, GpuUse, Refusal
from labkit.testbed.agent.processes import Key
from labkit.testbed.agent.runs import AgentRun, AgentRuns

ALLOTMENT: Final = "gpus.json"
"""File in the folder of a task: identifiers of its GPUs, by number."""
VARIABLE: Final = "LABKIT_GPUS"
"""Environment variable that holds the path of that file."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
NAME: Final = "\0labkit-gpu/"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A request for `n` of the GPUs with these numbers or identifiers; of all GPUs if there are none."""

    n: int
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver reports it; `mig`: it is partitioned, and labkit does not use it."""

    index: int
    uuid: str
    mig: bool
    pids: tuple[int, ...] = ()

    @classmethod
    def of(cls, reading: GpuUse) -> Gpu:
        """Return a GPU of a reading."""
        return cls(reading.index, str(reading.uuid), reading.mig, tuple(int(pid) for pid in reading.processes))


class GpuLocks:
    """Locks against agents of other users: names of GPUs in the kernel's abstract socket namespace, each held once."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def take(self, uuid: str) -> bool:
        """Hold the name of a GPU; False if another process holds it."""
        if uuid in self._held:
            return True
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(NAME + uuid)
        except OSError:
            sock.close()
            return False
        self._held[uuid] = sock
        return True

    def keep(self, uuids: Iterable[str]) -> None:
        """Hold these names, as far as they are free, and no others."""
        wanted = set(uuids)
        for uuid in wanted - set(self._held):
            self.take(uuid)
        for uuid in set(self._held) - wanted:
            self._held.pop(uuid).close()


@dataclass(slots=True)
class Devices:
    """Assigns the GPUs of a host to tasks."""

    runs: AgentRuns
    """Runs of the agent; their tasks hold the GPUs."""
    _locks: GpuLocks = field(default_factory=GpuLocks)

    def holders(self) -> dict[str, set[Key]]:
        """Return the tasks that hold each GPU, by identifier; without GPUs that are free."""
        found: dict[str, set[Key]] = {}
        for here, task in self._tasks():
            for uuid in (*(task.gpus or ()), *task.leaving):
                found.setdefault(uuid, set()).add(Key(here.record.run, task.name))
        return found

    def _tasks(self) -> Iterable[tuple[AgentRun, TaskRecord]]:
        return ((here, task) for here in self.runs for task in here.record.running if task.gpus or task.leaving)

    def settle(self) -> None:
        """Free GPUs that tasks have given back, once none of their processes sees them."""
        leaving = [(here, task) for here, task in self._tasks() if task.leaving]
        found = self.runs.processes.find(self.runs.ender.sessions()) if leaving else {}
        for here, task in leaving:
            seen = _seen(each.pid for each in found.get(Key(here.record.run, task.name), ()))
            left = [uuid for uuid in task.leaving if uuid in seen]
            if left != task.leaving:
                task.leaving = left
                here.write()
        self._locks.keep(self.holders())

    def grant(
        self, key: Key, asks: Sequence[GpuRequest], *, reading: GpuReading, beside: str | None = None
    ) -> list[Gpu]:
        """Return the GPUs for a task: first those that it holds, then those of its partner, then free ones.

        Raise Refusal if there are too few (`no_gpu`), or other tasks hold them (`busy`); then nothing has changed.
        `beside`: A task of the same run, whose GPUs it may share.
        """
        self.settle()
        gpus = [Gpu.of(each) for each in reading.gpus]
        if not gpus:
            raise Refusal("no_gpu", f"no GPU can be handed out here: {reading.absent or 'the driver reports none'}")
        holders = self.holders()
        partner = None if beside is None else Key(key.run, beside)
        chosen: list[Gpu] = []
        try:
            for ask in asks:
                among = [gpu for gpu in _named(ask, gpus) if gpu not in chosen]
                chosen += self._choose(ask, among, holders=holders, key=key, partner=partner)
        finally:
            self._locks.keep({*holders, *(gpu.uuid for gpu in chosen)})
        return sorted(chosen, key=lambda gpu: gpu.index)

    def _choose(
        self, ask: GpuRequest, among: Sequence[Gpu], *, holders: Mapping[str, set[Key]], key: Key, partner: Key | None
    ) -> list[Gpu]:
        own = [gpu for gpu in among if key in holders.get(gpu.uuid, ())]
        shared = [gpu for gpu in among if gpu not in own and partner and holders.get(gpu.uuid) == {partner}]
        found = [*own, *shared]
        why: dict[int, str] = {}
        for gpu in among:
            if len(found) >= ask.n:
                break
            if gpu not in found:
                why[gpu.index] = self._taken(gpu, holders.get(gpu.uuid, set()))
                found += [] if why[gpu.index] else [gpu]
        if len(found) < ask.n:
            reasons = "; ".join(f"GPU {index}: {reason}" for index, reason in why.items() if reason)
            shortage = f"{ask.n} GPU{'s' if ask.n > 1 else ''} of {len(among)} asked for, {len(found)} can be had"
            raise Refusal("busy", f"task {key.task!r} of run {key.run!r}: {shortage} ({reasons})")
        return found[: ask.n]

    def _taken(self, gpu: Gpu, holders: set[Key]) -> str:
        """Return why a GPU cannot be given to a task that does not hold it; empty if it can."""
        if holders:
            return " and ".join(f"held by {key.task} of run {key.run}" for key in sorted(holders))
        if gpu.mig:
            return "cut by MIG, which is left alone"
        if not self._locks.take(gpu.uuid):
            return "held by another user's agent"
        others = [pid for pid in gpu.pids if _is_there(pid)]
        return f"used by process {others[0]}, which did not get it from this agent" if others else ""

    def change(
        self, key: Key, asks: Sequence[GpuRequest], *, reading: GpuReading, beside: str | None = None
    ) -> list[Gpu]:
        """Give a running task other GPUs; those that it gives back are free once none of its processes sees them.

        Raise Refusal as `grant`; if it does not run, or the disk is full.
        """
        here = self.runs.get(key.run)
        task = here.task(key.task)
        if task.phase == Phase.ENDED:
            raise Refusal("ended", f"task {key.task!r} of run {key.run!r} has ended: {task.how}")
        chosen = self.grant(key, asks, reading=reading, beside=beside) if asks else []
        before = task.gpus, task.leaving
        uuids = [gpu.uuid for gpu in chosen]
        task.gpus, task.leaving = uuids, [each for each in (*(before[0] or ()), *before[1]) if each not in uuids]
        if not here.write():
            task.gpus, task.leaving = before
            raise Refusal("disk", f"the state could not be written to {here.folder}: is the disk full?")
        write_private(here.folder / task.name / ALLOTMENT, allotment(chosen))
        return chosen


def allotment(gpus: Iterable[Gpu]) -> str:
    """Return the allotment file of a task: its GPUs, by number on this host.

    >>> allotment([Gpu(1, "GPU-b", False)])
    '{"1": "GPU-b"}'
    """
    return json.dumps({str(gpu.index): gpu.uuid for gpu in gpus})


def allotment_variable(folder: Path) -> dict[str, str]:
    """Return the environment variable with the path of a task's allotment file."""
    return {VARIABLE: str(folder / ALLOTMENT)}


def _named(ask: GpuRequest, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that a request names by number or identifier; all if it names none."""
    if not ask.of:
        found = list(gpus)
    else:
        by_name = {name: gpu for gpu in gpus for name in (str(gpu.index), gpu.uuid)}
        found = [by_name[name] for name in dict.fromkeys(ask.of) if name in by_name]
    if len(found) < ask.n:
        named = f" of the numbers {', '.join(ask.of)}" if ask.of else ""
        raise Refusal("no_gpu", f"{ask.n} GPUs{named} asked for; this host has {len(gpus)}, numbers from 0")
    return found


def _seen(pids: Iterable[int]) -> set[str]:
    """Return the identifiers of GPUs that some processes see."""
    mark, found = f"{VISIBLE}=".encode(), set[str]()
    for pid in pids:
        for variable in variables(pid):
            if variable.startswith(mark):
                found |= set(variable[len(mark) :].decode(errors="replace").split(","))
    return found


def _is_there(pid: int) -> bool:
    """Return whether a process of that number exists, of any user; a driver may report one that has just ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
