"""Cores and memory of the tasks of a job on their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.resources import Amounts, Ints
from labkit.testbed.run.training import site_names

MemberLimits = dict[str, tuple[float | None, float | None]]
"""Member -> most cores and GB; None: no limit."""


class Given(NamedTuple):
    """Cores and GB of one task; None: as declared, which on machines means no limit."""

    site: str
    role: int
    cpus: float | None
    memory_gb: float | None


def given(
    cluster: Cluster, *, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts, memory_gb: Amounts
) -> list[Given]:
    """Return the amounts of the tasks of some rows of a placement, one by one; empty if no row has amounts.

    Ordered by site and role; the tasks of a role on a site in the order of their rows, which numbers them.
    """
    names, tasks = site_names(cluster), []
    for i in range(len(role) if len(cpus) or len(memory_gb) else 0):
        each = Given(names[group[i]], int(role[i]), _amount(cpus, i), _amount(memory_gb, i))
        tasks += [each] * int(count[i])
    some = any(each.cpus is not None or each.memory_gb is not None for each in tasks)
    return sorted(tasks, key=_order) if some else []


def by_row(tasks: Sequence[Given], site: str, role: int, n: int) -> list[tuple[int, float, float]]:
    """Return the n tasks of a role on a site as rows (count, cores, GB); NaN: as declared."""
    mine = [(each.cpus, each.memory_gb) for each in tasks if (each.site, each.role) == (site, role)][:n]
    mine += [(None, None)] * (n - len(mine))
    return [(len(list(some)), _or_nan(cpus), _or_nan(gb)) for (cpus, gb), some in groupby(mine)]


def _amount(column: Amounts, row: int) -> float | None:
    return round(float(column[row]), 6) if len(column) and not np.isnan(column[row]) else None


def _or_nan(amount: float | None) -> float:
    return np.nan if amount is None else amount


def _order(each: Given) -> tuple[str, int]:
    return each.site, each.role
