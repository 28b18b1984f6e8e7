"""What a sweep runs: every combination of schedulers, seeds, traces, clusters and parameters."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from labkit.core.bounds import MAX_CELLS, whole
from labkit.core.calls import literal, python_value
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.core.text import labelled, split_names

Scalar = str | int | float | bool | None
ORDER: Final = ("trace", "cluster", "scheduler", "seed")
"""Axes that every grid has; parameters stand before the scheduler."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its value on each axis."""

    keys: Mapping[str, Scalar]
    """Axis -> value, in the order of the grid's axes."""

    @property
    def name(self) -> str:
        """The keys as text, the same whatever their order."""
        return json.dumps(dict(self.keys), sort_keys=True, ensure_ascii=False)

    @property
    def id(self) -> str:
        """A short name that depends on the keys alone."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]

    @property
    def seed(self) -> int:
        """Of everything that is random in this cell."""
        return int(self.keys["seed"] or 0)

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.keys.items())


@dataclass(frozen=True, init=False, eq=False)
class Grid:
    """Schedulers x seeds x traces x clusters x parameters.

    Parameters
    ----------
    schedulers : str, Scheduler, list or mapping
        Names that `labkit.schedulers.make` takes, or schedulers of one's own (instances or classes); a mapping gives
        them labels: {"backfilling": "fifo(backfill=True)", "mine": SmallestFirst}, and so does "mine=first.py:First".
    trace : str, path, Jobs or list
        Files, generators such as "poisson(80, per_hour=12)", or jobs.
    cluster : str or list
        Presets, expressions or inventories, as `labkit.topology.build` takes them; None: that of a `profile`.
    seeds : int or iterable of int
        One number means so many seeds, from 0 on. A cell has the very seed that it is named after, whatever else is
        in the grid, so schedulers are compared on the same jobs and the same faults.
    **parameters
        Further axes, a value or a list of values each: a field of `labkit.experiment.scenario.Scenario`, or one
        that all the schedulers take, such as `placer`.

    Attributes
    ----------
    axes : mapping
        Axis -> its values, in the order in which rows of the table differ: the last one fastest.
    traces, schedulers : mapping
        What each value of these axes stands for.

    Raises
    ------
    InputError
        If an axis is empty, has a value twice, or one that cannot be written down.

    Examples
    --------
    >>> grid = Grid(schedulers=["fifo", "srtf"], trace="poisson(9, per_hour=12)", cluster="demo", seeds=3, first=[5, 9])
    >>> len(grid)
    12
    >>> print(grid.cells[0])
    trace poisson(9, per_hour=12), cluster demo, first 5, scheduler fifo, seed 0
    """

    axes: Mapping[str, tuple[Scalar, ...]]
    traces: Mapping[str, str | Jobs]
    schedulers: Mapping[str, Any]

    def __init__(
        self,
        *,
        schedulers: str | Scheduler | type | Iterable[Any] | Mapping[str, Any],
        trace: str | Path | Jobs | Iterable[str | Path | Jobs],
        cluster: str | Iterable[str | None] | None,
        seeds: int | Iterable[int] = 1,
        **parameters: Scalar | Iterable[Scalar],
    ) -> None:
        traces = _labelled("trace", trace)
        chosen = _labelled("scheduler", _with_labels(schedulers))
        axes: dict[str, tuple[Scalar, ...]] = {"trace": tuple(traces), "cluster": _values("cluster", cluster)}
        axes |= {name: _values(name, values) for name, values in parameters.items()}
        axes |= {"scheduler": tuple(chosen), "seed": seeds_of(seeds)}
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "traces", traces)
        object.__setattr__(self, "schedulers", chosen)
        if len(self) > MAX_CELLS:
            told = " x ".join(f"{len(values):,} of {name}" for name, values in axes.items() if len(values) > 1)
            raise InputError(f"a sweep of {len(self):,} runs ({told}); expected at most {MAX_CELLS:,}.")

    @property
    def parameters(self) -> dict[str, tuple[Scalar, ...]]:
        """The axes that not every grid has."""
        return {name: values for name, values in self.axes.items() if name not in ORDER}

    @property
    def cells(self) -> list[Cell]:
        """All cells, in the order of the table."""
        return list(self._cells())

    def _cells(self) -> Iterator[Cell]:
        for values in product(*self.axes.values()):
            yield Cell(dict(zip(self.axes, values, strict=True)))

    def __repr__(self) -> str:
        told = [
            f"{len(values):,} {name}{'s' * (len(values) > 1 and name[-1] != 's')}" for name, values in self.axes.items()
        ]
        return f"<grid of {len(self):,} runs: {' x '.join(told)}>"

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())


def _labelled(axis: str, parts: Any) -> dict[str, Any]:
    """Return the values of an axis by label: text is its own label, jobs and schedulers have their names."""
    if isinstance(parts, Mapping):
        named = [(str(label), part) for label, part in parts.items()]
    else:
        named = [(_label(part), part) for part in _listed(parts)]
    _refuse_odd(axis, [label for label, _ in named])
    for label, part in named:
        if isinstance(part, Cluster) or not (isinstance(part, str | Path | Jobs) or hasattr(part, "schedule")):
            raise InputError(f"{axis} '{label}' is a {type(part).__name__}; expected a name or an object of that kind.")
    return {label: str(part) if isinstance(part, Path) else part for label, part in named}


def _with_labels(schedulers: Any) -> Any:
    """Return schedulers of which some are texts with labels, "mine=first.py:First", by label; others as they are."""
    if isinstance(schedulers, Mapping):
        return schedulers
    parts = [labelled(part) if isinstance(part, str) else (None, part) for part in _listed(schedulers)]
    if all(label is None for label, _ in parts):
        return [part for _, part in parts]
    labels = [_label(part) if label is None else label for label, part in parts]
    _refuse_odd("scheduler", labels)
    return dict(zip(labels, (part for _, part in parts), strict=True))


def _label(part: Any) -> str:
    if isinstance(part, str | Path):
        return str(part)
    if isinstance(part, Jobs):
        return part.name
    return (part if isinstance(part, type) else type(part)).__name__.lower()


def _listed(value: Any) -> list[Any]:
    single = isinstance(value, str | Path | Jobs | Mapping) or not isinstance(value, Iterable)
    return [value] if single else list(value)


def _values(axis: str, listed: Any) -> tuple[Scalar, ...]:
    values = [_scalar(axis, value) for value in _listed(listed)]
    _refuse_odd(axis, values)
    return tuple(values)


def seeds_of(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """Return the seeds that are given, or, of one number, so many from 0 on.

    Raise InputError if one is no whole number >= 0.

    >>> seeds_of(3), seeds_of(range(5, 7))
    ((0, 1, 2), (5, 6))
    """
    if not isinstance(seeds, Iterable):
        whole("a sweep", at_least=0, at_most=MAX_CELLS, seeds=seeds)
        seeds = range(int(seeds))
    values = _values("seeds", seeds)
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(f"seed {value!r}; expected whole numbers >= 0, such as range(5).")
    return tuple(int(value) for value in values if isinstance(value, int))


def _scalar(axis: str, value: Any) -> Scalar:
    """Return a value as JSON holds it; 2.0 is 2, so that a resumed sweep knows its cells again.

    A mapping, as of prices, is the text that says the same.
    """
    value = python_value(value)
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={each}" for key, each in value.items())
    value = "inf" if value == math.inf else str(value) if isinstance(value, Path) else value
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, str | bool | int):
        return value
    raise InputError(f"{axis} is {value!r}; expected text, True, False, None or a finite number.")


def _refuse_odd(axis: str, values: list[Any]) -> None:
    if not values:
        raise InputError(f"{axis} has no value; give at least one.")
    told = Counter(json.dumps(value) for value in values)
    for value in values:
        if told[json.dumps(value)] > 1:
            raise InputError(f"{axis} has '{value}' twice; name it once, or give the two different labels.")


def parameter(text: str) -> tuple[str, list[Any]]:
    """Return the name and the values of a parameter.

    >>> parameter("placer=pack,spread"), parameter("arrival_rate=1,1.5")
    (('placer', ['pack', 'spread']), ('arrival_rate', [1, 1.5]))
    """
    name, equals, values = text.partition("=")
    if not (equals and name.strip().isidentifier() and values.strip()):
        raise InputError(f"--set '{text}' cannot be read; expected NAME=A,B,..., such as placer=pack,spread.")
    if name.strip() in ("trace", "cluster", "scheduler", "schedulers", "seed", "seeds"):
        raise InputError(f"--set '{text}': {name.strip()} has an option of its own; see `labkit sweep --help`.")
    return name.strip(), [literal(value) for value in split_names(values)]
