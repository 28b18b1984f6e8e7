"""M1, M3: processes that never come, controllers that die, stand still for long, or could not write: never a hang."""

from __future__ import annotations

import pytest

from labkit.elastic.process.fault_injection import InjectedFault
from tests.elastic.chaos.story import Story, alive, many
from tests.elastic.chaos.test_links import wait

START_S = 25.0


def test_a_process_that_never_comes_is_given_up_a_newcomer_with_its_request_a_replacement_for_another() -> None:
    """They stand still before they have said a word."""
    faults = [
        InjectedFault("ps-2", "member.begins", what="stop"),
        InjectedFault("worker-2", "member.begins", what="stop"),
    ]
    with Story("M3 newcomer and replacement hang", faults=faults, start_s=START_S, steps=400) as story:
        story.at(3).scale(servers=1).struck(0).kill("worker-1").struck(1)
        dropped = story.happens("dropped")
        assert f"ps-2 did not join within {START_S:g} s" in dropped["why"]
        story.until(lambda e: e["event"] == "ready" and e["name"] == "worker-3")
        story.scale(servers=1).happens("scaled")
        story.finish()


def test_a_job_whose_first_worker_never_comes_ends_by_name() -> None:
    faults = [InjectedFault("worker-1", "member.begins", what="stop")]
    with Story("M3 first worker hangs", faults=faults, start_s=START_S) as story:
        why = story.ends_with(f"worker-1 did not join within {START_S:g} s")
    assert "worker-1.log" in why


@pytest.mark.parametrize("seed", many(1))
def test_training_goes_on_while_the_controller_is_dead(seed: int) -> None:
    with Story("M1 controller, at rest", steps=200) as story:
        for _ in range(2):
            story.at(3 + seed).kill("controller")
            story.happens("resumed")
            story.stepped(3)
        story.scale(servers=1).happens("scaled")
        story.stepped(3).finish()
        assert not [e for e in story.events if e["event"] in ("goes_back", "left") and not e.get("expected")]


@pytest.mark.parametrize("seed", many(1))
def test_a_controller_that_could_not_write_and_died_leaves_no_block_without_owner(seed: int) -> None:
    """What the next one reads is old: it knows neither the newcomers nor which server has what, and goes back."""
    faults = [InjectedFault("controller", "controller.write", 9 + seed, "ENOSPC", times=40)]
    with Story("M1 old state", faults=faults, save_every=5, steps=200) as story:
        story.at(3).scale(servers=1, workers=1).struck(0)
        story.happens("unwritten")
        story.happens("scaled", "dropped")
        story.stepped(3).kill("controller")
        story.happens("resumed", "began")
        story.stepped(3).scale(servers=1)
        story.happens("scaled", "dropped")
        story.finish()


@pytest.mark.parametrize("sync", [True, False])
def test_a_controller_that_stood_still_for_ten_leases_begins_again_from_a_checkpoint(sync: bool) -> None:
    """By then all members have ended themselves."""
    lease_s = 0.8
    with Story("M1 controller stopped for ten leases", lease_s=lease_s, save_every=10, steps=320, sync=sync) as story:
        story.happens("saved")
        pids = story.pids.values()
        with story.gone().stopped(story.job.pid):
            for _ in range(200):
                if not [pid for pid in pids if alive(pid)]:
                    break
                wait(0.2)
            assert not [pid for pid in pids if alive(pid)]
        story.happens("began")
        story.stepped(3).finish()
