"""`labkit tune`: search the options of a scheduler, and check what was found on other seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli.sweep import seeds_of, tell
from labkit.system.printing import printable

if TYPE_CHECKING:
    from labkit.experiment.ranges import Range
    from labkit.experiment.tuning import Tuned

SHOWN = 5
"""Trials that are told, the best first."""


def tune(
    scheduler: Annotated[str, typer.Argument(help="A name, with fixed options in brackets, or file.py:Class.")],
    trace: Annotated[str, typer.Option(help="A generator such as 'poisson(80, per_hour=12)', or a file.")],
    param: Annotated[
        list[str],
        typer.Option(
            help="Search range: NAME=LOW:HIGH, NAME=LOW:HIGH:log, or NAME=A,B,... Repeatable.", metavar="RANGE"
        ),
    ],
    cluster: Annotated[str, typer.Option(help="A preset, an expression or hosts.toml.")] = "gavel-36x3",
    metric: Annotated[str, typer.Option(help="Metric whose mean is minimised.")] = "mean_jct",
    highest: Annotated[bool | None, typer.Option("--highest/--lowest", help="Maximise it instead.")] = None,
    trials: Annotated[int, typer.Option(help="Total number of trials, including those already done.", min=1)] = 30,
    seeds: Annotated[str, typer.Option(help="Seeds of each trial: 3 (0 to 2), 5-9, or 1,4,9.")] = "3",
    check: Annotated[str, typer.Option(help="Held-out seeds on which the best trial is checked.")] = "100-109",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the scenario, as in `labkit sweep --set`.", metavar="NAME=A"),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for the trials. Default: tunes/SCHEDULER. The same command resumes the search."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search a scheduler's options on some seeds (Optuna), and check the best on held-out seeds. Resumable."""
    from labkit.experiment.ranges import Range
    from labkit.experiment.tuning import tune as search

    ranges = [Range.read(text) for text in param]
    where = folder or Path("tunes") / "".join(c if c.isalnum() or c in "_." else "-" for c in scheduler).strip("-.")
    named = _metric(metric)
    found = search(
        scheduler, ranges, trace=trace, cluster=cluster, folder=where, metric=named, highest=highest, n_trials=trials,
        seeds=seeds_of(seeds), check_seeds=seeds_of(check), seed=seed,
        after_each=None if as_json or not sys.stderr.isatty() else _tell_trial, **_settings(set_ or ()),
    )  # fmt: skip
    if as_json:
        _print_json(found, scheduler=scheduler, metric=named)
    else:
        _print(found, ranges, scheduler=scheduler, metric=named, folder=where)
    raise typer.Exit(1 if (found.checked["error"] != "").any() else 0)


def _metric(text: str) -> str:
    """Return the name of a metric; the unit may be left out."""
    from labkit.results.sweeps import refuse_unknown_metric

    for name in (f"{text}_s", text):
        try:
            refuse_unknown_metric(name)
        except ValueError:
            if name == text:
                raise
        else:
            return name
    return text


def _settings(texts: Any) -> dict[str, Any]:
    from labkit.core.errors import InputError
    from labkit.experiment.grid import parameter
    from labkit.experiment.scenario import FORMER, OPTIONS

    settings = {}
    for name, values in map(parameter, texts):
        if FORMER.get(name, name) not in OPTIONS or len(values) > 1:
            raise InputError(f"--set {name}: expected one value of a parameter of the runs: {', '.join(OPTIONS)}.")
        settings[name] = values[0]
    return settings


def _tell_trial(number: int, value: float, values: dict[str, Any]) -> None:
    told = ", ".join(f"{name}={value!r}" for name, value in values.items())
    print(f"trial {number}: {'failed' if value != value else f'{value:,.6g}'} with {told}", file=sys.stderr)


def _print(result: Tuned, ranges: list[Range], *, scheduler: str, metric: str, folder: Path) -> None:
    from labkit.cli.tables import new_table, numbers, show, words
    from labkit.experiment.tuning import DEFAULT

    order = result.trials.sort_values("value", ascending=not result.highest, kind="stable").head(SHOWN)
    failed = result.trials[result.trials["error"] != ""]
    n_failed = f", {len(failed)} of which failed" if len(failed) else ""
    print(f"{len(result.trials)} trials{n_failed}, each on seeds {_seeds_in_words(result.searched)}; the best of them:")
    table = new_table()
    numbers(table, "trial", metric)
    for each in ranges:
        words(table, each.name)
    for row in order.to_dict("records"):
        told = [
            f"{row[each.name]:.6g}" if isinstance(row[each.name], float) else str(row[each.name]) for each in ranges
        ]
        table.add_row(str(row["trial"]), f"{row['value']:,.6g}", *told)
    show(table)
    for error in dict.fromkeys(failed["error"]):
        print(printable(f"note: a trial failed: {error}"))
    for name in result.edges if not result.idle else ():
        print(f"note: the best {name} is at the end of its range; better values may lie beyond it")
    print(f"\nBest trial against the default {scheduler}, on held-out seeds ({_seeds_in_words(result.check_seeds)}):")
    tell(result.checked, metric=metric, base=DEFAULT, as_json=False)
    print(result.verdict)
    if result.idle:
        print(
            f"raise the arrival rate (--set arrival_rate=2) or take a smaller cluster   (trials are kept in {folder})"
        )
        return
    advice, name = ("use it", result.name) if result.is_better else ("keep the default", scheduler)
    print(f'{advice}: --schedulers "{name}"   (trials are kept in {folder})')


def _print_json(result: Tuned, *, scheduler: str, metric: str) -> None:
    from labkit.experiment.tuning import DEFAULT, TUNED
    from labkit.results.sweeps import comparison

    rows = comparison(result.checked, metric=metric, base=DEFAULT).set_index("scheduler")
    row = rows.loc[TUNED]
    told = {name: None if row[name] != row[name] else float(str(row[name])) for name in _CHECKED}
    trials = result.trials.astype(object).where(result.trials.notna(), None).to_dict("records")
    said: dict[str, object] = {
        "scheduler": scheduler,
        "metric": metric,
        "best": result.best,
        "name": result.name,
        "better": result.is_better,
        "edges": result.edges,
    }
    said |= {"searched": result.searched, "checked": result.check_seeds, "on_checked": told, "verdict": result.verdict}
    print(json.dumps({**said, "trials": trials}))


_CHECKED = ("mean", "low", "high", "relative", "relative_low", "relative_high", "n_pairs", "n_lower")


def _seeds_in_words(seeds: tuple[int, ...]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole and len(seeds) > 1 else ", ".join(map(str, seeds))
