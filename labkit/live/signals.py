"""How a run does over time: throughput, queue, cores, GPUs, link utilisation, losses; folded from events."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, Quantity
from labkit.core.jobs import Jobs
from labkit.core.ledger import HOLDING, Ledger
from labkit.core.resources import CPUS, GPUS, Floats, Ints
from labkit.core.text import amount
from labkit.speed.network import link_loads
from labkit.workloads.catalogue import model_bytes

MOST_PER_FOLD: Final = 400
"""Moments of one batch of events at which signals are taken: as many as a chart has columns to show."""
FIRST_LOSS: Final = 100
"""The loss of job n is line `FIRST_LOSS + n` of the history; below stand the signals of the whole run."""
FINENESS: Final = 2000
"""Two moments lie at least the run's time so far divided by this apart, so that a long run has some 20,000 of them."""


class Signal(IntEnum):
    """The signals of a whole run; a loss is one of a single job."""

    THROUGHPUT = 0
    """Samples/s, or steps/s where the trace does not tell the samples of a step, of all jobs together."""
    RUNNING = 1
    """Jobs that hold tasks."""
    WAITING = 2
    """Jobs that arrived, are not over and hold no tasks."""
    CORES_HELD = 3
    """Cores that tasks hold."""
    CORES_USED = 4
    """Cores that tasks were measured to use; only in runs that measure it."""
    GPUS_HELD = 5
    """GPUs that tasks hold."""
    LINK_LOAD = 6
    """Part of its bandwidth that the fullest link carries: foreseen from places, speeds and sizes of models."""
    PREDICTED = 7
    """The throughput that the scheduler predicts; a job of which it predicts nothing counts as measured. Only in runs
    with predictions."""


class Signals:
    """Signals of a run as far as its events go.

    Parameters
    ----------
    jobs : Jobs
        Of the run.
    cluster : Cluster
        It runs on; link utilisation is reported where it has a network.
    sizes : array, optional
        (N,) bytes of each job's parameters, 0 where not known; by default those of the catalogue's models.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster, *, sizes: Floats | None = None) -> None:
        self.ledger = Ledger(jobs, cluster)
        """What is believed of the jobs."""
        self.history: list[tuple[int, float, float]] = []
        """(line, time_s, value) of signals and losses; it only grows. The newest values are in `latest` alone, until it
        is known how long they hold."""
        self.loss_of: dict[int, float] = {}
        """Job -> its newest loss."""
        self._predicted = np.full(len(jobs), np.nan)
        self._predicts = False
        self.busiest = ""
        """The link that LINK_LOAD tells of, "m0 to s1"; empty where nothing is sent."""
        self.counts_samples = bool(np.isfinite(jobs.samples_per_step).all())
        self._weight = jobs.samples_per_step if self.counts_samples else np.ones(len(jobs))
        self._sizes = model_bytes(jobs) if sizes is None else sizes
        self.n_unsized = int((self._sizes <= 0).sum())
        self._network = cluster.network if self._sizes.any() else None
        self._built = cluster.capacity.sum(axis=0)
        self._newest: tuple[float, dict[Signal, float]] = (0.0, {})
        self._kept: dict[Signal, float] = {}
        self._kept_s = -math.inf
        self._loss_taken_s: dict[int, float] = {}

    @property
    def now_s(self) -> float:
        """When the last event was."""
        return self._newest[0]

    @property
    def latest(self) -> dict[Signal, float]:
        """Signal -> its newest value."""
        return self._newest[1]

    def fold(self, rows: Events) -> None:
        """Take note of events, and take signals between them."""
        if not len(rows):
            return
        ends = _moments(rows["time_s"])
        times = [float(rows["time_s"][end - 1]) for end in ends]
        least_s = self._least_s(times)
        begin = 0
        for end, time_s, next_s in zip(ends, times, [*times[1:], math.inf], strict=True):
            self._keep(least_s, next_s=time_s)
            if next_s - time_s >= least_s or time_s - self._kept_s >= least_s:
                self.ledger.fold(rows[begin:end])
                self._note_predictions(rows[begin:end])
                self._newest = (time_s, self._values())
                begin = end
        self._hear_losses(rows[rows["kind"] == Kind.LOSS], least_s)

    def _note_predictions(self, rows: Events) -> None:
        told = rows[(rows["kind"] == Kind.EXPLAINED) & (rows["speed"] > 0)]
        self._predicted[told["job"]] = told["speed"]
        self._predicts = self._predicts or len(told) > 0

    def _least_s(self, times: list[float]) -> float:
        return max(times[-1] / FINENESS, (times[-1] - max(self.now_s, times[0])) / MOST_PER_FOLD)

    def _keep(self, least_s: float, *, next_s: float) -> None:
        """Add the newest signals to the history, now that the next moment is known.

        They are left out where they held for an instant only and others were kept shortly before; where the moment goes
        on, what comes now is in their place.
        """
        time_s, values = self._newest
        lasts, due = next_s - time_s >= least_s, time_s - self._kept_s >= least_s
        if next_s == time_s or not (lasts or due):
            return
        self._kept_s = time_s
        for signal, value in values.items():
            if value != self._kept.get(signal):
                self._kept[signal] = value
                self.history.append((int(signal), time_s, value))

    def names(self) -> dict[Signal, str]:
        """Return the name of each signal that a run on this cluster can have."""
        rate = "samples/s" if self.counts_samples else "steps/s"
        return {
            Signal.THROUGHPUT: f"throughput ({rate})", Signal.RUNNING: "jobs running", Signal.WAITING: "jobs waiting",
            Signal.CORES_HELD: "cores held", Signal.CORES_USED: "cores used", Signal.GPUS_HELD: "GPUs held",
            Signal.LINK_LOAD: "utilisation of the busiest link", Signal.PREDICTED: f"predicted throughput ({rate})",
        }  # fmt: skip

    def said(self, signal: Signal) -> str:
        """Return the newest value of a signal, in words."""
        value = self.latest.get(signal)
        if value is None:
            return ""
        if signal == Signal.LINK_LOAD:
            return f"{value:.0%} ({self.busiest})" if self.busiest else f"{value:.0%}"
        if signal in (Signal.CORES_HELD, Signal.CORES_USED, Signal.GPUS_HELD):
            built = self._built[GPUS if signal == Signal.GPUS_HELD else CPUS]
            return f"{amount(value)} of {amount(built)}"
        return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"

    def _hear_losses(self, rows: Events, least_s: float) -> None:
        for job, time_s, loss in zip(*(rows[name].tolist() for name in ("job", "time_s", "value")), strict=True):
            self.loss_of[job] = loss
            if np.isfinite(loss) and time_s - self._loss_taken_s.get(job, -np.inf) >= least_s:
                self._loss_taken_s[job] = time_s
                self.history.append((FIRST_LOSS + job, time_s, loss))

    def _values(self) -> dict[Signal, float]:
        ledger, belief = self.ledger, self.ledger.belief
        holding: Ints = np.flatnonzero(belief["phase"] == HOLDING).astype(np.int32)
        speed = np.nan_to_num(belief["speed"][holding])
        values = {
            Signal.THROUGHPUT: float(speed @ self._weight[holding]),
            Signal.RUNNING: float(len(holding)),
            Signal.WAITING: float(ledger.n_active - len(holding)),
        }
        if self._predicts:
            predicted = self._predicted[holding]
            values[Signal.PREDICTED] = float(np.where(predicted > 0, predicted, speed) @ self._weight[holding])
        held = self._held()
        for signal, resource in ((Signal.CORES_HELD, CPUS), (Signal.GPUS_HELD, GPUS)):
            if np.isfinite(self._built[resource]) and self._built[resource] > 0:
                values[signal] = float(held[resource])
        used = self._cores_used(holding)
        if used is not None:
            values[Signal.CORES_USED] = used
        if self._network is not None:
            values[Signal.LINK_LOAD] = self._link_load(holding, speed)
        return values

    def _held(self) -> Floats:
        """Return the amounts in use, (R,); the free capacity of a machine that is gone lacks all that it had."""
        cluster, up = self.ledger.cluster, self.ledger.up
        held: Floats = (cluster.capacity * up[cluster.group_machine, None] - self.ledger.book.free).sum(axis=0)
        return held

    def _cores_used(self, holding: Ints) -> float | None:
        if not np.isfinite(self.ledger.use.at_s).any():
            return None
        return float(np.nansum(self.ledger.use.newest[holding, :, Quantity.CORES]))

    def _link_load(self, holding: Ints, speed: Floats) -> float:
        network = self._network
        assert network is not None
        loads = link_loads(
            self.ledger.book.running(holding), jobs=self.ledger.jobs, cluster=self.ledger.cluster,
            model_bytes=self._sizes, speed=speed,
        )  # fmt: skip
        fullest = int(np.argmax(loads))
        ends = (network.nodes[network.link_from[fullest]], network.nodes[network.link_to[fullest]])
        self.busiest = " to ".join(ends) if loads[fullest] > 0 else ""
        return round(float(loads[fullest]), 6)


def _moments(times: Floats) -> list[int]:
    """Return where each moment of a batch of events ends.

    >>> _moments(np.array([0.0, 0.0, 1.0, 2.0]))
    [2, 3, 4]
    """
    return [*(np.flatnonzero(np.diff(times) > 0) + 1).tolist(), len(times)]
