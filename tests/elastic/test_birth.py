"""What the birth of a process, pickling or sharding would change is made the same in all processes, or refused."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

from labkit.elastic import start
from labkit.proc import command_line, stat
from tests.elastic.test_training import SlowNow
from tests.hang import HANG_S

WORDS = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question", "whether", "tis", "nobler", "in", "the", "mind", "to", "suffer"] * 16


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    for module in (here := sys.modules[__name__], sys.modules[SlowNow.__module__]):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (here, sys.modules[SlowNow.__module__]):
        cloudpickle.unregister_pickle_by_value(module)


class Words:
    """Pairs of words, numbered when they are first needed: by the order of a set."""

    numbers: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(WORDS) - 1

    def fetch(self, indices: list[int]) -> Any:
        if self.numbers is None:
            self.numbers = {word: number for number, word in enumerate(set(WORDS))}
        return tuple(torch.tensor([self.numbers[WORDS[i + k]] for i in indices]) for k in (0, 1))


def next_word(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_a_vocabulary_from_a_set_is_the_same_in_a_worker_of_another_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the new server's children had another hash seed: other bits after a fault, without a word."""
    monkeypatch.setenv("LABKIT_FORK_SERVER_FOLDER", str(tmp_path / "forks"))
    digests = []
    for kill in (False, True):
        torch.manual_seed(0)
        model, slow = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30)), tmp_path / "slow"
        data = SlowNow(Words(), slow)
        with start(model, data, next_word, steps=40, batch=32, workers=1, servers=1, lr=0.5, save_every=10) as job:
            for event in job.events():
                if kill and event["event"] == "loss" and event["version"] == 15:
                    slow.touch()
                    worker = next(m.pid for m in job.status().members if m.role == "worker")
                    found = stat(worker)
                    assert found is not None
                    assert command_line(found.parent)[0] == "labkit-forks"
                    os.kill(found.parent, signal.SIGKILL)
                    os.kill(worker, signal.SIGKILL)
                if event["event"] == "left" and not event["expected"]:
                    slow.unlink()
            digests.append(job.wait(timeout_s=HANG_S).digest)
    assert digests[0] == digests[1]
