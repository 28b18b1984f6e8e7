"""Optimus' loss curves against its paper, scipy, and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import ProfileError
from labkit.speed.convergence import Convergence, _nnls_line, by_epoch, without_outliers

SEQ2SEQ = Convergence(0.21, 1.07, 0.07)  # Fig. 7 of the paper
EPOCHS = np.arange(1, 41)


def test_the_published_seq2seq_curve_comes_back_from_its_own_losses() -> None:
    fitted = Convergence.fit(EPOCHS, SEQ2SEQ.loss(EPOCHS))
    assert fitted.loss(EPOCHS) == pytest.approx(SEQ2SEQ.loss(EPOCHS), rel=1e-3)
    assert fitted.b2 * fitted.scale == pytest.approx(0.07, abs=2e-3)
    assert fitted.b0 / fitted.scale == pytest.approx(0.21, rel=0.01)
    assert fitted.b1 / fitted.scale == pytest.approx(1.07, rel=0.01)


def test_losses_are_in_the_units_they_came_in() -> None:
    fitted = Convergence.fit(EPOCHS, 250 * SEQ2SEQ.loss(EPOCHS))
    assert fitted.scale == pytest.approx(250 * SEQ2SEQ.loss(1))
    assert fitted.loss([1, 20]) == pytest.approx(250 * SEQ2SEQ.loss([1, 20]), rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_the_end_is_foreseen_from_half_of_a_noisy_curve(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = np.arange(1, 31)
    fitted = Convergence.fit(k, SEQ2SEQ.loss(k) * rng.normal(1, 0.02, len(k)))
    true = SEQ2SEQ.steps_to(delta=0.005)
    assert fitted.steps_to(delta=0.005) == pytest.approx(true, rel=0.25)
    assert np.abs(fitted.loss(EPOCHS) / SEQ2SEQ.loss(EPOCHS) - 1).mean() < 0.05


def test_wild_points_do_not_bend_the_curve() -> None:
    losses = SEQ2SEQ.loss(EPOCHS)
    losses[[7, 20, 31]] *= [4.0, 0.2, 3.0]
    fitted = Convergence.fit(EPOCHS, losses)
    assert fitted.loss(EPOCHS) == pytest.approx(SEQ2SEQ.loss(EPOCHS), rel=0.02)


def test_a_point_outside_the_next_and_the_last_five_becomes_its_neighbours_mean() -> None:
    losses = np.array([10.0, 9, 8, 7, 20, 5, 4, 3, 0.1, 1.9, 1.8])
    cleaned = without_outliers(losses)
    changed = np.flatnonzero(cleaned != losses)
    assert changed.tolist() == [4, 8]
    assert cleaned[changed] == pytest.approx([(7 + 5) / 2, (3 + 1.9) / 2])


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30).map(lambda x: np.array(sorted(x, reverse=True))))
def test_a_falling_curve_has_no_outliers(losses: np.ndarray) -> None:
    assert np.array_equal(without_outliers(losses), losses)


def test_points_are_averaged_by_epoch() -> None:
    k, loss = by_epoch(np.array([5.0, 10, 15, 20, 21]), np.array([4.0, 2, 3, 1, 8]), steps_per_epoch=10)
    assert k.tolist() == [7.5, 17.5, 21]
    assert loss.tolist() == [3, 2, 8]


def test_averaging_by_epoch_reads_steps_not_epochs() -> None:
    steps = np.arange(1, 4001)
    rng = np.random.default_rng(0)
    curve = Convergence(0.21 / 100, 1.07, 0.07)
    fitted = Convergence.fit(steps, curve.loss(steps) * rng.normal(1, 0.2, 4000), steps_per_epoch=100)
    assert fitted.loss([100, 2000, 4000]) == pytest.approx(curve.loss([100, 2000, 4000]), rel=0.05)


@given(st.floats(0.01, 2), st.floats(0, 2), st.floats(0.001, 0.1), st.integers(1, 5))
def test_a_job_is_done_at_the_end_of_the_first_epochs_that_gain_less(
    b0: float, b1: float, delta: float, epochs: int
) -> None:
    curve = Convergence(b0, max(b1, 0.01), 0.1)
    done = curve.steps_to(delta=delta, epochs=epochs, steps_per_epoch=10)
    ends = np.arange(0, done + 11, 10)
    falls = -np.diff(curve.loss(ends))
    n = round(done / 10)
    assert (falls[n - epochs : n] < delta * (1 + 1e-6)).all()
    if n > epochs:
        assert falls[n - epochs - 1] >= delta * (1 - 1e-6)


def test_a_flat_or_rising_loss_has_converged() -> None:
    flat = Convergence.fit(EPOCHS, np.full(40, 2.0))
    assert flat.steps_to(delta=0.01, epochs=3) <= 4
    assert flat.loss(40) == pytest.approx(2.0, rel=0.01)
    rising = Convergence.fit(EPOCHS, np.linspace(1, 2, 40))
    assert rising.b0 == pytest.approx(0, abs=1e-6)


def test_the_closed_form_is_scipys_non_negative_least_squares() -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(0)
    k = np.sort(rng.random(12))
    y, weight = rng.normal(0.5, 1.0, (50, 12)), rng.random((50, 12)) + 0.1
    b0, b1 = _nnls_line(k, y, weight)
    for i in range(50):
        root = np.sqrt(weight[i])
        expected = nnls(np.stack([k, np.ones(12)], axis=1) * root[:, None], y[i] * root)[0]
        assert (b0[i], b1[i]) == pytest.approx(tuple(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("steps", "losses", "said"),
    [
        ([1, 2], [1, 1], r"needs 4 points and has 2: wait for 2 more reports"),
        ([1, 2, 3, 4], [1, np.nan, 1, 1], r"loss 2 is nan at step 2.*drop the point"),
        ([1, 2, 3, 4], [1, 1, 0, 1], r"loss 3 is 0\.0"),
        ([1, 2, 2, 4], [1, 1, 1, 1], r"step 2 follows step 2.*sort"),
        ([1, 2, 3], [1, 1], r"3 steps and 2 losses"),
    ],
)
def test_losses_that_cannot_be_fitted_are_refused(steps: list[float], losses: list[float], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        Convergence.fit(steps, losses)


def test_a_threshold_that_never_ends_is_refused() -> None:
    with pytest.raises(ProfileError, match="expected delta > 0"):
        SEQ2SEQ.steps_to(delta=0)
