"""A trace by what it is called: a file, or a generator such as "poisson(80, per_hour=12)" and a seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.calls import read_call
from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.workloads.dl2_traces import dl2_jobs
from labkit.workloads.gavel_traces import gavel_jobs
from labkit.workloads.generators import SHAPES, catalogue_jobs, philly_like
from labkit.workloads.marl_traces import marl_jobs
from labkit.workloads.readers import read

KINDS: Final[dict[str, Callable[..., Jobs]]] = {"catalogue": catalogue_jobs, "philly": philly_like}
"""What arrives, by the name that `jobs=` takes."""

EXPECTED: Final = "a file, or a call with plain values such as poisson(80, per_hour=12)"


def _arriving(shape: str, n: int, *, seed: int, jobs: str = "catalogue", **options: Any) -> Jobs:
    """Return n jobs of a kind whose arrivals have a shape; the options are those of both."""
    if jobs not in KINDS:
        raise unknown("kind of jobs", jobs, KINDS)
    arrive, make = SHAPES[shape], KINDS[jobs]
    of_arrivals, of_jobs = _options(arrive), _options(make)
    for option in options:
        if option not in of_arrivals | of_jobs:
            raise unknown(f"option of {shape}", option, (of_arrivals | of_jobs) | {"jobs"})
    rng = np.random.default_rng(seed)
    arrival_s = arrive(n, rng=rng, **{name: options[name] for name in options if name in of_arrivals})
    return make(arrival_s, rng=rng, **{name: options[name] for name in options if name in of_jobs})


def _options(function: Callable[..., object]) -> set[str]:
    """Return the names of what may be given to a function beside its randomness."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"rng", "seed", "name"}


GENERATORS: Final[dict[str, Callable[..., Jobs]]] = {
    **{shape: partial(_arriving, shape) for shape in SHAPES},
    "gavel_jobs": gavel_jobs,
    "dl2_jobs": dl2_jobs,
    "marl_jobs": marl_jobs,
}
"""What an expression may call; each takes a `seed` too."""


def is_generated(what: str) -> bool:
    """Return whether a trace is an expression, whose jobs depend on a seed, and not a file.

    >>> is_generated("poisson(80, per_hour=12)"), is_generated("traces/demo.csv")
    (True, False)
    """
    return what.rstrip().endswith(")") and "(" in what and not _is_there(what)


def _is_there(what: str) -> bool:
    try:
        return Path(what).exists()
    except OSError:  # too long to be a name
        return False


def trace(what: str | Path, *, seed: int = 0, format: str | None = None, unscheduled: bool = False) -> Jobs:
    """Return the jobs of a file, or of a generator and a seed.

    Raise InputError if the expression cannot be read, with the nearest name; or as `labkit.workloads.read`.

    Parameters
    ----------
    what : str or Path
        A file, or a call with plain values: poisson, uniform, diurnal or google_like (number of jobs, per_hour, and
        any option of `catalogue_jobs`, or of `philly_like` with jobs="philly"), gavel_jobs, dl2_jobs or marl_jobs.
    seed : int
        Of a generator; a file has none.
    format : str, optional
        Of a file, where it cannot be told from its contents.
    unscheduled : bool
        Of a file: see `labkit.workloads.read`.

    Examples
    --------
    >>> len(trace("poisson(80, per_hour=12)", seed=3))
    80
    """
    text = str(what)
    if not is_generated(text):
        return read(what, format=format, unscheduled=unscheduled)
    call = read_call(text, thing="trace", expected=EXPECTED)
    if call.name not in GENERATORS:
        raise unknown("generator of traces", call.name, GENERATORS)
    if "seed" in call.options:
        raise InputError(f"{text}: the seed is given apart from the trace; leave it out here.")
    generate = GENERATORS[call.name]
    try:
        inspect.signature(generate).bind(*call.args, seed=seed, **call.options)
        jobs = generate(*call.args, seed=seed, **call.options)
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise InputError(
            f"cannot generate '{text}': {error}; expected e.g. poisson(80, per_hour=12), gavel_jobs(100, "
            "mean_gap_s=120), dl2_jobs('short_48n') or marl_jobs(load=5)."
        ) from None
    return replace(jobs, name=f"{text} seed {seed}")
