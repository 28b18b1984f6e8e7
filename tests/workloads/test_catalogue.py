"""The catalogue says what its sources say."""

from __future__ import annotations

import pytest

from labkit.core.errors import InputError
from labkit.workloads.catalogue import DL2_MODELS, model, models, step_s


def test_the_catalogue_has_the_eight_models_of_dl2_table_1_and_two_of_dlrover():
    names = [m.name for m in models()]
    assert names[:8] == list(DL2_MODELS)
    assert sorted(names[8:]) == ["wide-deep", "xdeepfm"]


@pytest.mark.parametrize(
    ("name", "size_mb", "pcie_gbps", "worker_cores"),
    [
        ("resnet-50", 102.2, 3.64, 0.99),
        ("vgg-16", 553.4, 16.55, 0.72),
        ("resnext-110", 6.92, 0.49, 1.44),
        ("inception-bn", 42.1, 0.83, 1.34),
        ("seq2seq", 36.5, 7.79, 0.76),
        ("CTC", 24.0, 0.66, 1.63),
        ("dssm", 6.0, 0.17, 1.98),
        ("wlm", 19.2, 1.99, 0.46),
    ],
)  # 2 x size / compute time, and mean cores, of DL2's published measurements
def test_profiles_of_dl2_models_are_the_measured_ones(name, size_mb, pcie_gbps, worker_cores):
    m = model(name)
    assert m.size_mb == pytest.approx(size_mb)
    assert m.pcie_gbps == pytest.approx(pcie_gbps, abs=0.011)
    assert m.worker_cores == worker_cores


@pytest.mark.parametrize(("name", "millions"), [("resnet-50", 25.56), ("vgg-16", 138.36)])
def test_sizes_of_four_bytes_per_parameter_give_the_well_known_parameter_counts(name, millions):
    assert model(name).n_parameters / 1e6 == pytest.approx(millions, rel=1e-3)


def test_only_two_models_of_dl2_train_on_cpus():
    assert {name for name in DL2_MODELS if model(name).worker_demand.gpus == 0} == {"cnn-text-classification", "dssm"}


def test_xdeepfm_needs_more_worker_cores_than_wide_and_deep_and_is_slower_per_step():  # DLRover, Table 1
    wide, deep = model("W&D"), model("xDFM")
    assert deep.worker_cores > 7 * wide.worker_cores
    assert (1 / wide.compute_s, 1 / deep.compute_s) == (pytest.approx(12, rel=1e-3), pytest.approx(6.2, rel=1e-3))


def test_a_misspelt_model_is_offered_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'resnet-50'"):
        model("resnet-5O")


def test_more_workers_shorten_computation_and_more_servers_shorten_communication():
    alone = step_s("vgg-16", n_workers=1, n_ps=1)
    assert step_s("vgg-16", n_workers=2, n_ps=2) < alone
    assert step_s("vgg-16", n_workers=4, n_ps=1) > step_s("vgg-16", n_workers=4, n_ps=4)
