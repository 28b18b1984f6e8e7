"""How the loss of an elastic job falls while servers and workers come and go. Numbers first, then a chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.theme import INK, LINE, MUTED, WIDTH, layered, title

BLUE, ORANGE, GREEN, PALE = "#2563d8", "#e5762b", "#2b9f5c", "#b9d3f4"
ROLES: Final = {"servers": BLUE, "workers": ORANGE}
MOST_POINTS: Final = 400
"""Of a curve; where there are more steps, neighbours are averaged."""

Event = Mapping[str, Any]


def loss_curve(events: Iterable[Event]) -> pd.DataFrame:
    """Return the loss of each step of a job, and how many servers and workers there were: step, loss, servers, workers.

    A process counts from joining to leaving.
    """
    there, rows = {"server": 0, "worker": 0}, {}
    for event in events:
        if event["event"] == "joined":
            there[event["role"]] += 1
        elif event["event"] == "left":
            there[event["role"]] -= 1
        elif event["event"] == "loss":
            rows[event["version"]] = (event["loss"], there["server"], there["worker"])
    found = [(step, *rows[step]) for step in sorted(rows)]
    return pd.DataFrame(found, columns=["step", "loss", "servers", "workers"])


def scaling_marks(events: Iterable[Event]) -> pd.DataFrame:
    """Return at which step each scaling was complete, and what it was: step, says."""
    asked: dict[int, str] = {}
    step, rows = 0, []
    for event in events:
        if event["event"] == "loss":
            step = max(step, event["version"])
        elif event["event"] == "registration":
            asked[event["scaling"]] = _words(event["servers"], event["workers"])
        elif event["event"] == "scaled" and event["scaling"] in asked:
            rows.append({"step": step, "says": asked[event["scaling"]]})
    return pd.DataFrame(rows, columns=["step", "says"])


def _words(servers: int, workers: int) -> str:
    """Say what a request asked for.

    >>> _words(1, -2)
    '+1 PS, −2 workers'
    """
    parts = [(servers, "PS" if abs(servers) == 1 else "PSs"), (workers, "worker" if abs(workers) == 1 else "workers")]
    return ", ".join(f"{n:+d} {what}".replace("-", "−") for n, what in parts if n) or "replaced"


def plot_training(
    events: Iterable[Event], *, n_steps: int | None = None, heading: str = "Loss while servers and workers come and go"
) -> alt.VConcatChart:
    """Draw the loss over the steps with a mark at each scaling, and below it how many servers and workers there were.

    Parameters
    ----------
    events : iterable of dict
        Of a job, which may still be running.
    n_steps : int, optional
        Steps of the whole training: as wide as the axis is then from the beginning.
    """
    told = list(events)
    curve, marks = loss_curve(told), scaling_marks(told)
    last = n_steps or int(max(curve["step"], default=1)) + 1
    x = alt.X("step:Q", title=None, scale=alt.Scale(domain=[0, last], nice=False), axis=alt.Axis(labels=False))
    shown, note = _averaged(curve)
    line = (
        alt.Chart(shown)
        .mark_line(color=BLUE, strokeWidth=1.8)
        .encode(x=x, y=alt.Y("loss:Q", title="Loss"), tooltip=["step:Q", alt.Tooltip("loss:Q", format=".4f")])
    )
    rules = alt.Chart(marks).mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=x)
    words = [
        alt.Chart(marks.iloc[i::3])  # in turns at three heights, as marks may be close together
        .mark_text(align="left", baseline="top", dx=4, color=INK, fontSize=11)
        .encode(x=x, y=alt.value(2 + 15 * i), text="says:N")
        for i in range(3)
    ]
    loss = alt.layer(rules, line, *words).properties(width=WIDTH, height=240)
    chart: alt.VConcatChart = alt.vconcat(loss, _there(curve, x), spacing=6).properties(title=title(heading, note))
    return chart


def _there(curve: pd.DataFrame, x: alt.X) -> alt.Chart:
    """Return the panel of how many servers and workers there were."""
    changed = (curve[["servers", "workers"]].diff().fillna(1) != 0).any(axis=1)
    ends = curve[changed | (curve["step"] == max(curve["step"], default=0))]
    shown = ends.melt("step", list(ROLES), var_name="role", value_name="n")
    x = alt.X("step:Q", title="Step", scale=x["scale"])
    most = int(shown["n"].max()) if len(shown) else 1
    chart: alt.Chart = (
        alt.Chart(shown)
        .mark_line(interpolate="step-after", strokeWidth=2.4)
        .encode(
            x=x,
            y=alt.Y(
                "n:Q", title="Number",
                scale=alt.Scale(domain=[0, most + 0.5], nice=False),
                axis=alt.Axis(values=list(range(most + 1)), format="d"),
            ),
            color=alt.Color(
                "role:N", title=None,
                scale=alt.Scale(domain=list(ROLES), range=list(ROLES.values())),
                legend=alt.Legend(orient="bottom", symbolType="stroke", symbolStrokeWidth=3.5),
            ),
            strokeDash=alt.StrokeDash(
                "role:N", legend=None, scale=alt.Scale(domain=list(ROLES), range=[[1, 0], [6, 4]])
            ),
            tooltip=["step:Q", "role:N", "n:Q"],
        )
        .properties(width=WIDTH, height=80)
    )  # fmt: skip
    return chart


def _averaged(curve: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return a curve of at most `MOST_POINTS`, and what to say of it."""
    group = -(-len(curve) // MOST_POINTS)
    if group <= 1:
        return curve[["step", "loss"]].round(5), ""
    means = curve.groupby(np.arange(len(curve)) // group)[["step", "loss"]].mean()
    return means.round(5), f"each point is the mean of {group} steps"


def plot_convergence(
    losses: Mapping[str, Sequence[float]], *, heading: str = "The same loss, with and without scaling"
) -> alt.LayerChart:
    """Draw curves of loss over each other: the first broad and pale, so that those on top of it do not hide it.

    Parameters
    ----------
    losses : mapping
        Label -> loss of each step.
    """
    names = list(losses)
    scale = alt.Scale(domain=names, range=[PALE, BLUE, ORANGE, GREEN, MUTED][: len(names)])
    legend = alt.Legend(
        orient="top-right", symbolType="stroke", symbolStrokeWidth=5, fillColor="#ffffff", padding=6, labelLimit=280
    )
    curves: list[alt.Chart] = []
    for label, values in losses.items():
        shown = _averaged(pd.DataFrame({"step": range(len(values)), "loss": list(values)}))[0]
        curves.append(
            alt.Chart(shown.assign(run=label))
            .mark_line(strokeWidth=1.6 if curves else 9, strokeJoin="round")
            .encode(
                x=alt.X("step:Q", title="Step", scale=alt.Scale(nice=False)),
                y=alt.Y("loss:Q", title="Loss"),
                color=alt.Color("run:N", title=None, scale=scale, legend=legend),
                tooltip=["run:N", "step:Q", alt.Tooltip("loss:Q", format=".4f")],
            )
        )
    return layered(*curves, height=280, title=title(heading))


def plot_staleness(table: pd.DataFrame, *, heading: str = "What stale gradients cost") -> alt.LayerChart:
    """Draw the loss of asynchronous runs over how stale their gradients were, beside that of synchronous training.

    Parameters
    ----------
    table : DataFrame
        One row per run: mode ("sync" or "async"), staleness (updates that others made meanwhile, mean over all
        gradients), loss (mean over the run, or a part of it that is the same in all).
    """
    shown = table[["mode", "staleness", "loss"]].round(4)
    most = max(float(shown["staleness"].max()), 1.0)
    scale = alt.Scale(domain=[-0.04 * most, 1.04 * most], nice=False)
    y = alt.Y("loss:Q", title="Loss (mean over the run), logarithmic", scale=alt.Scale(type="log", padding=14))
    dots = (
        alt.Chart(shown)
        .mark_circle(size=90, opacity=0.9)
        .encode(
            x=alt.X("staleness:Q", title="Updates by others between pull and push (mean)", scale=scale),
            y=y,
            color=alt.Color(
                "mode:N", title=None, scale=alt.Scale(domain=["sync", "async"], range=[BLUE, ORANGE])
            ),
            tooltip=["mode:N", "staleness:Q", "loss:Q"],
        )
    )  # fmt: skip
    sync = shown.loc[shown["mode"] == "sync", ["loss"]].mean().to_frame().T
    rule = alt.Chart(sync).mark_rule(color=LINE, strokeWidth=2).encode(y=y)
    return layered(rule, dots, height=260, title=title(heading))
