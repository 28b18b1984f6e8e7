"""Gavel's throughputs: what ships, what a file may hold, and how gaps are filled."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.workloads.gavel import EstimatedThroughput, Throughputs
from labkit.workloads.gavel_traces import DISTRIBUTED, JOB_TABLE
from labkit.workloads.recipes import throughputs_csv

PUBLISHED = Throughputs.published()


@pytest.fixture(scope="module")
def gavel_json(shared_data):
    return shared_data("gavel/simulation_throughputs.json")


@pytest.fixture(scope="module")
def read(gavel_json):
    return Throughputs.read(gavel_json)


def test_the_published_table_has_the_26_configurations_of_table_2_on_three_gpus():
    assert len(PUBLISHED.models) == 26
    assert set(PUBLISHED.models) == set(JOB_TABLE)
    assert PUBLISHED.device_types == ("k80", "p100", "v100")
    assert PUBLISHED.n_gpus.tolist() == [1, 2, 4, 8]


def test_83_job_types_are_measured_and_only_19_configurations_on_several_gpus():
    measured = ~np.isnan(PUBLISHED.alone).any(axis=2)
    assert measured.sum() == 83
    on_several = {PUBLISHED.models[k] for k in np.flatnonzero(measured[:, 1:].any(axis=1))}
    assert on_several == set(DISTRIBUTED)
    assert len(DISTRIBUTED) == 19


def test_resnet_50_of_batch_128_runs_on_a_k80_alone_but_not_on_several():
    rates = PUBLISHED.steps_per_s("ResNet-50 (batch size 128)", n_gpus=[1, 2, 4, 8], device_types=("k80",))[:, 0]
    assert (rates > 0).tolist() == [True, False, False, False]


def test_20_of_83_job_types_are_fastest_on_p100():  # among them all of Recommendation
    best = np.nanargmax(np.nan_to_num(PUBLISHED.alone), axis=2)[~np.isnan(PUBLISHED.alone).any(axis=2)]
    assert (best == PUBLISHED.device_types.index("p100")).sum() == 20


def test_the_shipped_csv_is_what_its_recipe_makes_of_gavels_file(gavel_json):
    from labkit.workloads.gavel import PUBLISHED as SHIPPED

    assert SHIPPED.read_text("utf-8") == throughputs_csv(gavel_json)


def test_the_shipped_figures_are_those_of_gavels_file_to_the_last_bit(gavel_json):
    raw = json.loads(gavel_json.read_text())
    for kind in PUBLISHED.device_types:
        for key, row in raw[kind].items():
            name, n = key[2:].rsplit("', ", 1)
            rate = PUBLISHED.steps_per_s(name, n_gpus=int(n[:-1]), device_types=(kind,), strict=True)
            assert rate == row["null"]


def test_gavels_file_has_six_device_types_and_pairs(read):
    assert len(read.device_types) == 6
    assert "k80_unconsolidated" in read.device_types
    assert read.shared is not None


def test_pairs_are_mine_first_and_all_pairs_on_several_gpus_are_zero(read):
    a, b = "ResNet-18 (batch size 256)", "ResNet-18 (batch size 16)"
    assert read.pair(b, a, device_type="v100") == pytest.approx((24.4545, 10.3003), abs=1e-3)
    assert read.pair(a, b, device_type="v100") == read.pair(b, a, device_type="v100")[::-1]
    several = read.shared[:, read.n_gpus > 1][..., :3]
    assert np.nansum(several) == 0


def test_between_40_and_87_of_the_676_pairs_on_one_gpu_have_a_zero(read):
    alone = read.n_gpus.tolist().index(1)
    zeros = {}
    for t, kind in enumerate(read.device_types[:3]):
        mine = read.shared[:, alone, :, t]
        zeros[kind] = int(((mine == 0) | (mine.T == 0)).sum())
    assert (zeros["v100"], zeros["k80"]) == (40, 87)


def test_the_shipped_table_has_no_pairs_and_says_where_to_get_them():
    with pytest.raises(InputError, match="--throughputs"):
        PUBLISHED.pair("A3C", "A3C", device_type="v100")


def test_an_unmeasured_number_of_gpus_is_estimated_per_gpu_from_the_nearest_one():
    lm = "LM (batch size 20)"
    measured = PUBLISHED.steps_per_s(lm, n_gpus=[1, 2, 4, 8], device_types=("v100",))[:, 0]
    with pytest.warns(EstimatedThroughput) as told:
        estimated = PUBLISHED.steps_per_s(lm, n_gpus=[3, 6, 7, 32], device_types=("v100",))[:, 0]
    # 3 is as near to 2 as to 4, 6 as near to 4 as to 8: the smaller counts
    assert estimated == pytest.approx([1.5 * measured[1], 1.5 * measured[2], 7 / 8 * measured[3], 4 * measured[3]])
    assert len(told) == 1
    assert all(f"on {n} GPUs: {lm}" in str(told[0].message) for n in (3, 6, 7, 32))


def test_recommendation_on_several_gpus_is_estimated_from_one():
    name = "Recommendation (batch size 512)"
    with pytest.warns(EstimatedThroughput, match="on 4 GPUs: Recommendation"):
        four = PUBLISHED.steps_per_s(name, n_gpus=4)
    assert four == pytest.approx(4 * PUBLISHED.steps_per_s(name, n_gpus=1))


def test_strict_refuses_estimates_and_names_them():
    with pytest.raises(InputError, match=r"on 3 GPUs: A3C.*--throughputs"):
        PUBLISHED.steps_per_s(["A3C", "A3C"], n_gpus=[1, 3], strict=True)


@given(st.lists(st.tuples(st.integers(0, 25), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=30))
def test_one_call_for_many_jobs_says_the_same_as_a_call_for_each(asked):
    names, gpus = [PUBLISHED.models[k] for k, _ in asked], [n for _, n in asked]
    together = PUBLISHED.steps_per_s(names, n_gpus=gpus, warn=False)
    alone = [PUBLISHED.steps_per_s(name, n_gpus=n, warn=False)[0] for name, n in zip(names, gpus, strict=True)]
    assert np.array_equal(together, alone)


def test_measured_figures_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PUBLISHED.steps_per_s(list(DISTRIBUTED), n_gpus=8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"model": "ResNet-18 (batch size 65)", "n_gpus": 1}, "Did you mean 'ResNet-18"),
        ({"model": "A3C", "n_gpus": 1, "device_types": ("v10",)}, "Did you mean 'v100'"),
        ({"model": "A3C", "n_gpus": 0}, "n_gpus"),
        ({"model": "A3C", "n_gpus": np.nan}, "n_gpus"),
    ],
)
def test_wrong_questions_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        PUBLISHED.steps_per_s(**call)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"v100": {"(\'A3C\', 1)": {"null": NaN}}}', "is nan; expected a number >= 0"),
        ('{"v100": {"(\'A3C\', 1)": {"null": -1}}}', "is -1; expected a number >= 0"),
        ('{"v100": {"(\'A3C\', 1)": {"null": "3"}}}', "expected a number"),
        ('{"v100": {"(\'A3C\', 1)": {"null": true}}}', "expected a number"),
        ('{"v100": {"(\'A3C\', 1)": {"(\'A3C\', 1)": [1]}}}', "expected two numbers"),
        ('{"v100": {"A3C": {"null": 1}}}', "expected a key"),
        ('{"v100": {"(\'A3C\', 0)": {"null": 1}}}', "expected a key"),
        ('{"v100": [1]}', "v100: holds a list"),
        ("[]", "holds a list"),
        ("{}", "no throughputs"),
        ('{"v100": ', "not JSON"),
        ("\xff\x00", "not JSON"),
    ],
)
def test_a_wrong_file_of_throughputs_is_refused_with_its_key(tmp_path, content, message):
    path = tmp_path / "t.json"
    path.write_text(content, "latin-1")
    with pytest.raises(InputError, match=message) as told:
        Throughputs.read(path)
    assert "t.json" in str(told.value)


def test_all_faults_of_a_file_are_told_at_once(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"v100": {"(\'A\', 1)": {"null": -1}, "(\'B\', 1)": {"null": -2}}, "k80": 3}')
    with pytest.raises(InputError, match="3 faults"):
        Throughputs.read(path)


def test_a_missing_file_of_throughputs_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json"):
        Throughputs.read(tmp_path / "nowhere.json")


def test_a_model_without_a_figure_on_a_type_cannot_run_there(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"v100": {"(\'A\', 1)": {"null": 2}}, "k80": {"(\'B\', 1)": {"null": 1}}}')
    assert Throughputs.read(path).steps_per_s(["A", "B"], n_gpus=1, strict=True).tolist() == [[2, 0], [0, 1]]
