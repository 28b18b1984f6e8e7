"""`labkit sweep`: many runs, and what they say together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli_swept import exit_if_failed, seeds_of, tell
from labkit.core.errors import unknown
from labkit.core.files import refuse_unwritable
from labkit.core.text import split_names

if TYPE_CHECKING:
    from distributed import Client

    from labkit.experiment.grid import Grid

DRAWN = (".svg", ".png", ".html", ".json")
MANY = "as often as you like, or a list A,B,..."


def sweep(
    trace: Annotated[
        list[str], typer.Option(help=f"A file, or a generator such as 'poisson(80, per_hour=12)'; {MANY}")
    ],
    schedulers: Annotated[list[str], typer.Option(help=f"A name, with options in brackets; called: a=fifo; {MANY}")],
    folder: Annotated[Path, typer.Option(help="Where cells are kept; the same call goes on from there.")],
    cluster: Annotated[list[str], typer.Option(help=f"A preset, an expression or hosts.toml; {MANY}")] = ["gavel-36x3"],  # noqa: B006
    seeds: Annotated[str, typer.Option(help="5: seeds 0 to 4; 5-9; or 1,4,9.")] = "1",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A parameter of the run or of all schedulers; as often as you like.", metavar="NAME=A,B,..."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes, by default one per core; 0: in this process.", min=0)
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Run on this Dask cluster: tcp://HOST:PORT, or the folder of `fab dask-up`.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep whole runs, for `labkit report`.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first cell that fails.")] = False,
    metric: Annotated[str, typer.Option(help="What to compare at the end.")] = "mean_jct_s",
    against: Annotated[
        str | None, typer.Option(help="The scheduler that others are compared with, seed by seed; else the first one.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw that into this file (svg, png or html).")] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object per line: each scheduler's, and the bound's, mean, interval and difference."
        ),
    ] = False,
) -> None:
    """Simulate schedulers x seeds x traces x clusters x parameters; resumable."""
    from labkit.experiment.grid import Grid
    from labkit.experiment.parameters import parameter
    from labkit.experiment.sweeping import sweep as run_all
    from labkit.results.sweeps import refuse_unknown_metric

    refuse_unknown_metric(metric)
    if figure is not None:
        refuse_unwritable(figure, endings=DRAWN)
    grid = Grid(
        schedulers=_listed(schedulers), trace=_listed(trace), cluster=_listed(cluster), seeds=seeds_of(seeds),
        **dict(parameter(text) for text in set_ or ()),
    )  # fmt: skip
    base = _base(against, grid)
    with _client(dask) as client:
        table = run_all(
            grid, folder=folder, workers=workers, client=client, keep=keep, strict=strict,
            progress=not as_json,
        )  # fmt: skip
    if (table["error"] != "").all():
        exit_if_failed(table, keys=grid.axes, rest="; cells.jsonl has all of them")
    tell(table, metric=metric, base=base, as_json=as_json)
    if figure is not None:
        from labkit.plots.sweep import plot_sweep

        figure.parent.mkdir(parents=True, exist_ok=True)
        plot_sweep(table, metric=metric, base=base).save(figure)
    exit_if_failed(table, keys=grid.axes, rest="; cells.jsonl has all of them")


def _base(against: str | None, grid: Grid) -> str:
    """Return the scheduler that others are compared with, before anything runs."""
    names = list(grid.schedulers)
    if against is not None and against not in names:
        raise unknown("scheduler to compare --against", against, names)
    return against or names[0]


def _listed(given: list[str]) -> list[str]:
    return [name for text in given for name in split_names(text)]


@contextmanager
def _client(address: str | None) -> Iterator[Client | None]:
    """Lend a connection to a Dask cluster, where one is asked for."""
    if address is None:
        yield None
        return
    from labkit.experiment.on_dask import connect

    with connect(address) as client:
        yield client
