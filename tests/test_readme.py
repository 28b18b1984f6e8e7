"""The README tells what really comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.cli import DEMO_SCHEDULERS
from labkit.experiment import compare
from labkit.experiment.demo import CLUSTER, trace

README = Path(__file__).parents[1] / "README.md"
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
COLUMNS = ("mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "mean_queueing_s")


def test_the_table_is_that_of_the_demo():
    table = re.search(r"<!-- demo -->\n```\n(.*?)```", README.read_text(), re.DOTALL)
    _, heading, *lines = table[1].splitlines()
    units = [SECONDS[unit] for unit in re.findall(r"\((\w+)\)", heading)]
    told = {line.split()[0]: line.replace(",", "").split()[1:] for line in lines}
    assert list(told) == DEMO_SCHEDULERS.split(",")
    for record in compare(trace(), cluster=CLUSTER, schedulers=told):
        found = record.summary
        for name, cell, unit_s in zip(COLUMNS, told[record.info.scheduler], units, strict=False):
            assert found[name] / unit_s == pytest.approx(float(cell), abs=0.0051)
        assert f"{found['utilisation']:.0%}" == told[record.info.scheduler][5]


def test_its_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    space: dict[str, object] = {}
    for block in blocks:
        exec(block.replace('"traces/', f'"{README.parent}/traces/'), space)
    assert "SmallestFirst" in space
