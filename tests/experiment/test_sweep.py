"""Sweeps on real processes: the same numbers in any order, and what a kill, a crash or Ctrl-C leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

import labkit
from labkit.core import Jobs, Placement, Snapshot
from labkit.core.errors import InputError, SweepError
from labkit.experiment import Grid, simulate, sweep
from labkit.experiment.scenario import EPOCH_STREAM
from labkit.results import read_sweep
from labkit.results.sweep_folder import SweepFolder
from labkit.simulator import Faults
from labkit.workloads import with_epoch_error
from labkit.workloads.expressions import trace
from tests.experiment.sweeping import TRACE, Dying, Fair, Noting, Raising, n_lines, numbers, pids, small, until
from tests.hang import HANG_S

ROOT = Path(__file__).parents[2]
NOISY = {"mtbf_s": 3000, "mttr_s": 300, "checkpoint_s": 60, "period_s": 300, "speed_error": 0.3, "epoch_error": 0.2}

BUSY = NOISY | {"cluster": "no_network(1)"}


def quiet(grid: Grid, **options: object):
    return sweep(grid, progress=False, **({"workers": 2} | options))


def lines(folder: Path) -> list[dict]:
    path = folder / "cells.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def notes(tmp_path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture
def script(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Return a function that runs lines of Python in a process of its own; it and its children end with the test."""
    started = []

    def run(text: str) -> subprocess.Popen:
        path = tmp_path / f"script{len(started)}.py"
        path.write_text(text)
        process = subprocess.Popen(
            [sys.executable, str(path)], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def of_script(notes: Path, folder: Path, *, workers: int = 2, cells: str = "seeds=3") -> str:
    return f"""
from labkit.experiment import Grid, sweep
from tests.experiment.sweeping import TRACE, Noting

if __name__ == "__main__":
    grid = Grid(schedulers={{"fifo": "fifo", "noting": Noting({str(notes)!r})}}, trace=TRACE, cluster="demo", {cells})
    sweep(grid, folder={str(folder)!r}, workers={workers}, progress=False)
"""


def grid_of_script(notes: Path, **changes: object) -> Grid:
    return small(**({"schedulers": {"fifo": "fifo", "noting": Noting(str(notes))}, "seeds": 3} | changes))


def test_the_numbers_are_the_same_bit_by_bit_on_any_number_of_workers_in_any_order_and_resumed(tmp_path):
    whole = small(schedulers=["fifo", "srtf", "gavel_gandiva"], **BUSY)
    here = quiet(whole, workers=0)
    assert len(here) == 12
    assert here["n_failures"].sum() > 0
    assert here["mean_jct_s"].nunique() > 9  # schedulers and seeds do differ
    assert numbers(quiet(whole)).equals(numbers(here))
    backwards = small(schedulers=["gavel_gandiva", "srtf", "fifo"], seeds=[3, 2, 1, 0], **BUSY)
    found = quiet(backwards, workers=1).sort_values(["scheduler", "seed"], ignore_index=True)
    assert numbers(found).equals(numbers(here.sort_values(["scheduler", "seed"], ignore_index=True)))
    quiet(small(schedulers=["srtf"], seeds=[2], **BUSY), folder=tmp_path / "s", workers=0)
    assert numbers(quiet(whole, folder=tmp_path / "s", workers=0)).equals(numbers(here))
    assert numbers(read_sweep(tmp_path / "s")).equals(numbers(here))


def test_a_cell_is_the_very_run_that_simulate_makes_of_its_seed():
    (row,) = quiet(small(schedulers="srtf", seeds=[7], **NOISY), workers=0).to_dict("records")
    rng = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(EPOCH_STREAM,)))
    variation = labkit.simulator.Variation(300, error=0.3)
    run = simulate(
        with_epoch_error(trace(TRACE, seed=7), error=0.2, rng=rng), cluster="demo", scheduler="srtf", seed=7,
        faults=Faults(3000, 300, 60), variation=variation,
    )  # fmt: skip
    assert {name: row[name] for name in run.summary} == run.summary


def test_schedulers_with_one_seed_meet_the_same_jobs():
    table = quiet(small(trace="poisson(9, per_hour=2)", cluster="no_network(100)"), workers=0)
    assert table.groupby("seed")["makespan_s"].nunique().tolist() == [1] * 4  # room for all: nobody waits
    assert table["makespan_s"].nunique() == 4


def test_a_sweep_that_is_done_runs_nothing_again_and_one_with_more_cells_runs_only_those(tmp_path, notes):
    sweep_it = {"folder": tmp_path / "s", "workers": 0}
    quiet(grid_of_script(notes), **sweep_it)
    assert len(list(notes.iterdir())) == 3
    again = quiet(grid_of_script(notes), **sweep_it)
    assert len(list(notes.iterdir())) == 3
    more = quiet(grid_of_script(notes, seeds=4), **sweep_it)
    assert len(list(notes.iterdir())) == 4
    assert (len(again), len(more), len(lines(tmp_path / "s"))) == (6, 8, 8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": 2}, "seed lacks 2, 3"),
        ({"schedulers": ["fifo"]}, "scheduler lacks srtf"),
        ({"load": 1}, "load is a new axis"),
        ({"trace": "poisson(5, per_hour=60)", "cluster": "no_network(9)"}, r"lacks poisson\(12.*cluster lacks demo"),
        ({"schedulers": {"fifo": "fifo(backfill=True)", "srtf": "srtf"}}, "scheduler fifo was something else then"),
    ],
)  # fmt: skip
def test_another_grid_in_the_same_folder_is_refused_with_what_differs(changes, said, tmp_path):
    quiet(small(), folder=tmp_path, workers=0)
    before = (tmp_path / "sweep.json").read_text()
    with pytest.raises(InputError, match=said):
        quiet(small(**changes), folder=tmp_path, workers=0)
    assert (tmp_path / "sweep.json").read_text() == before


def test_a_trace_or_a_scheduler_that_was_changed_under_its_name_is_refused(tmp_path):
    jobs = Jobs.of(arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])
    path = labkit.workloads.write(jobs, tmp_path / "a.csv")
    quiet(small(trace=path, seeds=1), folder=tmp_path / "s", workers=0)
    labkit.workloads.write(jobs.with_columns(total_steps=np.array([60.0, 31.0])), path)
    with pytest.raises(InputError, match=r"trace .*a.csv was something else then \(contents"):
        quiet(small(trace=path, seeds=1), folder=tmp_path / "s", workers=0)
    quiet(small(schedulers={"mine": Dying("exit", once=__file__)}), folder=tmp_path / "t", workers=0)
    with pytest.raises(InputError, match="scheduler mine was something else then"):
        quiet(small(schedulers={"mine": Fair()}), folder=tmp_path / "t", workers=0)


def test_cells_of_two_versions_in_one_folder_are_told(tmp_path, monkeypatch):
    quiet(small(seeds=1), folder=tmp_path, workers=0)
    monkeypatch.setattr("labkit.experiment.provenance.commit", lambda: "123abc")
    for seeds in (1, 2):
        with pytest.warns(UserWarning, match="runs done before are of labkit's commit .*those of today are of 123abc"):
            quiet(small(seeds=seeds), folder=tmp_path, workers=0)


def _first_words(errors):
    return [error.split(" (")[0] for error in errors]


def test_a_cell_that_fails_is_a_row_and_is_tried_again(tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    grid = small(schedulers={"fifo": "fifo", "raising": Raising(str(obstacle))})
    table = quiet(grid, folder=tmp_path / "s", workers=1)
    assert _first_words(table["error"]) == [""] * 4 + ["RuntimeError: the file is there"] * 4
    assert table["error"].str.contains(r"\(sweeping\.py:\d+, decision 0, at \d+ s\)$")[4:].all()
    assert table["mean_jct_s"].isna().tolist() == [False] * 4 + [True] * 4
    assert ["sweeping.py" in row.get("trace", "") for row in lines(tmp_path / "s")].count(True) == 4
    obstacle.unlink()
    table = quiet(grid, folder=tmp_path / "s", workers=0)
    assert table["error"].tolist() == [""] * 8
    assert len(lines(tmp_path / "s")) == 12


def test_strict_stops_at_the_first_failure_and_keeps_what_is_done(tmp_path, capsys):
    grid = small(schedulers={"fifo": "fifo", "raising": Raising(__file__)})
    with pytest.raises(SweepError, match="scheduler raising, seed 0: RuntimeError: the file is there"):
        quiet(grid, folder=tmp_path, workers=1, strict=True)
    assert _first_words(row["error"] for row in lines(tmp_path)) == ["", "RuntimeError: the file is there"]
    assert f"1 of 8 runs are done and kept in {tmp_path}; the same call continues" in capsys.readouterr().err


def test_a_worker_that_dies_names_its_cell_and_the_others_go_on(tmp_path):
    grid = small(schedulers={"fifo": "fifo", "dying": Dying("exit"), "srtf": "srtf"}, seeds=1)
    table = quiet(grid, folder=tmp_path)
    said = "its worker process ended by itself (exit code 3), 2 times"
    assert table["error"].str.startswith(said).tolist() == [False, True, False]
    assert (table["error"] == "").tolist() == [True, False, True]


def test_a_worker_killed_from_outside_costs_nothing(tmp_path, notes):
    (notes / "hold").touch()
    found = []
    runner = threading.Thread(target=lambda: found.append(quiet(grid_of_script(notes), workers=1)))
    runner.start()
    until(lambda: pids(notes))
    os.kill(pids(notes).pop(), signal.SIGKILL)
    until(lambda: len(pids(notes)) == 2)
    (notes / "hold").unlink()
    runner.join(timeout=HANG_S)
    assert found[0]["error"].tolist() == [""] * 6
    assert numbers(found[0]).equals(numbers(quiet(grid_of_script(notes), workers=0)))


def test_kill_9_loses_the_cells_that_were_running_and_leaves_no_process(tmp_path, notes, script):
    folder = tmp_path / "s"
    (notes / "hold").touch()
    process = script(of_script(notes, folder))
    until(lambda: len(pids(notes)) == 2)  # both workers hold; seeds come first, so one fifo is done at least
    done = len(lines(folder))
    children = psutil.Process(process.pid).children(recursive=True)
    assert pids(notes) <= {child.pid for child in children}
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=HANG_S)
    assert alive == []
    assert len(lines(folder)) == done >= 1
    (notes / "hold").unlink()
    table = quiet(grid_of_script(notes), folder=folder, workers=0)
    assert len(lines(folder)) == 6
    assert numbers(table).equals(numbers(quiet(grid_of_script(notes), workers=0)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_again_and_again_at_random_moments_and_resumed_the_numbers_are_those_of_one_sweep(
    seed, tmp_path, notes, script
):
    rng, folder, cells = np.random.default_rng(seed), tmp_path / "s", "seeds=40"
    for _ in range(3):
        process = script(of_script(notes, folder, cells=cells))
        enough = n_lines(folder) + int(rng.integers(1, 20))
        until(lambda enough=enough: n_lines(folder) >= enough)
        threading.Event().wait(rng.uniform(0, 0.03))  # in the middle of a cell, of a line, or between them
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        assert psutil.wait_procs(children, timeout=HANG_S)[1] == []
        assert enough <= n_lines(folder) < 80
    table = quiet(grid_of_script(notes, seeds=40), folder=folder)
    cells_run = [row["cell"] for row in lines(folder)]
    assert len(cells_run) == len(set(cells_run)) == 80  # what was done was not run again
    assert numbers(table).equals(numbers(quiet(grid_of_script(notes, seeds=40), workers=0)))


@pytest.mark.parametrize("seed", range(4))
def test_cut_at_any_byte_and_resumed_the_numbers_are_the_same(seed, tmp_path):
    whole = quiet(small(), folder=tmp_path, workers=0)
    path = tmp_path / "cells.jsonl"
    kept = int(np.random.default_rng(seed).integers(path.stat().st_size))
    os.truncate(path, kept)
    assert numbers(quiet(small(), folder=tmp_path, workers=0)).equals(numbers(whole))
    assert len(lines(tmp_path)) == 8


def test_of_short_cells_the_next_waits_at_the_worker_and_one_that_dies_there_names_only_itself(tmp_path):
    grid = small(schedulers={"fifo": "fifo", "dying": Dying("kill"), "srtf": "srtf"}, seeds=2)
    table = quiet(grid, workers=1, folder=tmp_path).set_index("scheduler")
    assert (table.loc[["fifo", "srtf"], "error"] == "").all()
    said = "its worker process was killed (SIGKILL: out of memory?), 2 times"
    assert table.loc["dying", "error"].str.startswith(said).tolist() == [True] * 2
    assert len(lines(tmp_path)) == 6


def test_ctrl_c_stops_soon_keeps_what_is_done_and_says_how_to_go_on(tmp_path, notes, script):
    folder = tmp_path / "s"
    (notes / "hold").touch()
    process = script(of_script(notes, folder))
    until(lambda: len(pids(notes)) == 2)
    done = len(lines(folder))
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode in (-signal.SIGINT, 130)
    assert f"stopped: {done} of 6 runs are done and kept in {folder}; the same call continues from there." in said
    assert said.count("Traceback") == 1  # the workers leave Ctrl-C to their parent
    _, alive = psutil.wait_procs(children, timeout=HANG_S)
    assert alive == []
    assert len(lines(folder)) == done >= 1


def test_only_one_process_at_a_time_has_a_folder(tmp_path, notes, script):
    folder = tmp_path / "s"
    (notes / "hold").touch()
    process = script(of_script(notes, folder, workers=1))
    until(lambda: pids(notes))
    with pytest.raises(InputError, match="belongs to a sweep that is running"):
        quiet(grid_of_script(notes), folder=folder)
    (notes / "hold").unlink()
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, said
    assert len(quiet(grid_of_script(notes), folder=folder, workers=0)) == len(lines(folder)) == 6


def test_a_line_that_a_crash_cut_short_is_run_again(tmp_path):
    whole = quiet(small(), folder=tmp_path, workers=0)
    path = tmp_path / "cells.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read_sweep(tmp_path)) == 7
    assert numbers(quiet(small(), folder=tmp_path, workers=0)).equals(numbers(whole))
    assert len(lines(tmp_path)) == 8


def test_a_line_that_is_damaged_is_named(tmp_path):
    quiet(small(), folder=tmp_path, workers=0)
    path = tmp_path / "cells.jsonl"
    damaged = path.read_text().splitlines()
    damaged[2] = damaged[2][:30]
    path.write_text("\n".join(damaged) + "\n")
    with pytest.raises(InputError, match=r"cells.jsonl, line 3 is not the row of a run"):
        quiet(small(), folder=tmp_path, workers=0)


def test_a_folder_that_holds_no_sweep_is_told(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(InputError, match="does not describe a sweep"):
        read_sweep(tmp_path)


def test_whole_runs_are_kept_and_read_as_any_others(tmp_path):
    plain = quiet(small(seeds=1), folder=tmp_path, workers=0)
    assert plain["run"].tolist() == ["", ""]
    kept = quiet(small(seeds=1), folder=tmp_path, keep=True, workers=1)
    assert numbers(kept).equals(numbers(plain))
    for row in kept.to_dict("records"):
        run = labkit.load(row["run"])
        assert run.summary["mean_jct_s"] == row["mean_jct_s"]
        assert (run.info.scheduler, run.info.seed, run.info.state) == (row["scheduler"], row["seed"], "done")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(Path(run).name for run in kept["run"])


def test_runs_cannot_be_kept_without_a_folder():
    with pytest.raises(InputError, match="keep=True needs a folder"):
        quiet(small(), keep=True)


@dataclass(frozen=True)
class Counting(Fair):
    """Notes how many threads libraries would use."""

    path: str

    def schedule(self, snapshot: Snapshot) -> Placement:
        import numba
        from threadpoolctl import threadpool_info

        told = [numba.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())]
        Path(self.path).write_text(json.dumps(told))
        return super().schedule(snapshot)


def test_libraries_of_a_worker_use_one_thread_each_and_those_of_the_caller_what_they_did(tmp_path):
    before = dict(os.environ)
    quiet(small(schedulers={"counting": Counting(str(tmp_path / "told"))}, seeds=1), workers=1)
    told = json.loads((tmp_path / "told").read_text())
    assert len(told) > 1
    assert set(told) == {1}
    assert dict(os.environ) == before


def test_a_class_is_made_anew_for_each_cell_with_the_parameters_it_takes(tmp_path):
    class Local(Dying):  # pickled by value: it lives in no module
        pass

    grid = small(schedulers={"mine": Local}, how="exit", once=[__file__, str(ROOT)], seeds=2)
    assert quiet(grid, workers=1)["error"].tolist() == [""] * 4


def test_what_cells_warn_of_is_told_once(tmp_path):
    jobs = Jobs.of(arrival_s=[0], total_steps=[100], model="A3C", n_workers=2)
    with pytest.warns(UserWarning, match="throughput estimated per GPU") as told:
        quiet(small(trace=jobs, cluster="gavel-36x3", seeds=1, load=[1, 2]), workers=1)
    assert len(told) == 1


def test_a_scheduler_that_no_seed_changed_is_told():
    jobs = Jobs.of(arrival_s=[0], total_steps=[100], duration_s=100)
    with pytest.warns(UserWarning, match="every seed gave the same numbers with mine"):
        quiet(small(trace=jobs, schedulers={"mine": Fair}), workers=0)


def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path, notes, script):
    text = of_script(notes, tmp_path / "s").replace('if __name__ == "__main__":', "if True:")
    _, said = script(text).communicate(timeout=HANG_S)
    assert "SweepError: no worker can start" in said.splitlines()[-1]
    assert 'if __name__ == "__main__":' in said.splitlines()[-1]


def test_a_script_without_a_guard_is_told_it_with_inputs_that_fill_a_pipe_too(script):
    _, said = script("""
import labkit
grid = labkit.Grid(schedulers=["fifo", "srtf"], trace="philly-like", cluster="no_network(2, servers='dgx1')")
labkit.sweep(grid, progress=False)
""").communicate(timeout=HANG_S)
    assert "SweepError: no worker can start" in said.splitlines()[-1]


@pytest.mark.parametrize("terminal", [True, False])
def test_done_and_failed_cells_are_told_with_and_without_a_terminal(terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    grid = small(schedulers={"fifo": "fifo", "raising": Raising(__file__)}, seeds=2)
    sweep(grid, workers=0)
    said = capsys.readouterr().err
    assert ("4/4" if terminal else "4 of 4 runs done") in said
    assert "2 failed" in said
    assert "scheduler raising, seed 1: RuntimeError: the file is there" in said


def test_quotas_of_a_sweep_are_told(tmp_path):
    with pytest.warns(Warning, match="quotas: each user 2 GPUs"):
        sweep(small(seeds=1, quotas="*=2"), folder=tmp_path / "s", workers=0, progress=False)


def test_ctrl_c_while_a_row_is_written_counts_its_cell_as_done(tmp_path, monkeypatch):
    def interrupted(_descriptor):
        raise KeyboardInterrupt

    with SweepFolder.open(tmp_path / "s", plan={"axes": {}, "meanings": {}}) as folder:
        monkeypatch.setattr("labkit.results.sweep_folder.os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.add({"cell": "a", "error": ""})
        monkeypatch.undo()
        assert list(folder.rows) == ["a"]
        assert lines(tmp_path / "s") != []
