"""One HTML file about a comparison: cards, table, live figures, jobs, seeds, provenance. It works without a network."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from labkit.core.devices import n_devices
from labkit.core.errors import InputError
from labkit.core.files import refuse_unwritable, write_text
from labkit.core.text import human_s, shortened, time_unit, without_seed
from labkit.plots import fidelity, page
from labkit.plots.counterfactual import counterfactuals
from labkit.plots.decisions import plot_forwarding
from labkit.plots.gantt import plot_gantt, plot_overheads, shared_ends
from labkit.plots.gpus import plot_allocation, plot_gpu_lanes
from labkit.plots.jct import cost_table, plot_cost, plot_fairness, plot_jct_bars, plot_jct_cdf
from labkit.plots.page import Section
from labkit.plots.sweep import plot_sweep
from labkit.plots.utilisation import gpu_hours, plot_gpu_hours, plot_heat_map, plot_utilisation
from labkit.results import (
    RunRecord,
    fair_share_s,
    forwarding,
    gantt,
    heat_map,
    jct_cdf,
    labels,
    notes,
    run_table,
    utilisation,
)
from labkit.results.comparison import (
    BOUND,
    BOUND_ALONE,
    BOUND_LABEL,
    FASTER,
    bound_jct_s,
    late_by_s,
    prices_of,
    reported_bound,
)
from labkit.results.conclusion import conclusion
from labkit.results.gpus import gpu_heat_map, gpu_lanes
from labkit.results.record import RunInfo
from labkit.results.sweeps import cell_table, comparison, pairs_called, same_on_all

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
    job: str | None = None,
    at_s: float | None = None,
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
    job : str, optional
        Show what each run did with this job, and why.
    at_s : float, optional
        Show what each run did at this moment, in seconds after the first arrival.

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
    pairs = fidelity.pairs(records) if pair is None else [pair]
    seeds = seeds_table(records) if seeds is None else seeds
    over = [] if seeds is None else [seeds_section(seeds, base=base)]
    about_two = _about(records, pairs)
    text = page.html(
        heading=title,
        lead=_lead(records),
        shown=[] if about_two else [*conclusion(records, seeds=seeds, base=base), *_failed(failed)],
        cards=_first_cards(records, pairs),
        table=runs_table(records, lead=_alone(records, seeds)),
        sections=[
            *over,
            *counterfactuals(records, job=job, at_s=at_s),
            *_fidelity(pairs, last=not about_two, lead=pair_note),
            *_sections(records),
        ],
        provenance=_provenance(records),
        command=command or records[0].info.command,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    return target


def _failed(failed: Mapping[str, object] | None) -> list[str]:
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
    of_speeds = f"; speeds: {speeds}" if speeds else ""
    return f"{what} on {len(first.jobs):,} jobs of {traces}; cluster {first.cluster}{of_speeds}"


def _speeds(record: RunRecord) -> str:
    speeds = str(record.info.config.get("speeds", ""))
    return (
        f"{speeds} (of the simulation, not of the testbed)" if speeds and record.info.backend == "testbed" else speeds
    )


def _alone(records: Sequence[RunRecord], seeds: pd.DataFrame | None) -> str:
    """Return of which seed the table and the figures of single runs are, where there are others too."""
    run_seeds = sorted({record.info.seed for record in records})
    if seeds is None or len(run_seeds) > 1 or seeds["seed"].nunique() < 2:
        return ""
    pair, one = pairs_called(seeds), records[0].info.config.get("repeat", run_seeds[0])
    return f"This table, the cards above, and all figures but those over {pair}s are of {pair} {one} alone."


def _about(records: Sequence[RunRecord], pairs: Sequence[tuple[RunRecord, RunRecord]]) -> bool:
    """Return whether a report is about a run and its simulation, and nothing else."""
    return len(pairs) == 1 and {id(record) for record in records} == {id(record) for record in pairs[0]}


def _first_cards(records: Sequence[RunRecord], pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[page.Card]:
    """Return the cards; of a run and its simulation alone, which of the two is best says nothing."""
    usual = _cards(records)
    return [*fidelity.cards(*pairs[0]), usual[0]] if _about(records, pairs) else usual


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
        gain = f", {best / worst:.0%} of {known.idxmax()}" if len(known) > 1 and worst > best else ""
        cards.append(page.Card(what, human_s(best), f"{known.idxmin()}{gain}"))
    return cards


def _unfinished(table: pd.DataFrame) -> str:
    most = int((table["n_trace"] - table["n_done"]).max())
    return f"up to {most:,} unfinished" if most else "all completed in every run"


def _sections(records: Sequence[RunRecord]) -> list[page.Section]:
    by_name = dict(zip(labels(records), records, strict=True))
    whole = {name: record for name, record in by_name.items() if record.complete} or by_name
    left_out = [name for name in by_name if name not in whole]
    cut = f"Not in this figure because not all of its jobs completed: {', '.join(left_out)}." if left_out else ""
    tables = {name: record.table for name, record in whole.items()}
    steps = {name: utilisation(r.events, r.jobs, r.cluster) for name, r in by_name.items()}
    times = [plot_jct_bars(run_table(records)), plot_jct_cdf(jct_cdf(tables), limit=MOST_MARKS)]
    sections = [
        page.Section("Completion times", times, cut.replace("this figure", "the second figure")),
        page.Section("The cluster over time", [plot_utilisation(steps)], _without_gpus(records[0])),
        *_types(whole, cut=cut),
        *_parts(by_name),
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
    if all(len(record.cluster.device_types) < 2 for record in by_name.values()):
        return []
    table = gpu_hours(by_name)
    return [page.Section("Device types", [plot_gpu_hours(table)], cut)] if table["gpu_h"].any() else []


def _parts(by_name: Mapping[str, RunRecord]) -> list[page.Section]:
    """Return a section on GPUs one by one where tasks take parts of them: allocation, fragments and a lane for each."""
    with_parts = {name: record for name, record in by_name.items() if n_devices(record.jobs, record.cluster)}
    if not with_parts:
        return []
    name, first = next(iter(with_parts.items()))
    figures = [
        plot_allocation(with_parts),
        plot_gpu_lanes(gpu_lanes(first), heading=f"Who has which part: {name}"),
        plot_heat_map(gpu_heat_map(first), heading=f"{name}: how full each GPU is", of="GPU"),
    ]
    return [page.Section("Parts of GPUs", figures, "")]


def _costs(by_name: Mapping[str, RunRecord]) -> list[page.Section]:
    """Return a section on dollars and deadlines where a scheduler is about cost, and jobs have SLOs."""
    records = list(by_name.values())
    prices = next((known for known in map(prices_of, records) if known), {})
    if len(records) < 2 or any(set(record.cluster.device_types) - set(prices) for record in records):
        return []
    table = cost_table(by_name, prices=prices)
    if table["violations"].isna().any():
        return []
    return [page.Section("Cost and deadlines", [plot_cost(table)])]


def _without_gpus(record: RunRecord) -> str:
    """Return the note on jobs that are not in a figure of GPUs."""
    n = int(np.count_nonzero(record.jobs.gpus == 0))
    return f"{n} of {len(record.jobs):,} jobs ask for no GPU; what they hold is not in this figure." if n else ""


def _fidelity(pairs: Sequence[tuple[RunRecord, RunRecord]], *, last: bool, lead: str) -> list[page.Section]:
    """Return a section for each real run with its simulation beside it."""
    usual = "Jobs that really trained, and their simulation" if last else "Fidelity"
    sections = []
    for real, predicted in pairs:
        heading = f"{usual}: {real.info.scheduler}" if len(pairs) > 1 else usual
        section = fidelity.section(real, predicted, heading=heading)
        sections.append(replace(section, last=last, lead=lead, cards=fidelity.cards(real, predicted) if last else ()))
    return sections


def _run(name: str, record: RunRecord, *, limit: int, ends: dict[str, float]) -> page.Section:
    events, jobs, cluster = record.events, record.jobs, record.cluster
    heading = f"{name}: who ran when"
    bars = gantt(events, jobs, cluster)
    when = plot_gantt(
        bars, record.table, heading=heading, limit=limit, until_s=ends["until_s"], most_gpus=ends["most_gpus"]
    )
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
    options = [
        f"{key}={_in_words(value)}" for key, value in option.items() if key != "kind" and value not in ({}, None)
    ]
    return f"{option.get('kind', '')}({', '.join(options)})"


def _options(info: RunInfo) -> set[str]:
    """Return the options of a run, in words; the bound is no option, and stands below the table."""
    return {
        f"{key}: {_in_words(value)}" for key, value in info.config.items() if key not in (BOUND, BOUND_ALONE, FASTER)
    }


def _provenance(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return provenance rows: values that all runs share on one line, those that differ as a list."""

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


COLUMNS: Final[tuple[tuple[str, str, bool | None], ...]] = (
    ("mean_jct_s", "Mean JCT", False),
    ("median_jct_s", "Median JCT", False),
    ("p95_jct_s", "p95 JCT", False),
    ("makespan_s", "Makespan", False),
    ("mean_queueing_s", "Queueing", False),
    ("utilisation", "GPUs held", None),
    ("dollars", "Cost ($)", False),
    ("in_time", "SLOs met", True),
    ("mean_stretch", "Stretch", False),
    ("mean_rho", "Mean ρ", False),
    ("max_rho", "Worst ρ", False),
    ("n_preemptions", "Preemptions", None),
    ("n_forwarded", "Forwarded", None),
    ("n_missing", "Unfinished", None),
)
"""Column of `run_table`, heading, and whether a higher number is better (None: neither)."""

OPTIONAL: Final = ("dollars", "in_time", "n_forwarded", "n_missing")
"""Left out where no run has a number for it, where no job was forwarded, or where all were done."""

OF_ALL_JOBS: Final = (
    "mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "mean_queueing_s", "dollars", "mean_stretch", "mean_rho",
    "max_rho",
)  # fmt: skip
"""Means nothing beside other runs unless all jobs are done."""


def runs_table(records: Sequence[RunRecord], *, lead: str = "") -> page.PageTable:
    """Return a row per run, with a note in front; what a run that was cut short did is not compared with others."""
    numbers = run_table(records)
    numbers["n_missing"] = numbers["n_trace"] - numbers["n_done"]
    cut = numbers["n_missing"] > 0
    numbers.loc[cut, list(OF_ALL_JOBS)] = np.nan
    if not numbers["n_forwarded"].any():
        numbers["n_forwarded"] = np.nan
    if not cut.any():
        numbers["n_missing"] = np.nan
    columns = [each for each in COLUMNS if each[0] not in OPTIONAL or numbers[each[0]].notna().any()]
    units = {name: _unit(name, numbers[name]) for name, _, _ in columns}
    best = {name: _best(numbers[name], higher=higher) for name, _, higher in columns}
    rows = []
    for _, row in numbers.iterrows():
        values = {name: float(row[name]) for name in units}
        cells = [_cell(values[name], name, scale=units[name][0], best=best[name]) for name in units]
        rows.append((str(row["label"]), cells))
    headings = [f"{heading}{units[name][1]}" for name, heading, _ in columns]
    table_notes = [*filter(None, [lead]), *_table_notes(records, cut=bool(cut.any()), priced="dollars" in units)]
    return page.PageTable(headings, rows, pale=cut.tolist(), notes=table_notes)


def _table_notes(records: Sequence[RunRecord], *, cut: bool, priced: bool) -> list[str]:
    sentences = ["GPUs held: average share of all GPUs allocated to jobs. This is a cost; higher is not better."]
    if cut:
        sentences.append(
            "Grey: not every job of the trace was done. Means over the jobs that were would flatter such a run, so "
            "they are left out."
        )
    prices = {
        kind: price
        for record in records
        for kind, price in prices_of(record).items()
        if kind in record.cluster.device_types
    }
    if prices and priced:
        at = ", ".join(f"{kind} {price:g} $" for kind, price in prices.items())
        sentences.append(f"Cost: of the GPUs that jobs held, at {at} per GPU and hour.")
    return [*sentences, *_bounds(records), *notes(records)]


def _bounds(records: Sequence[RunRecord]) -> list[str]:
    bounds = [bound_jct_s(record) for record in records]
    if np.isnan(bounds).all():
        return []
    value = " to ".join(dict.fromkeys((human_s(np.nanmin(bounds)), human_s(np.nanmax(bounds)))))
    sentence = reported_bound(
        f"a mean JCT of {value}", faster=any(record.info.config.get(FASTER) for record in records)
    )
    return [f"{sentence[0].upper()}{sentence[1:]}."]


def _unit(name: str, column: pd.Series[Any]) -> tuple[float, str]:
    """Return a column's divisor and its unit for the heading."""
    if not name.endswith("_s") or column.dropna().empty:
        return 1.0, ""
    scale_s, unit = time_unit(float(column.median()))
    return scale_s, f" ({unit})"


def _best(column: pd.Series[Any], *, higher: bool | None) -> float:
    """Return the value to mark, NaN (equal to nothing) where there is nothing to win."""
    known = column.dropna().astype(float)
    if higher is None or known.nunique() < 2:
        return np.nan
    return float(known.max() if higher else known.min())


def _cell(value: float, name: str, *, scale: float, best: float) -> page.TableCell:
    return page.TableCell(_number(value / scale, name), value == best, value / scale)


def _number(value: float, name: str) -> str:
    if np.isnan(value):
        return "–"
    if name.startswith("n_"):
        return f"{value:,.0f}"
    return f"{value:.1%}" if name in ("utilisation", "in_time") else f"{value:,.2f}"


NOTE = (
    "Intervals (95%, Student's t) are over {pair}s. Schedulers see the same traces, so they are compared {pair} by "
    "{pair}; an interval of the difference that leaves out 0 is a difference that these {pair}s show."
)

OF_RUN: Final = ("cadence", "overheads", "variation", "faults", "interference", "speeds")
"""What the configuration of a run tells that is not its scheduler's."""


def seeds_table(records: Sequence[RunRecord]) -> pd.DataFrame | None:
    """Return runs as a sweep's table where they are the same schedulers on several seeds of one setting; else None."""
    infos = [record.info for record in records]
    cells = {(info.scheduler, info.seed) for info in infos}
    schedulers, seeds = ({cell[i] for cell in cells} for i in (0, 1))
    is_whole = len(cells) == len(records) == len(schedulers) * len(seeds) and all(run.complete for run in records)
    if len(seeds) < 2 or len(set(map(_setting, infos))) > 1 or not is_whole:
        return None
    order = list(dict.fromkeys(info.scheduler for info in infos))
    axes: dict[str, Sequence[Any]] = {"trace": [without_seed(infos[0].trace)], "cluster": [infos[0].cluster]}
    axes |= {"scheduler": order, "seed": sorted(seeds)}
    rows = [
        {
            "keys": {"trace": axes["trace"][0], "cluster": info.cluster, "scheduler": info.scheduler,
                     "seed": info.seed},
            "error": "", "run": "", "metrics": record.summary, **_bound(record),
        }
        for info, record in zip(infos, records, strict=True)
    ]  # fmt: skip
    windows = infos[0].config.get("scenario", {}).get("windows")
    table = cell_table(rows, axes=axes)
    table.attrs |= {} if windows is None else {"pairs": "window"}
    return table


def _setting(info: RunInfo) -> str:
    """Return the settings that runs share whose seeds are compared, as text."""
    parts = [without_seed(info.trace), info.cluster, info.backend, *(info.config.get(name) for name in OF_RUN)]
    return json.dumps(parts, sort_keys=True, default=str)


def _bound(record: RunRecord) -> dict[str, Any]:
    return {"bound_jct_s": record.info.config.get("bound_jct_s"), "wall_s": record.info.wall_s}


def seeds_section(table: pd.DataFrame, *, base: str | None = None, metric: str = "mean_jct_s") -> page.Section:
    """Return the section on what runs of several seeds come to."""
    names = list(dict.fromkeys(table["scheduler"]))
    base = names[0] if base is None else base
    compared = comparison(table, metric=metric, base=base)
    compared = compared[compared["scheduler"] != BOUND_LABEL]
    scale, unit = time_unit(float(compared["mean"].median()))
    pair = pairs_called(table)
    headings = [
        f"{pair.capitalize()}s", "Failed", f"Mean JCT ({unit})", "95% CI", f"Against {base}", "95% CI",
        "Lower on",
    ]  # fmt: skip
    rows = [(str(row["scheduler"]), _cells(row, scale)) for row in compared.to_dict("records")]
    shown = page.PageTable(headings, rows, name="seeds")
    figures = [plot_sweep(table, metric=metric, base=base)]
    n = table["seed"].nunique()
    if same := same_on_all(table):
        return page.Section(f"Over {n} {pair}s", [], same, table=shown)
    return page.Section(f"Over {n} {pair}s", figures, NOTE.format(pair=pair), table=shown)


def _cells(row: dict[Any, Any], scale: float) -> list[page.TableCell]:
    def span(low: float, high: float, form: str) -> str:
        return "–" if np.isnan(low) else f"{format(low, form)} to {format(high, form)}"

    is_base = np.isnan(row["relative"])
    apart = "–" if is_base else f"{row['relative']:+.1%}"
    lower = "–" if np.isnan(row["n_pairs"]) else f"{row['n_lower']:.0f} of {row['n_pairs']:.0f}"
    return [
        page.TableCell(str(row["n"]), value=row["n"]),
        page.TableCell(str(row["n_failed"] or "–"), value=row["n_failed"]),
        page.TableCell(f"{row['mean'] / scale:,.4g}", value=row["mean"] / scale),
        page.TableCell(span(row["low"] / scale, row["high"] / scale, ",.4g"), value=row["low"] / scale),
        page.TableCell(apart, value=row["relative"]),
        page.TableCell(span(row["relative_low"], row["relative_high"], "+.1%"), value=row["relative_low"]),
        page.TableCell(lower, value=row["n_lower"]),
    ]


MOST_ROWS: Final = 60_000
"""Rows of a page at most; it stays small enough to send around."""

DIGITS: Final = 3
"""Behind the point; times are told to a millisecond."""

_SHELL: Final = (
    '<div id="jobs"><div class="tools"></div><div class="wide" tabindex="0" role="region" aria-label="Jobs">'
    "<table><thead><tr></tr></thead><tbody></tbody></table></div>"
    '<p class="note told">The table needs the page\'s script.</p>'
    '<script type="text/plain">{packed}</script></div>'
)


def jobs_section(by_name: Mapping[str, RunRecord]) -> Section:
    """Return the section with a row per job; of many runs or jobs, only of as many whole runs as there is room for."""
    shown: dict[str, RunRecord] = {}
    n_rows = 0
    for name, record in by_name.items():
        n_rows += len(record.table)
        if not shown or n_rows <= MOST_ROWS:
            shown[name] = record
    packed = b64encode(gzip.compress(jobs_csv(shown).encode(), mtime=0)).decode()
    left_out = [name for name in by_name if name not in shown]
    note = f"For lack of room without the jobs of {', '.join(left_out)}." if left_out else ""
    lead = "Click a heading to sort. The CSV has a row for each job and run; times are in seconds."
    return Section("Jobs", [], note, lead=lead, html=_SHELL.format(packed=packed))


def jobs_csv(by_name: Mapping[str, RunRecord]) -> str:
    """Return the job tables of runs as one CSV: run, the columns of `job_table`, late_by_s where jobs have an SLO."""
    parts = []
    for name, record in by_name.items():
        late_s = late_by_s(record)[record.table["job"].to_numpy()]
        late = {} if np.isnan(late_s).all() else {"late_by_s": late_s}
        table = record.table.assign(**late)
        table.insert(0, "run", name)
        parts.append(table)
    return pd.concat(parts).round(DIGITS).round({"gpu_s": 1}).to_csv(index=False, float_format="%.12g")
