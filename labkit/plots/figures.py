"""A figure of some runs by its kind: the one place that knows which numbers each needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import altair as alt
import pandas as pd

from labkit.core.errors import InputError, unknown
from labkit.core.text import shortened, without_seed
from labkit.plots.gantt import plot_gantt_stack, plot_overheads
from labkit.plots.jct import plot_fairness, plot_jct_bars, plot_jct_cdf
from labkit.plots.report import rho_of, seeds_table
from labkit.plots.sweep import plot_sweep, plot_sweep_differences
from labkit.plots.utilisation import plot_utilisation
from labkit.results import RunRecord, jct_cdf, labels, run_table, utilisation


def draw(records: Sequence[RunRecord], *, kind: str, base: str | None = None) -> alt.TopLevelMixin:
    """Return a figure of runs.

    Raise InputError if there is no such kind, there are no runs, these do not have what it shows, or no such scheduler.

    `base`: the scheduler that others are compared with in a figure of seeds; by default the first one.
    """
    if kind not in KINDS:
        raise unknown("kind of figure", kind, KINDS)
    if not records:
        raise InputError("a figure needs at least one run; give run ids or folders.")
    if base is None:
        return KINDS[kind](dict(zip(labels(records), records, strict=True)))
    if kind != "seeds":
        raise InputError(f"a figure of kind '{kind}' compares with no scheduler; leave out --against {base}.")
    return _seeds(records, base=base)


Named = dict[str, RunRecord]


def _utilisation(named: Named) -> alt.TopLevelMixin:
    return plot_utilisation({label: utilisation(run.events, run.jobs, run.cluster) for label, run in named.items()})


def _fairness(named: Named) -> alt.TopLevelMixin:
    rho = rho_of(named)
    if rho["rho"].isna().all():
        raise InputError("no job of these runs has a declared duration, without which its fairness is not known.")
    return plot_fairness(rho)


def _tables(named: Named) -> dict[str, pd.DataFrame]:
    return {label: record.table for label, record in named.items()}


def _seeds(records: Sequence[RunRecord], *, base: str | None = None) -> alt.TopLevelMixin:
    table = seeds_table(records)
    if table is None:
        raise InputError(
            f"these are not the same schedulers on the same seeds, at least two: {_seeds_of(records)}. Keep such runs "
            "in a folder of their own: 'labkit compare ... --seeds 10 --runs runs/seeds'."
        )
    if base is not None and base not in set(table["scheduler"]):
        raise unknown("scheduler to compare --against", base, table["scheduler"].unique())
    return plot_sweep_differences(table, base=base) if len(set(table["scheduler"])) > 1 else plot_sweep(table)


def _seeds_of(records: Sequence[RunRecord]) -> str:
    """Return schedulers with traces and seeds, in words."""
    found: dict[str, list[str]] = {}
    for info in (record.info for record in records):
        found.setdefault(f"{info.scheduler} on {without_seed(info.trace)}", []).append(str(info.seed))
    return shortened("; ".join(f"{name}: {', '.join(seeds)}" for name, seeds in found.items()), most=300)


KINDS: Final[dict[str, Callable[[Named], alt.TopLevelMixin]]] = {
    "jct": lambda named: plot_jct_cdf(jct_cdf(_tables(named))),
    "bars": lambda named: plot_jct_bars(run_table(list(named.values()))),
    "utilisation": _utilisation,
    "overheads": lambda named: plot_overheads(_tables(named)),
    "fairness": _fairness,
    "gantt": plot_gantt_stack,
    "seeds": lambda named: _seeds(list(named.values())),
}
"""What can be drawn of runs."""
