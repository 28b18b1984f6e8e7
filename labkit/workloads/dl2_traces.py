"""Traces drawn as in DL2's published simulator, draw by draw, with its parameter sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.bounds import MAX_TASKS, whole
from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats, Ints
from labkit.workloads.catalogue import DL2_MODELS, model

EPOCH_FRACTIONS: Final = (0.30, 0.96, 0.05, 0.54, 0.95, 0.46, 0.33, 0.23)
"""Epochs of each type over the most epochs of a setting, in the order of `DL2_MODELS`."""


@dataclass(frozen=True, slots=True)
class Dl2Setting:
    """A parameter set of DL2's simulator."""

    n_nodes: int
    """Machines of 8 cores and 2 GPUs."""
    n_jobs: int
    """Jobs in all."""
    max_arrivals: int
    """Most arrivals in a slot."""
    max_epochs: int
    """Scale of the lengths of jobs."""
    max_workers: int = 16
    """Most workers, and most parameter servers, of a job."""
    slot_s: float = 1200.0
    """Seconds in a slot."""


SETTINGS: Final = {
    "large_500n": Dl2Setting(500, 200, 10, 30000),
    "medium_96n": Dl2Setting(96, 60, 3, 30000),
    "small_48n": Dl2Setting(48, 60, 3, 80000, max_workers=32),
    "small_48n_w16": Dl2Setting(48, 60, 3, 30000),
    "short_48n": Dl2Setting(48, 60, 3, 3000),
    "testbed_6n": Dl2Setting(6, 10, 5, 1000, slot_s=300.0),
}
"""The published parameter sets, and two smaller ones with the same rules (`small_48n_w16`, `short_48n`)."""


def setting(name: str) -> Dl2Setting:
    """Return a parameter set by name; InputError if there is none of that name."""
    if name not in SETTINGS:
        raise unknown("DL2 setting", name, SETTINGS)
    return SETTINGS[name]


def dl2_jobs(
    rules: Dl2Setting | str,
    *,
    seed: int,
    pattern: Sequence[int] | str = "poisson",
    jobs_per_slot: int = 2,
    fixed_length: bool = True,
    epoch_error: float = 0.0,
) -> Jobs:
    """Return the jobs that DL2's simulator draws from a seed.

    One of its epochs is an opaque unit of `epoch_size` samples. Here a step is one sample, and the jobs say so
    (`samples_per_step`), so that speed models count the same. Jobs ask for one worker and one PS and are malleable up
    to the setting's most; a worker takes 2 cores and a GPU (none for the two models that train on CPUs), a PS 2 cores.
    The declared duration is that of one worker and one PS at the measured speed.

    Parameters
    ----------
    rules : Dl2Setting or str
        A parameter set or its name.
    seed : int
        Of a legacy `RandomState`, the stream of the published simulator.
    pattern : sequence of int or str
        Arrivals of each slot, used in rotation from a drawn offset: "google" (those of its reference runs, after
        Google's cluster, for the setting's most in a slot), "uniform" (`jobs_per_slot` in each), "poisson" (100 draws
        of that mean), "philly" (100 draws of that mean in lulls and bursts, as on Microsoft's cluster; no burst is cut
        at the setting's most), or a list of one's own.
    jobs_per_slot : int
        For "uniform", "poisson" and "philly".
    fixed_length : bool
        Otherwise each job's length is 90 to 109% of its type's.
    epoch_error : float
        The true length is the declared one times a factor uniform in 1 - error ... 1 + error.

    Raises
    ------
    InputError
        If a name is unknown, the pattern has no arrivals, or "google" none for the setting's `max_arrivals`.

    References
    ----------
    .. [1] Peng et al., "DL2", and its published simulator (commit 2e54920).
    """
    rules = rules if isinstance(rules, Dl2Setting) else setting(rules)
    rng = np.random.RandomState(seed)  # the published recipe is defined by this legacy stream
    per_slot = _pattern(pattern, rules, jobs_per_slot, rng)
    most = max(per_slot) if pattern == "philly" else rules.max_arrivals
    slots = _slots(per_slot, rules.n_jobs, most=most, offset=int(rng.randint(5)))
    kinds, epochs, true_epochs = _lengths(rng, rules, fixed_length=fixed_length, epoch_error=epoch_error)
    chosen = [model(DL2_MODELS[kind]) for kind in kinds]
    size = np.array([m.steps_per_epoch for m in chosen], np.float64)
    return Jobs.of(
        name=f"dl2-{seed}",
        id=[str(i) for i in range(1, rules.n_jobs + 1)],
        model=[m.name for m in chosen],
        arrival_s=slots * rules.slot_s,
        total_steps=epochs * size,
        true_steps=true_epochs * size,
        steps_per_epoch=size,
        samples_per_step=1,
        duration_s=epochs * size / np.array([m.samples_per_s for m in chosen]),
        n_workers=1,
        n_ps=1,
        max_workers=rules.max_workers,
        max_ps=rules.max_workers,
        worker_demand=[m.worker_demand.amounts() for m in chosen],
        ps_demand=[m.ps_demand.amounts() for m in chosen],
    )


def _pattern(
    pattern: Sequence[int] | str, rules: Dl2Setting, jobs_per_slot: int, rng: np.random.RandomState
) -> Sequence[int]:
    whole("dl2_jobs", at_least=0, at_most=MAX_TASKS, jobs_per_slot=jobs_per_slot)
    named = {"google", "uniform", "poisson", "philly"}
    if isinstance(pattern, str) and pattern not in named:
        raise unknown("DL2 arrival pattern", pattern, named)
    if pattern == "google":
        return _google(rules.max_arrivals)
    if pattern == "uniform":
        return [jobs_per_slot] * 100
    if pattern == "poisson":
        return [int(rng.poisson(jobs_per_slot)) for _ in range(100)]
    if pattern == "philly":
        return philly_like(100, jobs_per_slot=jobs_per_slot, rng=rng)
    counts = [int(count) for count in pattern]
    if not counts or min(counts) < 0 or max(counts) == 0:
        raise InputError(f"pattern is {counts[:5]}; expected arrivals per slot >= 0, not all of them 0.")
    return counts


def _google(most: int) -> Sequence[int]:
    if most not in GOOGLE:
        raise InputError(
            f"pattern 'google' is known for at most {', '.join(map(str, GOOGLE))} arrivals in a slot; max_arrivals is "
            f"{most}. Take one of these, or give the pattern as a list."
        )
    return GOOGLE[most]


def _slots(per_slot: Sequence[int], n_jobs: int, *, most: int, offset: int) -> Ints:
    """Return the slot in which each job arrives, (N,), at most so many in one.

    A pattern that is too short for all jobs starts over; the published simulator would stop short of its jobs.
    """
    if most < 1 or max(per_slot) < 1:
        raise InputError("no job ever arrives: jobs_per_slot and max_arrivals must be at least 1.")
    slots: list[int] = []
    slot = 0
    while len(slots) < n_jobs:
        slots += [slot] * min(most, per_slot[(slot + offset) % len(per_slot)])
        slot += 1
    return np.array(slots[:n_jobs], np.int32)


def _lengths(
    rng: np.random.RandomState, rules: Dl2Setting, *, fixed_length: bool, epoch_error: float
) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Return type, declared and true epochs of each job, in the order of the published draws."""
    kinds, epochs, true_epochs = [], [], []
    for _ in range(rules.n_jobs):
        kind = int(rng.randint(0, 8))
        length = float(int(EPOCH_FRACTIONS[kind] * rules.max_epochs))
        if not fixed_length:
            length = length * int(rng.randint(90, 110)) / 100
        kinds.append(kind)
        epochs.append(length)
        true_epochs.append((1 + epoch_error * (2 * rng.rand() - 1)) * length)
    return np.array(kinds), np.array(epochs), np.array(true_epochs)


GOOGLE: Final[dict[int, tuple[int, ...]]] = {
    3: (
        2, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 3, 3, 3, 2, 3, 3, 3, 3, 3, 2, 2, 3, 3, 3, 2, 2, 2, 1, 2, 2, 2, 2, 2,
        2, 3, 3, 1, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2, 1, 2, 1, 2, 3, 3, 3, 3, 3, 2, 2, 2, 2, 3, 2, 1, 2, 1, 2, 2, 2,
        2, 2, 2, 3, 2,
    ),
    5: (
        4, 5, 5, 4, 5, 5, 5, 4, 3, 3, 4, 3, 4, 5, 5, 4, 5, 5, 5, 5, 4, 3, 3, 4, 5, 4, 3, 3, 3, 2, 3, 3, 3, 4, 3,
        3, 4, 4, 2, 3, 3, 2, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 3, 4, 4, 3, 2, 4, 2, 3, 3, 4,
        3, 3, 3, 4, 3,
    ),
    10: (
        6, 10, 8, 7, 8, 10, 9, 7, 6, 5, 6, 5, 7, 8, 9, 6, 8, 8, 8, 8, 7, 5, 5, 7, 9, 7, 5, 5, 5, 3, 5, 6, 4, 6,
        6, 6, 7, 7, 4, 5, 5, 3, 5, 5, 4, 6, 5, 6, 5, 3, 4, 4, 6, 7, 7, 7, 7, 7, 6, 6, 6, 6, 7, 6, 4, 6, 4, 5, 4,
        6, 5, 6, 5, 7, 6,
    ),
}  # fmt: skip
"""Most arrivals in a slot -> arrivals of each slot."""

PHILLY: Final = (
    0.06, 0.14, 0.14, 0.14, 0.14, 0.21, 0.21, 0.21, 0.27, 0.29, 0.29, 0.36, 0.39, 0.44, 0.52, 0.63, 0.82, 1.27, 3.50,
    9.94,
)  # fmt: skip
"""Arrivals of a slot of 20 minutes over the mean of all, of each twentieth of the slots by size: 80,702 jobs submitted
to Philly [2]_ from 24 September to 12 December 2017 (`labkit traces fetch philly`). Half of all jobs come in one slot
of 20."""

STAYS: Final = 0.75
"""Correlation of one slot's level with the next; then the counts have about the trace's own, 0.48."""


def philly_like(n: int, *, jobs_per_slot: float, rng: np.random.RandomState) -> list[int]:
    """Return arrivals of `n` slots with lulls and heavy bursts, as Philly's are: Poisson about a level that wanders.

    The level's rank among all slots is that of a Gaussian process with correlation `STAYS`; `PHILLY` has the levels.
    """
    counts, level = [], rng.randn()
    for _ in range(n):
        rank = 0.5 * (1 + math.erf(level / math.sqrt(2)))
        counts.append(int(rng.poisson(jobs_per_slot * PHILLY[min(int(rank * len(PHILLY)), len(PHILLY) - 1)])))
        level = STAYS * level + math.sqrt(1 - STAYS**2) * rng.randn()
    return counts
