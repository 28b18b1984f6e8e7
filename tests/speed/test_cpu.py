"""DLRover's throughput model and its closed form, against the published table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.speed.cpu import CpuModel

WIDE_DEEP = CpuModel(compute_core_s=0.1, worker_cores=2.5, update_core_s=0.2, ps_cores=5.7, io_s=0.01)
XDEEPFM = CpuModel(compute_core_s=2.0, worker_cores=19.4, update_core_s=0.1, ps_cores=3.1, io_s=0.01)


@pytest.mark.parametrize(
    ("model", "n_workers", "worker_cores", "n_ps"),
    [(WIDE_DEEP, 24, 3, 8), (XDEEPFM, 8, 20, 2)],
    ids=["wide-deep", "xdeepfm"],
)
def test_the_closed_form_gives_the_plans_of_dlrovers_table_1(model, n_workers, worker_cores, n_ps):
    """C_total = 200; w^ and s^ as sampled with one worker (2.5 and 5.7; 19.4 and 3.1)."""
    plan = model.optimum(200)
    assert (plan.n_workers, plan.worker_cores, plan.n_ps, plan.ps_cores) == (n_workers, worker_cores, n_ps, 16)


def test_equation_1_by_hand():
    """t = 0.5 + 6 / (2 x 3) + 4 / (2 x 1) = 3.5 s; a worker with 1 core takes 0.5 + 3 + 2 = 5.5 s."""
    model = CpuModel(compute_core_s=6, worker_cores=3, update_core_s=4, ps_cores=1, io_s=0.5, core_speed=2)
    assert model.throughput(8, total_ps_cores=9, n_workers=4) == pytest.approx(4 / 3.5)
    assert model.throughput([8, 3, 1], total_ps_cores=3) == pytest.approx(2 / 3.5 + 1 / 5.5)


def test_throughput_saturates_once_the_servers_are_full():
    """N_w s^ < s_total is constraint (4); beyond, more workers bring no more than r s_total / W_update."""
    rates = WIDE_DEEP.throughput(2.5, total_ps_cores=57, n_workers=np.arange(1, 4000))
    assert rates[:10] == pytest.approx(rates[0] * np.arange(1, 11))
    assert (np.diff(rates) > 0).all()
    assert rates[-1] == pytest.approx(57 / 0.2, rel=0.01)
    assert rates[-1] < 57 / 0.2


@given(
    w=st.floats(0.5, 20), s=st.floats(0.5, 20), budget=st.integers(50, 400), share=st.floats(0.05, 0.95),
    compute=st.floats(0.01, 10), update=st.floats(0.01, 10),
)  # fmt: skip
def test_no_other_split_within_the_constraints_beats_the_closed_form(w, s, budget, share, compute, update):
    """Any number of workers with w^ cores and enough servers, within the budget, has no more throughput."""
    model = CpuModel(compute_core_s=compute, worker_cores=w, update_core_s=update, ps_cores=s)
    plan = model.optimum(budget)
    best = model.throughput(w, total_ps_cores=plan.total_ps_cores, n_workers=plan.n_workers)
    others = np.arange(1, int(share * budget / w) + 1)
    left = budget - others * w
    others, left = others[others * s <= left], left[others * s <= left]
    assert (model.throughput(w, total_ps_cores=left, n_workers=others) <= best * (1 + 1e-9)).all()


@given(st.lists(st.floats(0.1, 64), min_size=1, max_size=5), st.floats(1, 100))
def test_workers_one_by_one_add_up_to_workers_all_alike(cores, servers):
    alike = WIDE_DEEP.throughput(cores[0], total_ps_cores=servers, n_workers=len(cores))
    assert WIDE_DEEP.throughput([cores[0]] * len(cores), total_ps_cores=servers) == pytest.approx(alike)


def test_jobs_are_columns():
    both = CpuModel(compute_core_s=[0.1, 2.0], worker_cores=[2.5, 19.4], update_core_s=[0.2, 0.1], ps_cores=[5.7, 3.1])
    assert both.optimum([200, 200]).n_workers.tolist() == [24, 8]
    assert both.optimum(200).n_ps.tolist() == [8, 2]


def test_a_budget_for_less_than_one_worker_and_no_cores_are_refused():
    with pytest.raises(InputError, match=r"total_cores is 8; one worker and its servers need 8\.2 cores"):
        WIDE_DEEP.optimum(8)
    with pytest.raises(InputError, match="worker_cores is 0; expected more than 0"):
        CpuModel(compute_core_s=1, worker_cores=0, update_core_s=1, ps_cores=1)
    with pytest.raises(InputError, match="io_s is nan; expected 0 or more"):
        CpuModel(compute_core_s=1, worker_cores=1, update_core_s=1, ps_cores=1, io_s=np.nan)
