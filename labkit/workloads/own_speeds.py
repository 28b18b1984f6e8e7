"""Speeds by type of GPU from a CSV of one's own, from relative speeds, or guessed from published FLOPS."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.device_types import type_index
from labkit.core.errors import InputError, unknown
from labkit.core.faults import fault_report
from labkit.core.files import refuse_unreadable
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.workloads.gavel import Throughputs

COLUMNS: Final = ("model", "gpus", "type", "steps_per_s")
RELATIVE: Final = ("type", "speed")
ANY: Final = "*"
"""In the place of a model: all that have no rows of their own."""

MAX_GPUS: Final = 100_000
_PRODUCT: Final = re.compile(r"[a-z]{1,4}[0-9]{1,4}[a-z]{0,3}")
"""What makers call their GPUs: t4, rtx4090, mi250x; not gpu, cpu or none."""
MOST_NAMED: Final = 6
"""Types that a note names."""
EXPECTED: Final = f"a CSV of speeds with columns {', '.join(COLUMNS)}, or {', '.join(RELATIVE)}"

TFLOPS: Final = {
    "k80": 8.7, "p40": 11.8, "p100": 21.2, "v100": 125.0, "t4": 65.0, "a10": 125.0, "a30": 165.0, "a40": 149.7,
    "a100": 312.0, "a800": 312.0, "l4": 121.0, "l40": 181.0, "l40s": 362.0, "h100": 989.0, "h800": 989.0, "h200": 989.0,
    "b200": 2250.0, "mi100": 184.6, "mi210": 181.0, "mi250x": 383.0, "mi300x": 1307.0,
}  # fmt: skip
"""Peak dense TFLOPS by their makers' data sheets: 16-bit matrix units if there are any; P100: FP16, P40, K80: FP32."""


@dataclass(frozen=True, slots=True)
class TypeSpeeds:
    """Speeds by type of GPU that a user gives."""

    table: Throughputs
    """Steps/s by model, number of GPUs and type."""
    description: str
    """Where they are from, for headers of runs."""


def is_speeds(path: str | Path) -> bool:
    """Return whether a file begins as a CSV of speeds by type; InputError for a pipe, a device or a socket."""
    refuse_unreadable(path, expected=EXPECTED)
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            names = {name.strip().lower() for name in file.readline(4096).split(",")}
    except (OSError, ValueError):
        return False
    return "steps_per_s" in names or set(RELATIVE) <= names or _nearly(names)


def _nearly(names: set[str]) -> bool:
    """Return whether a header is that of speeds by type with a word misspelt, which reading it tells."""
    return any(
        len(names) == len(columns) and len(set(columns) & names) == len(columns) - 1 and "type" in names
        for columns in (COLUMNS, RELATIVE)
    )


def read_speeds(path: str | Path, *, jobs: Jobs) -> TypeSpeeds:
    """Return the speeds of a CSV for some jobs.

    With the columns type and speed, a job is on a type as many times as fast as its number says. Raise InputError if it
    cannot be read; every fault, with its line; or a model of the jobs has no rows, and there is none for "*".
    """
    path = Path(path)
    header, rows = _rows(path)
    if set(RELATIVE) <= set(header):
        relative = _relative(path, rows)
        return TypeSpeeds(_in_proportion(jobs, relative), "relative speeds of types")
    entries = _entries(path, rows)
    return TypeSpeeds(_for_models(entries, jobs, path), "speeds by model, GPUs and type")


def guessed_speeds(jobs: Jobs, device_types: Sequence[str]) -> TypeSpeeds:
    """Return speeds in proportion to the published TFLOPS of some types; InputError if a type is none that is known."""
    found = {}
    for kind, t in zip(device_types, type_index(device_types, tuple(TFLOPS)).tolist(), strict=True):
        if t < 0:
            raise InputError(
                f"{unknown('type of GPU with published FLOPS', kind, TFLOPS)} Give relative speeds: --throughputs "
                f"FILE, a CSV with columns {', '.join(RELATIVE)}."
            )
        found[kind] = list(TFLOPS.values())[t]
    shown = ", ".join(f"{kind} {value:g}" for kind, value in found.items())
    return TypeSpeeds(_in_proportion(jobs, found), f"a guess: as published peak TFLOPS ({shown})")


def unheard_types(device_types: Iterable[str], jobs: Jobs, *, heard: Iterable[str] = ()) -> list[str]:
    """Return types of a cluster that look like a maker's name and are in no list here, nor in `heard` or of a job.

    >>> unheard_types(["t5", "v100", "gpu", "NVIDIA-A100-SXM4-80GB"], Jobs.of(arrival_s=[0], total_steps=[1]))
    ['t5']
    """
    known = (*heard, *TFLOPS, *Throughputs.published().device_types, *jobs.device_type, *jobs.measured_on)
    named = tuple(dict.fromkeys(str(name) for name in known if name))
    return [kind for kind in device_types if type_index([kind], named)[0] < 0 and _PRODUCT.fullmatch(kind.casefold())]


def in_steps(jobs: Jobs, speeds: TypeSpeeds) -> tuple[Jobs, str]:
    """Return the jobs with as many steps as they made in their recorded time, and in words where that was.

    Jobs of a trace without steps count seconds; speeds in steps/s say nothing about these. A recorded time holds for
    the type on which it was measured; where that is not known or not in the table, for the type that the table
    names first.
    Jobs that tell steps of their own stay as they are, and nothing is said.
    """
    if not counts_seconds(jobs):
        return jobs, ""
    table, first = speeds.table, speeds.table.device_types[0]
    where = type_index(jobs.measured_on.tolist(), table.device_types)
    rates = table.steps_per_s(
        jobs.model_names().tolist(), n_gpus=jobs.n_workers * jobs.worker_demand[:, GPUS], warn=False
    )
    known = (where >= 0) & (rates[np.arange(len(jobs)), np.maximum(where, 0)] > 0)
    at = np.where(known, where, 0)
    rate = rates[np.arange(len(jobs)), at]
    rate = np.where(rate > 0, rate, rates.max(axis=1))
    if not (rate > 0).all():
        name = jobs.model_names()[int(np.flatnonzero(~(rate > 0))[0])]
        raise InputError(f"the speeds say that model '{name}' runs on no type; give it one of more than 0 steps/s.")
    steps = jobs.duration_s * rate
    changed = jobs.with_columns(
        total_steps=steps,
        true_steps=steps * jobs.true_steps / jobs.total_steps,
        steps_per_epoch=steps * jobs.steps_per_epoch / jobs.total_steps,
    )
    n_guessed = int((~known).sum())
    origin = "recorded durations hold for the type that the trace names"
    if n_guessed == len(jobs):
        return changed, f"recorded durations are taken as those on {first}"
    if n_guessed:
        origin += f", or else for {first} ({n_guessed:,} of {len(jobs):,} jobs: {_without(jobs.measured_on[~known])})"
    return changed, origin


def _without(names: Iterable[str]) -> str:
    """Return which types jobs name that a table lacks, with counts, and how many name none."""
    counts = Counter(str(name) for name in names)
    unnamed = counts.pop("", 0)
    parts = [f"{name} {n:,}" for name, n in counts.most_common(MOST_NAMED)]
    parts += [f"{len(counts) - MOST_NAMED} other types"] if len(counts) > MOST_NAMED else []
    return ", ".join(parts + ([f"no type {unnamed:,}"] if unnamed else []))


def counts_seconds(jobs: Jobs) -> bool:
    """Return whether the steps of all jobs are the seconds that they were recorded to take."""
    return bool(np.array_equal(jobs.total_steps, jobs.duration_s))


def _in_proportion(jobs: Jobs, relative: dict[str, float]) -> Throughputs:
    """Return speeds that grow with the number of GPUs, and differ between types by the same factor for all models."""
    gpus = jobs.worker_demand[:, GPUS] * jobs.max_workers
    counts = np.arange(1, max(1, min(math.ceil(float(gpus.max())), MAX_GPUS)) + 1, dtype=np.int32)
    values = np.array(list(relative.values()))
    alone = np.broadcast_to(counts[None, :, None] * values, (len(jobs.models), len(counts), len(values)))
    return Throughputs(tuple(relative), jobs.models, counts, np.ascontiguousarray(alone), in_proportion=True)


def _for_models(entries: dict[str, dict[tuple[str, int], dict[None, float]]], jobs: Jobs, path: Path) -> Throughputs:
    """Return the table of some entries, with those of "*" for models that have none."""
    models = {model for rows in entries.values() for model, _ in rows}
    for name in jobs.models:
        if name not in models and ANY not in models:
            raise InputError(
                f"{path}: {unknown('model', name, models)} Add rows for it, or for '{ANY}', which is all other models."
            )
    others = [name for name in jobs.models if name not in models]
    for rows in entries.values():
        for (model, n), value in list(rows.items()):
            if model == ANY:
                rows.update(dict.fromkeys(((name, n) for name in others), value))
    return Throughputs.of_entries(entries)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the header of a CSV and its rows with their line numbers."""
    refuse_unreadable(path, expected=EXPECTED)
    try:
        lines = list(csv.reader(path.read_text("utf-8-sig").splitlines()))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected {EXPECTED}.") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: no readable text ({error}); expected {EXPECTED}.") from None
    numbered = [
        (i, [cell.strip() for cell in row])
        for i, row in enumerate(lines, start=1)
        if any(row) and not row[0].startswith("#")
    ]
    if len(numbered) < 2:
        raise InputError(f"{path}: it has no rows; expected {EXPECTED}.")
    header = [name.lower() for name in numbered[0][1]]
    wanted = max((COLUMNS, RELATIVE), key=lambda columns: len(set(columns) & set(header)) / len(columns))
    for name in header:
        if name not in wanted:
            raise InputError(f"{path}: {unknown('column', name, wanted)}")
    if missing := [name for name in wanted if name not in header]:
        raise InputError(f"{path}: column {missing[0]} is missing; expected {EXPECTED}.")
    faults = [
        f"line {i}: {len(row)} cells; expected {len(header)}" for i, row in numbered[1:] if len(row) != len(header)
    ]
    if faults:
        raise InputError(fault_report(str(path), faults))
    return header, [(i, dict(zip(header, row, strict=True))) for i, row in numbered[1:]]


def _relative(path: Path, rows: list[tuple[int, dict[str, str]]]) -> dict[str, float]:
    faults, found = [], {}
    for i, row in rows:
        speed = _number(row["speed"])
        if not row["type"] or not 0 < speed < math.inf:
            faults.append(
                f"line {i}: {row['type'] or 'a type'} has the speed '{row['speed']}'; expected a name and a number > 0"
            )
        elif row["type"] in found:
            faults.append(f"line {i}: {row['type']} occurs twice")
        found[row["type"]] = speed
    if faults:
        raise InputError(fault_report(str(path), faults))
    return found


def _entries(
    path: Path, rows: Iterable[tuple[int, dict[str, str]]]
) -> dict[str, dict[tuple[str, int], dict[None, float]]]:
    faults: list[str] = []
    entries: dict[str, dict[tuple[str, int], dict[None, float]]] = {}
    for i, row in rows:
        gpus, rate = _number(row["gpus"]), _number(row["steps_per_s"])
        if not (gpus.is_integer() and 1 <= gpus <= MAX_GPUS):
            faults.append(f"line {i}: gpus is '{row['gpus']}'; expected a whole number from 1 to {MAX_GPUS:,}")
        elif not 0 <= rate < 1e12:
            faults.append(
                f"line {i}: steps_per_s is '{row['steps_per_s']}'; expected a number >= 0 (0: it cannot run there)"
            )
        elif not row["model"] or not row["type"]:
            faults.append(f"line {i}: model or type is missing; expected names ('{ANY}': all other models)")
        elif (key := (row["model"], int(gpus))) in entries.setdefault(row["type"], {}):
            faults.append(f"line {i}: {key[0]} on {key[1]} {row['type']} occurs twice")
        else:
            entries[row["type"]][key] = {None: rate}
    if faults:
        raise InputError(fault_report(str(path), faults))
    return entries


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
