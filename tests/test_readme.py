"""The README tells what really comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.cli import DEMO_SCHEDULERS
from labkit.experiment import compare
from labkit.experiment.demo import CLUSTER, trace

README = Path(__file__).parents[1] / "README.md"


def test_the_table_is_that_of_the_demo():
    table = re.search(r"<!-- demo -->\n```\n(.*?)```", README.read_text(), re.DOTALL)
    told = {line.split()[0]: line.split()[1:] for line in table[1].splitlines()[1:]}
    assert list(told) == DEMO_SCHEDULERS.split(",")
    for record in compare(trace(), cluster=CLUSTER, schedulers=told):
        found = record.summary
        mean, median, p95, makespan, queueing = (float(cell) for cell in told[record.info.scheduler][:5])
        assert found["mean_jct_s"] / 3600 == pytest.approx(mean, abs=0.0051)
        assert found["median_jct_s"] / 60 == pytest.approx(median, abs=0.0051)
        assert found["p95_jct_s"] / 3600 == pytest.approx(p95, abs=0.0051)
        assert found["makespan_s"] / 3600 == pytest.approx(makespan, abs=0.0051)
        assert found["mean_queueing_s"] / 60 == pytest.approx(queueing, abs=0.0051)
        assert f"{found['utilisation']:.0%}" == told[record.info.scheduler][5]


def test_its_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    space: dict[str, object] = {}
    for block in blocks:
        exec(block.replace('"traces/', f'"{README.parent}/traces/'), space)
    assert "SmallestFirst" in space
