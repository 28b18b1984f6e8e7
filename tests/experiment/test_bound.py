"""The bound below which no scheduler's mean JCT can be: by hand, reached, never beaten, and kept by sweeps."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.cli.compare import on_one_seed
from labkit.core import Jobs
from labkit.core.resources import amounts
from labkit.experiment import Experiment, Grid, every_slot, sweep
from labkit.experiment.scenario import Scenario
from labkit.results import read_sweep, run_table
from labkit.results.comparison import BOUND, BOUND_LABEL
from labkit.results.sweeps import comparison
from labkit.simulator import Overheads, Variation
from labkit.speed.cpu import CpuModel
from labkit.speed.isolated import fastest
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.speed.recorded import Recorded
from labkit.speed.step_time import StepTime, step_time
from labkit.testing import strategies
from labkit.topology import build, no_network
from labkit.workloads.expressions import trace
from tests.schedulers import dl2

SLOT_S = 1200.0
GANGS = {(1, 1): 10.0, (2, 1): 16.0, (1, 2): 15.0, (2, 2): 12.0}
"""(PSs, workers) -> samples/s: more is not always faster."""


def measured(jobs: Jobs, *, n: int = 4, speeds: dict[tuple[int, int], float] | None = None) -> MeasuredSpeed:
    given = GANGS if speeds is None else speeds
    table = SpeedTable.of(
        ["m"] * len(given), n_ps=[p for p, _ in given], n_workers=[w for _, w in given], samples_per_s=[*given.values()]
    )
    return MeasuredSpeed(jobs, no_network(n), table=table)


def jobs_of(arrival_s: list[float], *, steps: float = 1600.0, most: int = 2, **columns) -> Jobs:
    given = {"n_workers": 1, "n_ps": 1, "max_workers": most, "max_ps": most, "model": ["m"] * len(arrival_s)}
    demands = {"worker_demand": amounts(gpus=1, cpus=2), "ps_demand": amounts(cpus=2)}
    return Jobs.of(arrival_s=arrival_s, total_steps=steps, **(given | demands | columns))


def experiment_of(jobs: Jobs, **options) -> Experiment:
    return Experiment.of(jobs, cluster=no_network(4), speed=measured(jobs), **options)


def test_a_job_cannot_be_done_before_its_steps_at_the_speed_of_its_fastest_gang():
    experiment = experiment_of(jobs_of([0.0, 130.0]))
    assert experiment.job_bounds_s == pytest.approx([100.0, 100.0])  # 1600 samples at 16 per second: 2 PSs, 1 worker
    assert experiment_of(jobs_of([0.0], most=1)).bound_jct_s == pytest.approx(160.0)
    assert experiment_of(jobs_of([0.0], steps=800.0)).bound_jct_s == pytest.approx(50.0)


def test_with_slots_a_job_waits_for_the_next_one():
    experiment = experiment_of(jobs_of([0.0, 130.0, 600.0]), cadence=every_slot(600))
    assert experiment.job_bounds_s == pytest.approx([100.0, 470.0 + 100.0, 100.0])


def test_what_is_less_than_ideal_moves_it_to_the_safe_side():
    jobs = jobs_of([0.0])
    assert experiment_of(jobs, overheads=Overheads(start_s=20, restart_s=50)).bound_jct_s == pytest.approx(120.0)
    assert experiment_of(jobs, overheads=Overheads(start_s=20)).bound_jct_s == pytest.approx(100.0)
    assert experiment_of(jobs, variation=Variation(period_s=60, error=0.25)).bound_jct_s == pytest.approx(80.0)
    longer = replace(jobs, true_steps=jobs.true_steps * 2)
    assert experiment_of(longer).bound_jct_s == pytest.approx(200.0)


def test_where_nothing_binds_a_scheduler_reaches_it():
    record = experiment_of(jobs_of([0.0, 130.0]), cadence=every_slot(600)).run("constant(n_ps=2, n_workers=1)")
    assert record.summary["mean_jct_s"] == pytest.approx(record.info.config[BOUND])
    (row,) = run_table([record]).to_dict("records")
    assert row["times_bound"] == pytest.approx(1.0)


def test_it_is_not_known_where_work_on_cores_takes_time_or_a_subclass_changes_speeds():
    jobs = trace("poisson(3, per_hour=60)")
    cpu = CpuModel(*np.ones((len(CpuModel.__slots__), len(jobs))))
    cores = Experiment.of(jobs, cluster="demo", speed=step_time(jobs, build("demo"), cpu=cpu))
    assert cores.job_bounds_s is None
    assert np.isnan(cores.bound_jct_s)
    assert BOUND not in cores.run("fifo").info.config

    class Twice(Recorded):
        def speeds(self, running):
            return 2 * super().speeds(running)

    jobs = jobs_of([0.0], duration_s=100.0)
    assert fastest(jobs, speed=Recorded(jobs, no_network(4))) == pytest.approx([32.0])  # in proportion to workers
    assert fastest(jobs, speed=Twice(jobs, no_network(4))) is None


def test_a_job_that_demands_a_type_is_bound_by_that_type_alone():
    jobs, cluster = trace("gavel_jobs(4, mean_gap_s=1e6)"), build("gavel-8-16-24")
    pinned = jobs.with_columns(device_type=np.array(["k80"] * len(jobs)))
    free, bound = (Experiment.of(each, cluster=cluster) for each in (jobs, pinned))
    assert (bound.job_bounds_s > free.job_bounds_s).all()
    assert bound.run("gavel_fifo").summary["mean_jct_s"] == pytest.approx(bound.bound_jct_s)  # never two at a time


def test_so_it_is_with_step_times():
    cluster = build("gavel-8-16-24")
    per_type = [4.0 if kind == "v100" else 1.0 for kind in cluster.device_types]
    jobs = jobs_of([0.0, 0.0], device_type=np.array(["", "k80"]))
    speed = StepTime(jobs, cluster, compute_s=[1.0, 1.0], model_bytes=[0.0, 0.0], type_speed=[per_type] * 2)
    assert speed.fastest()[0] == pytest.approx(4 * speed.fastest()[1])


NAMES = ("fifo", "srtf", "drf", "tetris", "optimus", "constant", "lookahead")
UNSTEADY = {
    "plain": {},
    "slots": {"cadence": every_slot(90.0)},
    "overheads": {"overheads": Overheads(start_s=30, restart_s=5, rescale_s=1)},
    "variation": {"variation": Variation(period_s=60, error=0.5, straggler_probability=0.2)},
}


@given(data=st.data(), name=st.sampled_from(NAMES), case=st.sampled_from(sorted(UNSTEADY)))
@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_no_scheduler_is_below_it(data, name, case):
    cluster = data.draw(strategies.clusters())
    jobs = data.draw(strategies.jobs(cluster=cluster, max_jobs=6))
    experiment = Experiment.of(jobs, cluster=cluster, speed=Recorded(jobs, cluster), **UNSTEADY[case])
    jct_s = experiment.run(name).table["jct_s"].to_numpy()
    assert (jct_s >= experiment.job_bounds_s * (1 - 1e-9)).all()
    assert jct_s.mean() >= experiment.bound_jct_s * (1 - 1e-9)


@given(seed=st.integers(0, 2**16), name=st.sampled_from(NAMES), slot_s=st.sampled_from([60.0, 1000.0]))
@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_no_scheduler_is_below_it_on_measured_speeds(seed, name, slot_s):
    rng = np.random.default_rng(seed)
    jobs = jobs_of(np.sort(rng.uniform(0, 2000, 5)).tolist(), steps=rng.uniform(100, 5000, 5), most=3)
    speeds = {(p, w): float(rng.uniform(1, 30)) for p in (1, 2, 3) for w in (1, 2, 3)}
    model = measured(jobs, speeds=speeds)
    experiment = Experiment.of(jobs, cluster=no_network(2), speed=model, cadence=every_slot(slot_s))
    jct_s = experiment.run(name).table["jct_s"].to_numpy()
    assert (jct_s >= experiment.job_bounds_s * (1 - 1e-9)).all()
    assert jct_s.mean() >= experiment.bound_jct_s * (1 - 1e-9)


@given(seed=st.integers(0, 2**16), name=st.sampled_from(NAMES), case=st.sampled_from(sorted(UNSTEADY)))
@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_no_scheduler_is_below_it_where_jobs_share_a_cluster_that_is_too_small(seed, name, case):
    """Ten jobs at about once that may grow, on two machines."""
    rng = np.random.default_rng(seed)
    n = 10
    jobs = jobs_of(np.sort(rng.uniform(0, 300, n)).tolist(), steps=rng.uniform(100, 5000, n), most=3)
    speeds = {
        (p, w): float(rng.uniform(5, 10) * (p * w) ** rng.uniform(0.2, 0.5)) for p in (1, 2, 3) for w in (1, 2, 3)
    }
    model = measured(jobs, n=2, speeds=speeds)
    experiment = Experiment.of(jobs, cluster=no_network(2), speed=model, **UNSTEADY[case])
    assert experiment.run(name).summary["mean_jct_s"] >= experiment.bound_jct_s * (1 - 1e-9)
    assert experiment.bound_jct_s >= experiment.job_bounds_s.mean() * (1 - 1e-9)


def test_jobs_that_need_a_whole_machine_one_after_the_other_come_within_two_percent_of_it():
    """SRPT is optimal on one machine (Schrage, 1968): 100, 300, 600 and 1,000 s after each job's arrival at once."""
    jobs = Jobs.of(
        arrival_s=np.zeros(4), total_steps=[100, 200, 300, 400], duration_s=[100, 200, 300, 400], n_workers=4
    )
    experiment = Experiment.of(jobs, cluster=no_network(1), speed=Recorded(jobs, no_network(1)))
    assert experiment.job_bounds_s.mean() == pytest.approx(250)
    assert experiment.run("srtf").summary["mean_jct_s"] == pytest.approx(500)
    assert 490 < experiment.bound_jct_s <= 500


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_malleable_jobs_that_all_want_the_same_gpus_raise_it():
    """Eight jobs, 8 GPUs, s(k) = k^(1/2): with one GPU each they take 1,600 s, alone with four 800 s."""
    jobs = jobs_of([0.0] * 8, steps=1600.0, max_workers=4, max_ps=1, ps_demand=amounts())
    model = measured(jobs, n=2, speeds={(1, w): w**0.5 for w in (1, 2, 3, 4)})
    experiment = Experiment.of(jobs, cluster=no_network(2), speed=model)
    assert experiment.job_bounds_s.mean() == pytest.approx(800)
    i = np.arange(1, 9)  # heSRPT, with more than four GPUs for one job too: no schedule of such jobs has less
    least = 1600 / 8**0.5 * np.sqrt(i**2 - (i - 1) ** 2).mean()
    assert 0.9 * least < experiment.bound_jct_s <= experiment.run("hesrpt(oracle=True)").summary["mean_jct_s"]


def test_prices_never_make_it_worse_than_each_job_alone():
    jobs = jobs_of([0.0, 5000.0])  # they never meet
    experiment = experiment_of(jobs)
    assert experiment.bound_jct_s == pytest.approx(experiment.job_bounds_s.mean())


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
@pytest.mark.parametrize("name", ["interference_aware", "look_ahead_pods", "even", "marl", "load_balance"])
@pytest.mark.parametrize("level", ["mild", "calibrated"])
def test_no_scheduler_is_below_it_where_tasks_of_a_job_slow_each_other(name, level):
    jobs = trace("marl_jobs(load=1, n_pods=2, per_slot=1, n_slots=6)", seed=5)
    experiment = Experiment.of(jobs, cluster="pods(2, 4)", speed="step-time", interference=level)
    jct_s = experiment.run(name).table["jct_s"].to_numpy()
    assert (jct_s >= experiment.job_bounds_s * (1 - 1e-9)).all()
    assert jct_s.mean() >= experiment.bound_jct_s * (1 - 1e-9)
    alone = Experiment.of(jobs, cluster="pods(2, 4)", speed="step-time")
    assert (experiment.job_bounds_s >= alone.job_bounds_s * (1 - 1e-9)).all()


@pytest.mark.parametrize(("n_workers", "n_ps"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (4, 4)])
def test_a_gang_alone_on_an_empty_cluster_comes_within_a_percent_of_it(n_workers, n_ps):
    """The look-ahead tries all ways onto a machine; over several ones a card has to carry some exchanges at least."""
    jobs = Jobs.of(
        arrival_s=[0], total_steps=1000, duration_s=1000, model=["resnet-50"], n_workers=n_workers, n_ps=n_ps,
        worker_demand=amounts(gpus=1, cpus=2), ps_demand=amounts(cpus=2), home=[0],
    )  # fmt: skip
    experiment = Experiment.of(jobs, cluster="pods(2, 4)", speed="step-time", interference="calibrated")
    assert experiment.run("look_ahead_pods").summary["mean_jct_s"] == pytest.approx(experiment.bound_jct_s, rel=0.01)
    if n_workers == n_ps == 4:  # and that is far above what its tasks would need without each other
        assert experiment.bound_jct_s > 1.5 * replace(experiment, speed=step_time(jobs, experiment.cluster)).bound_jct_s


@pytest.mark.parametrize("name", ["fifo", "gavel_las", "gavel_gandiva", "gavel_las(ideal=True)"])
def test_no_scheduler_is_below_it_on_gavels_throughputs(name):
    experiment = Experiment.of(trace("gavel_jobs(12, mean_gap_s=600, multi_gpu=True)"), cluster="gavel-8-16-24")
    alone = experiment.speed.durations_s() * experiment.jobs.true_steps / experiment.jobs.total_steps
    assert (experiment.job_bounds_s <= alone * (1 + 1e-9)).all()
    record = experiment.run(name)
    assert (record.table["jct_s"] >= experiment.job_bounds_s * (1 - 1e-9)).all()
    assert record.info.config[BOUND] == pytest.approx(experiment.bound_jct_s)


def test_dl2s_short_jobs_take_2_19_slots_at_least(shared_data):
    """A prototype that is no part of labkit found the same, on the same seeds."""
    bounds = []
    for seed in range(1, 6):
        jobs = dl2.short_48n(seed, shared_data)
        model = dl2.speed(jobs, dl2.cluster("short_48n"), shared_data)
        bounds.append(Experiment.of(jobs, cluster="dl2-48n", speed=model, cadence=every_slot(SLOT_S)).bound_jct_s)
    assert np.mean(bounds) / SLOT_S == pytest.approx(2.1927, abs=5e-4)


RIGID = "poisson(6, per_hour=60, median_s=600, mean_s=700)"


def test_a_sweep_keeps_it_for_each_cell_and_compares_it_like_a_scheduler(tmp_path):
    grid = Grid(schedulers=["fifo", "srtf"], trace=RIGID, cluster="no_network(2)", seeds=3, speed="recorded")
    table = sweep(grid, folder=tmp_path / "s", workers=0, progress=False)
    by_seed = table.groupby("seed")[BOUND].nunique()
    assert (by_seed == 1).all()
    assert table[BOUND].nunique() == 3
    assert (table["mean_jct_s"] >= table[BOUND] * (1 - 1e-9)).all()
    for again in (read_sweep(tmp_path / "s"), sweep(grid, folder=tmp_path / "s", workers=0, progress=False)):
        assert again[BOUND].tolist() == table[BOUND].tolist()
    told = comparison(table, base="srtf").set_index("scheduler")
    assert list(told.index) == ["fifo", "srtf", BOUND_LABEL]
    bounds = table[table["scheduler"] == "srtf"][BOUND].to_numpy()
    srtf = table[table["scheduler"] == "srtf"]["mean_jct_s"].to_numpy()
    assert told.loc[BOUND_LABEL, "mean"] == pytest.approx(bounds.mean())
    assert np.isnan(told.loc[BOUND_LABEL, "difference"])
    assert told.loc["srtf", "times_bound"] == pytest.approx(srtf.mean() / bounds.mean())
    assert told.loc[BOUND_LABEL, "times_bound"] == 1.0
    assert BOUND_LABEL not in comparison(table, metric="makespan_s")["scheduler"].tolist()


@pytest.mark.parametrize("as_json", [False, True])
def test_compare_prints_a_line_and_a_column(capsys, as_json):
    jobs = jobs_of([0.0, 10.0, 20.0], duration_s=100.0, max_workers=1, max_ps=1)
    on_one_seed(Scenario.of(jobs, cluster="no_network(2)", speed="recorded"), schedulers="fifo,srtf", as_json=as_json)
    text = capsys.readouterr().out
    printed = text.splitlines()
    if not as_json:
        line = "Lower bound: a mean JCT of 100 s (every job runs on its fast"
        assert line in " ".join(text.split())
        assert any("times" in line for line in printed)
        return
    rows = [json.loads(line) for line in printed]
    assert [row["bound"]["mean_jct_s"] for row in rows] == pytest.approx([100.0, 100.0])
    assert [row["times_bound"] for row in rows] == pytest.approx([1.0, 1.0])
