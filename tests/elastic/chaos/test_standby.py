"""P1, with servers that follow: kill -9 of servers costs no step, and no bit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from labkit.elastic import Result
from labkit.elastic.process.fault_injection import InjectedFault
from tests.elastic.chaos.story import Story, many


def redundant(story: Story) -> Story:
    """Wait until every block is followed."""
    story.happens("follows")
    return story


def lost_steps(result: Result) -> int:
    """Return how many steps a worker did twice."""
    done = Counter((e["name"], e["version"]) for e in result.events if e["event"] == "stepped")
    return sum(n - 1 for n in done.values())


def events(result: Result) -> list[str]:
    return [e["event"] for e in result.events]


@pytest.mark.parametrize(
    ("point", "options"),
    [("ps.updated", {}), ("ps.aggregating", {"scheme": "unix"}), ("ps.replying", {"optimizer": "adam"})],
)
@pytest.mark.parametrize("seed", many(1))
def test_servers_that_die_one_after_the_other_cost_no_step(point: str, options: dict[str, Any], seed: int) -> None:
    """Between two steps, amid a sum, amid a reply; the next one after what the first had is followed again."""
    faults = [InjectedFault("ps-0", point, int(np.random.default_rng(seed).integers(60, 160)))]
    with Story("P1 server, followed", faults=faults, standby=True, **options) as story:
        redundant(story).struck(0)
        story.happens("repaired")
        story.stepped().kill("ps-1")
        story.happens("repaired")
        result = story.stepped().finish()
    assert "goes_back" not in events(result)
    assert events(result).count("promoted") == 2
    assert lost_steps(result) == 0


@pytest.mark.parametrize("seed", many(1))
def test_of_three_servers_any_may_die_and_two_workers_with_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with Story("P1 server and worker, followed", servers=3, workers=3, standby=True) as story:
        redundant(story).at(int(rng.integers(5, 15)))
        story.kill(f"ps-{rng.integers(3)}").kill("worker-1")
        story.happens("repaired")
        result = story.stepped().finish()
    assert "goes_back" not in events(result)
    assert lost_steps(result) == 0


def test_owner_and_follower_together_cost_the_steps_since_the_checkpoint() -> None:
    with Story("P1 server and follower", standby=True, save_every=5) as story:
        redundant(story).at(12)
        story.kill("ps-0").kill("ps-1")
        story.happens("began")
        redundant(story)
        result = story.stepped().finish()
    assert events(result).count("goes_back") == 1


@pytest.mark.parametrize("strategy", ["handover", "suspend", "checkpoint"])
def test_scaling_moves_blocks_and_their_replicas(strategy: str) -> None:
    """More, fewer, others; at the end a death costs nothing."""
    with Story(f"N1 {strategy}, followed", standby=True, save_every=10, steps=200) as story:
        redundant(story).scale(servers=2, workers=1, strategy=strategy)
        story.happens("scaled")
        story.scale(servers=-1, strategy=strategy).happens("scaled")
        if strategy == "checkpoint":
            redundant(story)
        here = sorted(set(story.owners().values()))
        story.stepped().kill(here[-1])
        story.happens("promoted")
        result = story.stepped().finish()
    assert "goes_back" not in events(result)


@pytest.mark.parametrize("seed", many(1))
def test_a_server_may_die_while_it_scales(seed: int) -> None:
    """The source or the destination of a move that is under way: it goes on from the server that has the block then."""
    rng = np.random.default_rng(seed)
    point = str(rng.choice(["ps.handover.announced", "ps.handover.streaming", "ps.install.placed"]))
    with Story(
        "P2 followed", faults=[InjectedFault("ps-*", point, 1)], standby=True, save_every=10, steps=200
    ) as story:
        redundant(story).scale(servers=1)
        story.struck(0)
        story.happens("repaired", "began")
        story.stepped().finish()


def test_the_controller_may_die_with_a_server_that_is_followed() -> None:
    with Story("M1 followed", servers=3, standby=True) as story:
        redundant(story).at(10)
        story.kill("controller").kill("ps-1")
        story.happens("promoted")
        result = story.stepped().finish()
    assert "goes_back" not in events(result)
    assert lost_steps(result) == 0
