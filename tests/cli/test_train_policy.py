"""`labkit train-policy`: weights and state, going on, and what is typed wrong."""

from __future__ import annotations

import csv
import json
import signal
import struct
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit.core import InputError, LabkitError
from labkit.core.resources import GPUS
from labkit.experiment import Experiment
from labkit.learning.judging import RIVALS, advice
from labkit.learning.training import Course, refuse_unfit_episodes
from labkit.plots.training import learning_curve
from labkit.results.sweeps import cell_table
from labkit.schedulers.dl2 import load
from labkit.topology import build
from labkit.workloads import dl2_jobs
from tests.command import labkit
from tests.hang import HANG_S
from tests.learning.trainers import dl2_trainer

SMALL = ("--trace", "dl2_jobs('testbed_6n')", "--cluster", "dl2-6n", "--slot", "300")
SHORT = (*SMALL, "--lessons", "1", "--held-out", "2")


def test_a_policy_is_trained_and_compared_and_the_same_call_goes_on(tmp_path):
    done = labkit("train-policy", "dl2", *SHORT, "--rounds", "1", "--out", "mine.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dl2(weights='mine.safetensors')" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "mine.safetensors", "mine.state"]
    kept = load(tmp_path / "mine.safetensors")
    assert kept.source.startswith("labkit train-policy dl2 --trace")
    assert kept.slot_s == 300
    again = labkit("train-policy", "dl2", *SHORT, "--rounds", "1", "--out", "mine.safetensors", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "going on after 2 of 2 updates" in again.stderr
    other = labkit("train-policy", "dl2", *SHORT, "--rounds", "2", "--out", "mine.safetensors", cwd=tmp_path)
    assert other.returncode == 2
    assert "mine.state: the training to continue with has n_rounds 1; expected 2" in other.stderr
    other = labkit("train-policy", "dl2", "--published", *SHORT, "--out", "mine.safetensors", cwd=tmp_path)
    assert other.returncode == 2
    assert "mine.state: the training to continue with is that of another kind of policy: it has no " in other.stderr
    assert len(other.stderr.splitlines()) == 1
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
        (["dl2", "--trace", "x.csv"], "x.csv: there is no such file; expected a trace"),
        (["dl2", "--trace", "testbed"], "trace testbed has 3 jobs; expected 40 or more"),
        (["dl2", "--cluster", "dl2-17n"], "dl2-17n"),
        (["dl2", "--out", "weights.txt"], ".safetensors"),
        (["dl2", "--out", "none/w.safetensors"], "the folder none is not there; make it, or name another one."),
        (["dl2", "--out", "/proc/w.safetensors"], "/proc: nothing can be written there"),
        (["dl2", "--figure", "none/f.html"], "none/f.html: the folder none is not there; make it"),
        (["dl2", "--figure", "f.pdf"], "f.pdf ends in '.pdf'; expected .html or .svg or .png or .json."),
        (["dl2", "--log", "/dev/null"], "--log /dev/null is a file; expected a folder."),
        (["dl2", "--prices", "v100=2"], "--prices: a policy learns to shorten jobs, whatever they cost; leave it out."),
        (["dl2", "--mtbf", "9"], "these go together: mtbf_s, mttr_s, checkpoint_s."),
        (["dl2", "--quotas", "usr=4"], "usr"),
        (["dl2", "--scenario", "none.toml"], "none.toml: there is no such file; check the path."),
        (["marl", "--quotas", "user=4"], "--quotas: marl learns in simulations of its own, which do not know it;"),
    ],
)
def test_what_is_typed_wrong_is_one_line(words, told, tmp_path):
    done = labkit("train-policy", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


SCENARIO = """
trace = "dl2_jobs('testbed_6n')"
cluster = "dl2-6n"
slot_s = 300
quotas = "user=4"
mtbf_s = 20000
mttr_s = 600
"""


def test_a_policy_is_trained_and_judged_in_a_scenario_which_its_weights_tell(tmp_path):
    (tmp_path / "hard.toml").write_text(SCENARIO)
    words = ("train-policy", "dl2", "--scenario", "hard.toml", "--lessons", "1", "--rounds", "0", "--held-out", "2")
    one, again, other = (
        labkit(*words, *more, "--out", f"{name}.safetensors", cwd=tmp_path)
        for name, more in (("one", []), ("again", []), ("other", ["--rescale", "60"]))
    )
    assert (one.returncode, again.returncode, other.returncode) == (0, 0, 0), one.stderr + again.stderr + other.stderr
    assert one.stdout.replace("one.", "again.") == again.stdout
    assert same(tmp_path / "one.safetensors", tmp_path / "again.safetensors")
    assert not same(tmp_path / "one.safetensors", tmp_path / "other.safetensors")
    rows = [line.split()[0] for line in one.stdout.splitlines() if line.startswith(" ")]
    assert [row for row in rows if row in ("dl2", *RIVALS["dl2"])] == ["dl2", *RIVALS["dl2"]]
    assert one.stdout.splitlines()[-1].startswith("use ")
    told = load(tmp_path / "other.safetensors").scenario
    assert told == tomllib.loads(SCENARIO) | {"rescale_s": 60}
    shown = labkit("weights", "show", "other.safetensors", cwd=tmp_path).stdout
    assert '"quotas": "user=4"' in shown
    wrong = labkit(*words, "--rescale", "9", "--out", "other.safetensors", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "the training to continue with has scenario's rescale_s 60.0; expected 9.0." in wrong.stderr


def test_windows_of_a_file_are_learned_from_at_the_speeds_that_suit_it(tmp_path):
    rows = Path(__file__).parents[2].joinpath("traces", "demo.csv").read_text().splitlines(keepends=True)
    (tmp_path / "short.csv").write_text("".join(rows[:42]))  # the fewer windows, the less is simulated
    words = ("--trace", "short.csv", "--cluster", "demo", "--lessons", "1", "--rounds", "0", "--held-out", "0")
    done = labkit("train-policy", "dl2", *words, "--out", "w.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "w.safetensors").scenario == {"trace": "short.csv", "cluster": "demo", "slot_s": 1200}


def test_advice_names_the_best_scheduler_and_what_is_not_shown():
    def table(**jcts: list[float]) -> pd.DataFrame:
        rows = [
            {"keys": {"trace": "t", "scheduler": name, "seed": k}, "error": "", "run": "", "metrics": {"mean_jct_s": s}}
            for name, values in jcts.items()
            for k, s in enumerate(values)
        ]
        return cell_table(rows, axes={"trace": ["t"], "scheduler": list(jcts), "seed": [0, 1, 2]})

    better = table(dl2=[90, 101, 79], srtf=[100, 111, 90], drf=[200, 210, 190])
    assert advice(better, name="mine") == (
        "use mine: its mean JCT is 10.3% shorter than that of srtf, the best of the others."
    )
    worse = table(dl2=[100, 111, 90], srtf=[90, 101, 79], drf=[200, 210, 190])
    assert advice(worse, name="mine") == ("use srtf: the policy is no better here (its mean JCT is 11.5% longer).")
    unsure = table(dl2=[90, 120, 80], srtf=[100, 100, 95], drf=[200, 210, 190])
    assert advice(unsure, name="mine") == (
        "use srtf: the policy is no better here (its mean JCT is 1.7% shorter, a difference that these traces do not "
        "show for sure)."
    )


def test_a_state_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "mine.state").write_bytes(b"no")
    done = labkit("train-policy", "dl2", *SHORT, "--out", "mine.safetensors", cwd=tmp_path)
    assert done.returncode == 2
    assert "mine.state: not the state of a training" in done.stderr
    assert len(done.stderr.splitlines()) == 1


LONGER = (*SMALL, "--lessons", "3", "--rounds", "6", "--held-out", "0")


def begun(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "labkit", "train-policy", "dl2", *LONGER, "--keep-every", "1", *words], cwd=cwd,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def heard(process: subprocess.Popen[str], n: int) -> None:
    """Read some lines about updates; each comes when weights and state are written."""
    assert process.stderr is not None
    while n:
        line = process.stderr.readline()
        assert line, "it ended before"
        n -= " of 9 " in line and "mean JCT" in line


def same(one: Path, other: Path) -> bool:
    pairs = zip(load(one).net, load(other).net, strict=True)
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def rows(table: Path) -> list[list[str]]:
    """Return a log without the processor's seconds, which no two runs share."""
    with table.open() as file:
        return [row[:-1] for row in csv.reader(file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    done = labkit(
        "train-policy", "dl2", *LONGER, "--out", "w.safetensors", "--log", "tb", "--figure", "f.html", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_training_that_was_killed_goes_on_and_has_the_weights_of_one_that_was_not(whole, tmp_path):
    """SIGKILL at moments that a generator draws, again and again, until one run comes to its end."""
    rng = np.random.default_rng()
    n_kills = 0
    while True:
        process = begun("--out", "w.safetensors", cwd=tmp_path)
        if n_kills == 3:
            _, told = process.communicate(timeout=HANG_S)
            assert process.returncode == 0, told
            assert "going on after " in told
            break
        heard(process, int(rng.integers(1, 3)))
        if rng.random() < 0.5:
            assert process.stderr is not None
            process.stderr.read(int(rng.integers(1, 80)))  # while it says the next one: it has just been written
        process.kill()
        process.communicate()
        n_kills += 1
    assert same(tmp_path / "w.safetensors", whole / "w.safetensors")
    assert rows(tmp_path / "w.csv") == rows(whole / "w.csv")


def test_ctrl_c_saves_tells_how_to_go_on_and_that_goes_on(whole, tmp_path):
    process = begun("--out", "w.safetensors", "--figure", "f.svg", cwd=tmp_path)
    heard(process, 2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "w.safetensors has its weights, the same call continues" in told
    n_done = len(rows(tmp_path / "w.csv")) - 1
    assert 2 <= n_done < 9
    assert f"stopped after {n_done} of 9 updates" in told
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    again = begun("--out", "w.safetensors", cwd=tmp_path)
    _, told = again.communicate(timeout=HANG_S)
    assert again.returncode == 0, told
    assert f"going on after {n_done} of 9 updates" in told
    assert same(tmp_path / "w.safetensors", whole / "w.safetensors")


def test_the_log_has_a_row_for_each_update_and_the_figure_its_running_mean(whole):
    with (whole / "w.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [int(row["update"]) for row in table] == list(range(1, 10))
    assert [row["kind"] for row in table] == ["lesson"] * 3 + ["round"] * 6
    curve = learning_curve(table)
    by_hand = np.mean([float(row["mean_jct_slots"]) for row in table[3:]])
    assert curve["mean"].iloc[-1] == pytest.approx(by_hand)
    assert (learning_curve(table, smoothed=1)["mean"] == curve["mean_jct_slots"]).all()
    assert "Learning curve of w" in (whole / "f.html").read_text()


def test_tensorboard_s_event_files_hold_the_same_numbers_as_the_table(whole):
    pytest.importorskip("tensorboardX", reason="TensorBoard's files are written by tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    found: dict[tuple[str, int], float] = {}
    for path in (whole / "tb").iterdir():
        content, at = path.read_bytes(), 0
        while at < len(content):  # length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", content[at : at + 8])
            event = Event.FromString(content[at + 12 : at + 12 + length])
            found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            at += 16 + length
    with (whole / "w.csv").open() as file:
        for row in csv.DictReader(file):
            for name in ("mean_jct_slots", "loss", "entropy"):
                told = found[f"{row['kind']}/{name}", int(row["update"])]
                assert told == pytest.approx(float(row[name]), rel=1e-5)


def test_a_loss_that_is_no_number_stops_it_with_the_last_good_weights_and_the_update_s_number(tmp_path):
    trainer = dl2_trainer()
    learn, good = trainer._learn, []

    def breaks(rate: float, *, imitates: bool) -> tuple[float, float]:
        if trainer.n_done < 2:
            return learn(rate, imitates=imitates)
        good.append(trainer.policy.net())
        return float("nan"), learn(1e9, imitates=imitates)[1]

    trainer._learn = breaks  # type: ignore[method-assign]
    course = Course(out=tmp_path / "w.safetensors", source="a test", say=lambda _: None)
    with pytest.raises(
        LabkitError, match=r"the loss of update 3 is nan; .* of update 2\. They are in .*w\.safetensors"
    ):
        course.run(trainer)
    kept = load(tmp_path / "w.safetensors").net
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(kept, good[0], strict=True))
    assert len(rows(tmp_path / "w.csv")) == 1 + 2


def test_without_tensorboardx_that_is_said_and_the_table_is_written(tmp_path, monkeypatch):
    from labkit.learning.training import TrainingLog, read

    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with TrainingLog(tmp_path / "w.csv", folder=tmp_path / "tb") as log:
        assert "need tensorboardX (pip install 'cluster-labkit[train]')" in log.missing
    assert read(tmp_path / "w.csv") == []
    assert not (tmp_path / "tb").exists()


def test_a_cluster_without_gpus_is_told_before_anything_is_trained():
    cluster = build("dl2-6n")
    capacity = cluster.capacity.copy()
    capacity[:, GPUS] = 0
    made = Experiment.of(dl2_jobs("testbed_6n", seed=1), cluster=replace(cluster, capacity=capacity))
    with pytest.raises(InputError, match=r"needs 1 GPUs per worker; the largest device group that it can use has 0\."):
        refuse_unfit_episodes(lambda _: made)
    with pytest.raises(InputError, match=r"needs 1 GPUs per worker"):
        made.run("dl2")
