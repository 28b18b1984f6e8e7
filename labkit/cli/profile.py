"""`labkit profile` and `labkit simulate`: measure a testbed, and simulate a trace on it, from the shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli import options as given
from labkit.cli.attach import AsJson, Interference, Inventory, Quotas, Reserved, Runs, tell

Trace = Annotated[Path, typer.Argument(help="A trace in any format that `labkit traces info` reads.", metavar="TRACE")]


def simulate(
    trace: Trace,
    scheduler: Annotated[str, typer.Option(help="A name, with options in brackets: drf(placer=pack).")] = "optimus",
    profile: given.TestbedProfile = None,
    cluster: Annotated[
        str | None, typer.Option(help="Another cluster than the profile's: a preset, an expression, or hosts.toml.")
    ] = None,
    throughputs: given.Throughputs = None,
    speed: given.Speed = "auto",
    interference: Interference = "none",
    quotas: Quotas = None,
    reservations: Reserved = None,
    load: given.Load = 1.0,
    slot: given.Slot = None,
    first: given.First = None,
    format: given.Format = None,
    start: given.Start = 0.0,
    restart: given.Restart = 0.0,
    rescale: given.Rescale = 0.0,
    overheads: given.Published = None,
    troubles: given.Troubles = "none",
    sharding: given.Sharding = "dynamic",
    checkpoint: given.Checkpoint = 0.0,
    drop_too_large: given.TooLarge = False,
    any_type: given.AnyType = False,
    strict: given.Strict = False,
    runs: Runs = Path("runs"),
    seed: Annotated[int, typer.Option(help="Of a generated trace, and of the simulator.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Simulate one scheduler on a trace, and keep the run."""
    from labkit.core.errors import InputError
    from labkit.experiment import simulate as run

    if profile is None and cluster is None:
        raise InputError("neither --cluster nor --profile is given; expected e.g. --cluster demo.")

    shown = not as_json and sys.stderr.isatty()
    record = run(
        given.first_jobs(trace, seed=seed, format=format, first=first), cluster=cluster, scheduler=scheduler,
        profile=profile, speed=speed, throughputs=throughputs, strict=strict, seed=seed, load=load,
        interference=interference, troubles=troubles, sharding=sharding, checkpoint_s=checkpoint, quotas=quotas,
        reservations=reservations, drop_too_large=drop_too_large, any_type=any_type, cadence=given.cadence_of(slot),
        overheads=given.overheads_of(overheads, start_s=start, restart_s=restart, rescale_s=rescale), runs=runs,
        progress=shown,
    )  # fmt: skip
    tell(record, runs=runs, as_json=as_json)


def profile(
    inventory: Inventory = None,
    models: Annotated[str, typer.Option(help="What to train: dssm,wlm,...")] = "",
    trace: Annotated[
        Path | None, typer.Option(help="Instead: the models of a trace, up to their largest gangs.", metavar="TRACE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file; by default profiles/NAME.json by the name of the testbed.")
    ] = None,
    max_ps: Annotated[int, typer.Option(help="Of a gang, with --models.", min=1)] = 2,
    max_workers: Annotated[int, typer.Option(help="Of a gang, with --models.", min=1)] = 2,
    asynchronous: Annotated[bool, typer.Option("--asynchronous", help="With --models: train asynchronously.")] = False,
    width: Annotated[float, typer.Option(help="Scale of the models, as for `labkit deploy`.")] = 0.1,
    loads: Annotated[str, typer.Option(help="Busy cores to measure a job beside.")] = "1,2",
    crowd: Annotated[int, typer.Option(help="Jobs to measure all at once on one machine; 0: none.", min=0)] = 4,
) -> None:
    """Measure on a testbed what a simulation of it needs."""
    from labkit.core.text import split_names
    from labkit.testbed.inventory import Inventory as Hosts
    from labkit.testbed.profiling.run import asked, show
    from labkit.testbed.profiling.run import profile as measured
    from labkit.testbed.run.training import TrainingTable

    kinds = asked(trace, models, max_ps=max_ps, max_workers=max_workers, sync=not asynchronous)
    made, there = measured(
        Hosts.read(inventory), kinds, out=out, training=TrainingTable(width=width), n_crowd=crowd,
        loads=[whole(text, "--loads") for text in split_names(loads)],
    )  # fmt: skip
    show(made, there)


def whole(text: str, option: str) -> int:
    """Return the number >= 1 that a text is.

    >>> whole("2", "--loads")
    2
    """
    from labkit.core.errors import InputError

    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{option}: '{text}' is no number of cores; expected 1, 2, ...")
    return int(text)
