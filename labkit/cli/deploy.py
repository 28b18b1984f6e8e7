"""`labkit deploy`: a trace on a testbed, from the shell; once, or several schedulers and repeats in a queue."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli import help as cli_help
from labkit.cli.attach import (
    AsJson,
    Failures,
    Inventory,
    Lease,
    Runs,
    Spread,
    Trust,
    retries_of,
    tell,
    tell_watch,
    trust_of,
)
from labkit.cli.options import flag_of, takes_scenario
from labkit.core.errors import InputError
from labkit.experiment.scenario import OPTIONS, Scenario

if TYPE_CHECKING:
    from labkit.testbed.run.own_scripts import OwnScript

ALONE = "optimus"
"""The scheduler where none is named."""
Trace = Annotated[
    Path | None,
    typer.Argument(
        help="A trace. Its seconds are real seconds.", metavar="TRACE", show_default=False,
        autocompletion=cli_help.traces,
    ),
]  # fmt: skip
Schedulers = Annotated[
    str | None,
    typer.Option(
        help="Several schedulers, comma-separated, run one after the other.", autocompletion=cli_help.schedulers
    ),
]
TimeLimit = Annotated[
    str | None, typer.Option(help="Stop a run after this time: 90s, 45min, 1h, 2h30m.", metavar="TIME")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and show the plan without contacting the hosts.")]
Resume = Annotated[
    str | None, typer.Option(help="Resume a queue: complete the runs that have not ended. Omit TRACE.", metavar="NAME")
]
Again = Annotated[bool, typer.Option("--again", help="With --resume: repeat failed runs, too, in new folders.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="Run the queue in the background. `labkit watch NAME` shows it.")
]
Script = Annotated[
    list[str] | None,
    typer.Option(
        help="Your training script for a model of the trace: MODEL=FILE.py[:FUNCTION], or 'MODEL=FILE.py --its "
        "arguments'. Its folder is copied to the hosts.",
        metavar="MODEL=FILE",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="Data folder that a --script reads: MODEL=FOLDER. It is copied to the hosts.", metavar="MODEL=FOLDER"
    ),
]
Against = Annotated[
    str | None, typer.Option(help="In a queue: baseline scheduler for the differences. Default: the first one.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAsk:
    """What was typed that only queues have."""

    schedulers: str | None
    repeat: int
    dry_run: bool
    resume: str | None
    again: bool
    detach: bool
    against: str | None
    trust: bool

    @property
    def wanted(self) -> bool:
        """Whether a queue is asked for, rather than one run."""
        return bool(self.schedulers or self.repeat > 1 or self.dry_run or self.detach or self.against)


@takes_scenario(trace=Trace, machines=True)
def deploy(
    scheduler: Annotated[
        str | None, typer.Option(help=f"A name, with options in brackets: drf(placer=pack). Default: {ALONE}.")
    ] = None,
    schedulers: Schedulers = None,
    repeat: Annotated[int, typer.Option(help="Number of runs per scheduler, in a queue.", min=1)] = 1,
    time_limit: TimeLimit = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run or queue: its folder, and the argument of `labkit watch`.")
    ] = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    resume: Resume = None,
    again: Again = False,
    trust: Trust = False,
    against: Against = None,
    inventory: Inventory = None,
    runs: Runs = Path("runs"),
    *,
    scenario: Scenario,
    width: Annotated[float, typer.Option(help="Scale of the models. 1 is the published size.")] = 0.1,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints of a job.")] = 100,
    strategy: Annotated[
        str, typer.Option(help="How running jobs are rescaled: handover, suspend or checkpoint.")
    ] = "handover",
    script: Script = None,
    data: Data = None,
    lease: Lease = None,
    failures: Failures = None,
    spread: Spread = None,
    as_json: AsJson = False,
) -> None:
    """Train the jobs of a trace on a testbed under one or several schedulers. Exit code 1 if a job was given up.

    With --schedulers, --repeat, --dry-run or --detach, the runs form a queue: one after the other, in one folder,
    compared at the end. A run that fails is kept and reported, and the others still run; --resume runs what is missing.
    """
    ask = QueueAsk(
        schedulers=schedulers, repeat=repeat, dry_run=dry_run, resume=resume, again=again, detach=detach,
        against=against, trust=trust,
    )  # fmt: skip
    if resume is not None:
        beside = {"TRACE": scenario.trace, "--scheduler": scheduler, "--name": name, "--inventory": inventory}
        typed = {flag_of(field): True for field in scenario.changed if field in OPTIONS}
        _refuse_with_resume({**beside, "--time-limit": time_limit, **typed}, ask)
        _resume(ask, runs=runs, as_json=as_json)
        return
    options = _run_options(scenario, time_limit=time_limit, lease=lease, failures=failures, spread=spread)
    from labkit.testbed.run.training import TrainingTable

    options["training"] = TrainingTable(
        scripts=_scripts(script, data), width=width, save_every=save_every, strategy=strategy
    )
    options["inventory"] = inventory
    if scheduler is not None and schedulers is not None:
        raise InputError(f"both --scheduler {scheduler} and --schedulers {schedulers} are given; leave one out.")
    if again:
        raise InputError("--again goes with --resume NAME.")
    if trust:
        raise InputError("--trust goes with --resume NAME: what is typed here needs no consent.")
    if ask.wanted:
        _queue(scenario, ask, schedulers or scheduler or ALONE, name=name, runs=runs, as_json=as_json, options=options)
        return
    _alone(scenario, scheduler or ALONE, name=name, runs=runs, as_json=as_json, options=options)


def _run_options(
    scenario: Scenario,
    *,
    time_limit: str | None,
    lease: float | None,
    failures: int | None,
    spread: float | None,
) -> dict[str, Any]:
    """Return the options of one run, from what was typed."""
    from labkit.core.durations import seconds_of
    from labkit.experiment.opener import LEASE_S

    if not scenario.trace:
        raise InputError("no trace is given; name a file or a shipped trace, such as testbed, or --resume a queue.")
    limit_s = None if time_limit is None else seconds_of(time_limit, what="--time-limit")
    lease_s = LEASE_S if lease is None else lease
    return {"time_limit_s": limit_s, "retries": retries_of(failures, spread), "lease_s": lease_s}


def _scripts(script: list[str] | None, data: list[str] | None) -> dict[str, OwnScript]:
    """Return the scripts of --script and --data, by model."""
    from labkit.testbed.run.own_scripts import OwnScript

    files, folders = _by_model(script, option="--script"), _by_model(data, option="--data")
    if odd := next((model for model in folders if model not in files), None):
        raise InputError(f"--data {odd}=... has no script; give --script {odd}=FILE.py too.")
    named = {model: _words(text) for model, text in files.items()}
    return {model: OwnScript.of(file, data=folders.get(model), args=args) for model, (file, *args) in named.items()}


def _words(text: str) -> list[str]:
    """Return the path of a script, and its arguments; a path alone may have blanks in it."""
    from labkit.testbed.run.own_scripts import SCRIPT

    named = SCRIPT.fullmatch(Path(text).name)
    if named and (Path(text).parent / named["file"]).is_file():
        return [text]
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--script ...={text}: {error}; expected FILE.py and its arguments.") from None


def _by_model(pairs: list[str] | None, *, option: str) -> dict[str, str]:
    """Return the path given for each model: "MODEL=PATH"."""
    found: dict[str, str] = {}
    for text in pairs or ():
        model, equals, path = text.partition("=")
        if not (equals and model and path) or model in found:
            raise InputError(f"{option} is '{text}'; expected MODEL=PATH, once for each model of the trace.")
        found[model] = path
    return found


def _alone(
    scenario: Scenario, scheduler: str, *, name: str | None, runs: Path, as_json: bool, options: dict[str, Any]
) -> None:
    """Carry out one run, and print what it has come to."""
    from labkit.experiment.deployed import deploy as begin

    record = begin(
        scenario, scheduler=scheduler, run=name, runs=runs, progress=not as_json, on_start=tell_watch, **options
    )  # fmt: skip
    tell(record, runs=runs, as_json=as_json)
    raise typer.Exit(1 if record.summary["n_unfinished"] else 0)


def _queue(
    scenario: Scenario,
    ask: QueueAsk,
    schedulers: str,
    *,
    name: str | None,
    runs: Path,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Plan a queue, and show or begin it."""
    from labkit.cli.queue import detach, print_plan
    from labkit.cli.sweep import refuse_unknown_base
    from labkit.experiment.queued import begin_queue, plan_queue, refuse_taken
    from labkit.results.store import free_id

    queue, jobs, hosts = plan_queue(scenario, schedulers=schedulers, repeat=ask.repeat, **options)
    refuse_unknown_base(ask.against, queue.schedulers)
    called = name or free_id(runs, f"queue-{_slug(queue.trace)}")
    if ask.dry_run:
        refuse_taken(called, runs=runs)
        print_plan(queue, jobs, hosts=hosts.names, name=called, runs=runs)
        print("nothing was done: leave out --dry-run")
        return
    folder = begin_queue(queue, jobs, name=called, runs=runs)
    if not as_json:
        print_plan(queue, jobs, hosts=hosts.names, name=called, runs=runs)
    if ask.detach:
        pid = detach(folder)
        print(f"queue {called} is worked by process {pid}, in the background; what it says is in {folder / 'log.txt'}")
        print(f"watch it: labkit watch {called} --runs {runs}; stop it: kill -INT {pid}")
        return
    tell_watch(folder)
    _work(folder, ask, as_json=as_json)


def _refuse_with_resume(typed: dict[str, object], ask: QueueAsk) -> None:
    """Raise if something is given that a queue has from its beginning."""
    typed = {**typed, "--schedulers": ask.schedulers, "--repeat": ask.repeat > 1, "--dry-run": ask.dry_run}
    if odd := [option for option, value in typed.items() if value]:
        raise InputError(
            f"{', '.join(odd)} beside --resume {ask.resume}: a queue continues with what it began with; leave it out, "
            "or begin another queue."
        )


def _resume(ask: QueueAsk, *, runs: Path, as_json: bool) -> None:
    from labkit.cli.queue import detach
    from labkit.results.queue import queue_of

    folder = queue_of(str(ask.resume), runs=runs)
    if ask.detach:
        pid = detach(folder, again=ask.again, trust=ask.trust)
        print(f"queue {folder.name} is worked by process {pid}, in the background")
        return
    _work(folder, ask, as_json=as_json)


def _work(folder: Path, ask: QueueAsk, *, as_json: bool) -> None:
    """Carry out what is left of a queue, and print the comparison."""
    from labkit.cli.queue import print_comparison, tell_run
    from labkit.cli.sweep import refuse_unknown_base
    from labkit.experiment.queued import work_queue
    from labkit.results.queue import QueueState, RunQueue

    queue = RunQueue.read(folder)
    refuse_unknown_base(ask.against, queue.schedulers)
    if not queue.left and not ask.again and not as_json:
        print(f"queue {folder.name} is over: {queue.counts()}")
    try:
        queue = work_queue(
            folder, again=ask.again, progress=not as_json and sys.stderr.isatty(),
            tell=None if as_json else tell_run(queue), trust=trust_of(ask.trust),
        )  # fmt: skip
    except KeyboardInterrupt:
        print(f"labkit: resume with: labkit deploy --resume {folder.name} --runs {folder.parent}", file=sys.stderr)
        raise
    print_comparison(queue, folder, against=ask.against, as_json=as_json)
    raise typer.Exit(0 if all(each.state == QueueState.DONE for each in queue.runs) else 1)


def _slug(text: str) -> str:
    from labkit.experiment.plain import slug

    return slug(text)
