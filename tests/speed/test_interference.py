"""Interference models: what they fit, what they refuse, and how they rank on synthetic and on measured co-location."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError, ProfileError
from labkit.speed.interference import (
    COLUMNS,
    MODELS,
    InterferenceModel,
    InterferenceProfile,
    co_load,
    compare_models,
    held_out_error,
    slowdowns,
)
from labkit.speed.interference.measured import PRESETS, gavel_pairs, profile, stretch
from labkit.speed.interference.model import FACTORS

Shared = Callable[[str], Path]


def exact(n: int = 60, *, seed: int = 0) -> pd.DataFrame:
    """Return a noiseless profile of the two-stage model: CPU rows first, then shared PCIe too."""
    rng = np.random.default_rng(seed)
    u, p = rng.uniform(0.5, 4, n), rng.uniform(1, 20, n)
    co_u, co_p = rng.uniform(1, 14, n), np.where(np.arange(n) < n // 2, 0.0, rng.uniform(1, 40, n))
    cpu = 0.2 * np.exp(0.1 * u + 0.2 * co_u) + 0.75
    pcie = np.where(co_p > 0, 0.002 * p + 0.01 * co_p + 1.0, 1.0)
    return pd.DataFrame(
        {"job": "j", "co_runners": "x", "cpu_cores": u, "pcie_gbps": p, "co_cpu_cores": co_u, "co_pcie_gbps": co_p,
         "alone_s": 0.5, "shared_s": 0.5 * cpu * pcie}
    )  # fmt: skip


def test_two_stages_recover_the_coefficients_they_were_made_with() -> None:
    model = InterferenceModel().fit(exact())
    assert model.cpu_ == pytest.approx([0.2, 0.1, 0.2, 0.75], rel=1e-3)
    assert model.pcie_ == pytest.approx([0.002, 0.01, 1.0], rel=1e-3)
    unseen = exact(seed=1)
    assert model.predict(unseen) == pytest.approx(unseen["shared_s"] / unseen["alone_s"], rel=1e-3)


@pytest.mark.parametrize("kind", MODELS)
def test_without_other_jobs_there_is_no_slowdown_and_no_job_ever_speeds_up(kind: str) -> None:
    model = InterferenceModel(kind).fit(profile("mild", n_samples=120, rng=np.random.default_rng(0)))
    u = np.linspace(0, 8, 50)
    assert (model.slowdown(u, u, co_cpu_cores=0, co_pcie_gbps=0) == 1).all()
    assert (model.slowdown(u, u, co_cpu_cores=u + 0.1, co_pcie_gbps=0.1) >= 1).all()


@pytest.mark.parametrize("shape", FACTORS)
def test_a_factor_of_one_shape_fits_its_own_values(shape: str) -> None:
    factor = FACTORS[shape]
    rng = np.random.default_rng(3)
    own, other = rng.uniform(0, 4, 80), rng.uniform(0, 10, 80)
    true = factor.value(np.full(factor.n_coefficients, 0.1), own, other)
    fitted = factor.fit(own, other, true, np.ones(80))
    assert factor.value(fitted, own, other) == pytest.approx(true, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_on_convex_contention_two_stages_beat_the_quadratic_and_that_the_linear_model(seed: int) -> None:
    table = profile("convex", rng=np.random.default_rng(seed))
    error = {kind: held_out_error(kind, table, rng=np.random.default_rng(seed)) for kind in MODELS}
    assert error["two_stage"] < error["quadratic"] < error["linear"] < error["without_cpu"]
    assert error["two_stage"] < 0.1


def test_on_mild_contention_the_quadratic_model_is_as_good() -> None:
    errors = compare_models(profile("mild", rng=np.random.default_rng(0)), repeats=1, rng=np.random.default_rng(0))
    error = dict(zip(errors["model"], errors["held_out_error"], strict=True))
    assert error["quadratic"] < error["two_stage"] * 1.05  # the published order is no law
    assert error["two_stage"] < error["without_cpu"]


def test_product_and_sum_of_the_two_phases_cannot_be_told_apart() -> None:
    for preset in PRESETS:
        table = profile(preset, rng=np.random.default_rng(1))
        product, sum_ = (
            held_out_error(kind, table, rng=np.random.default_rng(0)) for kind in ("two_stage", "additive")
        )
        assert abs(product - sum_) < 0.015


@pytest.mark.parametrize(
    ("device", "n_pairs", "median", "p90"),
    [("k80", 589, 1.87, 2.4), ("p100", 656, 1.70, 2.4), ("v100", 636, 1.47, 3.3)],
)
def test_gavels_pairs_are_slowed_as_published(
    shared_data: Shared, device: str, n_pairs: int, median: float, p90: float
) -> None:
    table = gavel_pairs(shared_data("gavel/simulation_throughputs.json"), device=device)
    slowdown = InterferenceProfile.of(table).slowdown
    assert len(table) == n_pairs
    assert np.median(slowdown) == pytest.approx(median, abs=0.01)
    assert np.quantile(slowdown, 0.9) == pytest.approx(p90, abs=0.15)


def test_on_gavels_pairs_every_model_beats_the_median(shared_data: Shared) -> None:
    pairs = InterferenceProfile.of(gavel_pairs(shared_data("gavel/simulation_throughputs.json"), device="p100"))
    guess = np.abs(np.median(pairs.slowdown) / pairs.slowdown - 1).mean()
    errors = compare_models(pairs, repeats=1, rng=np.random.default_rng(0))
    assert (errors["held_out_error"] < guess).all()
    assert errors["held_out_error"].is_monotonic_increasing


def test_a_device_gavel_did_not_measure_is_refused(shared_data: Shared) -> None:
    with pytest.raises(InputError, match="Did you mean 'v100'"):
        gavel_pairs(shared_data("gavel/simulation_throughputs.json"), device="v10")


def test_the_synthetic_server_is_reproducible_and_has_the_papers_size() -> None:
    tables = [profile("mild", rng=np.random.default_rng(5)) for _ in range(2)]
    pd.testing.assert_frame_equal(*tables)
    assert len(tables[0]) == 480
    assert set(COLUMNS) <= set(tables[0].columns)
    assert (InterferenceProfile.of(tables[0]).slowdown > 0.8).all()


def test_presets_differ_in_how_hard_they_slow() -> None:
    mean = {
        name: InterferenceProfile.of(profile(name, rng=np.random.default_rng(0))).slowdown.mean() for name in PRESETS
    }
    assert 1.1 < mean["mild"] < 1.4
    assert 2.0 < mean["convex"] < 3.2
    for server in PRESETS.values():
        assert (np.diff(stretch(np.linspace(0, 20, 50), server=server), n=2) > 0).all()  # convex
    with pytest.raises(InputError, match="Did you mean 'convex'"):
        profile("convx", rng=np.random.default_rng(0))


def test_co_runners_by_name_stand_for_what_they_use_alone() -> None:
    table = pd.DataFrame(
        {
            "job": ["a", "b", "c"],
            "co_runners": ["b + c", "", np.nan],
            "cpu_cores": [1.0, 2.0, 4.0],
            "pcie_gbps": [8.0, 16.0, 32.0],
            "alone_s": 1.0,
            "shared_s": [1.5, 1.0, 1.0],
        }
    )
    rows = InterferenceProfile.of(table)
    assert rows.co_cpu_cores.tolist() == [6, 0, 0]
    assert rows.co_pcie_gbps.tolist() == [48, 0, 0]
    assert rows.shared.tolist() == [True, False, False]
    with pytest.raises(ProfileError, match=r"row 2: unknown co-runner 'bb'\. Did you mean 'b'"):
        InterferenceProfile.of(table.assign(co_runners=["b", "bb", ""]))


def test_profiles_that_cannot_be_fitted_are_refused() -> None:
    good = exact(20)
    with pytest.raises(ProfileError, match="column pcie_gbps is missing; expected job, co_runners"):
        InterferenceModel().fit(good.drop(columns="pcie_gbps"))
    with pytest.raises(
        ProfileError, match=r"2 faults: row 3: cpu_cores is nan.*row 1: shared_s is -1\.0.*measure again"
    ):
        InterferenceModel().fit(
            good.assign(
                cpu_cores=good["cpu_cores"].where(good.index != 2), shared_s=good["shared_s"].where(good.index > 0, -1)
            )
        )
    with pytest.raises(ProfileError, match=r"two_stage interference model needs 8 .* and has 5: measure 3 more"):
        InterferenceModel().fit(good.head(5))
    with pytest.raises(ProfileError, match=r"quadratic interference model needs 14 .* and has 10: measure 4 more"):
        InterferenceModel("quadratic").fit(good.head(10))
    alone = good.assign(co_cpu_cores=0.0, co_pcie_gbps=0.0)
    with pytest.raises(ProfileError, match="has 0: measure 8 more"):
        InterferenceModel().fit(alone.assign(shared_s=alone["alone_s"]))


def test_misuse_is_answered_with_the_remedy() -> None:
    with pytest.raises(InputError, match="Did you mean 'quadratic'"):
        InterferenceModel("quadratc")
    with pytest.raises(InputError, match=r"not fitted yet; call fit\(profile\) first"):
        InterferenceModel().slowdown(1, 1, co_cpu_cores=1, co_pcie_gbps=1)
    with pytest.raises(InputError, match="folds is 1 for 60 rows"):
        held_out_error("linear", exact(), folds=1, rng=np.random.default_rng(0))


def beside(
    i: int, rows: list[tuple[int, int, float, float]], machine: list[int], cores: list[float]
) -> tuple[float, float]:
    """Return U_C and P_C of one task of row i, task by task: the plain twin of `co_load`."""
    tasks = [(r, group, u, p) for r, (group, count, u, p) in enumerate(rows) for _ in range(count)]
    mine = next(t for t in tasks if t[0] == i)
    tasks.remove(mine)
    same = [t for t in tasks if t[1] == mine[1]]
    co_cpu = sum(t[2] for t in same)
    for g in range(len(machine)):
        if g != mine[1] and machine[g] == machine[mine[1]]:
            co_cpu += max(0.0, sum(t[2] for t in tasks if t[1] == g) - cores[g])
    return co_cpu, sum(t[3] for t in same)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 3), st.floats(0.1, 6), st.floats(0, 20)), min_size=1, max_size=8
    )
)
def test_the_load_beside_a_task_is_its_group_and_what_overflows_from_the_other(
    rows: list[tuple[int, int, float, float]],
) -> None:
    machine, cores = [0, 0, 1, 1], [8.0, 6.0, 8.0, 8.0]
    group, count, u, p = (np.array(column) for column in zip(*rows, strict=True))
    co_cpu, co_pcie = co_load(
        group.astype(np.int32), count=count, cpu_cores=u, pcie_gbps=p, group_machine=np.array(machine, np.int32),
        group_cores=np.array(cores),
    )  # fmt: skip
    for i in range(len(rows)):
        assert (co_cpu[i], co_pcie[i]) == pytest.approx(beside(i, rows, machine, cores), abs=1e-6)


def test_a_lonely_task_is_not_slowed_and_a_crowded_one_is() -> None:
    model = InterferenceModel().fit(exact())
    group = np.array([0, 1, 1], np.int32)
    slow = slowdowns(
        model, group, count=np.ones(3, np.int32), cpu_cores=np.full(3, 4.0), pcie_gbps=np.full(3, 10.0),
        group_machine=np.array([0, 1], np.int32), group_cores=np.full(2, 8.0),
    )  # fmt: skip
    assert slow[0] == 1
    assert (
        slow[1]
        == slow[2]
        == pytest.approx((0.2 * np.exp(0.1 * 4 + 0.2 * 4) + 0.75) * (0.002 * 10 + 0.01 * 10 + 1), rel=1e-3)
    )
