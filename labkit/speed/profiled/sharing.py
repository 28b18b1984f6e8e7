"""Cores of a machine, divided among those that run on it."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Floats


def max_min(demand: Floats, capacity: float, *, weight: Floats | None = None) -> Floats:
    """Return what each gets of a capacity: max-min fair, in proportion to weights, and never more than it asks for.

    No share can grow but at the cost of one that is no larger for its weight. As long as all ask for no more than there
    is, each gets what it asks for.

    Parameters
    ----------
    demand : array
        (J,) what each could use, >= 0.
    capacity : float
        What there is.
    weight : array, optional
        (J,) > 0.

    Returns
    -------
    array
        (J,) shares.

    Examples
    --------
    One that asks for little gets it; the others divide the rest:

    >>> max_min(np.array([0.2, 2.0, 1.0]), 2.0).tolist()
    [0.2, 0.9, 0.9]
    """
    if demand.sum() <= capacity:
        return demand.copy()
    weight = np.ones_like(demand) if weight is None else weight
    order = np.argsort(demand / weight, kind="stable")  # the smallest demands first
    d, w = demand[order], weight[order]
    before = np.concatenate([[0.0], np.cumsum(d)[:-1]])
    left = w[::-1].cumsum()[::-1]  # weights from here on
    level = (capacity - before) / left  # what a weight of 1 gets if all before are content
    content = d <= level * w
    first = len(d) if content.all() else int(np.argmin(content))
    share = np.empty_like(d)
    share[:first] = d[:first]
    if first < len(d):
        share[first:] = level[first] * w[first:]
    result = np.empty_like(d)
    result[order] = share
    return result
