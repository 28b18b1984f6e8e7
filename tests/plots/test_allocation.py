"""Allocations as heat-maps."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.plots.decisions import allocations, plot_allocations
from labkit.plots.theme import offline_renderer
from labkit.schedulers.gavel.las import Las
from labkit.schedulers.gavel.problem import Allocation, Problem

PAPER = Problem.of([[40, 10], [12, 4], [100, 50]], capacity=[1, 1])  # Gavel, sec. 4.1
NAMES = {"jobs": ["a", "b", "c"], "columns": ["V100", "K80"]}


def test_the_papers_example_is_told_cell_by_cell():
    table = allocations({"aware": Las().allocate(PAPER)}, problem=PAPER, **NAMES)
    cells = table.set_index(["job", "column"])["share"].round(2).to_dict()
    assert cells == {
        ("a", "V100"): 0.45, ("a", "K80"): 0.0, ("b", "V100"): 0.45,
        ("b", "K80"): 0.09, ("c", "V100"): 0.09, ("c", "K80"): 0.91,
    }  # fmt: skip


def test_pairs_are_rows_of_their_own():
    answer = Allocation(share=np.zeros((3, 2)), pairs=np.array([[0, 2]]), pair_share=np.array([[1.0, 0.0]]))
    table = allocations({"together": answer}, problem=PAPER, **NAMES)
    assert table.query("share > 0")[["job", "column"]].to_numpy().tolist() == [["a + c", "V100"]]


def test_a_name_is_asked_for_each_job_and_column():
    with pytest.raises(InputError, match="2 names of jobs and 2 of columns; expected 3 and 2"):
        allocations({"aware": Las().allocate(PAPER)}, problem=PAPER, jobs=["a", "b"], columns=["V100", "K80"])


def test_every_policy_has_its_map_in_the_order_given():
    answers = {"worse": Las(aware=False).allocate(PAPER), "better": Las().allocate(PAPER)}
    chart = plot_allocations(allocations(answers, problem=PAPER, **NAMES))
    assert chart.to_dict()["facet"]["column"]["sort"] == ["worse", "better"]
    svg = offline_renderer(chart.to_dict())["image/svg+xml"]
    assert svg.count(">33%<") == 6
    assert svg.count(">91%<") == 1
