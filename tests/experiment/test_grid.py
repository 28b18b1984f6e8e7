"""Grids: what their cells are, and what is refused before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.experiment import Grid, sweep
from labkit.experiment.cell import check
from labkit.experiment.grid import Cell
from labkit.experiment.inputs import Inputs
from labkit.experiment.scenario import OPTIONS
from labkit.schedulers import available, open_options
from labkit.workloads import read, write
from labkit.workloads.expressions import GENERATORS, is_generated, trace
from tests.experiment.sweeping import TRACE, Fair, small

JOBS = Jobs.of(name="two", arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])


def test_a_grid_is_the_product_of_its_axes_and_the_last_axis_varies_fastest():
    grid = Grid(schedulers=["fifo", "srtf"], trace=TRACE, cluster="demo", seeds=[3, 5], arrival_rate=[1, 2.5])
    assert [tuple(cell.keys.values()) for cell in grid.cells] == [
        (TRACE, "demo", load, name, seed) for load in (1, 2.5) for name in ("fifo", "srtf") for seed in (3, 5)
    ]
    assert len(grid) == len(grid.cells) == 8


def test_a_cells_name_depends_on_its_own_keys_alone_and_not_on_their_order():
    one, other = small(), small(schedulers=["las", "srtf", "fifo"], seeds=[9, 3, 2, 1, 0])
    shared = {cell.id for cell in one.cells} & {cell.id for cell in other.cells}
    assert len(shared) == len(one)
    assert Cell({"seed": 1, "load": 2}).id == Cell({"load": 2, "seed": 1}).id
    assert len({cell.id for cell in other.cells}) == len(other)


def test_numbers_of_numpy_and_whole_floats_are_the_same_cells():
    assert [cell.id for cell in small(load=[1, 2]).cells] == [
        cell.id for cell in small(load=np.array([1.0, 2.0])).cells
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedulers": []}, "scheduler has no value"),
        ({"schedulers": ["fifo", "fifo"]}, "scheduler has 'fifo' twice"),
        ({"schedulers": ["fifo", 3]}, "scheduler '3'|scheduler 'int' is a int"),
        ({"schedulers": "srft"}, "Did you mean 'srtf'"),
        ({"schedulers": "las(quantum=5)"}, "Did you mean 'quantum_s'"),
        ({"seeds": 0}, "seeds has no value"),
        ({"seeds": [-1]}, "expected whole numbers >= 0"),
        ({"seeds": [0.5]}, "expected whole numbers >= 0"),
        ({"seeds": [1, 1]}, "seeds has '1' twice"),
        ({"cluster": "dmeo"}, "Did you mean 'demo'"),
        ({"trace": "nothing.csv"}, "nothing.csv: there is no such file"),
        ({"trace": "poison(5, per_hour=1)"}, "Did you mean 'poisson'"),
        ({"arrival_rate": [1, float("nan")]}, "arrival_rate is nan; expected"),
        ({"arrival_rate": [[1]]}, "arrival_rate is \\[1\\]; expected"),
        ({"arrival_rate": 0}, "arrival_rate is 0; expected a factor > 0"),
        ({"arival_rate": 2}, "unknown parameter 'arival_rate'. Did you mean 'arrival_rate'"),
        ({"placer": ["pack", "pcak"]}, "Did you mean 'pack'"),
        ({"quantum_s": 60, "schedulers": ["las", "fifo"]}, "unknown parameter 'quantum_s'.*fifo does not take it"),
        ({"placer": "pack", "schedulers": ["drf(placer=spread)"]}, "or a name gives already"),
        ({"slot_s": 0}, "a slot of 0.0 s"),
        ({"mtbf_s": 60}, "mtbf_s=60.*mttr_s.*these go together"),
        ({"rescale_s": -1}, "Overheads.rescale_s is -1"),
        ({"speed_error": 0.1}, "period_s"),
        ({"epoch_error": 1}, "epoch error 1; expected"),
        ({"first": 0}, "first is 0; expected"),
        ({"throughputs": "nothing.json"}, "nothing.json: there is no such file"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_anything_runs(changes, said, tmp_path):
    with pytest.raises(InputError, match=said):
        sweep(small(**changes), folder=tmp_path / "s", workers=0, progress=False)
    assert not (tmp_path / "s").exists()


def test_seeds_that_can_change_nothing_are_refused_and_told_what_would(tmp_path):
    with pytest.raises(InputError, match=r"the 2 seeds have no effect: two has the same jobs.*poisson.*mtbf_s"):
        sweep(small(trace=JOBS, seeds=2), workers=0, progress=False)
    path = write(trace(TRACE), tmp_path / "a.csv")
    with pytest.raises(InputError, match="seeds have no effect"):
        sweep(small(trace=path, seeds=2, load=[1, 2], mtbf_s=None), workers=0, progress=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": 1},
        {"trace": ["poisson(3, per_hour=60)", JOBS]},
        {"mtbf_s": 1e6, "mttr_s": 60},
        {"speed_error": [0, 0.2], "period_s": 60},
        {"straggler_probability": 0.1, "period_s": 60},
        {"epoch_error": 0.3},
        {"schedulers": "gavel_gandiva"},
        {"schedulers": {"mine": Fair}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_seeds_that_may_change_something_are_not_refused(changes):
    grid = small(**({"trace": JOBS, "seeds": 2} | changes))
    check(grid, Inputs.of(grid))


def test_no_scheduler_takes_an_option_that_is_one_of_the_run():
    assert {option for name in available() for option in open_options(name)} & (OPTIONS.keys() - {"seed"}) <= {"prices"}


def test_a_file_and_its_jobs_mean_the_same_and_another_content_does_not(tmp_path):
    path = write(JOBS, tmp_path / "two.csv")
    told = [Inputs.of(grid).meanings(grid) for grid in (small(trace=path, seeds=1), small(trace=read(path), seeds=1))]
    assert told[0][f"trace {path}"] == told[1]["trace two"]
    write(JOBS.with_columns(total_steps=np.array([60.0, 31.0])), path)
    grid = small(trace=path, seeds=1)
    assert Inputs.of(grid).meanings(grid)[f"trace {path}"] != told[0][f"trace {path}"]


@pytest.mark.parametrize(
    "what",
    [
        "poisson(6, per_hour=12)", "uniform(6, per_hour=12, jobs='philly')", "diurnal(6, per_hour=12, swing=0.2)",
        "google_like(6, per_hour=12, gangs=(1, 2), max_tasks=4)", "gavel_jobs(6, mean_gap_s=10)",
        "dl2_jobs('testbed_6n')", "marl_jobs(5, n_slots=2)",
    ],
)  # fmt: skip
def test_every_generator_draws_other_jobs_from_another_seed_and_the_same_from_the_same(what):
    assert is_generated(what)
    one, same, other = (trace(what, seed=seed).to_frame() for seed in (1, 1, 2))
    assert one.equals(same)
    assert not one.equals(other)


def test_the_generators_of_the_last_test_are_all_there_are():
    known = {"poisson", "uniform", "diurnal", "google_like", "gavel_jobs", "dl2_jobs", "marl_jobs"}
    assert set(GENERATORS) == known


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("poisson(5)", "missing 1 required"),
        ("poisson(5, per_hour=1, swing=1)", "unknown option of poisson 'swing'"),
        ("poisson(5, per_hour=1, jobs='phily')", "Did you mean 'philly'"),
        ("poisson(5, per_hour=1, seed=3)", "the seed is given apart"),
        ("poisson(n, per_hour=1)", "call with plain values"),
        ("__import__('os').system('true')", "call with plain values"),
        ("poisson(**{'n': 1})", "call with plain values"),
        ("poisson(5, 6, per_hour=1)", "cannot generate"),
        ("poisson(" + "1," * 600 + ")", "call with plain values"),
    ],
)
def test_what_is_wrong_with_an_expression_is_told(what, said):
    with pytest.raises(InputError, match=said):
        trace(what, seed=1)
