"""The command line: `labkit demo`, `compare`, `sweep`, `traces`, `clusters`, `report`, `doctor`."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from labkit.cli_sweep import sweep
from labkit.core.errors import LabkitError
from labkit.core.text import split_names
from labkit.elastic.command import train
from labkit.experiment.command import attach, run
from labkit.experiment.fidelity_command import fidelity
from labkit.experiment.profile_command import profile, simulate
from labkit.testbed.bed.command import app as bed_app

if TYPE_CHECKING:
    from labkit.results.record import RunRecord

app = typer.Typer(
    help="A laboratory for deep-learning cluster scheduling.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip
traces_app = typer.Typer(help="Describe, list and download traces of jobs.", no_args_is_help=True)
app.add_typer(traces_app, name="traces")
app.command()(train)
app.command()(sweep)
app.command()(run)
app.command()(attach)
app.command()(fidelity)
app.command()(profile)
app.command()(simulate)
app.add_typer(bed_app, name="bed")

DEMO_SCHEDULERS = "fifo,srtf,las,drf,tetris,optimus"
JSON_KEYS = ("scheduler", "mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "n_jobs", "utilisation", "wall_s")
STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""
COLUMNS = {
    "label": "scheduler",
    "mean_jct_s": "mean JCT",
    "median_jct_s": "median JCT",
    "p95_jct_s": "p95 JCT",
    "makespan_s": "makespan",
    "mean_queueing_s": "queueing",
    "utilisation": "GPUs held",
    "wall_s": "took",
}
Trace = Annotated[Path, typer.Argument(help="A trace in any format that `labkit traces info` reads.", metavar="TRACE")]
Workload = Annotated[
    Path, typer.Argument(help="A trace, or a generator such as 'poisson(80, per_hour=12)'.", metavar="TRACE")
]
Cluster = Annotated[
    str, typer.Option(help="A preset (`labkit clusters`), an expression such as 'fat_tree(4)', or hosts.toml.")
]


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("reports"),
    testbed: Annotated[bool, typer.Option(help="Also train three jobs on a laptop testbed.")] = True,
) -> None:
    """Compare six schedulers on a shipped trace, train three jobs on a laptop testbed, and write a report and a figure.

    The exit code is 1 where the testbed did not work; all the rest is done then all the same.
    """
    from labkit.cli_demo import trained
    from labkit.experiment.demo import CLUSTER, trace
    from labkit.plots.report import write_report

    _make_room(folder / "demo.html", None)
    records = _compare(trace(), cluster=CLUSTER, schedulers=DEMO_SCHEDULERS, report=None, command=[], options={})
    twins = trained() if testbed else None
    command = command_line(["labkit", "demo", "--folder", str(folder), *([] if testbed else ["--no-testbed"])])
    written = write_report(records, folder / "demo.html", title=f"demo on {CLUSTER}", command=command, pair=twins)
    print(f"report: {written.resolve()}")
    print(f"figure: {_save_figure(records, folder / 'demo.svg').resolve()}")
    raise typer.Exit(0 if twins or not testbed else 1)


def _save_figure(records: list[RunRecord], path: Path) -> Path:
    from labkit.plots.jct import plot_jct_cdf
    from labkit.results import jct_cdf, labels

    tables = {label: record.table for label, record in zip(labels(records), records, strict=True)}
    plot_jct_cdf(jct_cdf(tables)).save(path)
    return path


@app.command()
def compare(
    trace: Workload,
    schedulers: Annotated[
        str, typer.Option(help="Names, with options in brackets: fifo,drf(placer=pack)")
    ] = DEMO_SCHEDULERS,
    cluster: Cluster = "gavel-36x3",
    throughputs: Annotated[
        Path | None, typer.Option(help="Measured speeds: Gavel's JSON, or a table by (PS, workers).")
    ] = None,
    speed: Annotated[str, typer.Option(help="auto, gavel, measured, step-time or recorded.")] = "auto",
    load: Annotated[float, typer.Option(help="2: jobs arrive twice as fast.")] = 1.0,
    slot: Annotated[float | None, typer.Option(help="Decide every so many seconds, instead of at every event.")] = None,
    first: Annotated[int | None, typer.Option(help="Only the first so many jobs.", min=1)] = None,
    format: Annotated[
        str | None, typer.Option(help="The trace's format, where it cannot be told from the file.")
    ] = None,
    start: Annotated[float, typer.Option(help="Seconds that a first start takes.")] = 0.0,
    restart: Annotated[float, typer.Option(help="Seconds that a restart from a checkpoint takes.")] = 0.0,
    rescale: Annotated[float, typer.Option(help="Seconds that a change of a running gang takes.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of a generated trace, and of the simulator.", min=0)] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse throughputs that were not measured.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line and scheduler.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Keep the runs, each in a folder of its own, in here.")] = None,
) -> None:
    """Simulate several schedulers on one trace and compare them."""
    import numpy as np

    from labkit.experiment.cadence import every_slot
    from labkit.simulator import Overheads
    from labkit.workloads import scaled
    from labkit.workloads.expressions import trace as jobs_of

    jobs = jobs_of(trace, seed=seed, format=format)
    jobs = jobs if first is None else jobs.take(np.arange(min(first, len(jobs))))
    jobs = scaled(jobs, load=load) if load != 1 else jobs
    options: dict[str, Any] = {"speed": speed, "throughputs": throughputs, "strict": strict, "seed": seed}
    options["overheads"] = Overheads(start_s=start, restart_s=restart, rescale_s=rescale)
    options["cadence"] = None if slot is None else every_slot(slot)
    _compare(
        jobs, cluster=cluster, schedulers=schedulers, report=report, command=sys.argv, options=options,
        as_json=as_json, runs=runs,
    )  # fmt: skip


def _compare(
    jobs: Any,
    *,
    cluster: str,
    schedulers: str,
    report: Path | None,
    command: list[str],
    options: dict[str, Any],
    as_json: bool = False,
    runs: Path | None = None,
) -> list[RunRecord]:
    from labkit.experiment import compare as run_all
    from labkit.results import notes

    def tell(record: RunRecord) -> None:
        if as_json:
            told = {"scheduler": record.info.scheduler, "wall_s": record.info.wall_s, **record.summary}
            print(json.dumps({key: _number(told[key]) for key in JSON_KEYS}), flush=True)

    names = split_names(schedulers)
    _make_room(report, runs)
    records = run_all(
        jobs, cluster=cluster, schedulers=names, folder=runs, progress=not as_json and sys.stderr.isatty(),
        after_each=tell, **options,
    )  # fmt: skip
    if not as_json:
        print(f"{len(jobs)} jobs of {jobs.name} on {records[0].cluster}")
        _print_table(records)
        for note in notes(records):
            print(f"note: {note}")
    if report is not None:
        from labkit.plots.report import write_report

        written = write_report(records, report, title=f"{jobs.name} on {cluster}", command=command_line(command))
        if not as_json:
            print(f"report: {written.resolve()}")
    return records


def _make_room(report: Path | None, runs: Path | None) -> None:
    """Make the folders, and refuse what cannot be written: rather now than after an hour of simulating."""
    if report is not None:
        from labkit.plots.report import refuse_odd

        refuse_odd(report)
    for folder in (runs, report and report.parent):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)


def command_line(words: list[str]) -> str:
    """Return what was typed, with the program's bare name."""
    import shlex

    return shlex.join(["labkit", *words[1:]])


def _number(value: Any) -> Any:
    """Return a number as JSON can hold it: NaN becomes null."""
    return None if isinstance(value, float) and value != value else value


def _print_table(records: list[RunRecord]) -> None:
    from rich.console import Console
    from rich.table import Table

    from labkit.plots.theme import time_unit
    from labkit.results.metrics import compare as as_table

    frame = as_table(records)
    table = Table(box=None, header_style="bold")
    cells = []
    for column, heading in COLUMNS.items():
        shown = [str(value) for value in frame[column]]
        if column == "utilisation":
            shown = [f"{value:.0%}" for value in frame[column]]
        elif column != "label":
            scale, unit = time_unit(float(frame[column].median()))
            heading, shown = f"{heading}\n({unit})", [f"{value / scale:,.2f}" for value in frame[column]]
        table.add_column(heading, justify="left" if column == "label" else "right", no_wrap=True)
        cells.append(shown)
    best = frame["mean_jct_s"].idxmin()
    for i, row in enumerate(zip(*cells, strict=True)):
        table.add_row(*row, style="bold" if i == best else None)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, or their ids under --root.", metavar="RUN...")],
    root: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("reports/report.html"),
) -> None:
    """Write one HTML file about some runs; it needs no network."""
    from labkit.plots.report import write_report
    from labkit.results.store import load

    records = [load(run, root=root) for run in runs]
    print(write_report(records, out, title=", ".join(runs), command=command_line(sys.argv)).resolve())


@app.command()
def schedulers() -> None:
    """List the schedulers, with their options."""
    from labkit import schedulers as folder

    rounds = ""
    for name in folder.available():
        made = folder.make(name)
        policy = getattr(made, "policy", None)
        what, options = _told(made if policy is None else policy)
        if policy is not None:
            rounds = _told(made)[1].replace(f"policy={policy!r}, ", "")
            what += ", knowing no speeds" * name.endswith("_agnostic")
            options = re.sub(r"aware=\w+(, )?", "", options)
        print(f"{name}\n    {what}.\n    options: {options or 'none'}")
    print(f"\nAll gavel_ names take these options too:\n    {rounds}")


def _told(part: object) -> tuple[str, str]:
    """Return what a scheduler or its policy does, and its options."""
    what = (type(part).__doc__ or "").strip().splitlines()[0].removesuffix(" [1]_.").removesuffix(".")
    return what, str(part).partition("(")[2].removesuffix(")")


@app.command()
def clusters() -> None:
    """List the clusters that have a name."""
    from labkit.topology import available

    for name, what in available().items():
        print(f"{name:22} {what}")


@traces_app.command("info")
def traces_info(file: Trace, format: Annotated[str | None, typer.Option(help="The trace's format.")] = None) -> None:
    """Describe a trace: jobs, time span, sizes, durations."""
    from labkit.workloads import info

    print(info(file, format=format))


@traces_app.command("fetch")
def traces_fetch(
    name: Annotated[str, typer.Argument(help="A name that `labkit traces list` shows.")],
    checksum: Annotated[str | None, typer.Option(help="SHA-256 that the file must have.")] = None,
) -> None:
    """Download a public trace, check it, and print where it is."""
    from labkit.workloads.fetch import fetch

    print(fetch(name, checksum=checksum))


@traces_app.command("list")
def traces_list() -> None:
    """List the public traces that can be downloaded."""
    from labkit.workloads.fetch import PUBLIC

    for name, trace in PUBLIC.items():
        print(f"{name:22} {trace}")


@app.command()
def doctor(
    hosts: Annotated[bool, typer.Option("--hosts", help="Examine the hosts of a testbed instead.")] = False,
    inventory: Annotated[
        str | None, typer.Argument(help="With --hosts: the file that describes them; else the usual one.")
    ] = None,
    torch: Annotated[bool, typer.Option(help="With --hosts: import torch there too, which takes seconds.")] = True,
) -> None:
    """Tell what is missing on this machine, or on the hosts of a testbed, and how to get it."""
    if hosts:
        from labkit.testbed.doctor import examine
        from labkit.testbed.fleet import Fleet
        from labkit.testbed.inventory import Inventory
        from labkit.testbed.shown import show_examined

        with Fleet(Inventory.read(inventory)) as fleet:
            raise typer.Exit(0 if show_examined(examine(fleet, torch=torch)) else 1)
    if inventory is not None:
        raise typer.BadParameter(f"{inventory} goes with --hosts: labkit doctor --hosts {inventory}")
    from labkit import doctor as checkup

    raise typer.Exit(checkup.main())


def main() -> None:
    """Run the command line; whatever is wrong with what was typed is told in one line, with exit code 2."""
    warnings.showwarning = _warn
    if odd := next((word for word in sys.argv if word.encode(errors="ignore").decode() != word), None):
        _refuse(f"{odd!r} is not UTF-8; give the file another name.")
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]  # click's ClickException, wherever typer keeps it
    try:
        code = app(standalone_mode=False) or 0
    except LabkitError as error:
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except BrokenPipeError:  # e.g. `| head`
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        _refuse(f"{error.filename or 'a file'}: {error.strerror or error}; check the path and who may write there.")
    except usage_error as error:
        context = getattr(error, "ctx", None)
        asked = context.command_path if context else "labkit"
        said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        _refuse(f"{said}{'' if said.endswith('?') else '.'} See `{asked} --help`.")
    if code == STOPPED:  # typer may have caught Ctrl-C itself
        print("labkit: stopped", file=sys.stderr)
    sys.exit(code)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Tell a warning as the command line tells everything: in one line, without a place in the code."""
    print(f"labkit: note: {' '.join(str(message).split())}", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    print(f"labkit: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
