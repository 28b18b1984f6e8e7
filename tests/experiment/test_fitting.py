"""Jobs that the empty cluster cannot hold are refused, or left out where that is asked for, and then counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.experiment import compare, simulate
from labkit.experiment.caveats import Caveat
from labkit.experiment.grid import Grid
from labkit.experiment.sweeping import sweep
from labkit.results import load
from labkit.speed.recorded import Recorded
from labkit.topology import no_network


def jobs_of(*workers: int) -> Jobs:
    n = len(workers)
    return Jobs.of(
        name="mine", id=list("abcdef"[:n]), arrival_s=np.arange(n), total_steps=[60] * n, duration_s=60,
        n_workers=list(workers),
    )  # fmt: skip


def test_jobs_that_are_too_large_are_left_out_and_the_record_says_how_many(tmp_path: Path) -> None:
    jobs = jobs_of(1, 99, 2, 99)
    with pytest.raises(InputError, match=r"job b .* --drop-too-large"):
        simulate(jobs, cluster=no_network(1), scheduler="fifo")
    with pytest.warns(Caveat, match="2 of 4 jobs"):
        record = simulate(jobs, cluster=no_network(1), scheduler="fifo", drop_too_large=True, runs=tmp_path)
    assert record.jobs.id.tolist() == ["a", "c"]
    (note,) = load(record.info.run, runs=tmp_path).info.config["notes"]
    assert "2 of 4 jobs; the first: job b asks for 99" in note


def test_where_all_jobs_fit_nothing_is_left_out_or_said() -> None:
    (record,) = compare(jobs_of(1, 2), cluster=no_network(1), schedulers="fifo", drop_too_large=True)
    assert len(record.jobs) == 2
    assert "notes" not in record.info.config


def test_a_trace_of_which_nothing_fits_and_a_model_made_for_all_jobs_are_refused() -> None:
    with pytest.raises(InputError, match=r"none of the 2 jobs fits .*99"):
        simulate(jobs_of(99, 98), cluster=no_network(1), scheduler="fifo", drop_too_large=True)
    jobs, cluster = jobs_of(1, 99), no_network(1)
    with pytest.raises(InputError, match="a speed model, which is made for all jobs"):
        simulate(jobs, cluster=cluster, scheduler="fifo", drop_too_large=True, speed=Recorded(jobs, cluster))


def test_a_sweep_leaves_them_out_too(tmp_path: Path) -> None:
    jobs_of(1, 99).to_frame().to_csv(tmp_path / "mine.csv", index=False)
    grid = Grid(
        schedulers=["fifo"], trace=[str(tmp_path / "mine.csv")], cluster=["no_network(1)"], drop_too_large=[True, False]
    )  # fmt: skip
    with pytest.warns(UserWarning, match="1 of 2 jobs"):
        table = sweep(grid, folder=tmp_path / "swept", workers=0)
    told = table.set_index("drop_too_large")
    assert told.loc[True, "n_jobs"] == 1
    assert "--drop-too-large" in told.loc[False, "error"]
