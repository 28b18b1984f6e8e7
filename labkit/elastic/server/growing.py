"""Parameters that are zero until they are used: their pages take no memory before, so that a table grows as it is used.

An embedding whose rows begin at zero has as many rows as there may ever be, in the layout and in checkpoints. On a
server of asynchronous training its blocks lie in anonymous memory, which the kernel gives page by page when something
is written; an update leaves alone pages on which nothing is and nothing comes. That changes no bit: of a parameter of
zero without a gradient and without memory of one every optimizer here makes zero.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.elastic.protocol.blocks import Vector

if TYPE_CHECKING:
    from labkit.elastic.server.block import Updates

Pages = NDArray[np.bool_]
"""Which pages of a block are in use."""
PAGE: Final = mmap.PAGESIZE // 4
"""Numbers on a page."""
LEAST_PAGES: Final = 4
"""Smaller blocks are kept whole."""


def mapped(n: int) -> Vector:
    """Return n zeros that take no memory until they are written."""
    memory = mmap.mmap(-1, max(4 * n, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # else the first number of a table may take 2 MB
    return np.frombuffer(memory, np.float32, n)


def in_use(vector: Vector) -> Pages:
    """Return which pages of a vector have a number other than zero, (ceil(n / PAGE),)."""
    whole = len(vector) // PAGE * PAGE
    found: Pages = np.asarray(vector[:whole].reshape(-1, PAGE).any(axis=1))
    return found if whole == len(vector) else np.append(found, vector[whole:].any())


def copied(vector: Vector, pages: Pages) -> Vector:
    """Return a copy of a vector of which only these pages have something."""
    copy = mapped(len(vector))
    for part in runs(pages):
        copy[part] = vector[part]
    return copy


def runs(pages: Pages) -> Iterator[slice]:
    """Yield the numbers of pages that are marked, those of neighbours together.

    >>> list(runs(np.array([True, True, False, True]))) == [slice(0, 2 * PAGE), slice(3 * PAGE, 4 * PAGE)]
    True
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], pages, [False]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        yield slice(first * PAGE, last * PAGE)


def grown(rows: NDArray[np.float32]) -> tuple[list[Vector], Pages | None]:
    """Return copies of a block's vectors; if most pages are zero in all of them, only the others take memory.

    Parameters
    ----------
    rows : array
        (V, n) parameters, and what the optimizer remembers of them.

    Returns
    -------
    list of array, array or None
        The vectors, (n,) each; which pages are in use, None for a block that is kept whole.
    """
    if rows.shape[1] >= LEAST_PAGES * PAGE:
        pages = np.logical_or.reduce([in_use(row) for row in rows])
        if 2 * np.count_nonzero(pages) <= len(pages):
            return [copied(row, pages) for row in rows], pages
    return list(rows.copy()), None


@dataclass(frozen=True, slots=True)
class GrowingValues:
    """An optimizer that leaves alone pages that were never used; those that gradients come for are used from then on.

    Attributes
    ----------
    pages : array
        Which are in use.
    """

    optimizer: Updates
    pages: Pages

    @property
    def state_names(self) -> tuple[str, ...]:
        """See Updates."""
        return self.optimizer.state_names

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """See Updates."""
        for more in (grad,) if plus is None else (grad, plus):
            np.logical_or(self.pages, in_use(more), out=self.pages)
        for part in runs(self.pages):
            there = {name: vector[part] for name, vector in state.items()}
            also = None if plus is None else plus[part]
            self.optimizer.apply(param[part], grad[part], there, step=step, scale=scale, plus=also)


def copies(vectors: Sequence[Vector], pages: Pages | None) -> list[Vector]:
    """Return copies of a block's vectors that take no more memory than they do."""
    return [vector.copy() if pages is None else copied(vector, pages) for vector in vectors]
