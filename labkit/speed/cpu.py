"""DLRover's model of CPU-bound training with parameter servers: throughput, and the plan that maximises it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints


@dataclass(frozen=True, eq=False, slots=True)
class CpuPlan:
    """How many workers and parameter servers, and with how many cores each; scalars or one entry per job."""

    n_workers: Ints
    worker_cores: Ints
    n_ps: Ints
    ps_cores: Ints
    total_ps_cores: Floats


@dataclass(frozen=True, eq=False, slots=True)
class CpuModel:
    """Work of one step on CPU cores [1]_, eq. (1); scalars or one entry per job, broadcast against each other.

    The time of a step of one worker is t_IO + W_compute / (r min(w, w^)) + W_update / (r min(s, s^)). With `n_workers`
    pushing at the same time, each has s_total / n_workers of the servers' cores, so that throughput saturates once
    n_workers s^ > s_total, as the text says; while n_workers s^ <= s_total, its constraint (4), this is eq. (1).

    Attributes
    ----------
    compute_core_s, update_core_s : float or array
        Core-seconds to compute the gradient of a batch (W_compute), and to apply it (W_update).
    worker_cores, ps_cores : float or array
        Cores that a worker (w^), and the servers for one worker (s^), can put to use.
    io_s : float or array
        Seconds to read a batch and to move parameters and gradients (t_IO).
    core_speed : float or array
        Speed of a core against the one of the measurements (r).

    Raises
    ------
    InputError
        If cores or the speed of a core are not positive, or work is negative.

    References
    ----------
    .. [1] Wang et al., "DLRover: an elastic deep training extension with auto job resource recommendation", sec. 4.1.
    """

    compute_core_s: ArrayLike
    worker_cores: ArrayLike
    update_core_s: ArrayLike
    ps_cores: ArrayLike
    io_s: ArrayLike = 0.0
    core_speed: ArrayLike = 1.0

    def __post_init__(self) -> None:
        for name in ("worker_cores", "ps_cores", "core_speed"):
            _demand(name, np.asarray(getattr(self, name), np.float64), positive=True)
        for name in ("compute_core_s", "update_core_s", "io_s"):
            _demand(name, np.asarray(getattr(self, name), np.float64), positive=False)

    def compute_s(self, worker_cores: ArrayLike) -> Floats:
        """Return seconds of a worker with so many cores to compute the gradient of a batch."""
        return self._time(self.compute_core_s, used=np.minimum(worker_cores, self.worker_cores))

    def update_s(self, total_ps_cores: ArrayLike, *, n_workers: ArrayLike) -> Floats:
        """Return seconds to apply one worker's gradient, on its part of the servers' cores."""
        part = np.asarray(total_ps_cores, np.float64) / np.maximum(n_workers, 1)
        return self._time(self.update_core_s, used=np.minimum(part, self.ps_cores))

    def throughput(
        self, worker_cores: ArrayLike, *, total_ps_cores: ArrayLike, n_workers: ArrayLike | None = None
    ) -> Floats:
        """Return steps per second of a job, times the batch size for samples.

        Parameters
        ----------
        worker_cores : array_like
            With `n_workers`: cores of every worker. Without: the last axis lists the workers of one job.
        total_ps_cores : array_like
            Cores of all parameter servers together.
        n_workers : array_like, optional
            Number of workers, all alike.

        Returns
        -------
        array
            (...,) the sum of the workers' rates.
        """
        cores = np.asarray(worker_cores, np.float64)
        workers = cores.shape[-1] if n_workers is None else np.asarray(n_workers)
        update_s = self.update_s(total_ps_cores, n_workers=workers)
        if n_workers is None:
            rates = 1 / (np.asarray(self.io_s) + self.compute_s(cores) + update_s[..., None])
            return np.asarray(rates.sum(axis=-1))
        return np.asarray(workers / (np.asarray(self.io_s) + self.compute_s(cores) + update_s))

    def optimum(self, total_cores: ArrayLike, *, cores_per_ps: int = 16) -> CpuPlan:
        """Return the plan of most throughput within a budget of cores, in closed form: eqs. (10) and (11).

        N_w = C / (w^ + s^), s_total = C - N_w w^, n_ps = s_total / `cores_per_ps`; counts round down (one server at
        least), the cores of a worker round up, as in Table 1 of the text.

        Raises
        ------
        InputError
            If the budget does not hold one worker and its part of a server.
        """
        w, s = np.asarray(self.worker_cores, np.float64), np.asarray(self.ps_cores, np.float64)
        budget = np.asarray(total_cores, np.float64)
        n_workers = np.floor(budget / (w + s) + 1e-9)
        if (n_workers < 1).any():
            raise InputError(
                f"total_cores is {budget.min():g}; one worker and its servers need {(w + s).max():g} cores."
            )
        servers = budget - n_workers * w
        n_ps = np.maximum(np.floor(servers / cores_per_ps + 1e-9), 1)
        ps_cores = np.minimum(np.full_like(n_ps, cores_per_ps), np.floor(servers / n_ps + 1e-9))
        return CpuPlan(_ints(n_workers), _ints(np.ceil(w - 1e-9)), _ints(n_ps), _ints(ps_cores), servers)

    def _time(self, work: ArrayLike, *, used: Floats) -> Floats:
        """Return work over speed; no work takes no time, even without cores."""
        todo, speed = np.broadcast_arrays(np.asarray(work, np.float64), np.asarray(self.core_speed) * used)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(todo > 0, todo / speed, 0.0)


def _ints(values: Floats) -> Ints:
    return np.asarray(values).astype(np.int32)


def _demand(name: str, values: Floats, *, positive: bool) -> None:
    """Refuse values that are negative, NaN or, where so asked, zero."""
    bad = ~(values > 0) if positive else ~(values >= 0)
    if bad.any():
        expected = "more than 0" if positive else "0 or more"
        raise InputError(f"{name} is {values[bad].flat[0]:g}; expected {expected}.")
