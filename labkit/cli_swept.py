"""What `labkit sweep` and `labkit compare --seeds` print of many runs, and how seeds are typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from labkit.core.bounds import MAX_CELLS
from labkit.core.errors import InputError
from labkit.core.text import none_told, shortened
from labkit.printing import printable

if TYPE_CHECKING:
    import pandas as pd


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
    from labkit.results.alike import alike
    from labkit.results.bound import BOUND_LABEL, FASTER, UNREACHED, WHAT
    from labkit.results.sweeps import comparison, pairs_called

    told = comparison(table, metric=metric, base=base)
    speeds = list(table.attrs.get("speeds", ()))
    if not as_json:
        if speeds:
            print(f"speeds: {' | '.join(speeds)}")
        _print_table(told, metric=metric, base=base, pairs=f"{pairs_called(table)}s")
        if told["times_bound"].notna().any():
            unreached = UNREACHED if table.attrs.get(FASTER) else ""
            print(f"{BOUND_LABEL}: no scheduler can be below it ({WHAT}){unreached}")
        for note in alike(table):
            print(printable(f"note: {note}"))
        return
    for row in told.astype(object).where(told.notna(), None).to_dict("records"):
        what = {"what": WHAT} if row["scheduler"] == BOUND_LABEL else {}
        print(json.dumps({"metric": metric, **row, "against": base, **what, "speeds": speeds}), flush=True)


def _print_table(told: pd.DataFrame, *, metric: str, base: str, pairs: str) -> None:
    from rich.table import Table

    from labkit.cli_table import numbers, show, words
    from labkit.core.text import time_unit

    scale, unit = time_unit(float(told["mean"].median())) if metric.endswith("_s") else (1.0, "")
    what = metric.removesuffix("_s").replace("_", " ").replace("jct", "JCT") + (f" ({unit})" if unit else "")
    bounded = bool(told["times_bound"].notna().any())
    varying = [key for key in told.columns[: list(told.columns).index("n")] if len(set(told[key])) > 1]
    shown = list(dict.fromkeys([*varying, "scheduler"]))
    table = Table(box=None, header_style="bold")
    for key in shown:
        words(table, key)
    numbers(table, pairs, "failed", what, "95 % interval", f"against\n{base}", "95 % interval", "lower\non")
    if bounded:
        numbers(table, "times\nbound")
    for row in told.to_dict("records"):
        table.add_row(
            *(none_told(row[key]) for key in shown), str(row["n"]), str(row["n_failed"] or ""),
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
    """Say which cells failed, and why, and end with exit code 1 then."""
    failed = table[table["error"] != ""]
    if not len(failed):
        return
    keys = list(keys)
    for _, row in failed.head(10).iterrows():
        told = ", ".join(f"{key} {none_told(row[key])}" for key in keys)
        print(printable(f"labkit: failed: {told}: {row['error']}"), file=sys.stderr)
    if len(failed) > 10:
        print(f"labkit: and {len(failed) - 10} more{rest}", file=sys.stderr)
    raise typer.Exit(1)
