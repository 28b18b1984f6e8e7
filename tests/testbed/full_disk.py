"""A host whose disk fills up: what happens then, each as a program in a namespace where a small disk can be mounted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labkit.core.events import Kind
from labkit.experiment import Session
from labkit.testbed.laptop import Bed
from labkit.testbed.run.backend import SshBackend
from labkit.testbed.run.retries import Retries
from tests.hang import HANG_S
from tests.testbed.test_backend import TINY, jobs_of, on, ran, until

ROOT = Path(__file__).parents[2]


def output_of(story: str, *, bed: Path, run: Path) -> str:
    """Run a story in a namespace of its own, and return its output; the test is skipped where there can be none."""
    if os.getuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no file system can be mounted here, not even in a namespace of its own")
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-m", __name__, story, str(bed), str(run)],
        capture_output=True, text=True, timeout=HANG_S, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@contextmanager
def small_disk(host: str, n_jobs: int, *, bed: str, run: str, **options: Any) -> Iterator[tuple[Session, Any, Path]]:
    """Mount a disk of 64 MB at a host of a bed; yield a session, its backend, and the disk."""
    with Bed.up(2, folder=bed, gpus=1) as up:
        disk = up.home(host) / ".labkit"
        disk.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", str(disk)], check=True)
        try:
            jobs = jobs_of(n_jobs, steps=100_000)
            with SshBackend(jobs, up.inventory, run="full", folder=Path(run), training=TINY, **options) as backend:
                yield Session(backend), backend, disk
                print("NOTES", *backend.notes, sep="\n")
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    subprocess.run(["sh", "-c", 'cat /dev/zero >"$0"', str(disk / "fill")], stderr=subprocess.DEVNULL, check=False)


def back_to_it(bed: str, run: str) -> None:
    """Start a job there again and again, whatever the scheduler does, and once more when there is room."""
    patience = Retries(first_s=0.1, longest_s=0.2, aside_s=1.0)
    with small_disk("h0", 1, bed=bed, run=run, retries=patience) as (session, backend, disk):
        fill(disk)
        for n in range(1, 6):
            session._note(backend.apply(on(0)))
            until(session, Kind.FAILED, n=n)
            until(session, Kind.JOINED, n=n)
            backend._run_events._failures._hosts.clear()
        print("DROPPED", backend.dropped, flush=True)
        (disk / "fill").unlink()
        session._note(backend.apply(on(0)))
        until(session, Kind.STARTED)


def others_go_on(bed: str, run: str) -> None:
    """Let two jobs train while the disk of one is full, and both when there is room again."""
    from tests.testbed.test_robust import both, go_on

    with small_disk("h1", 2, bed=bed, run=run) as (session, backend, disk):
        session._note(backend.apply(both()))
        until(session, Kind.STARTED, n=2)
        go_on(session, 1)
        fill(disk)
        go_on(session, 0, n=5)
        print("FAILED", ran(session.log.rows, Kind.FAILED), "LEFT", ran(session.log.rows, Kind.LEFT))
        (disk / "fill").unlink()
        go_on(session, 0)
        if not ran(session.log.rows, Kind.FAILED):
            go_on(session, 1)


if __name__ == "__main__":
    {"back_to_it": back_to_it, "others_go_on": others_go_on}[sys.argv[1]](*sys.argv[2:])
