"""Arguments of a simulation, checked before it begins: one line that says what to give instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.bounds import MAX_DECISIONS
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.core.text import split_names
from labkit.experiment.cadence import Cadence
from labkit.schedulers import named
from labkit.simulator import Faults, Losses, Overheads, Troubles, Variation
from labkit.workloads.expressions import trace

KINDS: Final[dict[str, tuple[type, str]]] = {
    "cadence": (Cadence, "every_slot(600) or at_events()"),
    "overheads": (Overheads, "Overheads(start_s=20)"),
    "variation": (Variation, "Variation(period_s=600, error=0.1)"),
    "faults": (Faults, "Faults(mtbf_s=86400, mttr_s=600, checkpoint_s=60)"),
    "losses": (Losses, "Losses()"),
    "troubles": (Troubles, "Troubles.drawn(jobs, rng=rng)"),
}
"""What makes a run less than ideal, and its cadence: the type of each, and an example."""


def jobs_of(source: Any, *, seed: int = 0) -> Jobs:
    """Return jobs: themselves, read from a trace that is named, or generated with a seed ("poisson(80, per_hour=12)").

    Raise InputError if it is none of these, or has no jobs; or as `labkit.workloads.expressions.trace`.
    """
    if isinstance(source, Jobs):
        if not len(source):
            raise InputError(
                f"{source.name} has no jobs; expected at least one. Does a condition, as in take(), fit none?"
            )
        return source
    if isinstance(source, str | Path):
        return trace(source, seed=seed)
    raise InputError(
        f"jobs is a {type(source).__name__}; expected Jobs, the path of a trace, or a generator such as 'poisson(80, "
        "per_hour=12)'. Jobs.of(arrival_s=..., total_steps=..., n_workers=...) makes them from columns."
    )


def schedulers_of(schedulers: Any) -> list[Scheduler | str]:
    """Return the schedulers to compare; a text is a list of names, as on the command line.

    Raise InputError if there is none, or it is no list.

    >>> schedulers_of("fifo, las(quantum_s=60)")
    ['fifo', 'las(quantum_s=60)']
    """
    chosen = (
        split_names(schedulers)
        if isinstance(schedulers, str)
        else [schedulers]
        if hasattr(schedulers, "schedule")
        else schedulers
    )
    if not isinstance(chosen, Iterable):
        raise InputError(f"schedulers is a {type(schedulers).__name__}; expected a list of names or schedulers.")
    if not (names := list(chosen)):
        raise InputError("no scheduler is named; name at least one, e.g. fifo,srtf.")
    return names


def labelled_schedulers(schedulers: Any) -> dict[str, Scheduler | str]:
    """Return the schedulers to compare by what they are called: a mapping's labels, names, or classes with options.

    Raise InputError as `schedulers_of`, or if two would have one name.

    >>> from labkit.schedulers import make
    >>> list(labelled_schedulers([make("las", quantum_s=60.0), make("las", quantum_s=90.0), "fifo"]))
    ['las(quantum_s=60.0)', 'las(quantum_s=90.0)', 'fifo']
    """
    if isinstance(schedulers, Mapping):
        return {str(label): named(part, str(label))[0] for label, part in schedulers.items()}
    chosen = schedulers_of(schedulers)
    names = [named(part)[1] for part in chosen]
    for name in {name for name in names if names.count(name) > 1}:
        alike = [i for i, other in enumerate(names) if other == name]
        told = [_options(chosen[i]) for i in alike]
        differ = [option for option in told[0] if len({of.get(option) for of in told}) > 1]
        for i, of in zip(alike, told, strict=True):
            names[i] = f"{name}({', '.join(f'{option}={of.get(option)}' for option in differ)})" if differ else name
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(
            f"scheduler has '{twice}' twice; name it once, or give the two different labels: a={twice} in a list of "
            "names, {'a': ..., 'b': ...} in Python."
        )
    return dict(zip(names, chosen, strict=True))


def _options(scheduler: Any) -> dict[str, str]:
    """Return the options of a scheduler that is a dataclass, as text; none of another."""
    given = fields(scheduler) if is_dataclass(scheduler) and not isinstance(scheduler, type) else ()
    return {field.name: repr(getattr(scheduler, field.name)) for field in given if field.init}


def refuse_odd(options: Mapping[str, Any], *, kinds: Mapping[str, tuple[type, str]], seed: Any) -> None:
    """Raise if a part of a simulation is of another kind than it should be, or a seed is no whole number >= 0.

    `options`: name of a part -> what was given, None where it was left out; `kinds`: name of a part -> the type that it
    must have, and how to make one.
    """
    for name, (kind, example) in kinds.items():
        if options[name] is not None and not isinstance(options[name], kind):
            raise InputError(f"{name} is {options[name]!r}; expected e.g. {example}.")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed is {seed!r}; expected a whole number >= 0.")


def refuse_endless(jobs: Jobs, *, every_s: float) -> None:
    """Raise if slots are so short that decisions would not come to an end within reason.

    Raise InputError if they cut the time from the first arrival until the longest job could be over into more than ten
    million.
    """
    last_s = np.nanmax(np.append(jobs.arrival_s + np.nan_to_num(jobs.duration_s), 0.0))
    span_s = float(last_s - jobs.arrival_s.min(initial=0.0))
    if span_s > MAX_DECISIONS * every_s:
        raise InputError(
            f"a decision every {every_s:g} s over the {span_s:,.0f} s of {jobs.name} is {span_s / every_s:.3g} "
            f"decisions; expected at most {MAX_DECISIONS:,}: decide every {span_s / MAX_DECISIONS:.2g} s or less often."
        )


def refuse_unpriced(prices: Mapping[str, float] | None, cluster: Cluster) -> None:
    """Raise if prices were given, and some GPUs of a cluster have none: what runs cost could not be told."""
    types = cluster.gpu_types
    missing = [kind for kind in types if prices is not None and kind not in prices]
    if missing:
        raise InputError(
            f"prices: {', '.join(missing)} of {cluster.name} has none; given: {', '.join(prices or ())}. Expected "
            f"dollars per GPU and hour for each of {', '.join(types)}."
        )
