"""N4, S1-S4, C3: asynchronous training; each update once, each sample once in the ledger, whatever happens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from labkit.elastic.shards import Commit
from tests.elastic.chaos.probe import SAMPLES, effects
from tests.elastic.chaos.story import MINIBATCH, Event, Story, many
from tests.elastic.chaos.test_links import between, wait

LEASE_S = 1.5


def story_of(row: str, **options: Any) -> Story:
    return Story(row, **{"sync": False, "steps": 320, "wait_s": 0.06, "lease_s": LEASE_S, **options})


def samples(ledger: tuple[Commit, ...]) -> Counter[str]:
    """Return how many samples each worker did."""
    done: Counter[str] = Counter()
    for commit in ledger:
        done[str(commit.worker)] += commit.end - commit.start
    return done


def staleness(events: list[Event]) -> list[int]:
    return [e["staleness"] for e in events if e["event"] == "loss"]


@pytest.mark.parametrize("strategy", ["handover", "suspend", "checkpoint"])
def test_whatever_is_scaled_each_update_is_made_once(strategy: str) -> None:
    """Servers and workers come, go, and are replaced.

    An update of one worker falls into at most two updates of each other one, from their reading to their pushing: so
    staleness is at most twice the number of the others, on the average.
    """
    with story_of(f"N4 {strategy}", steps=640) as story:
        story.at(3).scale(servers=1, workers=1, strategy=strategy).happens("scaled")
        story.scale(servers=-1, strategy=strategy).happens("scaled")
        replaced = [] if strategy == "checkpoint" else ["ps-1", "worker-0"]
        story.scale(workers=-1, replace=replaced, strategy=strategy).happens("scaled")
        story.finish()
    told = staleness(story.events)
    assert min(told) == 0
    assert np.mean(told) <= 2 * 2


@pytest.mark.parametrize("seed", many(1))
def test_whichever_member_dies_while_it_scales_updates_are_made_once(seed: int) -> None:
    """A server: back to the checkpoint with its shard queue. The controller: workers go on with what they have."""
    rng = np.random.default_rng(seed)
    with story_of("N4 deaths", save_every=40) as story:
        story.at(3).scale(servers=1)
        wait(float(rng.uniform(0, 2)))
        story.kill("controller").happens("resumed", "began")
        story.stepped(5).kill(str(rng.choice(sorted(set(story.owners().values())))))
        story.happens("began")
        story.stepped(5).finish()


@pytest.mark.parametrize("seed", many(1))
def test_what_a_killed_worker_had_leased_is_done_by_others(seed: int) -> None:
    """What it was at may have had its effect already: at most one minibatch of each of them."""
    rng = np.random.default_rng(seed)
    with story_of("S2 worker killed with leases", workers=3) as story:
        story.at(int(rng.integers(5, 40))).kill("worker-0")
        story.happens("left")
        story.stepped(int(rng.integers(1, 9))).kill("worker-1")
        story.happens("left")
        story.stepped(5).finish(twice=2)


@pytest.mark.parametrize("seed", many(1))
def test_a_worker_that_the_controller_cannot_hear_does_no_more_than_it_had_leased(seed: int) -> None:
    """Its link is dead for longer than its leases; it reaches all servers, and the controller does not hear it.

    What it has leased is of one epoch, so each sample has its effect at most once more.
    """
    story = story_of("S2 worker beyond its lease", scheme="unix")
    with between(story, link=("worker-1", "controller")) as proxies, story:
        story.at(5 + seed)
        story.gone(lambda: proxies["link"].freeze(from_near=[None, True, False][seed % 3]))
        story.happens("expired", "missed")
        proxies["link"].thaw()
        story.until(lambda e: e["event"] == "stepped" and e["name"] in ("worker-1", "worker-2"))
        result = story.stepped(5).finish(twice=SAMPLES // MINIBATCH)
    assert effects(result.model, sync=False).max() <= story.steps * MINIBATCH // SAMPLES + 1
    late = [e for e in result.events if e["event"] == "refused" and e["name"] == "worker-1"]
    assert all(e["fate"] in ("expired", "left") for e in late)


@pytest.mark.parametrize("seed", many(1))
def test_a_worker_that_stands_still_beyond_its_lease_has_at_most_its_minibatch_done_twice(seed: int) -> None:
    """What it was at when it stood still, and what it begins before it hears that it is too late."""
    with story_of("S2 worker stopped beyond its lease") as story:
        story.at(5 + seed)
        with story.gone().stopped(story.pids["worker-1"]):
            story.happens("expired", "missed")
        story.stepped(5).finish(twice=2)


def test_a_straggler_gets_fewer_samples_and_each_is_done_once_in_each_epoch() -> None:
    """S1, S2: four times as slow, a quarter; but for the ends of epochs, which all do together."""
    with story_of("S1", data={"times": {"worker-1": 4.0}}, wait_s=0.02) as story:
        while sum(e["event"] == "loss" for e in story.events) < story.steps - 30:
            story.next()
        result = story.finish()
    done = samples(result.ledger)
    assert done["worker-1"] < done["worker-0"] / 2


def test_a_sample_that_kills_each_worker_that_reads_it_ends_the_job_by_name() -> None:
    """S3: never silence, and never an end that looks like success."""
    with story_of("S3 deadly sample", data={"deadly": 77}) as story:
        why = story.ends_with("failed 3 times")
    assert "its process died" in why
    assert "epoch 0" in why
    assert not [e for e in story.events if e["event"] == "over" and not e["failure"]]


@pytest.mark.parametrize("sync", [True, False])
def test_a_sample_that_is_never_read_ends_the_job_by_name(sync: bool) -> None:
    """The worker lives and answers; but it does not come forward. At another worker it is the same."""
    with Story("S3 endless sample", data={"endless": 77}, sync=sync, patience_s=6.0) as story:
        why = story.ends_with("no gradient after 6 s; the data or the model hangs")
    assert why.startswith("worker-")
    assert [e["reason"][:7] for e in story.events if e["event"] == "left" and not e["expected"]] == ["cut off"]


@pytest.mark.parametrize("seed", many(1))
def test_model_and_shard_queue_go_back_to_one_moment(seed: int) -> None:
    """C3: one manifest for both; if the queue is damaged, the model of that moment is not used either."""
    with story_of("C3 model and queue", save_every=30, steps=640) as story:
        story.happens("saved")
        newest = int(story.happens("saved")["version"])
        queue = next((story.folder / "checkpoints" / f"step-{newest:06d}").glob("queue*"))
        raw = bytearray(queue.read_bytes())
        raw[(7 + 13 * seed) % len(raw)] ^= 16
        queue.write_bytes(raw)
        story.kill("ps-0")
        assert "queue" in story.happens("bad_checkpoint")["why"]
        assert story.happens("began")["version"] < newest
        story.stepped(5).finish()
