"""Outputs are the same if words and structure are, and numbers as far as two processors agree."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.numbers_alike import difference

NAN = float("nan")


def chart(name="data-0a1b", rows=({"scheduler": "srtf", "mean_s": 12.5}, {"scheduler": "fifo", "mean_s": 30.25})):
    return {
        "layer": [{"data": {"name": name}, "mark": "bar"}, {"data": {"name": name}, "mark": "rule"}],
        "width": 300,
        "datasets": {name: copy.deepcopy(list(rows))},
    }


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("mean 0.12 s", "mean 0.13 s"),  # 0.125, rounded down and up
        ("mean 9.99 s\n", "mean 10.00 s \n"),
        ("  9.99  a\n 12.00  b", "10.00  a\n12.00  b"),  # columns are as wide as their numbers
        ("0.5", "0.500000"),  # as pandas shows a column that holds 0.5000001, too
        ("1.25e-07", "1.26e-07"),
        ("-0.00", "0.00"),
        ("makespan 123,456 s", "makespan 123,457 s"),
        ("<td>NaN</td>", "<td>NaN</td>"),
        ([1.0, NAN, None, True], [1.00005, NAN, None, True]),
        ([0.0, 1e-17], [-1e-17, 0.0]),
        ([0.4837, 0.24185], [0.4838, 0.2419]),  # a chance rounded to four decimals, and half of it
        ([12], [12.0]),
    ],
)
def test_a_difference_that_a_processor_makes_is_none(stored, new):
    assert difference(stored, new) is None
    assert difference(new, stored) is None


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("mean 0.12 s", "mean 0.14 s"),
        ("mean 0.12 s", "mean 0.1 s"),
        ("mean 0.12 s", "mean -0.12 s"),
        ("17 jobs", "18 jobs"),
        ("makespan 123,456 s", "makespan 123,556 s"),
        ("1.25e-07", "1.25e-06"),
        ("Python 3.11.2", "Python 3.11.3"),
        ("host gpu-8 at 10.0.0.11", "host gpu-8 at 10.0.0.12"),
        ("v100", "v101"),
        ("0.12 s", "0.12 h"),
        ("srtf\nfifo", "fifo\nsrtf"),
        ("0.12", "nan"),
        ([1.0], [1.001]),
        ([0.4837], [0.4839]),
        ([1.2345678e-6], [1.2545678e-6]),
        ([100_000], [100_001]),
        ([1.0], [NAN]),
        ([1.0], [None]),
        ([1], [True]),
        ([1.0, 2.0], [2.0, 1.0]),
        ([1.0, 2.0], [1.0]),
        ({"a": 1}, {"b": 1}),
        ("one line", "one line\nand one more"),
    ],
)
def test_a_difference_that_no_processor_makes_is_found(stored, new):
    assert difference(stored, new)
    assert difference(new, stored)


def test_a_line_says_where_and_what():
    stored = {"text/html": ["<td>srtf</td>\n<td>12.50</td>"], "stdout": ["a"]}
    new = {"text/html": ["<td>srtf</td>\n<td>12.70</td>"], "stdout": ["a"]}
    assert difference(stored, new) == "text/html[0] line 2, after '<td>': 12.50 is stored, 12.70 came out"
    rows = [{"scheduler": "srtf", "mean_s": 12.5}, {"scheduler": "fifo", "mean_s": 40.25}]
    found = difference({"vegalite": [chart()]}, {"vegalite": [chart(rows=rows)]})
    assert found == "vegalite[0].layer[0].data.values[1].mean_s: 30.25 is stored, 40.25 came out"


def test_a_name_of_a_dataset_is_not_compared_but_its_rows_are():
    assert difference(chart(), chart("data-9f8e")) is None
    rows = chart()["datasets"]["data-0a1b"]
    assert "1 came out" in difference(chart(), chart("data-9f8e", rows[:1]))
    assert "'fifo' came out" in difference(chart(), chart("data-9f8e", rows[::-1]))
    swapped = chart()
    swapped["layer"][1]["data"]["name"] = "another"
    swapped["datasets"]["another"] = rows[::-1]
    assert "layer[1]" in difference(chart(), swapped), "which mark shows which rows"


def test_a_notebook_passes_with_other_last_digits_and_fails_with_other_words(tmp_path):
    def cell(source, shown):
        return nbformat.v4.new_code_cell(
            source, execution_count=1, outputs=[nbformat.v4.new_output("stream", name="stdout", text=shown)]
        )

    cells = [cell("print('0.125 s')", "0.126 s\n"), cell("print('0.125 s')", "0.125 h\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "two.ipynb")
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-c", "tests/nbval.ini", "--rootdir", ".", "-n", "0", "--color=no"]
    done = subprocess.run([*command, tmp_path / "two.ipynb"], cwd=root, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "stdout[0] line 1: '0.125 h' is stored, '0.125 s' came out" in done.stdout


def test_a_small_difference_of_large_numbers_is_judged_by_the_largest_in_its_field():
    rows = [{"error": -0.0039023101, "n": 1}, {"error": 0.25, "n": 2}]
    assert difference(rows, [{"error": -0.0039012247, "n": 1}, {"error": 0.25, "n": 2}]) is None
    assert "error" in difference(rows, [{"error": -0.0049, "n": 1}, {"error": 0.25, "n": 2}])
    assert "error" in difference([{"error": -0.0039023101}], [{"error": -0.0039012247}])
