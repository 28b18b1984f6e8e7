"""Gradients limited by the norm of all of them, which no server has: each block waits for it with its own.

A block whose gradients are complete has the norm of each of its parameters. Servers send these to the workers; a worker
that has those of all blocks sends the servers the norm of the whole, and they update. Every worker computes the same
bits from the same numbers in the order of the parameters, so it does not matter which one is first, or dies. A server
gives the norm of the whole to workers that ask for the version after it, as they may have missed it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from labkit.elastic.protocol.blocks import Layout, Vector

EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to a norm before it divides by it."""


class NormClipping:
    """The limit, and the newest norm of the whole gradient; the bits of `torch.nn.utils.clip_grad_norm_`.

    Parameters
    ----------
    most : float
        Longest norm.
    cut : Layout
        The blocks.
    """

    def __init__(self, most: float, cut: Layout) -> None:
        self._most, self._cut, self._lock = most, cut, threading.Lock()
        self._newest = (-1, 0)

    def applies_to(self, block: int) -> bool:
        """Return whether a block has parameters: the norm is of these."""
        return self._cut.extents[block][0] < self._cut.n_trained

    def of_block(self, block: int, gradient: Vector) -> list[int]:
        """Return the norm of the gradient of each parameter of a block, as float32 bits."""
        first = self._cut.extents[block][0]
        return norm_bits([gradient[p.first - first : p.first - first + p.n] for p in self._cut.of_block(block)])

    def take(self, step: int, bits: int) -> None:
        """Record the norm of the whole gradient of an era and version."""
        with self._lock:
            self._newest = max(self._newest, (step, bits))

    def at(self, step: int) -> int | None:
        """Return the bits of the norm of an era and version if they are known."""
        known, bits = self._newest
        return bits if known == step else None

    def limit(self, gradient: Vector, bits: int) -> None:
        """Scale a gradient in place."""
        import torch

        norm = torch.from_numpy(_numbers([bits]))[0]
        torch.from_numpy(gradient).mul_(torch.clamp(self._most / (norm + EPSILON), max=1.0))


def norm_bits(gradients: Sequence[Vector]) -> list[int]:
    """Return the norm of each gradient, as float32 bits: what is sent has the very number, also if it is infinite."""
    import torch

    norms = [float(torch.linalg.vector_norm(torch.from_numpy(gradient))) for gradient in gradients]
    bits: list[int] = np.array(norms, np.float32).view(np.uint32).tolist()
    return bits


def whole_norm(blocks: Mapping[int, Sequence[int]]) -> int:
    """Return the norm of the whole gradient, as bits, of those of the parameters by block.

    >>> whole_norm({1: norm_bits([np.float32([12.0])]), 0: norm_bits([np.float32([3.0]), np.float32([4.0])])})
    1095761920
    """
    numbers = _numbers([bits for block in sorted(blocks) for bits in blocks[block]])
    return norm_bits([numbers])[0]


def _numbers(bits: Sequence[int]) -> Vector:
    return np.array(bits, np.uint32).view(np.float32)
