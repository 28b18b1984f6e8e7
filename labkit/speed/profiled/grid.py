"""From measured gangs to all gangs: seconds and processor time of an update by (hosts, PS, workers)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.measured import SpeedTable
from labkit.speed.optimus import PRIOR, SpeedFunction
from labkit.speed.profiled.nouns import GangMeasurement


@dataclass(frozen=True, eq=False, slots=True)
class UpdateGrid:
    """What an update takes with every gang up to a size; row 0 of an axis is that of 1.

    Attributes
    ----------
    step_s : array
        (H + 1, P + 1, W + 1) seconds; index [0] of an axis repeats [1].
    worker_cpu_s, ps_cpu_s : array
        Of the same shape: processor seconds of workers (and of what runs beside them), and of parameter servers.
    """

    step_s: Floats
    worker_cpu_s: Floats
    ps_cpu_s: Floats

    @classmethod
    def of(cls, cells: Sequence[GangMeasurement], *, max_ps: int, max_workers: int) -> UpdateGrid:
        """Return the grid of one model's measured gangs.

        A measured gang has its measured numbers. One that was measured over another number of hosts only is changed as
        those are that were measured over both.
        Between measured gangs, radial-basis functions as in `SpeedTable.interpolate`, never beyond what was measured;
        outside of them, Optimus' speed function, passing through the nearest measured gang.
        """
        spans = sorted({cell.n_hosts for cell in cells})
        shape = (max_ps, max_workers)
        layers = [_layer(_nearest(cells, span), *shape) for span in range(1, spans[-1] + 1)]
        arrays = [_padded(np.stack([layer[i] for layer in layers])) for i in range(3)]
        return cls(*arrays)


def _nearest(cells: Sequence[GangMeasurement], span: int) -> list[GangMeasurement]:
    """Return one cell of each gang: that over so many hosts, or the most similar number, changed as others change."""
    best: dict[tuple[int, int], GangMeasurement] = {}
    for cell in sorted(cells, key=lambda cell: (abs(cell.n_hosts - span), cell.n_hosts)):
        best.setdefault((cell.n_ps, cell.n_workers), cell)
    return [cell if cell.n_hosts == span else _spread(cell, cells, span) for cell in best.values()]


def _spread(cell: GangMeasurement, cells: Sequence[GangMeasurement], span: int) -> GangMeasurement:
    """Return what a gang would do over another number of hosts: as gangs that were measured over both."""
    there = {(each.n_ps, each.n_workers): each for each in cells if each.n_hosts == span}
    both = [
        (each, there[each.n_ps, each.n_workers])
        for each in cells
        if each.n_hosts == cell.n_hosts and (each.n_ps, each.n_workers) in there
    ]
    if not both or cell.step_s is None:
        return cell
    slower = np.mean([(to.step_s or 1.0) / (of.step_s or 1.0) for of, to in both])
    costlier = np.mean([to.cpu_s / of.cpu_s for of, to in both if of.cpu_s > 0] or [1.0])
    return replace(
        cell, step_s=float(cell.step_s * slower), cpu_s=float(cell.cpu_s * costlier),
        ps_cpu_s=None if cell.ps_cpu_s is None else float(cell.ps_cpu_s * costlier),
    )  # fmt: skip


def _layer(cells: Sequence[GangMeasurement], max_ps: int, max_workers: int) -> tuple[Floats, Floats, Floats]:
    ps, workers = (np.array([getattr(cell, role) for cell in cells], np.float64) for role in ("n_ps", "n_workers"))
    step_s = np.array([float(cell.step_s or np.nan) for cell in cells])
    cpu_s = np.array([cell.cpu_s for cell in cells])
    part = np.array([_ps_part(cell) for cell in cells])
    at_ps, at_workers = np.meshgrid(np.arange(1.0, max_ps + 1), np.arange(1.0, max_workers + 1), indexing="ij")
    speed = _between(ps, workers, 1 / step_s, at_ps, at_workers)
    outside = (at_ps < ps.min()) | (at_ps > ps.max()) | (at_workers < workers.min()) | (at_workers > workers.max())
    if outside.any():
        speed = np.where(outside, _beyond(cells, at_ps, at_workers, speed), speed)
    cpu = _between(ps, workers, cpu_s, at_ps, at_workers)
    ps_cpu: Floats = cpu * _between(ps, workers, part, at_ps, at_workers)
    return 1 / speed, cpu - ps_cpu, ps_cpu


def _ps_part(cell: GangMeasurement) -> float:
    """Return which part of the processor time is that of parameter servers; by numbers of tasks if unknown."""
    if cell.ps_cpu_s is None or cell.cpu_s <= 0:
        return cell.n_ps / (cell.n_ps + cell.n_workers)
    return min(cell.ps_cpu_s / cell.cpu_s, 1.0)


def _between(ps: Floats, workers: Floats, values: Floats, at_ps: Floats, at_workers: Floats) -> Floats:
    """Return values at gangs within the measured ones, and those of the nearest edge outside."""
    if len(values) == 1:
        return np.full(at_ps.shape, values[0])
    table = SpeedTable.of(["it"] * len(values), n_ps=ps, n_workers=workers, samples_per_s=values)
    p, w = np.clip(at_ps, ps.min(), ps.max()), np.clip(at_workers, workers.min(), workers.max())
    return np.asarray(np.clip(table.interpolate("it", n_ps=p, n_workers=w), values.min(), values.max()), np.float64)


def _beyond(cells: Sequence[GangMeasurement], at_ps: Floats, at_workers: Floats, edge: Floats) -> Floats:
    """Return speeds outside of the measured gangs: those of the nearest edge, changed as the speed function changes."""
    ps, workers = [cell.n_ps for cell in cells], [cell.n_workers for cell in cells]
    speeds = [1 / cell.step_s for cell in cells if cell.step_s]
    fitted = SpeedFunction.fit(ps, workers, speeds, sync=cells[0].sync, prior=PRIOR)
    p, w = np.clip(at_ps, min(ps), max(ps)), np.clip(at_workers, min(workers), max(workers))
    changed: Floats = edge * fitted.speed(at_ps, at_workers) / fitted.speed(p, w)
    return changed


def _padded(grid: Floats) -> Floats:
    """Return a grid whose index is the number itself: one of 0 is as one of 1."""
    return np.pad(grid, ((1, 0), (1, 0), (1, 0)), mode="edge")
