"""Dollars against SLOs: what a run costs at prices per GPU and hour, and who is late."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.errors import unknown
from labkit.core.resources import Floats
from labkit.plots.theme import COLOURS, INK, layered, title
from labkit.results.intervals import holdings
from labkit.results.record import RunRecord

COLOUR = COLOURS["srtf"]
"""Of all points: their names stand beside them."""


def dollars(record: RunRecord, *, prices: Mapping[str, float]) -> float:
    """Return what the GPUs that jobs held cost, at dollars per GPU and hour of each device type.

    Raises
    ------
    InputError
        If the price of a device type of the cluster is not given.
    """
    for kind in record.cluster.device_types:
        if kind not in prices:
            raise unknown("price of device type", kind, prices)
    price = np.array([prices[kind] for kind in record.cluster.device_types])
    held = holdings(record.events, record.jobs)
    return float(price[record.cluster.group_type[held.group]] @ held.gpu_s) / 3600


def late_by_s(record: RunRecord, *, slo_s: Floats | None = None) -> Floats:
    """Return seconds by which each job missed its SLO, negative: in time; NaN: no SLO, inf: never done, (N,).

    Parameters
    ----------
    record : RunRecord
        The run.
    slo_s : array, optional
        (N,) seconds after arrival by which jobs should have been done; by default what they had declared.
    """
    jct_s = np.full(len(record.jobs), np.inf)
    done = record.table[record.table["completion_s"].notna()]
    jct_s[done["job"].to_numpy()] = done["jct_s"].to_numpy(np.float64)
    late_s: Floats = jct_s - (record.jobs.slo_s if slo_s is None else slo_s)
    return late_s


def cost_table(
    records: Mapping[str, RunRecord],
    *,
    prices: Mapping[str, float],
    slo_s: Floats | None = None,
    grace_s: float = 0.0,
) -> pd.DataFrame:
    """Return one row per run: label, dollars, violations (fraction of jobs with an SLO), worst_s, mean_jct_s.

    Parameters
    ----------
    records : mapping
        Label -> run.
    prices : mapping
        Dollars per GPU and hour by device type.
    slo_s : array, optional
        As for `late_by_s`.
    grace_s : float
        A job that is late by no more than this is in time.
    """
    rows = []
    for label, record in records.items():
        late_s = late_by_s(record, slo_s=slo_s)
        late_s = late_s[~np.isnan(late_s)]
        rows.append(
            {
                "label": label,
                "dollars": dollars(record, prices=prices),
                "violations": float((late_s > grace_s).mean()) if len(late_s) else np.nan,
                "worst_s": float(late_s.max(initial=-np.inf)),
                "mean_jct_s": record.summary["mean_jct_s"],
            }
        )
    return pd.DataFrame(rows)


def plot_cost(table: pd.DataFrame) -> alt.LayerChart:
    """Draw a table from `cost_table`: a point per run, dollars across, SLO violations up. Best is bottom left."""
    shown = table[["label", "dollars", "violations"]].round({"dollars": 1, "violations": 4})
    least, most = float(shown["dollars"].min()), float(shown["dollars"].max())
    room = max(most - least, 0.05 * most, 1e-9)  # for the names, on the right
    base = alt.Chart(shown).encode(
        x=alt.X(
            "dollars:Q", title="Cost of the GPUs held ($)", axis=alt.Axis(format="$,.0f"),
            scale=alt.Scale(domain=[least - 0.1 * room, most + 0.4 * room], nice=False),
        ),
        y=alt.Y(
            "violations:Q", title="Fraction of jobs that miss their SLO", axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, max(1.15 * float(shown["violations"].max()), 0.05)], nice=False),
        ),
    )  # fmt: skip
    points = base.mark_point(filled=True, size=130, opacity=1, color=COLOUR).encode(
        tooltip=[
            alt.Tooltip("label:N", title="run"),
            alt.Tooltip("dollars:Q", format="$,.0f"),
            alt.Tooltip("violations:Q", format=".1%"),
        ],
    )
    named = base.mark_text(align="left", dx=10, dy=-10, fontSize=12, color=INK).encode(text="label:N")
    return layered(
        points, named, height=300,
        title=title("What being in time costs", "best is bottom left; the axis of dollars does not begin at 0"),
    )  # fmt: skip
