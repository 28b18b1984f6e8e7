"""Arrivals have the mean rate that was asked for, the shape of their name, and follow their seed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from labkit.core.errors import InputError
from labkit.workloads.generators import DAY_S, HOUR_S, SHAPES, diurnal, google_like, poisson, uniform


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_arrivals_are_sorted_positive_and_follow_their_seed(shape):
    first, again, other = (SHAPES[shape](500, per_hour=12, rng=np.random.default_rng(s)) for s in (1, 1, 2))
    assert (np.diff(first) >= 0).all()
    assert first[0] >= 0
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("shape", "tolerance"), [("poisson", 0.02), ("uniform", 0.001), ("diurnal", 0.02), ("google_like", 0.1)]
)
def test_the_mean_rate_is_the_one_asked_for(shape, tolerance):
    arrival_s = SHAPES[shape](20_000, per_hour=40, rng=np.random.default_rng(3))
    assert len(arrival_s) / arrival_s[-1] * HOUR_S == pytest.approx(40, rel=tolerance)


def test_gaps_of_a_poisson_process_are_exponential():
    gaps_s = np.diff(poisson(5000, per_hour=60, rng=np.random.default_rng(4)), prepend=0)
    assert stats.kstest(gaps_s, "expon", args=(0, 60)).pvalue > 0.01


def test_uniform_arrivals_are_uniform():
    arrival_s = uniform(5000, per_hour=60, rng=np.random.default_rng(5))
    assert stats.kstest(arrival_s, "uniform", args=(0, 5000 * 60)).pvalue > 0.01


def test_diurnal_arrivals_peak_at_the_peak_hour_by_the_swing():
    arrival_s = diurnal(200_000, per_hour=200, rng=np.random.default_rng(6), swing=0.5, peak_hour=14)
    whole = arrival_s[arrival_s < arrival_s[-1] // DAY_S * DAY_S]
    by_hour = np.bincount((whole % DAY_S // HOUR_S).astype(int), minlength=24) / len(whole) * 24
    expected = 1 + 0.5 * np.cos(2 * np.pi * (np.arange(24) + 0.5 - 14) / 24)
    assert by_hour == pytest.approx(expected, abs=0.05)


def test_a_swing_of_zero_is_a_poisson_process():
    gaps_s = np.diff(diurnal(5000, per_hour=60, rng=np.random.default_rng(7), swing=0.0), prepend=0)
    assert stats.kstest(gaps_s, "expon", args=(0, 60)).pvalue > 0.01


def test_google_like_arrivals_are_burstier_than_poisson_and_bursts_last():
    def counts(shape):
        arrival_s = SHAPES[shape](20_000, per_hour=60, rng=np.random.default_rng(8))
        return np.bincount((arrival_s // 1200).astype(int))[:-1]

    bursty, even = counts("google_like"), counts("poisson")
    assert even.var() / even.mean() == pytest.approx(1, abs=0.2)
    assert bursty.var() / bursty.mean() > 5
    assert bursty.max() > 3 * bursty.mean()
    assert np.corrcoef(bursty[:-1], bursty[1:])[0, 1] > 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: poisson(0, per_hour=1, rng=rng), "n is 0"),
        (lambda rng: uniform(5, per_hour=0, rng=rng), "per_hour is 0"),
        (lambda rng: google_like(5, per_hour=np.nan, rng=rng), "per_hour is nan"),
        (lambda rng: diurnal(5, per_hour=1, rng=rng, swing=2), "swing is 2"),
    ],
)
def test_wrong_rates_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(np.random.default_rng(0))
