"""Events to and from columns of a file: kinds and roles by name, so that any tool can read the files."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import LATER, NAMED, PLAIN, Events, events, names, positions
from labkit.core.jobs import Jobs
from labkit.core.parquet import Texts
from labkit.core.text import shortened

Columns = Mapping[str, NDArray[Any] | Texts]


def to_columns(rows: Events) -> dict[str, NDArray[Any] | Texts]:
    """Return the fields of `EVENT`; kind, role, quantity and cause by name."""
    columns: dict[str, NDArray[Any] | Texts] = {name: np.ascontiguousarray(rows[name]) for name in PLAIN}
    for name, enum in NAMED.items():
        columns[name] = Texts(positions(np.ascontiguousarray(rows[name]), enum), names(enum))
    return {name: columns[name] for name in rows.dtype.names or ()}


def from_columns(columns: Columns, *, source: str) -> Events:
    """Return the events of `to_columns`.

    Raises
    ------
    InputError
        If a column is missing or holds something else, or a kind is not known; the message names `source`.
    """
    missing = [name for name in (*PLAIN, *NAMED) if name not in (*columns, *LATER)]
    if missing:
        raise InputError(f"{source}: column '{missing[0]}' is missing; is it an event table of labkit?")
    given = [name for name in (*PLAIN, *NAMED) if name in columns]
    for name in given:
        column = columns[name]
        kind = "text" if isinstance(column, Texts) else column.dtype.kind
        if kind not in ({"text"} if name in NAMED else {"f", "i"}):
            raise InputError(f"{source}: column '{name}' has another type; is it an event table of labkit?")
    first = columns[given[0]]
    rows = events(len(first))
    for name in given:
        column = columns[name]
        rows[name] = _codes(column, NAMED[name], source=source) if isinstance(column, Texts) else column
    return rows


def refuse_odd_rows(rows: Events, *, jobs: Jobs, cluster: Cluster, source: str) -> None:
    """Raise if events have times that are no numbers, or name jobs or machines that a run does not have.

    Raises
    ------
    InputError
        With the first such event.
    """
    limits = {"job": len(jobs), "partner": len(jobs), "machine": cluster.n_machines, "group": cluster.n_groups}
    checks = {name: (rows[name] < -1) | (rows[name] >= n) for name, n in limits.items()}
    checks["time_s"] = ~np.isfinite(rows["time_s"])
    for name, wrong in checks.items():
        if wrong.any():
            at = int(np.argmax(wrong))
            expected = "seconds" if name == "time_s" else f"-1 to {limits[name] - 1}"
            raise InputError(f"{source}: event {at} has the {name} {rows[name][at]:g}; expected {expected}.")


def _codes(column: Texts, enum: type[IntEnum], *, source: str) -> NDArray[np.int8]:
    """Return the numbers behind names, -1 for none; the file may list the names in another order."""
    number = {member.name.lower(): int(member) for member in enum}
    foreign = [name for name in column.names if name not in number]
    if foreign:
        raise InputError(
            f"{source}: {enum.__name__.lower()} {shortened(foreign[0])!r} is not known; it is of a newer labkit."
        )
    codes: NDArray[np.int8] = np.array([*(number[name] for name in column.names), -1], dtype=np.int8)[column.codes]
    return codes
