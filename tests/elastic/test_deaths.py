"""How many deaths a job outlives: those that are long ago, or before a step forward, do not count."""

from __future__ import annotations

from labkit.elastic.controller.controller_state import SHORTAGES, Deaths, shortages


def died(deaths: Deaths, n: int, *, now_s: float = 0.0, joined: bool = True) -> str:
    told = ""
    for i in range(n):
        told = told or deaths.note(f"ps-{i} (exit code -9)", now_s=now_s, joined=joined)
    return told


def test_more_deaths_than_allowed_end_a_job_and_the_message_names_limit_time_and_the_last() -> None:
    told = died(Deaths(restarts=3, within_s=60), 4)
    assert told == (
        "4 processes died within 60 s without a step forward, the last of them ps-3 (exit code -9); more than "
        "restarts=3."
    )


def test_a_death_counts_for_its_time_only() -> None:
    deaths = Deaths(restarts=3, within_s=60)
    assert not died(deaths, 3)
    assert not died(deaths, 3, now_s=61.0)
    assert died(deaths, 1, now_s=62.0)


def test_a_step_further_than_ever_makes_deaths_count_no_more_and_a_step_done_again_does_not() -> None:
    deaths = Deaths(restarts=3, within_s=60)
    deaths.reached(7)
    assert not died(deaths, 3)
    deaths.reached(8)
    assert not died(deaths, 2)
    deaths.reached(5)  # of a checkpoint
    assert not died(deaths, 1)
    deaths.reached(8)
    assert died(deaths, 1)


def test_a_process_that_dies_before_it_joins_counts_until_another_joins_whatever_training_does() -> None:
    deaths = Deaths(restarts=3, within_s=60)
    assert not died(deaths, 3, joined=False)
    deaths.reached(100)
    assert not died(deaths, 0)
    deaths.joined()
    assert not died(deaths, 3, joined=False)
    deaths.reached(200)
    assert died(deaths, 1, joined=False)


def test_the_next_controller_knows_what_counts() -> None:
    one, other = (Deaths(restarts=3, within_s=60) for _ in range(2))
    one.reached(7)
    died(one, 3)
    other.take_over(one.state())
    other.reached(7)
    assert died(other, 1)


def test_steps_that_the_last_controller_had_done_are_no_step_forward_for_the_next() -> None:
    one, other = (Deaths(restarts=3, within_s=60) for _ in range(2))
    one.reached(7)
    died(one, 1)
    other.take_over(one.state())
    died(other, 2)
    other.reached(5)  # again, from a checkpoint
    assert died(other, 1)


def test_want_of_memory_has_a_count_of_its_own_which_is_forgiven_when_there_is_more() -> None:
    count = shortages(60)
    assert not died(count, SHORTAGES)
    count.forgive()
    assert not died(count, SHORTAGES)
    told = died(count, 1)
    assert told.startswith(f"{SHORTAGES + 1} processes ran out of memory within 60 s without a step forward, the last")
    assert told.endswith("give them more memory (Job.resize), or spread the blocks over more servers.")
