"""What follows from failures: rests that grow, hosts set aside by name, jobs given up late, or for their own fault."""

from __future__ import annotations

import pytest

from labkit.core.errors import InputError
from labkit.testbed.run.retries import Failures, Retries

FULL = "host h0: No space left on device (errno 28)"


def fails(found: Failures, *, host: str = "h0", at_s: float = 0.0, why: str = FULL, steps: float = 0.0, **more):
    return found.failed(0, host=host, why=why, steps=steps, now_s=at_s, **more)


def test_five_failures_within_a_moment_do_not_drop_a_job_and_rests_double_up_to_a_limit():
    found = Failures(Retries(first_s=1.0, longest_s=8.0))
    verdicts = [fails(found, at_s=0.04 * n) for n in range(6)]
    assert [each.wait_s for each in verdicts] == [1, 2, 4, 8, 8, 8]
    assert not any(each.drop or each.aside for each in verdicts), "there is no other host"


def test_a_job_is_given_up_once_failures_are_spread_out_and_why_is_told_with_hosts_and_time():
    found = Failures(Retries(failures=3, spread_s=60.0))
    assert not fails(found, at_s=0.0, others=["h1"]).drop
    assert not fails(found, at_s=30.0, host="h1", why="host h1: it died", others=["h0"]).drop
    assert not fails(found, at_s=59.0, others=["h1"]).drop
    assert fails(found, at_s=60.0, others=["h1"]).drop == (
        f"4 failures without progress in 60 s on h0, h1; the last: {FULL}"
    )


def test_a_job_that_was_only_on_one_host_of_several_is_not_given_up_yet():
    found = Failures(Retries(failures=3, spread_s=1.0))
    drops = [bool(fails(found, at_s=10.0 * n, others=["h1"]).drop) for n in range(6)]
    assert drops == [False] * 5 + [True], "twice the usual number is enough"


def test_progress_forgives_a_job_and_training_forgives_a_host():
    found = Failures(Retries(failures=2, spread_s=0.0, aside_s=10.0))
    assert fails(found, steps=0.0, others=["h1"]).aside == 10
    assert not fails(found, steps=20.0, others=["h1"]).drop
    assert found.n_of(0) == 1
    found.succeeded("h0")
    assert fails(found, steps=40.0, others=["h1"]).aside == 10
    assert fails(found, steps=60.0, others=["h1"]).aside == 20, "no job trained there in between"


def test_a_host_on_which_others_train_is_blamed_only_when_it_fails_the_job_again():
    found = Failures(Retries())
    assert fails(found, others=["h1"], busy=True).aside == 0
    assert fails(found, others=["h1"], busy=True).aside == 10


def test_the_same_words_on_two_hosts_are_the_jobs_fault_and_its_hosts_come_back():
    found = Failures(Retries())
    assert fails(found, why="ValueError: 17 classes on h0", others=["h1"]).aside == 10
    second = fails(found, why="ValueError: 17 classes on h1", host="h1", others=["h0"])
    assert (second.aside, second.back) == (0, ("h0",))


def test_a_job_that_says_itself_that_it_cannot_train_is_given_up_at_once_and_no_host_is_blamed():
    found = Failures(Retries())
    assert not fails(found, why="9 servers for 8 blocks", own=True, others=["h1"]).drop
    assert fails(found, why="9 servers for 8 blocks", own=True).drop == "it cannot train: 9 servers for 8 blocks"


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"spread_s": -1.0}, {"aside_s": float("nan")}])
def test_limits_that_cannot_be_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"retries: {name} is .*; expected"):
        Retries(**wrong)
