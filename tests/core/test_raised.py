"""Where a scheduler of one's own raised, in the errors of comparisons and sweeps."""

from __future__ import annotations

import pytest

from labkit import Grid, compare, sweep
from labkit.core.errors import ComparisonError

CODE = """\
from labkit.schedulers import make


class Raises:
    def __init__(self):
        self.fifo = make("fifo")

    def schedule(self, snapshot):
        if snapshot.number == 3:
            raise ValueError("my bug")
        return self.fifo.schedule(snapshot)
"""
TRACE = "poisson(6, per_hour=60, median_s=600, mean_s=700)"


@pytest.fixture
def name(tmp_path):
    (tmp_path / "raises.py").write_text(CODE)
    return f"mine={tmp_path / 'raises.py'}:Raises"


def test_a_comparison_tells_file_line_decision_and_time(name):
    from labkit.workloads.expressions import trace

    with pytest.raises(ComparisonError, match=r"mine: ValueError: my bug \(raises.py:10, decision 3, at [\d,]+ s\)"):
        compare(trace(TRACE), cluster="no_network(2)", schedulers=["fifo", name])


def test_a_sweep_tells_it_too(name):
    table = sweep(
        Grid(schedulers=["fifo", name], trace=TRACE, cluster="no_network(2)", seeds=1), workers=0, progress=False
    )
    (error,) = table.loc[table["scheduler"] == "mine", "error"]
    assert error.startswith("ValueError: my bug (raises.py:10, decision 3, at ")
