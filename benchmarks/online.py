"""What learning online does to DL2's policy: mean JCT on held-out traces, before and after it learned on others.

python -m benchmarks online
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

from benchmarks import Row, size
from labkit.experiment import Experiment, every_slot
from labkit.experiment.caveats import Caveat
from labkit.learning.dl2 import Policy, mean_jct
from labkit.learning.online import Learner
from labkit.schedulers import make
from labkit.schedulers.dl2 import Weights, load
from labkit.workloads import dl2_jobs

COMMAND = "python -m benchmarks online"
N_TRACES, N_HELD_OUT, SLOT_S, FIRST = size(40, short=2), size(20, short=2), 1200.0, 1001
RATES = (("shipped", 1e-4), ("shipped", 1e-3), ("untrained", 1e-3))


def rows() -> list[Row]:
    """Return the mean JCT in slots before, and by how much it changes, with the half width of its interval."""
    torch.set_num_threads(1)
    return [row for nodes in (16, 8) for begin, rate in RATES for row in _rows(nodes, begin, rate)]


def _rows(nodes: int, begin: str, rate: float) -> list[Row]:
    def experiment(seed: int) -> Experiment:
        jobs = dl2_jobs("short_48n", seed=seed, pattern="google")
        return Experiment.of(jobs, cluster=f"dl2-{nodes}n", cadence=every_slot(SLOT_S), seed=seed)

    weights, held_out = _weights(begin), range(1, N_HELD_OUT + 1)
    before = mean_jct(weights, experiment, held_out)
    learner = Learner(weights, rng=np.random.default_rng(1), rate=rate)
    for seed in range(FIRST, FIRST + N_TRACES):
        _learn(learner, experiment(seed))
    change = mean_jct(learner.weights(), experiment, held_out) - before
    name = f"{nodes} nodes, {begin}, rate {rate:g}"
    half = 1.96 * change.std(ddof=1) / np.sqrt(len(change))
    return [
        Row(f"{name}: mean JCT before", round(float(before.mean()), 3), "slots", None, False, COMMAND),
        Row(f"{name}: change by {N_TRACES} traces", round(float(change.mean()), 3), "slots", None, False, COMMAND),
        Row(f"{name}: +- of that", round(float(half), 3), "slots", None, False, COMMAND),
    ]


def _weights(begin: str) -> Weights:
    shipped = load("dl2-fitted")
    if begin == "shipped":
        return shipped
    torch.manual_seed(0)
    return Weights(Policy(len(shipped.models), shipped.net.bias.size).net(), shipped.models, SLOT_S, "not trained")


def _learn(learner: Learner, experiment: Experiment) -> None:
    """Let it decide about a whole run, and learn."""
    scheduler = make("dl2(learns=True, fallback=None)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        session = experiment.session(scheduler)
        learner.begin()
        scheduler._learner = learner  # type: ignore[attr-defined]  # the same one for all runs
        session.run(scheduler)
