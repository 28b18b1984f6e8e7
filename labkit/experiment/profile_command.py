"""`labkit simulate`: a trace on a measured testbed, or on any cluster, from the shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.experiment.command import AsJson, tell

Trace = Annotated[Path, typer.Argument(help="A trace in any format that `labkit traces info` reads.", metavar="TRACE")]


def simulate(
    trace: Trace,
    scheduler: Annotated[str, typer.Option(help="A name, with options in brackets: drf(placer=pack).")] = "optimus",
    profile: Annotated[
        Path | None, typer.Option(help="Of a testbed, from `labkit profile`: its hosts, speeds and overheads.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Another cluster than the profile's: a preset, an expression, or hosts.toml.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where runs are kept, each in a folder of its own.")] = Path("runs"),
    seed: Annotated[int, typer.Option(help="Of the simulator.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Simulate one scheduler on a trace, and keep the run."""
    from labkit.experiment import simulate as run

    shown = not as_json and sys.stderr.isatty()
    record = run(
        trace, cluster=cluster, scheduler=scheduler, profile=profile, folder=folder, seed=seed, progress=shown
    )  # fmt: skip
    tell(record, folder=folder, as_json=as_json)
