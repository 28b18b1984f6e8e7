"""A block of parameters on its server: gradients come in, are summed in a fixed order, and make the next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.summation_tree import Node, parents
from labkit.elastic.server.growing import Pages, copies, grown

if TYPE_CHECKING:
    from labkit.elastic.transport.shared_arrays import SharedArray


class Updates(Protocol):
    """An optimizer as a block sees it."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the vectors that belong to a vector of parameters."""
        ...

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make the update number `step` (from 1) in place, with `scale` times the gradient, or `grad + plus`."""
        ...


class Pushed(Enum):
    """What became of gradients."""

    KEPT = "kept"
    APPLIED = "applied"
    DUPLICATE = "duplicate"
    LATE = "late"
    EARLY = "early"


def _fresh(n_bytes: int) -> Vector:
    return np.empty(n_bytes // 4, np.float32)


@dataclass(slots=True)
class Block:
    """One block and all that moves with it.

    Attributes
    ----------
    number : int
        Which block.
    params : array
        (n,) float32.
    state : dict of array
        (n,) each: what the optimizer remembers.
    version : int
        Updates so far.
    moves : int
        How often it changed its owner; who knows of more moves is right.
    sums : dict of array
        Sums of logical gradients of the step that is under way, by node.
    seen : dict of int
        Asynchronous: number of the last update of each worker.
    due : set of int
        Versions of which the controller wants a copy.
    """

    number: int
    params: Vector
    state: dict[str, Vector]
    version: int = 0
    moves: int = 0
    sums: dict[Node, Vector] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    due: set[int] = field(default_factory=set)
    freed: list[Vector] = field(default_factory=list)
    """Buffers that were used up."""
    buffer: Callable[[int], Vector] = _fresh
    """Where a buffer of so many bytes comes from."""
    place: SharedArray | None = None
    """Where workers on this host read the parameters."""
    pages: Pages | None = None
    """Those in use, of a block with memory only for them (`labkit.elastic.server.growing`); None: it is kept whole."""

    def push(self, grad: Vector, *, step: int, node: Node, n_shards: int, optimizer: Updates) -> Pushed:
        """Take the sum of some logical gradients of a step; with the last one, make the update.

        Parameters
        ----------
        grad : array
            (n,) belongs to the block from now on; one that cannot be written is borrowed, and only read until the
            next version is there.
        step : int
            The version that the gradients were computed with.
        node : Node
            Of the tree of `n_shards` leaves: whose sum it is.
        """
        if step != self.version:
            self._free(grad)
            return Pushed.LATE if step < self.version else Pushed.EARLY
        if any(other.first <= node.first and node.last <= other.last for other in self.sums):
            self._free(grad)
            return Pushed.DUPLICATE
        for part in [other for other in self.sums if node.first <= other.first and other.last <= node.last]:
            self._free(self.sums.pop(part))
        node, grad, plus = self._merged(node, grad, n_shards)
        if plus is None and node.size < n_shards:
            self.sums[node] = grad
            return Pushed.KEPT
        self._update(grad, optimizer, scale=1.0 / n_shards, plus=plus)
        return Pushed.APPLIED

    def push_alone(self, grad: Vector, *, worker: int, number: int, optimizer: Updates) -> Pushed:
        """Make an update of one worker's gradients at once, the `number`-th of that worker, each once."""
        if number <= self.seen.get(worker, 0):
            self._free(grad)
            return Pushed.DUPLICATE
        self.seen[worker] = number
        self._update(grad, optimizer)
        return Pushed.APPLIED

    def _merged(self, node: Node, grad: Vector, n_shards: int) -> tuple[Node, Vector, Vector | None]:
        """Add siblings, left to right, as long as both are there; the last two are left to the update."""
        tree = parents(n_shards)
        while node in tree and tree[node][1] in self.sums:
            parent, sibling = tree[node]
            other = self.sums.pop(sibling)
            left, right = (grad, other) if node < sibling else (other, grad)
            if parent.size == n_shards:
                return parent, left, right
            node, grad = parent, self._sum(left, right)
        return node, grad, None

    def _sum(self, left: Vector, right: Vector) -> Vector:
        """Return left + right where one of them was, or in a buffer of its own if both are borrowed."""
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
        """Have done with a buffer: it may be used again, unless it is borrowed."""
        if grad.flags.writeable:
            self.freed.append(grad)

    def _update(self, grad: Vector, optimizer: Updates, *, scale: float = 1.0, plus: Vector | None = None) -> None:
        self.version += 1
        optimizer.apply(self.params, grad, self.state, step=self.version, scale=scale, plus=plus)
        self._free(grad)
        if plus is not None:
            self._free(plus)

    # --- on the move

    def vectors(self) -> list[Vector]:
        """Return the parameters, then the optimizer's vectors in order of their names."""
        return [self.params, *(self.state[name] for name in sorted(self.state))]

    def copies(self) -> list[Vector]:
        """Return copies of `vectors` that take no more memory than they do."""
        return copies(self.vectors(), self.pages)

    def card(self) -> dict[str, Any]:
        """Return what else moves with it."""
        return {
            "version": self.version, "moves": self.moves, "due": sorted(self.due), "names": sorted(self.state),
            "seen": [[worker, number] for worker, number in sorted(self.seen.items())],
        }  # fmt: skip

    @classmethod
    def arrived(cls, number: int, payload: memoryview, card: dict[str, Any]) -> Block:
        """Return a block as it was elsewhere; the bytes are copied, pages that are all zero left out."""
        names = card["names"]
        rows, pages = grown(np.frombuffer(payload, np.float32).reshape(1 + len(names), -1))
        return cls(
            number=number,
            params=rows[0],
            state=dict(zip(names, rows[1:], strict=True)),
            version=card["version"],
            moves=card["moves"],
            seen=dict(card["seen"]),
            due=set(card["due"]),
            pages=pages,
        )
