"""One HTML file that tells a comparison: cards, table, live figures, provenance. It works without a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.core.errors import InputError
from labkit.plots import fidelity_page, page
from labkit.plots.fairness import plot_fairness
from labkit.plots.gantt import plot_gantt
from labkit.plots.heat_map import plot_heat_map
from labkit.plots.jct import plot_jct_bars, plot_jct_cdf
from labkit.plots.overheads import plot_overheads
from labkit.plots.theme import human_s, time_unit
from labkit.plots.utilisation import plot_utilisation
from labkit.results import RunRecord, compare, fair_share_s, gantt, heat_map, jct_cdf, labels, notes, utilisation

MOST_RUNS_IN_DEPTH = 6
"""Gantt chart and heat-map are drawn for the first runs only."""

MOST_MARKS = 2000
"""In a figure of all runs, and in the heat-maps of two; the file stays small enough to send around."""


def write_report(
    records: Sequence[RunRecord],
    path: Path | str,
    *,
    title: str = "labkit report",
    command: str = "",
    pair: tuple[RunRecord, RunRecord] | None = None,
) -> Path:
    """Write one HTML file with everything about some runs; the file is whole or not there.

    Parameters
    ----------
    records : sequence of RunRecord
        The runs to compare, in the order in which they are to be shown.
    path : Path
        The file to write; its folder is made.
    title : str
        Heading of the page.
    command : str
        What makes this report again; by default that of the first run.
    pair : tuple of RunRecord, optional
        A real run and the one that foretold it: the report tells the gap between them. By default each run on a testbed
        whose simulation, of the same jobs with the same scheduler, is among the runs.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    InputError
        If there are no runs, or the path is a folder or a device.
    """
    if not records:
        raise InputError("a report needs at least one run; give run ids or folders.")
    target = Path(path)
    refuse_odd(target)
    pairs = fidelity_page.pairs(records) if pair is None else [pair]
    text = page.html(
        heading=title,
        lead=_lead(records),
        cards=_first_cards(records, pairs),
        table=_table(records),
        sections=[*_notes(records), *_fidelity(pairs), *_sections(records)],
        provenance=_provenance(records),
        command=command or records[0].info.command,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def refuse_odd(path: Path) -> None:
    """Raise if a path is there and is no plain file: a report would replace a device, and cannot replace a folder."""
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is a {'folder' if path.is_dir() else 'device'}; name a file for the report, e.g. report.html."
        )


def _lead(records: Sequence[RunRecord]) -> str:
    first = records[0]
    n_schedulers = len({record.info.scheduler for record in records})
    what = f"{n_schedulers} scheduler{'s' if n_schedulers > 1 else ''}"
    traces = ", ".join(dict.fromkeys(record.info.trace or record.jobs.name for record in records))
    return f"{what} on {len(first.jobs):,} jobs of {traces}; cluster {first.cluster}"


def _first_cards(records: Sequence[RunRecord], pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[page.Card]:
    """Return the cards; of a run and its simulation alone, which of the two is best says nothing."""
    usual = _cards(records)
    if not pairs:
        return usual
    return [*fidelity_page.cards(*pairs[0]), *(usual[:1] if len(records) == 2 else usual)]


def _cards(records: Sequence[RunRecord]) -> list[page.Card]:
    table = compare(records).set_index("label")
    cards = [page.Card("Jobs", f"{int(table['n_jobs'].max()):,}", _unfinished(table))]
    for column, what in (
        ("mean_jct_s", "Best mean JCT"),
        ("p95_jct_s", "Best p95 JCT"),
        ("makespan_s", "Best makespan"),
    ):
        known = table[column].dropna()
        if known.empty:
            continue
        worst, best = float(known.max()), float(known.min())
        gain = f", {worst / best:.2f}x shorter than {known.idxmax()}" if len(known) > 1 and worst > best else ""
        cards.append(page.Card(what, human_s(best), f"{known.idxmin()}{gain}"))
    busiest = table["utilisation"].dropna()
    if not busiest.empty:
        cards.append(
            page.Card("Highest utilisation", f"{busiest.max():.1%}", f"{busiest.idxmax()}, GPUs held of built")
        )
    return cards


def _notes(records: Sequence[RunRecord]) -> list[page.Section]:
    """Return what to know beside the table, right behind it."""
    told = notes(records)
    return [page.Section("Notes", [], note=" ".join(told))] if told else []


def _unfinished(table: pd.DataFrame) -> str:
    most = int(table["n_unfinished"].max())
    return f"up to {most:,} unfinished" if most else "all completed in every run"


_COLUMNS: tuple[tuple[str, str, bool | None], ...] = (
    ("mean_jct_s", "Mean JCT", False),
    ("median_jct_s", "Median JCT", False),
    ("p95_jct_s", "p95 JCT", False),
    ("makespan_s", "Makespan", False),
    ("mean_queueing_s", "Queueing", False),
    ("utilisation", "Utilisation", True),
    ("mean_stretch", "Stretch", False),
    ("mean_rho", "Fairness ρ", False),
    ("n_preemptions", "Preemptions", None),
    ("n_unfinished", "Unfinished", None),
)
"""Column of `compare`, heading, and whether a higher number is better (None: neither)."""


def _table(records: Sequence[RunRecord]) -> page.Table:
    numbers = compare(records)
    units = {name: _unit(name, numbers[name]) for name, _, _ in _COLUMNS}
    best = {name: _best(numbers[name], higher=higher) for name, _, higher in _COLUMNS}
    rows = []
    for _, row in numbers.iterrows():
        values = {name: float(row[name]) for name in units}
        cells = [page.Cell(_said(values[name] / units[name][0], name), values[name] == best[name]) for name in units]
        rows.append((str(row["label"]), cells))
    return page.Table([f"{heading}{units[name][1]}" for name, heading, _ in _COLUMNS], rows)


def _unit(name: str, column: pd.Series[Any]) -> tuple[float, str]:
    """Return what to divide a column by, and what its heading says of it."""
    if not name.endswith("_s") or column.dropna().empty:
        return 1.0, ""
    scale_s, unit = time_unit(float(column.max()))
    return scale_s, f" ({unit})"


def _best(column: pd.Series[Any], *, higher: bool | None) -> float:
    """Return the value to mark, NaN (equal to nothing) where there is nothing to win."""
    known = column.dropna().astype(float)
    if higher is None or known.nunique() < 2:
        return np.nan
    return float(known.max() if higher else known.min())


def _said(value: float, name: str) -> str:
    if np.isnan(value):
        return "–"
    if name.startswith("n_"):
        return f"{value:,.0f}"
    return f"{value:.1%}" if name == "utilisation" else f"{value:,.2f}"


def _sections(records: Sequence[RunRecord]) -> list[page.Section]:
    names = labels(records)
    by_name = dict(zip(names, records, strict=True))
    tables = {name: record.table for name, record in by_name.items()}
    steps = {name: utilisation(r.events, r.jobs, r.cluster) for name, r in by_name.items()}
    sections = [
        page.Section(
            "Completion times", [plot_jct_bars(compare(records)), plot_jct_cdf(jct_cdf(tables), limit=MOST_MARKS)]
        ),
        page.Section("The cluster over time", [plot_utilisation(steps)]),
        page.Section("Where the time goes", [plot_overheads(tables)]),
    ]
    rho = _rho(by_name)
    if rho["rho"].notna().any():
        sections.append(page.Section("Fairness", [plot_fairness(rho, limit=MOST_MARKS)], _RHO))
    in_depth = list(by_name.items())[:MOST_RUNS_IN_DEPTH]
    each = 2 * MOST_MARKS // max(len(in_depth), 2)
    return sections + [_run(name, record, limit=each) for name, record in in_depth]


def _fidelity(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[page.Section]:
    """Return a section for each real run with its simulation beside it."""
    several = len(pairs) > 1
    return [
        fidelity_page.section(real, foretold, heading=f"Fidelity: {real.info.scheduler}" if several else "Fidelity")
        for real, foretold in pairs
    ]


def _run(name: str, record: RunRecord, *, limit: int) -> page.Section:
    events, jobs, cluster = record.events, record.jobs, record.cluster
    who = plot_gantt(gantt(events, jobs, cluster), record.table, heading=f"{name}: who ran when", limit=limit)
    cells = heat_map(events, jobs, cluster, n_bins=48)
    where = plot_heat_map(cells, heading=f"{name}: how full each machine is", limit=limit)
    return page.Section(name, [who, where], folded=True)


_RHO = (
    "ρ is a job's completion time over what an equal share of the cluster would have given it, estimated as its "
    "declared duration times max(1, GPUs asked x mean number of jobs beside it / GPUs of the cluster)."
)


def _rho(by_name: dict[str, RunRecord]) -> pd.DataFrame:
    parts = []
    for name, record in by_name.items():
        until_s = float(record.events["time_s"].max()) if len(record.events) else 0.0
        fair_s = fair_share_s(record.table, n_gpus=record.cluster.n_gpus, until_s=until_s)
        parts.append(pd.DataFrame({"scheduler": name, "rho": record.table["jct_s"] / fair_s}))
    return pd.concat(parts, ignore_index=True)


def _in_words(option: Any) -> str:
    """Return an option as one would write it in code.

    >>> _in_words({"kind": "Las", "threshold_gpu_s": 60.0, "placer": {}})
    'Las(threshold_gpu_s=60.0)'
    """
    if not isinstance(option, Mapping):
        return str(option)
    given = [f"{key}={_in_words(value)}" for key, value in option.items() if key != "kind" and value not in ({}, None)]
    return f"{option.get('kind', '')}({', '.join(given)})"


def _provenance(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return what is the same in all runs as one line each, and what differs as a list."""

    def all_of(values: Sequence[object]) -> str:
        return ", ".join(dict.fromkeys(str(value) for value in values if value not in ("", None)))

    infos = [record.info for record in records]
    versions = {name: version for info in infos for name, version in info.versions.items()}
    options = {f"{key}: {_in_words(value)}" for info in infos for key, value in info.config.items()}
    rows = [
        ("Trace", all_of([info.trace or record.jobs.name for info, record in zip(infos, records, strict=True)])),
        ("Cluster", all_of([record.cluster for record in records])),
        ("Backend", all_of([info.backend for info in infos])),
        ("Seed", all_of([info.seed for info in infos])),
        ("Options", "; ".join(sorted(options))),
        ("Runs", all_of([f"{info.run} ({info.state})" for info in infos])),
        ("Started", all_of([info.started for info in infos])),
        ("Took", all_of([f"{info.scheduler} {info.wall_s:.2f} s" for info in infos if not np.isnan(info.wall_s)])),
        ("Host", all_of([info.host for info in infos])),
        ("Commit", all_of([info.commit for info in infos])),
        ("Versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))),
    ]
    return [(name, value) for name, value in rows if value]
