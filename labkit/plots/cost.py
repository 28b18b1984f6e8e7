"""Dollars against SLOs: what a run costs at prices per GPU and hour, and which jobs are late."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.resources import Floats
from labkit.plots.theme import COLOURS, INK, layered, title
from labkit.results.cost import dollars, late_by_s
from labkit.results.record import RunRecord

COLOUR = COLOURS["srtf"]
"""Of all points: their names stand beside them."""


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
        title=title("Cost against missed SLOs", "best is bottom left; the axis of dollars does not begin at 0"),
    )  # fmt: skip
