"""Random numbers of samples: each a pure function of seed, sample and position, vectorised.

Each sample has its own stream of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014): whole-number arithmetic, with the same result on every machine.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Floats, Ints

Bits = NDArray[np.uint64]

SAMPLES, TEACHER, NOISE = range(3)
"""Independent streams of a seed."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1


def bits(seed: int, sample: NDArray[Any], n: int, *, stream: int = SAMPLES) -> Bits:
    """Return random bits of each sample, (B, n) uint64.

    >>> bits(0, np.array([5, 7]), 3)[1].tolist() == bits(0, np.array([7]), 3)[0].tolist()
    True
    """
    key = np.uint64(_plain_mixed(_plain_mixed(seed) + stream))
    start = _mixed(np.asarray(sample).astype(np.uint64) + key)
    steps = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return _mixed(start[:, None] + steps)


def uniforms(drawn: Bits) -> Floats:
    """Return numbers from 0 to below 1 from random bits."""
    return np.asarray((drawn >> np.uint64(11)) * 2.0**-53, np.float64)


def below(drawn: Bits, n: int) -> Ints:
    """Return uniform whole numbers from 0 to n - 1 from random bits."""
    numbers: Ints = (uniforms(drawn) * n).astype(np.int64)
    return numbers


def zipf(drawn: Bits, n: int) -> Ints:
    """Return ranks from 0 to n - 1 from random bits: rank k with probability about proportional to 1 / (k + 1)."""
    ranks: Ints = np.exp(uniforms(drawn) * np.log(n + 1)).astype(np.int64) - 1
    return np.minimum(ranks, n - 1)


def noise(seed: int, sample: NDArray[Any], n: int, *, stream: int = NOISE) -> NDArray[np.float32]:
    """Return uniform numbers of mean 0 and variance 1 for each sample, (B, n) float32."""
    drawn = (
        bits(seed, sample, -(-n // 4), stream=stream).astype("<u8", copy=False).view("<u2")[:, :n].astype(np.float32)
    )
    drawn -= np.float32(32767.5)
    drawn *= np.float32(12**0.5 / 2**16)
    return drawn


def _mixed(state: Bits) -> Bits:
    """Return the outputs of SplitMix64 for its states, in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def _plain_mixed(seed: int) -> int:
    return int(_mixed(np.array([(seed * _GOLDEN) & _MASK], dtype=np.uint64))[0])
