"""`labkit sweep`: many runs, and what they say together."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.core.bounds import MAX_CELLS
from labkit.core.errors import InputError, unknown
from labkit.core.text import labelled, shortened, split_names, text_or_none
from labkit.system.printing import printable

if TYPE_CHECKING:
    import pandas as pd

    from labkit.experiment.scenario import Scenario


DRAWN = (".svg", ".png", ".html", ".json", ".pdf")
MANY = "repeatable, or a comma-separated list"


def sweep(
    trace: Annotated[
        list[str], typer.Option(help=f"A file, or a generator such as 'poisson(80, per_hour=12)'; {MANY}")
    ],
    schedulers: Annotated[list[str], typer.Option(help=f"Scheduler, with options in brackets; rename: a=fifo; {MANY}")],
    folder: Annotated[Path, typer.Option(help="Folder for the results. The same command resumes the sweep.")],
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            help="A preset, an expression or hosts.toml; repeatable, or a comma-separated list. Default: the preset of "
            "the trace's name (demo), else gavel-36x3."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds: 5 (0 to 4), 5-9, or 1,4,9.")] = "1",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A field of the scenario, or an option of all schedulers. Repeatable.", metavar="NAME=A,B,..."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes. Default: one per core. 0: run in this process.", min=0)
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Use this Dask cluster: tcp://HOST:PORT, or the folder of `fab dask-up`.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Store whole runs, for `labkit report`.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first run that fails.")] = False,
    metric: Annotated[str, typer.Option(help="Metric to compare at the end.")] = "mean_jct_s",
    against: Annotated[
        str | None, typer.Option(help="Baseline scheduler for the paired differences. Default: the first one.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(help="Draw the comparison into this file (svg, png, html, or pdf, two columns wide)."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object per scheduler, and one for the bound: mean, 95% confidence interval, "
            "difference.",
        ),
    ] = False,
) -> None:
    """Simulate schedulers x seeds x traces x clusters x parameters; resumable."""
    from labkit.experiment.grid import Grid, parameter
    from labkit.experiment.on_dask import connect
    from labkit.experiment.sweeping import sweep as run_all
    from labkit.results.sweeps import refuse_unknown_metric

    refuse_unknown_metric(metric)
    if figure is not None:
        from labkit.plots.paper import refuse_figure

        refuse_figure(figure, endings=DRAWN)
    grid = Grid(
        schedulers=_listed(schedulers), trace=_listed(trace), cluster=_clusters(cluster, _listed(trace)),
        seeds=seeds_of(seeds), **dict(parameter(text) for text in set_ or ()),
    )  # fmt: skip
    refuse_unknown_base(against, grid.schedulers)
    base = against or next(iter(grid.schedulers))
    with connect(dask) as client:
        table = run_all(
            grid, folder=folder, workers=workers, client=client, keep=keep, strict=strict,
            progress=not as_json,
        )  # fmt: skip
    if (table["error"] != "").all():
        exit_if_failed(table, keys=grid.axes, rest="; cells.jsonl has all of them")
    tell(table, metric=metric, base=base, as_json=as_json)
    if figure is not None:
        from labkit.plots.paper import save_for_paper
        from labkit.plots.sweep import plot_sweep

        chart = plot_sweep(table, metric=metric, base=base)
        figure.parent.mkdir(parents=True, exist_ok=True)
        save_for_paper(chart, figure, columns=2) if figure.suffix == ".pdf" else chart.save(figure)
    exit_if_failed(table, keys=grid.axes, rest="; cells.jsonl has all of them")


def _clusters(named: list[str] | None, traces: list[str]) -> list[str]:
    """Return the clusters of a sweep: those named, else the usual one of its traces, where it is one."""
    from labkit.cli.tables import GAVEL, usual_cluster

    if named:
        return _listed(named)
    usual = dict(usual_cluster(Path(trace)) for trace in traces)
    cluster, line = next(iter(usual.items())) if len(usual) == 1 else (GAVEL, usual_cluster(Path("-"))[1])
    print(f"labkit: {line}", file=sys.stderr)
    return [cluster]


def _listed(texts: list[str]) -> list[str]:
    return [name for text in texts for name in split_names(text)]


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


def tell(table: pd.DataFrame, *, metric: str, base: str, as_json: bool) -> None:
    """Print what the cells say together: a table, or an object per scheduler."""
    from labkit.results.comparison import BOUND_LABEL, FASTER, UNREACHED, WHAT
    from labkit.results.conclusion import identical_runs
    from labkit.results.sweeps import comparison, pairs_called

    told = comparison(table, metric=metric, base=base)
    speeds = list(table.attrs.get("speeds", ()))
    if not as_json:
        if speeds:
            print(f"speeds: {' | '.join(speeds)}")
        _print_table(told, metric=metric, base=base, pairs=f"{pairs_called(table)}s")
        if told["times_bound"].notna().any():
            unreached = UNREACHED if table.attrs.get(FASTER) else ""
            print(f"{BOUND_LABEL}: lower bound ({WHAT}){unreached}")
        for note in identical_runs(table):
            print(printable(f"note: {note}"))
        return
    for row in told.astype(object).where(told.notna(), None).to_dict("records"):
        what = {"what": WHAT} if row["scheduler"] == BOUND_LABEL else {}
        print(json.dumps({"metric": metric, **row, "against": base, **what, "speeds": speeds}), flush=True)


def _print_table(rows: pd.DataFrame, *, metric: str, base: str, pairs: str) -> None:
    from labkit.cli.tables import new_table, numbers, show, words
    from labkit.core.text import time_unit

    scale, unit = time_unit(float(rows["mean"].median())) if metric.endswith("_s") else (1.0, "")
    what = metric.removesuffix("_s").replace("_", " ").replace("jct", "JCT") + (f" ({unit})" if unit else "")
    bounded = bool(rows["times_bound"].notna().any())
    varying = [key for key in rows.columns[: list(rows.columns).index("n")] if len(set(rows[key])) > 1]
    shown = list(dict.fromkeys([*varying, "scheduler"]))
    table = new_table()
    for key in shown:
        words(table, key)
    numbers(table, pairs, "failed", what, "95% CI", f"against\n{base}", "95% CI", "lower\non")
    if bounded:
        numbers(table, "times\nbound")
    for row in rows.to_dict("records"):
        table.add_row(
            *(text_or_none(row[key]) for key in shown), str(row["n"]), str(row["n_failed"] or ""),
            _value(row["mean"], scale), _interval(row["low"], row["high"], scale),
            "" if row["relative"] != row["relative"] else f"{row['relative']:+.1%}",
            _interval(row["relative_low"], row["relative_high"], 1.0, percent=True), _lower_on(row),
            *([f"{row['times_bound']:.3f}" if row["times_bound"] == row["times_bound"] else ""] if bounded else []),
        )  # fmt: skip
    show(table)


def _value(mean: float, scale: float) -> str:
    """Return a mean for the table; a dash where every run failed."""
    return "–" if mean != mean else f"{mean / scale:,.4g}"


def _lower_on(row: dict[Any, Any]) -> str:
    """Return on how many of the seeds that both have a scheduler was below the one that it is compared with."""
    if row["n_pairs"] == 0:
        return "–"
    return "" if row["n_pairs"] != row["n_pairs"] else f"{row['n_lower']:.0f} of {row['n_pairs']:.0f}"


def _interval(low: float, high: float, scale: float, *, percent: bool = False) -> str:
    if low != low:
        return ""
    if percent:
        return f"{low:+.1%} to {high:+.1%}"
    return f"{low / scale:,.4g} to {high / scale:,.4g}"


def exit_if_failed(table: pd.DataFrame, *, keys: Iterable[str], rest: str = "") -> None:
    """Report which cells failed, and why, and end with exit code 1 then."""
    failed = table[table["error"] != ""]
    if not len(failed):
        return
    keys = list(keys)
    for _, row in failed.head(10).iterrows():
        told = ", ".join(f"{key} {text_or_none(row[key])}" for key in keys)
        print(printable(f"labkit: failed: {told}: {row['error']}"), file=sys.stderr)
    if len(failed) > 10:
        print(f"labkit: and {len(failed) - 10} more{rest}", file=sys.stderr)
    raise typer.Exit(1)


def labels_of(schedulers: str) -> list[str]:
    """Return the names of some schedulers: their labels, or as they are named."""
    from labkit.experiment.validation import schedulers_of

    return [label or plain for label, plain in map(labelled, map(str, schedulers_of(schedulers)))]


def refuse_unknown_base(against: str | None, names: Collection[str]) -> None:
    """Raise if the scheduler that others are to be compared with is none of these.

    Raise InputError with the nearest name.
    """
    if against is not None and against not in names:
        raise unknown("scheduler to compare --against", against, names)


def compare_on_seeds(
    scenario: Scenario,
    *,
    schedulers: str,
    seeds: str,
    against: str | None,
    report: Path | None,
    runs: Path | None,
    workers: int | None,
    as_json: bool,
    command: str,
    usual: str = "",
) -> None:
    """Simulate, print a row per scheduler and what they show, and write the report.

    `usual` is a line to print above: which cluster was taken, if none was named. Raise InputError if `against` is none
    of the schedulers, or a single seed is given, too; or as `labkit.sweep`.
    """
    from labkit.experiment.caveats import Caveat
    from labkit.experiment.sweeping import compare_on_seeds as run_all
    from labkit.experiment.validation import schedulers_of
    from labkit.results.conclusion import summarize_seeds
    from labkit.results.record import arrivals

    if scenario.seed:
        raise InputError("--seed does not go with --seeds or --windows; leave it out, or use a single --seed.")
    chosen = [str(name) for name in schedulers_of(schedulers)]
    refuse_unknown_base(against, called := labels_of(schedulers))
    base = against or called[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if as_json else "default", Caveat)
        found = run_all(
            scenario, schedulers=chosen, seeds=seeds_of(seeds), runs=runs, records=report is not None,
            workers=workers, progress=not as_json,
        )  # fmt: skip
    named = scenario.trace if isinstance(scenario.trace, str) else scenario.trace.name
    faster = arrivals(float(scenario.arrival_rate))
    if faster and not as_json:
        print(f"{named}{faster}")
    if usual and not as_json:
        print(usual)
    tell(found.table, metric="mean_jct_s", base=base, as_json=as_json)
    if not as_json:
        print("\n".join(summarize_seeds(found.table)))
    if report is not None and found.records:
        from labkit.plots.report import write_report

        written = write_report(
            found.records, report, title=f"Trace {named}{faster}, cluster {found.records[0].cluster.name}",
            command=command, seeds=found.table, base=base,
        )  # fmt: skip
        if not as_json:
            print(f"report: {written.resolve()}")
    exit_if_failed(found.table, keys=("scheduler", "seed"))
