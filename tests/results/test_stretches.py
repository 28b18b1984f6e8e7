"""What a job was doing, cut from logs made by hand; every cut by itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.events import Events, Kind, Role, events
from labkit.results import job_table, stretches
from labkit.results.spans import Doing

from .logs import random_log

W, PS = Role.WORKER, Role.PS


def told(*rows: tuple[float, Kind] | tuple[float, Kind, float] | tuple[float, Role, int]) -> Events:
    """Return a log of job 0 from (time, kind), (time, kind, steps) and (time, role, count)."""
    made = events(len(rows))
    for event, row in zip(made, rows, strict=True):
        event["time_s"], event["job"] = row[0], 0
        if isinstance(row[1], Role):
            event["kind"], event["role"], event["group"], event["value"] = Kind.PLACED, row[1], 0, row[2]
        else:
            event["kind"], event["value"] = row[1], row[2] if len(row) == 3 else np.nan
    return made


def lives(pieces: pd.DataFrame) -> list[tuple[str, float, float]]:
    return [(str(row.doing), row.start_s, row.end_s) for row in pieces.itertuples() if row.end_s > row.start_s]


def test_a_life_without_trouble():
    log = told(
        (0, Kind.ARRIVED), (2, W, 2), (2, PS, 1), (5, Kind.STARTED, 0), (7, Kind.PROGRESSED, 10),
        (9, Kind.COMPLETED, 20),
    )  # fmt: skip
    pieces = stretches(log)
    assert lives(pieces) == [("waiting", 0, 2), ("starting", 2, 5), ("training", 5, 7), ("training", 7, 9)]
    training = pieces[pieces["doing"] == Doing.TRAINING]
    assert training[["n_workers", "n_ps"]].to_numpy().tolist() == [[2, 1], [2, 1]]
    assert training["steps"].tolist() == [10, 10]


def test_a_job_trains_on_with_its_old_gang_until_it_says_that_it_was_rescaled():
    log = told(
        (0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (10, W, 2), (14, Kind.PROGRESSED, 14),
        (16, Kind.RESCALED, 16), (20, Kind.COMPLETED, 30),
    )  # fmt: skip
    pieces = stretches(log)
    assert lives(pieces) == [("training", 0, 10), ("rescaling", 10, 14), ("rescaling", 14, 16), ("training", 16, 20)]
    assert pieces["steps"].tolist()[-4:] == [10, 4, 2, 14]  # 10 lies on the line from 0 to 14
    assert pieces["n_workers"].tolist()[-4:] == [1, 2, 2, 2]  # the gang that it will have


def test_a_rescaling_that_comes_to_nothing_is_training():
    log = told((0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (10, W, 2), (20, Kind.COMPLETED, 20))
    assert lives(stretches(log)) == [("training", 0, 10), ("training", 10, 20)]
    assert stretches(log)["n_workers"].tolist()[-2:] == [1, 1]


def test_a_pause_is_a_rescaling_without_steps():
    log = told(
        (0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (5, W, 2), (5, Kind.PAUSED, 5),
        (8, Kind.RESCALED, 5), (9, Kind.COMPLETED, 7),
    )  # fmt: skip
    assert lives(stretches(log)) == [("training", 0, 5), ("rescaling", 5, 8), ("training", 8, 9)]


def test_a_preempted_job_waits_and_starts_again():
    log = told(
        (0, Kind.ARRIVED), (0, W, 1), (1, Kind.STARTED, 0), (4, Kind.PREEMPTED, 3), (6, W, 1),
        (7, Kind.STARTED, 3), (9, Kind.COMPLETED, 5),
    )  # fmt: skip
    expected = [("starting", 0, 1), ("training", 1, 4), ("waiting", 4, 6), ("starting", 6, 7), ("training", 7, 9)]
    assert lives(stretches(log)) == expected


def test_steps_done_again_do_not_count_and_their_time_is_lost():
    log = told(
        (0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (10, Kind.PROGRESSED, 100), (12, Kind.FAILED, 75),
        (13, W, 1), (15, Kind.STARTED, 75), (20, Kind.COMPLETED, 125),
    )  # fmt: skip
    pieces = stretches(log)
    expected = [
        ("training", 0, 10), ("training", 10, 12), ("recovery", 12, 13), ("recovery", 13, 15),
        ("training", 15, 20),
    ]  # fmt: skip
    assert lives(pieces) == expected
    assert pieces["steps"].sum() == 125
    assert pieces["lost_s"].tolist()[-5:] == [2.5, 2, 0, 0, 0]


def test_what_a_simulated_failure_cost_is_known_from_the_speed_before_it():
    log = told(
        (0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (10, Kind.FAILED, 75), (10, W, 1),
        (10, Kind.STARTED, 75), (15, Kind.COMPLETED, 125),
    )  # fmt: skip
    log["speed"][log["kind"] == Kind.STARTED] = 10.0
    assert stretches(log)["lost_s"].sum() == pytest.approx(2.5)


def test_after_its_last_step_a_job_is_finishing():
    log = told((0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (10, Kind.PROGRESSED, 20), (11, Kind.COMPLETED, 20))
    assert lives(stretches(log)) == [("training", 0, 10), ("finishing", 10, 11)]


def test_a_run_without_events_has_no_lives():
    assert stretches(events()).empty


@given(st.integers(0, 10_000))
def test_pieces_of_a_life_follow_each_other_from_arrival_to_its_end(seed: int):
    rows, jobs = random_log(seed)
    pieces, table = stretches(rows), job_table(rows, jobs).set_index("job")
    for job, mine in pieces.groupby("job"):
        assert mine["start_s"].iloc[0] == table.loc[job, "arrival_s"]
        assert (mine["end_s"].to_numpy()[:-1] == mine["start_s"].to_numpy()[1:]).all()
        last_s = table.loc[job, "completion_s"]
        assert mine["end_s"].iloc[-1] == (rows["time_s"].max() if np.isnan(last_s) else last_s)
    assert (pieces["end_s"] >= pieces["start_s"]).all()
    assert (pieces["lost_s"] <= pieces["end_s"] - pieces["start_s"] + 1e-9).all()
