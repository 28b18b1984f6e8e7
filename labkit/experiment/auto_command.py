"""`labkit train MODEL --auto`: what is decided, as it comes, and what it came to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import typer

from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.experiment.auto import auto
from labkit.experiment.command import tell_watch
from labkit.printing import printable
from labkit.progress import counter

if TYPE_CHECKING:
    from labkit.results.record import RunRecord
    from labkit.testbed.run.training import TrainingTable

TAKES: Final = (
    "model", "workers", "servers", "steps", "auto", "cores", "history", "batch", "optimizer", "lr", "width", "samples",
    "save_every", "lease_s", "runs", "seed", "as_json",
)  # fmt: skip
"""Options of `labkit train` that go with --auto."""


def refuse_beside(context: typer.Context) -> None:
    """Refuse what was typed beside --auto and does not go with it.

    Raises
    ------
    InputError
        It names the option.
    """
    for option in context.command.params:
        typed = str(context.get_parameter_source(str(option.name))).endswith("COMMANDLINE")
        if typed and option.name == "sync" and context.params["sync"]:
            raise InputError("--sync: a job that configures itself trains asynchronously; leave it out, or --auto.")
        if typed and option.name == "folder":
            raise InputError("--folder is of a job without --auto; with it, --runs FOLDER says where runs are kept.")
        if typed and option.name not in (*TAKES, "sync"):
            raise InputError(f"{option.opts[0]} does not go with --auto; leave one of them out.")


def train_auto(
    model: str, *, steps: int, runs: Path, as_json: bool, cores: float | None, training: TrainingTable, **options: Any
) -> None:
    """Train a model that configures itself; exit code 1 if it was given up."""
    from labkit.elastic.process.limits import told as limits

    if not as_json:
        print(f"limits here: {limits()}; --auto limits cores and no memory", file=sys.stderr)
    with Teller(steps, quiet=as_json) as teller:
        record = auto(
            model, steps=steps, runs=runs, cores=cores, training=training, telling=teller.begun,
            begun=tell_watch, **options,
        )  # fmt: skip
    told = summary(record)
    print(json.dumps(told) if as_json else sentence(told, runs))
    raise typer.Exit(0 if record.complete else 1)


class Teller:
    """A progress bar, and above it what is decided and why, as it comes."""

    def __init__(self, steps: int, *, quiet: bool) -> None:
        self._bar = counter(steps, unit="step", shown=not quiet and sys.stderr.isatty())
        self._quiet = quiet
        self._reasons: Sequence[str] = ()

    def begun(self, reasons: Sequence[str]) -> Teller:
        """Return the observer of a run that begins, with the list of its reasons."""
        self._reasons = reasons
        return self

    def __call__(self, batch: Events) -> None:
        """Tell what happened in a batch."""
        for row in batch:
            if row["kind"] in (Kind.PROGRESSED, Kind.COMPLETED):
                self._bar.update(int(row["value"]) - self._bar.n)
                if row["speed"] > 0:
                    self._bar.set_postfix_str(f"{row['speed']:.1f} steps/s")
            elif row["kind"] == Kind.EXPLAINED and not self._quiet:
                self._bar.write(printable(f"{row['time_s']:6.1f} s  {self._reasons[int(row['value'])]}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def summary(record: RunRecord) -> dict[str, Any]:
    """Return what a run has come to, for JSON; it ends with the decisions."""
    from labkit.results.tuning import configurations

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


def sentence(told: dict[str, Any], runs: Path) -> str:
    """Return what a run has come to, in a line."""
    where = f"the run is in {runs / told['run']}"
    if told["steps"] is None:
        return f"{told['model']}: given up after {told['seconds']:.1f} s ({told['given_up']}); {where}"
    held, speeds = told["configurations"], told["steps_per_s"]
    last, changes = held[-1], len(held) - 1
    return (
        f"{told['model']}: {told['steps']} steps in {told['seconds']:.1f} s, loss {told['first_loss']:.4g} -> "
        f"{told['last_loss']:.4g}; {speeds['before']:.4g} steps/s at first, {speeds['after']:.4g} after "
        f"{changes} change{'s' * (changes != 1)}, with {last['n_workers']} workers x {last['worker_cores']:g} cores "
        f"and {last['n_ps']} PSs x {last['ps_cores']:g}; {where}"
    )
