"""A sweep on a Dask cluster of real processes: the same numbers as on a pool."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import distributed
import psutil
import pytest

from labkit.core.errors import InputError
from labkit.experiment import sweep
from labkit.experiment.on_dask import connect
from labkit.results import read_sweep
from tests.experiment.sweeping import Dying, Raising, numbers, small

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:tornado")


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    """Lend a cluster of two processes on loopback, which are gone afterwards."""
    before = set(psutil.Process().children(recursive=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        local = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
            worker_dashboard_address=None,
        )  # fmt: skip
    with local:
        yield local
    new = set(psutil.Process().children(recursive=True)) - before
    left = [process for process in new if "resource_tracker" not in " ".join(process.cmdline())]
    assert psutil.wait_procs(left, timeout=30)[1] == []


@pytest.fixture
def client(cluster) -> Iterator[distributed.Client]:
    with connect(cluster.scheduler_address) as client:
        yield client


def test_a_dask_cluster_gives_the_numbers_of_a_pool_and_the_caller_keeps_them(client, tmp_path):
    grid = small(mtbf_s=3000, mttr_s=300, seeds=2)
    table = sweep(grid, client=client, folder=tmp_path, keep=True, progress=False)
    assert table["n_failures"].sum() > 0
    assert numbers(table).equals(numbers(sweep(grid, workers=1, progress=False)))
    assert numbers(read_sweep(tmp_path)).equals(numbers(table))
    assert all((Path(run) / "run.json").exists() for run in table["run"])


def test_a_cell_that_fails_there_is_a_row_and_the_same_cells_run_again(client, tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    grid = small(schedulers={"fifo": "fifo", "raising": Raising(str(obstacle))}, seeds=2)
    table = sweep(grid, client=client, folder=tmp_path / "s", progress=False)
    assert table["error"].tolist() == [""] * 2 + ["RuntimeError: the file is there"] * 2
    obstacle.unlink()
    assert sweep(grid, client=client, folder=tmp_path / "s", progress=False)["error"].tolist() == [""] * 4


def test_a_cell_that_ends_its_workers_there_has_failed_and_the_others_go_on(client):
    grid = small(schedulers={"fifo": "fifo", "dying": Dying("exit")}, seeds=1)
    table = sweep(grid, client=client, progress=False)
    assert table["error"].tolist() == ["", "the worker processes that had it died, each time with this cell"]


def test_nothing_of_a_sweep_stays_on_the_cluster(client):
    sweep(small(seeds=1), client=client, progress=False)
    plugins = client.run(lambda dask_worker: [name for name in dask_worker.plugins if "labkit" in str(name)])
    assert plugins  # one of the two workers may be starting again
    assert not any(plugins.values())


def test_an_address_at_which_nobody_answers_is_told(monkeypatch):
    monkeypatch.setattr("labkit.experiment.on_dask.CONNECT_S", 1.0)
    with (
        pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1 "),
        connect("tcp://127.0.0.1:1"),
    ):
        pass
