"""`labkit sweep`: many runs, and what they say together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.core.bounds import MAX_CELLS
from labkit.core.calls import literal
from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_unwritable
from labkit.core.text import shortened, split_names

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

    from labkit.experiment.grid import Grid

DRAWN = (".svg", ".png", ".html", ".json")
MANY = "as often as you like, or a list A,B,..."


def sweep(
    trace: Annotated[
        list[str], typer.Option(help=f"A file, or a generator such as 'poisson(80, per_hour=12)'; {MANY}")
    ],
    scheduler: Annotated[list[str], typer.Option(help=f"A name, with options in brackets; {MANY}")],
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
    from labkit.experiment.sweeping import sweep as run_all
    from labkit.results.sweeps import refuse_unknown_metric

    refuse_unknown_metric(metric)
    if figure is not None:
        refuse_unwritable(figure, endings=DRAWN)
    grid = Grid(
        schedulers=_listed(scheduler), trace=_listed(trace), cluster=_listed(cluster), seeds=seeds_of(seeds),
        **dict(parameter(text) for text in set_ or ()),
    )  # fmt: skip
    base = _base(against, grid)
    with _client(dask) as client:
        table = run_all(
            grid, folder=folder, workers=workers, client=client, keep=keep, strict=strict,
            progress=not as_json and sys.stderr.isatty(),
        )  # fmt: skip
    _tell(table, metric=metric, base=base, as_json=as_json)
    if figure is not None:
        from labkit.plots.sweep import plot_sweep

        figure.parent.mkdir(parents=True, exist_ok=True)
        plot_sweep(table, metric=metric, base=base).save(figure)
    _exit_if_failed(table, grid)


def seeds_of(text: str) -> list[int]:
    """Return seeds: how many, a range, or a list.

    >>> seeds_of("3"), seeds_of("5-7"), seeds_of("1,4,9")
    ([0, 1, 2], [5, 6, 7], [1, 4, 9])
    """
    try:
        if "," in text:
            return [int(part) for part in text.split(",") if part.strip()]
        first, dash, last = text.partition("-")
        asked = range(int(first), int(last) + 1) if dash else range(int(text))
    except ValueError:
        asked = range(0)
    if asked.stop - asked.start > MAX_CELLS:  # len() takes no number beyond 64 bits
        raise InputError(f"--seeds is {shortened(text)}; expected at most {MAX_CELLS:,} seeds.")
    if not (seeds := list(asked)):
        raise InputError(f"--seeds is '{text}'; expected how many (5), a range (5-9) or a list (1,4,9).")
    return seeds


def parameter(text: str) -> tuple[str, list[Any]]:
    """Return the name and the values of a parameter.

    >>> parameter("placer=pack,spread"), parameter("load=1,1.5")
    (('placer', ['pack', 'spread']), ('load', [1, 1.5]))
    """
    name, equals, values = text.partition("=")
    if not (equals and name.strip().isidentifier() and values.strip()):
        raise InputError(f"--set '{text}' cannot be read; expected NAME=A,B,..., such as placer=pack,spread.")
    if name.strip() in ("trace", "cluster", "scheduler", "schedulers", "seed", "seeds"):
        raise InputError(f"--set '{text}': {name.strip()} has an option of its own; see `labkit sweep --help`.")
    return name.strip(), [literal(value) for value in split_names(values)]


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


def _tell(table: pd.DataFrame, *, metric: str, base: str, as_json: bool) -> None:
    from labkit.results.bound import BOUND_LABEL, WHAT
    from labkit.results.sweeps import comparison

    told = comparison(table, metric=metric, base=base)
    speeds = list(table.attrs.get("speeds", ()))
    if not as_json:
        if speeds:
            print(f"speeds: {' | '.join(speeds)}")
        _print_table(told, metric=metric, base=base)
        return
    for row in told.astype(object).where(told.notna(), None).to_dict("records"):
        what = {"what": WHAT} if row["scheduler"] == BOUND_LABEL else {}
        print(json.dumps({"metric": metric, **row, "against": base, **what, "speeds": speeds}), flush=True)


def _print_table(told: pd.DataFrame, *, metric: str, base: str) -> None:
    from rich.table import Table

    from labkit.cli_table import numbers, show, words
    from labkit.core.text import time_unit
    from labkit.results.bound import BOUND_LABEL, WHAT

    scale, unit = time_unit(float(told["mean"].median())) if metric.endswith("_s") else (1.0, "")
    what = metric.removesuffix("_s").replace("_", " ").replace("jct", "JCT") + (f" ({unit})" if unit else "")
    bounded = bool(told["times_bound"].notna().any())
    varying = [key for key in told.columns[: list(told.columns).index("n")] if len(set(told[key])) > 1]
    shown = list(dict.fromkeys([*varying, "scheduler"]))
    table = Table(box=None, header_style="bold")
    for key in shown:
        words(table, key)
    numbers(table, "seeds", "failed", what, "95 % interval", f"against\n{base}", "95 % interval")
    if bounded:
        numbers(table, "times\nbound")
    for row in told.to_dict("records"):
        table.add_row(
            *(str(row[key]) for key in shown), str(row["n"]), str(row["n_failed"] or ""),
            f"{row['mean'] / scale:,.4g}", _interval(row["low"], row["high"], scale),
            "" if row["relative"] != row["relative"] else f"{row['relative']:+.1%}",
            _interval(row["relative_low"], row["relative_high"], 1.0, percent=True),
            *([f"{row['times_bound']:.3f}" if row["times_bound"] == row["times_bound"] else ""] if bounded else []),
        )  # fmt: skip
    show(table)
    if bounded:
        print(f"{BOUND_LABEL}: no scheduler can be below it ({WHAT})")


def _interval(low: float, high: float, scale: float, *, percent: bool = False) -> str:
    if low != low:
        return ""
    if percent:
        return f"{low:+.1%} to {high:+.1%}"
    return f"{low / scale:,.4g} to {high / scale:,.4g}"


def _exit_if_failed(table: pd.DataFrame, grid: Grid) -> None:
    failed = table[table["error"] != ""]
    if not len(failed):
        return
    keys = list(grid.axes)
    for _, row in failed.head(10).iterrows():
        told = ", ".join(f"{key} {row[key]}" for key in keys)
        print(f"labkit: failed: {told}: {row['error']}", file=sys.stderr)
    if len(failed) > 10:
        print(f"labkit: and {len(failed) - 10} more; cells.jsonl has all of them", file=sys.stderr)
    raise typer.Exit(1)
