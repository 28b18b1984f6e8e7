"""Search the options of a scheduler: trials on some seeds, and the best of them checked on others.

`tunes/<name>/` holds `tune.json` (what was asked) and `trials.log` (Optuna's journal, a line per step, so that the same
call goes on where it was). Each trial is drawn by a sampler of its own seed and number: a search that was interrupted
goes through the same trials as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.below import read_plain, refuse_foreign
from labkit.core.bounds import whole
from labkit.core.errors import InputError, SweepError, unknown
from labkit.core.files import make_writable, write_text
from labkit.core.jobs import Jobs
from labkit.core.raised import raised_at
from labkit.experiment.cell import check
from labkit.experiment.grid import Grid, Scalar, seeds_of
from labkit.experiment.inputs import Inputs
from labkit.experiment.ranges import Range, Value
from labkit.experiment.sweeping import sweep
from labkit.results.files import RunLock
from labkit.results.sweeps import refuse_unknown_metric, sweep_differences
from labkit.schedulers import make, open_options
from labkit.system.release import how_to_get

if TYPE_CHECKING:
    import optuna
    import pandas as pd

PLAN, TRIALS = "tune.json", "trials.log"
HIGHEST: Final = ("jain_index",)
"""Metrics of which more is better."""
DEFAULT: Final = "as it is"
"""The label of the scheduler with the options that it has by itself."""
TUNED: Final = "tuned"


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a search found."""

    trials: pd.DataFrame
    """A row per trial: trial, the options, value (mean of the metric over the seeds searched; NaN: it failed),
    error."""
    best: dict[str, Value]
    """The options of the best trial; numbers with four digits."""
    checked: pd.DataFrame
    """The best trial ("tuned") and the scheduler without them ("as it is") on the other seeds: a sweep's table."""
    searched: tuple[int, ...]
    check_seeds: tuple[int, ...]
    """`searched` and `check_seeds`: the seeds of the trials, and of the check."""
    edges: tuple[str, ...]
    """Options whose best value is at an end of their range."""
    name: str
    """The scheduler with the best options."""
    metric: str
    highest: bool
    """`metric` and `highest`: what was searched."""

    @property
    def idle(self) -> bool:
        """Whether several trials gave one and the same value: what was searched changes nothing."""
        values = self.trials["value"].dropna()
        return len(values) > 1 and len(set(values)) == 1

    @property
    def verdict(self) -> str:
        """Whether the best is better on seeds that were not searched, in one sentence."""
        if self.idle:
            return "All trials gave the same value: these options have no effect on this trace."
        row = self._difference
        if not row["n"] or np.isnan(row["low"]):
            return "The check shows nothing: it needs two seeds on which both ran."
        low, high, change = (100 * row[name] / row["base"] for name in ("low", "high", "mean"))
        n_better = row["n"] - row["n_lower"] if self.highest else row["n_lower"]
        told = (
            f"{change:+.1f}% (95% confidence interval {low:+.1f} to {high:+.1f}%), better on {n_better} of "
            f"{row['n']} seeds"
        )
        if low <= 0 <= high:
            return f"On the held-out seeds the best trial does not differ significantly from the default: {told}."
        which = "better" if self.is_better else "worse"
        return f"On the held-out seeds the best trial is significantly {which}: {told}."

    @property
    def is_better(self) -> bool:
        """Whether the best is better on seeds that were not searched, and the whole interval says so."""
        row = self._difference
        return not self.idle and bool(row["low"] > 0 if self.highest else row["high"] < 0)

    @property
    def _difference(self) -> dict[str, Any]:
        (row,) = sweep_differences(self.checked, metric=self.metric, base=DEFAULT).to_dict("records")
        return {str(name): value for name, value in row.items()}


def tune(
    scheduler: str,
    ranges: Sequence[Range],
    *,
    trace: str | Jobs,
    cluster: str,
    folder: str | Path,
    metric: str = "mean_jct_s",
    highest: bool | None = None,
    n_trials: int = 30,
    seeds: Iterable[int] = range(3),
    check_seeds: Iterable[int] = range(100, 110),
    seed: int = 0,
    after_each: Callable[[int, float, dict[str, Value]], None] | None = None,
    **parameters: Scalar,
) -> Tuned:
    """Search options of a scheduler for the best mean of a metric, and check the best on seeds that were not searched.

    The first trial has those values that the scheduler has by itself and that are within the ranges. A trial that fails
    is told and left out; the others stay.

    Parameters
    ----------
    scheduler : str
        A name that `labkit.schedulers.make` takes.
    ranges : sequence of Range
        The options to search.
    trace, cluster : str or Jobs, str
        What each trial runs: one of each, as an axis of `Grid` takes them.
    folder : path
        Where trials are kept; the same call goes on from there, also with more trials.
    metric : str
        What is compared, by its mean over the seeds: a name of `RunRecord.summary`.
    highest : bool, optional
        Look for the highest value; by default only of metrics of which more is better.
    n_trials : int
        How many trials there are in the end, those that are done among them.
    seeds, check_seeds : iterable of int
        Of the trials, and of the check; no seed may be in both.
    seed : int
        Seed of the search.
    after_each : callable, optional
        Called with number, value and options of each trial that ran.
    **parameters
        Of the runs: fields of a `labkit.experiment.scenario.Scenario`.

    Raises
    ------
    InputError
        Before anything runs, if an option is not known or seeds overlap; if the folder holds another search.
    SweepError
        If every trial failed.
    """
    optuna = _optuna()
    refuse_unknown_metric(metric)
    if not isinstance(scheduler, str):
        raise InputError(f"scheduler is a {type(scheduler).__name__}; expected a name, such as 'las'.")
    whole("a search", at_least=1, n_trials=n_trials)
    searched, checked = seeds_of(seeds), seeds_of(check_seeds)
    _refuse_overlap(searched, checked)
    ranges = [Range.read(each) if isinstance(each, str) else each for each in ranges]
    own = _own_values(scheduler, ranges)
    ranges = [each.fitting(own[each.name]) for each in ranges]
    grid = Grid(schedulers={TUNED: scheduler}, trace=trace, cluster=cluster, seeds=searched, **parameters)
    inputs = Inputs.of(grid)
    check(grid, inputs)
    up = metric in HIGHEST if highest is None else highest
    settings = {
        "scheduler": scheduler, "ranges": [repr(each) for each in ranges], "metric": metric, "highest": up,
        "seed": seed, "axes": dict(grid.axes), "meanings": inputs.meanings(grid),
    }  # fmt: skip
    with _Folder(folder, settings) as path:
        study = _study(optuna, path, up=up)
        if not study.trials:
            study.enqueue_trial({each.name: own[each.name] for each in ranges if each.holds(own[each.name])})
        run = _Trial(scheduler, trace, cluster, searched, metric, parameters)
        while len(_ended(study)) < n_trials:
            _next(optuna, study, ranges, run, seed=seed, after_each=after_each)
    trials = _table(study, ranges)
    if trials["value"].isna().all():
        raise SweepError(f"every trial failed; the last: {trials['error'].iloc[-1]}")
    values = trials["value"].to_numpy(np.float64)
    row = int(np.nanargmax(values) if up else np.nanargmin(values))
    best = {each.name: _short(each, study.trials[int(trials["trial"][row])].params[each.name]) for each in ranges}
    both = {DEFAULT: scheduler, TUNED: _with(scheduler, best)}
    told = _quiet(Grid(schedulers=both, trace=trace, cluster=cluster, seeds=checked, **parameters))
    edges = tuple(each.name for each in ranges if each.at_edge(best[each.name]))
    return Tuned(trials, best, told, searched, checked, edges, both[TUNED], metric, up)


@dataclass(frozen=True)
class _Trial:
    """Runs the scheduler with some options on the seeds that are searched."""

    scheduler: str
    trace: str | Jobs
    cluster: str
    seeds: tuple[int, ...]
    metric: str
    parameters: dict[str, Scalar]

    def __call__(self, values: dict[str, Value]) -> float:
        """Return the mean of the metric; SweepError if a run failed, or has no number."""
        grid = Grid(
            schedulers={TUNED: _with(self.scheduler, values)}, trace=self.trace, cluster=self.cluster, seeds=self.seeds,
            **self.parameters,
        )  # fmt: skip
        table = _quiet(grid)
        if (failed := table["error"][table["error"] != ""]).size:
            raise SweepError(str(failed.iloc[0]))
        value = float(table[self.metric].mean())
        if np.isnan(value):
            raise SweepError(f"{self.metric} has no number there")
        return value


def _next(
    optuna: Any, study: optuna.Study, ranges: Sequence[Range], run: _Trial, *, seed: int, after_each: Any
) -> None:
    """Ask for the options of one trial, run it, and tell what came out."""
    number = len(_ended(study))
    drawn = np.random.SeedSequence([seed, number]).generate_state(1)[0]
    study.sampler = optuna.samplers.TPESampler(seed=int(drawn), multivariate=True)
    trial = study.ask({each.name: each.distribution() for each in ranges})
    values = {each.name: _short(each, trial.params[each.name]) for each in ranges}
    try:
        value = run(values)
    except KeyboardInterrupt:
        raise
    except Exception as error:  # a user's scheduler may raise anything; the search goes on
        trial.set_user_attr("error", " ".join(f"{type(error).__name__}: {error}{raised_at(error)}".split()))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        value = float("nan")
    else:
        study.tell(trial, value)
    if after_each is not None:
        after_each(number, value, values)


def _ended(study: optuna.Study) -> list[Any]:
    """Return the trials that came to an end; one that was interrupted is no trial."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def _table(study: optuna.Study, ranges: Sequence[Range]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "trial": trial.number,
                **{each.name: _short(each, trial.params[each.name]) for each in ranges},
                "value": np.nan if trial.value is None else trial.value,
                "error": trial.user_attrs.get("error", ""),
            }
            for trial in _ended(study)
        ]
    )


def _quiet(grid: Grid) -> pd.DataFrame:
    """Run a grid in this process; what is noted of a run is told by the check, and not once a trial."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sweep(grid, workers=0, progress=False)


def _short(each: Range, value: Value) -> Value:
    """Return a number with as many digits as a search can tell apart: what is tried, checked and advised.

    >>> _short(Range.read("a=1.0:9000.0"), 2203.549651158717), _short(Range.read("a=pack,spread"), "pack")
    (2204.0, 'pack')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    short = type(value)(float(f"{value:.4g}"))
    return short if each.holds(short) else value


def _with(scheduler: str, values: dict[str, Value]) -> str:
    """Return the name of a scheduler with options in brackets.

    >>> _with("las(quantum_s=60)", {"placer": "pack"}), _with("las", {"quantum_s": 5.0})
    ("las(quantum_s=60, placer='pack')", 'las(quantum_s=5.0)')
    """
    told = ", ".join(f"{name}={value!r}" for name, value in values.items())
    name, bracket, rest = scheduler.strip().partition("(")
    given = rest.rstrip().removesuffix(")").strip() if bracket else ""
    return f"{name}({', '.join(part for part in (given, told) if part)})"


def _own_values(scheduler: str, ranges: Sequence[Range]) -> dict[str, Any]:
    """Return the defaults of a scheduler for the options that are searched, parts of it by their names.

    Raise InputError if there are none, or one is no option of the scheduler, or stands in its name already.
    """
    known = open_options(scheduler)
    if not ranges:
        raise InputError(
            f"nothing to search; name options with --param, of {', '.join(known) or 'which none is left'}."
        )
    for each in ranges:
        if each.name not in known:
            raise unknown(f"open option of {scheduler}", each.name, known)
    made = make(scheduler)
    own = {each.name: getattr(made, each.name, known[each.name]) for each in ranges}
    return {
        each.name: next((v for v in each.values if _is_named(own[each.name], v)), own[each.name]) for each in ranges
    }


def _is_named(part: Any, name: Value) -> bool:
    """Return whether a part, such as a placer, is the one of a name."""
    return isinstance(name, str) and type(part).__name__.lower() == name.replace("_", "")


def _refuse_overlap(searched: Sequence[int], checked: Sequence[int]) -> None:
    if both := sorted(set(searched) & set(checked)):
        raise InputError(
            f"seeds {both} are used both for the search and for the check; choose different ones for the check."
        )


def _study(optuna: Any, path: Path, *, up: bool) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls its journal experimental
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        storage = JournalStorage(JournalFileBackend(str(path / TRIALS)))
        study: optuna.Study = optuna.create_study(
            storage=storage, study_name="tune", load_if_exists=True, direction="maximize" if up else "minimize"
        )
    return study  # type: ignore[no-any-return]


def _optuna() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise InputError(f"searching options needs Optuna; {how_to_get('optuna')}.") from None
    return optuna


def _plan_in(path: Path) -> dict[str, Any]:
    data = read_plain(path)
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} does not describe a search ({error}); take another folder.") from None


class _Folder:
    """The folder of one search, which one process has at a time."""

    def __init__(self, folder: str | Path, settings: dict[str, Any]) -> None:
        self._path = Path(folder)
        plain = json.loads(json.dumps(settings))  # as it is read back
        self._settings = {**plain, "digest": hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}

    def __enter__(self) -> Path:
        plan = self._path / PLAN
        if os.path.lexists(self._path):
            refuse_foreign(self._path)
        if plan.exists():
            self._refuse_other(_plan_in(plan))
        elif self._path.is_dir() and any(self._path.iterdir()):
            raise InputError(f"{self._path} holds other files; name an empty folder, or a new one.")
        make_writable(self._path)
        self._lock = RunLock(self._path)
        if not plan.exists():
            write_text(plan, json.dumps(self._settings, indent=1) + "\n")
        return self._path

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _refuse_other(self, old: dict[str, Any]) -> None:
        if old.get("digest") != self._settings["digest"]:
            apart = [name for name in self._settings if name != "digest" and old.get(name) != self._settings[name]]
            raise InputError(
                f"{self._path} holds another search: {', '.join(apart)} differ. Take another folder, or ask as before."
            )
