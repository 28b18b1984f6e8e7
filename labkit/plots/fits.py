"""How well a fit fits: curves with their measured points, residuals, loss curves. Numbers first, then a chart."""

from __future__ import annotations

from typing import Final, cast

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from labkit.core.resources import Floats
from labkit.plots.theme import INK, MUTED, WIDTH, thin, title
from labkit.speed.convergence import Convergence
from labkit.speed.interference import InterferenceModel, InterferenceProfile
from labkit.speed.optimus import SpeedFunction

BLUE, ORANGE = "#2563d8", "#e5762b"
SERIES: Final = ("#2563d8", "#e59a2b", "#2b9f5c", "#d4345f", "#9254d6", "#0b6e83", "#8a6d1d", "#7b8798")
"""Colours of up to eight lines; not the schedulers' colours in meaning."""


def fit_curve(
    function: SpeedFunction,
    *,
    n_ps: ArrayLike,
    n_workers: ArrayLike,
    speed: ArrayLike,
    lines: ArrayLike = (1, 2, 4, 8, 16),
) -> pd.DataFrame:
    """Return a fitted speed function along the workers, and the measured speeds beside it.

    Parameters
    ----------
    function : SpeedFunction
        The fit.
    n_ps, n_workers, speed : array
        (n,) measured gangs and steps/s; only those with a number of PSs in `lines` are returned.
    lines : array
        Numbers of PSs, one line each.

    Returns
    -------
    DataFrame
        source ("fitted" or "measured"), n_ps, n_workers, speed (steps/s).
    """
    ps, workers = np.atleast_1d(np.asarray(n_ps)), np.atleast_1d(np.asarray(n_workers))
    wanted = np.atleast_1d(np.asarray(lines))
    wanted = wanted[np.isin(wanted, ps)]
    p, w = (axis.ravel() for axis in np.meshgrid(wanted, np.arange(1, workers.max() + 1), indexing="ij"))
    fitted = pd.DataFrame({"source": "fitted", "n_ps": p, "n_workers": w, "speed": function.speed(p, w)})
    keep = np.isin(ps, wanted)
    seen = np.atleast_1d(np.asarray(speed, np.float64))
    measured = pd.DataFrame({"source": "measured", "n_ps": ps[keep], "n_workers": workers[keep], "speed": seen[keep]})
    return pd.concat([fitted, measured], ignore_index=True)


def plot_fit_curve(
    function: SpeedFunction,
    *,
    n_ps: ArrayLike,
    n_workers: ArrayLike,
    speed: ArrayLike,
    lines: ArrayLike = (1, 2, 4, 8, 16),
    name: str = "Speed function",
) -> alt.LayerChart:
    """Return a chart of `fit_curve`: a line per number of PSs, a dot per measurement."""
    points = fit_curve(function, n_ps=n_ps, n_workers=n_workers, speed=speed, lines=lines)
    drawn = sorted(int(p) for p in points["n_ps"].unique())
    colour = alt.Color(
        "n_ps:N", title="PSs", scale=alt.Scale(domain=drawn, range=list(SERIES[: len(drawn)])), sort=drawn
    )
    base = alt.Chart(points).encode(
        x=alt.X("n_workers:Q", title="Workers", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False)),
        y=alt.Y("speed:Q", title="Speed (steps/s)"),
        color=colour,
    )
    lines_drawn = base.transform_filter("datum.source == 'fitted'").mark_line()
    dots = base.transform_filter("datum.source == 'measured'").mark_circle(size=42, opacity=0.9)
    note = f"Lines: fit to {function.n_samples} gangs, mean error {100 * function.error:.1f}%. Dots: measured."
    return alt.LayerChart(layer=[lines_drawn, dots]).properties(title=title(name, note), width=WIDTH, height=300)


def residuals(measured: ArrayLike, fitted: ArrayLike, *, label: str = "fit") -> pd.DataFrame:
    """Return label, measured, fitted and error = (fitted - measured) / measured; rows with measured <= 0 left out."""
    seen, foreseen = np.atleast_1d(np.asarray(measured, np.float64)), np.atleast_1d(np.asarray(fitted, np.float64))
    usable = seen > 0
    seen, foreseen = seen[usable], foreseen[usable]
    return pd.DataFrame({"label": label, "measured": seen, "fitted": foreseen, "error": foreseen / seen - 1})


def interference_residuals(models: list[InterferenceModel], profile: pd.DataFrame) -> pd.DataFrame:
    """Return the residuals of fitted interference models on the rows of a profile with a co-runner."""
    rows = InterferenceProfile.of(profile)
    rows = rows.take(rows.shared)
    return pd.concat([residuals(rows.slowdown, m.predict(rows), label=m.kind) for m in models], ignore_index=True)


def plot_residuals(
    table: pd.DataFrame, *, quantity: str = "slowdown", name: str = "Predicted against measured", columns: int = 3
) -> alt.FacetChart:
    """Return a chart of `residuals`: predicted over measured, a panel with its axes and mean error per label."""
    labels = list(dict.fromkeys(table["label"]))
    errors = table.assign(abs_error=table["error"].abs()).groupby("label")["abs_error"].mean()
    panel = {label: f"{str(label).replace('_', ' ')}: {100 * errors[label]:.1f}%" for label in labels}
    shown, note = thin(table.assign(panel=table["label"].map(panel)))
    low, high = _limits(shown)
    size = WIDTH // min(columns, max(len(labels), 2)) - 60
    scale = alt.Scale(domain=[low, high], nice=False, clamp=True, type="log" if high > 6 * low else "linear")
    tick = alt.Axis(tickCount=5, format="~g")
    dots = (
        alt.Chart()
        .mark_circle(size=18, opacity=0.45, color=BLUE)
        .encode(
            x=alt.X("measured:Q", title=f"Measured {quantity}", scale=scale, axis=tick),
            y=alt.Y("fitted:Q", title=f"Predicted {quantity}", scale=scale, axis=tick),
        )
    )
    perfect = (
        alt.Chart(pd.DataFrame({"x": [low, high]}))
        .mark_line(color=MUTED, strokeWidth=1.2, strokeDash=[4, 3])
        .encode(x="x:Q", y="x:Q")
    )
    chart = alt.layer(dots, perfect, data=shown).properties(width=size, height=size)
    facets = chart.facet(
        facet=alt.Facet("panel:N", title=None, sort=list(panel.values())), columns=min(columns, len(labels))
    ).properties(title=title(name, "mean error beside each name; dashed: perfect", note))
    # a shared axis would stand below the last row only, and below an empty panel too
    return cast(alt.FacetChart, facets.resolve_axis(x="independent", y="independent"))


def _limits(table: pd.DataFrame) -> tuple[float, float]:
    """Return the axis limits that both axes share: what is measured, and nearly all of what is fitted."""
    low = float(min(table["measured"].min(), table["fitted"].quantile(0.005)))
    high = float(max(table["measured"].max(), table["fitted"].quantile(0.995)))
    return max(low * 0.95, 1e-9), high * 1.05


def convergence(curve: Convergence, *, steps: ArrayLike, losses: ArrayLike, until: float | None = None) -> pd.DataFrame:
    """Return source ("reported" or "fitted"), step and loss; the fitted curve goes on to `until` (the last step)."""
    k = np.atleast_1d(np.asarray(steps, np.float64))
    last = float(k[-1]) if until is None else float(until)
    ahead: Floats = np.linspace(float(k[0]), max(last, float(k[-1])), 200)
    reported = pd.DataFrame({"source": "reported", "step": k, "loss": np.asarray(losses, np.float64)})
    return pd.concat(
        [reported, pd.DataFrame({"source": "fitted", "step": ahead, "loss": curve.loss(ahead)})], ignore_index=True
    )


def plot_convergence(
    curve: Convergence,
    *,
    steps: ArrayLike,
    losses: ArrayLike,
    delta: float | None = None,
    epochs: int = 3,
    steps_per_epoch: float = 1.0,
    name: str = "Loss",
) -> alt.LayerChart:
    """Return a chart of reported losses, the fitted curve and, with `delta`, the step at which the job is done."""
    done = None if delta is None else curve.steps_to(delta=delta, epochs=epochs, steps_per_epoch=steps_per_epoch)
    points, note = thin(convergence(curve, steps=steps, losses=losses, until=None if done is None else 1.1 * done))
    base = alt.Chart(points).encode(x=alt.X("step:Q", title="Step"), y=alt.Y("loss:Q", title="Loss"))
    dots = base.transform_filter("datum.source == 'reported'").mark_circle(size=36, color=ORANGE, opacity=0.75)
    line = base.transform_filter("datum.source == 'fitted'").mark_line(color=BLUE)
    layers: list[alt.Chart] = [dots, line]
    if done is not None:
        end = pd.DataFrame({"step": [done], "text": [f"done at step {done:,.0f}"]})
        rule = alt.Chart(end).mark_rule(color=INK, strokeDash=[4, 3]).encode(x="step:Q")
        word = alt.Chart(end).mark_text(align="right", dx=-6, baseline="top", dy=4, color=INK)
        layers += [rule, word.encode(x="step:Q", y=alt.value(0), text="text:N")]
    fit_note = (
        f"dots: reported; line: 1/(b0 k + b1) + b2, root mean square error {100 * curve.error:.1f}% of the first loss"
    )
    return alt.LayerChart(layer=layers).properties(title=title(name, fit_note, note), width=WIDTH, height=300)
