"""A training of one's own that configures itself: from a file, from a notebook's module, and a script on hosts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import labkit
from labkit.core import InputError
from labkit.core.events import Kind, events
from labkit.core.jobs import Jobs
from labkit.core.resources import amounts
from labkit.elastic.job import Job
from labkit.elastic.own_training import OwnTraining, content_of
from labkit.experiment import batches
from labkit.experiment.auto import auto, opener_of, program_of, with_batch_of
from labkit.experiment.history import FILE, add, read
from labkit.experiment.opener import Preflight
from labkit.experiment.time_limit import TimeLimitError
from labkit.results.record import RunRecord
from labkit.schedulers.dlrover.history import History, Likeness
from labkit.schedulers.dlrover.plan import Plan
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
    (mine.parent / "other.py").write_text("WIDTH = 8\n")
    assert name == f"mine-{content_of(mine)[:12]}" == f"mine-{OwnScript.of(mine).content[:12]}"
    mine.write_text(MINE.replace("0.02", "0.03"))
    assert opener_of(str(mine), steps=10, runs=mine.parent / "runs").experiment.jobs.models != (name,)


def test_a_script_is_another_one_when_something_that_it_imports_beside_it_was_edited(tmp_path: Path) -> None:
    files = {
        "mine.py": "import torch, os.path\nfrom nets import wide\nimport nets.far",
        "nets/__init__.py": "", "nets/wide.py": "from . import near\nfrom .near import x", "nets/near.py": "import far",
        "nets/far.py": "", "far.py": "import mine",
    }  # fmt: skip
    (tmp_path / "nets").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    known = {content_of(tmp_path / "mine.py")}
    (tmp_path / "nets" / "unused.py").write_text("a = 1")
    assert content_of(tmp_path / "mine.py") in known, "nobody imports it"
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\nb = 1")
        known.add(content_of(tmp_path / "mine.py"))
    assert len(known) == 1 + len(files)


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


LOADER = """
def data():
    samples = torch.utils.data.TensorDataset(torch.randn(64, WIDTH), torch.zeros(64).long())
    return torch.utils.data.DataLoader(samples, 8)
"""
LOOP = """
import torch, labkit
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with labkit.elastic(model, optimizer, (torch.ones(64, 2), torch.zeros(64, 1)), steps=9, batch=16) as job:
    for x, y in job:
        job.step(torch.nn.functional.mse_loss(model(x), y))
"""


@pytest.mark.parametrize(("text", "own"), [(MINE, 16), (MINE.replace(', "batch": 16', "") + LOADER, 8), (LOOP, 16)])
def test_a_batch_that_was_typed_counts_more_than_any_that_a_file_says(mine: Path, text: str, own: int) -> None:
    mine.write_text(text)
    assert program_of(mine, None, None, training=TrainingTable()).batch == own
    typed = program_of(mine, None, None, training=TrainingTable(batch=32))  # the default where nothing says it
    typed.own.save(mine.parent)  # type: ignore[union-attr]
    there = OwnTraining.load(mine.parent)
    assert (typed.batch, there.batch, there.options["batch"]) == (32, 32, 32)


def test_the_smallest_batch_size_that_is_nearly_as_fast_is_taken_and_its_reason_kept(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, Plan]] = []

    def run_on_paper(opener: Preflight, *, observers: list, **_: object) -> RunRecord:
        jobs, rows = opener.experiment.jobs, events(2)
        batch = int(jobs.samples_per_step[0])
        if jobs.total_steps[0] > 100:
            tried.append((batch, opener.scheduler.past.of_model[jobs.models[0]]))
            assert opener.scheduler.rules.gap_s > 1e6, "it is held to the plan, and not changed"
            rows["kind"], rows["time_s"] = Kind.PROGRESSED, [1.0, 11.0]
            rows["value"] = [1.0, 1 + 10 / (0.01 + 0.0005 * batch)]
            with pytest.raises(TimeLimitError):
                observers[0](rows)
        info = opener.experiment.info(opener.scheduler, name=opener.name)
        return RunRecord(info=info, jobs=jobs, cluster=opener.experiment.cluster, events=rows[:0])

    monkeypatch.setattr(batches, "run_opened", run_on_paper)
    program, lines, runs = program_of(mine, None, None, training=TrainingTable()), list[str](), mine.parent / "runs"
    add(runs / FILE, Likeness(program.name, 16, "generated"), Plan(1, 0.3, 1, 0.2))
    program, steps, why = with_batch_of(program, [256, 16, 128], steps=100, tell=lines.append, runs=runs)
    assert tried == [(batch, Plan(1, 0.3, 1, 0.2)) for batch in (16, 256, 128)], "all with the plan that is known"
    assert (program.batch, steps) == (128, 13), "as many samples"
    assert "batch 128 from now on, the smallest with 90% of the samples/s of 256" in why.text
    assert "batch 128: 1730 samples/s (1730 predicted, " in why.text
    assert why.speed == pytest.approx(1 / 0.074)
    assert len(lines) == 5
    known = History().noted({Likeness(program.name, 128, "generated"): Plan(1, 0.3, 1, 0.2)})
    assert read(runs / FILE).alike.items() >= known.alike.items(), "the job begins with what was tried"


def test_one_batch_size_is_no_choice() -> None:
    with pytest.raises(InputError, match=r"batches is 64; expected two or more .* for a single one, batch"):
        auto("wide_deep", steps=10, batches=[64])


def test_a_module_of_a_notebook_trains_and_leaves_a_record(tmp_path: Path) -> None:
    x, model = torch.randn(64, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = labkit.elastic(model, optimizer, torch.utils.data.TensorDataset(x, x[:, :1]), steps=60, batch=16)
    record = job.auto(square_loss, runs=tmp_path, training=TrainingTable(lease_s=2.0))
    assert record.complete
    assert str(record.jobs.models[0]).startswith("linear-")
    assert record.jobs.samples_per_step[0] == 16


def test_a_job_that_trains_already_does_not_configure_itself() -> None:
    model = nn.Linear(4, 1)
    job = labkit.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(8, 4),), steps=2, batch=8)
    for (x,) in job:
        job.step(model(x).mean())
    with pytest.raises(InputError, match=r"job\.auto\(loss\) of a job that trains already; .* --auto"):
        job.auto(square_loss)
    with pytest.raises(InputError, match=r"job\.auto\(\) of a job that trains already, in .*; expected labkit\.auto"):
        Job.auto(SimpleNamespace(folder="/tmp/job"))  # type: ignore[arg-type]


def test_a_script_on_hosts_needs_no_duration_and_its_final_plans_are_kept_by_its_content(
    mine: Path, tmp_path: Path
) -> None:
    jobs = Jobs.of(
        arrival_s=[0.0], total_steps=[9], model="mine", n_workers=1, n_ps=1, max_workers=9, max_ps=9,
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
    told = named[1].experiment
    assert np.isnan(told.jobs.duration_s).all(), "how long it takes is not known"
    assert told.speeds == "durations of 1 jobs are not known until they are measured"
    for name in ("srtf", "gavel_las"):
        with pytest.raises(InputError, match=rf"scheduler '{name}' decides by duration_s, which job 0 does not have"):
            Preflight.of(jobs, inventory=hosts, scheduler=name, runs=tmp_path / "runs", training=table)


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
