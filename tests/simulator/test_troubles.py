"""Slow and hot tasks, static shares of the samples, and memory that grows: against arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from labkit.core import Jobs, Kind, Placement, Quantity, Reason, Repair, Role, Snapshot, Trial, repairs_of
from labkit.core.errors import InputError, TraceError, TruthError
from labkit.core.events import Cause
from labkit.core.resources import amounts
from labkit.experiment import Experiment
from labkit.results.record import RunRecord
from labkit.schedulers import make
from labkit.simulator import Faults, Overheads, Troubles, Variation
from labkit.speed.bottleneck import Bottleneck, Work
from labkit.topology import no_network

WORKERS = {"xdeepfm": Work(1.0, 1e-9, 0.0)}
"""A worker with one core makes a step a second, and servers are no limit."""
SERVERS = {"xdeepfm": Work(1e-9, 1.0, 0.0)}
"""A server with one core takes in an update a second, and workers are no limit."""


def jobs_of(n: int = 1, *, steps: float = 1000, **columns: object) -> Jobs:
    given = {
        "model": "xdeepfm", "n_workers": 4, "n_ps": 4, "max_workers": 8, "max_ps": 8, "sync": False,
        "worker_demand": amounts(cpus=1, memory_gb=1), "ps_demand": amounts(cpus=1, memory_gb=8), "duration_s": 1000.0,
    } | columns  # fmt: skip
    return Jobs.of(arrival_s=np.zeros(n), total_steps=steps, **given)


def run(jobs: Jobs, work: dict[str, Work], scheduler: object = "fifo", **options: object) -> RunRecord:
    cluster = no_network(8)
    sharding = options.pop("sharding", "dynamic")
    speed = Bottleneck(jobs, cluster, work=work, sharding=sharding)  # type: ignore[arg-type]
    return labkit.simulate(jobs, cluster=cluster, scheduler=scheduler, speed=speed, **options)


def jct(record: RunRecord) -> float:
    return float(record.table["jct_s"][0])


class Mends:
    """First come, first served; then one repair at a moment."""

    def __init__(self, at_s: float, *repairs: tuple[int, int, int, int]) -> None:
        self.at_s, self.repairs = at_s, repairs_of(repairs)

    @property
    def quantum_s(self) -> float:
        return self.at_s

    def schedule(self, snapshot: Snapshot) -> Placement:
        if snapshot.now_s == self.at_s:
            return Placement.of([], repairs=self.repairs, reasons=[Reason(int(self.repairs["job"][0]), "it is slow")])
        return make("fifo").schedule(snapshot)


def slow(role: Role, *, pace: float = 0.25, after_s: float = 100.0, task: int = 1) -> Troubles:
    return Troubles.of([(0, int(role), task, after_s, pace, 1.0)])


# --- slow tasks


def test_a_worker_at_a_quarter_takes_a_quarter_of_the_samples_where_they_are_shared_on_demand():
    """Four workers make 4 steps/s; from 100 s on 3.25: 100 + 600 / 3.25 s."""
    assert jct(run(jobs_of(), WORKERS, troubles=slow(Role.WORKER))) == pytest.approx(100 + 600 / 3.25, rel=1e-6)


def test_a_worker_at_a_quarter_holds_the_whole_job_up_where_samples_were_divided_before():
    """It has a quarter of the 600 steps that are left, at 0.25 steps/s."""
    static = run(jobs_of(), WORKERS, troubles=slow(Role.WORKER), sharding="static")
    assert jct(static) == pytest.approx(100 + 600 / 4 / 0.25, rel=1e-6)
    assert jct(run(jobs_of(), WORKERS, sharding="static")) == pytest.approx(250, rel=1e-6)


def test_a_server_at_a_quarter_of_its_speed_slows_all_workers():
    """Each of four servers takes in a quarter of the updates: 4 steps/s, then 1."""
    for sharding in ("dynamic", "static"):
        record = run(jobs_of(), SERVERS, troubles=slow(Role.PS), sharding=sharding)
        assert jct(record) == pytest.approx(100 + 600, rel=1e-6)


def test_a_server_with_twice_the_mean_load_halves_the_speed():
    hot = Troubles.of([(0, int(Role.PS), 2, 100.0, 1.0, 2.0)])
    assert jct(run(jobs_of(), SERVERS, troubles=hot)) == pytest.approx(100 + 600 / 2, rel=1e-6)


def test_seconds_of_a_trouble_count_from_the_first_step_of_its_job():
    record = run(jobs_of(), SERVERS, troubles=slow(Role.PS), overheads=Overheads(start_s=30))
    slower = record.events[record.events["kind"] == Kind.PROGRESSED]
    assert slower[["time_s", "value", "speed"]].tolist() == [(130.0, pytest.approx(400), pytest.approx(1))]


# --- repairs


@pytest.mark.parametrize(
    ("role", "work", "trouble", "repair"),
    [
        (Role.WORKER, WORKERS, slow(Role.WORKER), (0, 0, 1, Repair.REPLACE)),
        (Role.PS, SERVERS, slow(Role.PS), (0, 1, 1, Repair.REPLACE)),
        (Role.PS, SERVERS, Troubles.of([(0, 1, 1, 100.0, 1.0, 4.0)]), (0, 1, -1, Repair.BALANCE)),
    ],
    ids=["slow worker", "slow PS", "hot PS"],
)
def test_a_repair_ends_a_trouble_after_exactly_what_a_rescale_takes(role, work, trouble, repair):
    del role
    slowed = run(jobs_of(), work, troubles=trouble).events
    speed = float(slowed["speed"][slowed["kind"] == Kind.PROGRESSED][0])
    record = run(jobs_of(), work, Mends(150.0, repair), troubles=trouble, overheads=Overheads(rescale_s=20))
    done = 400 + 50 * speed
    assert jct(record) == pytest.approx(170 + (1000 - done) / 4, rel=1e-6)
    kinds = [Kind(kind).name for kind in record.events["kind"]]
    assert kinds[kinds.index("REPAIRED") :][:4] == ["REPAIRED", "PAUSED", "EXPLAINED", "RESCALED"]
    assert record.decisions["reason"].tolist() == ["it is slow"]


def test_the_wrong_repair_mends_nothing():
    """The blocks of a slow server move and it stays slow; another server is replaced and this one stays slow."""
    for repair in ((0, 1, -1, Repair.BALANCE), (0, 1, 2, Repair.REPLACE)):
        assert jct(run(jobs_of(), SERVERS, Mends(150.0, repair), troubles=slow(Role.PS))) == pytest.approx(
            700, rel=1e-6
        )


def test_a_trouble_that_has_not_begun_is_not_mended():
    record = run(jobs_of(), SERVERS, Mends(50.0, (0, 1, 1, Repair.REPLACE)), troubles=slow(Role.PS))
    assert jct(record) == pytest.approx(700, rel=1e-6)


def test_processes_that_start_again_are_not_slow_and_blocks_stay_where_they_were():
    class Restarts:
        quantum_s = 150.0

        def schedule(self, snapshot: Snapshot) -> Placement:
            if snapshot.now_s == 150.0:
                return Placement.of([0])
            return make("fifo").schedule(snapshot)

    assert jct(run(jobs_of(), SERVERS, Restarts(), troubles=slow(Role.PS))) == pytest.approx(300 + 550 / 4, rel=1e-6)
    hot = Troubles.of([(0, 1, 2, 100.0, 1.0, 2.0)])
    assert jct(run(jobs_of(), SERVERS, Restarts(), troubles=hot)) == pytest.approx(300 + 500 / 2, rel=1e-6)


# --- memory


def growing(*, base_gb: float = 8.0, growth_gb: float = 48.0, **columns: object) -> Jobs:
    """Four servers of 8 GB, one core each: 4 steps/s; together they hold base + 0.048 GB a step."""
    return jobs_of(ps_memory_base_gb=base_gb, ps_memory_growth_gb=growth_gb, **columns)


def test_a_server_runs_out_of_memory_at_the_exact_moment():
    """(32 - 8) / 0.048 = 500 steps, after 125 s; with static resources for good, at the third time on end."""
    record = run(growing(), SERVERS)
    rows = record.events
    failed = rows[np.isin(rows["kind"], [Kind.TASK_FAILED, Kind.FAILED, Kind.DROPPED])]
    assert [Kind(kind).name for kind in failed["kind"]] == ["TASK_FAILED", "FAILED"] * 2 + ["TASK_FAILED", "DROPPED"]
    assert set(failed["cause"]) == {Cause.OUT_OF_MEMORY}
    assert failed["time_s"] == pytest.approx(125.0)
    assert failed["value"][1::2] == pytest.approx(500.0)
    first = failed[0]
    assert (first["role"], first["task"], first["value"]) == (Role.PS, 0, -9.0)
    assert first["machine"] >= 0
    assert record.failures["cause"].tolist() == ["out_of_memory"] * 6
    assert rows["kind"][-1] == Kind.DROPPED


def test_the_hottest_server_runs_out_first():
    """Twice the mean: its half of all is 8 GB at 16 GB, after 166.67 steps."""
    record = run(growing(), SERVERS, troubles=Troubles.of([(0, 1, 3, 0.0, 1.0, 2.0)]))
    first = record.events[record.events["kind"] == Kind.TASK_FAILED][0]
    assert first["task"] == 3
    assert first["time_s"] == pytest.approx((16 - 8) / 0.048 / 2)


def test_a_job_that_needs_just_what_it_has_comes_to_its_end():
    assert jct(run(growing(growth_gb=24.0), SERVERS)) == pytest.approx(250)


def test_memory_that_is_given_in_time_lets_the_job_go_on():
    class Gives:
        quantum_s = 100.0

        def schedule(self, snapshot: Snapshot) -> Placement:
            trial = Trial(snapshot)
            if snapshot.now_s == 100.0:
                trial.resize(0, Role.PS, memory_gb=16.0)
            return trial.placement() if snapshot.now_s else make("fifo").schedule(snapshot)

    assert jct(run(growing(), SERVERS, Gives())) == pytest.approx(250)


@pytest.mark.parametrize(("every_s", "kept"), [(0.0, 500.0), (100.0, 400.0), (130.0, 0.0)])
def test_a_job_out_of_memory_falls_back_to_its_newest_checkpoint(every_s, kept):
    record = run(growing(), SERVERS, checkpoint_s=every_s)
    failed = record.events[record.events["kind"] == Kind.FAILED]
    assert failed["value"][0] == pytest.approx(kept)


def test_checkpoints_are_those_of_faults_where_nothing_else_is_said():
    record = run(growing(), SERVERS, faults=Faults(mtbf_s=1e12, mttr_s=1, checkpoint_s=100))
    assert record.events["value"][record.events["kind"] == Kind.FAILED][0] == pytest.approx(400)


def test_more_memory_in_between_begins_the_count_anew():
    """8, 9, 10, 11 GB a server: it runs out four times and is done at the fifth."""

    class More:
        quantum_s = 1e6

        def __init__(self) -> None:
            self.gb = 7.0

        def schedule(self, snapshot: Snapshot) -> Placement:
            if not len(snapshot.waiting):
                return Placement.nothing()
            self.gb += 1
            row = {"job": [0, 0], "role": [0, 1], "group": [0, 1], "count": 4, "memory_gb": [np.nan, self.gb]}
            return Placement.of([0], **row)

    record = run(growing(growth_gb=36.0), SERVERS, More())
    assert (record.events["kind"] == Kind.FAILED).sum() == 3
    assert jct(record) == pytest.approx(250)


# --- what is told


def newest(record: RunRecord, quantity: Quantity, role: Role) -> dict[int, float]:
    rows = record.events
    rows = rows[(rows["kind"] == Kind.MEASURED) & (rows["quantity"] == quantity) & (rows["role"] == role)]
    return {int(row["task"]): float(row["value"]) for row in rows[rows["time_s"] == rows["time_s"].max()]}


def test_all_of_a_role_are_told_where_one_is_slow_and_none_where_all_are_alike():
    record = run(jobs_of(), WORKERS, troubles=slow(Role.WORKER), measure_every_s=150)
    assert newest(record, Quantity.COMPUTE_S, Role.WORKER) == {-1: pytest.approx(4), 0: pytest.approx(1),
        1: pytest.approx(4), 2: pytest.approx(1), 3: pytest.approx(1)}  # fmt: skip
    cores = newest(record, Quantity.CORES, Role.WORKER)
    assert cores == {-1: pytest.approx(3.25), 0: pytest.approx(1), 1: pytest.approx(0.25), 2: pytest.approx(1),
        3: pytest.approx(1)}  # fmt: skip
    assert set(newest(record, Quantity.CORES, Role.PS)) == {-1}


def test_a_hot_server_is_told_by_its_load_and_a_slow_one_by_its_time_for_an_update():
    hot = run(jobs_of(), SERVERS, troubles=Troubles.of([(0, 1, 2, 10.0, 1.0, 2.0)]), measure_every_s=150)
    assert newest(hot, Quantity.LOAD, Role.PS) == {-1: pytest.approx(0.5), 2: pytest.approx(0.5)}
    assert newest(hot, Quantity.CORES, Role.PS) == {-1: pytest.approx(2), 2: pytest.approx(1)}
    lame = run(jobs_of(), SERVERS, troubles=slow(Role.PS, after_s=10), measure_every_s=150)
    assert newest(lame, Quantity.COMPUTE_S, Role.PS)[1] == pytest.approx(4)
    assert newest(lame, Quantity.COMPUTE_S, Role.PS)[0] == pytest.approx(1)
    use = newest(lame, Quantity.CORES, Role.PS)
    assert use[1] == pytest.approx(use[0]), "it does as many updates as the others, which wait"


def test_memory_in_use_follows_growth():
    record = run(growing(growth_gb=20.0), SERVERS, measure_every_s=100)
    rows = record.measured.query("quantity == 'memory_gb' and role == 'ps'")
    assert rows["value"].tolist() == pytest.approx([(8 + 0.02 * 400) / 4, (8 + 0.02 * 800) / 4])


def test_a_scheduler_sees_measured_tasks_until_they_are_replaced():
    seen = []

    class Looks(Mends):
        measure_every_s = 30.0
        quantum_s = 50.0  # type: ignore[assignment]

        def schedule(self, snapshot: Snapshot) -> Placement:
            seen.append((snapshot.now_s, snapshot.measured_tasks().task.tolist()))
            return super().schedule(snapshot)

    run(jobs_of(), SERVERS, Looks(200.0, (0, 1, 1, Repair.REPLACE)), troubles=slow(Role.PS))
    told = dict(seen)
    assert told[100.0] == []
    assert told[150.0] == told[200.0] == [0, 1, 2, 3]
    assert told[250.0] == [0, 2, 3], "what was told of the new process is forgotten, and nothing is told any more"


def test_a_scheduler_cannot_read_what_memory_will_be_needed():
    snapshot = Experiment.of(growing(), cluster=no_network(8), speed="bottleneck").session(make("fifo")).snapshot()
    for column in ("ps_memory_growth_gb", "ps_memory_base_gb"):
        with pytest.raises(TruthError, match="used_memory_gb"):
            getattr(snapshot.table, column)
        assert not hasattr(snapshot.jobs, column)


# --- the same as before, again and again


def test_troubles_that_never_come_change_no_bit_of_the_log():
    jobs = jobs_of(6)
    later = Troubles.of([(0, 0, 0, 1e8, 0.5, 1.0)])
    kept = [run(jobs, WORKERS, **({"troubles": later} if some else {})).events for some in (False, True)]
    assert kept[0].tobytes() == kept[1].tobytes()


class Repairs:
    """First come, first served; repairs random tasks at random moments, and says so."""

    quantum_s = 70.0

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def schedule(self, snapshot: Snapshot) -> Placement:
        trial = Trial(snapshot)
        for job in snapshot.jobs.number[snapshot.jobs.running].tolist():
            if self.rng.random() < 0.3:
                role = int(self.rng.integers(2))
                trial.replace(job, role, int(self.rng.integers((trial.n_workers, trial.n_ps)[role][job])))
            elif self.rng.random() < 0.3:
                trial.balance(job)
            trial.explain(job, f"draw {self.rng.integers(3)}")
        return Placement.joined([make("fifo").schedule(snapshot), trial.placement()])


@given(
    seed=st.integers(0, 10**6), paces=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
    sharding=st.sampled_from(["dynamic", "static"]), error=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_whatever_goes_wrong_steps_are_neither_lost_nor_made_twice_and_the_log_repeats(seed, paces, sharding, error):
    """Every job completes with its steps or is given up for its memory; troubles only ever slow; all is told again."""
    rng = np.random.default_rng(seed)
    rows = [
        (int(rng.integers(3)), int(role := rng.integers(2)), int(rng.integers(4)), float(rng.uniform(0, 300)), pace,
         float(rng.choice([1.0, 1.5, 3.0])) if role else 1.0)
        for pace in paces
    ]  # fmt: skip
    jobs = jobs_of(3, steps=[400, 800, 1200], ps_memory_growth_gb=rng.choice([0.0, 10.0, 40.0], 3))
    options = {"sharding": sharding, "variation": Variation(50, error=error) if error else None}
    records = [
        run(jobs, WORKERS, Repairs(seed), troubles=Troubles.of(rows), measure_every_s=40, **options) for _ in range(2)
    ]
    assert records[0].events.tobytes() == records[1].events.tobytes()
    ends = records[0].events[np.isin(records[0].events["kind"], [Kind.COMPLETED, Kind.DROPPED])]
    assert sorted(ends["job"]) == [0, 1, 2]
    for row in ends:
        full = float(jobs.total_steps[row["job"]])
        assert row["value"] == full if row["kind"] == Kind.COMPLETED else row["value"] < full
    if not error:
        free = run(jobs, WORKERS, sharding=sharding).table["jct_s"].to_numpy()
        slowed = records[0].table["jct_s"].to_numpy()
        assert (np.isnan(slowed) | np.isnan(free) | (slowed >= free * (1 - 1e-9))).all()


# --- what is asked for


def test_drawn_troubles_are_about_as_many_as_asked_and_the_same_for_a_seed():
    jobs = jobs_of(2000)
    drawn = Troubles.drawn(jobs, rng=np.random.default_rng(1), hot_ps=0.13, slow_ps=0.06, slow_worker=0.1)
    rows = drawn.rows
    assert (rows["load"] > 1).sum() == pytest.approx(260, abs=50)
    assert ((rows["pace"] < 1) & (rows["role"] == Role.PS)).sum() == pytest.approx(120, abs=35)
    assert (rows["role"] == Role.WORKER).sum() == pytest.approx(200, abs=45)
    assert len(set(rows["job"])) == len(rows)
    again = Troubles.drawn(jobs, rng=np.random.default_rng(1), hot_ps=0.13, slow_ps=0.06, slow_worker=0.1)
    assert again.rows.tobytes() == rows.tobytes()


def test_words_and_files_name_the_same_troubles(tmp_path):
    jobs = jobs_of(3)
    file = tmp_path / "troubles.csv"
    file.write_text("job,role,task,after_s,pace,load\n2,ps,1,60,0.25,\n0,worker,3,0,0.5,1\n")
    made = Experiment.of(jobs, cluster=no_network(8), speed="bottleneck", troubles=file)
    assert made.troubles.rows.tolist() == [(2, 1, 1, 60, 0.25, 1), (0, 0, 3, 0, 0.5, 1)]
    assert "2 of troubles.csv" in made.speeds
    drawn = Experiment.of(jobs_of(200), cluster=no_network(8), speed="bottleneck", troubles="hot_ps=0.5", seed=3)
    assert "hot_ps=0.5: " in drawn.speeds
    assert Experiment.of(jobs, cluster=no_network(8), speed="bottleneck", troubles="none").troubles is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("job,role,task,after_s,pace\n9,ps,0,0,0.5\n", "line 2: unknown job '9'"),
        ("job,role,task,after_s,pace\n0,chief,0,0,0.5\n0,ps,0,x,0.5\n", "2 faults: line 2: unknown role 'chief'"),
        ("job,role,task,after_s,pace\n0,ps,0.5,0,0.5\n", "task is 0.5; expected a whole number"),
        ("job,role,task,after_s,pace\n0,ps,0,0,0\n", "pace is 0; expected a part of its pace above 0"),
        ("job,role,task,after_s,load\n0,worker,0,0,2\n", "only parameter servers have a load"),
        ("job,role,task,after_s,load\n0,ps,0,0,nan\n", "load is 'nan'; expected a number"),
        ("job,role,task,after_s,load\n0,ps,8,0,2\n", "ps 8 of job 0, which never has more than 8"),
        ("job,role,task,pace\n0,ps,0,2\n", "column after_s is missing"),
        ("job,role,task,after_s,speed\n", "unknown column 'speed'"),
        ("job,role,task,after_s\n0,ps\n", "line 2: expected"),
    ],
)
def test_a_bad_file_is_told_with_its_lines(tmp_path, text, told):
    file = tmp_path / "troubles.csv"
    file.write_text(text)
    with pytest.raises((TraceError, InputError)) as refused:
        Experiment.of(jobs_of(), cluster=no_network(8), speed="bottleneck", troubles=file)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"troubles": "hot_ps=2"}, "hot_ps is 2; expected a part of the jobs from 0 to 1"),
        ({"troubles": "hot_ps=0.7,slow_ps=0.7"}, "1.4 in all; expected at most 1"),
        ({"troubles": "hot=0.1"}, "unknown trouble 'hot'. Did you mean"),
        ({"troubles": "hot_ps=much"}, "hot_ps is 'much'; expected a part"),
        ({"troubles": "there/is/none.csv"}, "there is no such file"),
        ({"troubles": 3}, "troubles is 3; expected Troubles, a CSV file"),
        ({"sharding": "statc"}, "unknown sharding 'statc'"),
        ({"sharding": "static", "speed": "recorded"}, "sharding 'static' needs speed 'bottleneck'"),
        ({"overheads": "dlrove"}, "unknown overheads 'dlrove'. Did you mean 'dlrover'"),
        ({"checkpoint_s": -1.0}, "checkpoint_s is -1.0; expected seconds >= 0"),
    ],
)  # fmt: skip
def test_a_bad_option_is_told_in_one_line(options, told):
    with pytest.raises(InputError) as refused:
        labkit.simulate(jobs_of(), cluster=no_network(8), scheduler="fifo", **({"speed": "bottleneck"} | options))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("jobs", "options", "told"),
    [
        (jobs_of(), {"troubles": slow(Role.PS)}, "Recorded knows nothing of slow and hot tasks"),
        (growing(), {}, "Recorded knows nothing of memory that grows, as of job 0"),
    ],
)
def test_what_a_speed_model_cannot_show_is_refused(jobs, options, told):
    with pytest.raises(InputError) as refused:
        labkit.simulate(jobs, cluster=no_network(8), scheduler="fifo", speed="recorded", **options)
    assert told in str(refused.value)
    assert "'bottleneck'" in str(refused.value)


def test_memory_that_grows_needs_servers_with_memory():
    jobs = growing(ps_demand=amounts(cpus=1))
    with pytest.raises(InputError, match="4 servers of 0 GB; give n_ps and ps_memory_gb"):
        run(jobs, SERVERS)


def test_overheads_as_published_are_those_of_launching_and_starting():
    made = Experiment.of(jobs_of(), cluster=no_network(8), overheads="dlrover")
    assert made.overheads == Overheads(120, 120, 120)
    assert replace(made, overheads=None).overheads is None
