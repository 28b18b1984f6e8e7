"""What a trace holds, as a table, as text and as numbers to draw; and the same trace at another arrival rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats, Ints
from labkit.workloads.expressions import is_generated, trace
from labkit.workloads.generators import SHAPES
from labkit.workloads.named_traces import located
from labkit.workloads.readers import read, sniff
from labkit.workloads.trace_check import because

if TYPE_CHECKING:
    import pandas as pd


_QUANTILES: Final = {"min": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}
_N_TOP: Final = 5
MOST_TYPES: Final = 8
"""Types of GPU that are named."""


def describe(jobs: Jobs) -> pd.DataFrame:
    """Return one row per quantity: how many jobs have it, its mean and its quantiles.

    Rows: gap_s (between arrivals), duration_s, gpus (of the asked gang), gpu_hours, total_steps.
    """
    import pandas as pd

    columns = {
        "gap_s": np.diff(jobs.arrival_s),
        "duration_s": jobs.duration_s,
        "gpus": jobs.gpus,
        "gpu_hours": jobs.gpus * jobs.duration_s / 3600,
        "total_steps": jobs.total_steps,
    }
    return pd.DataFrame({name: _summary(values) for name, values in columns.items()}).T


def offered_load(jobs: Jobs, *, n_gpus: float) -> float:
    """Return the GPU-seconds that jobs ask for over those that `n_gpus` GPUs offer until the last arrival.

    NaN if all jobs arrive at once or durations are not known.
    """
    if not n_gpus > 0:
        raise InputError(f"n_gpus is {n_gpus}; expected a number of GPUs > 0.")
    span_s = _span_s(jobs)
    return float(np.sum(jobs.gpus * jobs.duration_s)) / (n_gpus * span_s) if span_s > 0 else float("nan")


def scaled(jobs: Jobs, *, arrival_rate: float = np.nan, load: float = np.nan) -> Jobs:
    """Return the same jobs arriving `arrival_rate` times as fast, without the recorded schedule of other arrivals.

    `load` is the former name of `arrival_rate`.

    Raises
    ------
    InputError
        If it is not a number > 0.
    """
    rate = load if np.isnan(arrival_rate) else arrival_rate
    if not (np.isfinite(rate) and rate > 0):
        raise InputError(f"arrival_rate is {rate}; expected a factor > 0, 2 for jobs that arrive twice as fast.")
    with np.errstate(over="ignore"):  # the jobs tell what is wrong
        arrival_s = jobs.arrival_s / rate
        begin_s = jobs.begin_s - jobs.arrival_s + arrival_s
        return jobs.with_columns(arrival_s=arrival_s, begin_s=begin_s, recorded_start_s=np.full(len(jobs), np.nan))


def info(path: str | Path, *, format: str | None = None, n_gpus: float | None = None) -> str:
    """Return the lines of `labkit traces info FILE`: jobs, span, durations, GPUs and types, demand, models, users.

    Parameters
    ----------
    path : str or Path
        The trace, the name of one that comes with labkit, or a generator such as "poisson(80, per_hour=12)".
    format : str, optional
        Its format, if the contents do not show it.
    n_gpus : float, optional
        Report the offered load on a cluster with this many GPUs; otherwise the demand in GPU-hours per hour.

    Raises
    ------
    TraceError
        As `labkit.workloads.readers.read`.
    """
    if format is None and is_generated(str(path)):
        jobs, source, why = trace(path), ("trace", f"{path}, generated with seed 0"), ""
    else:
        jobs, source = read(path, format=format), ("file", f"{located(path)} ({format or sniff(path)})")
        why = "" if format else because(path)
    lines = [
        source,
        *([("format", why)] if why else []),
        ("jobs", f"{len(jobs):,}, {_tasks(jobs)}"),
        ("arrivals", f"over {_time(_span_s(jobs))}{_rate(jobs)}"),
        ("duration", _durations(jobs)),
        ("GPUs", _histogram(jobs)),
        *([("types", types)] if (types := _types(jobs)) else []),
        ("demand" if n_gpus is None else "offered load", _demand(jobs, n_gpus)),
        ("models", _top(jobs.models, jobs.model)),
        ("users", _top(jobs.users, jobs.user)),
    ]
    lines += [("note", note) for note in jobs.notes]
    wide = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{wide}}  {text}" for name, text in lines)


def _summary(values: Floats) -> dict[str, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return {"n": 0.0, "mean": np.nan} | dict.fromkeys(_QUANTILES, np.nan)
    quantiles = {name: float(np.quantile(known, q)) for name, q in _QUANTILES.items()}
    return {"n": float(len(known)), "mean": float(known.mean())} | quantiles


def _tasks(jobs: Jobs) -> str:
    kind = "with parameter servers" if (jobs.n_ps > 0).any() else "without parameter servers"
    grow = (jobs.max_workers > jobs.n_workers) | (jobs.max_ps > jobs.n_ps)
    return f"{'malleable' if grow.all() else 'some malleable' if grow.any() else 'rigid'}, {kind}"


def _span_s(jobs: Jobs) -> float:
    return float(jobs.arrival_s[-1] - jobs.arrival_s[0])


def _rate(jobs: Jobs) -> str:
    span_s = _span_s(jobs)
    return f", {(len(jobs) - 1) / span_s * 3600:.3g} jobs per hour" if span_s > 0 else " (all at once)"


def _durations(jobs: Jobs) -> str:
    known = jobs.duration_s[~np.isnan(jobs.duration_s)]
    if not len(known):
        return "not known"
    half, most, longest = (_time(float(np.quantile(known, q))) for q in (0.5, 0.95, 1.0))
    of = "" if len(known) == len(jobs) else f" (known of {len(known):,} jobs)"
    return f"median {half}, mean {_time(float(known.mean()))}, p95 {most}, longest {longest}{of}"


def _histogram(jobs: Jobs) -> str:
    kinds, counts = np.unique(np.round(jobs.gpus, 3), return_counts=True)
    largest = np.sort(np.argsort(-counts, kind="stable")[:12])
    shown = ", ".join(f"{kinds[i]:g}: {counts[i]:,}" for i in largest)
    return shown + (f", and {len(kinds) - 12} other sizes" if len(kinds) > 12 else "")


def _types(jobs: Jobs) -> str:
    """Return the types of GPU that jobs demand, and those that they ran on, with counts; "" where none is told."""
    parts = []
    for names, verb in ((jobs.device_type, "demanded"), (jobs.measured_on, "ran on")):
        counts = Counter(str(name) for name in names)
        without = counts.pop("", 0)
        if counts:
            shown = [f"{name} {n:,}" for name, n in counts.most_common(MOST_TYPES)]
            shown += [f"{len(counts) - MOST_TYPES} other types"] if len(counts) > MOST_TYPES else []
            parts.append(f"{verb}: {', '.join(shown)}{f', none {without:,}' if without else ''}")
    return "; ".join(parts)


def _demand(jobs: Jobs, n_gpus: float | None) -> str:
    busy = offered_load(jobs, n_gpus=1.0 if n_gpus is None else n_gpus)
    if np.isnan(busy):
        return "not known (all at once, or no durations)"
    return f"{busy:.3g} GPU-hours per hour" if n_gpus is None else f"{busy:.1%} of {n_gpus:g} GPUs"


def _top(names: tuple[str, ...], which: Ints) -> str:
    counts: NDArray[np.intp] = np.bincount(which, minlength=len(names))
    largest = np.argsort(-counts, kind="stable")[:_N_TOP]
    more = f", and {len(names) - _N_TOP} more" if len(names) > _N_TOP else ""
    return ", ".join(f"{names[i]} {counts[i]:,}" for i in largest) + more


def _time(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def with_epoch_error(jobs: Jobs, *, error: float, rng: np.random.Generator) -> Jobs:
    """Return the jobs with true lengths that differ from the declared ones by up to a fraction `error` of these.

    True steps are whole epochs, and at least one; a job of a single epoch, as all are in a trace that tells no epochs,
    may end anywhere.

    Raises
    ------
    InputError
        If the error is negative, or 1 or more.
    """
    if not 0 <= error < 1:
        raise InputError(f"epoch error {error}; expected a fraction of the declared length, from 0 to below 1.")
    drawn = jobs.total_steps * (1 + error * (2 * rng.random(len(jobs)) - 1))
    whole = np.maximum(np.round(drawn / jobs.steps_per_epoch), 1.0) * jobs.steps_per_epoch
    return jobs.with_columns(true_steps=np.where(jobs.total_steps > jobs.steps_per_epoch, whole, drawn))


STEPS: Final = 101
"""Points of a curve: every per cent of the jobs."""


def durations(traces: Mapping[str, Jobs]) -> pd.DataFrame:
    """Return which fraction of the jobs of each trace takes at most so long alone: trace, hours, fraction.

    A trace in which not every duration is known is left out.
    """
    import pandas as pd

    fraction = np.linspace(0, 1, STEPS)
    curves = [
        pd.DataFrame({"trace": name, "hours": np.quantile(jobs.duration_s, fraction) / 3600, "fraction": fraction})
        for name, jobs in traces.items()
        if not np.isnan(jobs.duration_s).any()
    ]
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=["trace", "hours", "fraction"])


def sizes(jobs: Jobs) -> pd.DataFrame:
    """Return the shares of jobs by the GPUs they ask for: gpus, of ("jobs" or "GPU-hours"), share."""
    import pandas as pd

    counted = pd.DataFrame({"gpus": jobs.gpus, "jobs": 1.0, "GPU-hours": jobs.gpus * jobs.duration_s})
    summed = counted.groupby("gpus").sum()
    return (summed / summed.sum()).reset_index().melt("gpus", var_name="of", value_name="share")


def arrivals(
    *, per_hour: float, days: int = 3, seed: int = 0, shapes: Mapping[str, Callable[..., Any]] = SHAPES
) -> pd.DataFrame:
    """Return how many jobs arrive in each hour, by the shape of arrivals: shape, hour, jobs.

    Parameters
    ----------
    per_hour : float
        The mean rate of all shapes.
    days : int
        How long.
    seed : int
        All shapes are drawn from it.
    shapes : mapping
        Name -> function of a number of jobs, `per_hour` and `rng`, that returns seconds.
    """
    import pandas as pd

    hours = 24 * days
    n = round(1.2 * per_hour * hours) + 10  # some more than come in that time
    counts = []
    for name, arrive in shapes.items():
        hour = np.asarray(arrive(n, per_hour=per_hour, rng=np.random.default_rng(seed))) / 3600
        jobs, _ = np.histogram(hour, np.arange(hours + 1))
        counts.append(pd.DataFrame({"shape": name, "hour": np.arange(hours), "jobs": jobs}))
    return pd.concat(counts, ignore_index=True)
