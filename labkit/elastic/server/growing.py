"""Embedding tables whose memory grows with use: pages of zeros take no memory until a gradient arrives for them.

In the layout and in checkpoints an embedding has all its rows. On a server of asynchronous training the blocks of a
table whose rows start at zero lie in anonymous memory, which the kernel allocates page by page on the first write.
An update skips pages whose parameters, optimizer state and gradients are all zero. The result has the same bits,
because every optimizer here maps a zero parameter with zero state and zero gradient to zero. An update of one's own
need not: with the first one all pages are in use.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.server.updates import Updates

Pages = NDArray[np.bool_]
"""(ceil(n / PAGE),): whether each page of a block is in use."""
PAGE: Final = mmap.PAGESIZE // 4
"""Float32 numbers on a page."""
LEAST_PAGES: Final = 4
"""Blocks with fewer pages get all their memory at once."""


def mapped(n: int) -> Vector:
    """Return n zeros that take no memory until they are written."""
    memory = mmap.mmap(-1, max(4 * n, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # else the first write may take 2 MB
    return np.frombuffer(memory, np.float32, n)


def in_use(vector: Vector) -> Pages:
    """Return which pages of a vector have a number other than zero, (ceil(n / PAGE),)."""
    whole = len(vector) // PAGE * PAGE
    found: Pages = np.asarray(vector[:whole].reshape(-1, PAGE).any(axis=1))
    return found if whole == len(vector) else np.append(found, vector[whole:].any())


def copied(vector: Vector, pages: Pages) -> Vector:
    """Return a copy of a vector that is zero outside `pages`; only these take memory."""
    copy = mapped(len(vector))
    for part in runs(pages):
        copy[part] = vector[part]
    return copy


def runs(pages: Pages) -> Iterator[slice]:
    """Yield the slices of a vector that cover the marked pages, one for each run of neighbours.

    >>> list(runs(np.array([True, True, False, True]))) == [slice(0, 2 * PAGE), slice(3 * PAGE, 4 * PAGE)]
    True
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], pages, [False]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        yield slice(first * PAGE, last * PAGE)


def grown(rows: NDArray[np.float32]) -> tuple[list[Vector], Pages | None]:
    """Return copies of a block's vectors; if at least half of the pages are zero in all of them, these take no memory.

    Parameters
    ----------
    rows : array
        (V, n) float32: parameters, then the vectors of the optimizer.

    Returns
    -------
    list of array, array or None
        The vectors, (n,) each; the pages in use, or None for a block that has all its memory.
    """
    if rows.shape[1] >= LEAST_PAGES * PAGE:
        pages = np.logical_or.reduce([in_use(row) for row in rows])
        if 2 * np.count_nonzero(pages) <= len(pages):
            return [copied(row, pages) for row in rows], pages
    return list(rows.copy()), None


@dataclass(frozen=True, slots=True)
class GrowingValues:
    """An optimizer that skips unused pages; a page is in use from its first nonzero gradient on.

    Attributes
    ----------
    pages : array
        Pages in use; updated in place.
    """

    optimizer: Updates
    pages: Pages

    @property
    def state_names(self) -> tuple[str, ...]:
        """See Updates."""
        return self.optimizer.state_names

    @property
    def keeps_zeros(self) -> bool:
        """See Updates."""
        return self.optimizer.keeps_zeros

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """See Updates."""
        for more in (grad,) if plus is None else (grad, plus):
            np.logical_or(self.pages, in_use(more), out=self.pages)
        if not self.optimizer.keeps_zeros:
            self.pages[:] = True
        for part in runs(self.pages):
            there = {name: vector[part] for name, vector in state.items()}
            also = None if plus is None else plus[part]
            self.optimizer.apply(param[part], grad[part], there, step=step, scale=scale, plus=also)


def copies(vectors: Sequence[Vector], pages: Pages | None) -> list[Vector]:
    """Return copies of a block's vectors that take no more memory than these."""
    return [vector.copy() if pages is None else copied(vector, pages) for vector in vectors]
