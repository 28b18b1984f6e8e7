"""Cores and memory of processes that run: real ones by affinity, and what is written into a tree of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.elastic import Job, models, start
from labkit.elastic.data import dataset
from labkit.elastic.process import limits
from labkit.elastic.process.limits import (
    Affinity,
    Amounts,
    Braked,
    ControlGroup,
    Trees,
    chosen,
    cpu_s,
    give,
    old_trees,
    writable_group,
)
from tests.hang import HANG_S

ALL = sorted(os.sched_getaffinity(0))
NAME = "dssm"
THREADED = """
import sys, threading
stay = threading.Event()
for _ in range(3):
    threading.Thread(target=stay.wait, daemon=True).start()
print("here", flush=True)
sys.stdin.read()
"""


def allowed(pid: int) -> list[set[int]]:
    """Return the cores that each thread of a process may use, as /proc/PID/task/*/status tells it."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        line = next(line for line in status.read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
        parts = [part.split("-") for part in line.split(":")[1].strip().split(",")]
        found.append({core for part in parts for core in range(int(part[0]), int(part[-1]) + 1)})
    return found


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", THREADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout
        assert running.stdin
        running.stdout.readline()
        yield running.pid
        running.stdin.close()


@pytest.mark.skipif(len(ALL) < 2, reason="one core")
def test_all_threads_of_a_process_get_other_cores_and_get_them_back(process: int) -> None:
    way = Affinity()
    assert not way.apply(process, Amounts(1))
    mine = allowed(process)
    assert len(mine) == 4
    assert all(cores == mine[0] and len(cores) == 1 for cores in mine)
    assert not way.apply(process, Amounts())
    assert all(cores == set(ALL) for cores in allowed(process))


def test_a_process_gets_cores_that_the_fewest_others_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_used", lambda _, *, but: Counter({0: 2, 1: 1, 3: 1} if not but else {3: 1}))
    assert chosen(2, range(4)) == [1, 2]
    assert chosen(3, range(4), but=7) == [0, 1, 2]


@pytest.mark.skipif(len(ALL) < 2, reason="one core")
def test_a_process_that_is_limited_counts_for_its_cores(process: int) -> None:
    give(process, [ALL[-1]])
    assert limits._used(set(ALL), but=0)[ALL[-1]] > 0


def test_what_affinity_cannot_do_is_told(process: int) -> None:
    n = len(ALL)
    assert Affinity().apply(process, Amounts(n + 1)) == [f"{n + 1} cores: {n} are there"]
    assert Affinity().apply(process, Amounts(0.5, 2)) == [
        "0.5 cores: it has 1, since affinity sets whole cores",
        "2 GB: memory is not limited here: there is no cgroup",
    ]
    with pytest.raises(ProcessLookupError):
        give(2**22 + 1, ALL)


@pytest.mark.parametrize("amounts", [(0, None), (None, -1), (float("inf"), 1), (float("nan"), 1), (True, 1)])
def test_amounts_that_are_none_are_refused(amounts: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="expected a finite number > 0, or no limit"):
        Amounts(*amounts)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of control groups as the kernel shows it: this user may write below user-1, which holds no process."""
    for group in ("", "user-1", "user-1/app"):
        (tmp_path / group).mkdir(exist_ok=True)
        (tmp_path / group / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (tmp_path / group / "cgroup.subtree_control").write_text("")
        (tmp_path / group / "cgroup.procs").write_text("")
    return tmp_path


def test_a_control_group_gets_a_share_of_cores_and_memory(tree: Path, process: int) -> None:
    own = tree / "self"
    own.write_text("0::/user-1/app/session\n")
    folder = writable_group(tree=tree, own=own)
    assert folder == tree / "user-1"
    way = ControlGroup(Trees(folder, folder, version=2), resident=lambda _: 0)
    assert not way.apply(process, Amounts(0.5, 2))
    group = tree / "user-1" / f"labkit-{process}"
    assert (tree / "user-1" / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert {name: (group / name).read_text() for name in ("cpu.max", "memory.max", "cgroup.procs")} == {
        "cpu.max": "50000 100000", "memory.max": "2000000000", "cgroup.procs": str(process),
    }  # fmt: skip
    assert not way.apply(process, Amounts())
    assert (group / "cpu.max").read_text() == (group / "memory.max").read_text() == "max"


def test_a_tree_with_a_process_in_it_or_without_controllers_is_not_used(tree: Path) -> None:
    own = tree / "self"
    own.write_text("0::/user-1/session\n")
    assert writable_group(tree=tree, own=own) == tree / "user-1"
    (tree / "user-1" / "cgroup.procs").write_text("17\n")
    assert writable_group(tree=tree, own=own) is None
    (tree / "user-1" / "cgroup.procs").write_text("")
    (tree / "user-1" / "cgroup.controllers").write_text("pids\n")
    assert writable_group(tree=tree, own=own) is None
    own.write_text("1:cpu:/old\n")
    assert writable_group(tree=tree, own=own) is None


def begin(*, sync: bool, steps: int = 400) -> Job:
    return start(
        models.build(NAME, width=0.05), dataset(NAME, n=256, width=0.05), models.loss(NAME), steps=steps, batch=32,
        workers=2, servers=1, optimizer="sgd", lr=0.05, sync=sync,
    )  # fmt: skip


@pytest.mark.skipif(len(ALL) < 2, reason="one core")
@pytest.mark.parametrize("sync", [True, False])
def test_a_running_job_is_resized_without_a_restart_and_to_the_same_bits(sync: bool) -> None:
    digest = ""
    if sync:
        with begin(sync=True) as job:
            digest = job.wait(timeout_s=HANG_S).digest
    with begin(sync=sync) as job:
        resized: dict[str, list[int]] = {}
        for event in job.events():
            if event["event"] == "loss" and not resized:
                pids = {seat.name: seat.pid for seat in job.status().members}
                with pytest.raises(InputError, match="no 'worker-7' to resize; there are ps-0, worker-0, worker-1"):
                    job.resize({"worker-7": (1, None)})
                job.resize({"worker-0": (1, None), "ps-0": (1, 4.0)})
                resized = {"asked": []}
            if event["event"] == "resized":
                resized[event["name"]] = event["cores"]
                assert all(cores == set(event["cores"]) for cores in allowed(pids[event["name"]]))
                assert event["how"].startswith("v") or bool(event["unable"]) == (event["name"] == "ps-0")
            if len(resized) == 3:
                break
        assert len(resized["worker-0"]) == len(resized["ps-0"]) == 1
        assert {seat.name: seat.pid for seat in job.status().members} == pids
        result = job.wait(timeout_s=HANG_S)
    assert [event["event"] for event in result.events].count("started") == 3
    assert digest in ("", result.digest)


def test_a_share_of_a_core_is_kept_without_rights_and_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(sync=True, steps=200) as job:
        digest = job.wait(timeout_s=HANG_S).digest
    monkeypatch.setenv(limits.CHOICE, limits.BRAKE)
    with begin(sync=True, steps=200) as job:
        pid, began, spent = 0, 0.0, 0.0
        for event in job.events():
            if event["event"] == "loss" and not pid:
                pid = next(seat.pid for seat in job.status().members if seat.name == "worker-0")
                job.resize({"worker-0": (0.05, None), "ps-0": (0.1, None)})
            elif event["event"] == "resized" and event["name"] == "worker-0":
                assert (event["how"], event["unable"]) == ("brake", [])
                began, spent = time.monotonic(), cpu_s(pid)
            elif event["event"] == "loss" and event["version"] == 120:
                used = (cpu_s(pid) - spent) / (time.monotonic() - began)
                assert 0 < used < 0.07
                assert next(seat for seat in job.status().members if seat.name == "worker-0").most_cores == 0.05
                job.resize({"worker-0": (None, None), "ps-0": (None, None)})
        assert job.wait(timeout_s=HANG_S).digest == digest


def test_what_no_process_can_live_with_is_told_and_it_keeps_what_it_has(process: int) -> None:
    way = Braked(resident=lambda _: 2_000_000_000)
    assert way.apply(os.getpid(), Amounts(0.001, 1.5)) == [
        "0.001 cores: it has 0.01, the least that can be given",
        "1.5 GB: it has 2 already; its limit of memory stays as it was",
    ]
    assert not way.exceeded()
    assert way.apply(os.getpid(), Amounts(None, 2.5)) == [
        "2.5 GB: not limited by the kernel; it ends itself soon after it has more"
    ]
    assert not way.exceeded()
    way._resident = lambda _: 2_600_000_000
    assert way.exceeded() == "it has 2.6 GB, and may have 2.5"

    def hidden(_: int) -> int:
        raise FileNotFoundError("/proc")

    assert Braked(resident=hidden).apply(os.getpid(), Amounts(None, 1.0)) == [
        "1 GB: the memory of a process is unknown on this host"
    ]
    way.apply(os.getpid(), Amounts())
    assert Braked().apply(process, Amounts(0.5)) == ["0.5 cores: it has 1, since affinity sets whole cores"]


def test_a_way_that_is_none_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.CHOICE, "v3")
    with pytest.raises(InputError, match="LABKIT_LIMITS is 'v3'; expected one of v2, v1, brake, affinity, or nothing"):
        begin(sync=True)


OLD_MOUNTS = """\
31 23 0:28 / {root} rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 /docker/1 {root}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / {root}/memory rw,relatime - cgroup cgroup rw,memory
"""


def test_groups_of_the_old_kind_are_made_below_ones_own_wherever_they_are_mounted(tmp_path: Path) -> None:
    own, mounts = tmp_path / "self", tmp_path / "mountinfo"
    own.write_text("5:memory:/api/labkit-7\n3:cpu,cpuacct:/docker/1/app\n0::/\n")
    mounts.write_text(OLD_MOUNTS.format(root=tmp_path))
    assert old_trees(own=own, mounts=mounts) is None
    for group in ("cpu/app", "memory/api"):
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "cgroup.procs").write_text("")
    trees = old_trees(own=own, mounts=mounts)
    assert trees is not None
    assert trees.folders == [tmp_path / "cpu/app", tmp_path / "memory/api"]
    way = ControlGroup(trees, resident=lambda _: 500_000_000)
    pid = os.getpid()
    assert not way.apply(pid, Amounts(0.5, 2.0))
    assert (trees.cpu / f"labkit-{pid}" / "cpu.cfs_quota_us").read_text() == "50000"
    assert (tmp_path / "memory/api" / f"labkit-{pid}" / "memory.limit_in_bytes").read_text() == "1500000000"
    (tmp_path / "memory/api" / f"labkit-{pid}" / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
    assert trees.oom_kills(pid) == 1
    assert not way.apply(pid, Amounts())
    assert (trees.cpu / f"labkit-{pid}" / "cpu.cfs_quota_us").read_text() == "-1"
