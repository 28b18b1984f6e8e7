"""Which samples make up each logical shard of each step: a function of (seed, epoch) alone."""

from __future__ import annotations

import numpy as np

from labkit.core.errors import InputError


class Batches:
    """Every epoch goes once through all samples in an order of its own, in whole global batches.

    Parameters
    ----------
    n_samples : int
        Of the dataset; what does not fill a last batch waits for another epoch.
    batch : int
        Samples of a global batch.
    n_shards : int
        V, logical shards of a batch.
    seed : int
        Of the orders.

    Raises
    ------
    InputError
        If the dataset is shorter than a batch, or a batch does not divide into V.

    Examples
    --------
    >>> batches = Batches(8, batch=4, n_shards=2, seed=0)
    >>> sorted(i for step in range(2) for leaf in range(2) for i in batches.indices(step, leaf))
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(self, n_samples: int, *, batch: int, n_shards: int, seed: int) -> None:
        if n_samples < batch:
            raise InputError(
                f"the dataset has {n_samples} samples, fewer than a batch of {batch}; give a smaller batch."
            )
        if n_shards < 1 or batch % n_shards:
            raise InputError(
                f"a batch of {batch} samples does not divide into {n_shards} logical shards; give a multiple of them."
            )
        self.n_samples, self.batch, self.n_shards, self.seed = n_samples, batch, n_shards, seed
        self.per_epoch = n_samples // batch
        self._order: tuple[int, np.ndarray] | None = None

    def indices(self, step: int, leaf: int) -> list[int]:
        """Return the samples of a logical shard of a step."""
        epoch, within = divmod(step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            draw = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, epoch))))
            self._order = epoch, draw.permutation(self.n_samples)
        each = self.batch // self.n_shards
        first = within * self.batch + leaf * each
        found: list[int] = self._order[1][first : first + each].tolist()
        return found
