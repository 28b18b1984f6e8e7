"""slot_aware: what it counts, by hand; and that it is below a trained policy and Optimus in DL2's setting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError, Jobs, Role
from labkit.core.resources import amounts
from labkit.experiment import Experiment, every_slot
from labkit.placers import FirstFit
from labkit.schedulers import make
from labkit.schedulers.slot_aware import slots_to_end
from labkit.speed.dl2 import fitted
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.topology import build, no_network
from labkit.workloads import dl2_jobs

SLOT_S = 1200.0


def workers_of(steps, *, speed, slot_s=100.0, n_gpus=8, **options):
    """Return the workers that jobs get first on machines of 4 GPUs; speeds by workers alone, a server takes nothing."""
    jobs = Jobs.of(
        arrival_s=np.zeros(len(steps)), total_steps=steps, n_workers=1, n_ps=1, max_workers=8, max_ps=1,
        model=["m"] * len(steps), worker_demand=amounts(gpus=1, cpus=1), ps_demand=amounts(),
    )  # fmt: skip
    counts, cluster = np.arange(1, 9), no_network(n_gpus // 4)
    table = SpeedTable.of(["m"] * 8, n_ps=[1] * 8, n_workers=counts, samples_per_s=speed(counts))
    model = MeasuredSpeed(jobs, cluster, table=table)
    scheduler = make("slot_aware", oracle=True, placer=FirstFit(), **options)
    session = Experiment.of(jobs, cluster=cluster, speed=model, cadence=every_slot(slot_s)).session(scheduler)
    placement = scheduler.schedule(session.snapshot())
    job, count = (column[placement.role == Role.WORKER] for column in (placement.job, placement.count))
    return np.bincount(job, count, len(jobs)).astype(int).tolist()


def test_beyond_the_slot_lengths_do_not_count():
    """Optimus' rule would give the longer job 6 of 8 (test_lookahead)."""
    assert workers_of([16_000, 3_000], speed=lambda k: 10 * k**0.5) == [4, 4]


def test_a_job_that_ends_within_the_slot_gains_no_more_than_the_time_it_saves():
    """With 1, 2, 3 workers job 0 ends after 0.50, 0.35, 0.29 slots; job 1 leaves its next ones with 3.5 slots each."""
    assert workers_of([500, 50_000], speed=lambda k: 10 * k**0.5, n_gpus=4, look_ahead=1) == [1, 3]
    # a slot of 10 times the length: both end within it or nearly so, and the one with more work saves more
    assert workers_of([500, 50_000], speed=lambda k: 10 * k**0.5, n_gpus=4, slot_s=1e5, look_ahead=1) == [1, 3]
    assert workers_of([900, 900], speed=lambda k: 10 * k**0.5, n_gpus=4) == [2, 2]


def test_the_slot_is_that_of_the_run():
    """In a slot of 60 s no job ends, so both count alike; in one of 1,000 s the longer one saves more time."""
    assert workers_of([2000, 6000], speed=lambda k: 10 * k**0.5, slot_s=60.0) == [4, 4]
    assert workers_of([2000, 6000], speed=lambda k: 10 * k**0.5, slot_s=1000.0) == [3, 5]


@given(seed=st.integers(0, 10_000), stretch=st.floats(1, 5))
def test_slots_fall_with_speed_and_grow_with_work(seed, stretch):
    rng = np.random.default_rng(seed)
    left, seconds = np.sort(rng.uniform(1, 1e4, 5)), np.sort(rng.uniform(0.1, 10, (1, 3, 4)).ravel()).reshape(1, 3, 4)
    slots = slots_to_end(left, np.repeat(seconds, 5, axis=0), slot_s=600.0, stretch=stretch)
    assert (np.diff(slots.reshape(5, -1), axis=1) >= 0).all()  # slower gangs need no fewer slots
    assert (np.diff(slots, axis=0) >= 0).all()
    ends = left[:, None, None] * seconds <= 600.0
    np.testing.assert_allclose(slots[ends], (left[:, None, None] * seconds / 600.0)[ends])
    assert (slots[~ends] > 1).all()


def mean_jct(scheduler, *, n, seed):
    jobs, cluster = dl2_jobs("short_48n", seed=seed, pattern="google"), build(f"dl2-{n}n")
    model = MeasuredSpeed(jobs, cluster, table=fitted())
    experiment = Experiment.of(jobs, cluster=cluster, speed=model, cadence=every_slot(SLOT_S))
    return experiment.run(make(scheduler), name=scheduler).summary["mean_jct_s"] / SLOT_S


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
@pytest.mark.parametrize("seed", [101, 102])
def test_without_training_it_is_below_the_shipped_policy_that_knows_the_same_table(seed):
    """On 8 of DL2's machines and the smooth speeds of a clean clone; the networks were trained on that table."""
    networks = "dl2(weights=('dl2','dl2-fitted'))"
    jct = {
        name: mean_jct(name, n=8, seed=seed) for name in ("slot_aware(oracle=True)", "slot_aware", "optimus", networks)
    }
    assert jct["slot_aware(oracle=True)"] < 0.99 * jct[networks]
    assert jct["slot_aware"] < 0.97 * jct["optimus"]  # both fit what they measured


def test_what_it_cannot_take_is_refused():
    with pytest.raises(InputError, match=r"^slot_aware: stretch is 0\.5; expected a factor >= 1, e\.g\. 2\.$"):
        make("slot_aware(stretch=0.5)")
    with pytest.raises(InputError, match=r"^slot_aware: look_ahead is 0; expected a number of tasks >= 1\.$"):
        make("slot_aware(look_ahead=0)")
    with pytest.raises(InputError, match=r"^slot_aware: n_pre_runs is 0; expected a number of gangs >= 1\.$"):
        make("slot_aware(n_pre_runs=0)")
