"""A block of parameters on a server: its sum of gradients and updates, in memory that grows with use or is shared.

Memory that grows: in the layout and in checkpoints an embedding has all its rows. On a server of asynchronous training
the blocks of a table whose rows start at zero lie in anonymous memory, which the kernel allocates page by page on the
first write. An update skips pages whose parameters, optimizer state and gradients are all zero. The result has the same
bits, because every optimizer here maps a zero parameter with zero state and zero gradient to zero. An update of one's
own need not: with the first one all pages are in use.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from labkit.elastic.protocol.blocks import Vector, mean_gradient
from labkit.elastic.protocol.messages.blocks import AppliedUpdate, BlockState
from labkit.elastic.protocol.summation_tree import Node, parents
from labkit.elastic.transport import Channel, ClosedError
from labkit.elastic.transport.shared_arrays import SharedArray


class Updates(Protocol):
    """An optimizer as a block sees it; `labkit.elastic.server.optimizers` has them, and wrappers add to them."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the vectors that belong to a vector of parameters."""
        ...

    @property
    def keeps_zeros(self) -> bool:
        """Whether a parameter of zero, with a state of zeros, stays so while its gradient is zero."""
        ...

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make update number `step` (from 1) in place, with `scale` times the gradient, which is grad + plus."""
        ...


class WrappedUpdates:
    """An optimizer that adds to another one, whose vectors it has."""

    __slots__ = ()
    optimizer: Updates

    @property
    def state_names(self) -> tuple[str, ...]:
        """See Updates."""
        return self.optimizer.state_names

    @property
    def keeps_zeros(self) -> bool:
        """See Updates."""
        return self.optimizer.keeps_zeros


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
    pages: Pages = np.asarray(vector[:whole].reshape(-1, PAGE).any(axis=1))
    return pages if whole == len(vector) else np.append(pages, vector[whole:].any())


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
class GrowingValues(WrappedUpdates):
    """An optimizer that skips unused pages; a page is in use from its first nonzero gradient on."""

    optimizer: Updates
    pages: Pages
    """Pages in use; updated in place."""

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


class Pushed(Enum):
    """What has become of pushed gradients."""

    KEPT = "kept"
    """Added to the sum, which is not complete."""
    APPLIED = "applied"
    """The sum was complete, and the block has a new version."""
    DUPLICATE = "duplicate"
    HELD = "held"
    """The sum is complete, and waits for the norm of the whole gradient."""
    LATE = "late"
    """Of a version before the current one."""
    EARLY = "early"
    """Of a version after the current one."""


def _fresh(n_bytes: int) -> Vector:
    return np.empty(n_bytes // 4, np.float32)


class BlockVectors(dict[str, Vector]):
    """The vectors of an optimizer by name, and counts that move with their block."""

    def __init__(self, vectors: Mapping[str, Vector], counts: dict[int, int]) -> None:
        super().__init__(vectors)
        self.counts = counts


@dataclass(slots=True)
class Block:
    """One block, with its optimizer state and its gradient sums."""

    number: int
    params: Vector
    """(n,) float32."""
    state: dict[str, Vector]
    """(n,) each: vectors of the optimizer."""
    version: int = 0
    """Updates so far."""
    moves: int = 0
    """How often the owner has changed; of two statements about the owner, the one with more moves is newer."""
    sums: dict[Node, Vector] = field(default_factory=dict)
    """Sums of logical gradients of the current step, by node of the summation tree."""
    weights: dict[Node, float] = field(default_factory=dict)
    """Sums of their weights, where losses are sums with a weight."""
    seen: dict[int, int] = field(default_factory=dict)
    """Asynchronous training: number of the last update of each worker. And how often a parameter was skipped."""
    due: set[int] = field(default_factory=set)
    """Versions of which the controller wants a copy."""
    freed: list[Vector] = field(default_factory=list)
    """Gradient buffers that are used up."""
    buffer: Callable[[int], Vector] = _fresh
    """Returns a float32 buffer of this many bytes."""
    place: SharedArray | None = None
    """Shared memory from which workers on this host read the parameters."""
    pages: Pages | None = None
    """Pages in use, of a block that has memory only for these (`labkit.elastic.server.block`); None: has all."""
    held: Vector | None = None
    """The mean gradient of a complete sum that waits for the norm of the whole gradient."""

    def push(
        self, grad: Vector, *, step: int, node: Node, n_shards: int, optimizer: Updates, weight: float | None = None,
        hold: bool = False,
    ) -> Pushed:  # fmt: skip
        """Add the sum of some logical gradients to the step's sum; with the last one, make the update.

        Parameters
        ----------
        grad : array
            (n,) float32; the block owns it from now on. A read-only array is borrowed: it is only read, and no longer
            than until the next version exists.
        step : int
            The version that the gradients were computed with.
        node : Node
            Of the summation tree of `n_shards` leaves: the leaves whose sum `grad` is.
        n_shards : int
            V, logical gradients of a batch.
        optimizer : Updates
            Makes the update, with 1 / V times the sum.
        weight : float, optional
            Sum of the weights of these gradients: the update is then made with the sum divided by all weights.
        hold : bool
            Whether the update waits for `release`.
        """
        if step != self.version:
            self._free(grad)
            return Pushed.LATE if step < self.version else Pushed.EARLY
        if self.held is not None or any(o.first <= node.first and node.last <= o.last for o in self.sums):
            self._free(grad)
            return Pushed.DUPLICATE
        for part in [other for other in self.sums if node.first <= other.first and other.last <= node.last]:
            self._free(self.sums.pop(part))
            self.weights.pop(part, None)
        if weight is not None:
            self.weights[node] = weight
        node, grad, plus = self._merged(node, grad, n_shards)
        if plus is None and node.size < n_shards:
            self.sums[node] = grad
            return Pushed.KEPT
        total = self.weights.pop(node, float(n_shards))
        scale = 1.0 / total if total else 0.0
        if not hold:
            self._update(grad, optimizer, scale=scale, plus=plus)
            return Pushed.APPLIED
        self.held = mean_gradient(grad, plus, scale)
        self._free_halves(grad, plus)
        return Pushed.HELD

    def release(self, optimizer: Updates) -> None:
        """Make the update for which a complete sum waits."""
        if self.held is not None:
            gradient, self.held = self.held, None
            self._update(gradient, optimizer)

    def push_alone(self, grad: Vector, *, worker: int, number: int, optimizer: Updates) -> Pushed:
        """Update with one worker's gradients at once; `number` counts its updates, and a repeated one is ignored."""
        if number <= self.seen.get(worker, 0):
            self._free(grad)
            return Pushed.DUPLICATE
        self.seen[worker] = number
        self._update(grad, optimizer)
        return Pushed.APPLIED

    def _merged(self, node: Node, grad: Vector, n_shards: int) -> tuple[Node, Vector, Vector | None]:
        """Add siblings, left to right, while both exist; the last two are not added: the update kernel does it."""
        tree = parents(n_shards)
        while node in tree and tree[node][1] in self.sums:
            parent, sibling = tree[node]
            other = self.sums.pop(sibling)
            left, right = (grad, other) if node < sibling else (other, grad)
            self._merge_weights(parent, min(node, sibling), max(node, sibling))
            if parent.size == n_shards:
                return parent, left, right
            node, grad = parent, self._sum(left, right)
        return node, grad, None

    def _merge_weights(self, parent: Node, left: Node, right: Node) -> None:
        """Add the weights of two siblings, in the order of the tree as the gradients."""
        if left in self.weights:
            self.weights[parent] = self.weights.pop(left) + self.weights.pop(right, 0.0)

    def _sum(self, left: Vector, right: Vector) -> Vector:
        """Return left + right, in the memory of one of them, or in a new buffer if both are borrowed."""
        if left.flags.writeable:
            total, used = left, right
        elif right.flags.writeable:
            total, used = right, left
        else:
            total, used = self.buffer(left.nbytes), right
        np.add(left, right, out=total)
        self._free(used)
        return total

    def _free(self, grad: Vector) -> None:
        """Keep a buffer for reuse, unless it is borrowed."""
        if grad.flags.writeable:
            self.freed.append(grad)

    def _update(self, grad: Vector, optimizer: Updates, *, scale: float = 1.0, plus: Vector | None = None) -> None:
        self.version += 1
        state = BlockVectors(self.state, self.seen)
        optimizer.apply(self.params, grad, state, step=self.version, scale=scale, plus=plus)
        self._free_halves(grad, plus)

    def _free_halves(self, grad: Vector, plus: Vector | None) -> None:
        self._free(grad)
        if plus is not None:
            self._free(plus)

    # --- hand-over

    def vectors(self) -> list[Vector]:
        """Return the parameters, then the optimizer's vectors in order of their names."""
        return [self.params, *(self.state[name] for name in sorted(self.state))]

    def copies(self) -> list[Vector]:
        """Return copies of `vectors` that take no more memory than these."""
        return copies(self.vectors(), self.pages)

    def description(self) -> BlockState:
        """Return the state of the block besides its vectors, for a hand-over or a checkpoint."""
        seen = [AppliedUpdate(worker, number) for worker, number in sorted(self.seen.items())]
        return BlockState(self.version, self.moves, sorted(self.due), sorted(self.state), seen)

    @classmethod
    def arrived(cls, number: int, payload: memoryview, described: BlockState) -> Block:
        """Return a block from the bytes of its vectors and its description.

        Bytes are copied, pages of zeros take no memory.
        """
        names = described.names
        rows, pages = grown(np.frombuffer(payload, np.float32).reshape(1 + len(names), -1))
        return cls(
            number=number,
            params=rows[0],
            state=dict(zip(names, rows[1:], strict=True)),
            version=described.version,
            moves=described.moves,
            seen=dict(described.seen),
            due=set(described.due),
            pages=pages,
        )


@dataclass(frozen=True, slots=True)
class SeqlockUpdates(WrappedUpdates):
    """An optimizer that updates shared parameters under a seqlock stamp: a reader detects an update during its read."""

    optimizer: Updates
    place: SharedArray

    def apply(self, param: Any, grad: Any, state: Mapping[str, Any], **how: Any) -> None:
        """See Updates."""
        self.place.open()
        try:
            self.optimizer.apply(param, grad, state, **how)
        finally:
            self.place.close()


@dataclass(frozen=True, slots=True)
class CopyOnWriteUpdates(WrappedUpdates):
    """An optimizer that updates a copy of the parameters while the current ones are being sent."""

    optimizer: Updates
    block: Block
    """Has the parameters; gets the copy."""
    sent: list[tuple[Channel, int]]
    """(connection, frame number) of the frames with the current parameters; cleared when none needs them any more."""
    buffer: Callable[[int], Vector]
    """Returns a float32 buffer of this many bytes."""

    def apply(self, param: Any, grad: Any, state: Mapping[str, Any], **how: Any) -> None:
        """See Updates."""
        if not all(_is_out(channel, number) for channel, number in self.sent):
            if self.block.pages is None:
                self.block.params = self.buffer(param.nbytes)
                np.copyto(self.block.params, param)
            else:
                self.block.params = copied(param, self.block.pages)
        self.sent.clear()
        self.optimizer.apply(self.block.params, grad, state, **how)


def _is_out(channel: Channel, number: int) -> bool:
    try:
        channel.flush(number, timeout_s=0)
    except TimeoutError:
        return False
    except ClosedError:
        pass
    return True
