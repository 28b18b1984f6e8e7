"""`labkit train-policy`: weights and state, going on, and what is typed wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.schedulers.dl2 import load

SHORT = ("--trace", "dl2_jobs('testbed_6n')", "--cluster", "dl2-6n", "--slot", "300", "--lessons", "1")


def labkit(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labkit.cli", *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


def test_a_policy_is_trained_and_compared_and_the_same_call_goes_on(tmp_path):
    done = labkit("train-policy", "dl2", *SHORT, "--rounds", "1", "--out", "mine.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dl2(weights='mine.safetensors')" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.safetensors", "mine.state"]
    kept = load(tmp_path / "mine.safetensors")
    assert kept.source.startswith("labkit train-policy dl2 --trace")
    assert kept.slot_s == 300
    again = labkit("train-policy", "dl2", *SHORT, "--rounds", "1", "--out", "mine.safetensors", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "going on after 2 of 2 updates" in again.stderr
    other = labkit("train-policy", "dl2", *SHORT, "--rounds", "2", "--out", "mine.safetensors", cwd=tmp_path)
    assert other.returncode == 2
    assert "has n_rounds 1; expected 2" in other.stderr
    compared = labkit(
        "compare", "dl2_jobs('testbed_6n')", "--cluster", "dl2-6n", "--slot", "300", "--json", "--schedulers",
        "fifo,dl2(weights='mine.safetensors')", cwd=tmp_path,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    assert len([json.loads(line) for line in compared.stdout.splitlines()]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dl3"], "unknown policy 'dl3'. Did you mean 'dl2'?"),
        (["dl2", "--slot", "0"], "--slot is 0.0; expected seconds > 0."),
        (["dl2", "--rounds", "-1"], "--rounds is -1; expected a number of updates >= 0."),
        (["dl2", "--trace", "x.csv"], "trace x.csv is a file; expected a generator"),
        (["dl2", "--cluster", "dl2-17n"], "dl2-17n"),
        (["dl2", "--out", "weights.txt"], ".safetensors"),
    ],
)
def test_what_is_typed_wrong_is_one_line(words, told, tmp_path):
    done = labkit("train-policy", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "mine.state").write_bytes(b"no")
    done = labkit("train-policy", "dl2", *SHORT, "--out", "mine.safetensors", cwd=tmp_path)
    assert done.returncode == 2
    assert "mine.state: not the state of a training" in done.stderr
    assert len(done.stderr.splitlines()) == 1
