"""`labkit compare`: several schedulers on one scenario, with one seed or many."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from labkit.cli import help as cli_help
from labkit.cli.options import refuse_no_trace, takes_scenario
from labkit.cli.tables import (
    print_against,
    print_by,
    print_calibration,
    print_finding,
    print_header,
    print_table,
    usual_cluster,
)
from labkit.core.errors import ComparisonError, LabkitError
from labkit.core.files import refuse_closed, refuse_unwritable
from labkit.core.raised import raised_at
from labkit.experiment.scenario import Scenario

if TYPE_CHECKING:
    from labkit.results.record import RunRecord

DEMO_SCHEDULERS = "fifo,srtf,las,drf,tetris,optimus"
JsonRows = Annotated[bool, typer.Option("--json", help="Print one JSON object per scheduler, one per line.")]
Report = Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")]
RunsFolder = Annotated[
    Path | None, typer.Option(help="Store the runs in this folder, each in a folder of its own.", metavar="FOLDER")
]


@takes_scenario()
def compare(
    schedulers: Annotated[
        str,
        typer.Option(
            help="Names, with options in brackets: fifo,drf(placer=pack). Your own: file.py:Class. Rename: a=fifo. "
            "If all are names of placers, compare how full each makes the cluster.",
            autocompletion=cli_help.schedulers,
        ),
    ] = DEMO_SCHEDULERS,
    *,
    scenario: Scenario,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Repeat with several seeds and show paired differences: 10 (seeds 0 to 9), 5-9, or 1,4,9.",
            metavar="SEEDS",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Baseline scheduler for the differences. Default with --seeds: the first one.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="With --seeds or --windows: number of processes. Default: one per core. 0: run in this process.", min=0
        ),
    ] = None,
    as_json: JsonRows = False,
    report: Report = None,
    runs: RunsFolder = None,
    by: Annotated[
        str | None, typer.Option(help="Also show the means of each partition, user or model.", metavar="GROUP")
    ] = None,
) -> None:
    """Simulate several schedulers on one trace and compare them."""
    _refuse_by(by, seeds=seeds, as_json=as_json)
    refuse_no_trace(scenario)
    scenario, usual = with_usual_cluster(scenario)
    refuse_places(report, runs)
    if of_placers(schedulers):
        from labkit.cli.filling import compare_placers

        compare_placers(
            scenario, schedulers, seeds=seeds, against=against, workers=workers, as_json=as_json,
            others={"--report": report, "--runs": runs, "--by": by}, usual=usual,
        )  # fmt: skip
        return
    if seeds is None and scenario.windows is not None:
        seeds = str(scenario.windows)
    if seeds is not None:
        from labkit.cli.sweep import compare_on_seeds

        compare_on_seeds(
            scenario, schedulers=schedulers, seeds=seeds, against=against, report=report, runs=runs, workers=workers,
            as_json=as_json, command=command_line(sys.argv), usual=usual,
        )  # fmt: skip
        return
    if workers is not None:
        raise typer.BadParameter("--workers goes with --seeds N or --windows N.")
    records, failed = on_one_seed(
        scenario, schedulers=schedulers, against=against, report=report, runs=runs, as_json=as_json, usual=usual
    )
    if failed:
        tell_failed(failed)
    if by is not None:
        print_by(records, by)
    if not as_json:
        print_finding(records)


def of_placers(schedulers: str) -> bool:
    """Return whether all names are those of placers: then their placements are compared, and no schedules.

    Raise InputError if one of them is neither that of a placer nor of a scheduler, or occurs twice.
    """
    from labkit.core.errors import InputError, unknown
    from labkit.core.text import split_names
    from labkit.placers import available

    names, placers = split_names(schedulers), available()
    if not {*names} & {*placers}:
        return False
    from labkit.experiment.filling import are_placers
    from labkit.schedulers import available as known

    odd = [name for name in names if name not in placers]
    if odd and odd[0].isidentifier() and odd[0] not in known() and any(are_placers([name]) for name in names):
        raise unknown("placer or scheduler", odd[0], [*placers, *known()])
    twice = [name for name in names if names.count(name) > 1]
    if (all_placers := are_placers(names)) and twice:
        raise InputError(f"--schedulers names {twice[0]} twice; expected each placer once.")
    return all_placers


def _refuse_by(by: str | None, *, seeds: str | None, as_json: bool) -> None:
    from labkit.core.errors import unknown
    from labkit.results.comparison import GROUPS

    if by is not None and by not in GROUPS:
        raise unknown("--by", by, GROUPS)
    if by is not None and (seeds is not None or as_json):
        raise typer.BadParameter("--by shows a table of one seed; leave it, or --seeds and --json, out.")


def with_usual_cluster(scenario: Scenario) -> tuple[Scenario, str]:
    """Return the scenario with a cluster, and a line that says which one, where none was named."""
    if scenario.cluster is not None or scenario.profile is not None:
        return scenario, ""
    cluster, usual = usual_cluster(Path(str(scenario.trace)))
    return replace(scenario, cluster=cluster), usual


def on_one_seed(
    scenario: Scenario, *, schedulers: str, against: str | None = None, report: Path | None = None,
    runs: Path | None = None, as_json: bool = False, usual: str = "", job: str | None = None, at_s: float | None = None,
) -> tuple[list[RunRecord], Mapping[str, Exception]]:  # fmt: skip
    """Simulate, print the table, and write the report."""
    from labkit.cli.sweep import labels_of, refuse_unknown_base

    refuse_unknown_base(against, labels_of(schedulers) if against is not None else ())
    records, failed = all_but_failed(scenario, schedulers=schedulers, runs=runs, as_json=as_json)
    if not as_json:
        print_header(records, usual=usual)
        print_table(records)
    print_against(records, base=against, as_json=as_json)
    print_calibration(records, as_json=as_json)
    if report is not None:
        from labkit.plots.report import write_report

        named = scenario.cluster if isinstance(scenario.cluster, str) else records[0].cluster.name
        written = write_report(
            records, report, title=f"Trace {records[0].jobs.name}{records[0].arrivals}, cluster {named}",
            command=command_line(sys.argv), base=against, failed=failed, job=job, at_s=at_s,
        )  # fmt: skip
        if not as_json:
            print(f"report: {written.resolve()}")
    return records, failed


def all_but_failed(
    scenario: Scenario,
    *,
    schedulers: str,
    runs: Path | None = None,
    as_json: bool = False,
    after_each: Callable[[RunRecord], None] | None = None,
) -> tuple[list[RunRecord], Mapping[str, Exception]]:
    """Simulate; return the records, and the errors of schedulers that failed beside others that did not."""
    from labkit.experiment import compare as run_all
    from labkit.experiment.caveats import Caveat

    after_each = _tell_json if as_json else after_each
    with warnings.catch_warnings():
        if not as_json:
            warnings.simplefilter("ignore", Caveat)  # they stand above the table
        try:
            shown = after_each is None and sys.stderr.isatty()
            return run_all(scenario, schedulers=schedulers, runs=runs, after_each=after_each, progress=shown), {}
        except ComparisonError as error:
            if not error.records:
                raise next(iter(error.failed.values())) from None
            return error.records, error.failed


def _tell_json(record: RunRecord) -> None:
    from labkit.cli.tables import as_json_row

    print(json.dumps(as_json_row(record)), flush=True)


def tell_failed(failed: Mapping[str, Exception]) -> NoReturn:
    """Report which schedulers are missing in what was printed, and end with exit code 1."""
    for name, error in failed.items():
        kind = "" if isinstance(error, LabkitError) else f"{type(error).__name__}: "
        said = f"{kind}{' '.join(str(error).split())}{raised_at(error)}"
        print(f"labkit: {name} failed, and is left out above: {said}", file=sys.stderr)
    raise typer.Exit(1)


def refuse_places(report: Path | None, runs: Path | None) -> None:
    """Refuse what cannot be written: rather now than after an hour of simulating."""
    if report is not None:
        refuse_unwritable(report, endings=(".html", ".htm"))
    if runs is not None:
        refuse_closed(runs)


def command_line(words: list[str]) -> str:
    """Return what was typed, with the program's bare name."""
    import shlex

    return shlex.join(["labkit", *words[1:]])
