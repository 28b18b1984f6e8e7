"""Times and costs from events: hand-made ones whose answers are known, and a real job's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.elastic import measure, start
from labkit.elastic.server.handover import HandoverPace, departures
from labkit.elastic.trial import compare_modes, migration_steps, table, trial

Event = dict[str, Any]


def at(time: float, event: str, **columns: Any) -> Event:
    return {"time": 1000 + time, "event": event, **columns}


def stepped(version: int, end: float, *, wait: float = 0.3) -> list[Event]:
    """Two workers; the second is 0.01 s later and waits 0.02 s less."""
    return [
        at(end - 0.01, "stepped", name="worker-0", version=version, compute_s=0.5, wait_s=wait),
        at(end, "stepped", name="worker-1", version=version, compute_s=0.5, wait_s=wait - 0.02),
    ]


def steady(n: int, *, since: float = 0.0, first: int = 0) -> list[Event]:
    return [e for v in range(n) for e in stepped(first + v, since + v + 1)]


def ordered(events: list[Event]) -> list[Event]:
    return sorted([at(0, "began", era=1, version=0), *events], key=lambda e: e["time"])


def handover(number: int = 1, *, at_s: float) -> list[Event]:
    told = {"scaling": number, "strategy": "handover"}
    return [
        at(at_s, "started", name="ps-2", role="server", pid=1),
        at(at_s + 0.01, "registration", servers=1, workers=0, **told),
        at(at_s + 1.0, "joined", name="ps-2", role="server"),
        at(at_s + 1.1, "met", name="ps-2"),
        at(at_s + 1.13, "assignment", blocks=2, parameters=10, new=["ps-2"], going=[], **told),
        at(at_s + 1.13, "migration", version=None, **told),
        at(at_s + 1.20, "handed_over", name="ps-0", block=0, version=9, owner="ps-2", seconds=0.1, bytes=40),
        at(at_s + 1.63, "update", **told),
        at(at_s + 1.64, "scaled", **told),
        at(at_s + 1.65, "handed_over", name="ps-0", block=1, version=9, owner="ps-2", seconds=0.1, bytes=40),
    ]


def test_a_table_of_steps_has_a_row_per_worker_and_step_in_seconds_since_the_beginning() -> None:
    found = measure.steps(ordered(stepped(0, 1.0)))
    assert found["at_s"].round(2).tolist() == [0.99, 1.0]
    assert found["name"].tolist() == ["worker-0", "worker-1"]
    assert found.columns.tolist() == ["at_s", "name", "version", "compute_s", "wait_s"]


def test_what_else_a_worker_tells_of_a_step_is_a_column() -> None:
    told = [at(0, "began"), at(1, "stepped", name="w", version=3, compute_s=0.1, wait_s=0.0, staleness=2)]
    assert measure.steps(told)["staleness"].tolist() == [2]


def test_the_four_steps_of_a_handover_and_what_it_cost() -> None:
    """Steps take a second; the one in which blocks move takes 0.2 s more, all of it waiting."""
    slow = stepped(12, 13.2, wait=0.5)
    told = ordered([*steady(12), *slow, *steady(12, since=13.2, first=13), *handover(at_s=11.1)])
    (row,) = measure.scalings(told).to_dict("records")
    expected = {
        "start_s": 1.0, "registration_s": 0.1, "assignment_s": 0.03, "migration_s": 0.5, "update_s": 0.01,
        "duration_s": 1.64, "suspended_s": 0.0, "late_s": 0.2, "lost_s": 0.2, "steps_lost": 0.2,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert (row["strategy"], row["servers"], row["blocks"], row["bytes"]) == ("handover", 1, 2, 80)


def test_waits_tell_quiet_steps_from_those_of_a_scaling_and_of_its_migration() -> None:
    told = ordered([*steady(24), *handover(at_s=11.1)])
    found = measure.waits(told)
    assert dict(zip(found["version"], found["doing"], strict=True)) == {
        v: {11: "scaling", 12: "migration"}.get(v, "") for v in range(24)
    }
    assert found["extra_s"].abs().max() == pytest.approx(0)


def test_suspension_is_the_mean_over_workers_of_the_time_that_they_stood_still() -> None:
    told = {"scaling": 1, "strategy": "suspend"}
    events = [
        at(10.1, "registration", servers=-1, workers=0, **told),
        at(10.1, "assignment", blocks=2, parameters=10, new=[], going=["ps-1"], **told),
        at(10.1, "migration", version=12, **told),
        *(at(12.1, "holds", name=f"worker-{i}", version=12) for i in range(2)),
        at(12.4, "update", **told),
        at(12.4, "scaled", **told),
        at(12.41, "held", name="worker-0", version=12, seconds=0.3),
        at(12.42, "held", name="worker-1", version=12, seconds=0.4),
    ]
    (row,) = measure.scalings(ordered([*steady(12), *steady(9, since=12.4, first=12), *events])).to_dict("records")
    expected = {"suspended_s": 0.35, "update_s": 0.4, "start_s": 0, "lost_s": 0.4, "duration_s": 2.32}
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_a_restart_suspends_from_standing_still_to_being_ready_again() -> None:
    told = {"scaling": 1, "strategy": "checkpoint"}
    events = [
        at(10.1, "registration", servers=1, workers=0, **told),
        *(at(12.1, "holds", name=f"worker-{i}", version=12) for i in range(2)),
        at(13.0, "saved", version=12),
        at(13.0, "update", **told),
        *(at(13.0, "started", name=f"worker-{i}", role="worker", pid=i) for i in (2, 3)),
        at(15.0, "began", era=2, version=12),
        at(15.0, "scaled", **told),
        *(at(15.1, "ready", name=f"worker-{i}", version=12) for i in (2, 3)),
        at(22.0, "ready", name="worker-9", version=20),  # of another restart
    ]
    (row,) = measure.scalings(ordered([*steady(12), *steady(9, since=15.1, first=12), *events])).to_dict("records")
    assert row["suspended_s"] == pytest.approx(3.0)
    assert row["lost_s"] == pytest.approx(3.1)
    assert np.isnan(row["late_s"])
    assert np.isnan(row["migration_s"])


def test_a_scaling_that_was_dropped_has_no_row() -> None:
    told = [e for e in handover(at_s=3.5) if e["event"] != "scaled"]
    assert measure.scalings(ordered([*steady(9), *told])).empty


def test_a_server_that_dies_costs_the_steps_since_the_checkpoint_and_a_pause() -> None:
    again = [at(9.5, "goes_back", era=2), at(11.0, "began", era=2, version=5)]
    death = at(9.5, "left", name="ps-0", role="server", expected=False, reason="")
    told = ordered([*steady(9), death, *again, *steady(8, since=11.0, first=5)])
    (row,) = measure.faults(told, killed={"ps-0": 1009.2}).to_dict("records")
    expected = {"at_s": 9.5, "detect_s": 0.3, "recover_s": 6.5, "lost_steps": 4, "pause_s": 12 - 0.01 - 9 - 1}
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_a_worker_that_dies_costs_no_step_and_one_that_leaves_is_no_fault() -> None:
    death = at(9.5, "left", name="worker-1", role="worker", expected=False, reason="")
    leaves = at(9.6, "left", name="ps-1", role="server", expected=True, reason="")
    (row,) = measure.faults(ordered([*steady(9), death, leaves, *steady(3, since=10.5, first=9)])).to_dict("records")
    assert (row["name"], row["lost_steps"]) == ("worker-1", 0)
    assert row["recover_s"] == pytest.approx(2.0)
    assert np.isnan(row["detect_s"])


def test_without_events_the_tables_have_their_columns() -> None:
    for found in (measure.steps([]), measure.scalings([]), measure.faults([])):
        assert found.empty
        assert "at_s" in found.columns


def test_a_real_job_tells_all_that_the_tables_need() -> None:
    job = start(*table(2), steps=100_000, batch=8, shards=2, optimizer="momentum", lr=0.1)
    result = trial(job, [{"servers": 1}, {"servers": -1, "strategy": "suspend"}], quiet_steps=10)
    rows = result.scalings.set_index("strategy")
    assert rows["servers"].tolist() == [1, -1]
    assert rows.loc["handover", "suspended_s"] == 0
    held = [event["seconds"] for event in result.events if event["event"] == "held"]
    assert rows.loc["suspend", "suspended_s"] == pytest.approx(np.mean(held or [0.0]))
    moved = {e["scaling"]: e["parameters"] for e in result.events if e["event"] == "assignment"}
    assert rows["bytes"].tolist() == [8 * moved[number] for number in (1, 2)]  # parameters and momentum
    assert (rows[["registration_s", "assignment_s", "migration_s", "update_s"]] >= 0).all().all()
    assert rows["lost_s"].notna().all()
    assert set(result.steps["name"]) == {"worker-0", "worker-1"}
    assert result.faults.empty


def test_more_may_leave_with_a_step_that_takes_longer() -> None:
    pace = HandoverPace()
    assert pace.bytes_per_step() == 3e6
    for version in range(5):
        pace.advanced(version, now_s=10.0 * version)
        pace.advanced(version, now_s=10.0 * version + 5)  # another block of that version
    assert pace.step_s == 10
    assert pace.bytes_per_step() == 5e8
    assert departures([100] * 6, per_step=pace.bytes_per_step()) == [0] * 6


def test_every_block_leaves_even_if_it_is_larger_than_what_may_leave() -> None:
    assert departures([9e6, 9e6], per_step=3e6) == [0, 1]  # type: ignore[list-item]


def test_each_size_has_its_four_steps_and_each_mode_its_staleness():
    options = {"batch": 8, "shards": 2, "optimizer": "momentum", "lr": 0.1}
    steps = migration_steps([1.0], quiet_steps=2, steps=10_000, **options)
    assert steps["mb"].tolist() == [1.0]
    assert (steps[["registration_s", "assignment_s", "migration_s", "update_s"]] >= 0).all(axis=None)
    model, data, loss = table(1.0)
    modes = compare_modes(
        lambda: model, [("sync", 1), ("async", 2)], after=2, steps=20, data=data, loss=loss, **options
    )
    assert modes[["mode", "workers"]].to_numpy().tolist() == [["sync", 1], ["async", 2]]
    assert modes["staleness"][0] == 0
    assert (modes["loss"] > 0).all()
