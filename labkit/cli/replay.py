"""`labkit replay`: the schedule that a trace recorded, beside simulated schedulers."""

from __future__ import annotations

from typing import Annotated

import typer

from labkit.cli import help as cli_help
from labkit.cli.compare import JsonRows, Kept, Report, on_one_seed, refuse_places, tell_failed, with_usual_cluster
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
    as_json: JsonRows = False,
    report: Report = None,
    runs: Kept = None,
) -> None:
    """Run the recorded schedule of a trace, and show how far simulated schedulers are from it."""
    refuse_no_trace(scenario)
    scenario, usual = with_usual_cluster(scenario)
    refuse_places(report, runs)
    named = f"recorded,{schedulers}" if schedulers else "recorded"
    _, failed = on_one_seed(scenario, schedulers=named, report=report, runs=runs, as_json=as_json, usual=usual)
    if failed:
        tell_failed(failed)
