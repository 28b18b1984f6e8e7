"""The order in which V logical gradients are summed: a fixed tree, so that the sum does not depend on the workers.

Floating-point addition is not associative: (a + b) + c and a + (b + c) may differ in the last bit. Every batch is cut
into V logical shards, the leaves of one binary tree. A worker sums the whole subtrees that it has, a server the rest.
The additions are the same for any assignment of leaves to workers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from labkit.core.errors import InputError

MOST_SHARDS = 1 << 15
"""Most logical shards of a batch: first and last leaf of a node are sent in 16 bits each."""


class Node(NamedTuple):
    """The sum of the leaves from `first` to before `last`.

    >>> Node.unpack(Node(3, 8).pack())
    Node(first=3, last=8)
    """

    first: int
    last: int

    def pack(self) -> int:
        """Return the node as one number of 32 bits."""
        return self.first << 16 | self.last

    @classmethod
    def unpack(cls, number: int) -> Node:
        """Return the node of a number."""
        return cls(number >> 16, number & 0xFFFF)

    @property
    def size(self) -> int:
        """Number of leaves."""
        return self.last - self.first


def halves(node: Node) -> tuple[Node, Node]:
    """Return the two children of a node: the left one has the largest power of two that is less than its size.

    >>> halves(Node(0, 8)), halves(Node(0, 5))
    ((Node(first=0, last=4), Node(first=4, last=8)), (Node(first=0, last=4), Node(first=4, last=5)))
    """
    middle = node.first + (1 << ((node.size - 1).bit_length() - 1))
    return Node(node.first, middle), Node(middle, node.last)


@lru_cache(maxsize=64)
def parents(n_shards: int) -> dict[Node, tuple[Node, Node]]:
    """Return parent and sibling of every node but the root; InputError if the number of leaves is not 1 to 32,768."""
    if not 1 <= n_shards <= MOST_SHARDS:
        raise InputError(f"a batch of {n_shards} logical shards; expected 1 to {MOST_SHARDS}.")
    children: dict[Node, tuple[Node, Node]] = {}
    todo = [Node(0, n_shards)]
    while todo:
        node = todo.pop()
        if node.size > 1:
            left, right = halves(node)
            children[left], children[right] = (node, right), (node, left)
            todo += [left, right]
    return children


def cover(first: int, last: int, *, n_shards: int) -> list[Node]:
    """Return the fewest nodes of the tree that together sum the leaves from `first` to before `last`, in order.

    >>> [tuple(node) for node in cover(3, 8, n_shards=8)]
    [(3, 4), (4, 8)]
    """
    if first >= last:
        return []
    nodes: list[Node] = []
    todo = [Node(0, n_shards)]
    while todo:
        node = todo.pop()
        if first <= node.first and node.last <= last:
            nodes.append(node)
        elif node.first < last and first < node.last:
            left, right = halves(node)
            todo += [right, left]
    return nodes
