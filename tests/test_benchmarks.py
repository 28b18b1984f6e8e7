"""All benchmarks run; their file is whole or not there, whatever kind of number a benchmark returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import SHORT, Row, agnostic, baselines, claims, standard
from benchmarks.__main__ import FOLDER, modules, write
from benchmarks._claims_table import TABLES as TABLES_OF_CLAIMS
from benchmarks._claims_table import by_seed, lines, on_smooth_speeds
from tests.hang import HANG_S

TABLES = {"agnostic", "baselines", "claims", "dlrover_claims", "learned", "marl_claims", "ppo", "standard"}
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


def test_rows_that_no_benchmark_makes_any_more_go_when_everything_was_measured(tmp_path):
    path = tmp_path / "results.json"
    write([row("old", 1.0)], path)
    assert [each["name"] for each in write([row("new", 2.0)], path)] == ["new", "old"]
    assert [each["name"] for each in write([row("new", 2.0)], path, everything=True)] == ["new"]


@pytest.mark.parametrize("name", sorted({*modules([])} - TABLES))
def test_a_short_run_of_a_benchmark_shows_its_rows_and_writes_nothing(name):
    before = (FOLDER / "results.json").read_bytes()
    command = [sys.executable, "-m", "benchmarks", "--short", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1
    assert (FOLDER / "results.json").read_bytes() == before


def test_tables_have_lines():
    small = Path("traces/gavel-small.trace")
    head, _, line = agnostic.lines([small], throughputs=None, loads=[1.0])
    assert line.count("|") == head.count("|")
    head, _, line = islice(baselines.lines(), 3)
    assert line.count("|") == head.count("|")


def test_a_claim_is_trained_judged_and_kept_and_its_row_has_the_difference(tmp_path):
    kept = claims.RESULTS
    program = (
        "import sys; from pathlib import Path; from benchmarks import claims; "
        f"claims.RESULTS = Path({str(tmp_path / 'c.json')!r}); sys.exit(claims.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "--nodes", "16", "no critic"]
    before = kept.read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {SHORT: "1"}, check=False)
    assert done.returncode == 0, done.stderr
    assert kept.read_bytes() == before
    (told,) = json.loads((tmp_path / "c.json").read_text()).values()
    assert told["slots"] >= 5
    assert len(told["drawn"]) == 1


def test_the_table_of_claims_says_how_much_longer_jobs_take():
    effort = {"curve": [], "slots": 9, "lessons_cpu_s": 1, "cpu_s": 2}
    told = {
        "16 nodes, measured: paper, seed 1": effort | {"drawn": [2.0, 4.0]},
        "16 nodes, measured: paper, seed 2": effort | {"drawn": [2.0, 6.0]},
        "16 nodes, measured: drf": {"best": [4.0, 4.0]},
        "16 nodes, fitted: paper, seed 1": effort | {"drawn": [3.0, 3.0]},
        "16 nodes, fitted: drf": {"best": [4.0, 4.0]},
    }
    row = next(line for line in lines(told) if line.startswith("| shorter JCT than DRF |"))
    assert "| −44.1% |" in row
    assert "| not measured | -25.0 ± 49.0% | –; no difference | 9, 1 + 2 |" in row  # 1.96 * 1.414 / sqrt(2) of 4
    row = next(line for line in by_seed(told) if line.startswith("| shorter JCT than DRF |"))
    assert row.endswith("| not measured | not measured | -25.0 ± 49.0% | +0.0 ± 98.0% |")
    assert len(list(by_seed(told))) == 2 + 1
    row = next(line for line in on_smooth_speeds(told) if line.startswith("| shorter JCT than DRF |"))
    assert "| not measured | -25.0 ± 0.0% | –; sign alone |" in row
    assert len(list(on_smooth_speeds(told))) == 2 + 2  # and the curve of Fig. 10


def test_the_docs_have_the_tables_of_what_was_measured():
    docs = Path("docs/dl2.md").read_text("utf-8")
    for table in TABLES_OF_CLAIMS:
        assert "\n".join(table(claims.results())) in docs


def test_the_standard_benchmark_repeats_its_rows_and_says_which_differ(tmp_path, capsys, monkeypatch):
    file = tmp_path / "kept.csv"
    words = [str(file), "srtf", "--kind", "pods", "--trouble", "none", "--workers", "0"]
    monkeypatch.setattr(standard, "LEVELS", ("low",))
    assert standard.main(words) == 0
    table = pd.read_csv(file)
    assert list(table.columns) == list(standard.COLUMNS)
    assert list(table["scheduler"]) == ["even", "srtf"]
    assert table["over_base"][0] == 1
    assert standard.main([*words, "--check"]) == 0
    assert "2 of 2 rows" in capsys.readouterr().out
    table.assign(checksum=["0" * 12, table["checksum"][1]]).to_csv(file, index=False)
    assert standard.main([*words, "--check"]) == 1
    assert capsys.readouterr().out.startswith("marl, low, none, even: 1.0000, kept 1.0000\n1 of 2 rows")
