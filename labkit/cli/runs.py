"""`labkit runs`: what is in runs/: list, filter, compare, remove."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli.attach import Runs
from labkit.system.printing import printable

if TYPE_CHECKING:
    from labkit.results.store import CatalogEntry

app = typer.Typer(help="List, compare and remove the runs that were kept.", invoke_without_command=True)

Names = Annotated[
    list[str] | None, typer.Argument(help="Ids of runs. Default: all that the filters select.", metavar="RUN")
]
Scheduler = Annotated[str | None, typer.Option(help="Only runs whose scheduler's name contains this.")]
Trace = Annotated[str | None, typer.Option(help="Only runs whose trace's name contains this.")]
State = Annotated[str | None, typer.Option(help="Only runs in this state: running, done, stopped or failed.")]


def report(
    names: Annotated[list[str], typer.Argument(help="Folders of runs, or their ids under --runs.", metavar="RUN...")],
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("reports/report.html"),
) -> None:
    """Write a self-contained HTML report about some runs."""
    from labkit.plots.report import write_report
    from labkit.results.store import load

    records = [load(name, runs=runs) for name in names]
    print(write_report(records, out, title=", ".join(names), command=shlex.join(["labkit", *sys.argv[1:]])).resolve())


@app.callback()
def runs(context: typer.Context) -> None:
    """List the runs in runs/ (`labkit runs`), compare some in a report, or remove them."""
    if context.invoked_subcommand is None:
        show()


@app.command("list")
def show(
    scheduler: Scheduler = None,
    trace: Trace = None,
    state: State = None,
    runs: Runs = Path("runs"),
    most: Annotated[int, typer.Option(help="Number of runs to list, newest first.", min=1)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run, one per line.")] = False,
) -> None:
    """List runs, newest first."""
    from labkit.results.store import catalog, chosen, mean_jct

    found = chosen(catalog(runs), scheduler=scheduler, trace=trace, state=state)
    rows = [(each, *mean_jct(each, root=runs)) for each in found[:most]]
    if as_json:
        for row in rows:
            print(json.dumps(_as_json(*row)))
        return
    told = _queues(runs)
    if not rows and not told:
        print(f"no such run in {runs}; begin one with 'labkit compare ... --runs {runs}' or 'labkit deploy'")
        return
    if rows:
        _print(rows)
    if len(found) > most:
        print(f"and {len(found) - most} older ones: --most {len(found)}")
    for line in told:
        print(line)


def _queues(runs: Path) -> list[str]:
    """Return a line for each queue of runs on machines."""
    from labkit.core.errors import InputError
    from labkit.results.queue import RunQueue, queue_names, status_of_queue

    lines = []
    for name in queue_names(runs):
        try:
            said = status_of_queue(RunQueue.read(runs / name), runs / name)
        except InputError as error:
            said = " ".join(str(error).split())
        lines.append(f"queue {name}: {said}; its runs: labkit runs list --runs {runs / name}")
    return lines


def _as_json(each: CatalogEntry, n_done: int, n_jobs: int, mean_jct_s: float) -> dict[str, Any]:
    info = each.info
    named = ("scheduler", "trace", "cluster", "seed", "backend", "state", "started")
    told = {name: None if info is None else getattr(info, name) for name in named}
    mean = None if mean_jct_s != mean_jct_s else mean_jct_s
    return {"run": each.run, **told, "n_done": n_done, "n_jobs": n_jobs, "mean_jct_s": mean, "error": each.why}


def _print(rows: list[tuple[CatalogEntry, int, int, float]]) -> None:
    from labkit.cli.tables import new_table, numbers, show, words
    from labkit.core.text import human_s

    table = new_table()
    words(table, "run", "scheduler", "trace")
    numbers(table, "seed", "state", "started", "jobs done", "mean JCT")
    for each, n_done, n_jobs, mean_s in rows:
        if each.info is None:
            table.add_row(each.run, "cannot be read", "", "", "", "", "", "")
            continue
        info = each.info
        state = info.state if info.backend == "simulator" else f"{info.state} ({info.backend})"
        done = f"{n_done:,} of {n_jobs:,}"
        table.add_row(
            each.run, info.scheduler, info.trace, str(info.seed), state, info.started[:16].replace("T", " "), done,
            human_s(mean_s),
        )  # fmt: skip
    show(table)
    for each, *_ in rows:
        if each.why:
            print(printable(f"note: {each.why}"))


@app.command()
def compare(
    names: Names = None,
    scheduler: Scheduler = None,
    trace: Trace = None,
    state: State = "done",
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("reports/runs.html"),
    show_it: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open it in the browser. Default: only from a terminal.")
    ] = None,
) -> None:
    """Write a report that compares several runs, and open it in the browser."""
    from labkit.core.errors import InputError
    from labkit.plots.report import write_report
    from labkit.results.store import catalog, chosen, load

    only = None if names else state
    found = chosen(catalog(runs), names=names or (), scheduler=scheduler, trace=trace, state=only)
    if not found:
        raise InputError(f"no such run in {runs}; 'labkit runs' lists what is there.")
    records = [load(runs / each.run) for each in found]
    command = " ".join(["labkit", "report", *(each.run for each in found), "--runs", str(runs), "--out", str(out)])
    about = ", ".join(dict.fromkeys(record.info.trace or record.jobs.name for record in records))
    written = write_report(records, out, title=f"{len(records)} runs of {about}", command=command)
    print(written.resolve())
    if sys.stdout.isatty() if show_it is None else show_it:
        typer.launch(str(written.resolve()))


@app.command()
def remove(
    names: Names = None,
    scheduler: Scheduler = None,
    trace: Trace = None,
    state: State = None,
    runs: Runs = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete runs, or queues with all their runs. Asks first, and deletes nothing else."""
    from labkit.core.errors import InputError
    from labkit.results.queue import queue_names
    from labkit.results.store import catalog, chosen, refuse_unremovable, size_of
    from labkit.results.store import remove as remove_all

    if not names and scheduler is trace is state is None:
        raise InputError("which runs? Name them, or give --scheduler, --trace or --state.")
    there = queue_names(runs)
    queues = [name for name in dict.fromkeys(names or ()) if name in there]
    if queues and not (scheduler is trace is state is None):
        raise InputError(f"'{queues[0]}' is a queue; --scheduler, --trace and --state are for runs. Leave them out.")
    singles = [name for name in names or () if name not in queues]
    found = chosen(catalog(runs), names=singles, scheduler=scheduler, trace=trace, state=state)
    picked = queues + [each.run for each in found if singles or not queues]
    if not picked:
        print(f"no such run in {runs}; nothing was removed")
        return
    refuse_unremovable(picked, root=runs)
    size_mb = sum(size_of(run, root=runs) for run in picked) / 1e6
    counted = f"{len(picked)} runs" if not queues else f"{len(queues)} queues with all their runs"
    if queues and singles:
        counted += f" and {len(picked) - len(queues)} runs"
    told = f"{counted} ({size_mb:,.1f} MB) in {runs}: {', '.join(picked[:8])}{', ...' * (len(picked) > 8)}"
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"would remove {told}; say so with --yes.")
        typer.confirm(f"Remove {told}?", abort=True)
    remove_all(picked, root=runs)
    print(f"removed {told}")
