"""`labkit replay`: the schedule that a trace recorded, beside simulated schedulers; and one job or moment of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli import help as cli_help
from labkit.cli.compare import JsonRows, Report, RunsFolder, on_one_seed, refuse_places, tell_failed, with_usual_cluster
from labkit.cli.options import refuse_no_trace, takes_scenario
from labkit.experiment.scenario import Scenario

if TYPE_CHECKING:
    from labkit.results.record import RunRecord

MOST_JOBS = 20
"""Jobs of a moment that are printed."""


@takes_scenario()
def replay(
    schedulers: Annotated[
        str,
        typer.Option(help="Schedulers to simulate beside the recorded one.", autocompletion=cli_help.schedulers),
    ] = "easy,slurm",
    *,
    scenario: Scenario,
    job: Annotated[str | None, typer.Option(help="Show what each scheduler did with this job, and why.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Show what each scheduler did at this moment: 36h after the first arrival, or 2024-03-04T12:00.",
            metavar="TIME",
        ),
    ] = None,
    as_json: JsonRows = False,
    report: Report = None,
    runs: RunsFolder = None,
) -> None:
    """Replay the recorded schedule of a trace, and compare simulated schedulers with it."""
    from labkit.core.errors import InputError

    refuse_no_trace(scenario)
    if as_json and (asked := "--job" if job is not None else "--at" if at is not None else ""):
        raise InputError(f"--json prints a row for each scheduler, and {asked} is given too; leave one of them out.")
    scenario, usual = with_usual_cluster(scenario)
    refuse_places(report, runs)
    at_s = None if at is None else _moment_s(at, str(scenario.trace), format=scenario.format)
    named = f"recorded,{schedulers}" if schedulers else "recorded"
    records, failed = on_one_seed(
        scenario, schedulers=named, report=report, runs=runs, as_json=as_json, usual=usual, job=job, at_s=at_s
    )
    if job is not None:
        print_job(records, job)
    if at_s is not None:
        print_moment(records, at_s)
    if failed:
        tell_failed(failed)


def print_job(records: Sequence[RunRecord], job: str) -> None:
    """Print what each run did with a job, and why."""
    from labkit.cli.tables import new_table, numbers, show, words
    from labkit.core.text import human_s
    from labkit.results.counterfactual import of_job

    frame = of_job(records, job)
    print(f"\njob {job}: when it started, counted from the first arrival, and why then")
    table = new_table()
    words(table, "scheduler")
    numbers(table, "waited", "start", "end")
    words(table, "machines", "why")
    for row in frame.to_dict("records"):
        times = [human_s(float(row[name])) for name in ("waited_s", "start_s", "end_s")]
        table.add_row(str(row["scheduler"]), *times, str(row["machines"]), str(row["why"]))
    show(table)


def print_moment(records: Sequence[RunRecord], at_s: float) -> None:
    """Print how each run stood at a moment, and the jobs about which they differ."""
    from labkit.cli.tables import new_table, numbers, say, show, words
    from labkit.core.text import human_s
    from labkit.results.counterfactual import jobs_of_moment, of_moment

    print(f"\n{human_s(at_s)} after the first arrival")
    table = new_table()
    words(table, "scheduler")
    numbers(table, "running", "waiting", "GPUs in use", "next start")
    words(table, "jobs that start then", "waits longest", "why")
    for row in of_moment(records, at_s).to_dict("records"):
        counts = [f"{row[name]:,.10g}" for name in ("running", "waiting", "gpus")]
        said = [str(row[name]) for name in ("starts", "first", "why")]
        table.add_row(str(row["scheduler"]), *counts, human_s(float(row["next_s"])), *said)
    show(table)
    frame = jobs_of_moment(records, at_s)
    differ = frame[frame["differs"]]
    say(f"The runs differ about {len(differ):,} of {len(frame):,} jobs that some run has not done by then.")
    if not len(differ):
        return
    table = new_table()
    words(table, "job")
    numbers(table, "GPUs")
    names = list(frame.columns[4:])
    for name in names:
        words(table, str(name))
    for row in differ.head(MOST_JOBS).to_dict("records"):
        table.add_row(str(row["job"]), f"{row['gpus']:g}", *(str(row[name]) for name in names))
    show(table)
    if (more := len(differ) - MOST_JOBS) > 0:
        print(f"and {more:,} more")


def _moment_s(text: str, trace: str, *, format: str | None = None) -> float:
    """Return seconds after the first arrival of a moment as people type it: a span of time, or a date and time."""
    from labkit.core.durations import seconds_of
    from labkit.core.errors import InputError
    from labkit.workloads.readers import read

    try:
        stamp = datetime.fromisoformat(text.strip())
    except ValueError:
        return 0.0 if text.strip() == "0" else seconds_of(text, what="--at")
    zero_s = read(trace, format=format).zero_s
    if not zero_s:
        raise InputError(
            f"--at is '{text}', and {trace} does not tell dates; give a time after its first arrival: 36h."
        )
    stamp = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
    if (at_s := stamp.timestamp() - zero_s) < 0:
        first = datetime.fromtimestamp(zero_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        raise InputError(f"--at is '{text}'; the first job arrives at {first} (UTC).")
    return at_s
