"""The files of measured speeds: DL2's tuple per line, and a CSV of our own. Every fault is told, with its place."""

from __future__ import annotations

import ast
import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labkit.core.errors import ProfileError, unknown
from labkit.core.faults import told
from labkit.core.files import refuse_unreadable

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
        raise ProfileError(told(str(path), faults))
    return rows


def _csv_parser(path: Path, header: str) -> Callable[[str], SpeedRow]:
    """Return what turns a line into a row, by the header's order of columns."""
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
