"""`labkit fidelity`: a run on a testbed beside its simulation, from the shell."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.attach import AsJson, Runs, Trust, trust_of
from labkit.core.errors import InputError


def fidelity(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under --runs.", metavar="RUN")],
    profile: Annotated[
        Path | None,
        typer.Option(help="Profile of the testbed, measured before the run.", metavar="FILE"),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Compare with this run instead of simulating one.", metavar="RUN")
    ] = None,
    scheduler: Annotated[str | None, typer.Option(help="Scheduler to simulate. Default: the run's own.")] = None,
    runs: Runs = Path("runs"),
    keep: Annotated[bool, typer.Option("--keep", help="Store the simulated run with the others.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="File for the report. Default: reports/fidelity-RUN.html.", metavar="FILE")
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a testbed run from its profile, and show the gap and what explains it."""
    from labkit.experiment.gap import Fidelity
    from labkit.experiment.gap import fidelity as compare
    from labkit.results.store import load

    if (profile is None) == (against is None):
        raise InputError(
            "give either --profile FILE, to simulate the run, or --against RUN, to compare it with another."
        )
    real = load(run, runs=runs)
    if against is not None:
        found = Fidelity(real, load(against, runs=runs))
    else:
        found = compare(real, profile=profile, scheduler=scheduler, runs=runs, keep=keep, trust=trust_of(trust))
    target = out or Path("reports") / f"fidelity-{real.info.run}.html"
    written = found.report(target, command=shlex.join(["labkit", *sys.argv[1:]]))
    if as_json:
        clean = {key: None if value != value else value for key, value in found.summary.items()}
        parts = {str(part): float(gap_s) for part, gap_s in found.explained["gap_s"].items()}
        print(json.dumps({"run": real.info.run, **clean, "gap_s": parts, "report": str(written)}))
        return
    print(found)
    print(f"report: {written.resolve()}")
