"""`labkit profile` and `labkit simulate`: measure a testbed, and simulate a trace on it, from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.attach import Inventory


def profile(
    inventory: Inventory = None,
    models: Annotated[str, typer.Option(help="Models to train: dssm,wlm,...")] = "",
    trace: Annotated[
        Path | None,
        typer.Option(help="Measure the models of this trace instead, up to their largest gangs.", metavar="TRACE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the profile. Default: profiles/NAME.json, after the testbed.")
    ] = None,
    max_ps: Annotated[int, typer.Option(help="With --models: most parameter servers of a gang.", min=1)] = 2,
    max_workers: Annotated[int, typer.Option(help="With --models: most workers of a gang.", min=1)] = 2,
    asynchronous: Annotated[bool, typer.Option("--asynchronous", help="With --models: train asynchronously.")] = False,
    width: Annotated[float, typer.Option(help="Scale of the models, as for `labkit deploy`.")] = 0.1,
    loads: Annotated[str, typer.Option(help="Numbers of busy cores beside which a job is measured.")] = "1,2",
    crowd: Annotated[
        int, typer.Option(help="Number of jobs measured at the same time on one machine. 0: none.", min=0)
    ] = 4,
) -> None:
    """Measure a testbed: speeds and overheads for its simulation."""
    from labkit.core.text import split_names
    from labkit.testbed.inventory import Inventory as Hosts
    from labkit.testbed.profiling.measure import measured_kinds, show
    from labkit.testbed.profiling.measure import profile as measured
    from labkit.testbed.run.training import TrainingTable

    kinds = measured_kinds(trace, models, max_ps=max_ps, max_workers=max_workers, sync=not asynchronous)
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
