"""The order of samples in an epoch, from (seed, epoch) alone: the same on every machine, for any number of workers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=2)
def order(n_samples: int, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """Return the samples in their order, (n_samples,) int64, read-only; the last two orders are cached.

    Raw numbers of the counter-based Philox generator are sorted, each with its sample in the low bits. Numpy guarantees
    that these numbers never change, so hosts with different versions agree; it does not guarantee that of
    `Generator.permutation`.

    Parameters
    ----------
    n_samples : int
        Size of the dataset.
    seed, epoch : int
        The order depends on these only; both >= 0.
    shuffle : bool
        False: the order of the dataset.

    Examples
    --------
    >>> order(8, 0, 0).tolist()
    [0, 3, 7, 5, 1, 2, 6, 4]
    >>> order(8, 0, 1).tolist()
    [3, 7, 4, 2, 1, 6, 5, 0]
    """
    found = np.arange(n_samples, dtype=np.uint64)
    if shuffle:
        n_bits = max(n_samples - 1, 0).bit_length()
        raw = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(n_samples)
        found |= raw >> np.uint64(n_bits) << np.uint64(n_bits)
        found.sort()
        found &= np.uint64((1 << n_bits) - 1)
    places = found.view(np.int64)
    places.setflags(write=False)
    return places
