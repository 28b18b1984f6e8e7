"""Slips of people who write Python: each is told in one line that says what to give instead, before anything runs."""

from __future__ import annotations

import os
import re

import numpy as np
import pandas as pd
import pytest

from labkit.core import Jobs
from labkit.core.calls import literal, read_call
from labkit.core.errors import ComparisonError, InputError, TraceError
from labkit.core.files import refuse_unreadable, refuse_unwritable
from labkit.experiment import compare, simulate
from labkit.experiment.cadence import every_slot
from labkit.experiment.grid import Grid
from labkit.experiment.sweeping import sweep
from labkit.results.sweeps import refuse_unknown_metric
from labkit.schedulers.fifo import Fifo
from labkit.simulator.disturbances import Overheads
from labkit.speed import measured
from labkit.topology import build, inventory
from labkit.workloads import read
from labkit.workloads.expressions import trace

JOBS = Jobs.of(arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])


class Raises:
    """A scheduler that fails in its own way."""

    def schedule(self, snapshot):
        raise KeyError("boom")


@pytest.mark.parametrize("name", ["start_s", "restart_s", "rescale_s"])
@pytest.mark.parametrize("value", [np.inf, 1e308, 2.0**63])
def test_a_start_or_change_that_takes_longer_than_thirty_years_is_told(name, value):
    with pytest.raises(InputError, match=rf"Overheads.{name} is .*; expected seconds, at most 1e\+09"):
        Overheads(**{name: value})


@pytest.mark.parametrize("column", ["arrival_s", "total_steps", "n_workers", "max_ps", "worker_gpus"])
@pytest.mark.parametrize("value", ["1" * 400, "-" + "9" * 5000, "x" * 300])
def test_a_cell_of_any_length_is_told_in_a_short_line(column, value, tmp_path):
    cells = dict.fromkeys(("arrival_s", "total_steps", "duration_s", "n_workers", "max_ps", "worker_gpus"), "1")
    rows = [cells, cells | {column: value}]
    path = tmp_path / "t.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    with pytest.raises(TraceError, match=rf"line 3: {column} is '.{{60}}\.\.\. \([\d,]+ letters\)'") as told:
        read(path)
    assert len(str(told.value).replace(str(path), "")) < 400


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jobs": pd.DataFrame({"a": [1]})}, "jobs is a DataFrame; expected Jobs, the path of a trace, or a generator"),
        ({"scheduler": Fifo}, "scheduler Fifo is a class; give an instance of it: Fifo()"),
        ({"scheduler": 3}, "scheduler is 3; expected a name, or an object that has schedule"),
        ({"cluster": 3}, "cluster is 3; expected a Cluster, a preset"),
        ({"cadence": 600}, "cadence is 600; expected e.g. every_slot(600)"),
        ({"overheads": 5.0}, "overheads is 5.0; expected e.g. Overheads(start_s=20)"),
        ({"speed": 5}, "speed is 5; expected a SpeedModel"),
        ({"seed": -1}, "seed is -1; expected a whole number >= 0"),
        ({"scheduler": "las(threshold_gpu_s=1e400)"}, "'las(threshold_gpu_s=1e400)' cannot be read"),
        ({"cadnce": None}, "unknown option of a simulation 'cadnce'. Did you mean 'cadence'?"),
        ({"troubles": "hot_ps=0.5"}, "Recorded knows nothing of slow and hot tasks; take speed 'bottleneck'"),
        ({"sharding": "static"}, "sharding 'static' needs speed 'bottleneck', which tells workers apart"),
        ({"overheads": "pollux"}, "unknown overheads 'pollux'"),
        ({"cadence": every_slot(1e-9)}, "a decision every 1e-09 s over the 60 s of jobs is 6e+10 decisions"),
        ({"scheduler": "las(quantum_s=1e-9)"}, "expected at most 10,000,000"),
        ({"scheduler": "gavel_las(published=True, round_s=1e-9)"}, "expected at most 10,000,000"),
    ],
)
def test_a_slip_is_told_before_anything_is_simulated(given, said):
    asked = {"jobs": JOBS, "cluster": "demo", "scheduler": "fifo"} | given
    with pytest.raises(InputError, match=re.escape(said)):
        simulate(asked.pop("jobs"), **asked)


def test_names_may_stand_in_one_text():
    assert [
        record.info.scheduler for record in compare(JOBS, cluster="demo", schedulers="fifo, las(quantum_s=60)")
    ] == [
        "fifo",
        "las(quantum_s=60)",
    ]


def test_a_scheduler_that_fails_does_not_cost_the_results_of_others():
    with pytest.raises(ComparisonError, match="1 of 3 schedulers failed: raises: KeyError: 'boom'") as caught:
        compare(JOBS, cluster="demo", schedulers=["fifo", Raises(), "las"])
    assert [record.info.scheduler for record in caught.value.records] == ["fifo", "las"]
    assert all(record.summary["n_unfinished"] == 0 for record in caught.value.records)
    assert isinstance(caught.value.failed["raises"], KeyError)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("poisson(1000000000, per_hour=1)", "n is 1000000000; expected a whole number from 1 to 2000000"),
        ("gavel_jobs(1000000000)", "n is 1000000000"),
        ("poisson(5, per_hour=1, gangs=())", "gangs is (); expected at least one"),
        ("poisson(5, per_hour=1, gangs=(0,))", "gangs is 0; expected a whole number from 1"),
        ("poisson(5, per_hour=1, gangs=5)", "gangs is 5; expected at least one"),
        ("poisson(5, per_hour=1, models='vgg')", "models is 'vgg'; expected at least one"),
        ("poisson(5, per_hour=1e-300)", "per_hour is 1e-300; expected a number of jobs per hour >= 0.0001"),
        ("poisson(5, per_hour='x')", "cannot generate"),
        ("poisson(5, per_hour=1, median_s=-1)", "expected seconds, 0 < median_s < mean_s"),
        ("google_like(5, per_hour=1, slot_s=1e-9)", "slot_s is 1e-09; expected seconds >= 1"),
        ("gavel_jobs(5, throughputs=3)", "cannot generate"),
        ("dl2_jobs(3)", "cannot generate"),
        ("poisson(" + "(" * 900 + ")", "cannot be read"),
        ("poisson(" + "-" * 20000 + "1)", "... (20,010 letters)' cannot be read"),
    ],
)
def test_a_generator_refuses_what_it_cannot_do(what, said):
    with pytest.raises(InputError, match=re.escape(said)):
        trace(what)


@pytest.mark.parametrize("what", ["fat_tree(" + "(" * 900 + "4)", "fat_tree(" + "-" * 900 + "4)", "fat_tree(\0)"])
def test_brackets_and_signs_without_end_are_no_cluster(what):
    with pytest.raises(InputError, match="expected"):
        build(what)


def test_part_of_a_machine_is_none():
    with pytest.raises(InputError, match=re.escape("servers[0] is 1.5; expected a whole number")):
        build("no_network(2, servers=[(1.5, 'dgx1'), (0.5, 'dgx1')])")


@pytest.mark.parametrize("text", ["(" * 900, "-" * 900 + "1", "[" * 5000, "1" * 900, "\0", "a b"])
def test_a_value_that_is_no_literal_is_text(text):
    assert literal(text) == text


def test_options_may_not_be_given_twice_or_unpacked():
    for text in ("f(a=1, a=2)", "f(**{'a': 1})", "f(a=g())", "f.g(a=1)"):
        with pytest.raises(InputError, match=r"thing .* cannot be read; expected a call"):
            read_call(text, thing="thing", expected="a call")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sockets = 100000000", "sockets is 100000000; expected less than or equal to 1024"),
        ("gpus = 100000000", "gpus is 100000000; expected less than or equal to 1024"),
        ('name = ["a"]', "name is ['a']; expected a valid string"),
        ("deep = " + "[" * 3000, "inventory"),
    ],
)
def test_an_inventory_without_bounds_is_refused(change, said, tmp_path):
    host = {"name": '"h0"', "gpus": "4", "cpus": "16", "memory_gb": "64"}
    key, _, value = change.partition(" = ")
    (tmp_path / "hosts.toml").write_text(
        "[[hosts]]\n" + "\n".join(f"{name} = {told}" for name, told in (host | {key: value}).items()) + "\n"
    )
    with pytest.raises(InputError, match=re.escape(said)):
        inventory.read_content(tmp_path / "hosts.toml")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero here")
@pytest.mark.parametrize("reads", [read, inventory.read_content, measured.read_rows])
def test_a_pipe_or_a_device_is_not_read(reads, tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", *map(type(tmp_path), ["/dev/zero"])):
        with pytest.raises(InputError, match=r"is a (pipe|device)"):
            reads(path)


def test_a_packed_file_may_not_unpack_without_end(tmp_path, monkeypatch):
    import gzip

    monkeypatch.setattr("labkit.workloads.readers.base.MAX_BYTES", 1000)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"0" * 100_000))
    with pytest.raises(TraceError, match="holds more than"):
        read(tmp_path / "bomb.csv.gz")


def test_a_file_is_refused_before_the_work(tmp_path):
    (tmp_path / "taken").write_text("")
    for path in (tmp_path / "a.pdf", tmp_path, tmp_path / "taken" / "a.html"):
        with pytest.raises(InputError):
            refuse_unwritable(path, endings=[".html"])
    refuse_unwritable(tmp_path / "new" / "a.html", endings=[".html"])
    assert not (tmp_path / "new").exists()
    refuse_unreadable(tmp_path / "nothing", expected="anything")  # what is not there is for the caller to tell


class TestSweeps:
    """A sweep that cannot be is refused at once."""

    def test_too_many_cells(self):
        with pytest.raises(InputError, match=re.escape("seeds is 1000000000; expected a whole number from 0")):
            Grid(schedulers="fifo", trace="poisson(5, per_hour=1)", cluster="demo", seeds=10**9)
        with pytest.raises(InputError, match="a sweep of 10,000,000 runs"):
            Grid(
                schedulers="fifo",
                trace="poisson(5, per_hour=1)",
                cluster="demo",
                seeds=10**5,
                arrival_rate=range(1, 101),
            )

    @pytest.mark.parametrize(
        ("name", "expected"), [("arrival_rate", "a factor > 0"), ("slot_s", "a number"), ("epoch_error", "a number")]
    )
    def test_text_for_a_number(self, name, expected):
        grid = Grid(schedulers="fifo", trace="poisson(5, per_hour=1)", cluster="demo", **{name: "x"})
        with pytest.raises(InputError, match=f"{name} is 'x'; expected {expected}"):
            sweep(grid, workers=0, progress=False)

    def test_a_metric_that_no_sweep_has(self):
        with pytest.raises(InputError, match=r"unknown metric of a sweep 'mean_jct'. Did you mean 'mean_jct_s'"):
            refuse_unknown_metric("mean_jct")
        for metric in ("mean_jct_s", "utilisation", "wall_s"):
            refuse_unknown_metric(metric)

    def test_a_folder_with_other_files(self, tmp_path):
        (tmp_path / "README.md").write_text("mine")
        grid = Grid(schedulers="fifo", trace="poisson(5, per_hour=1)", cluster="demo")
        with pytest.raises(InputError, match=re.escape("holds other files (README.md)")):
            sweep(grid, folder=tmp_path, workers=0, progress=False)
        assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_numbers_of_numpy_are_whole_numbers_too():
    assert len(trace(f"poisson({np.int64(5)}, per_hour=1)")) == 5
