"""`labkit simulate`: one scheduler on a scenario, or a run that was kept once more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli import help as cli_help
from labkit.cli.attach import AsJson, Runs, tell
from labkit.cli.compare import with_usual_cluster
from labkit.cli.options import refuse_no_trace, takes_scenario
from labkit.experiment.scenario import Scenario


@takes_scenario()
def simulate(
    scheduler: Annotated[
        str,
        typer.Option(
            help="Scheduler, with options in brackets: drf(placer=pack). Of a run that was kept: its own.",
            autocompletion=cli_help.schedulers,
        ),
    ] = "optimus",
    *,
    scenario: Scenario,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Simulate one scheduler on a trace, and store the run."""
    from labkit.experiment import simulate as run

    refuse_no_trace(scenario)
    scenario, usual = with_usual_cluster(scenario)
    if usual:
        print(f"labkit: {usual}", file=sys.stderr)
    shown = not as_json and sys.stderr.isatty()
    record = run(scenario, scheduler=scheduler, runs=runs, progress=shown)
    tell(record, runs=runs, as_json=as_json)
