"""Quotas hold under every scheduler: at no event do a user's jobs hold more GPUs than they may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import Jobs, Placement
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.core.quotas import Quotas
from labkit.core.resources import GPUS, amounts
from labkit.experiment import Experiment, Session, every_slot
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import build, no_network


def jobs_of(user: list[str], n_workers: list[int], **more: object) -> Jobs:
    n = len(user)
    return Jobs.of(
        arrival_s=np.arange(n, dtype=float), total_steps=100, duration_s=100.0, user=user, n_workers=n_workers, n_ps=0,
        worker_demand=amounts(gpus=1, cpus=1, memory_gb=1), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def session_of(jobs: Jobs) -> Session:
    """Return a session in which user a may hold 4 of 16 GPUs."""
    cluster = no_network(4)
    simulator = Simulator(jobs, cluster, speed=Recorded(jobs, cluster))
    return Session(simulator, cadence=every_slot(0.5), quotas=Quotas.of("a=4"))


def most_held(session: Session, quotas: Quotas) -> None:
    """Check after each batch of events that no user holds more than its quota."""
    jobs = session.ledger.jobs
    held = session.ledger.book.allocations
    gpus = held["n_workers"] * jobs.worker_demand[:, GPUS] + held["n_ps"] * jobs.ps_demand[:, GPUS]
    by_user = np.bincount(jobs.user, gpus, len(jobs.users))
    assert (by_user <= quotas.limits(jobs) + 1e-6).all(), by_user


SCHEDULERS = (
    "fifo",
    "fifo(backfill=True)",
    "srtf",
    "las",
    "tetris",
    "drf",
    "gavel_las",
    "optimus",
    "fifo(priority=True)",
)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=8)
@given(data=st.data())
def test_no_user_ever_holds_more_than_its_quota_and_all_jobs_complete(scheduler: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 12))
    users = data.draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n))
    workers = data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    most = data.draw(st.integers(3, 6))
    grows = {"max_workers": 4} if scheduler in ("drf", "optimus") else {}
    quotas = Quotas.of({users[0]: most, "*": 3})
    seen: list[Session] = []

    def check(rows: object) -> None:
        if seen:
            most_held(seen[0], quotas)

    from labkit.schedulers import make

    experiment = Experiment.of(jobs_of(users, workers, **grows), cluster="no_network(3)", quotas=quotas)
    policy = make(scheduler)
    session = experiment.session(policy, observers=[check])
    seen.append(session)
    session.run(policy)
    assert np.count_nonzero(session.log.rows["kind"] == Kind.COMPLETED) == n


def test_jobs_are_admitted_by_priority_and_then_by_arrival() -> None:
    jobs = jobs_of(["a"] * 4, [2, 2, 2, 2], priority=[0, 0, 5, 0])
    session = session_of(jobs)
    session.look(10.0)
    while len(session.ledger.active()) < 4:
        session.look(1.0)
    assert session.snapshot().waiting.tolist() == [0, 2]
    assert session.snapshot().jobs.number.tolist() == [0, 2]


def test_what_exceeds_a_quota_is_taken_away_with_its_reason_growth_first() -> None:
    jobs = jobs_of(["a", "a"], [1, 1], max_workers=6)
    session = session_of(jobs)
    while len(session.ledger.active()) < 2:
        session.look(1.0)
    session.step(Placement.of([0, 1], job=[0, 0, 0, 1], group=[0, 1, 2, 3], count=2))
    assert session.ledger.book.allocations["n_workers"].tolist() == [3, 1]
    assert session.reasons == ["the quota of a is 4 GPUs"]
    assert np.count_nonzero(session.log.rows["kind"] == Kind.EXPLAINED) == 2


def test_a_job_that_is_hidden_does_not_start_even_if_a_scheduler_names_it() -> None:
    jobs = jobs_of(["a", "a"], [3, 3])
    session = session_of(jobs)
    while len(session.ledger.active()) < 2:
        session.look(1.0)
    session.step(Placement.of([0, 1], job=[0, 0, 1, 1], group=[0, 1, 2, 3], count=[2, 1, 2, 1]))
    assert session.ledger.book.allocations["n_workers"].tolist() == [3, 0]


def test_a_quota_is_in_the_notes_of_a_run_and_makes_its_user_wait() -> None:
    jobs = jobs_of(["a", "a", "b"], [4, 4, 4])
    free = Experiment.of(jobs, cluster="no_network(4)").run("fifo")
    bound = Experiment.of(jobs, cluster="no_network(4)", quotas="a=4").run("fifo")
    assert bound.summary["mean_jct_s"] > free.summary["mean_jct_s"]
    assert bound.table["jct_s"].tolist() == pytest.approx([100, 199, 100])
    assert "quotas: a 4 GPUs; jobs beyond them wait, under every scheduler" in bound.info.config["notes"]
    assert bound.info.config["quotas"] == "a 4 GPUs"


def test_quotas_are_read_from_a_file_and_bad_ones_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text('[quota]\nvision = 8\n"*" = 2\n')
    assert Quotas.of(tmp_path / "q.toml").gpus == {"vision": 8, "*": 2}
    assert Quotas.of("a=1+b=2").gpus == {"a": 1, "b": 2}
    jobs = jobs_of(["a", "b"], [2, 4])
    for said, what in (
        ("a", "No such file"), ("a=x", "a quota is 'a=x'; expected USER=GPUS"), ("a=1,a=2", "user 'a' has two quotas"),
        ("a=-1", "the quota of 'a' is -1.0; expected"), ("=3", "a quota is '=3'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=what):
            Quotas.of(said)
    with pytest.raises(InputError, match="unknown user in quotas 'c'"):
        Experiment.of(jobs, cluster="no_network(4)", quotas="c=3").run("fifo")
    with pytest.raises(InputError, match="job 1 of 'b' asks for 4, the quota is 3"):
        Experiment.of(jobs, cluster="no_network(4)", quotas="*=3").run("fifo")
    (tmp_path / "q.toml").write_text("vision = 8\n")
    with pytest.raises(InputError, match=r"has vision; expected USER=GPUS"):
        Quotas.of(tmp_path / "q.toml")


def test_a_higher_priority_goes_first_under_fifo() -> None:
    jobs = jobs_of(["a"] * 3, [8, 8, 8], priority=[0, 0, 1])
    record = Experiment.of(jobs, cluster=build("no_network(2)")).run("fifo(priority=True)")
    assert record.table["completion_s"].rank().tolist() == [1, 3, 2]


def test_a_scheduler_with_leases_is_refused_beside_quotas() -> None:
    """It takes jobs that it is not shown for done, and a quota hides one that it has stopped."""
    jobs = jobs_of(["a", "a", "b", "a", "b"], [2, 4, 2, 3, 1])
    experiment = Experiment.of(jobs, cluster="no_network(2)", quotas="a=4")
    with pytest.raises(InputError, match=r"gavel_las\(published=True\) takes jobs that it is not shown for done"):
        experiment.run("gavel_las(published=True)")


@pytest.mark.parametrize("other", ["backfill", "priority"])
def test_fifo_as_published_has_neither_backfill_nor_priorities(other: str) -> None:
    with pytest.raises(InputError, match="fifo: published=True goes alone"):
        make(f"fifo(published=True,{other}=True)")
