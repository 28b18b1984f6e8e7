"""`labkit new scheduler`: what it writes works as it is, and overwrites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.templates import new_scheduler

BESIDE = Path(sys.executable).parent


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    found = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, env=found)


def test_scheduler_test_and_notebook_work_as_they_are(tmp_path):
    told = run("-m", "labkit", "new", "scheduler", "my_idea", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_idea.ipynb", "my_idea.py", "test_my_idea.py"]
    assert "--schedulers 'fifo,my_idea.py:MyIdea' --seeds 5" in told.stdout
    tested = run("-m", "pytest", "-q", "-p", "no:nbval", "-p", "no:cacheprovider", "test_my_idea.py", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout
    cells = json.loads((tmp_path / "my_idea.ipynb").read_text())["cells"]
    code = "\n".join(
        cell["source"].replace("%load_ext", "# %load_ext") for cell in cells if cell["cell_type"] == "code"
    )
    (tmp_path / "cells.py").write_text(code.replace("seeds=10", "seeds=2").replace("poisson(40", "poisson(20"))
    done = run("cells.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my-idea", "'my-idea' cannot name a scheduler's file; expected letters, digits and '_': smallest_first."),
        ("class", "'class' cannot name"),
        ("../out", "cannot name"),
        ("numpy", "'numpy' is the name of an installed module"),
        ("there", r"test_there.py is there already, and stays as it is; take another name or another --folder."),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_written(name, told, tmp_path):
    (tmp_path / "test_there.py").write_text("mine")
    with pytest.raises(InputError, match=told):
        new_scheduler(name, folder=tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["test_there.py"]
    assert (tmp_path / "test_there.py").read_text() == "mine"
