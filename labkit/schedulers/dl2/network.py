"""The network of the policy: what its weights are, and how compiled code evaluates it, one row at a time."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import by_reference, inner

Numbers = NDArray[np.float32]

N_OWN: Final = 4
"""Of each job: logarithm of epochs left, fraction left, age and slots run."""
N_AROUND: Final = 3
"""Of all: number of jobs, and GPUs and cores per job. Beside it, jobs of each model, and fraction left by model."""
N_TASK_FEATURES: Final = 6
"""Of what a job holds in the draft: PSs and workers, their roots, and whether there are none."""


@by_reference
class Net(NamedTuple):
    """The weights: two layers of H units over what is seen of a job, L models being told apart."""

    seen: Numbers
    """(F, H) of what is seen when the slot begins."""
    held: Numbers
    """(L + 1, 6, H) of what the job holds in the draft, by model; the last one for models that are not told apart."""
    bias: Numbers
    middle: Numbers
    middle_bias: Numbers
    """`bias`, `middle` and `middle_bias`: (H,), (H, H), (H,) of the first and the second layer."""
    worth: Numbers
    worth_bias: Numbers
    """`worth` and `worth_bias`: (H, 3), (3,) of a worker, a PS and both."""
    stop: Numbers
    """(1,) what stopping is worth."""


def n_inputs(n_models: int) -> int:
    """Return how many numbers are seen of a job when a slot begins, F."""
    return n_models + N_OWN + n_models + N_AROUND + n_models


class SlotBuffers(NamedTuple):
    """What a slot's decisions are made with, for J jobs."""

    before: Numbers
    """(J, H) of the first layer, without what is held."""
    model: Ints
    """(J,) the row of `Net.held` of each job."""
    worth: Numbers
    """(J, 3) of a worker, a PS and both."""
    trains: Bools
    allowed: Bools
    """`trains` and `allowed`: (3 J,) which actions leave no tasks that cannot train, and which of these find room."""
    action: Ints
    top: Numbers
    """`action` and `top`: (J,) the allowed action of the most worth, -1: none, and what it is worth."""
    weight: Floats
    level: Floats
    """`weight` and `level`: (3 J,) and (1,): chances are as the weights, which are exponentials of worths less the
    level."""
    rows: Ints
    """(J,) of the record; -1: none."""
    last: Numbers
    """(3, H) the last layer."""
    one: Numbers
    two: Numbers
    """`one` and `two`: (H,) to be written to."""


@inner(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _mix(middle: Numbers, one: Numbers, two: Numbers) -> None:
    """Add what the first layer's units give to the second's, four at a time."""
    n_units = len(one)
    whole = n_units - n_units % 4
    for k in range(0, whole, 4):
        x0, x1, x2, x3 = one[k], one[k + 1], one[k + 2], one[k + 3]
        for h in range(n_units):
            two[h] += x0 * middle[k, h] + x1 * middle[k + 1, h] + x2 * middle[k + 2, h] + x3 * middle[k + 3, h]
    for k in range(whole, n_units):
        x0 = one[k]
        for h in range(n_units):
            two[h] += x0 * middle[k, h]


@inner(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def evaluate(net: Net, desk: SlotBuffers, i: int, n_ps: int, n_workers: int) -> None:
    """Write what a worker, a PS and both are worth to the job in row i, which holds some tasks."""
    before, held, last, worth = desk.before, net.held, desk.last, desk.worth
    one, two, n_units, model, none = desk.one, desk.two, len(desk.one), desk.model[i], np.float32(0.0)
    p, w = np.float32(n_ps), np.float32(n_workers)
    a, b, c, d = p / np.float32(16), w / np.float32(16), np.sqrt(p) / np.float32(4), np.sqrt(w) / np.float32(4)
    e, f = np.float32(n_ps == 0), np.float32(n_workers == 0)
    for h in range(n_units):
        x = before[i, h] + a * held[model, 0, h] + b * held[model, 1, h] + c * held[model, 2, h]
        one[h] = max(x + d * held[model, 3, h] + e * held[model, 4, h] + f * held[model, 5, h], none)
        two[h] = net.middle_bias[h]
    _mix(net.middle, one, two)
    for action in range(3):
        total = net.worth_bias[action]
        for h in range(n_units):
            total += max(two[h], none) * last[action, h]
        worth[i, action] = total


@inner
def desk_of(net: Net, features: Numbers, model: Ints) -> SlotBuffers:
    """Return a desk for jobs that are seen, (J, F), of some models, (J,); -1: one that is not told apart."""
    n, n_units = len(features), len(net.bias)
    return SlotBuffers(
        net.bias + np.dot(features, net.seen),
        np.where(model >= 0, model, len(net.held) - 1),
        np.zeros((n, 3), np.float32),
        np.ones(3 * n, np.bool_),
        np.zeros(3 * n, np.bool_),
        np.full(n, -1, np.int32),
        np.full(n, -np.inf, np.float32),
        np.zeros(3 * n),
        np.full(1, np.nan),
        np.full(n, -1, np.int32),
        np.ascontiguousarray(net.worth.T),
        np.zeros(n_units, np.float32),
        np.zeros(n_units, np.float32),
    )
