"""`labkit train FILE.py`: the page's example runs as it stands, and what a file lacks is told."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

from labkit.core.errors import InputError
from labkit.elastic.own_training import OwnTraining, arguments_of, read_training
from labkit.system.proc import all_pids, command_line
from tests.command import labkit as forked
from tests.command import labkit_in_a_process as labkit

PAGE = (Path(__file__).parents[2] / "docs" / "own-training.md").read_text()
GOOD = """import torch
model = torch.nn.Linear(2, 1)
data = (torch.ones(8, 2), torch.ones(8, 1))
def loss(m, b): return 0
"""


def test_the_example_of_the_page_trains_validates_logs_and_leaves_the_best_state(tmp_path: Path) -> None:
    found = re.search(r'```python title="(.*?)"\n(.*?)```\n\n```text\nlabkit (.*?)\n```', PAGE, re.DOTALL)
    assert found is not None
    (tmp_path / found[1]).write_text(found[2])
    done = labkit(*shlex.split(found[3]), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["model"] == "mine"
    assert told["validations"] >= 5
    assert told["best"]["accuracy"] > 0.9
    assert told["last_loss"] < told["first_loss"]
    names = {row["name"] for row in csv.DictReader((tmp_path / "log.csv").read_text().splitlines())}
    assert names == {"loss", "accuracy", "validation/loss", "validation/accuracy"}
    state = torch.load(tmp_path / "best.pt")
    assert {name: tuple(part.shape) for name, part in state.items()}["0.weight"] == (32, 2)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1", r"defines no 'model'; expected model\(\), data\(\) and loss"),
        (GOOD.replace("def loss", "def losses"), "defines no 'loss'; .* It has 'losses'"),
        ("import torch\n\n1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
        ("def f(:", "line 1: SyntaxError"),
        ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        ("def model():\n    raise KeyError('x')\ndata, loss = [1], len\n", r"line 2: model\(\) raised KeyError: 'x'"),
        (GOOD + "options = 3", "options is a int; expected a dict"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=rf"mine\.py.*{what}") as caught:
        read_training(tmp_path / "mine.py", seed=0)
    assert "\n" not in str(caught.value)


def test_a_file_is_read_with_its_objects_and_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("WIDTH = 2\n")
    text = GOOD + "schedule = lambda step: 1.0\nimport sys\noptions = {'batch': int(sys.argv[1])}\n"
    (tmp_path / "mine.py").write_text("from beside_it import WIDTH\n" + text)
    found = read_training(tmp_path / "mine.py", seed=0, args=["4"])
    assert found.options == {"batch": 4}
    assert len(found.data) == 8
    assert found.schedule is not None
    assert found.validation_data is None


def test_what_is_typed_counts_more_than_the_file_and_that_more_than_defaults() -> None:
    training = OwnTraining(
        None, None, lambda model, batch: 0, schedule=float, options={"lr": 0.1, "batch": 7, "seed": 1}
    )
    found = arguments_of(training, {"lr": None, "batch": 32, "seed": 5, "workers": 2}, typed={"seed"})
    assert found == {"lr": 0.1, "batch": 7, "seed": 5, "workers": 2, "schedule": float}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("mine.py", "--width", "2"), "--width is of models of the catalogue; mine.py says"),
        (("mine.py", "--patience", "2"), "--patience: there are no samples to validate with"),
        (("cnn", "--validate-every", "2"), "--validate-every: there are no samples to validate with"),
        (("mine.py", "--out", "best.txt"), "best.txt"),
        (("mine.py", "--csv", "nowhere/log.csv"), "nowhere/log.csv cannot be written"),
        (("mine.py", "--precision", "fp8"), "precision is 'fp8'"),
        (("cnn", "3"), "'3' behind cnn: a model of the catalogue takes no arguments"),
        (("missing.py",), "missing.py: there is no such file"),
        (("pipe.py",), "pipe.py: there is no such file"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(words: tuple[str, ...], what: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD)
    os.mkfifo(tmp_path / "pipe.py")
    done = forked("train", *words, "--steps", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert what in done.stderr
    assert len(done.stderr.splitlines()) == 1


SPEAKS = """import subprocess, warnings, torch
from torch import nn
model = nn.Linear(2, 1)

class Data:
    child = None

    def __len__(self):
        return 32

    def fetch(self, indices):
        if self.child is None:
            self.child = subprocess.Popen(["sleep", "98765"], start_new_session=True)
            print("child", self.child.pid, subprocess.Popen(["sleep", "98765"]).pid)
            warnings.warn("a warning of my data")
        return (torch.ones(len(indices), 2), torch.ones(len(indices), 1))

data = Data()

def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])
"""


def test_what_user_code_prints_is_shown_and_kept_and_what_it_starts_ends_with_its_worker(tmp_path: Path) -> None:
    """Before, prints and warnings were in a log that was removed; children stayed, with a parent of 1."""
    sleep = ["sleep", f"98765.{os.getpid()}"]
    (tmp_path / "mine.py").write_text(SPEAKS.replace("98765", sleep[1]))
    words = ("mine.py", "--steps", "4", "--workers", "2", "--servers", "1", "--lr", "0.1", "--folder", "job")
    done = labkit("train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr
    said = re.findall(r"^worker-(\d): child (\d+) (\d+)$", shown, re.MULTILINE)
    assert {number for number, *_ in said} == {"0", "1"}
    assert "UserWarning: a warning of my data" in shown
    assert re.search(r"labkit: what members print is in their logs in .*job", shown)
    assert "labkit: proved in evaluation mode: pickling changes no bit of a gradient, the mean of 8 shards" in shown
    assert "child" in (tmp_path / "job" / "worker-0.log").read_text()
    assert not [pid for pid in all_pids() if command_line(pid) == sleep]  # nor those of the proof
