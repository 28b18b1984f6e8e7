"""`labkit train-policy dl2 --published`: from switches to weights to a row of a table, and what is typed wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit.cli.app import app
from labkit.core import InputError
from labkit.learning.settings import Setting
from labkit.schedulers import make
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2.federated import Federated
from reproductions.dl2.scheduler import load_flat
from reproductions.dl2.switches import Published
from reproductions.switches import read_switch
from tests.command import labkit

SHORT = ("--trace", "dl2_jobs('testbed_6n')", "--cluster", "dl2-6n", "--slot", "300", "--lessons", "1", "--rounds", "1")
FAST = ("--set", "n_units=16", "--set", "n_taught=2", "--set", "first_bundle=True", "--set", "n-jobs=8")


def test_the_papers_own_network_is_trained_and_compared(tmp_path):
    train = ("train-policy", "dl2", "--published", "--warm-up", "drf", *SHORT, *FAST, "--out", "mine.safetensors")
    done = labkit(*train, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dl2(published=True, weights='mine.safetensors')" in done.stdout
    kept = load_flat(tmp_path / "mine.safetensors")
    assert (kept.form.n_jobs, kept.form.first_bundle, kept.slot_s) == (8, True, 300)
    assert kept.source.startswith("labkit train-policy dl2 --published --warm-up drf")
    again = labkit(*train, cwd=tmp_path)
    assert "going on after 2 of 2 updates" in again.stderr
    compared = labkit(
        "compare", "dl2_jobs('testbed_6n')", "--cluster", "dl2-6n", "--slot", "300", "--json", "--schedulers",
        "drf,dl2(published=True, weights='mine.safetensors')", cwd=tmp_path,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    assert len([json.loads(line) for line in compared.stdout.splitlines()]) == 2
    with pytest.raises(InputError, match=r"expected 'dl2', '2'\. With published=True it may be what you want\."):
        make(f"dl2(weights='{tmp_path}/mine.safetensors')")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--published", "--set", "replay"], "--set replay has no value; expected NAME=VALUE, e.g. replay=8192."),
        (["--published", "--set", "repley=0"], "unknown switch 'repley'. Did you mean 'replay'?"),
        (["--published", "--set", "replay=x"], "--set replay is 'x'; expected a whole number."),
        (["--published", "--set", "actor_critic=1"], "--set actor_critic is '1'; expected True or False."),
        (["--published", "--warm-up", "srft", *SHORT], "unknown scheduler 'srft'. Did you mean 'srtf'?"),
        (["--dask", "tcp://127.0.0.1:9"], "--dask tcp://127.0.0.1:9 is a switch of DL2's own network"),
        (["--published", "--set", "clusters=0"], "clusters is 0; expected a whole number >= 1."),
        (
            ["--published", "--trace", "poisson(20, per_hour=12)", "--cluster", "marl-testbed"],
            "the teacher cannot run trace",
        ),
        (["--published", "--quotas", "user=4"], "--quotas: dl2 as published learns in simulations of its own, which"),
        (["--set", "replay=0"], "--set replay=0 is a switch of DL2's own network; expected it with --published."),
    ],
)
def test_what_is_typed_wrong_is_one_line(words, told, tmp_path):
    done = labkit("train-policy", "dl2", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dask_scheduler_that_does_not_answer_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.experiment.on_dask.CONNECT_S", 0.5)
    words = ["--set", "clusters=2", "--dask", "tcp://127.0.0.1:9", "--out", str(tmp_path / "w.safetensors")]
    done = CliRunner().invoke(app, ["train-policy", "dl2", "--published", *words])
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_switches_are_read_by_their_types():
    told = [
        read_switch(text, Published(), what="switch")
        for text in ("replay=0", "rate=1e-3", "stale=true", "rules=released", "n-jobs=5")
    ]
    assert told == [("replay", 0), ("rate", 1e-3), ("stale", True), ("rules", "released"), ("n_jobs", 5)]


def test_clusters_at_once_are_processes_and_give_the_weights_that_they_give_in_one(tmp_path):
    train = ("train-policy", "dl2", "--published", *SHORT, *FAST, "--set", "clusters=2", "--out", "mine.safetensors")
    done = labkit(*train, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    switches = Published(n_jobs=8, n_units=16, n_taught=2, first_bundle=True, n_lessons=1, n_rounds=1, clusters=2)
    setting = Setting(["dl2-6n"], ["dl2_jobs('testbed_6n')"])
    here = Federated(setting, DL2_MODELS, 300.0, seed=1, switches=switches)
    list(here.updates())
    kept = load_flat(tmp_path / "mine.safetensors")
    assert all(np.array_equal(one, other) for one, other in zip(kept.net, here.weights("").net, strict=True))
