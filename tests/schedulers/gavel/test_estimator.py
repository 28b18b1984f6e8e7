"""The estimator: fewer measurements, larger errors; nothing else is looked at; what ran is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Jobs, Kind
from labkit.core.errors import InputError, ProfileError
from labkit.core.life import Profile
from labkit.core.resources import Bools, Floats
from labkit.experiment import Experiment
from labkit.experiment.profile import measure_profile
from labkit.results import RunRecord
from labkit.schedulers import make
from labkit.schedulers.gavel.estimator import Estimate, estimate_pairs
from labkit.schedulers.gavel.mechanism import Gavel
from labkit.simulator import Overheads
from labkit.speed.gavel import GavelSpeed
from labkit.topology import no_network
from labkit.topology.presets import build
from labkit.topology.servers import Server, server
from labkit.workloads import gavel_jobs
from labkit.workloads.gavel import Throughputs

FRACTIONS = (0.1, 0.3, 0.6, 1.0)
RNG = np.random.default_rng
Data = Callable[[str], Path]


@pytest.fixture
def gavels(shared_data: Data) -> Profile:
    """Return the profile of Gavel's 26 models on three device types."""
    return _gavels(shared_data("gavel/simulation_throughputs.json"))


@cache
def _gavels(path: Path) -> Profile:
    table, cluster = Throughputs.read(path), build("gavel-36x3")
    jobs = Jobs.of(arrival_s=np.zeros(len(table.models)), total_steps=1e6, model=list(table.models))
    return measure_profile(jobs, cluster, speed=GavelSpeed(jobs, cluster, throughputs=table), pairs=True)


def profile_of(slowed: Floats, *, alone: Floats | None = None) -> Profile:
    """Return a profile of kinds that run at this fraction of their speed beside each other, (K, K, T)."""
    n = len(slowed)
    rate = np.ones((n, slowed.shape[2])) if alone is None else alone
    whole = np.ones(rate.shape, np.bool_)
    return Profile(np.arange(n, dtype=np.int32), rate, rate, np.zeros(n), slowed * rate[:, None, :], whole)


def error(estimate: Estimate, profile: Profile) -> float:
    """Return the mean error of a pair's speed, as a fraction of the speed alone."""
    assert profile.shared is not None
    wrong = np.abs(estimate.shared - profile.shared) / np.maximum(profile.alone, 1e-300)[:, None, :]
    return float(np.nanmean(wrong))


# --- how good it is


@pytest.mark.parametrize("n_references", [None, 20, 13])
def test_the_error_falls_with_the_fraction_that_is_measured(gavels: Profile, n_references: int | None) -> None:
    errors = [
        np.mean([
            error(estimate_pairs(gavels, fraction=f, n_references=n_references, rng=RNG(seed)), gavels)
            for seed in range(6)
        ])
        for f in FRACTIONS
    ]  # fmt: skip
    assert (np.diff(errors) < 0).all(), errors
    assert errors[0] < 0.15
    if n_references is None:
        assert errors[-1] == 0


@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_the_nearest_reference_tells_more_than_the_average_one(gavels: Profile, fraction: float) -> None:
    # Gavel, sec. 6: a few runs beside reference jobs are a fingerprint
    assert gavels.shared is not None
    slowed = gavels.shared / gavels.alone[:, None, :]
    unseen, average = [], []
    for seed in range(6):
        estimate = estimate_pairs(gavels, fraction=fraction, n_references=20, rng=RNG(seed))
        left = ~estimate.measured
        unseen.append(np.abs(estimate.shared / gavels.alone[:, None, :] - slowed)[left].mean())
        average.append(np.abs(slowed[left] - slowed[estimate.measured].mean()).mean())
    assert np.mean(unseen) < 0.6 * np.mean(average)


def test_a_reference_job_is_nearest_to_itself(gavels: Profile) -> None:
    for seed in range(4):
        estimate = estimate_pairs(gavels, fraction=0.5, n_references=13, rng=RNG(seed))
        references = np.unique(estimate.nearest)
        assert 1 < len(references) <= 13
        assert np.array_equal(estimate.nearest[references], references)
        everyone = estimate_pairs(gavels, fraction=0.5, rng=RNG(seed))
        assert np.mean(everyone.nearest == np.arange(26)) > 0.95


@st.composite
def slowdowns(draw: st.DrawFn) -> Floats:
    n, n_types = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    return RNG(draw(st.integers(0, 1000))).random((n, n, n_types)) + 0.01


@given(slowed=slowdowns(), seed=st.integers(0, 99))
def test_with_all_pairs_measured_the_estimate_is_the_truth(slowed: Floats, seed: int) -> None:
    profile = profile_of(slowed)
    estimate = estimate_pairs(profile, fraction=1.0, rng=RNG(seed))
    assert estimate.measured.all()
    assert error(estimate, profile) == 0
    assert np.array_equal(estimate.nearest, np.arange(len(slowed)))


@given(slowed=slowdowns(), fraction=st.floats(0.01, 1.0), n_references=st.integers(1, 6), seed=st.integers(0, 99))
def test_what_was_measured_is_believed_and_the_rest_is_a_references(
    slowed: Floats, fraction: float, n_references: int, seed: int
) -> None:
    profile = profile_of(slowed)
    estimate = estimate_pairs(profile, fraction=fraction, n_references=n_references, rng=RNG(seed))
    assert profile.shared is not None
    seen, near = estimate.measured, estimate.nearest
    assert np.array_equal(estimate.shared[seen], profile.shared[seen])
    assert np.array_equal(estimate.shared[~seen], profile.shared[np.ix_(near, near)][~seen])


# --- what it looks at


def test_each_kind_is_run_beside_that_fraction_of_the_references_on_each_type() -> None:
    profile = profile_of(RNG(0).random((10, 10, 3)))
    for fraction, runs in ((0.2, 2), (0.25, 3), (0.01, 1), (1.0, 10)):
        measured = estimate_pairs(profile, fraction=fraction, rng=RNG(1)).measured
        assert (measured == measured.transpose(1, 0, 2)).all()  # both jobs of a pair are measured
        pairs = np.triu(measured.transpose(2, 0, 1)).sum(axis=(1, 2))
        assert (pairs <= 10 * runs).all()
        assert (measured.sum(axis=1) >= runs).all()
    few = estimate_pairs(profile, fraction=1.0, n_references=4, rng=RNG(1))
    assert len(np.unique(few.nearest)) == 4
    outside = np.setdiff1d(np.arange(10), few.nearest)
    assert not few.measured[np.ix_(outside, outside)].any()


@given(slowed=slowdowns(), fraction=st.floats(0.01, 0.6), n_references=st.integers(1, 6), seed=st.integers(0, 99))
def test_pairs_that_were_not_measured_cannot_change_the_estimate(
    slowed: Floats, fraction: float, n_references: int, seed: int
) -> None:
    profile = profile_of(slowed)
    estimate = estimate_pairs(profile, fraction=fraction, n_references=n_references, rng=RNG(seed))
    references = np.sort(RNG(seed).permutation(len(slowed))[:n_references])
    secret = ~estimate.measured
    secret[np.ix_(references, references)] = False
    assert profile.shared is not None
    other = replace(profile, shared=np.where(secret, 7.0, profile.shared))
    again = estimate_pairs(other, fraction=fraction, n_references=n_references, rng=RNG(seed))
    assert np.array_equal(again.shared, estimate.shared)
    assert np.array_equal(again.nearest, estimate.nearest)


def test_a_seed_is_an_estimate() -> None:
    profile = profile_of(RNG(0).random((8, 8, 2)))
    one, again, other = (estimate_pairs(profile, fraction=0.3, rng=RNG(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one.shared, again.shared)
    assert not np.array_equal(one.measured, other.measured)


def test_gangs_of_other_sizes_have_references_of_their_own() -> None:
    slowed = RNG(3).random((6, 6, 2)) + 0.1
    slowed[:3, 3:] = slowed[3:, :3] = np.nan  # the last three kinds have larger gangs
    slowed[3:, 3:] = 0.0  # which cannot share, as in Gavel's measurements
    estimate = estimate_pairs(profile_of(slowed), fraction=0.4, n_references=2, rng=RNG(0))
    assert np.isnan(estimate.shared[:3, 3:]).all()
    assert np.isnan(estimate.shared[3:, :3]).all()
    assert (estimate.nearest[:3] < 3).all()
    assert (estimate.nearest[3:] >= 3).all()
    assert (estimate.shared[3:, 3:] == 0).all()
    assert (estimate.shared[:3, :3] > 0).all()


def test_a_kind_that_cannot_run_on_a_type_shares_nothing_there_and_one_that_never_can_has_no_reference() -> None:
    slowed = RNG(4).random((4, 4, 2)) + 0.1
    alone = np.ones((4, 2))
    alone[1, 0] = 0
    slowed[3] = slowed[:, 3] = np.nan
    estimate = estimate_pairs(profile_of(slowed, alone=alone), fraction=0.3, rng=RNG(0))
    assert (estimate.shared[1, :3, 0] == 0).all()
    assert (estimate.shared[:3, 1, 0] == 0).all()
    assert (estimate.shared[:3, :3, 1] > 0).all()
    assert estimate.nearest[3] == -1
    assert np.isnan(estimate.shared[3]).all()


# --- what a run teaches


def two_models(*, second: float) -> Throughputs:
    """Return figures of models R and S: a pair keeps 0.9 of its speed, but two S only this much."""
    slowed = np.array([[0.9, 0.9], [0.9, second]])
    return Throughputs(("v100",), ("R", "S"), np.array([1], np.int32), np.ones((2, 1, 1)), slowed[:, None, :, None])


def on_one_gpu(*, second: float, hours: float = 2.0, **options: float) -> tuple[Gavel, RunRecord]:
    """Run two S on one GPU, with R as the only reference (which comes later): two S look like two R."""
    jobs = Jobs.of(arrival_s=[0, 0, 86400], total_steps=hours * 3600, duration_s=hours * 3600, model=["S", "S", "R"])
    where = no_network(1, servers=Server("one", sockets=((1, 8, 64),)))
    trial = Experiment.of(
        jobs, cluster=where, speed=GavelSpeed(jobs, where, throughputs=two_models(second=second)),
        overheads=Overheads(**options),
    )  # fmt: skip
    for seed in range(20):
        scheduler = make("gavel_las(space_sharing=True,estimate=1.0,n_references=1)", seed=seed)
        assert isinstance(scheduler, Gavel)
        record = trial.run(scheduler)
        assert scheduler._estimator is not None
        kind = scheduler._estimator.profile.kind
        if (scheduler._estimator.estimate.nearest == kind[2]).all():  # R was drawn
            return scheduler, record
    raise AssertionError("20 seeds never drew R")


def believed(scheduler: Gavel, a: int, b: int) -> float:
    assert scheduler._estimator is not None
    profile = scheduler._estimator.profile
    assert profile.shared is not None
    return float(profile.shared[profile.kind[a], profile.kind[b], 0])


def paired_s(record: RunRecord) -> float:
    """Return until when two jobs shared their GPU: one was stopped, or placed anew, or done."""
    rows = record.events
    places = np.flatnonzero((rows["kind"] == Kind.PLACED) & (rows["partner"] >= 0))
    assert len(places)
    last = int(places[-1])
    ends = np.isin(rows["kind"], [Kind.PREEMPTED, Kind.COMPLETED]) & (np.arange(len(rows)) > last)
    return float(rows["time_s"][ends][0])


def test_a_pair_that_ran_is_known_and_no_longer_estimated() -> None:
    scheduler, record = on_one_gpu(second=0.3)
    assert scheduler._estimator is not None
    before = scheduler._estimator.estimate.shared
    assert 0.9 in before
    assert 0.3 not in before
    assert believed(scheduler, 0, 1) == pytest.approx(0.3)
    assert paired_s(record) == 360  # beside each other they make 0.6 of a job: after a round each is on its own


def test_a_good_pair_stays_together() -> None:
    scheduler, record = on_one_gpu(second=0.8)
    assert believed(scheduler, 0, 1) == pytest.approx(0.8)
    assert record.summary["mean_jct_s"] == pytest.approx((2 * 2 / 0.8 + 2) / 3 * 3600, rel=0.01)


def test_two_jobs_that_cannot_share_are_told_apart_after_a_round() -> None:
    scheduler, record = on_one_gpu(second=0.0)
    assert believed(scheduler, 0, 1) == 0
    assert paired_s(record) == 360
    assert record.summary["makespan_s"] > 0  # they all come to their end


def test_a_job_that_starts_does_not_stand_still() -> None:
    scheduler, _ = on_one_gpu(second=0.8, start_s=60, restart_s=60, rescale_s=60)
    assert believed(scheduler, 0, 1) == pytest.approx(0.8)


def cells_that_ran(record: RunRecord, kind: np.ndarray, shape: tuple[int, ...]) -> Bools:
    """Return which (kind, kind, type) ever ran, from the events."""
    ran = np.zeros(shape, np.bool_)
    rows = record.events[record.events["kind"] == Kind.PLACED]
    shares = rows[rows["partner"] >= 0]
    ran[kind[shares["job"]], kind[shares["partner"]], record.cluster.group_type[shares["group"]]] = True
    return ran


# --- end to end


def test_the_estimate_costs_little_against_knowing_all_pairs(shared_data: Data) -> None:
    # Gavel, Fig. 14: at high load the average JCT hardly differs between estimated and known throughputs
    path, jct_s = shared_data("gavel/simulation_throughputs.json"), np.zeros((3, 4))
    small = no_network(3, servers=[(1, server(f"gavel-{kind}")) for kind in ("v100", "p100", "k80")])
    for seed in range(3):
        trial = Experiment.of(gavel_jobs(60, seed=seed, mean_gap_s=200), cluster=small, throughputs=path)
        for i, options in enumerate(("", ",estimate=0.5", ",estimate=0.2,n_references=13")):
            record = trial.run(make(f"gavel_las(space_sharing=True{options})"))
            jct_s[seed, i] = record.summary["mean_jct_s"]
        jct_s[seed, 3] = trial.run("gavel_las").summary["mean_jct_s"]
    known, estimated, by_half_of_the_models, alone = jct_s.mean(axis=0)
    assert estimated == pytest.approx(known, rel=0.01)
    assert 0.99 * known < by_half_of_the_models < 1.05 * known
    assert by_half_of_the_models < 0.9 * alone


def test_all_pairs_that_ran_are_known_in_the_end(shared_data: Data) -> None:
    path = shared_data("gavel/simulation_throughputs.json")
    trial = Experiment.of(gavel_jobs(40, seed=3, mean_gap_s=60), cluster="gavel-8-16-24", throughputs=path)
    scheduler = make("gavel_las(space_sharing=True,estimate=0.05,n_references=4)")
    record = trial.run(scheduler)
    assert isinstance(scheduler, Gavel)
    assert scheduler._estimator is not None
    truth = measure_profile(trial.jobs, trial.cluster, speed=trial.speed, pairs=True)
    now, first = scheduler._estimator.profile.shared, scheduler._estimator.estimate
    assert truth.shared is not None
    assert now is not None
    ran = cells_that_ran(record, truth.kind, truth.shared.shape) & (truth.shared > 0)
    assert (ran & ~first.measured).sum() > 10
    right = np.isclose(now[ran], truth.shared[ran])
    assert right.mean() > 0.9  # but those that parted before they were measured
    assert np.array_equal(now[ran][~right], first.shared[ran][~right])
    rest = ~ran & (truth.shared > 0)
    assert np.array_equal(now[rest], first.shared[rest])


def test_the_estimate_is_made_anew_in_each_run(shared_data: Data) -> None:
    path = shared_data("gavel/simulation_throughputs.json")
    trial = Experiment.of(gavel_jobs(30, seed=1, mean_gap_s=60), cluster="gavel-8-16-24", throughputs=path)
    scheduler = make("gavel_las(space_sharing=True,estimate=0.1,n_references=5)")
    one, again = (trial.run(scheduler).summary["mean_jct_s"] for _ in range(2))
    assert one == again


# --- bad input


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("space_sharing=True,estimate=0", "estimate is 0; expected a fraction of the pairs > 0 and <= 1"),
        ("space_sharing=True,estimate=1.5", "estimate is 1.5; expected a fraction"),
        ("space_sharing=True,estimate=0.5,n_references=0", "n_references is 0; expected a number of reference jobs"),
        ("estimate=0.5", "only pairs are estimated; add space_sharing=True"),
        ("space_sharing=True,n_references=5", "n_references is 5 without an estimate; add e.g. estimate=0.5"),
        ("space_sharing=True,estimate=half", "cannot take"),
    ],
)
def test_options_that_make_no_sense_are_named(options: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make(f"gavel_las({options})")
    with pytest.raises(InputError, match="estimate is nan"):
        make("gavel_las", space_sharing=True, estimate=float("nan"))


def test_without_measured_pairs_there_is_nothing_to_estimate_from() -> None:
    jobs = Jobs.of(arrival_s=[0.0, 1.0], total_steps=100.0, duration_s=100.0)
    with pytest.raises(ProfileError, match="space_sharing=True needs the speeds of pairs") as told:
        Experiment.of(jobs, cluster="gavel-36x3", speed="recorded").run("gavel_las(space_sharing=True,estimate=0.5)")
    assert "\n" not in str(told.value)
