"""Reservations hold under every scheduler: while one holds, only jobs that may use it get its hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import Jobs, Placement
from labkit.core.errors import InputError, StalledError
from labkit.core.events import Kind
from labkit.core.resources import amounts
from labkit.experiment import Experiment, Session, every_slot
from labkit.experiment.reservations import DAY_S, Reservation, Reservations
from labkit.experiment.run import replay
from labkit.results.notes import reserved
from labkit.schedulers import available, make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network
from labkit.workloads.expressions import trace


def jobs_of(user: Iterable[str], n_workers: Iterable[int], **more: Any) -> Jobs:
    """Return jobs that arrive a second apart and take 100 s, each worker with one GPU."""
    users = list(user)
    given: dict[str, Any] = {"arrival_s": np.arange(len(users), dtype=float), "duration_s": 100.0}
    return Jobs.of(
        total_steps=100, user=users, n_workers=list(n_workers), n_ps=0,
        worker_demand=amounts(gpus=1, cpus=1, memory_gb=1), **(given | more),
    )  # fmt: skip


def completions(jobs: Jobs, reservations: Any, scheduler: str = "fifo", **more: Any) -> list[float]:
    """Return when jobs complete on two machines of 4 GPUs, m0 and m1."""
    record = Experiment.of(jobs, cluster="no_network(2)", reservations=reservations, **more).run(scheduler)
    found: list[float] = record.table["completion_s"].tolist()
    return found


# --- by hand


def test_at_its_start_others_are_preempted_and_its_users_take_their_hosts() -> None:
    """Jobs 0 and 1 of a take a machine each. At 50 s m1 is for b: job 1 loses it after 50 steps, and job 2 of b runs
    there from 50 to 150. Job 0 is done at 100 on m0, where job 1 makes its other 50 steps: done at 150."""
    jobs = jobs_of("aab", [4, 4, 4], arrival_s=[0, 0, 10])
    night = {"night": {"hosts": "m1", "start_s": 50, "end_s": 250, "users": "b"}}
    assert completions(jobs, night) == pytest.approx([100, 150, 150])
    assert completions(jobs, None) == pytest.approx([100, 100, 200])


def test_others_may_be_left_to_finish() -> None:
    """As above, but job 1 keeps m1 until it is done at 100; job 2 of b finds both machines free then."""
    jobs = jobs_of("aab", [4, 4, 4], arrival_s=[0, 0, 10], duration_s=[150, 100, 100])
    night = {"night": {"hosts": "m1", "start_s": 50, "end_s": 250, "users": "b", "running": "finish"}}
    assert completions(jobs, night) == pytest.approx([150, 100, 200])


def test_in_a_maintenance_nobody_runs_and_all_wait_for_its_end() -> None:
    jobs = jobs_of("ab", [4, 4], arrival_s=[0, 0])
    assert completions(jobs, {"repair": {"hosts": "m[0-1]", "start_s": 40, "end_s": 140}}) == pytest.approx([200, 200])


def test_a_daily_one_holds_again_the_next_day() -> None:
    """A job of two days is stopped for the first hour of both days."""
    jobs = jobs_of("a", [8], duration_s=[2 * DAY_S - 7200])
    daily = {"clean": {"hosts": 2, "start_s": 0, "end_s": 3600, "daily": True}}
    assert completions(jobs, daily) == pytest.approx([2 * DAY_S])


def test_users_whose_reservation_is_full_run_elsewhere_too() -> None:
    jobs = jobs_of("bb", [4, 4], arrival_s=[0, 0])
    assert completions(jobs, {"team": {"hosts": "m1", "users": ["b"]}}) == pytest.approx([100, 100])


def test_a_job_too_large_for_the_rest_does_not_hold_up_others_while_a_reservation_holds() -> None:
    """Under strict FIFO job 0 of 8 GPUs waits for the end at 300; job 1 of 4 runs on m0 meanwhile."""
    jobs = jobs_of("aa", [8, 4], arrival_s=[10, 20])
    assert completions(jobs, {"repair": {"hosts": "m1", "end_s": 300}}) == pytest.approx([400, 120])


def test_with_slots_a_start_between_two_of_them_takes_hosts_at_once_and_gives_them_at_the_next_slot() -> None:
    jobs = jobs_of("ab", [8, 4], arrival_s=[0, 0])
    night = {"night": {"hosts": "m1", "start_s": 50, "end_s": 170, "users": "b"}}
    found = completions(jobs, night, cadence=every_slot(60))
    assert found == pytest.approx([180 + 50, 160])  # job 1 from 60 on; job 0 with its other 50 steps from 180 on


def test_a_job_that_belongs_to_one_waits_for_it_and_runs_on_its_hosts_alone() -> None:
    """Job 0 waits for m1 from 50 s on; job 1 waits for job 0 there, though m0 is free. After its end all may run."""
    jobs = jobs_of("aab", [4, 4, 4], arrival_s=[0, 0, 0], reservation=["night", "night", ""])
    night = {"night": {"hosts": "m1", "start_s": 50, "end_s": 400}}
    assert completions(jobs, night) == pytest.approx([150, 250, 100])
    night["night"]["end_s"] = 120  # job 0 continues after it, and job 1 finds m0 then
    assert completions(jobs, night) == pytest.approx([150, 220, 100])


def test_a_job_that_belongs_to_none_of_the_run_runs_like_any_other_and_is_counted() -> None:
    jobs = jobs_of("ab", [4, 4], arrival_s=[0, 0], reservation=["old", ""])
    with pytest.warns(UserWarning, match=r"which the run does not have: 1 \(old\); they run like any other"):
        assert completions(jobs, None) == pytest.approx([100, 100])


class Idle:
    """Starts no job."""

    def schedule(self, snapshot: Any) -> Placement:
        return Placement.nothing()


@pytest.mark.parametrize("more", [{}, {"cadence": every_slot(3600)}])
def test_a_daily_one_keeps_no_run_going_in_which_nothing_happens(more: dict[str, Any]) -> None:
    daily = {"clean": {"hosts": 1, "end_s": 3600, "daily": True}}
    with pytest.raises(StalledError, match="1 jobs wait for ever: the scheduler started none of them"):
        completions(jobs_of("a", [1]), daily, Idle(), **more)  # type: ignore[arg-type]


def test_a_daily_one_into_which_no_slot_falls_is_refused_if_a_job_belongs_to_it() -> None:
    jobs = jobs_of("a", [4], reservation="short")
    short = {"short": {"hosts": "m0", "start_s": 121, "end_s": 179, "daily": True}}
    with pytest.raises(
        InputError, match="job 0 belongs to reservation short, which is over each day before a decision"
    ):
        completions(jobs, short, cadence=every_slot(60))
    assert completions(jobs, short) == pytest.approx([221])  # at its end it continues
    assert completions(jobs, short, cadence=every_slot(50)) == pytest.approx([250])


def test_a_job_may_wait_for_many_single_ones_and_then_for_the_second_day_of_a_daily_one() -> None:
    """All is closed for 30 days, each in a reservation of its own. Then b has m0 in the second hour of each day."""
    closed = [Reservation(f"c{k}", 2, start_s=k * DAY_S, end_s=(k + 1) * DAY_S) for k in range(30)]
    from_s = 30 * DAY_S
    shift = Reservation("shift", ("m0",), start_s=from_s + 3600, end_s=from_s + 7200, users=("b",), daily=True)
    between = Reservation("between", ("m0",), start_s=from_s + 7200, end_s=from_s + DAY_S + 3600)
    rest = [Reservation("first", ("m0",), start_s=from_s, end_s=from_s + 3600), Reservation("m1", ("m1",), from_s)]
    jobs = jobs_of("b", [4], duration_s=5400)
    found = completions(jobs, [*closed, shift, between, *rest])
    assert found == pytest.approx([from_s + DAY_S + 3600 + 1800])


def test_a_quota_is_not_used_up_by_jobs_that_wait_for_a_reservation() -> None:
    """Job 0 of a waits for m1 from 1,000 s on; job 1 of a is within the quota until then, and runs at once."""
    jobs = jobs_of("aa", [4, 4], arrival_s=[0, 0], reservation=["night", ""])
    night = {"night": {"hosts": "m1", "start_s": 1000, "end_s": 2000}}
    assert completions(jobs, night, quotas={"a": 4}) == pytest.approx([1100, 100])
    jobs = jobs_of("aa", [8, 4], arrival_s=[0, 1])  # nor by one that the hosts which are left do not hold
    assert completions(jobs, {"repair": {"hosts": "m1", "end_s": 300}}, quotas={"a": 8}) == pytest.approx([400, 101])
    long = jobs_of("aa", [4, 4], arrival_s=[0, 0], reservation=["night", ""], duration_s=[100, 1500])
    assert completions(long, night, quotas={"a": 4}) == pytest.approx([1600, 1500])  # it holds when job 1 runs


@pytest.mark.parametrize("scheduler", ["gavel_las", "gavel_ftf", "gavel_makespan"])
def test_rounds_go_on_with_the_jobs_that_ran_in_a_reservation_when_it_is_over(scheduler: str) -> None:
    """Job 0 of b runs on m1 when that is free for all at 100 s; it is in its round until 360 s, as those of others."""
    jobs = jobs_of("baaaa", [4, 4, 4, 4, 4], arrival_s=[0, 0, 1, 2, 3], duration_s=2000)
    policy = make(scheduler)
    team = {"team": {"hosts": "m1", "end_s": 100, "users": "b"}}
    session = Experiment.of(jobs, cluster="no_network(2)", reservations=team).session(policy)
    session.run(policy, until_s=100.5)
    column = policy._run.column  # type: ignore[attr-defined]
    holds = session.ledger.book.allocations["n_workers"] > 0
    assert holds.tolist() == [True, True, False, False, False]
    assert ((column >= 0) == holds).all()
    rows = session.run(policy, until_s=359)
    assert not (rows["kind"] == Kind.PREEMPTED).any()


# --- properties

SCHEDULERS = (
    "fifo", "fifo(backfill=True)", "srtf", "las", "tetris", "drf", "gavel_las", "optimus", "fifo(priority=True)",
)  # fmt: skip


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=10)
@given(data=st.data())
def test_no_other_job_ever_holds_a_reserved_host_and_all_jobs_complete(scheduler: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 10))
    users = data.draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n))
    workers = data.draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    some = [
        Reservation(
            name, (name,), start_s=(start := data.draw(st.integers(0, 300))),
            end_s=start + data.draw(st.integers(1, 300)), users=data.draw(st.sampled_from([(), (users[0],)])),
            daily=data.draw(st.booleans()),
        )
        for name in data.draw(st.sampled_from([["m0"], ["m1"], ["m0", "m2"], ["m0", "m1", "m2"]]))
    ]  # fmt: skip
    grows = {"max_workers": [w + 2 for w in workers]} if scheduler in ("drf", "optimus") else {}
    jobs = jobs_of(users, workers, **grows)
    quotas = data.draw(st.sampled_from([None, {users[0]: 5}]))
    experiment = Experiment.of(jobs, cluster="no_network(3)", reservations=some, quotas=quotas)
    policy = make(scheduler)
    seen: list[Session] = []
    session = experiment.session(policy, observers=[lambda rows: keeps_off(seen[0], some, rows) if seen else None])
    seen.append(session)
    session.run(policy)
    assert np.count_nonzero(session.log.rows["kind"] == Kind.COMPLETED) == n


def keeps_off(session: Session, reservations: list[Reservation], rows: Any) -> None:
    """Check after a batch of events that nobody else holds a host; at a start, after those there were preempted."""
    now_s, jobs, cluster = float(rows["time_s"][-1]), session.ledger.jobs, session.ledger.cluster
    active = session.ledger.active()
    first, _, group, _ = session.ledger.book.of(active)
    job, machine = np.repeat(active, np.diff(first)), cluster.group_machine[group]
    for one in reservations:
        if one.holds(now_s) and one.holds(np.nextafter(now_s, -math.inf)):
            there = job[one.machines(cluster)[machine]]
            assert {jobs.users[user] for user in jobs.user[there]} <= set(one.users), (one, now_s)


@given(data=st.data())
def test_hosts_that_nobody_ever_has_are_as_good_as_none(data: st.DataObject) -> None:
    names = ["fifo", "fifo(backfill=True)", "srtf", "las", "tetris", "gavel_las", "gavel_ftf"]
    scheduler = data.draw(st.sampled_from(names))
    n = data.draw(st.integers(2, 10))
    workers = data.draw(st.lists(st.integers(1, 6), min_size=n, max_size=n))
    jobs = jobs_of("a" * n, workers, duration_s=data.draw(st.lists(st.integers(5, 400), min_size=n, max_size=n)))
    smaller = Experiment.of(jobs, cluster="no_network(2)").run(scheduler)
    closed = Experiment.of(jobs, cluster="no_network(3)", reservations={"closed": {"hosts": 1}}).run(scheduler)
    assert closed.table["completion_s"].tolist() == pytest.approx(smaller.table["completion_s"].tolist())


@pytest.mark.parametrize("scheduler", available())
def test_every_scheduler_keeps_off_and_completes_all_jobs(scheduler: str) -> None:
    jobs = trace("poisson(25, per_hour=60, median_s=900, mean_s=1200)", seed=1)
    jobs = jobs.with_columns(users=("a", "b", "c"), user=np.arange(len(jobs), dtype=np.int32) % 3)
    some = [
        Reservation("team", ("m0", "m1"), start_s=600, end_s=5000, users=("a",)),
        Reservation("repair", ("m7",), start_s=1000, end_s=3000),
        Reservation("course", ("m2",), start_s=500, end_s=900, daily=True, users=("b",), running="finish"),
    ]
    policy = make(scheduler)
    seen: list[Session] = []
    session = Experiment.of(jobs, cluster="demo", reservations=some).session(
        policy, observers=[lambda rows: keeps_off(seen[0], some[:2], rows) if seen else None]
    )
    seen.append(session)
    session.run(policy)
    assert np.count_nonzero(session.log.rows["kind"] == Kind.COMPLETED) == len(jobs)
    assert not any(reason.startswith("a reservation") for reason in session.reasons), "it was asked about its own part"


@given(
    start_s=st.floats(0, 1e6), length_s=st.floats(1, DAY_S - 1), daily=st.booleans(), other=st.floats(0, 1e6),
    other_s=st.floats(1, 1e6),
)  # fmt: skip
def test_two_meet_exactly_if_both_hold_at_a_start_of_one(
    start_s: float, length_s: float, daily: bool, other: float, other_s: float
) -> None:
    one = Reservation("one", ("a",), start_s=start_s, end_s=start_s + length_s, daily=daily)
    two = Reservation("two", ("a",), start_s=other, end_s=other + other_s)
    starts = [start_s + k * DAY_S for k in range(30 if daily else 1)] + [other]
    assert one.meets(two) == two.meets(one) == any(one.holds(t) and two.holds(t) for t in starts)


@given(start_s=st.floats(0, 1e6), length_s=st.floats(1, DAY_S - 1), daily=st.booleans(), now_s=st.floats(0, 3e6))
def test_between_turns_nothing_changes(start_s: float, length_s: float, daily: bool, now_s: float) -> None:
    one = Reservation("one", ("a",), start_s=start_s, end_s=start_s + length_s, daily=daily)
    turn_s = one.next_turn_s(now_s)
    assert turn_s > now_s
    assert not daily or turn_s < math.inf
    until_s = min(turn_s, now_s + DAY_S)
    assert one.holds((now_s + until_s) / 2) == one.holds(now_s)
    assert turn_s == math.inf or one.holds(turn_s) != one.holds(np.nextafter(turn_s, 0))


# --- a session, and nothing reserved


def test_what_is_placed_on_reserved_hosts_by_hand_gets_nothing_and_is_told_why() -> None:
    jobs, cluster = jobs_of("ab", [2, 2], arrival_s=[0, 0]), no_network(2)
    team = Reservations.of({"team": {"hosts": "m1", "users": ["b"]}})
    backend = Simulator(jobs, cluster, speed=Recorded(jobs, cluster))
    session = Session(backend, cadence=every_slot(0.5), reservations=team)
    session.step(Placement.of([0, 1], job=[0, 1], group=[2, 3], count=2))
    assert session.ledger.book.allocations["n_workers"].tolist() == [0, 2]
    assert session.reasons == ["a reservation holds hosts that it was to have"]


@pytest.mark.parametrize("scheduler", ["fifo", "las", "gavel_las", "optimus"])
def test_one_that_never_holds_while_jobs_run_changes_no_event(scheduler: str) -> None:
    jobs = jobs_of("abab", [4, 3, 2, 8])
    plain = Experiment.of(jobs, cluster="no_network(2)").run(scheduler)
    late = Experiment.of(jobs, cluster="no_network(2)", reservations={"l": {"hosts": 1, "start_s": 1e6}}).run(scheduler)
    assert plain.events.tobytes() == late.events.tobytes()


def test_notes_count_the_jobs_that_lost_hosts_and_those_that_waited() -> None:
    jobs = jobs_of("aab", [4, 4, 8], arrival_s=[0, 0, 60])
    night = {"night": {"hosts": "m1", "start_s": 50, "end_s": 250, "users": "b"}}
    record = Experiment.of(jobs, cluster="no_network(2)", reservations=night).run("fifo")
    assert reserved(record, name="fifo") == [
        "fifo: reservation night: 1 job lost hosts when it started.",
        "fifo: reservation night: 1 job waited, having no other hosts.",
    ]
    assert record.decisions["job"].tolist() == ["1", "2"]


@pytest.mark.parametrize(
    ("scheduler", "why"),
    [
        ("gavel_las(ideal=True)", "divides the cluster at will and knows no hosts"),
        ("gavel_las(published=True)", "has leases, between which it cannot be asked"),
    ],
)
def test_a_scheduler_that_cannot_be_asked_about_a_part_is_refused(scheduler: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        completions(jobs_of("a", [1]), {"r": {"hosts": 1, "end_s": 5}}, scheduler)


@pytest.mark.parametrize("scheduler", ["fifo", "gavel_las", "optimus"])
def test_a_replay_tells_the_same_events(scheduler: str) -> None:
    night = {"night": {"hosts": "m1", "start_s": 50, "end_s": 250, "users": "b"}}
    record = Experiment.of(jobs_of("aabab", [4, 4, 4, 2, 3]), cluster="no_network(2)", reservations=night).run(
        scheduler
    )
    assert replay(record).run(make("fifo")).tobytes() == record.events.tobytes()


def test_they_are_in_the_notes_of_a_run() -> None:
    record = Experiment.of(
        jobs_of("ab", [2, 2]), cluster="no_network(2)", reservations={"n": {"hosts": 1, "start_s": 5, "users": "b"}}
    ).run("fifo")
    assert record.info.config["reservations"] == "n: the last 1 from 5 s on for b"
    assert any(
        note.startswith("reservations: n: the last 1 from 5 s on for b; no other")
        for note in record.info.config["notes"]
    )


# --- what is refused


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"hosts": "m9"}, "unknown host of reservation r 'm9'. Known: m0, m1."),
        ({"hosts": 3}, "reservation r wants 3 hosts; no_network(2) has 2"),
        ({"hosts": 1, "device_type": "k80"}, "unknown device_type of reservation r 'k80'"),
        ({"hosts": "m0", "device_type": "v100"}, "names its hosts and a device_type"),
        ({}, "reservation r has no hosts; expected names, ranges"),
        ({"hosts": 0}, "reservation r has no hosts"),
        ({"hosts": "m0", "start_s": 9, "end_s": 5}, "ends at 5 s, and starts at 9 s; expected a later end"),
        ({"hosts": "m0", "start_s": -1}, "starts at -1.0 s; expected seconds >= 0"),
        ({"hosts": "m0", "start_s": "noon"}, "start_s of reservation r is 'noon'; expected seconds"),
        ({"hosts": "m0", "end_s": 1e6, "daily": True}, "lasts 1e+06 s; expected an end_s less than a day later"),
        ({"hosts": "m0", "daily": 1}, "daily of reservation r is 1; expected true or false"),
        ({"hosts": "m0", "user": "b"}, "unknown key of reservation r 'user'. Did you mean 'users'"),
        ({"hosts": "m0", "users": "c"}, "unknown user of reservation r 'c'"),
        ({"hosts": "m0", "running": "kill"}, "unknown running of reservation r 'kill'"),
        ({"hosts": "m[0-1]"}, "2 jobs can never run because of the reservations"),
        ({"hosts": "m1", "users": "a"}, "1 jobs can never run because of the reservations"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], what: str) -> None:
    jobs = jobs_of("ab", [4, 8])
    with pytest.raises(InputError) as error:
        Experiment.of(jobs, cluster="no_network(2)", reservations={"r": given}).run("fifo")
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_a_job_of_another_user_cannot_belong_to_it() -> None:
    jobs = jobs_of("ab", [1, 1], reservation="r")
    with pytest.raises(InputError, match="job 1 of 'b' belongs to reservation r, whose users are a; add its user"):
        completions(jobs, {"r": {"hosts": 1, "users": "a"}})


def test_two_that_hold_a_host_at_a_time_are_refused() -> None:
    a = Reservation("a", ("m0", "m1"), start_s=0, end_s=10)
    jobs = jobs_of("a", [1])
    for b in (Reservation("b", ("m1",), start_s=9), Reservation("b", 1, start_s=9)):
        with pytest.raises(InputError, match="reservations a and b both hold host m1 at a time"):
            Experiment.of(jobs, cluster="no_network(2)", reservations=[a, b]).run("fifo")
    after = Reservation("b", ("m1",), start_s=10)
    assert Experiment.of(jobs, cluster="no_network(2)", reservations=[a, after]).run("fifo").table["jct_s"][0] == 110
    with pytest.raises(InputError, match="two reservations are called a"):
        Reservations.of([a, a])


def test_a_file_is_read_and_a_bad_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('[reservation.night]\nhosts = "gpu[01-02],m1"\nstart_s = 3600\nend_s = inf\nusers = "a, b"\n')
    (night,) = Reservations.of(path).each
    assert night == Reservation("night", ("gpu01", "gpu02", "m1"), start_s=3600, users=("a", "b"))
    for text, what in (
        ("x = 1\n", "has x; expected"),
        ("[", "expected a TOML file"),
        ("reservation = 3\n", "expected"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=what):
            Reservations.of(path)
    with pytest.raises(InputError, match="No such file"):
        Reservations.of(tmp_path / "none.toml")
