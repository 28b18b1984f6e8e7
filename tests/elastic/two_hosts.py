"""Two or three "hosts" on addresses of this machine: a job at home, and launchers with folders of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labkit.elastic import Job, models, start
from labkit.elastic.data import dataset
from labkit.elastic.process.credentials import unpack
from labkit.elastic.process.local_members import running
from labkit.elastic.protocol.sites import Site
from tests.hang import HANG_S

NAME, STEPS, LEASE_S = "cnn-text-classification", 120, 3.0
SITES = [Site("a/0", "a", "127.0.0.1"), Site("b/0", "b", "127.0.0.2"), Site("c/0", "c", "127.0.0.3")]
HALF = {"a/0": (1, 1), "b/0": (1, 1)}


class Slow:
    """A dataset that is slow to read as long as a file is there."""

    def __init__(self, samples: Any, file: Path, *, wait_s: float) -> None:
        self.samples, self.file, self.wait_s = samples, file, wait_s

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, indices: list[int]) -> Any:
        if self.file.exists():
            threading.Event().wait(self.wait_s)
        return self.samples.fetch(indices)


class Bed:
    """A job over several hosts, and their launchers."""

    def __init__(self, folder: Path, *, wait_s: float = 0.15, **options: Any) -> None:
        self.folder, self.slow = folder, folder / "slow"
        self.slow.touch()
        given = {
            "steps": STEPS, "batch": 32, "optimizer": "momentum", "lr": 0.05, "network": "tls", "lease_s": LEASE_S,
            "sites": SITES, "place": HALF, "save_every": 5, "folder": folder / "job", **options,
        }  # fmt: skip
        model, data = models.build(NAME, width=0.1), Slow(dataset(NAME, n=128, width=0.1), self.slow, wait_s=wait_s)
        self.job: Job = start(model, data, models.loss(NAME), **given)
        self.launchers: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        self.homes: list[Path] = []

    def bring(self, host: str, *, again: str = "") -> subprocess.Popen[bytes]:
        """Start the launcher of a host, in a new home, or in the one that is there (`again`)."""
        home = self.folder / (again or f"{host}{len(self.homes)}")
        if not again:
            unpack(self.job.host_home(host), home)
            self.homes.append(home)
        with (home / "launcher.log").open("ab") as log:
            self.launchers[host] = subprocess.Popen(
                [sys.executable, "-m", "labkit.elastic.process.host_launcher", str(home)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._all.append(self.launchers[host])
        return self.launchers[host]

    def events(self) -> list[dict[str, Any]]:
        return list(self.job.events(follow=False))

    def until(self, what: Callable[[dict[str, Any]], bool] | str, *, n: int = 1) -> dict[str, Any]:
        """Wait until the n-th event is told of that name, or that is so."""
        found = (lambda event: event["event"] == what) if isinstance(what, str) else what
        until, pause = time.monotonic() + HANG_S, threading.Event()
        while time.monotonic() < until:
            told = [event for event in self.events() if found(event)]
            if len(told) >= n:
                return told[n - 1]
            if any(event["event"] == "over" for event in self.events()):
                break
            pause.wait(0.05)
        told = [event for event in self.events() if event["event"] not in ("stepped", "loss", "met", "ready", "dealt")]
        raise AssertionError(f"no {what} within {HANG_S} s:\n" + "\n".join(map(str, told[-60:])))

    def trains(self, *, more: int = 2) -> None:
        """Wait until some steps more are done."""
        done = sum(event["event"] == "loss" for event in self.events())
        self.until("loss", n=done + more)

    def place(self, place: dict[str, tuple[int, int]], **options: Any) -> None:
        """Let so many sit where, and wait until they do."""
        number = self.job.place(place, **options)
        self.until(lambda e: e["event"] in ("scaled", "dropped") and e["scaling"] == number)

    def sitting(self) -> dict[str, tuple[int, int]]:
        """Return workers and servers of each site."""
        seats = [(seat.site, seat.role) for seat in self.job.status().members]
        return {s: (seats.count((s, "worker")), seats.count((s, "server"))) for s in sorted({s for s, _ in seats})}

    def pid(self, name: str) -> int:
        return next(e["pid"] for e in reversed(self.events()) if e["event"] == "started" and e["name"] == name)

    def result(self) -> Any:
        self.slow.unlink(missing_ok=True)
        return self.job.wait(timeout_s=HANG_S)

    def left_behind(self) -> list[str]:
        """Return members that still run, launchers that do, and files of theirs that are no logs."""
        for launcher in self.launchers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(HANG_S)
        files = [str(p) for home in self.homes if home.exists() for p in home.rglob("*") if p.suffix != ".log"]
        return [*running(self.folder), *(h for h, p in self.launchers.items() if p.poll() is None), *files]

    def close(self) -> None:
        """End everything, however the test has gone."""
        with contextlib.suppress(Exception):
            self.job.__exit__()
        for process in self._all:
            process.kill()
            process.wait()
        for pid in running(self.folder).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def bed(folder: Path, *, hosts: str = "b", **options: Any) -> Iterator[Bed]:
    """Have a job whose launchers have come and which trains."""
    made = Bed(folder, **options)
    try:
        for host in hosts:
            made.bring(host)
        yield made
    finally:
        made.close()


def said(file: Path) -> Any:
    return json.loads(file.read_text())
