"""Queues of runs on machines as files: their order, their states, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.durations import seconds_of
from labkit.core.errors import InputError
from labkit.results import load
from labkit.results.files import RunLock
from labkit.results.queue import (
    FOLDER,
    QueuedRun,
    QueueState,
    RunQueue,
    find_queue,
    ordered,
    queue_names,
    queue_of,
    status_of_queue,
)

NAMES = st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=5, unique=True)


def queue(*states: str) -> RunQueue:
    runs = tuple(
        QueuedRun(run=f"fifo-{i}", scheduler="fifo", repeat=i, state=QueueState(s)) for i, s in enumerate(states)
    )
    return RunQueue(trace="t", inventory="/hosts.toml", runs=runs)


@given(NAMES, st.integers(1, 6))
def test_each_scheduler_runs_once_in_each_repeat_and_each_run_has_a_folder_name_of_its_own(names, repeat):
    runs = list(ordered(names, repeat=repeat))
    assert Counter((each.scheduler, each.repeat) for each in runs) == Counter(
        (name, number) for name in names for number in range(1, repeat + 1)
    )
    assert [each.repeat for each in runs] == sorted(each.repeat for each in runs)
    assert len({each.run for each in runs}) == len(runs)
    assert all(FOLDER.fullmatch(each.run) for each in runs), [each.run for each in runs]


def test_no_scheduler_is_always_the_first_of_its_repeat():
    runs = list(ordered(["fifo", "srtf", "las"], repeat=3))
    assert [each.scheduler for each in runs[::3]] == ["fifo", "srtf", "las"]


def test_a_scheduler_that_is_named_twice_is_refused_with_the_option_for_it():
    with pytest.raises(InputError, match="fifo is named twice; to run it several times, give --repeat"):
        list(ordered(["fifo", "las", "fifo"], repeat=1))


def test_a_queue_is_read_as_it_was_written(tmp_path: Path):
    written = queue("done", "cut", "planned")
    written.write(tmp_path)
    read = RunQueue.read(tmp_path)
    assert list(read.runs) == list(written.runs)
    assert [each.run for each in read.left] == ["fifo-2"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "has version 2; this labkit reads 1"),
        ({"time_limit_s": "soon"}, "time_limit_s: Input should be a valid number"),
        ({"runs": [{"run": "../x", "scheduler": "fifo", "repeat": 1}]}, "names the run '../x'; expected letters"),
        ({"runs": [{"run": "a", "scheduler": "fifo", "repeat": 1}] * 2}, "names a run twice"),
        ({"runs": [{"run": "a", "scheduler": "fifo", "repeat": 1, "state": "lost"}]}, "runs.0.state"),
        ({"more": 1}, "more: Unexpected"),
    ],
)
def test_a_damaged_queue_is_refused_with_the_fault(tmp_path: Path, change: dict[str, object], told: str):
    queue("planned").write(tmp_path)
    path = tmp_path / "queue.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError) as error:
        RunQueue.read(tmp_path)
    assert told in str(error.value)


def test_a_queue_that_nobody_works_says_how_to_go_on_and_what_was_running_is_cut_off(tmp_path: Path):
    folder = tmp_path / "night"
    folder.mkdir()
    queue("done", "running", "planned").write(folder)
    read = RunQueue.read(folder)
    assert status_of_queue(read, folder).startswith(
        "1 done, 1 cut off, 1 planned; nobody works it: labkit deploy --resume"
    )
    lock = RunLock(folder)
    assert status_of_queue(read, folder).startswith("1 done, 1 running, 1 planned; worked by process ")
    lock.release()
    over = read.changed("fifo-1", state=QueueState.DONE).changed("fifo-2", state=QueueState.FAILED)
    assert status_of_queue(over, folder) == "2 done, 1 failed"


def test_a_queue_is_found_by_its_path_and_by_its_name_and_a_near_one_is_named(tmp_path: Path):
    folder = tmp_path / "night"
    folder.mkdir()
    queue("planned").write(folder)
    assert find_queue(folder, runs="elsewhere") == queue_of("night", runs=tmp_path) == folder
    assert queue_names(tmp_path) == ["night"]
    with pytest.raises(InputError, match="Did you mean 'night'"):
        queue_of("nigth", runs=tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5h", 5400), ("2h30m", 9000), ("1 d", 86400)]
)
def test_a_time_limit_is_read_as_people_type_it(text: str, seconds: float):
    assert seconds_of(text, what="--time-limit") == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1h", "h", "1h30", "nan", "inf", "1e9", "1:30", "٣h", "9" * 500])
def test_what_is_no_time_is_refused_with_examples(text: str):
    with pytest.raises(InputError, match=r"--time-limit is .*; expected a time such as 90s, 45min"):
        seconds_of(text, what="--time-limit")


def test_where_a_run_is_asked_for_a_queue_is_told_apart(tmp_path: Path):
    (tmp_path / "night").mkdir()
    queue("planned").write(tmp_path / "night")
    with pytest.raises(InputError, match=r"'night' is a queue of runs: .*or resume all: labkit deploy --resume night"):
        load("night", runs=tmp_path)
