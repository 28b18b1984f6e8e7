"""Tables of what tasks used and why they failed, also of runs on disk and of those that an older labkit wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import labkit
from labkit.core import Cause, Jobs, Kind, Role
from labkit.core.events import LATER, events, from_frame, to_frame
from labkit.core.parquet import decode, encode
from labkit.results.files import from_columns, to_columns
from labkit.results.record import failures
from labkit.results.store import load
from labkit.simulator import Faults
from labkit.testing.backends import same_events
from labkit.topology import no_network


def test_a_stored_run_keeps_its_measurements_and_its_causes(tmp_path: Path) -> None:
    jobs = Jobs.of(arrival_s=[0, 5], total_steps=400, duration_s=400, n_workers=2, id=["a", "b"])
    record = labkit.simulate(
        jobs, cluster="no_network(1)", scheduler="fifo", measure_every_s=50, faults=Faults(300, 60, 30), runs=tmp_path
    )
    again = load(tmp_path / record.info.run)
    assert same_events(record.events, again.events)
    assert again.measured.columns.tolist() == ["time_s", "job", "role", "task", "quantity", "value"]
    assert set(again.measured["job"]) == {"a", "b"}
    step_s = again.measured[again.measured["quantity"] == "step_s"]
    assert (step_s["value"] == 1.0).all()
    assert set(again.failures["cause"]) == {"host_lost"}
    assert set(again.failures["machine"]) == {"m0"}
    assert len(again.failures) == record.summary["n_failures"] > 0
    assert same_events(from_frame(to_frame(record.events)), record.events)


def test_runs_of_an_older_labkit_load_and_tell_no_cause() -> None:
    """Its files have neither tasks nor quantities nor causes."""
    rows = events(2)
    rows["time_s"], rows["kind"], rows["job"] = [0.0, 3.0], [Kind.ARRIVED, Kind.FAILED], 0
    columns = {name: column for name, column in to_columns(rows).items() if name not in LATER}
    read = from_columns(decode(encode(columns))[0], source="old.parquet")
    assert same_events(read, rows)
    told = failures(read, Jobs.of(arrival_s=0, total_steps=1), no_network(1))
    assert told["cause"].tolist() == ["unknown"]
    assert same_events(from_frame(to_frame(rows).drop(columns=list(LATER))), rows)


def test_a_task_that_failed_is_told_with_its_machine_cause_and_exit_status() -> None:
    rows = events(1)
    rows["time_s"], rows["kind"], rows["job"], rows["role"], rows["task"] = 4.0, Kind.TASK_FAILED, 0, Role.PS, 2
    rows["machine"], rows["cause"], rows["value"] = 1, Cause.KILLED, -9
    told = failures(rows, Jobs.of(arrival_s=0, total_steps=1, id=["x"]), no_network(2)).iloc[0]
    assert told.tolist() == [4.0, "x", "task_failed", "ps", 2, "m1", "killed", "ended by signal 9"]
    assert np.isnan(events(1)["value"][0])
