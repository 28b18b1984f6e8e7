"""`labkit train`: a model on parameter servers and workers that come and go."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, Unpack

import typer

from labkit.cli.attach import tell_watch
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.files import refuse_closed, refuse_unwritable
from labkit.elastic.process.causes import RESTARTS, WITHIN_S
from labkit.system.printing import printable
from labkit.system.progress import counter

if TYPE_CHECKING:
    from labkit.elastic import Result, TrainingLog
    from labkit.elastic.own_training import OwnTraining
    from labkit.experiment.auto import AutoFields
    from labkit.results.record import RunRecord


STEPS, AUTO_STEPS = 100, 5000
VERIFIED_STEPS = 5


def train(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A file of your own, FILE.py, that defines model(), data() and loss(model, batch); "
            "or one of `labkit.elastic.models.available()`, or the start of its name."
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments that a file of your own finds in sys.argv, behind `--`.", metavar="ARGS"),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of workers at the start.")] = 2,
    servers: Annotated[int, typer.Option(help="Number of parameter servers at the start.")] = 2,
    steps: Annotated[
        int | None, typer.Option(help="Number of updates. Default: 100, with --auto 5000.", show_default=False)
    ] = None,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto", help="Choose workers, servers and cores during (asynchronous) training, and explain each choice."
        ),
    ] = False,
    cores: Annotated[
        float | None, typer.Option(help="With --auto: cores to use. Default: all of this machine.", show_default=False)
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            help="With --auto: file with the final plans of earlier runs. Default: plans.jsonl in the folder of runs.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="With --auto: folder for the run. Default: runs. `labkit attach` resumes it.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(
            help="With --auto: batch sizes to choose from. Each is tried for some seconds before the job begins; the "
            "smallest with 90% of the best samples/s is taken. --steps counts those of the file's own batch.",
            metavar="N,N,...",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            help="Rescale at a step or time: STEP:+1ps or SECONDSs:-1worker. Repeatable.", metavar="WHEN:WHAT"
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="How the job is rescaled: handover, suspend or checkpoint.")
    ] = "handover",
    sync: Annotated[
        bool,
        typer.Option("--sync/--async", help="Synchronous updates by all workers, or asynchronous updates by each."),
    ] = True,
    batch: Annotated[int, typer.Option(help="Samples per update, for any number of workers.")] = 32,
    shards: Annotated[
        int, typer.Option(help="Logical shards of a batch. Their gradients are summed in a fixed order.")
    ] = 8,
    optimizer: Annotated[str, typer.Option(help="Optimizer: sgd, momentum or adam.")] = "adam",
    lr: Annotated[
        float | None, typer.Option(help="Learning rate. Default: one that suits the model at this width.")
    ] = None,
    width: Annotated[float, typer.Option(help="Scale of the model. 1 is the published size.")] = 0.1,
    samples: Annotated[int, typer.Option(help="Number of samples in the generated dataset.")] = 4096,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints. 0: only the last state.")] = 0,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby", help="Replicate every block on a second server, so that a killed server costs no step."
        ),
    ] = False,
    restarts: Annotated[
        int,
        typer.Option(help="Give up after this many deaths of processes without progress, within --restarts-within."),
    ] = RESTARTS,
    restarts_within_s: Annotated[
        float, typer.Option("--restarts-within", help="Window for --restarts, in seconds.", metavar="SECONDS")
    ] = WITHIN_S,
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease", help="Seconds without a heartbeat after which a process counts as dead.", metavar="SECONDS"
        ),
    ] = 3.0,
    start_s: Annotated[
        float,
        typer.Option("--start-limit", help="Time limit for the start of a process, in seconds.", metavar="SECONDS"),
    ] = 300.0,
    patience_s: Annotated[
        float, typer.Option("--gradient-limit", help="Time limit for one gradient, in seconds.", metavar="SECONDS")
    ] = 300.0,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for events, logs and checkpoints. Training resumes from it.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the model's initial parameters and of the order of samples.", min=0)
    ] = 0,
    on_nan: Annotated[
        str, typer.Option(help="On a NaN loss: stop (and keep the checkpoint before it) or continue (and record it).")
    ] = "stop",
    network: Annotated[
        str,
        typer.Option(
            help="Transport: local (sockets of this machine), tls (encrypted TCP), or tcp (parameters unencrypted)."
        ),
    ] = "local",
    addresses: Annotated[
        str,
        typer.Option(help="Addresses on which the servers listen, in turn. Default: this machine.", metavar="A,B,..."),
    ] = "",
    ports: Annotated[
        str, typer.Option(help="Ports on which they may listen. Default: any.", metavar="FIRST-LAST")
    ] = "",
    clip_value: Annotated[
        float | None, typer.Option(help="Clip each element of the gradient to this absolute value.", show_default=False)
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Clip the norm of the whole gradient to this value.", show_default=False)
    ] = None,
    loaders: Annotated[int, typer.Option(help="Processes of each worker that load samples ahead of computing.")] = 0,
    precision: Annotated[
        str, typer.Option(help="Precision: float32, or bf16 or fp16 (forward pass under torch.autocast).")
    ] = "float32",
    validate_every: Annotated[
        int | None,
        typer.Option(
            help="Steps between validations, if the file defines validation_data(). Default: a tenth of all steps.",
            show_default=False,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after this many validations without improvement.", show_default=False),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="Metric that selects the best state: loss, or a metric that the file defines.")
    ] = "loss",
    best: Annotated[
        str, typer.Option(help="Whether lower (min) or higher (max) values of --metric are better.")
    ] = "min",
    log_csv: Annotated[
        Path | None,
        typer.Option("--csv", help="File for losses, metrics and validations.", metavar="FILE", show_default=False),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(help="Folder for the same as TensorBoard events.", metavar="FOLDER", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the trained state_dict; of the best state if there was a validation.",
            metavar="FILE.pt",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Train a few steps only, compare them with a plain loop of torch, and one worker with three.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a model on parameter servers and workers that can be added and removed during training."""
    if auto:
        table = {
            "width": width, "samples": samples, "seed": seed, "batch": batch, "optimizer": optimizer, "lr": lr,
            "lease_s": lease_s, "save_every": save_every,
        }  # fmt: skip
        _auto(context, model, table, args=args or (), steps=steps, cores=cores, workers=workers, servers=servers,
              runs=runs, history=history, batches=batches, as_json=as_json)  # fmt: skip
        return
    _refuse_without_auto(model, cores=cores, history=history, runs=runs, batches=batches)
    from labkit.elastic.controller.controller_state import checked_strategy
    from labkit.elastic.job import ScaleRequest, follow, most_servers
    from labkit.elastic.own_training import arguments_of, validation_of
    from labkit.elastic.protocol.sites import ports_of

    checked_strategy(strategy)
    requests = [ScaleRequest.parse(line) for line in at or ()]
    typed = _typed(context)
    with _printing(as_json):
        name, training = _training(model, typed, args=args or (), width=width, samples=samples, seed=seed)
    steps = training.options.get("steps", STEPS) if steps is None else steps
    how = {
        "batch": batch, "workers": workers, "servers": servers, "shards": shards, "optimizer": optimizer, "seed": seed,
        "most_servers": most_servers(servers, requests), "save_every": save_every, "folder": folder, "sync": sync,
        "lr": lr, "standby": standby, "restarts": restarts, "restarts_within_s": restarts_within_s, "lease_s": lease_s,
        "start_s": start_s, "patience_s": patience_s, "on_nan": on_nan, "network": network, "ports": ports_of(ports),
        "addresses": [each.strip() for each in addresses.split(",") if each], "clip_value": clip_value,
        "precision": precision, "clip_norm": clip_norm, "loaders": loaders,
    }  # fmt: skip
    arguments = arguments_of(training, how, typed=typed)
    validate = validation_of(
        training, steps=steps, validate_every=validate_every, patience=patience, metric=metric, best=best, typed=typed
    )
    if verify:
        _verify(name, training, arguments, steps=steps, file=Path(model), args=args or (), seed=seed)
    _refuse_unwritable_files(out, log_csv, tensorboard)
    arguments |= {"steps": steps} if validate is None else {"steps": steps, "validate": validate}
    job = training.start(**arguments)
    with job, _log(log_csv, tensorboard) as log, _Bar(steps, quiet=as_json, log=log, folder=job.folder) as bar:
        result = follow(job, requests, strategy=strategy, on_event=bar)
    _end(name, training, result, out=out, as_json=as_json)


def _end(name: str, training: OwnTraining, result: Result, *, out: Path | None, as_json: bool) -> None:
    """Save the state, say what came of the training, and let a script go on after its loop."""
    if out is not None:
        _save(result, out)
    print(json.dumps(_summary(name, result)) if as_json else _sentence(name, result), flush=True)
    with _printing(as_json):
        training.finish(result)


def _printing(as_json: bool) -> AbstractContextManager[Any]:
    """Return a context in which a script may print: beside JSON, to stderr."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _verify(
    name: str, training: OwnTraining, arguments: Mapping[str, Any], *, steps: int, file: Path, args: Sequence[str],
    seed: int,
) -> None:  # fmt: skip
    """Print what a few steps show; exit code 1 if something differs."""
    from labkit.elastic import verification
    from labkit.elastic.own_training import is_file

    left_out = {"workers", "folder", "most_servers", "steps"}
    options = {key: value for key, value in arguments.items() if key not in left_out}
    wrong = 0

    def findings() -> Iterator[verification.Verified]:
        """Yield what a job refuses first."""
        verified = verification.VerifiedTraining(training.model, training.data, training.loss, options)
        yield from verification.verify(verified, steps=min(steps, VERIFIED_STEPS))
        if is_file(str(file)):
            yield verification.hash_seeds(file, seed=seed, args=args)

    for finding in findings():
        print(f"{name}: {finding.line}{'' if finding.right else ' (not as it should be)'}", flush=True)
        wrong += not finding.right
    raise typer.Exit(1 if wrong else 0)


def _auto(
    context: typer.Context, model: str, table: Mapping[str, Any], *, args: Sequence[str], steps: int | None,
    cores: float | None, workers: int, servers: int, runs: Path | None, history: Path | None, batches: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Train a model that finds its own resources."""
    from labkit.elastic.own_training import OF_CATALOGUE, is_file
    from labkit.elastic.script_text import has_loop
    from labkit.testbed.run.training import TrainingTable

    refuse_with_auto(context)
    _refuse_args(model, args)
    if is_file(model):
        typed = _typed(context)
        _refuse_of_catalogue(model, typed)
        if steps is None and has_loop(Path(model)):
            raise InputError(f"--auto: expected --steps, too; {model} is run after the run was planned.")
        table = {name: value for name, value in table.items() if name not in OF_CATALOGUE and name in typed}
    train_auto(
        model, steps=AUTO_STEPS if steps is None else steps, cores=cores, workers=workers, servers=servers,
        training=TrainingTable(**table), runs=runs or Path("runs"), history=history, args=args, as_json=as_json,
        batches=_numbers(batches),
    )  # fmt: skip


def _numbers(batches: str | None) -> list[int]:
    """Return the numbers of --batches: "64,128"."""
    try:
        return [int(each) for each in (batches or "").split(",") if each or batches]
    except ValueError:
        raise InputError(f"--batches is '{batches}'; expected batch sizes with commas between them: 64,128.") from None


def _refuse_without_auto(model: str, **options: object) -> None:
    """Raise InputError if an option was given that goes with `--auto` only."""
    for option, value in options.items():
        if value is not None:
            raise InputError(f"--{option} goes with --auto: labkit train {model} --auto.")


def _typed(context: typer.Context) -> set[str]:
    """Return the names of the options that were typed."""
    named = [str(option.name) for option in context.command.params]
    return {name for name in named if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}


def _training(
    model: str, typed: set[str], *, args: Sequence[str], width: float, samples: int, seed: int
) -> tuple[str, OwnTraining]:
    """Return name, model, data and loss of what is to be trained."""
    from labkit.elastic.own_training import catalogued, is_file, read_training

    _refuse_args(model, args)
    if not is_file(model):
        from labkit.elastic import models

        name = models.size_of(model, width=width).name
        return name, catalogued(name, width=width, samples=samples, seed=seed)
    _refuse_of_catalogue(model, typed)
    return Path(model).stem, read_training(Path(model), seed=seed, args=args)


def _refuse_args(model: str, args: Sequence[str]) -> None:
    from labkit.elastic.own_training import is_file

    if args and not is_file(model):
        raise InputError(f"'{args[0]}' behind {model}: a model of the catalogue takes no arguments; expected options.")


def _refuse_of_catalogue(model: str, typed: set[str]) -> None:
    from labkit.elastic.own_training import OF_CATALOGUE

    for option in OF_CATALOGUE:
        if option in typed:
            raise InputError(f"--{option} is of models of the catalogue; {model} says what it trains, and on what.")


def _refuse_unwritable_files(out: Path | None, csv: Path | None, tensorboard: Path | None) -> None:
    """Raise InputError if the state or a log cannot be written, before the job is started; nothing is made."""
    if out is not None:
        refuse_unwritable(out, endings=(".pt", ".pth"))
    if csv is not None:
        if not csv.absolute().parent.is_dir():
            raise InputError(f"{csv} cannot be written: there is no folder {csv.parent}.")
        refuse_unwritable(csv)
    if tensorboard is not None:
        refuse_closed(tensorboard)


def _log(csv: Path | None, tensorboard: Path | None) -> AbstractContextManager[TrainingLog | None]:
    """Return the log that was asked for, open; None for none."""
    if csv is None and tensorboard is None:
        return nullcontext()
    from labkit.elastic import TrainingLog

    return TrainingLog(csv=csv, tensorboard=tensorboard)


def _save(result: Result, out: Path) -> None:
    """Write the state_dict of the best state, or of the last one if none was validated."""
    import torch

    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save((result.best or result).state_dict(), out)


class _Bar:
    """A progress bar with the loss and the numbers of servers and workers; above it, what members print."""

    def __init__(self, steps: int, *, quiet: bool, log: TrainingLog | None, folder: Path) -> None:
        from labkit.elastic.job_logs import NewLines

        self._quiet, self._log, self._printed = quiet, log, NewLines(folder)
        self._bar = counter(steps, unit="step", shown=not quiet)
        self._here: dict[str, str] = {}
        self._where_printed = False

    def __call__(self, event: dict[str, Any]) -> None:
        """Show an event, and log it."""
        if self._log is not None:
            self._log(event)
        kind = event["event"]
        if kind == "joined":
            self._here[event["name"]] = event["role"]
        elif kind == "left":
            self._here.pop(event["name"], None)
        elif kind == "loss":
            roles = list(self._here.values())
            self._bar.update(event["version"] + 1 - self._bar.n)
            self._bar.set_postfix_str(
                f"loss {event['loss']:.4g}, {roles.count('server')} PS, {roles.count('worker')} workers"
            )
        if not self._quiet:
            self._show_printed(now=kind == "over")
            if (line := _line_about(event)) is not None:
                self._say(line)

    def _show_printed(self, *, now: bool) -> None:
        """Show what members have printed, and once where it is kept."""
        for line in self._printed(now=now):
            if not self._where_printed:
                self._say(f"labkit: what members print is in their logs in {self._printed.folder}")
                self._where_printed = True
            self._say(f"{line.member}: {line.text}")

    def _say(self, line: str) -> None:
        self._bar.write(printable(line))

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _line_about(event: Mapping[str, Any]) -> str | None:
    """Return the line that an event is shown by above the bar; None: it is not."""
    match event["event"]:
        case "left" if not event["expected"]:
            return f"lost {event['name']}: {event['cause'].replace('_', ' ')} ({event['reason']})"
        case "told":
            return f"labkit: {event['what']}"
        case "validated":
            values = ", ".join(f"{name} {value:.4g}" for name, value in event["values"].items())
            return f"step {event['version']}: validation {values}{', the best so far' * event['best']}"
        case "registration" | "scaled" | "dropped" | "goes_back" | "promoted":
            return " ".join(f"{key}={value}" for key, value in event.items() if key != "time")
    return None


def _summary(name: str, result: Result) -> dict[str, Any]:
    from labkit.elastic.controller.losses import encoded

    events, losses = [event["event"] for event in result.events], [encoded(loss) for loss in result.losses]
    return {
        "model": name, "steps": result.version, "digest": result.digest, "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None, "scaled": events.count("scaled"),
        "dropped": events.count("dropped"),
        "went_back": events.count("goes_back"), "promoted": events.count("promoted"),
        "validations": events.count("validated"),
        "best": result.best and {"step": result.best.version, **result.best.values},
        "seconds": round(result.events[-1]["time"] - result.events[0]["time"], 3),
    }  # fmt: skip


def _sentence(name: str, result: Result) -> str:
    told, losses = _summary(name, result), result.losses
    lost = f"loss {losses[0]:.4g} -> {losses[-1]:.4g}" if losses else "no loss"
    best = "" if result.best is None else f"best at step {result.best.version}, "
    return (
        f"{name}: {told['steps']} steps, {lost}, {best}"
        f"scaled {told['scaled']} times, digest {told['digest'][:16]}, {told['seconds']:.1f} s"
    )


TAKES: Final = (
    "model", "args", "workers", "servers", "steps", "auto", "cores", "history", "batch", "optimizer", "lr", "width",
    "samples", "save_every", "lease_s", "runs", "seed", "as_json", "batches",
)  # fmt: skip
"""Options of `labkit train` that go with --auto."""


def refuse_with_auto(context: typer.Context) -> None:
    """Refuse what was typed beside --auto and does not go with it.

    Raise InputError, which names the option.
    """
    typed = _typed(context)
    for option in (option for option in context.command.params if option.name in typed):
        if option.name == "sync" and context.params["sync"]:
            raise InputError("--sync: a job that configures itself trains asynchronously; leave it out, or --auto.")
        if option.name == "folder":
            raise InputError("--folder is of a job without --auto; with it, --runs FOLDER says where runs are kept.")
        if option.name not in (*TAKES, "sync"):
            raise InputError(f"{option.opts[0]} does not go with --auto; leave one of them out.")


def train_auto(
    model: str, *, steps: int, as_json: bool, batches: Sequence[int] = (), **options: Unpack[AutoFields]
) -> None:  # fmt: skip
    """Train a model that configures itself; exit code 1 if it was given up."""
    from labkit.elastic.process.limits import describe_limits
    from labkit.experiment.auto import auto

    if not as_json:
        print(f"limits here: {describe_limits()}; --auto limits cores and no memory", file=sys.stderr)
    with Teller(steps, quiet=as_json) as teller:
        record = auto(
            model, steps=steps, observer_factory=teller.observer_of, on_start=tell_watch, batches=batches,
            tell=teller.say, **options,
        )  # fmt: skip
    told = summary(record)
    print(json.dumps(told) if as_json else sentence(told, options.get("runs", "runs")))
    raise typer.Exit(0 if record.complete else 1)


class Teller:
    """A progress bar, and above it what is decided and why, as it comes."""

    def __init__(self, steps: int, *, quiet: bool) -> None:
        self._bar = counter(steps, unit="step", shown=not quiet and sys.stderr.isatty())
        self._quiet = quiet
        self._reasons: Sequence[str] = ()

    def observer_of(self, reasons: Sequence[str]) -> Teller:
        """Return the observer of a run that begins, with the list of its reasons."""
        self._reasons = reasons
        return self

    def say(self, line: str) -> None:
        """Show a line above the bar."""
        if not self._quiet:
            self._bar.write(printable(line))

    def __call__(self, batch: Events) -> None:
        """Show what happened in a batch."""
        for row in batch:
            if row["kind"] in (Kind.PROGRESSED, Kind.COMPLETED):
                self._bar.update(int(row["value"]) - self._bar.n)
                if row["speed"] > 0:
                    self._bar.set_postfix_str(f"{row['speed']:.1f} steps/s")
            elif row["kind"] == Kind.EXPLAINED:
                self.say(f"{row['time_s']:6.1f} s  {self._reasons[int(row['value'])]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def summary(record: RunRecord) -> dict[str, Any]:
    """Return the outcome of a run for JSON; it ends with the decisions."""
    from labkit.results.spans import configurations

    held = configurations(record.events, record.jobs)
    losses = record.events["value"][record.events["kind"] == Kind.LOSS]
    done = record.events["value"][record.events["kind"] == Kind.COMPLETED]
    rows: list[dict[str, Any]] = [
        {
            str(name): round(value, 6) if isinstance(value, float) else value
            for name, value in row.items()
            if name != "job"
        }
        for row in held.to_dict("records")
    ]
    return {
        "model": str(record.jobs.id[0]), "run": record.info.run, "steps": int(done[0]) if len(done) else None,
        "seconds": round(float(record.events["time_s"][-1]), 3),
        "first_loss": float(losses[0]) if len(losses) else None,
        "last_loss": float(losses[-1]) if len(losses) else None,
        "steps_per_s": {"before": _speed(rows, 0), "after": _speed(rows, -1)},
        "given_up": next(iter(record.info.dropped.values()), ""), "configurations": rows,
        "decisions": record.decisions[["time_s", "reason"]].round(3).to_dict("records"),
    }  # fmt: skip


def _speed(rows: Sequence[dict[str, Any]], at: int) -> float | None:
    return round(rows[at]["steps_per_s"], 3) if rows else None


def sentence(summary: dict[str, Any], runs: str | Path) -> str:
    """Return the outcome of a run in a line."""
    where = f"the run is in {runs / summary['run']}"
    if summary["steps"] is None:
        return f"{summary['model']}: given up after {summary['seconds']:.1f} s ({summary['given_up']}); {where}"
    held, speeds = summary["configurations"], summary["steps_per_s"]
    last, changes = held[-1], len(held) - 1
    return (
        f"{summary['model']}: {summary['steps']} steps in {summary['seconds']:.1f} s, "
        f"loss {summary['first_loss']:.4g} -> {summary['last_loss']:.4g}; "
        f"{speeds['before']:.4g} steps/s at first, {speeds['after']:.4g} after "
        f"{changes} change{'s' * (changes != 1)}, with {last['n_workers']} workers x {last['worker_cores']:g} cores "
        f"and {last['n_ps']} PSs x {last['ps_cores']:g}; {where}"
    )
