"""Training scripts of one's own: packed by content, brought once to a host, run there, and told where they fail."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.cli.deploy import _scripts
from labkit.core import Placement
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.experiment import Session, deploy
from labkit.testbed.inventory import Inventory
from labkit.testbed.run import own_scripts
from labkit.testbed.run.backend import SshBackend
from labkit.testbed.run.job_messages import JobRequest
from labkit.testbed.run.own_scripts import OwnScript, Staging, pack, training_from
from labkit.testbed.run.training import TrainingTable
from labkit.testbed.ssh.fleet import Fleet
from tests.testbed.test_backend import jobs_of, until

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)
"""
SCRIPT = """
import torch
from nets import Net

def loss(model, batch):
    x, y = batch
    return ((model(x) - y) ** 2).mean()

def program(data):
    rows = torch.tensor([[float(v) for v in line.split(",")] for line in (data / "rows.csv").read_text().split()])
    return Net(), (rows[:, :2], rows[:, 2:]), loss

def broken(data):
    return 1 / 0

def odd(data):
    return Net()
"""
TABLE = TrainingTable(save_every=20, lease_s=5.0, lr=0.05)


@pytest.fixture
def own(tmp_path: Path) -> OwnScript:
    for name, text in {"code/nets.py": NETS, "code/train.py": SCRIPT, "data/rows.csv": "1,2,3\n2,3,5\n" * 50}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return OwnScript.of(tmp_path / "code" / "train.py", data=tmp_path / "data")


def mine(n: int, *, steps: int) -> object:
    return jobs_of(n, steps=steps).with_columns(models=("mine",))


# --- packing


def test_a_content_has_one_hash_wherever_and_whenever_it_was_written_and_another_after_a_change(tmp_path, own):
    first = pack(Path(own.code), tmp_path / "staged")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(own.code, elsewhere)
    (elsewhere / "__pycache__").mkdir()
    (elsewhere / "__pycache__" / "train.pyc").write_bytes(b"x")
    os.utime(elsewhere / "train.py", (1, 1))
    assert pack(elsewhere, tmp_path / "staged") == first
    assert [path.name for path in (tmp_path / "staged").iterdir()] == [f"{first}.tar"]
    (elsewhere / "train.py").write_text(SCRIPT + "\n")
    assert pack(elsewhere, tmp_path / "staged") != first


def test_what_is_packed_does_not_follow_the_source(tmp_path, own):
    packed = own.packed(tmp_path / "queue")
    shutil.rmtree(own.code)
    again = packed.packed(tmp_path / "run")
    assert again.hashes == packed.hashes
    assert {path.stem for path in (tmp_path / "run").iterdir()} == set(packed.hashes)


@pytest.mark.parametrize("odd", ["link", "pipe", "folder link"])
def test_links_and_pipes_are_refused_with_their_names(tmp_path, own, odd):
    path = Path(own.code) / "odd"
    os.mkfifo(path) if odd == "pipe" else path.symlink_to("/etc" if odd == "folder link" else "/etc/passwd")
    with pytest.raises(InputError, match="has odd: no plain files; copy what they lead to"):
        pack(Path(own.code), tmp_path / "staged")
    assert not (tmp_path / "staged").exists()


def test_too_much_is_refused(tmp_path, own, monkeypatch):
    monkeypatch.setattr(own_scripts, "MOST_FILES", 1)
    with pytest.raises(
        InputError, match="has more than 1 files or 16 GiB; put code and data into folders of their own"
    ):
        pack(Path(own.code), tmp_path / "staged")


@pytest.mark.parametrize(
    ("path", "told"),
    [("train.txt", "expected a Python file"), ("train.py:1x", "expected a Python file"), ("no.py", "is not there")],
)
def test_what_is_no_script_is_refused(own, path, told):
    with pytest.raises(InputError, match=told):
        OwnScript.of(Path(own.code) / path)


@pytest.mark.parametrize("file", ["code/train.py", "code/train.py:program", "my code/train.py"])
def test_a_script_has_its_arguments_on_the_host(own, tmp_path, monkeypatch, file):
    shutil.copytree(own.code, tmp_path / "my code")
    monkeypatch.chdir(tmp_path)
    plain, given = (_scripts([f"mine={text}"], None)["mine"] for text in (file, f"'{file}' --epochs 3"))
    assert (plain.args, given.args) == ((), ("--epochs", "3"))
    assert (given.script, given.code) == (plain.script, plain.code) == (Path(file).name, str((tmp_path / file).parent))
    assert given.content != plain.content
    archived = TABLE.changed(scripts={"mine": given}).packed(tmp_path / "staged")
    read = TrainingTable(**json.loads(json.dumps(archived.to_json())))
    assert read.request(mine(1, steps=1), 0, sites=[], place={}).args == ("--epochs", "3")
    staged = tmp_path / "staged" / own_scripts.STAGED
    one, other = read.scripts["mine"], replace(read.scripts["mine"], args=("--epochs", "4"))
    assert one.outside(staged) != other.outside(staged), "another consent"


def test_a_script_finds_its_arguments_where_it_is_called(tmp_path):
    lines = ["import sys, torch", "def program(_): return torch.nn.Linear(1, len(sys.argv)), torch.ones(2, 1), sum"]
    (tmp_path / "train.py").write_text("\n".join(lines))
    assert training_from("train.py", code=tmp_path, data=None, seed=0, args=["a", "b"]).model.out_features == 3


def test_a_script_for_a_model_that_the_trace_lacks_is_refused(own):
    with pytest.raises(InputError, match=r"unknown model of the trace, for a script 'nine'. Did you mean 'mine'"):
        TABLE.changed(scripts={"nine": own}).check(mine(1, steps=1))


def test_a_table_with_scripts_is_read_as_it_was_written(own, tmp_path):
    table = TABLE.changed(scripts={"mine": own}).packed(tmp_path)
    assert TrainingTable(**table.to_json()) == table


@pytest.mark.parametrize(
    "odd", [{"script": "../x.py"}, {"code": "../../x"}, {"samples": "/etc"}, {"name": "dssm"}, {"script": ""}]
)
def test_a_request_that_would_leave_its_folder_is_refused(tmp_path, odd):
    given = {"script": "train.py", "code": "0" * 64, "steps": 1, **odd}
    (tmp_path / "request.json").write_bytes(JobRequest(**given).to_json())
    with pytest.raises(InputError, match="expected"):
        JobRequest.read(tmp_path / "request.json")


# --- on the host


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("broken", "train.py, line 14: ZeroDivisionError: division by zero"),
        ("odd", r"train.py: odd\(\) returned a Net; expected \(model, data, loss\)"),
        ("nosuch", r"train.py has no function nosuch\(data\)"),
    ],
)
def test_a_script_that_fails_is_told_with_its_line(own, function, told):
    with pytest.raises(InputError, match=told):
        training_from(f"train.py:{function}", code=Path(own.code), data=Path(own.data), seed=0)


def test_samples_to_validate_with_are_refused_not_ignored(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "import torch\nmodel = torch.nn.Linear(2, 1)\ndata = validation_data = (torch.ones(8, 2), torch.ones(8, 1))\n"
        "def loss(m, b): return (m(b[0]) - b[1]).square().mean()\n"
    )
    with pytest.raises(InputError, match=r"mine\.py defines validation_data, .* labkit train validates"):
        training_from("mine.py", code=tmp_path, data=None, seed=0)


def test_a_content_travels_once_to_a_host(bed: Inventory, fleet: Fleet, own: OwnScript, tmp_path: Path):
    packed = own.packed(tmp_path)
    below = fleet.run(["/bin/sh", "-c", "echo ~/.labkit"], only=["h1"])["h1"].stdout.strip()
    staging = Staging(fleet, tmp_path)
    assert staging.bring("h1", packed.data_hash, below=below)
    assert not staging.bring("h1", packed.data_hash, below=below)
    there = Path(below) / "staged" / packed.data_hash
    assert (there / "rows.csv").read_text() == (Path(own.data) / "rows.csv").read_text()
    assert [path.name for path in there.parent.iterdir() if path.name.startswith(packed.data_hash)] == [there.name]


def test_a_script_trains_with_workers_on_two_hosts_that_have_no_code(bed: Inventory, own: OwnScript, tmp_path: Path):
    table = TABLE.changed(scripts={"mine": own}).packed(tmp_path)
    shutil.rmtree(own.code)
    with SshBackend(
        mine(1, steps=60), bed, run=f"own{os.getpid()}", folder=tmp_path, training=table
    ) as backend:  # fmt: skip
        session = Session(backend)
        both = Placement.of([0], job=[0, 0, 0], role=[0, 0, 1], group=[2, 3, 2], count=[1, 1, 1])
        session._note(backend.apply(both))
        until(session, Kind.COMPLETED)
        losses = session.log.rows["value"][session.log.rows["kind"] == Kind.LOSS]
        assert losses[-1] < losses[0], "it learns that z = x + y"
        assert not np.isin(Kind.FAILED, session.log.rows["kind"]), backend.notes


def test_a_job_whose_script_fails_is_given_up_with_the_line(bed: Inventory, own: OwnScript, tmp_path: Path):
    wrong = TABLE.changed(scripts={"mine": OwnScript.of(f"{own.code}/train.py:broken", data=own.data)})
    record = deploy(mine(1, steps=60), inventory=bed, scheduler="fifo", runs=tmp_path / "runs", training=wrong)
    assert "train.py, line 14: ZeroDivisionError: division by zero" in next(iter(record.info.dropped.values()))
