"""The profile of a testbed: its file, the sharing of cores, and the speed model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Jobs
from labkit.core.errors import InputError, ProfileError
from labkit.core.events import Kind
from labkit.core.protocols import ChangeModel
from labkit.core.resources import amounts
from labkit.core.running import Running
from labkit.experiment import simulate
from labkit.experiment.speeds import speed_model
from labkit.simulator import Overheads
from labkit.speed.profiled import (
    ColocationSample,
    GangMeasurement,
    LinkMeasurement,
    Overhead,
    Pool,
    ProfiledSpeed,
    TestbedProfile,
    YardstickSample,
    max_min,
    read,
    write,
)
from labkit.speed.profiled.contention import MeasuredContention, foreseen, speed_functions
from labkit.speed.profiled.model import UpdateGrid
from labkit.speed.profiled.overheads import Costs
from labkit.testbed.profiling.isolated import ChangeMeasurement
from labkit.testbed.profiling.measure import overheads
from labkit.testing.speeds import check_speed_model
from labkit.topology.inventory import Host
from labkit.workloads import dl2_jobs

HOSTS = [Host(name, gpus=4, cpus=2, memory_gb=8, device_type="laptop") for name in ("a", "b")]


def cell(
    model: str = "m", n_ps: int = 1, n_workers: int = 1, *, step_s: float | None = 0.1, **more: Any
) -> GangMeasurement:
    return GangMeasurement(
        model=model, n_ps=n_ps, n_workers=n_workers, step_s=step_s, **{"cpu_s": 0.1, "ps_cpu_s": 0.0, **more}
    )


def profile(*cells: GangMeasurement, cores: float = 1.0, **more: Any) -> TestbedProfile:
    """One machine of so many cores that passes for two hosts."""
    pools = [Pool(name="laptop", hosts=["a", "b"], cores=cores)]
    return TestbedProfile(hosts=HOSTS, pools=pools, cells=list(cells) or [cell()], **more)


def jobs(*models: str, steps: float = 100, n_workers: int = 1, **more: Any) -> Jobs:
    demand = amounts(gpus=1, cpus=0.01)
    return Jobs.of(
        arrival_s=[0.0] * len(models), total_steps=steps, model=models, n_ps=1, n_workers=n_workers,
        worker_demand=demand, ps_demand=amounts(cpus=0.01), **more,
    )  # fmt: skip


def speeds(these: Jobs, known: TestbedProfile, *, groups: list[int] | None = None) -> list[float]:
    """Return the speeds of jobs that all run, each with one worker and one PS, in these device groups."""
    n = len(these)
    where = np.repeat(np.array(groups or [0] * n, np.int32), 2)
    running = Running(
        job=np.arange(n, dtype=np.int32), first=np.arange(0, 2 * n + 1, 2, dtype=np.int32),
        role=np.tile(np.array([0, 1], np.int8), n), group=where, count=np.ones(2 * n, np.int32),
        n_workers=these.n_workers, n_ps=these.n_ps,
    )  # fmt: skip
    found: list[float] = ProfiledSpeed(these, known.cluster(), profile=known).speeds(running).tolist()
    return found


# --- the sharing of cores


def test_a_process_that_asks_for_little_gets_it_and_the_others_divide_the_rest() -> None:
    assert max_min(np.array([0.2, 2.0, 1.0]), 2.0).tolist() == [0.2, 0.9, 0.9]
    assert max_min(np.array([1.0, 1.0]), 3.0).tolist() == [1.0, 1.0]
    assert max_min(np.array([2.0, 2.0]), 3.0, weight=np.array([2.0, 1.0])).tolist() == [2.0, 1.0]


@given(
    st.lists(st.tuples(st.floats(0, 8), st.floats(0.1, 4)), min_size=1, max_size=8), st.floats(0.1, 8)
)  # fmt: skip
def test_shares_are_max_min_fair(asked: list[tuple[float, float]], capacity: float) -> None:
    demand, weight = (np.array(column) for column in zip(*asked, strict=True))
    share = max_min(demand, capacity, weight=weight)
    assert (share <= demand + 1e-9).all()
    assert share.sum() == pytest.approx(min(capacity, demand.sum()))
    held_back = share < demand - 1e-9
    level = share / weight
    if held_back.any():  # all that want more are equally far, and none is farther
        assert np.ptp(level[held_back]) < 1e-6
        assert (level <= level[held_back].max() + 1e-6).all()


def test_two_jobs_that_want_all_cores_and_no_more_are_not_slowed() -> None:
    assert speeds(jobs("m", "m"), profile(cores=2.0)) == pytest.approx([10.0, 10.0])


def test_two_jobs_that_want_twice_the_cores_are_half_as_fast() -> None:
    assert speeds(jobs("m", "m"), profile(cores=1.0)) == pytest.approx([5.0, 5.0])


def test_a_job_that_wants_little_is_not_slowed_by_one_that_wants_all() -> None:
    known = profile(cell(), cell("small", step_s=0.1, cpu_s=0.02), cores=1.0)
    assert speeds(jobs("m", "small"), known) == pytest.approx([8.0, 10.0])


def test_hosts_with_cores_of_their_own_do_not_slow_each_other() -> None:
    known = replace(profile(), pools=[Pool(name=name, hosts=[name], cores=1.0) for name in ("a", "b")])
    assert speeds(jobs("m", "m"), known, groups=[0, 1]) == pytest.approx([10.0, 10.0])
    assert speeds(jobs("m", "m"), known, groups=[1, 1]) == pytest.approx([5.0, 5.0])


def test_two_workers_get_two_shares_of_three() -> None:
    known = profile(cell(), cell("two", n_workers=2, cpu_s=0.2), cores=1.5)
    these = jobs("m", "two").with_columns(n_workers=np.array([1, 2], np.int32), max_workers=np.array([1, 2], np.int32))
    running = Running(
        job=np.arange(2, dtype=np.int32), first=np.array([0, 2, 4], np.int32), role=np.array([0, 1, 0, 1], np.int8),
        group=np.zeros(4, np.int32), count=np.array([1, 1, 2, 1], np.int32), n_workers=these.n_workers, n_ps=these.n_ps,
    )  # fmt: skip
    found = ProfiledSpeed(these, known.cluster(), profile=known).speeds(running)
    assert found == pytest.approx([5.0, 5.0])


def test_it_passes_as_a_speed_model_and_knows_changes() -> None:
    known = profile(*(cell(n_ps=p, n_workers=w, step_s=0.1 / w) for p in (1, 2) for w in (1, 2)), cores=2.0)
    these = jobs("m", "m", "m", n_workers=2)
    made = ProfiledSpeed(these, known.cluster(), profile=known)
    assert isinstance(made, ChangeModel)
    check_speed_model(made, jobs=these, cluster=known.cluster())


# --- gangs that were not measured


def test_a_measured_gang_has_its_measured_numbers() -> None:
    cells = [
        cell(n_ps=p, n_workers=w, step_s=0.1 / w + 0.01 * p, cpu_s=0.1, ps_cpu_s=0.02) for p in (1, 2) for w in (1, 2)
    ]
    grid = UpdateGrid.of(cells, max_ps=3, max_workers=4)
    for each in cells:
        assert grid.step_s[1, each.n_ps, each.n_workers] == pytest.approx(each.step_s)
        assert grid.worker_cpu_s[1, each.n_ps, each.n_workers] == pytest.approx(0.08)
    assert (np.diff(grid.step_s[1, 1, 1:]) < 0).all()  # more workers continue being faster outside, as the fit says
    assert (grid.step_s > 0).all()


def test_a_gang_over_two_hosts_has_its_own_speed_and_the_others_are_slowed_like_it() -> None:
    cells = [cell(), cell(n_workers=2, step_s=0.05), cell(n_workers=2, step_s=0.1, n_hosts=2)]
    grid = UpdateGrid.of(cells, max_ps=1, max_workers=2)
    assert grid.step_s[1:, 1, 2] == pytest.approx([0.05, 0.1])
    assert grid.step_s[1:, 1, 1] == pytest.approx([0.1, 0.2])


def test_speed_functions_follow_what_was_measured() -> None:
    (fitted,) = speed_functions(
        [cell(n_ps=p, n_workers=w, step_s=0.1 / w + 0.01) for p in (1, 2) for w in (1, 2)], batch=32
    )
    assert (fitted.model, fitted.batch, len(fitted.theta)) == ("m", 32.0, 5)
    assert fitted.error is not None
    assert fitted.error < 0.02


# --- slowdown beyond the sharing of cores


def beside(own: float, others: float, slowdown: float) -> ColocationSample:
    return ColocationSample(
        job="m",
        co_runners="x",
        cpu_cores=own,
        co_cpu_cores=others,
        weight=1,
        co_weight=others,
        alone_s=1,
        shared_s=slowdown,
    )


def test_sharing_is_foreseen_from_cores_alone() -> None:
    rows = [beside(1.0, 1.0, 1.0), beside(1.0, 2.0, 1.5), beside(0.5, 2.0, 1.0)]
    assert foreseen(rows, cores=2.0) == pytest.approx([1.0, 1.5, 1.0])


def test_what_sharing_explains_is_not_counted_twice() -> None:
    rows = [beside(1.0, others, 1.0) for others in (0.2, 0.5, 0.8, 1.0)]
    exact = [replace(row, shared_s=slow) for row, slow in zip(rows, foreseen(rows, cores=1.0), strict=True)]
    assert speeds(jobs("m", "m"), profile(beside=exact, cores=1.0)) == pytest.approx([5.0, 5.0], rel=1e-3)


def crowd(k: int, slowdown: float, *, job: str = "m", **more: Any) -> ColocationSample:
    """A job beside k others that want a core each."""
    return replace(beside(1.0, float(k), slowdown), job=job, co_runners=" + ".join("x" * k), **more)


def test_k_jobs_slow_each_other_as_the_median_of_what_was_measured_with_k() -> None:
    rows = [crowd(k, slow) for k, slow in ((1, 1.1), (1, 1.2), (1, 9.0), (2, 1.5), (3, 2.0))]
    known = profile(beside=rows, cores=64.0)
    assert speeds(jobs("m"), known) == pytest.approx([10.0])
    for n, slowdown in ((2, 1.2), (3, 1.5), (4, 2.0), (6, 2.0)):  # beyond what was measured: as the most
        assert speeds(jobs(*["m"] * n), known) == pytest.approx([10.0 / slowdown] * n)


def test_between_two_crowds_that_were_measured_the_slowdown_lies_between_theirs() -> None:
    contention = MeasuredContention.of(profile(beside=[crowd(1, 1.2), crowd(2, 1.5)], cores=64.0)).contention
    assert contention.at(np.array([0.0, 0.5, 1.5])) == pytest.approx([1.0, 1.1, 1.35])


def test_each_model_is_slowed_as_it_was_itself_and_one_that_was_not_measured_as_all_were() -> None:
    rows = [crowd(1, 1.0, job="calm"), crowd(2, 1.0, job="calm"), crowd(1, 1.5), crowd(2, 2.0)]
    known = profile(cell(), cell("calm"), cell("new"), beside=rows, cores=64.0)
    assert speeds(jobs("m", "calm"), known) == pytest.approx([10 / 1.5, 10.0])
    assert speeds(jobs("m", "new"), known) == pytest.approx([10 / 1.5, 10 / 1.25])


def test_what_jobs_did_to_each_other_is_believed_rather_than_what_loads_did() -> None:
    loads = [replace(beside(1.0, 1.0, 3.0), co_runners="load-1")]
    assert speeds(jobs("m", "m"), profile(beside=[crowd(1, 1.25), *loads], cores=4.0)) == pytest.approx([8.0] * 2)
    assert speeds(jobs("m", "m"), profile(beside=loads, cores=4.0)) == pytest.approx([10 / 3] * 2)


def test_what_was_measured_while_something_else_ran_counts_only_where_it_always_did() -> None:
    quiet, busy = crowd(1, 1.25), crowd(1, 3.0, busy_cores=2.0)
    assert speeds(jobs("m", "m"), profile(beside=[quiet, busy], cores=4.0)) == pytest.approx([8.0] * 2)
    assert speeds(jobs("m", "m"), profile(beside=[busy], cores=4.0)) == pytest.approx([10 / 3] * 2)
    crowded = crowd(1, 1.5, busy_cores=1.0)  # three wanted a core each of two: that is what it took
    assert speeds(jobs("m", "m"), profile(beside=[crowded], cores=2.0)) == pytest.approx([10.0] * 2)


def test_starts_in_a_crowd_are_slowed_as_measured_there_and_less_where_fewer_crowd() -> None:
    """Two cores, 3 wanted, fair shares say 1.5 times: it took three times as long, a factor of 2 beyond."""
    row = replace(beside(1.0, 2.0, 3.0), what="start")
    press = MeasuredContention.of(profile(beside=[row], cores=2.0)).start
    assert press.at(0.5) == pytest.approx(2.0)
    assert press.at(0.25) == pytest.approx(1.5)  # 1 + slope x excess
    assert press.at(9.0) == pytest.approx(2.0)
    assert press.at(-0.5) == 1.0
    assert MeasuredContention.of(profile(beside=[row], cores=2.0)).rescale.at(0.5) == 1.0


# --- in a simulation


OVERHEADS = [
    Overhead(kind="start", model="m", n_new=2, median_s=4.0, p90_s=4.0, cpu_s=4.0),
    Overhead(kind="rescale", model="m", n_new=1, median_s=2.0, p90_s=2.0, cpu_s=2.0),
    Overhead(kind="stop", model="m", median_s=1.0, p90_s=1.0),
]


def test_a_simulation_takes_cluster_speeds_and_overheads_from_a_profile(tmp_path: Path) -> None:
    path = write(profile(overheads=OVERHEADS), tmp_path / "p.json")
    record = simulate(jobs("m"), scheduler="fifo", profile=path)
    assert record.cluster.machines == ("a", "b")
    assert record.summary["mean_jct_s"] == pytest.approx(4.0 + 1.0 + 10.0)
    plain = simulate(jobs("m"), scheduler="fifo", profile=path, overheads=Overheads())
    assert plain.summary["mean_jct_s"] == pytest.approx(10.0)
    assert simulate(jobs("m"), scheduler="fifo", profile=path, cluster="no_network(3)").cluster.n_machines == 3


def starting_s(known: TestbedProfile, *, arrivals: list[float]) -> list[float]:
    """Return how long each of some jobs takes from its arrival to its first step, where all arrive apart."""
    these = jobs(*["m"] * len(arrivals)).with_columns(arrival_s=np.array(arrivals))
    record = simulate(these, scheduler="fifo", profile=known, cluster="no_network(1)")
    began = record.events[record.events["kind"] == Kind.STARTED]
    return (began["time_s"] - np.array(arrivals)).tolist()


def measured_starts(*seconds: float, kind: str = "start") -> list[ChangeMeasurement]:
    return [ChangeMeasurement(kind, "m", 2, each) for each in seconds]


def test_one_cold_start_among_ten_warm_ones_leaves_the_warm_start_at_the_warm_median() -> None:
    warm = [1.8, 1.7, 1.9, 1.8, 2.0, 1.6, 1.8, 1.8, 1.9, 5.0]
    rows = overheads([*measured_starts(17.2, kind="cold_start"), *measured_starts(*warm)])
    first, later = starting_s(profile(overheads=rows), arrivals=[0.0, 40.0])
    assert later == pytest.approx(1.8)
    assert first == pytest.approx(17.2)


def test_a_start_is_cold_again_once_the_machine_had_no_task_for_longer_than_its_fork_server_waits() -> None:
    rows = overheads([*measured_starts(9.0, kind="cold_start"), *measured_starts(2.0)])
    found = starting_s(profile(overheads=rows, warm_s=30.0), arrivals=[0.0, 40.0, 200.0])
    assert found == pytest.approx([9.0, 2.0, 9.0])  # the first ended at 19 s, the second at 52 s


def test_each_host_has_a_fork_server_of_its_own_also_where_several_are_one_machine() -> None:
    rows = overheads([*measured_starts(9.0, kind="cold_start"), *measured_starts(2.0)])
    demand = np.repeat(amounts(gpus=4)[None], 3, axis=0)  # each fills a host
    these = jobs("m", "m", "m", steps=1000).with_columns(arrival_s=np.array([0.0, 20.0, 150.0]), worker_demand=demand)
    events = simulate(these, scheduler="fifo", profile=profile(overheads=rows, cores=8.0)).events
    began = events["time_s"][events["kind"] == Kind.STARTED]
    assert began.tolist() == pytest.approx([9.0, 29.0, 152.0])  # the third is on a host that a job has just left


def test_a_model_whose_cold_start_was_not_measured_takes_the_extra_seconds_of_those_that_were() -> None:
    rows = [
        *overheads([*measured_starts(9.0, kind="cold_start"), *measured_starts(2.0)]),
        Overhead(kind="start", model="other", n_new=2, median_s=3.0, p90_s=3.0),
    ]
    assert Costs(rows, "other").cold_s == pytest.approx(7.0)
    assert Costs(rows[1:], "other").cold_s == 0.0  # an old profile
    assert Costs(rows[:1], "m").start(2).seconds == pytest.approx(9.0)  # hosts without fork servers
    assert Costs(rows[:1], "m").cold_s == 0.0


def test_a_profile_is_also_a_table_of_speeds_for_what_schedulers_measure_before_a_run(tmp_path: Path) -> None:
    path = write(profile(overheads=OVERHEADS), tmp_path / "p.json")
    speed = speed_model(jobs("m"), profile().cluster(), throughputs=path)
    assert isinstance(speed, ProfiledSpeed)
    assert speed.durations_s() == pytest.approx([10.0])
    with pytest.raises(InputError, match="'profiled' needs a testbed's profile"):
        speed_model(jobs("m"), profile().cluster(), kind="profiled")


def test_neither_cluster_nor_profile_is_refused() -> None:
    with pytest.raises(InputError, match="neither a cluster nor a profile"):
        simulate(jobs("m"), scheduler="fifo")


def test_a_model_that_was_not_measured_is_named_with_those_that_were_and_the_remedy() -> None:
    with pytest.raises(
        InputError, match=r"no synchronous measurement of model 'wlm'.*it has m\..*labkit profile --models wlm"
    ):
        simulate(jobs("wlm"), scheduler="fifo", profile=profile())
    with pytest.raises(InputError, match="no asynchronous measurement of model 'm'"):
        simulate(jobs("m", sync=False), scheduler="fifo", profile=profile())
    failed = profile(cell("bad", step_s=None, failed="it died"), cell())
    with pytest.raises(InputError, match=r"model 'bad' \(it died\)"):
        failed.of("bad")


# --- the file


def whole() -> TestbedProfile:
    return profile(
        cell(), cell(n_workers=2, step_s=None, failed="no room"), overheads=OVERHEADS,
        beside=[beside(1.0, 1.0, 1.5)], links=[LinkMeasurement(source="a", target="b", gbps=9.5, rtt_ms=0.2)],
    )  # fmt: skip


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = write(whole(), tmp_path / "profiles" / "p.json")
    assert read(path) == whole()
    assert [each.name for each in path.parent.iterdir()] == ["p.json"]


def test_a_profile_of_an_older_labkit_is_read_and_has_no_yardstick(tmp_path: Path) -> None:
    path = write(whole(), tmp_path / "p.json")
    content = json.loads(path.read_text())
    del content["yardstick"], content["warm_s"]
    path.write_text(json.dumps(content))
    old = read(path)
    assert (old.yardstick, old.warm_s) == ([], 60.0)
    assert "yardstick" not in simulate(jobs("m"), scheduler="fifo", profile=old).info.config


def test_a_simulation_keeps_the_readings_of_its_profile_for_the_runs_that_it_is_compared_with() -> None:
    read_then = [YardstickSample(host="a", work_s=work_s, busy_cores=1.2) for work_s in (0.01, 0.02, 0.09)]
    record = simulate(jobs("m"), scheduler="fifo", profile=profile(yardstick=read_then))
    assert record.info.config["yardstick"] == [["a", 1, 0.02]]


def test_every_fault_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = write(whole(), tmp_path / "p.json")
    content = json.loads(path.read_text())
    content["cells"][0]["step_s"] = -1
    content["pools"][0]["cores"] = "many"
    content["hosts"][1].pop("gpus")
    content["overheds"] = []
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError) as caught:
        read(path)
    told = str(caught.value)
    assert "4 faults" in told
    assert "cells[0].step_s is -1; expected greater than 0" in told
    assert "pools[0].cores is 'many'" in told
    assert "hosts[1].gpus is missing" in told
    assert "unknown key overheds; did you mean 'overheads'?" in told


def test_a_profile_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = write(whole(), tmp_path / "p.json")
    content = json.loads(path.read_text())
    content["pools"].append({"name": "other", "hosts": ["a", "c"], "cores": 1.0})
    content["cells"].append(content["cells"][0])
    content["overheads"][0]["kind"] = "begin"
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError, match="4 faults") as caught:
        read(path)
    assert "a host 'c' that is not in hosts" in str(caught.value)
    assert "host 'a' is in two pools" in str(caught.value)
    with pytest.raises(ProfileError, match="occurs 2 times"):
        write(profile(cell(), cell()), tmp_path / "q.json")
    assert not (tmp_path / "q.json").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read as JSON"),
        ("[]", "no profile of a testbed"),
        ('{"format": "labkit testbed profile"}', "version None"),
    ],
)
def test_what_is_no_profile_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=told):
        read(path)
    with pytest.raises(ProfileError, match="no such file; labkit profile measures one"):
        read(tmp_path / "none.json")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(whole(), tmp_path / "p.json")
    before = path.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(profile(), path)
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["p.json"]


def test_jobs_that_count_samples_are_refused_by_a_profile_of_updates() -> None:
    jobs = dl2_jobs("testbed_6n", seed=1)
    with pytest.raises(
        InputError, match="samples_per_step of job 1 is 1, and 9 more; a testbed's profile counts param"
    ):
        ProfiledSpeed(jobs, whole().cluster(), profile=whole())
