"""Random numbers of samples: the published generator, evenly spread, one stream apart from another."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.elastic import data


def test_bits_are_those_of_splitmix64():
    """The first outputs for the state 1234567, as Vigna's reference implementation gives them."""
    states = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert data._mixed(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def splitmix64(state: int) -> int:
    """Return one output in plain whole numbers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_vectorised_bits_are_those_of_the_plain_twin(seed):
    golden = 0x9E3779B97F4A7C15
    for stream in (data.SAMPLES, data.TEACHER, data.NOISE):
        key = splitmix64((splitmix64(seed * golden % 2**64) + stream) * golden % 2**64)
        expected = [
            [splitmix64((splitmix64((sample + key) % 2**64) + step * golden) % 2**64) for step in (1, 2, 3)]
            for sample in (0, 5, 2**40)
        ]
        assert data.bits(seed, np.array([0, 5, 2**40]), 3, stream=stream).tolist() == expected


def test_seeds_samples_and_streams_share_no_bits():
    index = np.arange(1000)
    drawn = [data.bits(s, index, 4, stream=t) for s in (0, 1, 2, 3) for t in range(3)]
    assert len(np.unique(np.concatenate(drawn))) == 12 * 4000


def test_uniforms_are_even():
    numbers = np.sort(data.uniforms(data.bits(3, np.arange(10_000), 1)[:, 0]))
    assert 0 <= numbers[0] < numbers[-1] < 1
    # Kolmogorov-Smirnov: 1.95 / sqrt(n) is exceeded once in a thousand
    assert np.abs(numbers - np.arange(10_000) / 10_000).max() < 0.0195


@pytest.mark.parametrize("n", [2, 5, 1000])
def test_whole_numbers_below_n_come_as_often(n):
    counts = np.bincount(data.below(data.bits(4, np.arange(n), 200).ravel(), n), minlength=n)
    assert len(counts) == n
    assert ((counts - 200) ** 2 / 200).sum() < n + 4 * (2 * n) ** 0.5  # chi-squared


def test_ranks_are_as_frequent_as_words():
    n = 50
    share = np.bincount(data.zipf(data.bits(5, np.arange(2000), 100).ravel(), n), minlength=n) / 200_000
    expected = np.log((np.arange(n) + 2) / (np.arange(n) + 1)) / np.log(n + 1)
    np.testing.assert_allclose(share, expected, atol=4 * (expected / 200_000).max() ** 0.5)


def test_ranks_stay_below_n_at_the_largest_draw():
    assert data.zipf(np.array([2**64 - 1, 0], np.uint64), 100).tolist() == [99, 0]
    assert data.below(np.array([2**64 - 1, 0], np.uint64), 100).tolist() == [99, 0]


@pytest.mark.parametrize("n", [1, 3, 4, 4097])
def test_noise_has_mean_0_and_variance_1_whatever_its_length(n):
    noise = data.noise(6, np.arange(-(-40_000 // n)), n)
    assert noise.shape[1] == n
    assert noise.dtype == np.float32
    assert abs(noise.mean()) < 0.02
    assert noise.var() == pytest.approx(1, abs=0.02)
    assert np.abs(noise).max() <= 3**0.5
