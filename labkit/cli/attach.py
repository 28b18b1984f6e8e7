"""`labkit attach`: resume a run on a testbed, from the shell; and what `labkit deploy` has in common with it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.system.printing import printable

if TYPE_CHECKING:
    from labkit.core.consent import Outside
    from labkit.results.record import RunRecord
    from labkit.testbed.run.retries import Retries

MOST_NAMED = 3
"""Jobs that were given up, of which the last line says why."""
KEYS = (
    "mean_jct_s",
    "makespan_s",
    "n_jobs",
    "n_unfinished",
    "n_rescales",
    "n_preemptions",
    "n_failures",
    "utilisation",
)
Inventory = Annotated[
    Path | None,
    typer.Option(
        help="Inventory of the hosts. Default: testbed/hosts.toml, or the running laptop testbed.",
        metavar="FILE",
    ),
]
Runs = Annotated[Path, typer.Option(help="Folder in which each run gets a folder of its own.", metavar="FOLDER")]
Profile = Annotated[
    Path | None,
    typer.Option(help="Profile of this testbed (`labkit profile`): gives the scheduler speeds.", metavar="FILE"),
]
Interference = Annotated[
    str,
    typer.Option(
        help="How co-located jobs slow each other: none, mild, calibrated, or a FILE of measurements: a profile of "
        "`labkit profile`, or a table."
    ),
]
Lease = Annotated[
    float | None,
    typer.Option(
        help="Seconds that hosts keep the run alive without a heartbeat. Default: 600; on `attach`, as before.",
        min=5.0,
    ),
]
Failures = Annotated[
    int | None, typer.Option(help="Consecutive failures after which a job is given up. Default: 5.", min=1)
]
Spread = Annotated[
    float | None,
    typer.Option(help="Minimum seconds between the first and the last of these failures. Default: 60.", min=0),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


Trust = Annotated[
    bool, typer.Option("--trust", help="Allow files, modules and inventories outside labkit that the record names.")
]


def trust_of(trust: bool) -> bool | Callable[[Outside], bool]:
    """Return whether to use what a record names outside labkit; a question for each of them where a person can answer.

    Looking at a terminal is no answer: what would run is shown first, with its digest.
    """
    if trust or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return trust
    return lambda thing: typer.confirm(f"The record names the {thing}. It would run here. Use it?", err=True)


def attach(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under --runs.", metavar="RUN")],
    runs: Runs = Path("runs"),
    scheduler: Annotated[str | None, typer.Option(help="Scheduler to use from now on. Default: the run's own.")] = None,
    profile: Profile = None,
    interference: Interference = "none",
    lease: Lease = None,
    failures: Failures = None,
    spread: Spread = None,
    trust: Trust = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the run over from a process that controls a copy of its folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Resume a testbed run that was interrupted, stopped or failed, from its jobs' state or newest checkpoint."""
    from labkit.experiment.deployed import attach as go_on

    record = go_on(
        run, runs=runs, progress=not as_json, profile=profile, interference=interference, lease_s=lease,
        scheduler=scheduler,
        retries=retries_of(failures, spread), trust=trust_of(trust), take_over=take_over,
    )  # fmt: skip
    tell(record, runs=runs, as_json=as_json)
    raise typer.Exit(1 if record.summary["n_unfinished"] else 0)


def tell_watch(folder: Path) -> None:
    """Print on stderr how to watch a run that begins."""
    where = "" if folder.parent == Path("runs") else f" --runs {shlex.quote(str(folder.parent))}"
    print(f"watch it: labkit watch {folder.name}{where}", file=sys.stderr, flush=True)


def tell(record: RunRecord, *, runs: Path, as_json: bool) -> None:
    """Print what a run has come to."""
    from labkit.experiment.rules import UNWARNED

    told = {key: record.summary[key] for key in KEYS}
    if as_json:
        clean = {key: None if value != value else value for key, value in told.items()}
        run = {"run": record.info.run, "scheduler": record.info.scheduler}
        rest = {"speeds": record.info.config.get("speeds", "")}
        rest |= {"notes": [*record.info.config.get("notes", []), *_run_notes(record)]}
        print(json.dumps({**run, **clean, **rest, "dropped": dict(record.info.dropped)}))
        return
    if speeds := record.info.config.get("speeds"):
        print(f"speeds{' told to the scheduler' if record.info.backend == 'testbed' else ''}: {speeds}")
    for note in record.info.config.get("notes", ()):
        if record.info.backend == "testbed" or note.startswith(UNWARNED):  # a simulation has warned of the others
            print(printable(f"note: {note}"))
    for note in _run_notes(record):
        print(printable(f"note: {note}"))
    if record.info.state == "stopped" and (limit_s := record.info.config.get("time_limit_s")):
        print(f"note: ended at its time limit of {limit_s:g} s; labkit attach {record.info.run} continues without one")
    n_rescales, n_preemptions = told["n_rescales"], told["n_preemptions"]
    print(
        f"{record.info.scheduler}: {told['n_jobs'] - told['n_unfinished']} of {told['n_jobs']} jobs done, mean JCT "
        f"{told['mean_jct_s']:.1f} s, makespan {told['makespan_s']:.1f} s, {n_rescales} hot "
        f"scaling{'s' * (n_rescales != 1)}, {n_preemptions} preemption{'s' * (n_preemptions != 1)}; the run is in "
        f"{runs / record.info.run}{_dropped_jobs(record)}"
    )


def _run_notes(record: RunRecord) -> list[str]:
    """Return that a fallback decided in the place of the scheduler, if one did, and what reservations did."""
    from labkit.results.notes import fallback_of, fallbacks, reserved

    name = record.info.scheduler
    return [*fallbacks(record.events, name=name, fallback=fallback_of(record)), *reserved(record, name=name)]


def _dropped_jobs(record: RunRecord) -> str:
    """Return which jobs were given up and why, for the end of a line."""
    dropped = record.info.dropped
    if not dropped:
        return ""
    told = "; ".join(f"job {job}: {' '.join(why.split())[:300]}" for job, why in list(dropped.items())[:MOST_NAMED])
    more = f"; and {len(dropped) - MOST_NAMED} more, in notes.txt there" if len(dropped) > MOST_NAMED else ""
    return f"; given up: {len(dropped)} ({told}{more})"


def retries_of(failures: int | None, spread_s: float | None) -> Retries:
    """Return how patient a run is; what is not given is as usual."""
    from labkit.testbed.run.retries import Retries

    given = {"failures": failures, "spread_s": spread_s}
    return Retries(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
