"""What `labkit profile` measured of co-located jobs reaches every placer and policy of a run, and a training."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError, ProfileError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.resources import CPUS
from labkit.core.snapshot import Snapshot
from labkit.experiment import Experiment, Grid, sweep
from labkit.learning.marl.settings import Setting
from labkit.schedulers import make
from labkit.schedulers.marl.scenes import FAR, declared_speed
from labkit.schedulers.marl.scheduler import Marl
from labkit.speed.interference.levels import level
from labkit.speed.interference.measured import table_of
from labkit.speed.interference.use import task_use
from labkit.speed.profiled import ColocationSample, GangMeasurement, Pool, TestbedProfile, write
from labkit.topology.inventory import Host, cluster_of
from labkit.workloads import marl_jobs
from labkit.workloads.expressions import trace

MODELS = ("dssm", "wlm")
TRACE = "marl_jobs(load=1, n_pods=2, n_slots=4, per_slot=2, models=('dssm', 'wlm'), most_workers=2, most_ps=2)"
HOSTS = [Host(f"h{i}", gpus=2, cpus=16, memory_gb=8, pod=i // 2) for i in range(4)]


def measured(*, busy_cores: float = 0.0, cores: float = 1.5) -> TestbedProfile:
    """A testbed on which each core that others use makes an update a third slower."""
    beside = [
        ColocationSample(job=model, co_runners="load", cpu_cores=own, co_cpu_cores=others, alone_s=0.01,
               shared_s=0.01 * (1 + others / 3), busy_cores=busy_cores)
        for model, own in zip(MODELS, (cores, 0.5), strict=True) for others in (0.5, 1.0, 2.0, 3.0, 4.0)
    ]  # fmt: skip
    cells = [
        GangMeasurement(model=model, n_ps=1, n_workers=w, step_s=0.01, cpu_s=0.01 * (own * w + 0.25), ps_cpu_s=0.0025)
        for model, own in zip(MODELS, (cores, 0.5), strict=True)
        for w in (1, 2)
    ]
    pools = [Pool(name=host.name, hosts=[host.name], cores=16) for host in HOSTS]
    return TestbedProfile(name="lab", hosts=HOSTS, pools=pools, cells=cells, beside=beside)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write(measured(), tmp_path / "lab.json"))


class Hears:
    """Keeps what it is told before a run."""

    def begin(self, context: Context) -> None:
        self.context = context

    def schedule(self, snapshot: Snapshot) -> Placement:
        return make("fifo").schedule(snapshot)


def heard(**options: Any) -> Context:
    hears, jobs = Hears(), marl_jobs(1, n_slots=1, n_pods=2, models=MODELS, most_workers=1, most_ps=1)
    Experiment.of(jobs, **{"cluster": cluster_of(HOSTS, name="lab"), **options}).session(hears)
    return hears.context


@pytest.mark.parametrize("given", ["interference", "profile", "throughputs", "both"])
def test_schedulers_are_told_the_fit_and_the_use_however_the_profile_is_given(file: str, given: str) -> None:
    options = {"throughputs": file, "interference": file} if given == "both" else {given: file}
    told = heard(**options).interference
    assert told is not None
    assert told.declared == told.uses
    use = told.uses["dssm"]
    assert (use.worker_cores, use.ps_cores) == (pytest.approx(1.5), pytest.approx(0.25))
    table = table_of(measured())
    np.testing.assert_allclose(told.model.predict(table), table["shared_s"] / table["alone_s"], rtol=0.05)


def test_without_a_file_the_catalogue_is_what_is_known_of_use() -> None:
    told = heard(interference="calibrated").interference
    assert told is not None
    assert told.uses is not None
    assert told.declared is None
    assert heard().interference is None


def test_a_level_by_name_is_no_truth_of_a_profiled_testbed(file: str) -> None:
    with pytest.raises(InputError, match=r"\A[^\n]*interference 'calibrated'[^\n]*\Z"):
        heard(profile=file, interference="calibrated")


def test_a_profile_of_a_busy_testbed_says_so(tmp_path: Path) -> None:
    path = write(measured(busy_cores=0.4), tmp_path / "busy.json")
    with pytest.raises(ProfileError, match=r"of 10 measurements .*, 10 were made while something else kept more than"):
        level(path)
    assert heard(profile=path).interference is None  # simulated all the same, with nothing told of it


def test_the_policy_sees_measured_use_in_a_run_as_in_training(file: str) -> None:
    policy = make("marl(fallback=None)")
    assert isinstance(policy, Marl)
    known = heard(interference=file)
    policy.begin(known)
    setting = Setting([file_of_hosts(file)], [TRACE], file)
    scene, world = setting(np.random.default_rng(0))
    assert policy._knowledge is not None
    kind = known.jobs.models.index("dssm")
    in_run = policy._knowledge.scene.facts.cores[0, known.jobs.model == kind]
    assert set(in_run.round(9)) == {1.5}
    assert {0.5, 1.5} == {round(float(c), 9) for c in scene.facts.cores[0]}
    np.testing.assert_array_equal(scene.facts.cores, world.facts.cores)


def test_a_shipped_policy_sees_what_it_was_trained_with(tmp_path: Path) -> None:
    setting = Setting(["marl-4x20"], ["marl_jobs(load=5)"], "calibrated")
    scene, world = setting(np.random.default_rng(0))
    np.testing.assert_allclose(world.facts.cores[0], 2.6 * scene.facts.cores[0])


def file_of_hosts(beside: str) -> str:
    path = Path(beside).with_name("hosts.toml")
    lines = [
        f'[[hosts]]\nname = "{host.name}"\ngpus = {host.gpus}\ncpus = {host.cpus}\nmemory_gb = 8\npod = {host.pod}\n'
        for host in HOSTS
    ]
    path.write_text("\n".join(lines))
    return str(path)


def test_a_sweep_and_a_training_take_the_file(file: str) -> None:
    from labkit.learning.marl.trainer import Recipe, Trainer

    hosts = file_of_hosts(file)
    rules = ["even_pods", "least_interference", "marl", "look_ahead_pods"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = sweep(
            Grid(schedulers=rules, trace=TRACE, cluster=hosts, interference=["none", file]), workers=0, progress=False
        )
    assert not table["mean_jct_s"].isna().any()
    means = table.pivot_table(index="scheduler", columns="interference", values="mean_jct_s")
    assert (means[file] > means["none"]).all()
    recipe = Recipe(n_lessons=1, n_rounds=1, n_draws=2, n_fits=5)
    made = Trainer(Setting([hosts], [TRACE], file), recipe=recipe)
    assert [update.kind for update in made.updates()] == ["lesson", "round"]


@given(times=st.floats(0.001, 1000), seed=st.integers(0, 20))
def test_a_duration_far_from_the_catalogue_s_makes_steps_so_much_faster_or_slower(times: float, seed: int) -> None:
    jobs = marl_jobs(1, n_slots=1, n_pods=2, seed=seed)
    cluster = cluster_of(HOSTS, name="lab")
    plain = declared_speed(jobs, cluster)
    other = declared_speed(replace(jobs, duration_s=jobs.duration_s * times), cluster)
    expected = times if times > FAR or times < 1 / FAR else 1.0
    np.testing.assert_allclose(other.compute_s, plain.compute_s * expected)
    np.testing.assert_allclose(other.model_bytes, plain.model_bytes * expected)


def test_jobs_of_no_catalogue_are_left_alone() -> None:
    jobs = trace("poisson(5, per_hour=10)")
    speed = declared_speed(jobs, cluster_of(HOSTS, name="lab"))
    assert (speed.compute_s > 0).all()


COLUMNS = "job,co_runners,cpu_cores,pcie_gbps,alone_s,shared_s"
BY_HAND = [
    "a,,2.0,3.6,.45,.45", "b,,1.5,16,.54,.54", "c,,.5,2,.15,.15", "a,b,2.0,3.6,.45,.50", "b,a,1.5,16,.54,.57",
    "c,b,.5,2,.15,.18", "a,c,2.0,3.6,.45,.46", "b,b,1.5,16,.54,.70", "c,a+b,.5,2,.15,.20", "a,a+a,2.0,3.6,.45,.55",
    "b,c+c,1.5,16,.54,.58", "c,c,.5,2,.15,.155",
]  # fmt: skip


def table(tmp_path: Path, rows: list[str], columns: str = COLUMNS) -> str:
    (tmp_path / "mine.csv").write_text("\n".join([columns, *rows]) + "\n")
    return str(tmp_path / "mine.csv")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "it has no rows; expected one for each measurement"),
        ([*BY_HAND, "c,b,many,2,.15,.2"], "row 13: cpu_cores is many; expected a number >= 0"),
        ([*BY_HAND, "c,b,.5,2,.15,150"], "row 13: shared_s is 1e+03 times alone_s; expected 0.5 to 100 times"),
        ([*BY_HAND, "c,b,.5,2,.3,.1"], "row 13: shared_s is 0.333 times alone_s; expected 0.5 to 100 times"),
        ([*BY_HAND, "c,,.5,2,.15,150"], "with nothing beside the job; expected 0.5 to 2 times"),
        ([*BY_HAND[:3], *["c,b,.5,2,.15,.18"] * 9], "all 9 measurements with a co-runner are of the same load"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_in_a_line(tmp_path: Path, rows: list[str], told: str) -> None:
    with pytest.raises(ProfileError) as refused:
        level(table(tmp_path, rows))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_slowdown_is_foreseen_beyond_the_largest_load_that_was_measured(tmp_path: Path) -> None:
    known = level(table(tmp_path, BY_HAND))
    assert known is not None
    far = known.model.slowdown(0.5, 2, co_cpu_cores=[4.0, 40.0, 400.0], co_pcie_gbps=[32.0, 320.0, 3200.0])
    assert far[0] == far[1] == far[2] < 3


def test_servers_use_what_the_table_says_of_them_or_else_what_they_ask_for(tmp_path: Path) -> None:
    known = level(
        table(tmp_path, [f"{row},0.7" if row[0] == "a" else f"{row}," for row in BY_HAND], COLUMNS + ",ps_cores")
    )
    assert known is not None
    jobs = marl_jobs(load=1, n_pods=1, n_slots=2, models=("dssm",)).with_columns(models=("a",))
    assert task_use(jobs, uses=known.uses)[0][1].tolist() == [0.7] * len(jobs)
    other = jobs.with_columns(models=("b",))
    assert task_use(other, uses=known.uses)[0][1].tolist() == other.ps_demand[:, CPUS].tolist()
