"""The order of samples in an epoch, from (seed, epoch) alone: the same on every machine, for any number of workers."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 12
"""Rounds of the permutation; 4 with random functions would do for many samples (Luby and Rackoff), few need more."""
PART: Final = 1 << 14
"""Positions that are computed together; the samples of a few such parts are cached."""
ODD: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: mixes each round's key into the half that it scrambles."""


def order(n_samples: int, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """Return the samples in their order, (n_samples,) int64: all of `samples_between`.

    Examples
    --------
    >>> order(8, 0, 0).tolist()
    [1, 7, 0, 6, 3, 4, 2, 5]
    >>> order(8, 0, 1).tolist()
    [6, 1, 2, 4, 7, 0, 5, 3]
    """
    return samples_between(0, n_samples, n_samples=n_samples, seed=seed, epoch=epoch, shuffle=shuffle)


def samples_between(
    start: int, end: int, *, n_samples: int, seed: int, epoch: int, shuffle: bool = True
) -> NDArray[np.int64]:
    """Return the samples at positions `start` to before `end` of an epoch's order, int64, read-only.

    A keyed permutation of the positions, so that time and memory depend on the positions asked for, and not on the size
    of the dataset: a Feistel network whose keys are raw numbers of the counter-based Philox generator. Numpy guarantees
    that these never change, so hosts with different versions agree. The network permutes a power of two; a position
    that it sends beyond the dataset is sent on until it is within (cycle walking: Black and Rogaway, CT-RSA 2002).

    Parameters
    ----------
    start, end : int
        Positions; those beyond the last sample are left out.
    n_samples : int
        Size of the dataset.
    seed, epoch : int
        The order depends on these only; both >= 0.
    shuffle : bool
        False: the order of the dataset.
    """
    end = min(end, n_samples)
    if not shuffle or start >= end:
        return np.arange(start, max(start, end), dtype=np.int64)
    first = start // PART
    parts = [_part(number, n_samples, seed, epoch) for number in range(first, -(-end // PART))]
    found = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return found[start - first * PART : end - first * PART]


@lru_cache(maxsize=8)
def _part(number: int, n_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the samples of the `PART` positions of a number, fewer at the end."""
    places = np.arange(number * PART, min((number + 1) * PART, n_samples), dtype=np.uint64)
    keys = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(ROUNDS)
    n_bits = max((n_samples - 1).bit_length(), 2)
    beyond = np.arange(len(places))
    while len(beyond):
        places[beyond] = _permuted(places[beyond], keys, n_bits)
        beyond = beyond[places[beyond] >= n_samples]
    found = places.view(np.int64)
    found.setflags(write=False)
    return found


def _permuted(places: NDArray[np.uint64], keys: NDArray[np.uint64], n_bits: int) -> NDArray[np.uint64]:
    """Return a permutation of the numbers of `n_bits` bits: each round scrambles one half by the other."""
    low_bits = np.uint64(n_bits // 2)
    high_bits = np.uint64(n_bits) - low_bits
    low, high = places & ((np.uint64(1) << low_bits) - np.uint64(1)), places >> low_bits
    for turn, key in enumerate(keys):
        if turn % 2:
            high = high ^ _mixed(low, key) >> np.uint64(64) - high_bits
        else:
            low = low ^ _mixed(high, key) >> np.uint64(64) - low_bits
    return high << low_bits | low


def _mixed(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return 64 bits that depend on value and key (finalizer of MurmurHash3); the upper ones are the best."""
    mixed = (values + key) * ODD
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    return mixed
