"""Updates of a slice in one pass over memory, compiled on import.

A slice gives the same bits however the vector is cut, and on every machine: element i of the result depends on
element i of the arguments only, each operation is rounded once, and the compiler may neither reorder nor contract
operations. Where torch's vector code fuses a product and a sum, so do these kernels, by name (`_fma`). A gradient may
be given as two halves, grad + plus, which is rounded as if they had been added before; `plus` is empty otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, float32, types
from numba.extending import intrinsic

from labkit.kernels import kernel

_OWN = types.Array(float32, 1, "C")
_GIVEN = types.Array(float32, 1, "C", readonly=True)


def _fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ARG001
    """Return a b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return builder.fma(*values)

    return float32(float32, float32, float32), generate


_fma: Any = intrinsic(_fused)


@kernel(signature=types.void(_OWN, _GIVEN, _GIVEN, *[float32] * 3), nogil=True)
def sgd(param: Any, grad: Any, plus: Any, scale: Any, rate: Any, decay: Any) -> None:
    """Update in place: g = scale grad + decay p; p -= rate g."""
    both = plus.size > 0
    for i in range(param.size):
        g = grad[i] + plus[i] if both else grad[i]
        p, g = param[i], g * scale
        if decay != 0:
            g = _fma(p, decay, g)
        param[i] = _fma(g, -rate, p)


@kernel(signature=types.void(_OWN, _GIVEN, _GIVEN, _OWN, *[float32] * 4, boolean), nogil=True)
def momentum(
    param: Any, grad: Any, plus: Any, velocity: Any, scale: Any, rate: Any, decay: Any, keep: Any, nesterov: Any
) -> None:
    """Update in place: g = scale grad + decay p; v = keep v + g; p -= rate v, or rate (g + keep v)."""
    both = plus.size > 0
    for i in range(param.size):
        g = grad[i] + plus[i] if both else grad[i]
        p, g = param[i], g * scale
        if decay != 0:
            g = _fma(p, decay, g)
        v = velocity[i] * keep + g
        velocity[i] = v
        param[i] = _fma(_fma(v, keep, g) if nesterov else v, -rate, p)


@kernel(signature=types.void(_OWN, _GIVEN, _GIVEN, _OWN, _OWN, *[float32] * 9), nogil=True, error_model="numpy")
def adam(
    param: Any, grad: Any, plus: Any, mean: Any, square: Any, scale: Any, rate: Any, decay: Any, shrink: Any,
    mean_part: Any, square_keep: Any, square_part: Any, root: Any, epsilon: Any,
) -> None:  # fmt: skip
    """Update in place: p = shrink p - rate m / (sqrt(s) / root + epsilon), m and s averages of g and its square.

    g = scale grad + decay p. As in torch, an average is computed from the nearer end: m + part (g - m) if part < 1/2,
    else g - (1 - part) (g - m).
    """
    near = mean_part < np.float32(0.5)
    part = mean_part if near else mean_part - np.float32(1)
    both = plus.size > 0
    for i in range(param.size):
        g = grad[i] + plus[i] if both else grad[i]
        p, g = param[i] * shrink, g * scale
        if decay != 0:
            g = _fma(p, decay, g)
        m = _fma(part, g - mean[i], mean[i] if near else g)
        s = _fma(square_part * g, g, square[i] * square_keep)
        mean[i] = m
        square[i] = s
        param[i] = p + (-rate * m) / (np.sqrt(s) / root + epsilon)
