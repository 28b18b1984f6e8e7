"""Figures of fits: the numbers behind them, and that they can be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit.plots.fits import (
    convergence,
    fit_curve,
    interference_residuals,
    plot_convergence,
    plot_fit_curve,
    plot_residuals,
    residuals,
)
from labkit.speed.convergence import Convergence
from labkit.speed.interference import InterferenceModel
from labkit.speed.interference.measured import profile
from labkit.speed.optimus import SpeedFunction

P, W = (axis.ravel() for axis in np.meshgrid([1, 2, 4], np.arange(1, 7), indexing="ij"))
TRUE = SpeedFunction((1.02, 2.78, 4.92, 0.0, 0.02))


def svg(chart: Any) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.to_dict()))


def test_a_fitted_curve_passes_through_the_speeds_it_was_made_from() -> None:
    points = fit_curve(TRUE, n_ps=P, n_workers=W, speed=TRUE.speed(P, W), lines=[1, 4, 16])
    assert set(points["n_ps"]) == {1, 4}  # 16 was not measured
    sides = points.pivot_table(index=["n_ps", "n_workers"], columns="source", values="speed")
    assert sides["fitted"].to_numpy() == pytest.approx(sides["measured"].to_numpy())
    drawn = svg(plot_fit_curve(TRUE, n_ps=P, n_workers=W, speed=TRUE.speed(P, W)))
    assert "Speed (steps/s)" in drawn
    assert "Workers" in drawn


def test_residuals_are_relative_and_skip_failed_measurements() -> None:
    table = residuals([1.0, 0.0, 4.0], [1.5, 2.0, 3.0])
    assert table["error"].tolist() == [0.5, -0.25]
    assert "Predicted speed" in svg(plot_residuals(table, quantity="speed (steps/s)"))


def test_every_model_has_its_panel_with_its_mean_error() -> None:
    rows = profile("mild", n_samples=80, rng=np.random.default_rng(0))
    models = [InterferenceModel(kind).fit(rows) for kind in ("two_stage", "linear")]
    table = interference_residuals(models, rows)
    error = 100 * table[table["label"] == "two_stage"]["error"].abs().mean()
    drawn = svg(plot_residuals(table))
    assert f"two stage: {error:.1f}%" in drawn
    assert "linear:" in drawn


def test_a_loss_curve_goes_on_to_where_the_job_will_be_done() -> None:
    curve = Convergence(0.21, 1.07, 0.07)
    steps = np.arange(1, 11)
    points = convergence(curve, steps=steps, losses=curve.loss(steps), until=50)
    assert points[points["source"] == "fitted"]["step"].max() == 50
    assert (points["source"] == "reported").sum() == 10
    drawn = svg(plot_convergence(curve, steps=steps, losses=curve.loss(steps), delta=0.005))
    assert f"done at step {curve.steps_to(delta=0.005):.0f}" in drawn


def test_each_panel_of_residuals_has_its_own_axes_and_no_panel_is_empty() -> None:
    table = pd.concat([residuals([1.0, 2.0], [1.5, 2.0], label=f"model {i}") for i in range(5)])
    assert svg(plot_residuals(table)).count(">Measured slowdown<") == 5
