"""Measured training speeds by (PS, workers): reading them, radial-basis interpolation, and the speed model on top."""

from __future__ import annotations

import ast
import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError, ProfileError, unknown
from labkit.core.faults import fault_report
from labkit.core.files import refuse_unreadable
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.speed.units import samples_of_step

if TYPE_CHECKING:
    import pandas as pd


class ByGang(Protocol):
    """Speeds of models by gang, from which `MeasuredSpeed` makes a speed model: a `SpeedTable`, or what was fitted.

    Attributes
    ----------
    batch : array
        (K,) samples in a parameter update of each model.
    in_words : str
        What it is, for headers of runs.
    """

    @property
    def batch(self) -> Floats: ...  # noqa: D102

    @property
    def in_words(self) -> str: ...  # noqa: D102

    def __hash__(self) -> int: ...

    def code(self, model: str) -> int:
        """Return the index of a model; refuse one that is not known."""

    def grid(self, model: str, *, max_ps: int, max_workers: int, clip: bool = False) -> Floats:
        """Return samples/s at every gang, (max_ps + 1, max_workers + 1); 0 without PS or without workers."""


class OfModels:
    """Numbers of some models, by name; `called` is what an error calls one of them."""

    models: tuple[str, ...]
    called: ClassVar = "model of the speed table"

    def code(self, model: str) -> int:
        """Return the index of a model.

        Raises
        ------
        InputError
            If it is not there; the message names the nearest one that is.
        """
        if model not in self.models:
            raise unknown(self.called, model, self.models)
        return self.models.index(model)


@dataclass(frozen=True, eq=False)
class SpeedTable(OfModels):
    """Measured speeds of some models, K of them; make one with `SpeedTable.of` or `SpeedTable.read`.

    Attributes
    ----------
    models : tuple of str
        (K,) names, in order of first sight.
    model : array
        (N,) index into `models`.
    n_ps, n_workers : array
        (N,) the gang that was measured, at least one of each.
    samples_per_s : array
        (N,) training speed of the whole job; 0 for a gang on which the measurement failed.
    batch : array
        (K,) samples per step (the global batch of synchronous training); 1 where it is not known.
    """

    models: tuple[str, ...]
    model: Ints
    n_ps: Ints
    n_workers: Ints
    samples_per_s: Floats
    batch: Floats

    @property
    def in_words(self) -> str:
        """What it is, for headers of runs."""
        return "a measured table by PSs and workers"

    @classmethod
    def of(
        cls,
        model: ArrayLike,
        *,
        n_ps: ArrayLike,
        n_workers: ArrayLike,
        samples_per_s: ArrayLike,
        batch: ArrayLike = 1.0,
        name: str = "speed table",
    ) -> Self:
        """Return a table from columns.

        Raises
        ------
        ProfileError
            All faults at once: counts below 1, speeds that are negative, infinite or NaN, a gang measured twice,
            a model with fewer than two gangs, a batch that changes within a model.
        """
        names = np.atleast_1d(np.asarray(model, dtype=object))
        models = tuple(dict.fromkeys(str(m) for m in names))
        index = {m: k for k, m in enumerate(models)}
        code = np.array([index[str(m)] for m in names], np.int32)
        ps, workers = _counts(n_ps, len(names)), _counts(n_workers, len(names))
        speed = np.array(np.broadcast_to(np.asarray(samples_per_s, np.float64), (len(names),)))
        batches = np.array(np.broadcast_to(np.asarray(batch, np.float64), (len(names),)))
        faults = _faults(models, code, ps, workers, speed, batches)
        if faults:
            raise ProfileError(fault_report(name, faults))
        first_row = np.array([np.flatnonzero(code == k)[0] for k in range(len(models))])
        return cls(models, code, ps, workers, speed, batches[first_row])

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read DL2's `config_speed.txt` (a tuple per line) or a CSV: model,n_ps,n_workers,samples_per_s[,batch].

        Raises
        ------
        ProfileError
            All faults of the file at once, each with line and column.
        """
        rows = read_rows(Path(path))
        return cls.of(
            [row.model for row in rows],
            n_ps=[row.n_ps for row in rows],
            n_workers=[row.n_workers for row in rows],
            samples_per_s=[row.samples_per_s for row in rows],
            batch=[row.batch for row in rows],
            name=str(path),
        )

    def __len__(self) -> int:
        return len(self.model)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per measurement; `to_csv(index=False)` of it is what `read` takes."""
        import pandas as pd

        names = np.array(self.models, dtype=object)[self.model]
        return pd.DataFrame(
            {"model": names, "n_ps": self.n_ps, "n_workers": self.n_workers, "samples_per_s": self.samples_per_s,
             "batch": self.batch[self.model]}
        )  # fmt: skip

    def rows(self, model: str) -> tuple[Ints, Ints, Floats]:
        """Return PS, workers and samples/s of one model's measurements, (n,) each."""
        mine = self.model == self.code(model)
        return self.n_ps[mine], self.n_workers[mine], self.samples_per_s[mine]

    def interpolate(self, model: str, *, n_ps: ArrayLike, n_workers: ArrayLike) -> Floats:
        """Return samples/s at any gangs by linear radial-basis functions, as DL2's simulator does.

        S(p, w) = sum_i lambda_i hypot(p - p_i, w - w_i), exact at the measured points, without polynomial term [1]_.
        Far from them it may be negative or too high: nothing is clipped here.

        References
        ----------
        .. [1] `speed.py` of DL2's public simulator: `scipy.interpolate.Rbf(function="linear")`.
        """
        ps, workers, speed = self.rows(model)
        weights = np.linalg.solve(np.hypot(ps[:, None] - ps, workers[:, None] - workers), speed)
        at_ps, at_workers = np.asarray(n_ps, np.float64), np.asarray(n_workers, np.float64)
        distance = np.hypot(at_ps[..., None] - ps, at_workers[..., None] - workers)
        return np.asarray(distance @ weights, dtype=np.float64)

    def grid(self, model: str, *, max_ps: int, max_workers: int, clip: bool = False) -> Floats:
        """Return samples/s at every gang, (max_ps + 1, max_workers + 1); 0 without PS or without workers.

        `clip` raises negative speeds to 0; DL2's simulator does not, and has about -4e-13 where a measurement failed.
        """
        grid = np.zeros((max_ps + 1, max_workers + 1))
        n_ps, n_workers = np.meshgrid(np.arange(1, max_ps + 1), np.arange(1, max_workers + 1), indexing="ij")
        grid[1:, 1:] = self.interpolate(model, n_ps=n_ps, n_workers=n_workers)
        return np.maximum(grid, 0.0) if clip else grid


class MeasuredSpeed:
    """Steps per second from measured speeds: only the numbers of PSs and workers count, not where they are.

    A step is what the jobs say, `samples_per_step` samples; where they do not, a parameter update, the table's batch.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Jobs whose models are all in the table, and may use at least one PS.
    table : SpeedTable or FittedTable
        What was measured, or fitted to it.
    samples_per_step : mapping, optional
        Samples in one step of each model's jobs, whatever the jobs say.
    clip : bool
        True: a speed is never negative. False keeps the published values, which differ from 0 only in the 13th digit
        where a measurement failed, and below 0 only when extrapolated.
    """

    local = True

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        table: ByGang,
        samples_per_step: Mapping[str, float] | None = None,
        clip: bool = True,
    ) -> None:
        _refuse_without_ps(jobs)
        self.jobs, self.cluster, self.table = jobs, cluster, table
        shape = {"max_ps": int(jobs.max_ps.max()) + 1, "max_workers": int(jobs.max_workers.max()) + 1}
        batch = table.batch[[table.code(model) for model in jobs.models]]
        samples = (
            samples_of_step(jobs, batch=batch)
            if samples_per_step is None
            else [_samples_per_step(model, samples_per_step) for model in jobs.models]
        )
        self.grid: Floats = np.stack(
            [
                _grid(table, model, clip=clip, **shape) / of_step
                for model, of_step in zip(jobs.models, samples, strict=True)
            ]
        )
        """(K, P + 2, W + 2) steps/s of each model of the jobs at every gang, and one task beyond the largest."""
        self.row: Ints = jobs.model
        """(N,) which of them is that of a job."""

    @property
    def in_words(self) -> str:
        """What the speeds rest on, for headers of runs."""
        return self.table.in_words

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,); 0 without a PS or without a worker.

        Tasks beyond the grid are of no use.
        """
        _, n_p, n_w = self.grid.shape
        ps, workers = np.minimum(running.n_ps, n_p - 1), np.minimum(running.n_workers, n_w - 1)
        speeds: Floats = self.grid[self.row[running.job], ps, workers]
        return speeds

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types: the table knows no types, so all that they allow, (N, T)."""
        return may_run_on(self.jobs, self.cluster)

    def durations_s(self) -> Floats:
        """Return seconds each job takes with the gang it asked for, (N,); NaN where that gang makes no progress."""
        jobs = self.jobs
        speed = self.grid[jobs.model, jobs.n_ps, jobs.n_workers]
        seconds = np.full(len(jobs), np.nan)
        np.divide(jobs.total_steps, speed, out=seconds, where=speed > 0)
        return seconds


@lru_cache(maxsize=256)
def _grid(table: ByGang, model: str, *, max_ps: int, max_workers: int, clip: bool) -> Floats:
    """Return a grid of a table, solved once: learning needs one for each of thousands of traces."""
    grid = table.grid(model, max_ps=max_ps, max_workers=max_workers, clip=clip)
    grid.flags.writeable = False
    return grid


def _samples_per_step(model: str, batches: Mapping[str, float]) -> float:
    if model not in batches:
        raise unknown("model in samples_per_step", model, batches)
    if not batches[model] > 0:
        raise InputError(f"samples_per_step of '{model}' is {batches[model]}; expected a number > 0.")
    return float(batches[model])


def _refuse_without_ps(jobs: Jobs) -> None:
    without = np.flatnonzero(jobs.max_ps < 1)
    if len(without):
        raise InputError(
            f"job {jobs.id[without[0]]} may use no parameter server (max_ps = 0), and {len(without) - 1} more; "
            "measured speeds need at least one: set max_ps, or take a speed model with all-reduce."
        )


def _counts(values: ArrayLike, n: int) -> Ints:
    return np.array(np.broadcast_to(np.asarray(values, np.int32), (n,)))


def _faults(models: tuple[str, ...], code: Ints, ps: Ints, workers: Ints, speed: Floats, batch: Floats) -> list[str]:
    """Return the faults of the columns of a table, a line each."""
    if not len(code):
        return ["it has no measurements; expected at least two gangs of a model"]
    checks: list[tuple[Bools, str, NDArray[Any], str]] = [
        (ps < 1, "n_ps", ps, ">= 1"),
        (workers < 1, "n_workers", workers, ">= 1"),
        (~np.isfinite(speed) | (speed < 0), "samples_per_s", speed, ">= 0; drop the row or measure it again"),
        (~np.isfinite(batch) | (batch <= 0), "batch", batch, "> 0"),
    ]
    faults = [
        f"row {i + 1} ({models[code[i]]}): {column} is {values[i]}; expected {expected}"
        for bad, column, values, expected in checks
        for i in np.flatnonzero(bad)
    ]
    return faults + [
        fault for k, name in enumerate(models) for fault in _model_faults(name, code == k, ps, workers, batch)
    ]


def _model_faults(name: str, rows: Bools, ps: Ints, workers: Ints, batch: Floats) -> list[str]:
    gangs, times = np.unique(np.stack([ps[rows], workers[rows]]), axis=1, return_counts=True)
    faults = [
        f"{name}: the gang of {p} PS and {w} workers occurs {n} times; keep one (their mean, say)"
        for (p, w), n in zip(gangs.T, times, strict=True)
        if n > 1
    ]
    if len(times) < 2:
        faults.append(f"{name}: one gang was measured; interpolation needs at least one more")
    if len(np.unique(batch[rows])) > 1:
        faults.append(f"{name}: the batch changes between rows; speeds are comparable at one global batch only")
    return faults


COLUMNS: Final = ("model", "n_ps", "n_workers", "samples_per_s", "batch")
DL2_COLUMNS: Final = (
    "model", "sync_mode", "tot_batch_size", "num_ps", "num_worker", "speeds", "ps_cpu_usages", "worker_cpu_usages",
)  # fmt: skip
_REMEDY: Final = "drop the row or measure it again"


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One measurement: a job's speed with a gang."""

    model: str
    n_ps: int
    n_workers: int
    samples_per_s: float
    batch: float


class _FaultError(Exception):
    """What is wrong, and in which character or column."""


def read_rows(path: Path) -> list[SpeedRow]:
    """Return the measurements of a file in either format.

    Raises
    ------
    ProfileError
        If it cannot be read; all its faults at once, each with line and column.
    """
    refuse_unreadable(path, expected="measured speeds (CSV, or DL2's config_speed.txt)", error=ProfileError)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ProfileError(
            f"{path}: no such file; expected measured speeds (CSV, or DL2's config_speed.txt)."
        ) from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: not a text file; expected CSV, or DL2's config_speed.txt.") from None
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not numbered:
        raise ProfileError(f"{path}: it has no measurements; expected one per line.")
    parse = _dl2_row if numbered[0][1].lstrip().startswith("(") else _csv_parser(path, numbered.pop(0)[1])
    rows: list[SpeedRow] = []
    faults: list[str] = []
    for n, line in numbered:
        try:
            rows.append(parse(line))
        except _FaultError as fault:
            faults.append(f"line {n}, {fault}")
    if faults:
        raise ProfileError(fault_report(str(path), faults))
    return rows


def _csv_parser(path: Path, header: str) -> Callable[[str], SpeedRow]:
    """Return the parser of lines, by the header's order of columns."""
    names = [name.strip() for name in next(csv.reader([header]))]
    for name in names:
        if name not in COLUMNS:
            raise unknown(f"column of {path}", name, COLUMNS)
    missing = [name for name in COLUMNS[:4] if name not in names]
    if missing:
        raise ProfileError(
            f"{path}: column {missing[0]} is missing; expected {', '.join(COLUMNS[:4])} and maybe batch."
        )

    def parse(line: str) -> SpeedRow:
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if len(cells) != len(names):
            raise _FaultError(f"column {min(len(cells), len(names)) + 1}: {len(cells)} cells; expected {len(names)}")
        cell = dict(zip(names, cells, strict=True))
        return SpeedRow(
            cell["model"],
            _whole(_number(cell["n_ps"]), "column n_ps"),
            _whole(_number(cell["n_workers"]), "column n_workers"),
            _speed(_number(cell["samples_per_s"]), "column samples_per_s"),
            _batch(_number(cell.get("batch", "1")), "column batch"),
        )

    return parse


def _dl2_row(line: str) -> SpeedRow:
    text = line.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise _FaultError(
            f"character {error.offset}: {error.msg}; expected a tuple ('model', 'dist_sync', 32, ...)"
        ) from None
    except (ValueError, RecursionError, MemoryError):  # a zero byte, or brackets too deep
        raise _FaultError("it cannot be read; expected a tuple ('model', 'dist_sync', 32, ...)") from None
    if not isinstance(tree, ast.Tuple) or len(tree.elts) != len(DL2_COLUMNS):
        n = len(tree.elts) if isinstance(tree, ast.Tuple) else 1
        raise _FaultError(f"character {len(text)}: {n} columns; expected {len(DL2_COLUMNS)}: {', '.join(DL2_COLUMNS)}")
    at = {name: f"character {e.col_offset + 1}, {name}" for name, e in zip(DL2_COLUMNS, tree.elts, strict=True)}
    value = {name: _literal(e, at[name]) for name, e in zip(DL2_COLUMNS[:6], tree.elts, strict=False)}
    workers = _whole(value["num_worker"], at["num_worker"])
    if not isinstance(value["model"], str):
        raise _FaultError(f"{at['model']}: {value['model']!r}; expected a name in quotes")
    return SpeedRow(
        value["model"],
        _whole(value["num_ps"], at["num_ps"]),
        workers,
        sum(_speeds(value["speeds"], workers, at["speeds"])),
        _batch(value["tot_batch_size"], at["tot_batch_size"]),
    )


def _literal(node: ast.expr, where: str) -> object:
    if any(isinstance(part, ast.Name) and part.id.lower() in {"nan", "inf"} for part in ast.walk(node)):
        raise _FaultError(f"{where}: {ast.unparse(node)}; expected numbers: {_REMEDY}")
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise _FaultError(f"{where}: expected a plain value") from None
    return value


def _speeds(value: object, n_workers: int, where: str) -> Iterator[float]:
    if not isinstance(value, list) or len(value) != n_workers:
        raise _FaultError(f"{where}: {value!r}; expected a list of {n_workers} speeds, one per worker")
    return (_speed(speed, where) for speed in value)


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int | float) or value != value or value < 1 or value != int(value):
        raise _FaultError(f"{where}: {value!r}; expected a whole number >= 1")
    return int(value)


def _speed(value: object, where: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise _FaultError(f"{where}: {value!r}; expected samples/s >= 0: {_REMEDY}")
    return float(value)


def _batch(value: object, where: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise _FaultError(f"{where}: {value!r}; expected samples > 0")
    return float(value)
