"""R1, L1: many scalings leave nothing behind, and whatever happens in whatever order keeps every bit."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from tests.elastic.chaos.story import Story, many

LONG = "LABKIT_CHAOS" in os.environ


def footprint(pid: int) -> tuple[int, int, float]:
    """Return open files, threads, and resident megabytes of a process."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024


def test_many_scalings_leave_no_file_no_thread_and_no_memory_behind() -> None:
    """The controller, the first server and the first worker live through all of them."""
    n = 200 if LONG else 10
    warm = n // 5
    with Story("R1 many scalings", steps=4000 if LONG else 300, wait_s=0.05) as story:
        story.at(3)
        seen: list[list[tuple[int, int, float]]] = []
        lasting = [story.job.pid, story.pids["ps-0"], story.pids["worker-0"]]
        for number in range(n):
            story.scale(**({"servers": 1} if number % 2 == 0 else {"servers": -1})).happens("scaled")
            if number % 2:
                story.until(lambda e: e["event"] == "left")
                seen.append([footprint(pid) for pid in lasting])
        story.finish()
    first, last = np.array(seen[warm // 2]), np.array(seen[-1])
    assert (last[:, :2] - first[:, :2] <= 2).all(), f"files and threads: {first.tolist()} to {last.tolist()}"
    per_scaling_mb = (last[:, 2] - first[:, 2]) / max(n - warm, 1)
    assert (per_scaling_mb < (0.1 if LONG else 1.0)).all(), f"MB per scaling: {per_scaling_mb.tolist()}"


@pytest.mark.parametrize("seed", many(1))
def test_anything_in_any_order_keeps_every_bit(seed: int) -> None:
    """Scalings, kills and pauses as the seed has it; run it again with the seed that failed."""
    rng = np.random.default_rng(seed + int(os.environ.get("LABKIT_CHAOS_SEED", 0)))
    n = 20 if LONG else 5
    optimizer = str(rng.choice(["sgd", "momentum", "adam"]))
    with Story("L1 soak", steps=2000 if LONG else 200, save_every=5, optimizer=optimizer, lease_s=2.0) as story:
        story.at(3)
        deaths = 0
        for _ in range(n):
            what = str(rng.choice(["scale", "scale", "kill", "controller", "still"]))
            servers, workers = sorted(set(story.owners().values())), _workers(story)
            if what == "scale":
                _scale(story, rng, len(servers), len(workers))
            elif what == "kill" and deaths < 9:
                deaths += 1
                story.kill(str(rng.choice([*servers, *workers])))
            elif what == "controller" and deaths < 9:
                deaths += 1
                story.kill("controller")
                story.happens("resumed", "began")
            else:
                with story.stopped(story.pids[str(rng.choice(servers))]):
                    story.job._ended.wait(float(rng.uniform(0.1, 1.0)))
            story.stepped(int(rng.integers(1, 6)))
        story.finish()


def _workers(story: Story) -> list[str]:
    here = {e["name"]: e["event"] for e in story.job.events(follow=False) if e["event"] in ("ready", "left")}
    return [name for name, last in here.items() if last == "ready"]


def _scale(story: Story, rng: np.random.Generator, n_servers: int, n_workers: int) -> None:
    from labkit.core.errors import InputError

    request = {
        "servers": int(rng.integers(-1, 2)) if 1 < n_servers < 4 else int(n_servers == 1),
        "workers": int(rng.integers(-1, 2)) if 1 < n_workers < 3 else int(n_workers <= 1),
        "strategy": str(rng.choice(["handover", "handover", "suspend", "checkpoint"])),
    }
    with contextlib.suppress(InputError):  # an earlier request is still under way and took the last one
        story.scale(**request)
