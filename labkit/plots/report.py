"""One HTML file that tells a comparison: cards, table, live figures, provenance. It works without a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.core.errors import InputError
from labkit.core.files import refuse_unwritable
from labkit.core.text import shortened
from labkit.plots import fidelity_page, page
from labkit.plots.cost import cost_table, plot_cost
from labkit.plots.device_types import gpu_hours, plot_gpu_hours
from labkit.plots.fairness import plot_fairness
from labkit.plots.forwarding import plot_forwarding
from labkit.plots.gantt import plot_gantt, shared_ends
from labkit.plots.heat_map import plot_heat_map
from labkit.plots.jct import plot_jct_bars, plot_jct_cdf
from labkit.plots.overheads import plot_overheads
from labkit.plots.report_jobs import jobs_section
from labkit.plots.report_seeds import seeds_section, seeds_table
from labkit.plots.report_table import runs_table
from labkit.plots.theme import human_s
from labkit.plots.utilisation import plot_utilisation
from labkit.results import RunRecord, fair_share_s, forwarding, gantt, heat_map, jct_cdf, labels, run_table, utilisation
from labkit.results.bound import BOUND, FASTER
from labkit.results.conclusion import conclusion
from labkit.results.cost import prices_of
from labkit.results.record import RunInfo
from labkit.results.sweeps import pairs_called

MOST_RUNS_IN_DEPTH = 6
"""Gantt chart and heat-map are drawn for the first runs only."""

MOST_MARKS = 2000
"""In a figure of all runs, and in the heat-maps of two; the file stays small enough to send around."""

ENDINGS = (".html", ".htm")
"""Of a report's file."""


def write_report(
    records: Sequence[RunRecord],
    path: Path | str,
    *,
    title: str = "labkit report",
    command: str = "",
    pair: tuple[RunRecord, RunRecord] | None = None,
    pair_note: str = "",
    seeds: pd.DataFrame | None = None,
    base: str | None = None,
    failed: Mapping[str, object] | None = None,
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
        A real run and the one that predicted it: the report tells the gap between them, at its end where it is about
        other runs too. By default each run on a testbed whose simulation, of the same jobs with the same scheduler, is
        among the runs.
    pair_note : str
        What the simulation of the pair rests on.
    seeds : DataFrame, optional
        The same schedulers on several seeds: a table of `labkit.sweep`. By default made of the records, where they are
        of several seeds.
    base : str, optional
        The scheduler with which others are compared; else the first one on several seeds, and the best one on one.
    failed : mapping, optional
        Schedulers that were to be compared and failed, and with which error.

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
    refuse_unwritable(target, endings=ENDINGS)
    pairs = fidelity_page.pairs(records) if pair is None else [pair]
    seeds = seeds_table(records) if seeds is None else seeds
    over = [] if seeds is None else [seeds_section(seeds, base=base)]
    about_two = _about(records, pairs)
    text = page.html(
        heading=title,
        lead=_lead(records),
        shown=[] if about_two else [*conclusion(records, seeds=seeds, base=base), *_failed(failed)],
        cards=_first_cards(records, pairs),
        table=runs_table(records, lead=_alone(records, seeds)),
        sections=[*over, *_fidelity(pairs, last=not about_two, lead=pair_note), *_sections(records)],
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


def _failed(failed: Mapping[str, object] | None) -> list[str]:
    """Return a sentence for each scheduler that is not in the report, for it failed."""
    return [
        f"Not in this report: {name} failed ({shortened(' '.join(str(error).split()), most=300)})."
        for name, error in (failed or {}).items()
    ]


def _lead(records: Sequence[RunRecord]) -> str:
    first = records[0]
    n_schedulers = len({record.info.scheduler for record in records})
    what = f"{n_schedulers} scheduler{'s' if n_schedulers > 1 else ''}"
    traces = ", ".join(dict.fromkeys(f"{record.info.trace or record.jobs.name}{record.arrivals}" for record in records))
    speeds = " | ".join(dict.fromkeys(_speeds(record) for record in records if _speeds(record)))
    told = f"; speeds: {speeds}" if speeds else ""
    return f"{what} on {len(first.jobs):,} jobs of {traces}; cluster {first.cluster}{told}"


def _speeds(record: RunRecord) -> str:
    said = str(record.info.config.get("speeds", ""))
    return f"{said} (of the simulation, not of the testbed)" if said and record.info.backend == "testbed" else said


def _alone(records: Sequence[RunRecord], seeds: pd.DataFrame | None) -> str:
    """Return of which seed the table and the figures of single runs are, where there are others too."""
    told = sorted({record.info.seed for record in records})
    if seeds is None or len(told) > 1 or seeds["seed"].nunique() < 2:
        return ""
    pair, one = pairs_called(seeds), records[0].info.config.get("repeat", told[0])
    return f"This table, the cards above, and all figures but those over {pair}s are of {pair} {one} alone."


def _about(records: Sequence[RunRecord], pairs: Sequence[tuple[RunRecord, RunRecord]]) -> bool:
    """Tell whether a report is about a run and its simulation, and nothing else."""
    return len(pairs) == 1 and {id(record) for record in records} == {id(record) for record in pairs[0]}


def _first_cards(records: Sequence[RunRecord], pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[page.Card]:
    """Return the cards; of a run and its simulation alone, which of the two is best says nothing."""
    usual = _cards(records)
    return [*fidelity_page.cards(*pairs[0]), usual[0]] if _about(records, pairs) else usual


def _cards(records: Sequence[RunRecord]) -> list[page.Card]:
    table = run_table(records).set_index("label")
    cards = [page.Card("Jobs", f"{int(table['n_jobs'].max()):,}", _unfinished(table))]
    whole = table[table["n_done"] == table["n_trace"]]
    for column, what in (
        ("mean_jct_s", "Best mean JCT"),
        ("p95_jct_s", "Best p95 JCT"),
        ("makespan_s", "Best makespan"),
    ):
        known = whole[column].dropna()
        if known.empty:
            continue
        worst, best = float(known.max()), float(known.min())
        gain = f", {worst / best:.2f}x shorter than {known.idxmax()}" if len(known) > 1 and worst > best else ""
        cards.append(page.Card(what, human_s(best), f"{known.idxmin()}{gain}"))
    return cards


def _unfinished(table: pd.DataFrame) -> str:
    most = int((table["n_trace"] - table["n_done"]).max())
    return f"up to {most:,} unfinished" if most else "all completed in every run"


def _sections(records: Sequence[RunRecord]) -> list[page.Section]:
    by_name = dict(zip(labels(records), records, strict=True))
    whole = {name: record for name, record in by_name.items() if record.complete} or by_name
    left_out = [name for name in by_name if name not in whole]
    cut = f"Not in this figure, for not all of its jobs were done: {', '.join(left_out)}." if left_out else ""
    tables = {name: record.table for name, record in whole.items()}
    steps = {name: utilisation(r.events, r.jobs, r.cluster) for name, r in by_name.items()}
    times = [plot_jct_bars(run_table(records)), plot_jct_cdf(jct_cdf(tables), limit=MOST_MARKS)]
    sections = [
        page.Section("Completion times", times, cut.replace("this figure", "the second figure")),
        page.Section("The cluster over time", [plot_utilisation(steps)], _without_gpus(records[0])),
        *_types(whole, cut=cut),
        page.Section("Where the time goes", [plot_overheads(tables)], cut),
    ]
    rho = rho_of(whole)
    if rho["rho"].notna().any():
        note = " ".join(filter(None, [_RHO, cut]))
        sections.append(page.Section("Fairness", [plot_fairness(rho, limit=MOST_MARKS)], note))
    sections += _costs(whole)
    sections.append(jobs_section(by_name))
    in_depth = list(by_name.items())[:MOST_RUNS_IN_DEPTH]
    each = 2 * MOST_MARKS // max(len(in_depth), 2)
    ends = shared_ends([record for _, record in in_depth])
    return sections + [_run(name, record, limit=each, ends=ends) for name, record in in_depth]


def _types(by_name: Mapping[str, RunRecord], *, cut: str) -> list[page.Section]:
    """Return a section on device types where a cluster has several."""
    if all(len(record.cluster.device_types) < 2 for record in by_name.values()):
        return []
    table = gpu_hours(by_name)
    return [page.Section("Device types", [plot_gpu_hours(table)], cut)] if table["gpu_h"].any() else []


def _costs(by_name: Mapping[str, RunRecord]) -> list[page.Section]:
    """Return a section on dollars and deadlines where a scheduler is about cost, and jobs have SLOs."""
    records = list(by_name.values())
    prices = next((known for known in map(prices_of, records) if known), {})
    if len(records) < 2 or any(set(record.cluster.device_types) - set(prices) for record in records):
        return []
    told = cost_table(by_name, prices=prices)
    if told["violations"].isna().any():
        return []
    return [page.Section("Cost and deadlines", [plot_cost(told)])]


def _without_gpus(record: RunRecord) -> str:
    """Say how many jobs are not in a figure of GPUs."""
    n = int(np.count_nonzero(record.jobs.gpus == 0))
    return f"{n} of {len(record.jobs):,} jobs ask for no GPU; what they hold is not in this figure." if n else ""


def _fidelity(pairs: Sequence[tuple[RunRecord, RunRecord]], *, last: bool, lead: str) -> list[page.Section]:
    """Return a section for each real run with its simulation beside it."""
    usual = "Jobs that really trained, and their simulation" if last else "Fidelity"
    told = []
    for real, predicted in pairs:
        heading = f"{usual}: {real.info.scheduler}" if len(pairs) > 1 else usual
        section = fidelity_page.section(real, predicted, heading=heading)
        told.append(replace(section, last=last, lead=lead, cards=fidelity_page.cards(real, predicted) if last else ()))
    return told


def _run(name: str, record: RunRecord, *, limit: int, ends: dict[str, float]) -> page.Section:
    events, jobs, cluster = record.events, record.jobs, record.cluster
    heading = f"{name}: who ran when"
    when = plot_gantt(gantt(events, jobs, cluster), record.table, heading=heading, limit=limit, **ends)
    cells = heat_map(events, jobs, cluster, n_bins=48)
    where = plot_heat_map(cells, heading=f"{name}: how full each machine is", limit=limit)
    figures = [when, where]
    if record.summary["n_forwarded"]:
        sent = forwarding(events, jobs, cluster)
        figures.append(plot_forwarding(sent, heading=f"{name}: jobs forwarded from pod to pod"))
    return page.Section(name, figures, folded=True)


_RHO = (
    "ρ is a job's completion time over what an equal share of the cluster would have given it, estimated as its "
    "declared duration times max(1, GPUs asked x mean number of jobs beside it / GPUs of the cluster)."
)


def rho_of(by_name: Mapping[str, RunRecord]) -> pd.DataFrame:
    """Return the finish-time fairness of each job of some runs: scheduler, rho."""
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


def _options(info: RunInfo) -> set[str]:
    """Return the options of a run, in words; the bound is no option, and stands below the table."""
    return {f"{key}: {_in_words(value)}" for key, value in info.config.items() if key not in (BOUND, FASTER)}


def _provenance(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return what is the same in all runs as one line each, and what differs as a list."""

    def all_of(values: Sequence[object]) -> str:
        return ", ".join(dict.fromkeys(str(value) for value in values if value not in ("", None)))

    infos = [record.info for record in records]
    versions = {name: version for info in infos for name, version in info.versions.items()}
    options = [_options(info) for info in infos]
    common = set.intersection(*options)
    own = zip(labels(records), options, strict=True)
    rows = [
        ("Trace", all_of([info.trace or record.jobs.name for info, record in zip(infos, records, strict=True)])),
        ("Cluster", all_of([record.cluster for record in records])),
        ("Backend", all_of([info.backend for info in infos])),
        ("Seed", all_of([info.seed for info in infos])),
        ("Options", "; ".join(sorted(common))),
        *((f"Options of {name}", "; ".join(sorted(each - common))) for name, each in own),
        ("Runs", all_of([f"{info.run} ({info.state})" for info in infos])),
        ("Started", all_of([info.started for info in infos])),
        ("Took", all_of([f"{info.scheduler} {info.wall_s:.2f} s" for info in infos if not np.isnan(info.wall_s)])),
        ("Host", all_of([info.host for info in infos])),
        ("Commit", all_of([info.commit for info in infos])),
        ("Versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))),
    ]
    return [(name, value) for name, value in rows if value]
