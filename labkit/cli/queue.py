"""What the command line shows of queues of runs on machines: the plan, each run as it ends, the comparison."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.below import Below, read_plain, refuse_foreign
from labkit.core.errors import InputError
from labkit.core.text import human_s
from labkit.results.files import writer_of
from labkit.results.queue import OVER, QueuedRun, QueueState, RunQueue, describe_state, status_of_queue
from labkit.system.printing import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from labkit.core.jobs import Jobs
    from labkit.results.record import RunRecord

LOG: Final = "log.txt"
REPORT: Final = "report.html"
BEGIN_S: Final = 60.0
"""Seconds in which a detached process must have taken up its queue."""
LOOK_S: Final = 0.1


def print_plan(queue: RunQueue, jobs: Jobs, *, hosts: tuple[str, ...], name: str, runs: Path) -> None:
    """Print what a queue would do: where, in which order, and how long at least and at most."""
    from labkit.cli.tables import new_table, numbers, show, words

    n, last_s = len(queue.runs), float(jobs.arrival_s.max(initial=0.0))
    print(f"{name}: {n} run{'s' * (n > 1)} of {queue.trace} ({len(jobs)} jobs), one after the other")
    print(f"hosts: {', '.join(hosts)} ({queue.inventory})")
    table = new_table()
    numbers(table, "")
    words(table, "scheduler")
    numbers(table, "repeat", "folder")
    for number, each in enumerate(queue.runs, start=1):
        table.add_row(str(number), each.scheduler, str(each.repeat), str(runs / name / each.run))
    show(table)
    most = "without a limit (--time-limit 1h, say)"
    if queue.time_limit_s is not None:
        most = f"at most {human_s(n * queue.time_limit_s)} ({human_s(queue.time_limit_s)} each)"
    print(f"time: at least {human_s(n * last_s)}, until the last job has arrived in each; {most}")


def tell_run(queue: RunQueue) -> Any:
    """Return a function that prints a run of a queue when it is over."""
    place = {(each.scheduler, each.repeat): number for number, each in enumerate(queue.runs, start=1)}

    def report(each: QueuedRun, record: RunRecord | None) -> None:
        where = f"{place[each.scheduler, each.repeat]} of {len(queue.runs)}"
        said = f": {each.why}" if each.why else ""
        if each.state == QueueState.DONE and record is not None:
            said = f": {record.n_done} of {len(record.jobs)} jobs, mean JCT {record.summary['mean_jct_s']:.1f} s"
        print(f"{where}: {each.run} {each.state}{said}", flush=True)

    return report


def print_comparison(queue: RunQueue, folder: Path, *, against: str | None, as_json: bool) -> None:
    """Print what the runs of a queue show together, and write the report; runs that came to nothing are told."""
    from labkit.cli.sweep import tell
    from labkit.results.conclusion import summarize_seeds
    from labkit.results.sweep_folder import queue_records, queue_table

    records = queue_records(queue, folder)
    if records:
        table = queue_table(queue, records)
        base = against or next(name for name in queue.schedulers if name in set(table["scheduler"]))
        tell(table, metric="mean_jct_s", base=base, as_json=as_json)
        if not as_json:
            print("\n".join(summarize_seeds(table)))
            print(f"report: {_report(queue, records, table, folder, base=base)}")
            if queue.runs[0].run in records:
                print(
                    f"note: {queue.runs[0].run} was the first: where hosts had been idle, their start is in its times"
                )
    for each in queue.runs:
        if each.state in OVER and each.state != QueueState.DONE:
            print(printable(f"labkit: {each.run} {each.state}: {each.why}"), file=sys.stderr)
        elif each.resumed and not as_json:
            print(f"note: {each.run} was cut off and gone on with {each.resumed} x: what that cost its jobs is in it.")


def _report(queue: RunQueue, records: dict[str, RunRecord], table: Any, folder: Path, *, base: str) -> Path:
    """Write the report: figures of the first repeat that has most runs, and all repeats in pairs."""
    from labkit.plots.report import write_report

    by_repeat: dict[int, list[RunRecord]] = {}
    for each in queue.runs:
        if each.run in records:
            by_repeat.setdefault(each.repeat, []).append(records[each.run])
    shown = max(by_repeat.values(), key=len)
    several = table["seed"].nunique() > 1 and (table["error"] == "").any()
    return write_report(
        shown, folder / REPORT, title=f"{folder.name}: {queue.trace} on machines", command=queue.command,
        seeds=table if several else None, base=base if several else None,
    ).resolve()  # fmt: skip


def queue_rows(queue: RunQueue, folder: Path) -> Table:
    """Return a row for each run of a queue: how far it is."""
    from labkit.cli.tables import new_table
    from labkit.results import files

    table = new_table()
    for heading, right in (("run", False), ("scheduler", False), ("repeat", True), ("state", False), ("took", True)):
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    table.add_column("why", overflow="fold")
    worked = writer_of(folder) is not None
    for each in queue.runs:
        took = ""
        if (path := folder / each.run / "run.json").is_file() and not path.parent.is_symlink():
            took = human_s(files.read_info(path).wall_s)
        table.add_row(
            each.run, each.scheduler, str(each.repeat), describe_state(each.state, worked=worked), took, each.why
        )
    return table


def queue_shown(folder: Path) -> RenderableType:
    """Return a queue for a terminal."""
    from rich.console import Group
    from rich.text import Text

    queue = RunQueue.read(folder)
    return Group(Text(f"{folder.name}: {status_of_queue(queue, folder)}", style="bold"), queue_rows(queue, folder))


def follow_queue(folder: Path, console: Console) -> None:
    """Show a queue, and the run that it carries out, until no process carries it out."""
    from rich.console import Group
    from rich.live import Live

    from labkit.live.follow import EVERY_S, FollowedRun
    from labkit.live.terminal import shown

    seen: FollowedRun | None = None
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        while writer_of(folder) is not None:
            run = current_run(folder)
            if run is None or seen is None or seen.folder != run:
                seen = None if run is None else FollowedRun(run)
            else:
                seen.update()
            room = max(console.size.height - len(RunQueue.read(folder).runs) - 3, 0)
            parts = [queue_shown(folder)] + ([] if seen is None else ["", shown(seen, height=room)])
            live.update(Group(*parts), refresh=True)
            time.sleep(EVERY_S)  # as often as a writer writes


def current_run(folder: Path) -> Path | None:
    """Return the folder of the run that a queue carries out now, as soon as there is one."""
    queue = RunQueue.read(folder)
    found = (folder / each.run for each in queue.runs if each.state == QueueState.RUNNING)
    return next((run for run in found if (run / "run.json").is_file() and not run.is_symlink()), None)


def detach(folder: Path, *, again: bool = False, trust: bool = False) -> int:
    """Start a process that works a queue and outlives this one; return its id when it has the queue.

    Raise InputError if it ended, or took too long; the last line of its log.

    Parameters
    ----------
    folder : Path
        Of the queue.
    again : bool
        Run those that failed, too.
    trust : bool
        Use what the queue names outside labkit.
    """
    words = [
        "deploy",
        "--resume",
        folder.name,
        "--runs",
        str(folder.parent.absolute()),
        *(["--again"] * again),
        *(["--trust"] * trust),
    ]
    refuse_foreign(folder)
    with Below(folder) as below, below.append(LOG) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + BEGIN_S
    while time.monotonic() < until:
        by = writer_of(folder)
        if by is not None and by.get("pid") == process.pid:
            return process.pid
        if process.poll() is not None and process.returncode != 0:
            break
        if process.poll() == 0:
            return process.pid
        time.sleep(LOOK_S)  # flock tells no news
    said = read_plain(folder / LOG).decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    raise InputError(f"queue '{folder.name}' was not taken up by the process in the background: {said[0]}")
