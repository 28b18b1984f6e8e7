"""Why a job waited, and what each run did at a moment, is what its events and the rules of jobs say."""

import re

import numpy as np
import pytest

import labkit
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.results.counterfactual import ExplainedRun, jobs_of_moment, number_of, of_job, of_moment
from labkit.topology import no_network
from labkit.topology.servers import Server

CLUSTER = no_network(2, servers=Server("four", ((4, 16, 64),)))


def jobs_of(arrival_s, gpus, duration_s=100.0, **columns) -> Jobs:
    return Jobs.of(
        arrival_s=arrival_s, n_workers=gpus, total_steps=duration_s, duration_s=duration_s, **columns
    )  # fmt: skip


def run(jobs, name="fifo", **options):
    return labkit.simulate(jobs, scheduler=name, cluster=CLUSTER, **options)


def test_each_second_of_waiting_has_one_cause_and_they_add_up_to_the_wait() -> None:
    """Job 2 waits for its moment until 50, for job 0 until 100, and for room until job 1 ends at 150."""
    jobs = jobs_of([0, 0, 0], [4, 4, 8], [100, 150, 10], after=["", "", "0"], begin_s=[np.nan, np.nan, 50])
    record = run(jobs)
    assert ExplainedRun(record).waited_s(2) == pytest.approx({"begin": 50, "after": 50, "room": 50})
    row = of_job([record], "2").iloc[0]
    assert row["waited_s"] == pytest.approx(record.table["queueing_s"].iloc[2]) == 150
    assert re.search("started as 1 made room", row["why"])


def test_a_gang_that_needs_one_machine_waits_for_its_shape_where_gpus_are_free_apart() -> None:
    """Two jobs leave one GPU on each machine: a gang of two on one machine waits, one on any machines would not."""
    record = run(jobs_of([0, 0, 1], [3, 3, 2], nodes=[1, 1, 1]))
    assert ExplainedRun(record).why(2, 1.0) == ("shape", "needs 2 GPUs on one machine with room")
    assert ExplainedRun(record).waited_s(2) == pytest.approx({"shape": 99})


def test_a_small_job_behind_a_large_one_waits_for_the_order_under_fifo_and_not_with_backfill() -> None:
    jobs = jobs_of([0, 1, 2], [4, 8, 4], [100, 100, 10])
    strict, backfill = run(jobs), run(jobs, "fifo(backfill=True)")
    assert ExplainedRun(strict).waited_s(2) == pytest.approx({"order": 98, "room": 100})
    frame = of_job([strict, backfill], "2")
    assert frame["waited_s"].tolist() == [198, 0]
    assert frame["why"].tolist()[1] == "started at once"
    now = of_moment([strict, backfill], 5.0)
    assert now["running"].tolist() == [1, 2]
    assert now["gpus"].tolist() == [4, 8]
    assert now["first"].tolist() == ["1", "1"]
    differ = jobs_of_moment([strict, backfill], 5.0).set_index("job").loc["2"]
    assert differ["differs"]
    assert differ["fifo(backfill=True)"] == "runs on m1"
    assert differ["fifo"] == "waits: its 4 GPUs are free; earlier jobs that wait, too: 1"


def test_a_task_of_an_array_waits_for_its_turn() -> None:
    jobs = jobs_of([0, 0, 0], [1, 1, 1], array=["a", "a", "a"], at_most=[2, 2, 2])
    assert ExplainedRun(run(jobs)).why(2, 0.0).cause == "array"


def test_the_recorded_run_is_explained_by_the_rules_that_jobs_have_in_the_others() -> None:
    jobs = jobs_of([0, 0], [4, 4], after=["", "0"], recorded_start_s=[0.0, 100.0])
    frame = of_job([run(jobs, "recorded"), run(jobs)], "1")
    assert [re.findall("for jobs that it follows", why) != [] for why in frame["why"]] == [True, True]


def test_a_job_that_is_not_there_is_named_with_the_nearest() -> None:
    jobs = jobs_of([0, 0], [1, 1], id=["41_0", "41_1"])
    with pytest.raises(InputError, match="job 41 has 2 parts; name one of them: 41_0, 41_1"):
        number_of(jobs, "41")
    with pytest.raises(InputError, match="Did you mean '41_1'"):
        number_of(jobs, "41_11")


def test_a_report_and_the_command_show_one_job_and_one_moment(tmp_path, capsys) -> None:
    from typer.testing import CliRunner

    from labkit.cli.app import app

    trace = tmp_path / "t.csv"
    trace.write_text(
        "arrival_s,total_steps,duration_s,n_workers,recorded_start_s\n0,9,900,4,0\n1,9,900,8,900\n2,9,60,4,2\n"
    )
    command = ["replay", str(trace), "--cluster", "no_network(2, servers='4gpu')", "--schedulers", "fifo"]
    told = CliRunner().invoke(app, [*command, "--job", "2", "--at", "5m", "--report", str(tmp_path / "r.html")])
    assert told.exit_code == 0, told.output
    assert "job 2: when it started" in told.stdout
    assert "started at once" in told.stdout
    assert "300.0 s after the first arrival" in told.stdout
    assert "Job 2 under each scheduler" in (tmp_path / "r.html").read_text()
    dated = CliRunner().invoke(app, [*command, "--at", "2024-03-01T12:00"])
    assert "does not tell dates" in str(dated.exception) + dated.output
