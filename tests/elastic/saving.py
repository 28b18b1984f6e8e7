"""A process that saves checkpoints and is killed, or runs into a limit, while it does; run by test_checkpoint."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

from labkit.elastic.checkpoint.manifest import Disk
from labkit.elastic.checkpoint.store import Checkpoints, SavedBlock, WriteError
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.server.optimizers import optimizer
from labkit.elastic.shards import SavedShards, ShardService

LAYOUT = layout([("weight", (30, 20)), ("bias", 20)], block_bytes=512)
OPTIMIZER = optimizer("adam")


def blocks_at(step: int) -> list[SavedBlock]:
    """The blocks of a model at a step: some numbers that depend on it."""
    rng = np.random.default_rng(step)
    made = []
    for number, n in enumerate(LAYOUT.sizes):
        params, mean, square = rng.standard_normal((3, n)).astype(np.float32)
        made.append(SavedBlock(number, step, params, {"mean": mean, "square": square}))
    return made


def queue_at(step: int) -> SavedShards:
    """The shard queue of a model at a step: one that depends on it, with a range that was returned and one on lease."""
    service = ShardService(256, seed=step, base_shard=8)
    for worker in ("a", "b"):
        service.lease(worker, now_s=float(step))
    service.leave("a")
    return service.state()


def checkpoints(folder: Path, disk: Disk | None = None) -> Checkpoints:
    return Checkpoints(folder, layout=LAYOUT, optimizer=OPTIMIZER, disk=disk)


def save(folder: Path, step: int, disk: Disk | None = None) -> Path:
    blocks = blocks_at(step)
    return checkpoints(folder, disk).save(step, {"ps-0": blocks[::2], "ps-1": blocks[1::2]}, queue=queue_at(step))


class Counting(Disk):
    """Calls `now` before every operation, and in the middle of every write."""

    def now(self, what: str) -> None: ...

    def make_folder(self, path):
        self.now("make_folder")
        super().make_folder(path)

    def create(self, path):
        self.now("create")
        return super().create(path)

    def write(self, file, buffers):
        self.now("write")
        data = b"".join(bytes(buffer) for buffer in buffers)
        super().write(file, [data[: len(data) // 2]])
        self.now("half written")
        super().write(file, [data[len(data) // 2 :]])

    def sync(self, file):
        self.now("sync")
        super().sync(file)

    def sync_folder(self, path):
        self.now("sync_folder")
        super().sync_folder(path)

    def rename(self, path, to):
        self.now("rename")
        super().rename(path, to)

    def remove(self, path):
        self.now("remove")
        for file in sorted(path.iterdir()):
            file.unlink()
            self.now("half removed")
        super().remove(path)


class At(Counting):
    """Does something at the n-th moment (from 0)."""

    def __init__(self, n: int, do) -> None:
        self.left, self.do, self.where = n, do, ""

    def now(self, what: str) -> None:
        self.left -= 1
        if self.left == -1:
            self.where = what
            self.do(what)


def die(what: str) -> None:
    print(what, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at_every_moment(folder: Path, *, bad: bool = False) -> None:
    """Save step 3 over 1 and 2, perhaps also over a bad 3; be killed at each moment."""
    before = folder / "before"
    save(before, 1)
    save(before, 2)
    if bad:
        bad_one = save(folder / "bad", 3)
        (bad_one / "queue.json").write_text("")
        bad_one.rename(before / bad_one.name)
    for n in range(1000):
        here = folder / str(n)
        shutil.copytree(before, here)
        pid = os.fork()  # nothing here has threads
        if pid == 0:
            save(here, 3, At(n, die))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        print(f"killed {os.WTERMSIG(status)}", flush=True)


def limited(folder: Path) -> None:
    """Save over a limit of the size of a file."""
    save(folder, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        save(folder, 2)
    except WriteError as error:
        print(error, flush=True)


def full(folder: Path) -> None:
    """Save onto a real file system of 64 KB until it is full, then again once there is room."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    here = folder / "checkpoints"
    print("mounted", flush=True)
    save(here, 1)
    (folder / "other").write_bytes(bytes(40_000))
    try:
        save(here, 2)
    except WriteError as error:
        print(error, flush=True)
    print(*sorted(path.name for path in here.iterdir()), flush=True)
    print(checkpoints(here).newest().step, flush=True)
    (folder / "other").unlink()
    save(here, 2)
    print(checkpoints(here).newest().step, flush=True)


if __name__ == "__main__":
    what = {
        "killed": killed_at_every_moment,
        "killed over a bad one": partial(killed_at_every_moment, bad=True),
        "limited": limited,
        "full": full,
    }
    what[sys.argv[1]](Path(sys.argv[2]))
