"""Bandwidth of flows that share links: max-min fair, or the share of the tightest link."""

from __future__ import annotations

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints


def max_min_rates(paths: Ints, capacity: Floats, *, compiled: bool = True) -> Floats:
    """Return max-min fair rates: no flow can gain but at the cost of one that has no more.

    In each round a link is a local bottleneck where its fair share is the least that any of its links offers to each of
    its flows; the flows of all local bottlenecks get their shares at once. This ends where textbook progressive filling
    [1]_ ends, which fills one link a round, in a tenth of the rounds or fewer. Raise InputError if a link number is
    outside 0..L, or a capacity is negative or NaN.

    Parameters
    ----------
    paths : array
        (F, H) links of each flow, L where there is none.
    capacity : array
        (L,) of the links, in the unit that the rates shall have.
    compiled : bool
        False: plain numpy, slower and the same to rounding.

    Returns
    -------
    array
        (F,) rates; infinite for a flow without links.

    References
    ----------
    .. [1] Bertsekas and Gallager, "Data networks", 2nd ed., sec. 6.5.2.

    Examples
    --------
    Two flows share link 0; one of them goes on over link 1, which is tighter:

    >>> max_min_rates(np.array([[0, 2], [0, 1]], np.int32), np.array([10.0, 4.0])).tolist()
    [6.0, 4.0]
    """
    _check(paths, capacity)
    if not compiled:
        return _max_min_plain(paths, capacity)
    from labkit.solvers.maxmin_kernel import fill

    rates: Floats = fill(np.ascontiguousarray(paths, dtype=np.int32), np.asarray(capacity, dtype=np.float64))
    return rates


def equal_share_rates(paths: Ints, capacity: Floats) -> Floats:
    """Return for each flow the least of its links' capacities, each divided by the number of flows on the link.

    What a flow cannot use because of its other links stays unused: never more than `max_min_rates`. Raise InputError as
    `max_min_rates`.

    `paths`, `capacity`: as for `max_min_rates`.

    Returns
    -------
    array
        (F,) rates; infinite for a flow without links.

    Examples
    --------
    >>> equal_share_rates(np.array([[0, 2], [0, 1]], np.int32), np.array([10.0, 4.0])).tolist()
    [5.0, 4.0]
    """
    _check(paths, capacity)
    users = np.bincount(paths.ravel(), minlength=len(capacity) + 1)
    share = np.append(capacity / np.maximum(users[:-1], 1), np.inf)
    rates: Floats = share[paths].min(axis=1, initial=np.inf)
    return rates


def _max_min_plain(paths: Ints, capacity: Floats) -> Floats:
    """Compute `maxmin_kernel.fill` in plain numpy."""
    rates = np.full(len(paths), np.inf)
    left = np.append(capacity, np.inf)
    active = np.flatnonzero((paths < len(capacity)).any(axis=1))
    while len(active):
        links = paths[active]
        users = np.bincount(links.ravel(), minlength=len(left))
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        share[-1] = np.inf
        offer = share[links].min(axis=1)
        least = np.full(len(left), np.inf)
        np.minimum.at(least, links, offer[:, None])
        bottleneck = least == share
        bottleneck[-1] = False
        frozen = bottleneck[links].any(axis=1)
        rates[active[frozen]] = offer[frozen]
        used = np.bincount(links[frozen].ravel(), np.repeat(offer[frozen], links.shape[1]), len(left))
        used[-1] = 0.0
        with np.errstate(invalid="ignore"):  # infinite capacity less infinite rates, on links without flows
            left = np.maximum(left - used, 0.0)
        active = active[~frozen]
    return rates


def _check(paths: Ints, capacity: Floats) -> None:
    if paths.ndim != 2 or (paths.size and (paths.min() < 0 or paths.max() > len(capacity))):
        raise InputError(
            f"paths has shape {paths.shape} and links {paths.min(initial=0)} to {paths.max(initial=0)}; "
            f"expected (flows, hops) of links 0 to {len(capacity)}, {len(capacity)} for none."
        )
    if not (capacity >= 0).all():
        worst = int(np.flatnonzero(~(capacity >= 0))[0])
        raise InputError(f"link {worst} has capacity {capacity[worst]}; expected 0 or more.")
