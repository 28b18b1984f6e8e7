"""`labkit replay`: the schedule that a trace recorded, beside simulated schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli import help as cli_help
from labkit.cli.compare import _somewhere, on_one_seed, refuse_places, tell_failed
from labkit.cli.options import refuse_no_trace, takes_scenario
from labkit.experiment.scenario import Scenario


@takes_scenario()
def replay(
    schedulers: Annotated[
        str,
        typer.Option(help="Schedulers to simulate beside the recorded one.", autocompletion=cli_help.schedulers),
    ] = "easy,slurm",
    *,
    scenario: Scenario,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per scheduler, one per line.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Store the runs in this folder, each in a folder of its own.", metavar="FOLDER")
    ] = None,
) -> None:
    """Run the recorded schedule of a trace, and show how far simulated schedulers are from it."""
    refuse_no_trace(scenario)
    scenario, usual = _somewhere(scenario)
    refuse_places(report, runs)
    named = f"recorded,{schedulers}" if schedulers else "recorded"
    _, failed = on_one_seed(scenario, schedulers=named, report=report, runs=runs, as_json=as_json, usual=usual)
    if failed:
        tell_failed(failed)
