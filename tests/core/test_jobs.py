"""Jobs as columns: order, categories, tables, and everything that can be wrong with them, told at once."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError, Jobs, TraceError
from labkit.core.faults import MAX_LISTED
from labkit.testing.strategies import clusters, jobs


def of(**columns: Any) -> Jobs:
    return Jobs.of(**{"arrival_s": [0.0, 10.0], "total_steps": 60.0, "id": ["a", "b"], "name": "t.csv"} | columns)


def test_jobs_are_in_order_of_arrival_and_ties_keep_theirs() -> None:
    ordered = Jobs.of(arrival_s=[5, 0, 5, 0], total_steps=[1, 2, 3, 4], model=["a", "b", "c", "b"])
    assert ordered.id.tolist() == ["1", "3", "0", "2"]
    assert ordered.total_steps.tolist() == [2, 4, 1, 3]
    assert ordered.model_names().tolist() == ["b", "b", "a", "c"]


def test_one_job_is_enough() -> None:
    (job,) = Jobs.of(arrival_s=3, total_steps=7)
    assert (job.number, job.id, job.n_workers, job.n_ps, job.max_workers) == (0, "0", 1, 0, 1)


@given(data=st.data())
def test_a_table_of_jobs_gives_the_same_jobs_back(data: st.DataObject) -> None:
    drawn = data.draw(jobs(cluster=data.draw(clusters())))
    back = Jobs.from_frame(drawn.to_frame(), name=drawn.name)
    assert back.model_names().tolist() == drawn.model_names().tolist()
    for f in fields(Jobs):
        value = getattr(drawn, f.name)
        if f.name not in {"models", "model", "users", "user"} and isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(back, f.name), value)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"arrival_s": [0, -1]}, r"t.csv: 1 fault: job b: arrival_s is -1.0; expected seconds >= 0\."),
        ({"arrival_s": [0, np.nan]}, "job b: arrival_s is nan; expected seconds >= 0"),
        ({"arrival_s": [np.inf, 0]}, "job a: arrival_s is inf"),
        ({"total_steps": [0, 1]}, "job a: total_steps is 0.0; expected > 0"),
        ({"total_steps": np.nan}, "job a: total_steps is nan; expected > 0; job b: total_steps is nan"),
        ({"true_steps": [1, -1]}, "job b: true_steps is -1.0; expected > 0"),
        ({"duration_s": [0, 1]}, "job a: duration_s is 0.0; expected > 0 or unknown"),
        ({"steps_per_epoch": [0, 1]}, "job a: steps_per_epoch is 0.0; expected > 0"),
        ({"samples_per_step": [0, 0]}, "job a: samples_per_step is 0.0; expected > 0, or none where a step is a param"),
        (
            {"samples_per_step": [32, np.nan]},
            "job a: samples_per_step is 32.0; expected that of the other jobs of its model; count the steps of all",
        ),
        ({"n_workers": [0, 1]}, "job a: n_workers is 0; expected >= 1"),
        ({"n_ps": [-1, 1]}, "job a: n_ps is -1; expected >= 0"),
        ({"n_workers": 3, "max_workers": [3, 2]}, "job b: max_workers is 2; expected >= n_workers"),
        ({"n_ps": 3, "max_ps": [3, 2]}, "job b: max_ps is 2; expected >= n_ps"),
        ({"worker_demand": (-1, 0, 0)}, r"job a: worker_demand is \[.*-1.*\]; expected amounts >= 0"),
        ({"worker_demand": (np.nan, 0, 0)}, r"job a: worker_demand is \[.*nan.*\]; expected amounts >= 0"),
        ({"worker_demand": (np.inf, 0, 0)}, r"job a: worker_demand is \[.*inf.*\]; expected amounts >= 0"),
        ({"ps_demand": (0, -2, 0)}, r"job a: ps_demand is"),
        ({"weight": [0, 1]}, "job a: weight is 0.0; expected > 0"),
        ({"slo_s": [-5, 1]}, "job a: slo_s is -5.0; expected > 0 or none"),
        ({"id": ["a", "a"]}, "job id 'a' occurs 2 times; ids must be unique"),
        ({"arrival_s": [], "id": []}, "t.csv: 1 fault: it has no jobs; a trace needs at least one"),
    ],
)
def test_a_fault_is_told_with_job_column_value_and_expectation(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(TraceError, match=told):
        of(**columns)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"id": ["a"]}, "t.csv: id has 1 values for 2 jobs; give one for each"),
        ({"model": ["x", "y", "z"]}, "t.csv: model has 3 values for 2 jobs; give one for each"),
        ({"user": ["x"]}, "t.csv: user has 1 values for 2 jobs"),
        ({"total_steps": [1, 2, 3]}, "t.csv: total_steps has 3 values for 2 jobs; give one for each, or one for all"),
        ({"n_workers": [1, 2, 3]}, "t.csv: n_workers has 3 values for 2 jobs"),
        ({"n_workers": [1.0, 1.5]}, r"t.csv: n_workers is 1.5; expected whole numbers"),
        ({"n_workers": [1.0, np.nan]}, r"t.csv: n_workers is nan; expected whole numbers"),
        ({"max_workers": np.inf}, r"t.csv: max_workers is inf; expected whole numbers"),
        ({"total_steps": ["many", 2]}, r"t.csv: total_steps .*many.*; expected numbers"),
        ({"worker_demand": [(1, 1, 1)] * 3}, "t.csv: worker_demand has the shape .*3, 3.* for 2 jobs"),
        (
            {"worker_demand": (1, 1)},
            r"t.csv: worker_demand has the shape \(2,\) for 2 jobs; expected .*GPUs, cores, GB",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        of(**columns)


def test_all_faults_are_told_at_once_up_to_twenty() -> None:
    with pytest.raises(TraceError) as caught:
        Jobs.of(arrival_s=-np.ones(50), total_steps=1, name="t.csv")
    assert str(caught.value).startswith("t.csv: 50 faults: job 0: arrival_s is -1.0")
    assert str(caught.value).count("arrival_s") == MAX_LISTED
    assert str(caught.value).endswith("; and 30 more.")


def test_replaced_columns_are_checked_and_sorted_anew() -> None:
    swapped = of().with_columns(arrival_s=np.array([10.0, 0.0]))
    assert swapped.id.tolist() == ["b", "a"]
    with pytest.raises(TraceError, match="job b: weight is -1"):
        of().with_columns(weight=np.array([1.0, -1.0]))


def test_an_unknown_column_of_a_table_is_told_the_nearest() -> None:
    frame = of().to_frame().rename(columns={"weight": "wieght"})
    with pytest.raises(InputError, match=r"unknown column of jobs 'wieght'\. Did you mean 'weight'\?"):
        Jobs.from_frame(frame)
    with pytest.raises(InputError, match="column total_steps is missing; a trace needs arrival_s and total_steps"):
        Jobs.from_frame(of().to_frame().drop(columns="total_steps"))


def test_demands_lie_row_by_row_as_kernels_are_compiled_for() -> None:
    for made in (of(), of(worker_demand=(1, 2, 3), ps_demand=np.ones((3, 2)).T), of().take([1, 0])):
        assert made.worker_demand.flags.c_contiguous
        assert made.ps_demand.flags.c_contiguous


def test_gang_demand_counts_workers_and_servers() -> None:
    both = of(n_workers=[2, 1], n_ps=[1, 0], worker_demand=(1, 2, 3), ps_demand=(0, 5, 7))
    assert both.gang_demand.tolist() == [[2, 9, 13], [1, 2, 3]]
    assert both.gpus.tolist() == [2, 1]
    assert of(max_workers=[1, 2]).malleable.tolist() == [False, True]


def test_a_selection_may_be_an_index_or_a_mask() -> None:
    assert of().take([1]).id.tolist() == ["b"]
    assert of().take(np.array([True, False])).id.tolist() == ["a"]
    with pytest.raises(IndexError):
        of()[2]
    assert of()[-1].number == 1
