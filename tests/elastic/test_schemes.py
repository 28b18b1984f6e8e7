"""Real processes over shared memory and over sockets: the same bits, and no memory that grows or stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.elastic import Job, Result, models, start
from labkit.elastic.data import dataset
from labkit.elastic.protocol.program import Spec
from labkit.elastic.transport import Scheme
from tests.hang import HANG_S

NAME, STEPS = "cnn-text-classification", 60
MARK = "memfd:labkit"


def mapped(job: Job) -> dict[str, int]:
    """Return how many shared regions each process maps."""
    members = {e["name"]: e["pid"] for e in job.events(follow=False) if e["event"] == "started"}
    return {name: Path(f"/proc/{pid}/maps").read_text().count(MARK) for name, pid in members.items()}


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, list[dict[str, int]]]]:
    """Train over a scheme, look at the processes' memory after some steps, and return both."""
    save = Spec.save

    def run(scheme: str, at: dict[int, Callable[[Job], None]] | None = None, **options: Any) -> Any:
        monkeypatch.setattr(Spec, "save", lambda spec, folder: save(replace(spec, scheme=Scheme(scheme)), folder))
        given = {"steps": STEPS, "batch": 32, "workers": 2, "servers": 2, "optimizer": "momentum", "lr": 0.05}
        todo, seen = dict(at or {}), []
        model, data = models.build(NAME, width=0.1), dataset(NAME, n=128, width=0.1)
        with start(model, data, models.loss(NAME), **{**given, **options}) as job:
            for event in job.events():
                if event["event"] == "loss" and event["version"] in todo:
                    todo.pop(event["version"])(job)
                if event["event"] == "loss" and event["version"] in (10, STEPS - 10):
                    seen.append(mapped(job))
            return job.wait(timeout_s=HANG_S), seen

    return run


def test_shared_memory_and_sockets_give_the_same_bits_and_regions_do_not_grow_with_steps(train: Any) -> None:
    here, (early, late) = train("shm")
    assert all(early.values())
    most = 8 * 2  # a worker has at most a vector for each logical shard, however they are dealt from step to step
    assert all(late[name] <= early[name] + most < STEPS for name in early)
    there, seen = train("unix")
    assert not any(count for counts in seen for count in counts.values())
    assert here.digest == there.digest
    for workers, servers in ((1, 1), (3, 4)):
        assert train("shm", workers=workers, servers=servers)[0].digest == here.digest
