"""DL2's own network as a scheduler: its weights in files, and what is wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from labkit.core import InputError, Jobs
from labkit.experiment import Experiment
from labkit.experiment.caveats import Caveat
from labkit.schedulers import make
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2.policy import FlatNet, Form
from reproductions.dl2.scheduler import FlatWeights, load_flat
from tests.hang import HANG_S

FORM = Form(False, 4, 8, False, True, True)
ABOUT = {
    "policy": "dl2 as published", "version": "1", "form": json.dumps(FORM._asdict()), "models": json.dumps(DL2_MODELS),
    "slot_s": "1200.0", "source": "",
}  # fmt: skip


def net(n: int = 8) -> FlatNet:
    rng = np.random.default_rng(0)
    shapes = (4 * 13, n), (n,), (1, n, n), (1, n), (2, n), (2, n), (n, 13), (13,)
    return FlatNet(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


def test_weights_come_back_from_a_file_with_their_form(tmp_path):
    FlatWeights(net(), FORM, tuple(DL2_MODELS), 1200.0, "made so").save(tmp_path / "w.safetensors")
    again = load_flat(tmp_path / "w.safetensors")
    assert (again.form, again.models, again.slot_s, again.source) == (FORM, tuple(DL2_MODELS), 1200.0, "made so")
    for mine, other in zip(net(), again.net, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize(
    ("tensors", "about", "told"),
    [
        ({"x": np.zeros(2, np.float32)}, ABOUT, "it holds x; expected first, first_bias, gain, .*Train it: labkit"),
        (net()._asdict(), {**ABOUT, "version": "0"}, "version '0'; expected 'dl2 as published', '1'"),
        (net()._asdict(), {**ABOUT, "policy": "dl2"}, "Without published=True it may be what you want"),
        (net()._asdict(), {**ABOUT, "models": '["a"]'}, "its form is for 8 models; expected 1, as it names"),
        (
            net()._asdict(), {**ABOUT, "form": json.dumps(FORM._replace(n_jobs=5)._asdict())},
            r"first is of shape \(52, 8\); expected \(65, 8\) for J = 5, L = 8",
        ),
        (net()._asdict(), {**ABOUT, "form": '{"n_jobs": 4}'}, r"its form is '\{\"n_jobs\": 4\}', which cannot"),
        (net()._asdict(), {**ABOUT, "slot_s": "soon"}, "its slot_s is 'soon', which cannot be read. Train it: labkit"),
        (net()._replace(last_bias=np.full(13, np.nan, np.float32))._asdict(), ABOUT, "last_bias holds a number"),
    ],
)  # fmt: skip
def test_files_with_something_else_are_told_in_one_line(tensors, about, told, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(tensors, path, metadata=about)
    with pytest.raises(InputError, match=told) as refused:
        make(f"dl2(published=True, weights='{path}')")
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_that_cannot_be_are_told_in_one_line():
    with pytest.raises(InputError, match=r"weights is ''; expected the path of a .safetensors file\. Train it: labkit"):
        make("dl2(published=True)")
    with pytest.raises(InputError, match="draws is True, and published is False"):
        make("dl2(draws=True)")


def test_types_that_it_has_not_seen_are_told_and_scheduled(tmp_path):
    FlatWeights(net(), FORM, tuple(DL2_MODELS), 1200.0, "").save(tmp_path / "w.safetensors")
    jobs = Jobs.of(
        arrival_s=[0.0, 0.0], total_steps=[1e4] * 2, model=["vgg-16", "mine"], n_workers=1, max_workers=4, n_ps=1,
        max_ps=4, worker_demand=[[1, 2, 0]] * 2, ps_demand=[[0, 2, 0]] * 2, duration_s=1e4,
    )  # fmt: skip
    made = Experiment.of(jobs, cluster="dl2-6n", speed="recorded")
    with pytest.warns(Caveat, match=r"its training has met no mine"):
        run = made.run(make(f"dl2(published=True, weights='{tmp_path}/w.safetensors')"))
    assert run.summary["n_unfinished"] == 0


def test_the_released_rules_refuse_rigid_jobs(tmp_path):
    released = FORM._replace(released=True, scaled=False)
    shapes = (4 * 6, 8), (8,), (1, 8, 8), (1, 8), (2, 8), (2, 8), (8, 13), (13,)
    zeros = FlatNet(*(np.zeros(shape, np.float32) for shape in shapes))
    FlatWeights(zeros, released, tuple(DL2_MODELS), 1200.0, "").save(tmp_path / "w.safetensors")
    jobs = Jobs.of(arrival_s=[0.0], total_steps=[10], model="vgg-16", n_workers=1, n_ps=1, duration_s=10)
    with pytest.raises(InputError, match="job 0 is rigid, and the released code's rules give tasks one by one"):
        Experiment.of(jobs, cluster="dl2-6n").run(make(f"dl2(published=True, weights='{tmp_path}/w.safetensors')"))


def test_deciding_needs_no_torch(tmp_path):
    FlatWeights(net(), FORM, tuple(DL2_MODELS), 1200.0, "").save(tmp_path / "w.safetensors")
    code = (
        "import sys; from labkit.experiment import Experiment; from labkit.workloads import dl2_jobs; "
        "from labkit.schedulers import make; "
        f"s = make(\"dl2(published=True, weights='{tmp_path}/w.safetensors')\"); "
        "Experiment.of(dl2_jobs('testbed_6n', seed=1), cluster='dl2-6n').run(s); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_S)
