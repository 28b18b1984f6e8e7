"""All benchmarks run; their file is whole or not there, whatever kind of number a benchmark returns."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks import Row, agnostic, baselines
from benchmarks.__main__ import FOLDER, modules, write

TABLES = {"agnostic", "baselines"}
"""They make lines of a table, and no rows."""


def row(name, value):
    return Row(name, value, "s", None, higher_is_better=False, command="true")


def test_a_numpy_number_is_a_number(tmp_path):
    write([row("a", np.int64(3)), row("b", np.float32(0.5))], tmp_path / "results.json")
    assert [each["value"] for each in json.loads((tmp_path / "results.json").read_text())] == [3, 0.5]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    write([row("a", 1.0)], path)
    before = path.read_text()
    with pytest.raises(TypeError, match="no number"):
        write([row("b", object())], path, everything=True)
    assert path.read_text() == before


def test_rows_that_nobody_makes_any_more_go_when_everything_was_measured(tmp_path):
    path = tmp_path / "results.json"
    write([row("old", 1.0)], path)
    assert [each["name"] for each in write([row("new", 2.0)], path)] == ["new", "old"]
    assert [each["name"] for each in write([row("new", 2.0)], path, everything=True)] == ["new"]


@pytest.mark.parametrize("name", sorted({*modules([])} - TABLES))
def test_a_short_run_of_a_benchmark_shows_its_rows_and_writes_nothing(name):
    before = (FOLDER / "results.json").read_bytes()
    command = [sys.executable, "-m", "benchmarks", "--short", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1
    assert (FOLDER / "results.json").read_bytes() == before


def test_tables_have_lines():
    small = Path("traces/gavel-small.trace")
    head, _, line = agnostic.lines([small], throughputs=None, loads=[1.0])
    assert line.count("|") == head.count("|")
    head, _, line = islice(baselines.lines(), 3)
    assert line.count("|") == head.count("|")
