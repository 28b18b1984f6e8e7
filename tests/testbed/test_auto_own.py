"""A training of one's own that configures itself: from a file, from a notebook's module, and a script on hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit.core import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import amounts
from labkit.experiment.auto import auto, opener_of
from labkit.experiment.opener import Preflight
from labkit.testbed.run.own_scripts import OwnScript, training_from
from labkit.testbed.run.session import local_inventory
from labkit.testbed.run.training import TrainingTable

MINE = """
import torch
from torch import nn
from beside import WIDTH

options = {"lr": 0.02, "batch": 16}

def model():
    return nn.Linear(WIDTH, 2)

def data():
    return torch.utils.data.TensorDataset(torch.randn(64, WIDTH), torch.randint(0, 2, (64,)))

def loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WIDTH = 8\n")
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def square_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_a_file_of_ones_own_is_named_by_its_content_and_trains_as_it_says(mine: Path) -> None:
    first = opener_of(str(mine), steps=10, runs=mine.parent / "runs")
    (name,) = first.experiment.jobs.models
    assert name.startswith("mine-")
    assert (first.training.lr, first.training.batch) == (0.02, 16)
    assert first.training.scripts[name].code_hash, "model, data and loss are packed, whatever becomes of the file"
    again = opener_of(str(mine), steps=10, runs=mine.parent / "runs")
    assert again.experiment.jobs.models == (name,)
    mine.write_text(MINE.replace("0.02", "0.03"))
    assert opener_of(str(mine), steps=10, runs=mine.parent / "runs").experiment.jobs.models != (name,)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("def validation_data(): return data()", r"mine\.py defines validation_data, .* leave it out, or --auto"),
        ("options = {'momentum': 0.9}", r"unknown option of .*mine\.py for --auto 'momentum'"),
    ],
)
def test_what_a_file_asks_for_and_would_not_get_is_refused(mine: Path, line: str, told: str) -> None:
    mine.write_text(f"{MINE}\n{line}\n")
    with pytest.raises(InputError, match=told):
        opener_of(str(mine), steps=10, runs=mine.parent / "runs")


def test_a_module_needs_its_data_and_loss() -> None:
    with pytest.raises(InputError, match=r"auto\(model, data, loss, steps=\.\.\.\)"):
        opener_of(nn.Linear(4, 1), steps=10)


def test_a_module_of_a_notebook_trains_and_leaves_a_record(tmp_path: Path) -> None:
    x = torch.randn(64, 4)
    record = auto(
        nn.Linear(4, 1), torch.utils.data.TensorDataset(x, x[:, :1]), square_loss, steps=60, runs=tmp_path,
        training=TrainingTable(batch=16, lease_s=2.0),
    )  # fmt: skip
    assert record.complete
    assert str(record.jobs.models[0]).startswith("linear-")


def test_final_plans_of_a_script_on_hosts_are_kept_by_its_own_content(mine: Path, tmp_path: Path) -> None:
    jobs = Jobs.of(
        arrival_s=[0.0], total_steps=[9], duration_s=9.0, model="mine", n_workers=1, n_ps=1, max_workers=9, max_ps=9,
        worker_demand=amounts(cpus=0.2), ps_demand=amounts(cpus=0.2),
    )  # fmt: skip
    table = TrainingTable(scripts={"mine": OwnScript.of(mine)})
    hosts = local_inventory(tmp_path / "here")
    named = [
        Preflight.of(jobs, inventory=hosts, scheduler=name, runs=tmp_path / "runs", training=table)
        for name in ("dlrover", "fifo")
    ]
    assert named[0].experiment.jobs.models == (f"mine-{OwnScript.of(mine).content[:12]}",)
    assert list(named[0].training.scripts) == list(named[0].experiment.jobs.models)
    assert named[1].experiment.jobs.models == ("mine",), "a scheduler that remembers nothing has no use for it"


def test_what_labkit_train_takes_a_host_takes_too(mine: Path) -> None:
    program = training_from("mine.py", code=mine.parent, data=None, seed=0)
    assert isinstance(program.model, nn.Linear)
    assert len(program.data) == 64


@pytest.mark.slow
def test_the_command_configures_a_file_of_ones_own(mine: Path) -> None:
    from tests.command import labkit_in_a_process as labkit

    done = labkit("train", "mine.py", "--auto", "--steps", "300", "--json", cwd=mine.parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["steps"] == 300
    assert told["decisions"]
