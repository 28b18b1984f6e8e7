"""A trained policy beside simple schedulers, in the scenario of its training, on traces that it has not met."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import LabkitError
from labkit.core.protocols import Scheduler
from labkit.experiment.caveats import Caveat
from labkit.experiment.experiment import Experiment
from labkit.results.comparison import BOUND, FASTER, bound_of
from labkit.results.sweeps import cell_table, sweep_differences
from labkit.schedulers import make

if TYPE_CHECKING:
    import pandas as pd

HELD_OUT: Final = "held-out"
RIVALS: Final = {
    "dl2": ("srtf", "optimus", "drf", "las", "slot_aware"),
    "marl": ("even", "even_pods", "interference_aware", "fifo"),
}
"""The rules that a policy is judged beside."""


def judge(policy: str, weights: Path, held_out: Callable[[int], Experiment], *, n: int) -> pd.DataFrame:
    """Return a row for the policy and each of `RIVALS` on each of n held-out traces: `labkit.results.cell_table`.

    `policy`, `weights`: "dl2" or "marl", and its weights; it is watched as by default; `held_out`: the experiment of a
    number, 1 and on.
    """
    names, seeds = [policy, *RIVALS[policy]], list(range(1, n + 1))
    rows = []
    for seed in seeds:
        experiment = held_out(seed)
        rows += [
            _row(experiment, make(policy, weights=str(weights)) if name == policy else name, name, seed)
            for name in names
        ]
    table = cell_table(rows, axes={"trace": [HELD_OUT], "scheduler": names, "seed": seeds})
    table.attrs["pairs"] = f"{HELD_OUT} trace"
    return table


def _row(experiment: Experiment, scheduler: Scheduler | str, name: str, seed: int) -> dict[str, Any]:
    """Return the row of a run, as a sweep keeps it; what fails has its error."""
    keys = {"trace": HELD_OUT, "scheduler": name, "seed": seed}
    row: dict[str, Any] = {"keys": keys, "error": "", "run": "", "metrics": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        try:
            record = experiment.run(scheduler, name=name)
        except LabkitError as error:
            return row | {"error": " ".join(str(error).split())}
    faster = record.info.config.get(FASTER, False)
    return row | {"metrics": record.summary, BOUND: bound_of(record), FASTER: faster}


def advice(table: pd.DataFrame, *, name: str, policy: str = "dl2") -> str:
    """Return which scheduler to use, by 95% confidence intervals of paired differences; `name`: the policy's."""
    if (failed := table.loc[(table["scheduler"] == policy) & (table["error"] != ""), "error"]).size:
        return f"the policy failed on {failed.size} held-out traces: {failed.iloc[0]}"
    apart = sweep_differences(table, base=policy).dropna(subset=["mean"])
    if apart.empty:
        return f"use {name}: no other scheduler completed."
    best = apart.iloc[int(apart["mean"].to_numpy().argmin())]
    rival, percent = best["scheduler"], 100 * abs(best["mean"]) / (best["mean"] + best["base"])
    if best["low"] > 0:
        return f"use {name}: its mean JCT is {percent:.1f}% shorter than that of {rival}, the best of the others."
    longer = "longer" if best["mean"] < 0 else "shorter"
    shown = "" if best["high"] < 0 else ", a difference that these traces do not show for sure"
    return f"use {rival}: the policy is no better here (its mean JCT is {percent:.1f}% {longer}{shown})."
