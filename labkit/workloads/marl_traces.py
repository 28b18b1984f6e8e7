"""Traces as in the MARL text: jobs of the catalogue that arrive at the schedulers of several pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from labkit.core.bounds import MAX_JOBS, whole
from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.workloads.catalogue import DL2_MODELS, Demand, model
from labkit.workloads.generators import HOUR_S, google_like
from labkit.workloads.split import split

WORKER: Final = Demand(1, 2)
PS: Final = Demand(0, 2)
"""What every worker and every parameter server asks for; a model that could do without a GPU gets one too."""

PCIE_GBPS: Final = 128.0
"""Over which tasks on one machine exchange [1]_."""

SIGMA: Final = 1.0
"""Of the logarithm of durations; ours."""

PATTERNS: Final = ("google", "uniform", "poisson")
PARTS: Final = ("train", "test", "all")


def marl_jobs(
    load: float = 5.0,
    *,
    pattern: str = "google",
    per_slot: float = 3,
    n_slots: int = 24,
    n_pods: int = 4,
    slot_s: float = 1800.0,
    most_workers: int = 4,
    most_ps: int = 4,
    models: Sequence[str] = DL2_MODELS,
    worker_cpus: float = WORKER.cpus,
    ps_cpus: float = PS.cpus,
    part: str = "all",
    seed: int = 0,
) -> Jobs:
    """Return rigid jobs with parameter servers that arrive at the schedulers of some pods [1]_.

    Models, numbers of workers (1 to `most_workers`) and of servers (1 to `most_ps`) and the pod (`Jobs.home`) are drawn
    with equal chance. The text gives neither the range of workers nor how long jobs are: ours.

    Parameters
    ----------
    load : float
        Mean number of slots that a job takes alone, on one machine, with no job beside it; log-normal, in whole epochs.
    pattern : {"google", "uniform", "poisson"}
        Arrivals: in bursts (`labkit.workloads.generators.google_like`), the same number in each slot and pod at random
        moments of it, or a Poisson process.
    per_slot : float
        Mean number of jobs that arrive in a slot at each pod; the text's 15 for pods of 100 machines are 3 for 20.
    n_slots : int
        Slots in which jobs arrive; with "google" and "poisson" the last job comes about then.
    n_pods : int
        Schedulers.
    models : sequence of str
        Of the catalogue.
    worker_cpus, ps_cpus : float
        Cores that a worker, a parameter server asks for.
    slot_s : float
        Seconds in a slot.

    Raises
    ------
    InputError
        If a number is out of range, or a pattern, part or model is not known.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A.

    Examples
    --------
    >>> jobs = marl_jobs(2.5, seed=1)
    >>> len(jobs), sorted(set(jobs.home.tolist()))
    (288, [0, 1, 2, 3])
    """
    _check(load, per_slot, slot_s, worker_cpus, ps_cpus, pattern=pattern)
    whole("marl_jobs", n_slots=n_slots, n_pods=n_pods)
    whole("marl_jobs", at_most=1000, most_workers=most_workers, most_ps=most_ps)
    if part not in PARTS:
        raise unknown("part of a trace", part, PARTS)
    rng = np.random.default_rng(seed)
    n = max(1, round(per_slot * n_slots * n_pods))
    whole("marl_jobs", at_most=MAX_JOBS, n_jobs=n)
    arrival_s = _arrivals(n, pattern, per_slot * n_pods, n_slots=n_slots, slot_s=slot_s, rng=rng)
    home = rng.permutation(np.arange(n) % n_pods) if pattern == "uniform" else rng.integers(n_pods, size=n)
    known = [model(name) for name in models]
    kind, workers, servers = (
        rng.integers(len(known), size=n),
        rng.integers(1, most_workers + 1, n),
        rng.integers(1, most_ps + 1, n),
    )
    wanted_s = rng.lognormal(np.log(load * slot_s) - SIGMA**2 / 2, SIGMA, n)
    columns = ("compute_s", "bytes", "steps_per_epoch")
    compute_s, size, epoch = (np.array([getattr(m, name) for m in known], np.float64)[kind] for name in columns)
    step_s = compute_s / workers + 2 * size / servers * 8e-9 / PCIE_GBPS
    steps = np.maximum(np.round(wanted_s / step_s / epoch), 1.0) * epoch
    jobs = Jobs.of(
        name=f"marl_jobs({load:g}) seed {seed}",
        model=[known[k].name for k in kind],
        arrival_s=np.round(arrival_s, 1),
        total_steps=steps,
        steps_per_epoch=epoch,
        duration_s=steps * step_s,
        n_workers=workers,
        n_ps=servers,
        worker_demand=replace(WORKER, cpus=worker_cpus).amounts(),
        ps_demand=replace(PS, cpus=ps_cpus).amounts(),
        home=home,
    )
    return jobs if part == "all" else split(jobs)[PARTS.index(part)]


def _arrivals(
    n: int, pattern: str, per_slot: float, *, n_slots: int, slot_s: float, rng: np.random.Generator
) -> Floats:
    """Return when jobs arrive at any pod, (n,)."""
    if pattern == "uniform":
        slot = np.floor(np.arange(n) * n_slots / n)
        return np.sort(slot + rng.random(n)) * slot_s
    if pattern == "poisson":
        return np.cumsum(rng.exponential(slot_s / per_slot, n))
    return google_like(n, per_hour=per_slot * HOUR_S / slot_s, rng=rng)


def _check(load: float, per_slot: float, slot_s: float, worker_cpus: float, ps_cpus: float, *, pattern: str) -> None:
    if pattern not in PATTERNS:
        raise unknown("pattern of arrivals", pattern, PATTERNS)
    for name, value, what in (
        ("load", load, "slots that a job takes alone"),
        ("per_slot", per_slot, "jobs per slot and pod"),
        ("slot_s", slot_s, "seconds"),
        ("worker_cpus", worker_cpus, "cores"),
        ("ps_cpus", ps_cpus, "cores"),
    ):
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
            raise InputError(f"marl_jobs: {name} is {value!r}; expected {what}, a number > 0.")
