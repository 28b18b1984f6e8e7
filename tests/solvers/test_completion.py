"""Matrix completion: low-rank matrices come back, and the slowdowns of Gavel's pairs are told from a part of them."""

import numpy as np
import pytest

from labkit.core.errors import InputError, ProfileError
from labkit.core.resources import Floats
from labkit.solvers.completion import complete
from labkit.workloads.gavel import Throughputs

RNG = np.random.default_rng


def hidden(table: Floats, fraction: float, *, seed: int) -> Floats:
    """Return the table with this fraction of its entries, the others missing."""
    seen = RNG(seed).random(table.shape) < fraction
    return np.where(seen, table, np.nan)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_half_of_a_low_rank_matrix_tells_the_other_half(rank):
    # Candes and Plan, "Matrix completion with noise": far fewer entries than I x J pin down a matrix of low rank
    rng = RNG(rank)
    truth = rng.normal(size=(60, rank)) @ rng.normal(size=(rank, 40)) + rng.normal(size=(60, 1))
    seen = hidden(truth, 0.5, seed=rank)
    answer = complete(seen, rank=rank + 2, ridge=1e-6, n_sweeps=500, tolerance=1e-9, rng=RNG(0))
    missing = np.isnan(seen)
    error = np.sqrt(np.mean((answer - truth)[missing] ** 2) / np.mean(truth[missing] ** 2))
    assert error < 1e-3


def test_effects_of_rows_and_columns_are_found_from_few_entries():
    rng = RNG(5)
    truth = rng.normal(size=(30, 1)) + rng.normal(size=(1, 20)) + 3
    seen = hidden(truth, 0.3, seed=5)
    assert np.allclose(complete(seen, rank=0, ridge=1e-9, n_sweeps=2000, tolerance=1e-12, rng=RNG(0)), truth, atol=1e-5)


def test_observed_entries_stay_as_they_were_and_noise_is_not_amplified():
    rng = RNG(1)
    truth = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 60))
    noisy = truth + 0.1 * rng.normal(size=truth.shape)
    seen = hidden(noisy, 0.5, seed=1)
    answer, missing = complete(seen, rank=4, ridge=1e-3, rng=RNG(0)), np.isnan(seen)
    assert np.array_equal(answer[~missing], noisy[~missing])
    assert np.sqrt(np.mean((answer - truth)[missing] ** 2)) < 2 * 0.1  # of a signal of 1.4


def test_a_row_of_which_nothing_is_known_gets_the_means_of_the_columns():
    table = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [np.nan, np.nan]])
    assert complete(table, ridge=1e-6, rng=RNG(0))[3] == pytest.approx([1.0, 2.0], abs=1e-4)


def test_the_answer_scales_with_the_matrix_and_is_the_same_every_time():
    table = hidden(RNG(3).random((20, 12)), 0.6, seed=3)
    once = complete(table, rng=RNG(7))
    assert np.array_equal(once, complete(table, rng=RNG(7)))
    assert complete(1e-3 * table, rng=RNG(7)) == pytest.approx(1e-3 * once, rel=1e-6)


def test_a_full_matrix_and_one_of_zeros_come_back_as_they_are():
    full = RNG(2).random((4, 5))
    assert np.array_equal(complete(full, rng=RNG(0)), full)
    zeros = np.array([[0.0, np.nan], [0.0, 0.0]])
    assert np.array_equal(complete(zeros, rng=RNG(0)), np.zeros((2, 2)))


def rmse_of_gavels_pairs(table: Floats, *, fraction: float, seed: int) -> tuple[float, float]:
    """Return the error of completion and of the column means, of entries that are not seen."""
    seen = hidden(table, fraction, seed=seed)
    missing = np.isnan(seen)
    n_seen = (~missing).sum(axis=0)
    means = np.where(n_seen > 0, np.nansum(seen, axis=0) / np.maximum(n_seen, 1), np.nanmean(seen))
    guess = complete(seen, rng=RNG(seed))
    error, of_means = (np.sqrt(np.mean((x - table)[missing] ** 2)) for x in (guess, means + 0 * table))
    return float(error), float(of_means)


@pytest.mark.parametrize(("fraction", "at_most"), [(0.2, 0.95), (0.5, 0.85), (0.8, 0.85)])
def test_completion_tells_gavels_pairs_better_than_the_means(shared_data, fraction, at_most):
    # data/gavel/simulation_throughputs.json: 26 models on 3 types beside each other, over alone
    table = Throughputs.read(shared_data("gavel/simulation_throughputs.json"))
    types = [table.device_types.index(name) for name in ("v100", "p100", "k80")]
    pairs = table.shared[:, 0][:, :, types] / table.alone[:, 0][:, None, types]
    errors = np.array([rmse_of_gavels_pairs(pairs.reshape(26, -1), fraction=fraction, seed=s) for s in range(5)])
    completed, means = errors.mean(axis=0)
    assert completed < at_most * means


@pytest.mark.parametrize(
    ("options", "says"),
    [({"rank": -1}, "rank is -1"), ({"ridge": 0.0}, "ridge is 0.0"), ({"ridge": np.inf}, "ridge is inf")],
)
def test_options_that_make_no_sense_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        complete(np.ones((2, 2)), rng=RNG(0), **options)


def test_nothing_observed_something_infinite_and_a_list_are_refused():
    with pytest.raises(ProfileError, match="none of 4 entries"):
        complete(np.full((2, 2), np.nan), rng=RNG(0))
    with pytest.raises(ProfileError, match=r"entry \(0, 1\) is inf"):
        complete(np.array([[1.0, np.inf]]), rng=RNG(0))
    with pytest.raises(InputError, match="two axes"):
        complete(np.ones(3), rng=RNG(0))
