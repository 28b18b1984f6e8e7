"""Measured speeds against DL2's published data and scipy's interpolation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, ProfileError
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.running import Running
from labkit.speed.measured import MeasuredSpeed, SpeedTable

Shared = Callable[[str], Path]

PUBLISHED = {
    # rows, batch, speed(1, 1), max speed, at (PS, workers), zero rows
    "resnet-50": (210, 32, 15.783, 67.79, (20, 2), 0),
    "vgg-16": (210, 32, 9.554, 28.435, (14, 1), 8),
    "resnext-110": (57, 128, 382.822, 507.367, (5, 1), 0),
    "inception-bn": (57, 128, 169.822, 326.187, (17, 5), 1),
    "seq2seq": (57, 64, 276.705, 573.703, (17, 3), 0),
    "cnn-text-classification": (78, 50, 61.867, 100.104, (5, 5), 0),
    "dssm": (78, 256, 462.228, 1197.863, (19, 5), 0),
    "wlm": (57, 160, 161.951, 497.871, (5, 1), 0),
}


@pytest.fixture(scope="module")
def table(shared_data: Shared) -> SpeedTable:
    return SpeedTable.read(shared_data("dl2/config_speed.txt"))


@pytest.fixture
def small() -> SpeedTable:
    return SpeedTable.of(
        ["a"] * 4 + ["b"] * 2, n_ps=[1, 1, 2, 2, 1, 2], n_workers=[1, 2, 1, 2, 1, 1], samples_per_s=[8, 6, 12, 0, 3, 4],
        batch=[4] * 4 + [2] * 2,
    )  # fmt: skip


def cluster() -> Cluster:
    return Cluster(
        name="one machine", machines=("m",), device_types=("v100", "k80"), group_machine=np.zeros(1, np.int32),
        group_type=np.zeros(1, np.int32), capacity=np.full((1, 3), 64.0), group_pcie_gbps=np.full(1, 128.0),
        machine_socket_gbps=np.full(1, 300.0), partition=np.zeros(1, np.int32),
    )  # fmt: skip


def running(job: list[int], n_ps: list[int], n_workers: list[int]) -> Running:
    return Running(
        np.array(job, np.int32), np.zeros(len(job) + 1, np.int32), np.zeros(0, np.int8), np.zeros(0, np.int32),
        np.zeros(0, np.int32), np.array(n_workers, np.int32), np.array(n_ps, np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("model", PUBLISHED)
def test_dl2s_measurements_are_the_published_ones(table: SpeedTable, model: str) -> None:
    n_rows, batch, at_one, fastest, gang, n_zero = PUBLISHED[model]
    n_ps, n_workers, speed = table.rows(model)
    best = int(speed.argmax())
    assert len(speed) == n_rows
    assert table.batch[table.code(model)] == batch
    assert speed[(n_ps == 1) & (n_workers == 1)] == pytest.approx([at_one], abs=5e-4)
    assert speed[best] == pytest.approx(fastest, abs=5e-4)
    assert (n_ps[best], n_workers[best]) == gang
    assert (speed == 0).sum() == n_zero


def test_dl2_measured_804_gangs(table: SpeedTable) -> None:
    assert len(table) == 804
    assert set(table.models) == set(PUBLISHED)


@pytest.mark.parametrize("model", PUBLISHED)
def test_interpolation_is_exact_at_the_measured_gangs(table: SpeedTable, model: str) -> None:
    n_ps, n_workers, speed = table.rows(model)
    assert table.interpolate(model, n_ps=n_ps, n_workers=n_workers) == pytest.approx(speed, abs=1e-9)


@pytest.mark.parametrize("model", PUBLISHED)
def test_interpolation_agrees_with_scipys_rbf(table: SpeedTable, model: str) -> None:
    from scipy.interpolate import Rbf

    n_ps, n_workers, speed = table.rows(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = Rbf(n_ps, n_workers, speed, function="linear")
    grid = table.grid(model, max_ps=17, max_workers=17)
    p, w = np.meshgrid(np.arange(1, 18), np.arange(1, 18), indexing="ij")
    assert grid[1:, 1:] == pytest.approx(peer(p, w), abs=1e-9)
    assert not grid[0].any()
    assert not grid[:, 0].any()


def test_only_a_clipped_grid_is_never_negative(table: SpeedTable) -> None:
    published = table.grid("vgg-16", max_ps=32, max_workers=32)
    clipped = table.grid("vgg-16", max_ps=32, max_workers=32, clip=True)
    assert published.min() < 0
    assert np.array_equal(clipped, np.maximum(published, 0))


def test_a_failed_measurement_stays_a_hole_in_the_speeds(small: SpeedTable) -> None:
    assert small.grid("a", max_ps=2, max_workers=2)[2, 2] == pytest.approx(0, abs=1e-12)


def test_a_table_survives_its_own_csv(small: SpeedTable, tmp_path: Path) -> None:
    small.to_frame().to_csv(tmp_path / "speeds.csv", index=False)
    back = SpeedTable.read(tmp_path / "speeds.csv")
    assert back.models == small.models
    for column in ("model", "n_ps", "n_workers", "samples_per_s", "batch"):
        assert np.array_equal(getattr(back, column), getattr(small, column))


def test_steps_per_second_are_samples_per_second_over_the_batch(small: SpeedTable) -> None:
    jobs = Jobs.of(
        arrival_s=[0, 0], total_steps=[10, 30], model=["a", "b"], n_workers=1, n_ps=1, max_workers=2, max_ps=2
    )
    model = MeasuredSpeed(jobs, cluster(), table=small)
    assert isinstance(model, SpeedModel)
    assert model.local
    assert model.speeds(running([0, 1], [2, 1], [1, 1])) == pytest.approx([12 / 4, 3 / 2])
    assert model.durations_s() == pytest.approx([10 / (8 / 4), 30 / (3 / 2)])
    assert model.runs_on().shape == (2, 2)
    assert model.runs_on().all()


def test_a_step_is_as_many_samples_as_the_jobs_say(small: SpeedTable) -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=10, model=["a", "b"], n_ps=1, max_ps=2, samples_per_step=[1, np.nan])
    model = MeasuredSpeed(jobs, cluster(), table=small)
    assert model.speeds(running([0, 1], [2, 1], [1, 1])) == pytest.approx([12, 3 / 2])


def test_the_unit_of_work_is_an_option(small: SpeedTable) -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=10, model="a", n_ps=1, max_ps=2)
    model = MeasuredSpeed(jobs, cluster(), table=small, samples_per_step={"a": 16})
    assert model.speeds(running([0], [1], [1])) == pytest.approx([0.5])
    with pytest.raises(InputError, match="unknown model in samples_per_step 'a'"):
        MeasuredSpeed(jobs, cluster(), table=small, samples_per_step={"b": 16})
    with pytest.raises(InputError, match="'a' is 0; expected a number > 0"):
        MeasuredSpeed(jobs, cluster(), table=small, samples_per_step={"a": 0})


def test_without_a_ps_or_a_worker_nothing_moves(small: SpeedTable) -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=10, model="a", n_workers=2, n_ps=2)
    model = MeasuredSpeed(jobs, cluster(), table=small)
    assert model.speeds(running([0, 0], [0, 1], [1, 0])).tolist() == [0, 0]
    assert np.isnan(model.durations_s()).all() or model.durations_s()[0] > 1e12  # the asked gang was the failed one


def test_jobs_the_table_cannot_serve_are_refused(small: SpeedTable) -> None:
    with pytest.raises(InputError, match=r"unknown model of the speed table 'aa'\. Did you mean 'a'"):
        MeasuredSpeed(Jobs.of(arrival_s=0, total_steps=1, model="aa", n_ps=1), cluster(), table=small)
    with pytest.raises(InputError, match=r"job 0 may use no parameter server \(max_ps = 0\), and 0 more"):
        MeasuredSpeed(Jobs.of(arrival_s=0, total_steps=1, model="a"), cluster(), table=small)


DL2_LINE = "('a', 'dist_sync', 32, {p}, {w}, {speeds}, [1.9], [0.5])\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DL2_LINE.format(p=1, w=1, speeds="[1.0]") + "('a', 'dist_sync', 32\n", "line 2, character"),
        (DL2_LINE.format(p=1, w=1, speeds="[nan]"), r"line 1, character 30, speeds: \[nan\].*drop the row or measure"),
        (DL2_LINE.format(p=0, w=1, speeds="[1.0]"), "line 1, character 24, num_ps: 0; expected a whole number >= 1"),
        (DL2_LINE.format(p=1, w=2, speeds="[1.0]"), "expected a list of 2 speeds, one per worker"),
        (DL2_LINE.format(p=1, w=1, speeds="[-1.0]"), "-1.0; expected samples/s >= 0"),
        ("('a', 1)\n", "2 columns; expected 8"),
        ("(1, 'x', 32, 1, 1, [1.0], [], [])\n", "expected a name in quotes"),
        ("('a', f(), 32, 1, 1, [1.0], [], [])\n", "expected a plain value"),
        ("model,n_ps,n_workers,samples_per_s\na,1,1,nan\na,x,1,2\na,1,1\n", "3 faults.*line 2.*line 3.*line 4"),
        ("model,n_ps,n_workers,samples_per_s,batch\na,1,1,2,0\n", "line 2, column batch: 0.0; expected samples > 0"),
        ("model,n_ps,n_workers\na,1,1\n", "column samples_per_s is missing"),
        ("", "no measurements"),
        ("model,n_ps,n_workers,samples_per_s\na,1,1,2\na,1,1,3\na,1,2,3\n", "1 PS and 1 workers occurs 2 times"),
        (
            "model,n_ps,n_workers,samples_per_s\na,1,1,2\n",
            "one gang was measured; interpolation needs at least one more",
        ),
        ("model,n_ps,n_workers,samples_per_s,batch\na,1,1,2,1\na,1,2,2,3\n", "the batch changes between rows"),
    ],
)
def test_faults_of_a_file_are_told_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "speeds"
    path.write_text(text)
    with pytest.raises(ProfileError, match=said):
        SpeedTable.read(path)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such file"):
        SpeedTable.read(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x9f")
    with pytest.raises(ProfileError, match="not a text file"):
        SpeedTable.read(tmp_path / "binary")
    (tmp_path / "misspelt.csv").write_text("modle,n_ps\n")
    with pytest.raises(InputError, match="Did you mean 'model'"):
        SpeedTable.read(tmp_path / "misspelt.csv")


def test_columns_that_make_no_sense_are_refused_together() -> None:
    with pytest.raises(ProfileError, match=r"2 faults: row 1 \(a\): n_ps is 0.*samples_per_s is nan.*measure it again"):
        SpeedTable.of(["a", "a"], n_ps=[0, 1], n_workers=1, samples_per_s=[1, np.nan])
    with pytest.raises(ProfileError, match="no measurements"):
        SpeedTable.of([], n_ps=[], n_workers=[], samples_per_s=[])
