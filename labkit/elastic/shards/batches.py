"""Order of the samples of an epoch from (seed, epoch) alone, and the batches and shards cut from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.elastic.shards.book import Worker

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
    samples = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return samples[start - first * PART : end - first * PART]


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
    samples = places.view(np.int64)
    samples.setflags(write=False)
    return samples


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


Tail = Literal["drop", "carry"]


def logical_batches(
    n_samples: int, *, batch: int, n_shards: int, seed: int, epoch: int, shuffle: bool = True, tail: Tail = "drop"
) -> NDArray[np.int64]:
    """Return the samples of each logical shard of each step of an epoch, (steps, n_shards, batch / n_shards).

    It depends on its arguments only, and not on workers or servers, so neither do the trained parameters.

    Parameters
    ----------
    n_samples : int
        Size of the dataset.
    batch : int
        Samples of a step: the global batch.
    n_shards : int
        Logical shards of a batch, V; a divisor of `batch`.
    seed, epoch : int
        Of the order.
    shuffle : bool
        False: the order of the dataset.
    tail : {"drop", "carry"}
        Treatment of the last `n_samples % batch` samples of the order. "drop": no step of this epoch has them (another
        epoch drops others), so every sample takes part at most once. "carry": the first samples of the next epoch fill
        their batch, which belongs to this epoch, so every sample takes part exactly once per epoch, except the last
        ones of the whole training.

    Raises
    ------
    InputError
        If the dataset is shorter than a batch, or the batch cannot be cut into equal shards.

    Examples
    --------
    >>> logical_batches(7, batch=4, n_shards=2, seed=0, epoch=0, shuffle=False).tolist()
    [[[0, 1], [2, 3]]]
    >>> logical_batches(7, batch=4, n_shards=2, seed=0, epoch=0, shuffle=False, tail="carry").tolist()
    [[[0, 1], [2, 3]], [[4, 5], [6, 0]]]
    >>> logical_batches(7, batch=4, n_shards=2, seed=0, epoch=1, shuffle=False, tail="carry").tolist()
    [[[1, 2], [3, 4]], [[5, 6], [0, 1]]]
    """
    check_batch(n_samples, batch=batch, n_shards=n_shards)
    places = order(n_samples, seed, epoch, shuffle)
    if tail == "carry":
        first = -epoch * n_samples % batch  # taken by the last batch of the epoch before
        missing = -(n_samples - first) % batch
        more = samples_between(0, missing, n_samples=n_samples, seed=seed, epoch=epoch + 1, shuffle=shuffle)
        places = np.concatenate((places[first:], more))
    elif tail != "drop":
        raise InputError(f"tail is {tail!r}; expected 'drop' or 'carry'.")
    n_steps = len(places) // batch
    return places[: n_steps * batch].reshape(n_steps, n_shards, batch // n_shards)


def samples_of(
    step: int,
    leaf: int,
    *,
    n_samples: int,
    batch: int,
    n_shards: int,
    seed: int,
    between: Callable[[int, int, int], NDArray[np.int64]] | None = None,
) -> NDArray[np.int64]:
    """Return the samples of one logical shard of a step, (batch / n_shards,).

    Steps take their samples from the concatenated orders of all epochs, so that every sample takes part exactly once in
    every epoch: the result of `logical_batches` with tail="carry", without the rest of the epoch. `between` has the
    samples of an epoch by (start, end, epoch) if the order is another one.

    Examples
    --------
    >>> order(7, 0, 0).tolist(), order(7, 0, 1).tolist()
    ([1, 5, 0, 6, 3, 4, 2], [6, 1, 2, 4, 3, 0, 5])
    >>> [samples_of(1, leaf, n_samples=7, batch=4, n_shards=2, seed=0).tolist() for leaf in (0, 1)]
    [[3, 4], [2, 6]]
    """
    size = batch // n_shards
    epoch, start = divmod(step * batch + leaf * size, n_samples)

    def keyed(start: int, end: int, epoch: int) -> NDArray[np.int64]:
        return samples_between(start, end, n_samples=n_samples, seed=seed, epoch=epoch)

    between = between or keyed
    samples = between(start, start + size, epoch)
    while len(samples) < size:
        epoch += 1
        more = between(0, size - len(samples), epoch)
        samples = np.concatenate((samples, more))
    return samples


def check_batch(n_samples: int, *, batch: int, n_shards: int) -> None:
    """Check that a dataset can fill a batch, and that the batch can be cut into equal logical shards.

    Raise InputError if not; the message has the nearest valid values.
    """
    if batch < 1 or n_shards < 1:
        raise InputError(f"a batch of {batch} samples in {n_shards} logical shards; expected at least 1 of each.")
    if batch % n_shards:
        less, more = batch // n_shards * n_shards, -(-batch // n_shards) * n_shards
        nearest = f"{less} or {more}" if less else f"{more}"
        raise InputError(
            f"a batch of {batch} samples cannot be cut into {n_shards} equal logical shards; take a batch of {nearest}."
        )
    if n_samples < batch:
        raise InputError(
            f"the dataset has {n_samples} samples, fewer than one batch of {batch}; take a batch of at most "
            f"{max(n_samples, 1)}, or more samples."
        )


def deal(n_shards: int, speeds: Mapping[Worker, float]) -> dict[Worker, range]:
    """Return the logical shards of each worker: each shard once, such that the last worker finishes soonest.

    Each shard goes to the worker that would finish it first, which gives the shortest step; rounded shares do not. A
    worker that is much slower than the others may get none.

    Parameters
    ----------
    n_shards : int
        Logical shards of a batch, V.
    speeds : mapping
        Speed of each worker, > 0; only the ratios matter. The result does not depend on the order of the entries.

    Raises
    ------
    InputError
        If there is no worker, or a speed is not a number above 0.

    Examples
    --------
    Rounded shares would be 2 and 6, and the step a seventh longer:

    >>> deal(8, {"slow": 1.0, "fast": 4.0})
    {'fast': range(0, 7), 'slow': range(7, 8)}
    """
    if not speeds:
        raise InputError(f"{n_shards} logical shards and no worker to compute them; expected at least 1 worker.")
    for worker, speed in speeds.items():
        if not 0 < speed < float("inf"):
            raise InputError(f"the speed of worker {worker} is {speed}; expected a number above 0.")
    names = sorted(speeds, key=lambda worker: (isinstance(worker, str), worker))
    ready = [(1 / speeds[name], place) for place, name in enumerate(names)]
    heapify(ready)
    counts = [0] * len(names)
    for _ in range(n_shards):
        place = ready[0][1]
        counts[place] += 1
        heapreplace(ready, ((counts[place] + 1) / speeds[names[place]], place))
    firsts = [sum(counts[:place]) for place in range(len(names))]
    return {name: range(first, first + count) for name, first, count in zip(names, firsts, counts, strict=True)}
