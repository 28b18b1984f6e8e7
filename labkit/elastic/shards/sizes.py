"""The size of a lease: minibatches for some seconds of a worker's time, and fewer near the end of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil


def n_minibatches(
    *, speed: float | None, others: Iterable[float | None], waiting: int, base_shard: int, target_s: float, most: int
) -> int:
    """Return how many minibatches the next lease should have.

    Near the end of an epoch a worker gets at most half of its share of the waiting samples, so that all workers finish
    together: guided self-scheduling [1]_, with the factor of factoring [2]_.

    Parameters
    ----------
    speed : float or None
        Samples per second of this worker; None if unknown: it then gets one minibatch, to be measured.
    others : iterable of float or None
        Speeds of the other active workers; an unknown one counts as the mean of the known ones.
    waiting : int
        Samples of the epoch that are neither leased nor committed.
    base_shard : int
        Samples of a minibatch.
    target_s : float
        Seconds of work that a lease should have.
    most : int
        Largest number of minibatches.

    References
    ----------
    .. [1] Polychronopoulos and Kuck, "Guided self-scheduling", IEEE Trans. Computers 36(12), 1987.
    .. [2] Hummel, Schonberg and Flynn, "Factoring", Comm. ACM 35(8), 1992.

    Examples
    --------
    >>> n_minibatches(speed=640, others=[160], waiting=10**6, base_shard=32, target_s=3, most=64)
    60
    >>> n_minibatches(speed=640, others=[160], waiting=1600, base_shard=32, target_s=3, most=64)
    20
    """
    if speed is None:
        return 1
    by_time = int(min(speed * target_s / base_shard, most))
    listed = list(others)
    known = [each for each in listed if each is not None] + [speed]
    total = sum(known) * (len(listed) + 1) / len(known)
    share = ceil(waiting / base_shard) * (speed / total)
    return max(1, min(by_time, ceil(share / 2)))
