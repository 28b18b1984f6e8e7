"""A training over time: loss, throughput, cores, pauses by scaling; and how a policy learns. Numbers, then ink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.events import Events, Kind, Quantity, Role
from labkit.core.jobs import Jobs
from labkit.plots.theme import INK, LINE, MUTED, WIDTH, layered, stroke_legend, title
from labkit.results.spans import configurations

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
    requests: dict[int, str] = {}
    step, rows = 0, []
    for event in events:
        if event["event"] == "loss":
            step = max(step, event["version"])
        elif event["event"] == "registration":
            requests[event["scaling"]] = _words(event["servers"], event["workers"])
        elif event["event"] == "scaled" and event["scaling"] in requests:
            rows.append({"step": step, "says": requests[event["scaling"]]})
    return pd.DataFrame(rows, columns=["step", "says"])


def _words(servers: int, workers: int) -> str:
    """Return a request in words.

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
    rows = list(events)
    curve, marks = loss_curve(rows), scaling_marks(rows)
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
                legend=stroke_legend(orient="bottom"),
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


UPDATES: Final = {"lesson": "#e5762b", "round": "#2563d8"}
SMOOTHED: Final = 20
"""Updates of the running mean."""


def learning_curve(rows: Iterable[Mapping[str, Any]], *, smoothed: int = SMOOTHED) -> pd.DataFrame:
    """Return a point per update: update, kind, mean_jct_slots, and mean, that of the last `smoothed` of its kind.

    Parameters
    ----------
    rows : iterable of mapping
        Of a training's log: update, kind, mean_jct_slots.
    """
    frame = pd.DataFrame(list(rows), columns=["update", "kind", "mean_jct_slots"])
    frame = frame.astype({"update": int, "mean_jct_slots": float})
    means = frame.groupby("kind", sort=False)["mean_jct_slots"].rolling(smoothed, min_periods=1).mean()
    return frame.assign(mean=means.reset_index(level=0, drop=True))


def plot_learning(
    rows: Iterable[Mapping[str, Any]], *, heading: str = "Learning curve", same_traces: bool = False
) -> alt.LayerChart:
    """Draw mean JCT by update as dots and a line, by kind of update.

    Parameters
    ----------
    rows : iterable of mapping
        As `learning_curve` takes them.
    heading : str
        Above the figure.
    same_traces : bool
        All updates were judged on the same traces, so the line goes from dot to dot; False: each has episodes of its
        own, and the line is a running mean.
    """
    curve = learning_curve(rows, smoothed=1 if same_traces else SMOOTHED)
    names = [kind for kind in UPDATES if (curve["kind"] == kind).any()]
    colour = alt.Color(
        "kind:N", title=None, scale=alt.Scale(domain=names, range=[UPDATES[name] for name in names]),
        legend=stroke_legend(orient="bottom", symbolOpacity=1),
    )  # fmt: skip
    base = alt.Chart(curve).encode(
        x=alt.X("update:Q", title="Update"), color=colour,
        tooltip=["update:Q", "kind:N", *(alt.Tooltip(f"{n}:Q", format=".3f") for n in ("mean_jct_slots", "mean"))],
    )  # fmt: skip
    whose = "of the same traces" if same_traces else "of its episodes"
    y = alt.Y("mean_jct_slots:Q", title=f"Mean JCT {whose} (slots)", scale=alt.Scale(zero=False))
    dots = base.mark_circle(size=14, opacity=0.35).encode(y=y)
    lines = base.mark_line(strokeWidth=2.2).encode(y="mean:Q")
    note = f"Line: mean over {SMOOTHED} updates. Each update has its own traces and samples its actions."
    if same_traces:
        note = "Measured after each update on held-out traces, with the most probable actions."
    return layered(dots, lines, height=280, title=title(heading, note))


STRATEGIES: Final = {"handover": "hand-over", "suspend": "suspend", "checkpoint": "checkpoint, restart"}
RED: Final = "#d4345f"
DELAYS: Final = {"worker stands still": RED, "step is late by": BLUE}
PARTS: Final = {
    "registration_s": "1 registration",
    "assignment_s": "2 assignment",
    "migration_s": "3 migration",
    "update_s": "4 worker update",
}
PART_SHADES: Final = ("#0f9d9a", "#e59a2b", "#2563d8", "#d4345f")
FLOOR_MS: Final = 0.1


def pauses(scalings: pd.DataFrame) -> pd.DataFrame:
    """Return how long each scaling kept workers from working: strategy, kind, ms.

    `scalings`: from `labkit.elastic.measure.scalings`, of as many jobs as one likes.

    Returns
    -------
    DataFrame
        kind "worker stands still": the published measure, the mean of all workers; "step is late by": that and the
        slowest worker's largest extra wait in a step of the migration (0 where it waited less than usual).
    """
    stood = scalings.assign(kind="worker stands still", ms=1e3 * scalings["suspended_s"])
    live = scalings[scalings["strategy"] != "checkpoint"]
    late = live.assign(kind="step is late by", ms=1e3 * (live["suspended_s"] + live["late_s"].clip(lower=0)))
    return pd.concat([stood, late], ignore_index=True)[["strategy", "kind", "ms"]]


def plot_pauses(
    scalings: pd.DataFrame, *, heading: str = "How long scaling keeps a worker from its work"
) -> alt.LayerChart:
    """Draw the pauses of each strategy on a logarithmic axis: a dot per scaling, the median in words (Fig. 11)."""
    table = pauses(scalings)
    table["row"] = [_row(name, kind) for name, kind in zip(table["strategy"], table["kind"], strict=True)]
    shown = table.assign(ms=table["ms"].clip(lower=FLOOR_MS).round(2))
    here = set(zip(table["strategy"], table["kind"], strict=True))
    order = [_row(name, kind) for name in STRATEGIES for kind in DELAYS if (name, kind) in here]
    y = alt.Y("row:N", sort=order, title=None, axis=alt.Axis(labelFontSize=12, labelColor=INK, labelLimit=240))
    most = 10 * max(float(shown["ms"].max()), 100.0)
    powers = [10.0**k for k in range(-1, 9) if 10.0**k <= most]
    x = alt.X(
        "ms:Q", title="Time (ms), logarithmic", scale=alt.Scale(type="log", domain=[FLOOR_MS / 1.5, most], nice=False),
        axis=alt.Axis(values=powers, format=",~g"),
    )  # fmt: skip
    dots = (
        alt.Chart(shown)
        .mark_circle(size=70, opacity=0.75)
        .encode(
            x=x, y=y,
            color=alt.Color(
                "kind:N", title=None, legend=alt.Legend(orient="bottom"),
                scale=alt.Scale(domain=list(DELAYS), range=list(DELAYS.values())),
            ),
            tooltip=["strategy:N", "kind:N", alt.Tooltip("ms:Q", format=",.1f")],
        )
    )  # fmt: skip
    medians = table.groupby("row", as_index=False)["ms"].median()
    most_each = shown.groupby("row", as_index=False).agg(at=("ms", "max"))
    words = medians.merge(most_each).assign(says=[_ms(ms) for ms in medians["ms"]])
    labels = (
        alt.Chart(words)
        .mark_text(align="left", dx=10, fontSize=12, color=INK)
        .encode(x=alt.X("at:Q", scale=x["scale"]), y=y, text="says:N")
    )
    note = f"One dot per rescaling. Label: median. Values below {FLOOR_MS:g} ms are drawn at {FLOOR_MS:g} ms."
    return layered(dots, labels, height=alt.Step(34), title=title(heading, note))


def _ms(ms: float) -> str:
    """Return milliseconds in words.

    >>> _ms(0.0), _ms(4.27), _ms(3210.0)
    ('0', '4.3 ms', '3.2 s')
    """
    if ms == 0:
        return "0"
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def _row(strategy: str, kind: str) -> str:
    name = STRATEGIES.get(strategy, strategy)
    return name if kind == "worker stands still" else f"{name}: slowest step"


def step_times(scalings: pd.DataFrame) -> pd.DataFrame:
    """Return the median time of each of the four steps per model: mb, part, ms.

    `scalings`: from `labkit.elastic.measure.scalings`, with a column mb, the size of the model.
    """
    medians = scalings.groupby("mb", as_index=False)[list(PARTS)].median()
    long = medians.melt("mb", list(PARTS), var_name="part", value_name="seconds")
    return long.assign(part=long["part"].map(PARTS), ms=1e3 * long["seconds"])[["mb", "part", "ms"]]


def plot_step_times(
    scalings: pd.DataFrame, *, heading: str = "How long each step of adding a PS takes"
) -> alt.LayerChart:
    """Draw the time of each of the four steps, a group of bars per model, in order of size (Fig. 12)."""
    table = step_times(scalings)
    shown = table.assign(
        model=[f"{mb:g} MB" for mb in table["mb"]], ms=table["ms"].round(2), says=[_ms(ms) for ms in table["ms"]]
    )
    order = [f"{mb:g} MB" for mb in sorted(set(table["mb"]))]
    parts = list(PARTS.values())
    bars = (
        alt.Chart(shown)
        .mark_bar(height=11)
        .encode(
            x=alt.X("ms:Q", title="Time (ms)", scale=alt.Scale(domainMax=1.15 * float(table["ms"].max()))),
            y=alt.Y("model:N", sort=order, title="Size of the model", axis=alt.Axis(labelFontSize=12, labelColor=INK)),
            yOffset=alt.YOffset("part:N", sort=parts),
            color=alt.Color(
                "part:N", title="Step", sort=parts, scale=alt.Scale(domain=parts, range=list(PART_SHADES))
            ),
            tooltip=["model:N", "part:N", alt.Tooltip("ms:Q", format=",.2f")],
        )
    )  # fmt: skip
    words = bars.mark_text(align="left", dx=4, fontSize=10, color=MUTED).encode(text="says:N", color=alt.value(MUTED))
    return layered(
        bars, words, height=alt.Step(14),
        title=title(heading, "medians; the newcomer's start-up is not counted, as in the paper"),
    )  # fmt: skip


TASK_INKS: Final = {"workers": ORANGE, "PSs": BLUE}
CHANGES: Final = (Kind.PLACED, Kind.REPAIRED)

Panel = alt.LayerChart | alt.FacetChart


def speed_curve(rows: Events, job: int) -> pd.DataFrame:
    """Return the speed of a job from each change on: time_s, steps_per_s; 0 where it was paused or had no tasks.

    The last row is at its newest event.
    """
    stops = (Kind.PAUSED, Kind.FAILED, Kind.PREEMPTED)
    mine = rows[(rows["job"] == job) & np.isin(rows["kind"], (Kind.PROGRESSED, Kind.RESCALED, Kind.STARTED, *stops))]
    speed = np.where(np.isin(mine["kind"], stops), 0.0, mine["speed"])
    table = pd.DataFrame({"time_s": mine["time_s"], "steps_per_s": speed})
    return _to_the_end(table[np.isfinite(table["steps_per_s"])], rows, job)


def predicted_curve(rows: Events, job: int) -> pd.DataFrame:
    """Return the speed that the scheduler predicted of a job from each decision on: time_s, steps_per_s.

    The last row is at its newest event.
    """
    mine = rows[(rows["job"] == job) & (rows["kind"] == Kind.EXPLAINED) & (rows["speed"] > 0)]
    return _to_the_end(pd.DataFrame({"time_s": mine["time_s"], "steps_per_s": mine["speed"]}), rows, job)


def _to_the_end(table: pd.DataFrame, rows: Events, job: int) -> pd.DataFrame:
    """Repeat the last row of a curve at the newest event of a job."""
    last_s = rows["time_s"][rows["job"] == job].max(initial=-np.inf)
    end = table[-1:].assign(time_s=last_s) if len(table) and last_s > table["time_s"].iloc[-1] else table[:0]
    whole: pd.DataFrame = pd.concat([table, end], ignore_index=True)
    return whole


def cores_curve(rows: Events, jobs: Jobs, job: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cores that all workers and all servers of a job were given, and those in use.

    Given: time_s, role, cores, a row where a configuration begins, and one at the end; used: time_s, role, cores.
    """
    held = configurations(rows, jobs)
    held = held[held["job"] == str(jobs.id[job])]
    parts = []
    for role, n, each in (("workers", "n_workers", "worker_cores"), ("PSs", "n_ps", "ps_cores")):
        cores = held[n] * held[each]
        parts.append(pd.DataFrame({"time_s": held["start_s"], "role": role, "cores": cores}))
        parts.append(pd.DataFrame({"time_s": held["end_s"], "role": role, "cores": cores})[-1:])
    allocated = pd.concat(parts).sort_values("time_s", kind="stable").reset_index(drop=True)
    measured = rows[
        (rows["kind"] == Kind.MEASURED) & (rows["job"] == job) & (rows["task"] < 0)
        & (rows["quantity"] == Quantity.CORES)
    ]  # fmt: skip
    names = np.where(measured["role"] == Role.WORKER, "workers", "PSs")
    return allocated, pd.DataFrame({"time_s": measured["time_s"], "role": names, "cores": measured["value"]})


def change_marks(rows: Events, job: int) -> pd.DataFrame:
    """Return when decisions changed a job, numbered: time_s, number."""
    mine = rows[(rows["job"] == job) & np.isin(rows["kind"], CHANGES)]
    times = np.unique(mine["time_s"])
    return pd.DataFrame({"time_s": times, "number": [str(i + 1) for i in range(len(times))]})


def plot_tuning(
    rows: Events, jobs: Jobs, *, job: int = 0, heading: str = "A job configures itself", end_s: float | None = None
) -> alt.VConcatChart:
    """Draw the speed of a job, measured and predicted, with a mark at each decision; below it cores given and in use.

    Parameters
    ----------
    rows, jobs : Events, Jobs
        Of a run, which may still go on.
    job : int
        Number of the job.
    end_s : float, optional
        Least end of the time axis; by default it ends at the newest event.
    """
    speed, predicted, marks = speed_curve(rows, job), predicted_curve(rows, job), change_marks(rows, job)
    allocated, used = cores_curve(rows, jobs, job)
    last = max([1.0, *([end_s] if end_s else []), *speed["time_s"], *marks["time_s"], *allocated["time_s"]])
    scale = alt.Scale(domain=[0, last], nice=False)
    above = alt.X("time_s:Q", title=None, scale=scale, axis=alt.Axis(labels=False, ticks=False))
    below = alt.X("time_s:Q", title="Time (s)", scale=scale)
    chart: alt.VConcatChart = alt.vconcat(
        _speed_panel(speed, predicted, marks, x=above).properties(width=WIDTH, height=200),
        _cores_panel(allocated, used, marks, x=below).properties(width=WIDTH, height=150),
        spacing=8,
    ).properties(
        title=title(heading, "numbers: decisions; dashes: predicted speed; lines: cores given; dots: cores in use")
    )
    return chart


def _rules(marks: pd.DataFrame, *, x: alt.X) -> alt.Chart:
    rules: alt.Chart = alt.Chart(marks).mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=x)
    return rules


def _speed_panel(speed: pd.DataFrame, predicted: pd.DataFrame, marks: pd.DataFrame, *, x: alt.X) -> Panel:
    words = (
        alt.Chart(marks)
        .mark_text(align="left", baseline="top", dx=4, color=INK, fontSize=12, fontWeight=600)
        .encode(x=x, y=alt.value(0), text="number:N")
    )
    lines = [
        alt.Chart(curve.round(3))
        .mark_line(color=ink, strokeWidth=1.8, strokeDash=dash, interpolate="step-after", clip=True)
        .encode(
            x=x,
            y=alt.Y("steps_per_s:Q", title="Steps per second"),
            tooltip=["time_s:Q", alt.Tooltip("steps_per_s:Q", format=".1f", title=name)],
        )
        for curve, ink, dash, name in ((speed, INK, [1, 0], "measured"), (predicted, GREEN, [5, 3], "predicted"))
    ]
    return alt.layer(_rules(marks, x=x), *lines, words)


def _cores_panel(allocated: pd.DataFrame, used: pd.DataFrame, marks: pd.DataFrame, *, x: alt.X) -> Panel:
    colour = alt.Color(
        "role:N", title=None, scale=alt.Scale(domain=list(TASK_INKS), range=list(TASK_INKS.values())),
        legend=stroke_legend(orient="bottom"),
    )  # fmt: skip
    y = alt.Y("cores:Q", title="Cores")
    lines = (
        alt.Chart(allocated.round(4))
        .mark_line(strokeWidth=2.4, interpolate="step-after")
        .encode(x=x, y=y, color=colour)
    )
    dots = (
        alt.Chart(used.round(4))
        .mark_circle(size=26, opacity=0.55)
        .encode(x=x, y=y, color=colour, tooltip=["time_s:Q", "role:N", alt.Tooltip("cores:Q", format=".2f")])
    )
    return alt.layer(_rules(marks, x=x), lines, dots)
