"""A sweep on a Dask cluster of real processes: the same numbers as on a pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import distributed
import psutil
import pytest

from labkit.core.errors import InputError
from labkit.experiment import on_dask, sweep
from labkit.experiment.lengths import Lengths
from labkit.experiment.on_dask import connect
from labkit.results import read_sweep
from tests.dask_cluster import local_cluster
from tests.experiment.sweeping import Dying, Noting, Raising, n_lines, numbers, pids, small, until
from tests.hang import HANG_S

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:tornado")


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    """Lend a cluster of two processes on loopback, which are gone afterwards."""
    before = set(psutil.Process().children(recursive=True))
    with local_cluster() as local:
        yield local
    new = set(psutil.Process().children(recursive=True)) - before
    left = [process for process in new if "resource_tracker" not in " ".join(process.cmdline())]
    assert psutil.wait_procs(left, timeout=HANG_S)[1] == []


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
    told = [error.split(" (")[0] for error in table["error"]]
    assert told == [""] * 2 + ["RuntimeError: the file is there"] * 2
    obstacle.unlink()
    assert sweep(grid, client=client, folder=tmp_path / "s", progress=False)["error"].tolist() == [""] * 4


def test_a_cell_that_ends_its_workers_there_has_failed_and_the_others_go_on(client):
    grid = small(schedulers={"fifo": "fifo", "dying": Dying("exit")}, seeds=1)
    table = sweep(grid, client=client, progress=False)
    assert table["error"].tolist() == ["", "the worker processes that had it died, each time with this cell"]


def test_nothing_of_a_sweep_stays_on_the_cluster(client, monkeypatch):
    """A worker that is starting again may still get what belonged to the sweep before."""
    names, made = [], on_dask._plugin
    monkeypatch.setattr(on_dask, "_plugin", lambda name, inputs: names.append(name) or made(name, inputs))
    sweep(small(seeds=1), client=client, progress=False)
    plugins = client.run(lambda dask_worker: list(dask_worker.plugins))
    assert plugins  # one of the two workers may be starting again
    assert not {*names} & {name for there in plugins.values() for name in there}


def test_short_cells_share_a_task_with_the_same_numbers(client, monkeypatch):
    shared = []
    taken = on_dask._Tasks._taken
    monkeypatch.setattr(
        on_dask._Tasks, "_taken", lambda self, *given: shared.append(len(given[-1])) or taken(self, *given)
    )
    grid = small(seeds=30)
    assert numbers(sweep(grid, client=client, progress=False)).equals(numbers(sweep(grid, workers=0, progress=False)))
    assert len(shared) < sum(shared) == 60


@pytest.mark.slow
def test_a_task_of_many_cells_whose_worker_dies_is_tried_cell_by_cell(client, monkeypatch):
    monkeypatch.setattr(Lengths, "expected_s", lambda *_: 0.0)  # all of them share tasks from the first on
    names = {f"fifo{i}": "fifo" for i in range(2)} | {"dying": Dying("exit")} | {f"srtf{i}": "srtf" for i in range(9)}
    table = sweep(small(schedulers=names, seeds=1), client=client, progress=False)
    died = "the worker processes that had it died, each time with this cell"
    assert table["error"].tolist() == ["", "", died] + [""] * 9


def test_a_worker_killed_from_outside_costs_nothing_there(client, tmp_path):
    (tmp_path / "hold").touch()
    grid = small(schedulers={"fifo": "fifo", "noting": Noting(str(tmp_path))})
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(sweep, grid, client=client, folder=tmp_path / "s", progress=False)
        until(lambda: pids(tmp_path))
        os.kill(pids(tmp_path).pop(), signal.SIGKILL)
        (tmp_path / "hold").unlink()
        table = found.result(timeout=HANG_S)
    assert numbers(table).equals(numbers(sweep(grid, workers=0, progress=False)))


def test_a_caller_that_is_killed_goes_on_later_with_the_same_numbers(cluster, client, tmp_path):
    folder, notes = tmp_path / "s", tmp_path / "notes"
    notes.mkdir()
    (notes / "hold").touch()
    script = tmp_path / "script.py"
    script.write_text(f"""
from labkit.experiment import Grid, sweep
from labkit.experiment.on_dask import connect
from tests.experiment.sweeping import TRACE, Noting

if __name__ == "__main__":
    grid = Grid(schedulers={{"fifo": "fifo", "noting": Noting({str(notes)!r})}}, trace=TRACE, cluster="demo", seeds=4)
    with connect({cluster.scheduler_address!r}) as client:
        sweep(grid, folder={str(folder)!r}, client=client, progress=False)
""")
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as caller:
        until(lambda: (pids(notes) and n_lines(folder)) or caller.poll() is not None)  # one cell is done, one holds
        caller.kill()
    before = (folder / "cells.jsonl").read_bytes().splitlines()
    assert 1 <= len(before) < 8
    (notes / "hold").unlink()
    grid = small(schedulers={"fifo": "fifo", "noting": Noting(str(notes))})
    table = sweep(grid, client=client, folder=folder, progress=False)
    assert numbers(table).equals(numbers(sweep(grid, workers=0, progress=False)))
    assert (folder / "cells.jsonl").read_bytes().splitlines()[: len(before)] == before


def test_an_address_at_which_nobody_answers_is_told(monkeypatch):
    monkeypatch.setattr("labkit.experiment.on_dask.CONNECT_S", 1.0)
    with (
        pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1 "),
        connect("tcp://127.0.0.1:1"),
    ):
        pass
