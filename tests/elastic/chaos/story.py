"""A job to which things happen: it is told as a test, watched so that it cannot hang, and judged at its end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import cloudpickle
import pytest

from labkit.elastic import Job, JobError, Result, start
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.fault_injection import InjectedFault
from labkit.elastic.protocol.program import Spec
from labkit.elastic.shards import prove
from labkit.elastic.transport import Scheme
from tests.elastic.chaos import probe
from tests.hang import HANG_S

STEPS = 160
MINIBATCH = 4
"""Samples of an update of asynchronous training."""
RECORDS = "LABKIT_CHAOS_RECORDS"
"""A file to which a line is added for everything that was measured; `table.py` reads it."""

Event = dict[str, Any]


def many(few: int) -> range:
    """Return seeds: `few` of them, or as many as the variable LABKIT_CHAOS says."""
    return range(int(os.environ.get("LABKIT_CHAOS", few)))


class HangError(AssertionError):
    """Nothing that was waited for came within a minute."""


class Story:
    """A training of the probe, slow until `finish`, and slower the nearer it comes to its end without it.

    So whatever a test waits for happens in time, also on a machine that is busy with other things.

    Parameters
    ----------
    row : str
        Of the table of faults.
    faults : sequence of InjectedFault
        That happen by themselves.
    data : dict, optional
        More about the data: see `probe.Data`.
    options : dict
        For `labkit.elastic.start`. With `sync=False` minibatches are of four samples.
    """

    def __init__(
        self,
        row: str,
        *,
        faults: Sequence[InjectedFault] = (),
        optimizer: str = "sgd",
        steps: int = STEPS,
        wait_s: float = 0.03,
        scheme: str = "shm",
        folder: Path | None = None,
        data: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        cloudpickle.register_pickle_by_value(probe)
        self.sync = bool(options.get("sync", True))
        self.batch = probe.BATCH if self.sync else MINIBATCH
        self.data = data or {}
        assert steps % (probe.SAMPLES // self.batch) == 0, "whole epochs: every sample as often"
        self.row, self.optimizer, self.steps = row, optimizer, steps
        self.folder = Path(tempfile.mkdtemp(prefix="lkc-", dir=folder))
        self.slow = self.folder / "slow"
        self.slow.touch()
        fault.write(self.folder, faults)
        self.faults = list(faults)
        self.options = {"workers": 2, "servers": 2, "save_every": 0, "most_servers": 8, **options}
        self.wait_s, self.scheme = wait_s, scheme
        self.events: list[Event] = []
        self.kills: list[tuple[str, float]] = []
        self.hung, self._doubled = "", 0

    def __enter__(self) -> Self:
        spec_of = functools.partial(Spec, scheme=Scheme(self.scheme))
        spec_of.load = Spec.load  # type: ignore[attr-defined]
        with mock.patch("labkit.elastic.job_start.Spec", spec_of):
            self.job: Job = self._start()
        self._stream = self.job.events()
        self._dog: threading.Timer | None = None
        self._feed()
        return self

    def _start(self) -> Job:
        return start(
            probe.model(), probe.Data(self.slow, wait_s=self.wait_s, **self.data), probe.loss, steps=self.steps,
            batch=self.batch, shards=probe.SHARDS, optimizer=self.optimizer, lr=probe.RATES[self.optimizer],
            folder=self.folder, proof="off", **self.options,
        )  # fmt: skip

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._dog is not None:
            self._dog.cancel()
        if kind is not None and not self.hung:
            self._tell()
        with contextlib.suppress(Exception):
            self.slow.unlink(missing_ok=True)
            self.job.__exit__()
        for pid in self.pids.values():
            self._kill(pid)
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind is not None and self.hung:
            raise HangError(self.hung) from error

    # --- the watchdog

    def _feed(self) -> None:
        if self._dog is not None:
            self._dog.cancel()
        self._dog = threading.Timer(HANG_S, self._bark)
        self._dog.daemon = True
        self._dog.start()

    def _bark(self) -> None:
        """End a job that hangs, and keep what every thread of it was doing."""
        self.hung = f"{self.row}: nothing for {HANG_S:.0f} s\n{self._stacks()}"
        print(self.hung, file=sys.stderr)
        self.job._controller.closing = True
        for pid in (self.job.pid, *self.pids.values()):
            self._kill(pid)

    def _tell(self) -> None:
        print(self._stacks(), file=sys.stderr)

    def _stacks(self) -> str:
        told = []
        for pid in (self.job.pid, *self.pids.values()):
            with contextlib.suppress(OSError):
                if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGUSR1)
        threading.Event().wait(0.5)
        for path in sorted(self.folder.glob("*.log")):
            told.append(f"--- {path.name}\n{path.read_text()[-6000:]}")
        noise = ("loss", "owns", "moved", "handed_over", "stepped", "met", "wants")
        events = list(self.job.events(follow=False))
        kept = [e for i, e in enumerate(events) if e["event"] not in noise or i > len(events) - 8]
        return "\n".join([*told, "--- events", *(json.dumps(e)[:250] for e in kept[-80:])])

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)

    # --- what a test tells

    @property
    def pids(self) -> dict[str, int]:
        """Process of each name, dead ones too."""
        return {e["name"]: e["pid"] for e in self.job.events(follow=False) if e["event"] == "started"}

    def next(self) -> Event:
        """Return what happens next."""
        for event in self._stream:
            self.events.append(event)
            if event["event"] == "stepped":
                self._slow_down(event["version"] / self.steps)
            return event
        raise AssertionError(self.hung or f"{self.row}: the job ended before its time: {self.events[-5:]}")

    def _slow_down(self, part: float) -> None:
        """Let steps take 2, 4, ... 16 times as long in the second half."""
        doubled = int(8 * (part - 0.5))
        if doubled > self._doubled:
            self._doubled = doubled
            with contextlib.suppress(OSError):  # a full disk, on purpose
                self.slow.write_text(str(2**doubled))

    def until(self, true: Callable[[Event], bool]) -> Event:
        """Wait for an event."""
        while True:
            event = self.next()
            if true(event):
                self._feed()
                return event

    def at(self, version: int) -> Self:
        """Wait until a step is done."""
        self.until(lambda e: e["event"] == "stepped" and e["version"] >= version)
        return self

    def stepped(self, n: int = 2) -> Self:
        """Wait for some more steps, done by now."""
        began = time.time()  # noqa: TID251 - events tell the time of day
        for _ in range(n):
            self.until(lambda e: e["event"] == "stepped" and e["time"] > began)
        return self

    def gone_on(self, n: int) -> Self:
        """Wait for some more steps, as the controller tells them: also where no event can be written."""
        pause, until = threading.Event(), time.monotonic() + HANG_S
        done = self.job.status().step + n
        while self.job.status().step < done:
            assert time.monotonic() < until, f"{self.row}: no {n} steps\n{self._stacks()}"
            pause.wait(0.02)
        self._feed()
        return self

    def happens(self, *names: str) -> Event:
        """Wait for an event by name."""
        return self.until(lambda e: e["event"] in names)

    def struck(self, number: int) -> Self:
        """Wait until a fault has happened."""
        pause, until = threading.Event(), time.monotonic() + HANG_S
        while number not in fault.fired(self.folder):
            waits = time.monotonic() < until and not self.job._ended.is_set()
            assert waits, f"{self.row}: {self.faults[number]} did not happen\n{self._stacks()}"
            pause.wait(0.02)
        self._feed()
        return self

    def scale(self, **request: Any) -> Self:
        """Ask for a scaling; asked again where the controller died before it answered."""
        from labkit.core.errors import InputError

        for _ in range(3):
            try:
                self.job.scale(**request)
            except (InputError, TimeoutError) as error:
                if "goodbye" not in str(error) and "gone" not in str(error):
                    raise
            else:
                break
        return self

    def kill(self, name: str) -> Self:
        """Kill a process; the controller by its name too."""
        pid = self.job.pid if name == "controller" else self.pids[name]
        self.kills.append((name, time.time()))  # noqa: TID251
        os.kill(pid, signal.SIGKILL)
        return self

    def gone(self, cut: Callable[[], None] | None = None) -> Self:
        """Note that now something happens that no process does itself, and do it."""
        self.kills.append(("link", time.time()))  # noqa: TID251
        if cut is not None:
            cut()
        return self

    def owners(self) -> dict[int, str]:
        """Return which server has which block, as events tell."""
        found: dict[int, str] = {}
        for event in self.job.events(follow=False):
            if event["event"] == "owns":
                found[event["block"]] = event["name"]
        return found

    @contextlib.contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        """Let a process stand still."""
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            threading.Event().wait(0.01)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # --- the judgement

    def finish(self, *, twice: int = 0) -> Result:
        """Let training run to its end, and judge it: the same bits, every loss, every effect once, no process left.

        Parameters
        ----------
        twice : int
            Asynchronous training: minibatches that may have had their effect twice, as of a worker that was killed.
        """
        self.slow.unlink(missing_ok=True)
        for event in self._stream:
            self.events.append(event)
            if event["event"] in ("stepped", "over"):
                self._feed()
        pids = [*self.pids.values(), self.job.pid]
        marks = fault.fired(self.folder)
        result = self.job.wait(timeout_s=HANG_S)
        assert sorted(marks) == list(range(len(self.faults))), f"faults that did not happen: {self._missed(marks)}"
        self._judge(result, twice=twice)
        self._nothing_is_left(pids)
        self._record([*self.kills, *((self.faults[i].member, when) for i, when in marks.items())])
        return result

    def ends_with(self, what: str) -> str:
        """Let the job come to its end by itself, with an error that says `what`, and judge that no process is left."""
        for event in self._stream:
            self.events.append(event)
            if event["event"] in ("joined", "left", "stuck"):
                self._feed()
        pids = [*self.pids.values(), self.job.pid]
        with pytest.raises(JobError, match=what) as caught:
            self.job.wait(timeout_s=HANG_S)
        assert not [pid for pid in pids if self._is_mine(pid)]
        return str(caught.value)

    def _judge(self, result: Result, *, twice: int) -> None:
        epochs = self.steps * self.batch // probe.SAMPLES
        assert result.version == self.steps
        if self.sync:
            digest, losses = probe.control(self.optimizer, self.steps)
            assert result.digest == digest
            apart = [(i, a, b) for i, (a, b) in enumerate(zip(result.losses, losses, strict=False)) if a != b]
            assert result.losses_from == 0, f"losses before step {result.losses_from} are missing"
            assert result.losses == losses, (len(result.losses), len(losses), apart[:5])
        else:
            prove(result.ledger, n_samples=probe.SAMPLES, epochs=epochs)
        if self.optimizer == "sgd":
            more = probe.effects(result.model, sync=self.sync) - epochs
            assert (more >= 0).all(), f"effects that are missing: {more.tolist()}"
            assert more.sum() <= twice * self.batch, f"effects that were made twice: {more.tolist()}"

    def _missed(self, marks: dict[int, float]) -> list[InjectedFault]:
        return [f for i, f in enumerate(self.faults) if i not in marks]

    def _is_mine(self, pid: int) -> bool:
        """Tell whether a process runs that belongs to this job: numbers of long ago are given to others."""
        with contextlib.suppress(OSError):
            return alive(pid) and str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text()
        return False

    def _nothing_is_left(self, pids: list[int]) -> None:
        assert not [pid for pid in pids if self._is_mine(pid)]
        sockets = [line for line in Path("/proc/net/unix").read_text().splitlines() if str(self.folder) in line]
        assert all("/via-" in line for line in sockets), sockets  # proxies are the test's own
        checkpoints = {path.name for path in (self.folder / "checkpoints").iterdir()}
        assert all(name.startswith("step-") for name in checkpoints), checkpoints
        assert not (self.folder / ".controller.json").exists()

    def _record(self, faults: list[tuple[str, float]]) -> None:
        path = os.environ.get(RECORDS)
        if path:
            with Path(path).open("a") as file:
                for measured in [*costs(self.events, faults), *scalings(self.events)]:
                    file.write(json.dumps({"row": self.row, **measured}) + "\n")


def alive(pid: int) -> bool:
    """Tell whether a process runs; one whose parent died may wait for long until another process asks for its end."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


NOTICED = ("left", "missed", "taken_over", "rejoined", "unsaved", "unwritten", "bad_checkpoint")
"""How the controller tells that it has noted the fault of a process."""
OF_A_LINK = ("cut", "unsure", "unmet", "expired", *NOTICED)
"""How it tells that it has noted that of a link."""


def costs(events: list[Event], faults: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Return what each fault cost; what comes after the next fault is not counted to the one before."""
    told = sorted(faults, key=lambda fault: fault[1])
    end_of_all = ("", float("inf"))
    return [
        after(events, when, end, noticed_by=OF_A_LINK if name == "link" else NOTICED)
        for (name, when), (_, end) in pairwise([*told, end_of_all])
    ]


def after(events: list[Event], when: float, end: float, *, noticed_by: Sequence[str] = NOTICED) -> dict[str, Any]:
    """Return what a fault cost: seconds to notice and to step again, steps lost, pause in seconds."""
    later = [e for e in events if when <= e["time"] < end]
    noticed = next((e["time"] for e in later if e["event"] in noticed_by and not e.get("expected")), None)
    back = next((e["time"] for e in later if e["event"] == "goes_back"), None)
    began = next((e for e in later if e["event"] == "began" and back is not None and e["time"] >= back), None)
    lost = 0
    if began is not None and back is not None:
        reached = [e["version"] + 1 for e in events if e["event"] == "stepped" and e["time"] <= back]
        lost = max(max(reached[-STEPS_OF_AN_ERA:], default=0) - began["version"], 0)
    from_ = noticed if back is None else (None if began is None else began["time"])
    stepped = next(
        (e["time"] for e in later if e["event"] == "stepped" and from_ is not None and e["time"] >= from_), None
    )
    return {
        "kind": "fault", "detect_s": None if noticed is None else noticed - when, "lost": lost,
        "recover_s": None if stepped is None else stepped - when,
        "pause_s": None if stepped is None else pause(events, when, stepped),
    }  # fmt: skip


STEPS_OF_AN_ERA = 20
"""Last reports of steps among which the furthest is sought: in an era before that training may have been further."""


def scalings(events: list[Event]) -> list[dict[str, Any]]:
    """Return the pause around each scaling that was done, in seconds."""
    began = {e["scaling"]: e["time"] for e in events if e["event"] == "registration"}
    done = [(e["scaling"], e["time"]) for e in events if e["event"] == "scaled" and e["scaling"] in began]
    return [
        {"kind": "scaling", "detect_s": None, "recover_s": time_ - began[n], "lost": 0,
         "pause_s": pause(events, began[n], time_)}
        for n, time_ in done
    ]  # fmt: skip


def pause(events: list[Event], first: float, last: float) -> float:
    """Return the longest time without a finished step around an interval, less what those steps take usually."""
    steps = [(e["time"], e["version"]) for e in events if e["event"] == "stepped"]
    usual = statistics.median([b[0] - a[0] for a, b in pairwise(steps) if b[1] > a[1]] or [0.0])
    gaps = [b[0] - a[0] - max(b[1] - a[1], 1) * usual for a, b in pairwise(steps) if b[0] >= first and a[0] <= last]
    return max([0.0, *gaps])
