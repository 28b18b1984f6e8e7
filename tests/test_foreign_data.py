"""No file that ships holds the numbers of a public data set: each array is compared with the fetched files at hand."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from labkit.core import Jobs
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.topology import build
from labkit.workloads.gavel import PUBLISHED

ROOT = Path(__file__).parents[1]
PUBLIC = ROOT.parent / "shared" / "data"
OURS = ("slurm/", "optimus/", "dl2/reference.json", "gavel/policy_cases.json")
"""Reference data that nobody published: made or computed for these tests."""

LICENSED = {"labkit/workloads/gavel_throughputs.csv": "gavel/LICENSE"}
"""Files that hold public data all the same, and the licence that allows it; its text stands in the file."""

FEWEST, SHARE = 10, 0.15
"""Distinct values in common from which an array counts as a copy, and their share of its own; 0.09 occur by chance."""
RUN = 5
"""Values in a row, all different, that are in a row in the public file, too."""

Arrays = Iterator[tuple[str, np.ndarray]]


def arrays(path: Path) -> Arrays:
    """Yield the numeric arrays of a file: tensors, columns, lists; of text without a form, all its numbers."""
    reader = READERS.get(path.suffix, numbers_of_lines)
    for name, values in reader(path):
        yield name, np.asarray(values, np.float64).ravel()


def tensors(path: Path) -> Arrays:
    yield from load_file(path).items()


def columns(frame: pd.DataFrame) -> Arrays:
    for name in frame:
        numeric = pd.to_numeric(frame[name], errors="coerce").dropna()
        yield str(name), numeric.to_numpy(np.float64)


def numbers_of_lines(path: Path) -> Arrays:
    """Yield the columns of the numbers in a file's lines, as far as all lines have them."""
    rows = [re.findall(r"(?<![\w.])-?\d+\.?\d*(?:[eE][-+]?\d+)?", line) for line in path.read_text().splitlines()]
    for k in range(max(map(len, rows), default=0)):
        yield str(k), np.array([float(row[k]) for row in rows if len(row) > k])


def parts(path: Path) -> Arrays:
    """Yield what JSON holds: under each path of keys, with list positions left out, all its numbers in order."""
    found: dict[str, list[float]] = {}
    walk(json.loads(path.read_text("utf-8")), "", found)
    yield from ((name, np.array(values)) for name, values in found.items())


def walk(part: Any, name: str, found: dict[str, list[float]]) -> None:
    if isinstance(part, dict):
        for key, value in part.items():
            walk(value, f"{name}.{key}" if len(part) < 50 else f"{name}.*", found)
    elif isinstance(part, list):
        for value in part:
            walk(value, name, found)
    elif isinstance(part, int | float) and not isinstance(part, bool):
        found.setdefault(name, []).append(float(part))


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".safetensors": tensors,
    ".csv": lambda path: columns(pd.read_csv(path, comment="#", low_memory=False)),
    ".trace": lambda path: columns(pd.read_csv(path, sep="\t", header=None)),
    ".parquet": lambda path: columns(pd.read_parquet(path)),
    ".json": parts,
    ".ipynb": parts,
}


def odd(values: np.ndarray) -> np.ndarray:
    """Return where values are no whole numbers and have over four digits: what two files hardly share by chance."""
    digits = np.array([float(f"{value:.3e}") for value in values.tolist()])
    return (values != np.round(values)) & (np.abs(values - digits) > 1e-6 * np.abs(values))


def telling(values: np.ndarray) -> np.ndarray:
    """Return the distinct odd values, in single precision."""
    values = np.unique(values[np.isfinite(values)])
    return np.unique(values[odd(values)].astype(np.float32))


def runs(values: np.ndarray) -> set[bytes]:
    """Return runs of different values of which one is odd or at least 1,000, in single precision."""
    values = values[np.isfinite(values)]
    if len(values) < RUN:
        return set()
    window = np.lib.stride_tricks.sliding_window_view
    rows, tells = (
        window(values.astype(np.float32), RUN),
        window(odd(values) | (np.abs(values) >= 1000), RUN).any(axis=1),
    )
    differ = (np.diff(np.sort(rows, axis=1), axis=1) > 0).all(axis=1)
    return {row.tobytes() for row in rows[differ & tells]}


@cache
def public() -> dict[str, tuple[np.ndarray, set[bytes]]]:
    """Return telling values and runs of each public file at hand; DL2's speeds also by gang and per update."""
    files = {str(path.relative_to(PUBLIC)): path for path in sorted(PUBLIC.rglob("*.*")) if path.suffix != ".md"}
    found = {
        name: [values for _, values in arrays(path)]
        for name, path in files.items()
        if path.is_file() and not name.startswith(OURS)
    }
    if not found:
        pytest.skip("no public data is beside this checkout (../shared/data), so nothing can be compared with it")
    if (name := "dl2/config_speed.txt") in found:
        table = SpeedTable.read(files[name])
        found[name] += [table.samples_per_s, table.samples_per_s / table.batch[table.model]]
    return {
        name: (np.unique(np.concatenate([*map(telling, several)])), set().union(*map(runs, several)))
        for name, several in found.items()
    }


def copies(path: Path) -> list[str]:
    """Return which arrays of a file hold public data, and of which file."""
    found = []
    for name, values in arrays(path):
        mine, my_runs = telling(values), runs(values)
        for source, (known, known_runs) in public().items():
            n, in_a_row = int(np.isin(mine, known).sum()), len(my_runs & known_runs)
            if (n >= FEWEST and n > SHARE * len(mine)) or in_a_row:
                found.append(f"{name}: {n} of {len(mine)} values and {in_a_row} runs of {source}")
    return found


def shipped() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0") if not listed.returncode else []
    names = names or [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("labkit/**/*")) if path.is_file()]
    return [name for name in names if Path(name).suffix in READERS and (ROOT / name).is_file()]


@pytest.mark.parametrize("name", shipped())
def test_what_ships_holds_no_public_data_but_what_its_licence_allows(name):
    assert bool(copies(ROOT / name)) == (name in LICENSED), copies(ROOT / name)


@pytest.mark.parametrize(("name", "licence"), LICENSED.items())
def test_public_data_that_ships_carries_its_whole_licence(name, licence, shared_data):
    lines = [line.removeprefix("#").strip() for line in (ROOT / name).read_text().splitlines() if line[0] == "#"]
    assert " ".join(shared_data(licence).read_text().split()) in " ".join(" ".join(lines).split())


def test_a_tensor_that_holds_dl2_s_table_is_found_also_interpolated(tmp_path, shared_data):
    table = SpeedTable.read(shared_data("dl2/config_speed.txt"))
    jobs = Jobs.of(
        id=["a"], model=["resnet-50"], arrival_s=0, total_steps=1, n_workers=1, n_ps=1, max_workers=16, max_ps=16
    )
    grid = MeasuredSpeed(jobs, build("dl2-6n"), table=table).grid
    rng = np.random.default_rng(0)
    save_file(
        {"noise": rng.normal(size=5000).astype(np.float32), "grid": grid.astype(np.float32)}, tmp_path / "a.safetensors"
    )
    assert [line.partition(":")[0] for line in copies(tmp_path / "a.safetensors")] == ["grid"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
def test_ten_rows_of_a_public_trace_are_found_in_tables_of_every_kind(suffix, tmp_path, shared_data):
    rows = pd.read_csv(shared_data("philly/philly.csv"))[1000:1010]
    path = tmp_path / f"rows{suffix}"
    {
        ".csv": lambda: rows.to_csv(path, index=False),
        ".parquet": lambda: rows.to_parquet(path),
        ".json": lambda: rows.to_json(path, orient="records"),
    }[suffix]()
    assert copies(path)
    assert not copies(ROOT / "traces/philly-like.csv")


def test_gavel_s_figures_are_the_only_exception_and_are_found(shared_data):
    shared_data("gavel/simulation_throughputs.json")
    assert {line.partition(":")[0] for line in copies(PUBLISHED)} == {"k80", "p100", "v100"}
