"""The command line: what `labkit` alone says, and the commands that have no module of their own."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from labkit.cli import help as cli_help
from labkit.cli import new as cli_new
from labkit.cli import options as given
from labkit.cli import renamed as cli_renamed
from labkit.cli import runs as cli_runs
from labkit.cli.attach import Interference, Quotas, Reserved, attach
from labkit.cli.data import clusters, schedulers, traces, traces_import, weights
from labkit.cli.deploy import deploy
from labkit.cli.doctor import doctor
from labkit.cli.fidelity import fidelity
from labkit.cli.figure import figure
from labkit.cli.profile import profile, simulate
from labkit.cli.sweep import sweep
from labkit.cli.tables import print_finding, print_header, print_table, usual_cluster
from labkit.cli.train import train
from labkit.cli.train_policy import train_policy
from labkit.cli.tune import tune
from labkit.cli.watch import watch
from labkit.core.errors import ComparisonError, LabkitError
from labkit.core.files import refuse_closed, refuse_unwritable
from labkit.core.raised import raised_at
from labkit.system import early, release
from labkit.system.printing import guard
from labkit.system.progress import StageLines

if TYPE_CHECKING:
    from labkit.results.record import RunRecord

app = typer.Typer(pretty_exceptions_enable=False)
app.add_typer(traces, name="traces")
app.add_typer(weights, name="weights")
traces.command("import")(traces_import)
app.command()(clusters)
app.command()(schedulers)
app.command()(train)
app.command()(sweep)
app.command()(tune)
app.command()(figure)
app.command()(cli_runs.report)
app.command()(train_policy)
app.command()(deploy)
app.command()(attach)
app.command()(watch)
app.command()(fidelity)
app.command()(profile)
app.command()(simulate)
try:
    from labkit.cli.bed import app as bed_app
except ModuleNotFoundError as error:  # installed without the extra `lab`
    cli_help.add_refused(app, "bed", missing=str(error.name))
else:
    app.add_typer(bed_app, name="bed")
for part, called in ((cli_new.app, "new"), (cli_runs.app, "runs")):
    app.add_typer(part, name=called)

DEMO_SCHEDULERS = "fifo,srtf,las,drf,tetris,optimus"
Workload = Annotated[
    Path,
    typer.Argument(
        help="A file, the name of a shipped trace (`labkit traces list`), or a generator: 'poisson(80, per_hour=12)'.",
        metavar="TRACE", autocompletion=cli_help.traces,
    ),
]  # fmt: skip
Cluster = Annotated[
    str | None,
    typer.Option(
        help="A preset (`labkit clusters`), an expression such as 'fat_tree(4)', or hosts.toml; else the profile's, "
        "that of the trace's name (demo), or gavel-36x3.",
        autocompletion=cli_help.clusters,
    ),
]


@app.callback(invoke_without_command=True)
def begin(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show which labkit this is.", is_eager=True)] = False,
) -> None:
    """A laboratory for deep-learning cluster scheduling. `labkit` alone shows where to begin."""  # noqa: D401 - help
    if version:
        print(f"labkit {release.version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(cli_help.BEGIN.format(version=release.version()))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("reports"),
    testbed: Annotated[bool, typer.Option(help="Also train three jobs on a laptop testbed.")] = True,
    table: Annotated[
        bool, typer.Option(help="Print the table of schedulers; else only write it to the report.")
    ] = True,
) -> None:
    """Compare six schedulers on a shipped trace, train three jobs on a laptop testbed, and write a report and a figure.

    The exit code is 1 where the testbed did not work; all the rest is done then all the same.
    """
    from labkit.cli.demo import save_figure, trained
    from labkit.experiment.demo import CLUSTER

    with StageLines("comparing six schedulers") as lines:
        records = _demo_records(folder, lines)
    if table:
        print_header(records)
        print_table(records)
    twins = trained() if testbed else None
    command = command_line(["labkit", "demo", "--folder", str(folder), *([] if testbed else ["--no-testbed"])])
    pair, rests_on = ((twins.real, twins.simulated), twins.rests_on) if twins else (None, "")
    with StageLines("writing the report"):
        from labkit.plots.report import write_report

        written = write_report(
            records, folder / "demo.html", title=f"Schedulers on the trace demo, cluster {CLUSTER}", command=command,
            pair=pair, pair_note=rests_on,
        )  # fmt: skip
        figure = save_figure(records, folder / "demo.svg")
    print(f"report: {written.resolve()}\nfigure: {figure.resolve()}")
    print_finding(records)
    raise typer.Exit(0 if twins or not testbed else 1)


def _demo_records(folder: Path, lines: StageLines) -> list[RunRecord]:
    """Simulate, and say how many schedulers are done."""
    from labkit.experiment.demo import CLUSTER, trace

    _refuse_unwritable(folder / "demo.html", None)
    done: list[RunRecord] = []
    lines.detail = lambda: f"{len(done)} done"
    records, failed = _all_but_failed(trace(), after_each=done.append, cluster=CLUSTER, schedulers=DEMO_SCHEDULERS)
    if failed:
        _tell_failed(failed)
    return records


@app.command()
def compare(
    trace: Workload,
    schedulers: Annotated[
        str,
        typer.Option(
            help="Names, with options in brackets: fifo,drf(placer=pack); your own: file.py:Class; called: a=fifo.",
            autocompletion=cli_help.schedulers,
        ),
    ] = DEMO_SCHEDULERS,
    cluster: Cluster = None,
    profile: given.TestbedProfile = None,
    throughputs: given.Throughputs = None,
    speed: given.Speed = "auto",
    interference: Interference = "none",
    quotas: Quotas = None,
    reservations: Reserved = None,
    load: given.Load = 1.0,
    slot: given.Slot = None,
    first: given.First = None,
    drop_too_large: given.TooLarge = False,
    any_type: given.AnyType = False,
    format: given.Format = None,
    start: given.Start = 0.0,
    restart: given.Restart = 0.0,
    rescale: given.Rescale = 0.0,
    overheads: given.Published = None,
    troubles: given.Troubles = "none",
    sharding: given.Sharding = "dynamic",
    checkpoint: given.Checkpoint = 0.0,
    seed: Annotated[int, typer.Option(help="Of a generated trace, and of the simulator.", min=0)] = 0,
    seeds: Annotated[
        str | None,
        typer.Option(help="Several seeds, with paired differences: 10 (seeds 0 to 9), 5-9, or 1,4,9.", metavar="SEEDS"),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The scheduler that others are compared with; with --seeds else the first one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="With --seeds: processes, by default one per core; 0: in this process.", min=0)
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(help="Dollars per GPU and hour: v100=2.48,a100=3.2, or a file of such lines.", metavar="PRICES"),
    ] = None,
    strict: given.Strict = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line and scheduler.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Keep the runs, each in a folder of its own, in here.", metavar="FOLDER")
    ] = None,
) -> None:
    """Simulate several schedulers on one trace and compare them."""
    cluster, usual = (cluster, "") if cluster or profile else usual_cluster(trace)
    if seeds is not None:
        from labkit.cli.sweep import compare_on_seeds

        _refuse_unwritable(report, runs)
        compare_on_seeds(
            str(trace), format=format, report=report, runs=runs, command=command_line(sys.argv), cluster=cluster or "",
            schedulers=schedulers, seeds=seeds, against=against, workers=workers, as_json=as_json, speed=speed,
            throughputs=throughputs, strict=strict, interference=interference, load=load, slot_s=slot, first=first,
            start_s=start, restart_s=restart, rescale_s=rescale, overheads=overheads, troubles=troubles,
            sharding=sharding, quotas=quotas, reservations=reservations, drop_too_large=drop_too_large,
            any_type=any_type, usual=usual,
            left_out={"--checkpoint": checkpoint, "--seed": seed, "--profile": profile is not None,
                      "--prices": prices is not None},
        )  # fmt: skip
        return
    if workers is not None:
        raise typer.BadParameter("--workers goes with --seeds N.")
    from labkit.cli.options import prices_of

    jobs = given.first_jobs(trace, seed=seed, format=format, first=first)
    options: dict[str, Any] = {
        "profile": profile, "speed": speed, "throughputs": throughputs, "strict": strict, "seed": seed, "load": load,
        "interference": interference, "any_type": any_type, "quotas": quotas, "reservations": reservations,
        "prices": None if prices is None else prices_of(prices),
        "overheads": given.overheads_of(overheads, start_s=start, restart_s=restart, rescale_s=rescale),
        "troubles": troubles, "sharding": sharding, "checkpoint_s": checkpoint, "drop_too_large": drop_too_large,
        "cadence": given.cadence_of(slot),
    }  # fmt: skip
    records = _compare(
        jobs, cluster=cluster, schedulers=schedulers, report=report, command=sys.argv, options=options,
        as_json=as_json, runs=runs, against=against, usual=usual,
    )  # fmt: skip
    if not as_json:
        print_finding(records)


def _compare(
    jobs: Any,
    *,
    cluster: str | None,
    schedulers: str,
    report: Path | None,
    command: list[str],
    options: dict[str, Any],
    as_json: bool = False,
    runs: Path | None = None,
    against: str | None = None,
    usual: str = "",
) -> list[RunRecord]:
    from labkit.cli.sweep import refuse_unknown_base
    from labkit.cli.tables import print_against

    _refuse_unwritable(report, runs)
    refuse_unknown_base(against, schedulers)
    records, failed = _all_but_failed(
        jobs, as_json=as_json, cluster=cluster, schedulers=schedulers, runs=runs, **options
    )
    if not as_json:
        print_header(records, usual=usual)
        print_table(records)
    print_against(records, base=against, as_json=as_json)
    if report is not None:
        from labkit.plots.report import write_report

        written = write_report(
            records,
            report,
            title=f"Trace {jobs.name}{records[0].arrivals}, cluster {cluster or records[0].cluster.name}",
            command=command_line(command),
            base=against,
            failed=failed,
        )
        if not as_json:
            print(f"report: {written.resolve()}")
    if failed:
        _tell_failed(failed)
    return records


def _all_but_failed(
    jobs: Any, *, as_json: bool = False, after_each: Callable[[RunRecord], None] | None = None, **options: Any
) -> tuple[list[RunRecord], Mapping[str, Exception]]:
    """Simulate; return the records, and the errors of schedulers that failed beside others that did not."""
    from labkit.experiment import compare as run_all
    from labkit.experiment.caveats import Caveat

    after_each = _tell_json if as_json else after_each
    with warnings.catch_warnings():
        if not as_json:
            warnings.simplefilter("ignore", Caveat)  # they stand above the table
        try:
            shown = after_each is None and sys.stderr.isatty()
            return run_all(jobs, after_each=after_each, progress=shown, **options), {}
        except ComparisonError as error:
            if not error.records:
                raise next(iter(error.failed.values())) from None
            return error.records, error.failed


def _tell_json(record: RunRecord) -> None:
    from labkit.cli.tables import as_json_row

    print(json.dumps(as_json_row(record)), flush=True)


def _tell_failed(failed: Mapping[str, Exception]) -> NoReturn:
    """Say which schedulers are missing in what was printed, and end with exit code 1."""
    for name, error in failed.items():
        kind = "" if isinstance(error, LabkitError) else f"{type(error).__name__}: "
        said = f"{kind}{' '.join(str(error).split())}{raised_at(error)}"
        print(f"labkit: {name} failed, and is left out above: {said}", file=sys.stderr)
    raise typer.Exit(1)


def _refuse_unwritable(report: Path | None, runs: Path | None) -> None:
    """Refuse what cannot be written: rather now than after an hour of simulating."""
    if report is not None:
        refuse_unwritable(report, endings=(".html", ".htm"))
    if runs is not None:
        refuse_closed(runs)


def command_line(words: list[str]) -> str:
    """Return what was typed, with the program's bare name."""
    import shlex

    return shlex.join(["labkit", *words[1:]])


app.command()(doctor)
cli_help.arrange(app)


def main() -> None:
    """Run the command line; whatever is wrong with what was typed is told in one line, with exit code 2."""
    guard()
    try:
        _main()
    except KeyboardInterrupt:  # pressed again, while the first one was being handled
        early.arm()
        early.tell()
        sys.exit(early.STOPPED)


def _main() -> NoReturn:
    warnings.showwarning = _warn
    early.hand_over()
    if odd := next((word for word in sys.argv if word.encode(errors="ignore").decode() != word), None):
        _refuse(f"{odd!r} is not UTF-8; give the file another name.")
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]  # click's ClickException, wherever typer keeps it
    try:
        code = app(prog_name="labkit", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        code = early.STOPPED
    except BrokenPipeError:  # e.g. `| head`
        sys.stderr.close()
        sys.exit(141)
    except (LabkitError, OSError, ModuleNotFoundError) as error:
        _refuse_error(error)
    except usage_error as error:
        _refuse_usage(error)
    early.arm()
    if code == early.STOPPED:  # typer may have caught Ctrl-C itself
        early.tell()
    sys.exit(code)


def _refuse_error(error: Exception) -> NoReturn:
    """Say in one line what cannot be done, and what to do about it; a fault of labkit itself is raised again."""
    if isinstance(error, LabkitError):
        _refuse(str(error))
    if isinstance(error, OSError):
        _refuse(f"{error.filename or 'a file'}: {error.strerror or error}; check the path and its permissions.")
    if not isinstance(error, ModuleNotFoundError) or str(error.name).startswith("labkit"):
        raise error
    _refuse(str(cli_help.lacking(str(error.name))))


def _refuse_usage(error: Exception) -> NoReturn:
    """Say in one line what was typed wrong, and where to read what can be typed."""
    said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    if not said:  # nothing was asked, and the help was shown
        sys.exit(2)
    context = getattr(error, "ctx", None)
    asked = context.command_path if context else "labkit"
    option = str(getattr(error, "option_name", ""))
    said = cli_renamed.option_now(asked, option) or cli_renamed.command_now(said) or said
    _refuse(f"{said}{'' if said.endswith('?') else '.'} See `{asked} --help`.")


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Tell a warning as the command line tells everything: in one line, without a place in the code."""
    print(f"labkit: note: {' '.join(str(message).split())}", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    print(f"labkit: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
