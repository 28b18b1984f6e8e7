"""A PS joins a model of 100 MB and leaves again, by each strategy, in one job whose strategies take turns.

2 workers, 2 servers and a third, momentum, next to no computing: nothing hides behind it. What other work on the
machine adds to a step is seen in its quiet steps, so these are told beside it.

python -m benchmarks scaling
"""

from __future__ import annotations

import pandas as pd

from benchmarks import Row, size
from labkit.elastic import start
from labkit.elastic.measure import waits
from labkit.elastic.trial import table, trial

COMMAND = "python -m benchmarks scaling"
MB = size(100, short=1)
ROUNDS = (
    ("handover", "suspend", "handover", "handover"),
    ("checkpoint", "handover", "suspend", "handover"),
    ("handover", "suspend", "handover", "checkpoint"),
)[-size(3, short=1) :]


def rows() -> list[Row]:
    """Return pauses, lateness and lost throughput of joins."""
    plan = [{"servers": more, "strategy": how} for turn in ROUNDS for how in turn for more in (1, -1)]
    job = start(*table(MB), steps=100_000, batch=8, shards=2, optimizer="momentum", lr=0.1, workers=2, servers=2)
    result = trial(job, plan)
    joins = result.scalings.query("servers > 0")
    medians = joins.groupby("strategy").median(numeric_only=True)
    steps = waits(result.events).query("version > 10")
    return [
        *_late_rows(steps, result.scalings, joins, medians),
        *(
            Row(f"A PS joins, {how}, steps lost", round(cost["steps_lost"], 1), "steps, median", None, False, COMMAND)
            for how, cost in medians.iterrows()
        ),
        *(
            Row(f"A PS joins, {how}, time lost", round(cost["lost_s"], 3), "s, median", None, False, COMMAND)
            for how, cost in medians.iterrows()
        ),
        Row("A PS joins, its start-up", round(joins["start_s"].median(), 2), "s, median", None, False, COMMAND),
    ]


def _late_rows(steps: pd.DataFrame, scalings: pd.DataFrame, joins: pd.DataFrame, medians: pd.DataFrame) -> list[Row]:
    """Return what workers notice: standing still, and steps that wait longer."""
    quiet_ms = 1e3 * steps.query("doing == ''")["extra_s"]
    during = [
        steps[(steps["doing"] == "migration") & steps["at_s"].between(at_s, at_s + duration_s + 1)]["extra_s"]
        for at_s, duration_s in joins.query("strategy == 'handover'")[["at_s", "duration_s"]].to_numpy()
    ]
    late_ms = 1e3 * pd.concat(during)
    stood_ms = 1e3 * medians["suspended_s"]
    usual = 1e3 * steps.query("doing == ''")["step_s"].median()
    beyond = late_ms.quantile(0.99) - quiet_ms.quantile(0.99)
    shorter = stood_ms["checkpoint"] / max(late_ms.median(), 0.1)
    name = "A PS joins, handover"
    return [
        Row("a quiet step of 100 MB", round(usual, 1), "ms, median", None, False, COMMAND),
        Row(f"{name}, workers stand still", round(stood_ms["handover"], 1), "ms", 0, False, COMMAND),
        Row(f"{name}, extra wait", round(late_ms.median(), 1), "ms, median", None, False, COMMAND),
        Row(f"{name}, extra wait, p99", round(late_ms.quantile(0.99), 1), "ms", None, False, COMMAND),
        Row("quiet steps, extra wait, p99", round(quiet_ms.quantile(0.99), 1), "ms", None, False, COMMAND),
        Row(f"{name}, extra wait, p99 beyond that of quiet steps", round(beyond, 1), "ms", 10, False, COMMAND),
        Row("A PS joins, suspend, workers stand still", round(stood_ms["suspend"], 1), "ms", None, False, COMMAND),
        Row("A PS joins, checkpoint, workers stand still", round(stood_ms["checkpoint"]), "ms", None, False, COMMAND),
        Row("checkpoint and restart", round(shorter), "times a hand-over's extra wait", 1000, True, COMMAND),
        Row("scalings measured", len(scalings), "scalings", None, True, COMMAND),
    ]  # fmt: skip


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:60s} {row.value:10} {row.unit}")
