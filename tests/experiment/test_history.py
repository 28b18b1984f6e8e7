"""Final plans outlive a run: the next one of its kind starts with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.core import InputError
from labkit.core.events import NO_EVENTS
from labkit.experiment.history import add, attach_history, read
from labkit.schedulers import make
from labkit.schedulers.dlrover.history import History, Likeness
from labkit.schedulers.dlrover.plan import Plan

WIDE, FAST = Likeness("wide-deep", 256, "mine"), Plan(3, 0.2, 1, 0.4)


def test_what_was_added_is_read_and_the_last_line_of_a_kind_counts(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "plans.jsonl"
    assert read(path) == History()
    add(path, WIDE, Plan(1, 0.5, 1, 0.5))
    add(path, WIDE, FAST)
    assert read(path).start(WIDE) == (FAST, "the last plan of the same model, batch and dataset")


def test_a_scheduler_that_remembers_gets_the_file_and_what_it_learns_is_added_once(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    add(path, WIDE, FAST)
    brain = SimpleNamespace(past=History(), history=History())
    look = attach_history(path, brain)
    assert look is not None
    assert brain.past.start(WIDE) is not None
    brain.history = brain.past.noted({WIDE: Plan(4, 0.1, 1, 0.2)})
    look(NO_EVENTS)
    look(NO_EVENTS)
    assert len(path.read_text().splitlines()) == 2


def test_the_brain_remembers_and_fifo_does_not(tmp_path: Path) -> None:
    assert attach_history(tmp_path / "plans.jsonl", make("dlrover")) is not None
    assert attach_history(tmp_path / "plans.jsonl", make("fifo")) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2: the line"),
        ('{"model": "m", "batch": 1, "dataset": "d", "n_workers": 0, "worker_cores": 1, "n_ps": 1, "ps_cores": 1}',
         "line 2: n_workers"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "plans.jsonl"
    add(path, WIDE, FAST)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=told):
        read(path)
