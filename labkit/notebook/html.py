"""Small tables for notebooks: a cluster, jobs, a record, a snapshot. Everything is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, GPUS, MEMORY_GB
from labkit.core.snapshot import Snapshot
from labkit.plots.theme import FONT, colour, human_s, time_unit
from labkit.results import RunRecord
from labkit.system.doctor import Check, verdict

MOST_ROWS: Final = 8

_MUTED: Final = "opacity:.72"
_LINE: Final = "rgba(128,136,150,.4)"
"""Colours come from the page: it may be dark."""

_CELL: Final = "padding:3px 14px 3px 0;white-space:nowrap;text-align:"
_RIGHT: Final = "right"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], *, note: str = "") -> str:
    """Return a table in HTML that looks the same everywhere; columns of numbers are aligned to the right.

    >>> "&lt;b&gt;" in table("<b>", ["a"], [[1]])
    True
    """
    body = [[cell if isinstance(cell, str) else f"{cell:,g}" for cell in row] for row in rows]
    sides = [
        "left" if any(not _is_number(row[i]) for row in body) else _RIGHT for i in range(len(head))
    ]  # one word in a column makes it text
    heads = _row("th", head, sides, f"{_MUTED};font-weight:500;border-bottom:1px solid {_LINE};")
    lines = "".join(_row("td", row, sides, "border:0;") for row in body)
    after = f'<div style="{_MUTED};font-size:12px;margin-top:4px">{escape(note)}</div>' if note else ""
    return (
        f'<div style="font-family:{escape(FONT)};font-size:13px;margin:2px 0">'
        f'<div style="font-weight:600;margin-bottom:4px">{escape(title)}</div>'
        f'<table style="border-collapse:collapse;font-size:12px;margin:0">{heads}{lines}</table>{after}</div>'
    )


def _row(tag: str, cells: Sequence[str], sides: Sequence[str], style: str) -> str:
    parts = (
        f'<{tag} style="{style}{_CELL}{side}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(parts)}</tr>"


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in {"–", ""}


def cluster_html(cluster: Cluster) -> str:
    """Return a row per kind of machine."""
    kinds: dict[tuple[Any, ...], int] = {}
    for machine in range(cluster.n_machines):
        groups = np.flatnonzero(cluster.group_machine == machine)
        total = cluster.capacity[groups].sum(axis=0)
        device = cluster.device_types[cluster.group_type[groups[0]]] if len(groups) else "–"
        key = (device, total[GPUS], len(groups), total[CPUS], total[MEMORY_GB])
        kinds[key] = kinds.get(key, 0) + 1
    head = ["machines", "GPU type", "GPUs", "device groups", "cores", "memory (GB)"]
    rows = [[n, *key] for key, n in kinds.items()]
    network = f"network: {cluster.network.kind}, {cluster.network.n_links} links" if cluster.network else "no network"
    return table(str(cluster), head, rows, note=network)


def jobs_html(jobs: Jobs) -> str:
    """Return the first jobs of a trace."""
    shown = [jobs[i] for i in range(min(len(jobs), MOST_ROWS))]
    head = ["job", "model", "arrives", "steps", "workers", "PS", "GPUs", "declared duration"]
    rows = [
        [job.id, job.model, human_s(job.arrival_s), job.total_steps, job.n_workers, job.n_ps,
         float(jobs.gpus[job.number]), human_s(job.duration_s)]
        for job in shown
    ]  # fmt: skip
    span = human_s(float(jobs.arrival_s[-1] - jobs.arrival_s[0]))
    title = f"{jobs.name}: {len(jobs):,} jobs of {len(jobs.models)} models, arriving within {span}"
    return table(title, head, rows, note=_more(len(jobs)))


def snapshot_html(snapshot: Snapshot) -> str:
    """Return the first active jobs of a snapshot."""
    jobs = snapshot.jobs
    head = ["job", "model", "arrived", "left", "workers", "PS", "steps/s"]
    rows = [
        [job.id, job.model, human_s(job.arrival_s), human_s(job.remaining_s), job.n_workers, job.n_ps, job.speed]
        for job in (jobs[j] for j in range(min(len(jobs), MOST_ROWS)))
    ]
    free = float(snapshot.free[:, GPUS].sum())
    title = (
        f"decision {snapshot.number} at {human_s(snapshot.now_s)}: {len(jobs)} jobs, {snapshot.n_running} running, "
        f"{free:g} of {snapshot.cluster.n_gpus} GPUs free"
    )
    return table(title, head, rows, note=_more(len(jobs)))


def record_html(record: RunRecord) -> str:
    """Return a run in one row."""
    info, summary = record.info, record.summary
    head = ["jobs", "mean JCT", "median JCT", "p95 JCT", "makespan", "queueing", "GPUs held"]
    times = [human_s(summary[name]) for name in ("mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s")]
    held = _number(summary["utilisation"], ".0%")
    row = [f"{record.n_done} of {len(record.jobs)}", *times, human_s(summary["mean_queueing_s"]), held]
    of_done = "" if record.complete else "means are over the jobs that were done: not to be compared with whole runs"
    remarks = [f"speeds: {info.config['speeds']}" if info.config.get("speeds") else "", of_done]
    note = "; ".join(filter(None, [*remarks, *info.config.get("notes", ())]))
    return table(f"{info.scheduler} on {info.trace}, {info.cluster} ({info.state})", head, [row], note=note)


def runs_html(records: Sequence[RunRecord]) -> str:
    """Return a row per run, in the order given; one unit in each column, the best mean JCT in bold.

    A run that was stopped has no times: those of the jobs that were quick enough would rank it above complete runs.
    """
    whole = [record for record in records if record.complete]
    units = {name: _unit([record.summary[name] for record in whole]) for name in _TIMES}
    times = [f"{heading} ({units[name][1]})" for name, heading in _TIMES.items()]
    head = ["", "scheduler", "trace", "cluster", "seed", "completed", *times, "GPUs held"]
    heads = "".join(f'<th class="{"left" if name in _WORDS else ""}">{name}</th>' for name in head)
    best = min((record.summary["mean_jct_s"] for record in whole), default=float("nan"))
    rows = "".join(
        _run_row(i + 1, record, best=record.complete and record.summary["mean_jct_s"] == best, units=units)
        for i, record in enumerate(records)
    )
    cut = len(whole) < len(records)
    note = f'<tr><td colspan="{len(head)}" class="left labkit-note">{escape(_CUT)}</td></tr>' if cut else ""
    return f'<table class="labkit-table"><caption>Runs so far</caption><tr>{heads}</tr>{rows}{note}</table>'


_CUT: Final = "grey: not all jobs were done; times of those that were cannot be compared with whole runs"
_WORDS: Final = {"scheduler", "trace", "cluster"}
_TIMES: Final = {"mean_jct_s": "mean JCT", "p95_jct_s": "p95 JCT", "makespan_s": "makespan"}


def _unit(seconds: Sequence[float]) -> tuple[float, str]:
    known = [value for value in seconds if not np.isnan(value)]
    return time_unit(max(known, default=0.0))


def _run_row(number: int, record: RunRecord, *, best: bool, units: Mapping[str, tuple[float, str]]) -> str:
    info, summary = record.info, record.summary
    swatch = f'<i style="background:{colour(info.scheduler)}"></i>'
    words = [f"{swatch}{escape(info.scheduler)}", escape(info.trace), escape(info.cluster)]
    times = [_number(summary[name] / units[name][0], ",.2f") if record.complete else "–" for name in _TIMES]
    completed = f"{record.n_done:,} of {len(record.jobs):,}"
    held = _number(summary["utilisation"], ".0%") if record.complete else "–"
    numbers = [str(info.seed), completed, *times, held]
    cells = [f"<td>{number}</td>", *(f'<td class="left">{word}</td>' for word in words)]
    cells += [f"<td>{text}</td>" for text in numbers]
    kind = "" if record.complete else "unfinished"
    return f'<tr class="{kind}" style="font-weight:{600 if best else 400}">{"".join(cells)}</tr>'


def _number(value: float, how: str) -> str:
    return "–" if np.isnan(value) else format(value, how)


def _more(n: int) -> str:
    return f"the first {MOST_ROWS} of {n:,} jobs" if n > MOST_ROWS else ""


SHOWN: Final = {Cluster: cluster_html, Jobs: jobs_html, RunRecord: record_html, Snapshot: snapshot_html}
"""What `%load_ext labkit.notebook` shows as a table."""


def plain(thing: Any) -> str:
    """Return one line on a cluster, jobs or a record, where HTML cannot be shown."""
    return f"<{thing}>" if isinstance(thing, Cluster) else repr(thing)


def checks_html(checks: Sequence[Check]) -> str:
    """Return the findings of `labkit.system.doctor.checks` as HTML, without places of this machine."""
    rows = [
        [
            "yes" if check.ok else "missing",
            check.name,
            "required" if check.required else "",
            "" if check.ok else check.hint,
        ]
        for check in checks
    ]
    return table("What is here", ["", "what", "", "what for, and how to get it"], rows, note=verdict(checks))
