"""`labkit run` and `labkit attach`: a trace on a testbed, from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labkit.results.record import RunRecord

KEYS = (
    "mean_jct_s",
    "makespan_s",
    "n_jobs",
    "n_unfinished",
    "n_rescales",
    "n_preemptions",
    "n_failures",
    "utilisation",
)
Hosts = Annotated[
    Path | None,
    typer.Option(
        help="The inventory; by default testbed/hosts.toml, or the laptop testbed that is up.", metavar="FILE"
    ),
]
Root = Annotated[Path, typer.Option(help="Where runs are kept, each in a folder of its own.")]
Throughputs = Annotated[Path | None, typer.Option(help="Measured speeds, from `labkit profile`.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def run(
    trace: Annotated[Path, typer.Argument(help="A trace; its seconds are real seconds.", metavar="TRACE")],
    scheduler: Annotated[str, typer.Option(help="A name, with options in brackets: drf(placer=pack).")] = "optimus",
    hosts: Hosts = None,
    folder: Root = Path("runs"),
    throughputs: Throughputs = None,
    width: Annotated[float, typer.Option(help="Scale of the models; 1: the published size.")] = 0.1,
    save_every: Annotated[int, typer.Option(help="Steps between two checkpoints of a job.")] = 100,
    strategy: Annotated[
        str, typer.Option(help="How running jobs are rescaled: handover, suspend, checkpoint.")
    ] = "handover",
    first: Annotated[int | None, typer.Option(help="Only the first so many jobs.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Train the jobs of a trace on a testbed, under a scheduler; exit code 1 where a job was given up."""
    import numpy as np

    from labkit.experiment.deploy import deploy
    from labkit.testbed.training import Training
    from labkit.workloads import read

    jobs = read(trace)
    jobs = jobs if first is None else jobs.take(np.arange(min(first, len(jobs))))
    training = Training(width=width, save_every=save_every, strategy=strategy)
    record = deploy(
        jobs, inventory=hosts, scheduler=scheduler, folder=folder, training=training, progress=not as_json,
        throughputs=throughputs,
    )  # fmt: skip
    tell(record, folder=folder, as_json=as_json)
    raise typer.Exit(1 if record.summary["n_unfinished"] else 0)


def attach(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under --folder.", metavar="RUN")],
    folder: Root = Path("runs"),
    throughputs: Throughputs = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run on a testbed that was cut off here; its jobs went on."""
    from labkit.experiment.deploy import attach as go_on

    record = go_on(run, root=folder, progress=not as_json, throughputs=throughputs)
    tell(record, folder=folder, as_json=as_json)
    raise typer.Exit(1 if record.summary["n_unfinished"] else 0)


def tell(record: RunRecord, *, folder: Path, as_json: bool) -> None:
    """Print what a run has come to."""
    told = {key: record.summary[key] for key in KEYS}
    if as_json:
        clean = {key: None if value != value else value for key, value in told.items()}
        rest = {"speeds": record.info.config.get("speeds", ""), "notes": record.info.config.get("notes", [])}
        print(json.dumps({"run": record.info.run, "scheduler": record.info.scheduler, **clean, **rest}))
        return
    if speeds := record.info.config.get("speeds"):
        print(f"speeds{' told to the scheduler' if record.info.backend == 'testbed' else ''}: {speeds}")
    if record.info.backend == "testbed":  # a simulation has warned of them
        for note in record.info.config.get("notes", ()):
            print(f"note: {note}")
    print(
        f"{record.info.scheduler}: {told['n_jobs'] - told['n_unfinished']} of {told['n_jobs']} jobs done, mean JCT "
        f"{told['mean_jct_s']:.1f} s, makespan {told['makespan_s']:.1f} s, {told['n_rescales']} hot scalings, "
        f"{told['n_preemptions']} preemptions; the run is in {folder / record.info.run}"
    )
