"""`labkit train-policy marl`: going on after SIGKILL, its log, workers of a Dask cluster, and what is typed wrong."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from labkit.cli.train_policy import marl_trainer
from labkit.core.errors import InputError
from labkit.schedulers.marl.weights import load
from tests.dask_cluster import local_cluster
from tests.hang import HANG_S

CLUSTER = "vl2(4, 2, per_rack=3, gbps=(10, 20, 40))"
TRACE = "marl_jobs(load=2, n_pods=2, n_slots=4, per_slot=2)"
SMALL = ("--cluster", CLUSTER, "--trace", TRACE, "--lessons", "2", "--rounds", "4", "--keep-every", "1",
         "--set", "n_fits=5", "--set", "n_draws=2", "--out", "w.safetensors")  # fmt: skip
WORDS = (sys.executable, "-m", "labkit", "train-policy", "marl")


def labkit(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WORDS, *SMALL, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=HANG_S
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    done = labkit("--log", "tb", "--figure", "f.svg", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "6 of 6 round" in done.stderr
    return folder


def same(one: Path, other: Path) -> bool:
    nets = (load(folder / "w.safetensors").net for folder in (one, other))
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(*nets, strict=True))


def rows(folder: Path) -> list[list[str]]:
    """Return a log without the processor's seconds, which no two runs share."""
    with (folder / "w.csv").open() as file:
        return [row[:-1] for row in csv.reader(file)]


def test_a_training_that_was_killed_goes_on_and_has_the_weights_of_one_that_was_not(whole, tmp_path):
    for n_lines in (1, 2):
        process = subprocess.Popen([*WORDS, *SMALL], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        while n_lines:
            line = process.stderr.readline()
            assert line, "it ended before"
            n_lines -= " of 6 " in line and "mean JCT" in line
        process.kill()
        process.communicate()
    done = labkit(cwd=tmp_path)
    assert "going on after " in done.stderr, done.stderr
    assert same(tmp_path, whole)
    assert rows(tmp_path) == rows(whole)


def test_a_training_leaves_a_curve_and_what_tensorboard_reads(whole):
    assert [row[:2] for row in rows(whole)[1:]] == [[str(k + 1), "lesson" if k < 2 else "round"] for k in range(6)]
    assert (whole / "f.svg").read_text().startswith("<svg")
    pytest.importorskip("tensorboardX", reason="TensorBoard's files are written by tensorboardX")
    assert list((whole / "tb").iterdir())


@pytest.fixture
def scheduler() -> Iterator[str]:
    with local_cluster() as local:
        yield local.scheduler_address


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:tornado")
def test_a_training_on_a_dask_cluster_has_the_same_weights(whole, tmp_path, scheduler):
    done = labkit("--dask", scheduler, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert same(tmp_path, whole)


def trainer(*given: str, cluster: str = CLUSTER):
    return marl_trainer([cluster], [TRACE], interference="mild", seed=1, options={}, switches=given)


def test_weights_are_shared_by_pods_or_each_pod_has_its_own():
    assert trainer().recipe.n_agents == 1
    assert trainer("shared=True").recipe.n_agents == 1
    assert trainer("shared=False").recipe.n_agents == 2
    assert trainer("shared=False").policy.net().first.shape[0] == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("sharde=False", "unknown switch of marl 'sharde'. Did you mean 'shared'?"),
        ("shared=perhaps", "--set shared=perhaps: expected True"),
        ("n_draws=few", "--set n_draws=few: 'few' is not a valid value; expected one such as 4"),
    ],
)
def test_bad_switches_are_refused_in_one_line(given, told):
    with pytest.raises(InputError, match=r"\A[^\n]*\Z") as error:
        trainer(given)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--published", "--dask", "tcp://127.0.0.1:1"], "learns after each interval of a trace, in one process"),
        (["--dask", "tcp://127.0.0.1:1"], "no Dask scheduler answers at tcp://127.0.0.1:1"),
        (["--interference", "none.json"], "none.json: there is no such file; `labkit profile` measures one"),
        (["--warm-up", "drf"], "leave --warm-up and --throughputs out"),
    ],
)
def test_what_is_typed_wrong_is_one_line(words, told, tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.experiment.on_dask.CONNECT_S", 0.5)
    from typer.testing import CliRunner

    from labkit.cli.app import app

    done = CliRunner().invoke(app, ["train-policy", "marl", *SMALL[:-1], str(tmp_path / "w.safetensors"), *words])
    assert done.exit_code != 0
    assert told in str(done.exception) + done.output
