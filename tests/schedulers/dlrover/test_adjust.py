"""What to do about a job in trouble: pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.schedulers.dlrover.adjust import Action, Do, Report, Task, Watch, adjust, pace_of_server
from labkit.schedulers.dlrover.memory import Point, after_out_of_memory, foreseen_gb, noted
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import Rules

PLAN = Plan(8, 20, 2, 16)
RULES = Rules()
CALM = Report(
    plan=PLAN, left_s=3600.0, pause_s=30.0, wait=0.1, workers=(), servers=(), worker=Task(-1, 20, 18.0, compute_s=0.2),
    server=Task(-1, 16, 14.0, load=0.5, compute_s=0.03), most_cores=32, most_workers=8, spare_cores=100,
)  # fmt: skip


def seen(report: Report, *, times: int, rules: Rules = RULES, watch: Watch | None = None) -> tuple[Watch, list[Action]]:
    """Return what is remembered, and what was done, when a measurement comes again and again."""
    watch, done = watch or Watch(), list[Action]()
    for _ in range(times):
        watch, action = adjust(watch, report, rules, predicted=lambda n: float(n))
        done += [action] if action else []
    return watch, done


def hot(use: float = 0.93, load: float = 1.4) -> Report:
    return replace(CALM, servers=(Task(1, 16, use * 16, load=load / 2, compute_s=0.03),))


def test_a_hot_server_is_told_as_the_issue_has_it():
    _, done = seen(hot(), times=3)
    assert [a.why for a in done] == ["ps-1 at 0.93 of its limit for 3 samples, 1.4 x the mean: its blocks move"]
    assert done[0].do == Do.BALANCE


@pytest.mark.parametrize(("use", "load"), [(0.79, 1.4), (0.93, 1.19)])
def test_below_either_threshold_a_server_is_not_hot(use, load):
    assert seen(hot(use, load), times=6)[1] == []


def test_one_measurement_between_begins_the_count_anew():
    watch, done = seen(hot(), times=2)
    watch, more = seen(CALM, times=1, watch=watch)
    assert seen(hot(), times=2, watch=watch)[1] == more == done == []


def test_a_server_that_stays_hot_gets_cores_and_then_is_left_alone_once():
    _, done = seen(hot(), times=40)
    assert [a.do for a in done] == [Do.BALANCE, Do.MORE_CORES, Do.MORE_CORES, Do.NOTHING]
    assert done[1].amounts == (24.0,)
    assert "also since its blocks moved" in done[1].why


def test_a_hot_server_without_free_cores_is_told_of_and_not_changed():
    tight = replace(hot(), spare_cores=2.0)
    assert [a.do for a in seen(tight, times=9)[1]] == [Do.BALANCE, Do.NOTHING]


def slow_server(*, wait: float = 0.7) -> Report:
    return replace(CALM, wait=wait, servers=(Task(0, 16, 4.0, load=0.5, compute_s=0.12),))


def test_a_slow_server_is_replaced_at_most_twice():
    _, done = seen(slow_server(), times=30)
    assert [a.do for a in done] == [Do.REPLACE_PS, Do.REPLACE_PS, Do.NOTHING]
    assert "ps-0 updates at 0.25 of the pace of the others at 0.25 of its limit, workers wait for 70%" in done[0].why


def test_a_slow_server_for_which_no_worker_waits_is_none():
    assert seen(slow_server(wait=0.1), times=6)[1] == []


def test_a_server_that_its_own_limit_holds_back_is_not_taken_for_a_slow_one() -> None:
    """It is paused when it has used its cores, so its updates take long by the clock; another process would be, too."""
    report = slow_server()
    at_limit = replace(report.servers[0], used=report.servers[0].limit)
    assert pace_of_server(at_limit, report.server) <= Rules().slow_pace
    assert seen(replace(report, servers=(at_limit,)), times=30)[1] == []


def test_without_times_a_slow_server_is_told_by_its_updates_per_core():
    report = slow_server()
    untimed = replace(
        report, server=replace(report.server, compute_s=float("nan"), used=4.0),
        servers=(replace(report.servers[0], compute_s=float("nan"), used=12.0, limit=32.0),),
    )  # fmt: skip
    assert seen(untimed, times=3)[1][0].do == Do.REPLACE_PS


def test_a_repair_that_does_not_pay_is_not_made():
    nearly = replace(slow_server(), left_s=40.0)
    done = seen(nearly, times=9)[1]
    assert [a.do for a in done] == [Do.NOTHING]
    assert "40 s are left, to replace it does not pay" in done[0].why


@pytest.mark.parametrize(
    ("n_workers", "pace", "left_s", "do"),
    [(8, 0.25, 3600.0, Do.REPLACE_WORKER), (40, 0.25, 3600.0, Do.NOTHING), (40, 0.02, 7200.0, Do.REPLACE_WORKER),
     (8, 0.25, 300.0, Do.NOTHING)],
)  # fmt: skip
def test_a_slow_worker_is_replaced_where_what_it_loses_is_more_than_a_change_takes(n_workers, pace, left_s, do):
    """It loses (1 - pace) / n of the time that is left; 5% is the least that counts, unless it is hopeless."""
    plan = replace(PLAN, n_workers=n_workers)
    report = replace(
        CALM, plan=plan, left_s=left_s, most_workers=n_workers, workers=(Task(3, 20, 5.0, compute_s=0.2 / pace),)
    )
    done = seen(report, times=9)[1]
    assert done[0].do == do
    assert f"(1 - {pace:.2f}) / {n_workers}" in done[0].why


def alone(pace: float = 1.0, *, cores: float = 20.0) -> Report:
    worker = Task(0, cores, 5.0, compute_s=0.2 / pace)
    return replace(
        CALM, plan=Plan(1, cores, 2, 16), most_workers=1, workers=(worker,), worker=replace(worker, number=-1)
    )


def test_an_only_worker_is_compared_with_what_it_was():
    watch, done = seen(alone(), times=4)
    assert done == []
    _, done = seen(alone(0.25), times=30, watch=watch)
    assert [a.do for a in done] == [Do.REPLACE_WORKER, Do.REPLACE_WORKER, Do.NOTHING]
    told = "worker-0 computes at 0.25 of its former pace; over 3600 s that costs (1 - 0.25) / 1 of them, 2700 s"
    assert done[0].why.startswith(told)


def test_an_only_worker_that_gets_slower_by_and_by_is_not_taken_for_a_slow_one():
    watch, done = Watch(), []
    for k in range(60):
        watch, more = seen(alone(0.97**k), times=1, watch=watch)
        done += more
    assert done == []


@given(st.floats(0.01, 2.0), st.floats(1, 40), st.floats(0.0, 1.0))
def test_an_only_worker_that_has_other_cores_now_is_not_taken_for_a_slow_one(factor, cores, parallel):
    """By Amdahl: of a gradient's time a part is shortened by cores."""

    def report(n):
        took = (1 - parallel) + parallel / n
        return alone(0.2 / took, cores=n)

    watch, _ = seen(report(cores), times=2)
    assert seen(report(cores * factor), times=6, watch=watch)[1] == []


def test_the_worker_that_is_left_of_two_is_compared_with_the_faster_one():
    two = replace(
        CALM, plan=Plan(2, 20, 2, 16), workers=(Task(0, 20, 18.0, compute_s=0.8), Task(1, 20, 18, compute_s=0.2))
    )
    watch, _ = seen(two, times=1)
    assert seen(alone(0.25), times=3, watch=watch)[1][0].do == Do.REPLACE_WORKER


def test_a_worker_of_which_no_time_and_no_use_is_known_is_no_trouble():
    nothing = Task(0, 20, 0.0)
    report = replace(CALM, workers=(nothing,), worker=replace(nothing, number=-1))
    assert seen(report, times=9)[1] == []


def test_idle_servers_get_up_to_four_workers_a_few_times():
    idle = replace(CALM, server=replace(CALM.server, used=8.0), most_workers=60)
    done = seen(idle, times=30)[1]
    assert [a.do for a in done] == [Do.MORE_WORKERS] * 3 + [Do.NOTHING]
    assert done[0].more == 4
    assert seen(replace(idle, spare_cores=45.0), times=3)[1][0].more == 2
    assert seen(replace(idle, wait=0.5), times=9)[1] == []


@given(st.lists(st.sampled_from(["calm", "hot", "slow"]), max_size=60), st.integers(0, 3))
def test_no_trouble_is_repaired_without_end(kinds, n_tries):
    rules = Rules(n_tries=n_tries)
    reports = {"calm": CALM, "hot": hot(), "slow": slow_server()}
    watch, done = Watch(), list[Action]()
    for kind in kinds:
        watch, action = adjust(watch, reports[kind], rules, predicted=float)
        done += [action] if action else []
    assert sum(a.do == Do.REPLACE_PS for a in done) <= n_tries
    assert sum(a.do in (Do.BALANCE, Do.MORE_CORES) for a in done) <= 1 + n_tries
    assert sum(a.do == Do.NOTHING for a in done) <= 2


def test_a_job_that_may_not_be_changed_is_only_watched():
    watch, done = Watch(), list[Action]()
    for _ in range(5):
        watch, action = adjust(watch, hot(), RULES, predicted=float, free=False)
        done += [action] if action else []
    assert done == []
    assert adjust(watch, hot(), RULES, predicted=float)[1].do == Do.BALANCE


def test_memory_at_the_end_is_a_line_through_what_was_measured():
    points: tuple[Point, ...] = ()
    for steps in (0, 1000, 2000):
        points = noted(points, steps, 1 + steps / 1000, 0.5)
    assert foreseen_gb(points, 10_000) == pytest.approx(22.0)
    assert noted(points, 2500, float("nan"), 0.5) is points
    assert noted(points, 1500, 9.0, 0.5) is points


def test_the_rule_after_an_out_of_memory_is_the_repositorys():
    assert after_out_of_memory(8, 4, part=0.25 / 0.79) == (16, 4)
    assert after_out_of_memory(8, 4, part=0.25 / 0.81) == (8, 8)
    assert after_out_of_memory(8, 1, part=1.0) == (16, 1)
