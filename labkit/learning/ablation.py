"""What each part of DL2's published recipe is worth: kept results of training without it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from labkit.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

RUNS: Final = {
    "as published": "paper, seed 1",
    "only its lessons (by DRF)": "lessons, seed 1",
    "no lessons": "scratch, seed 1",
    "no critic": "no critic, seed 1",
    "no exploration": "no exploration, seed 1",
    "no replay": "no replay, seed 1",
    "a reward for each action": "by job, seed 1",
    "labkit's networks": "dl2",
}
"""What was changed -> the name of the run in `benchmarks/claims.json`."""


def ablation(file: Path | str, *, nodes: Sequence[int] = (48, 16)) -> pd.DataFrame:
    """Return the mean JCT on each held-out trace, by what was taken away from the published recipe.

    Parameters
    ----------
    file : path
        Results that `python -m benchmarks.claims` keeps.
    nodes : sequence of int
        Sizes of DL2's cluster.

    Returns
    -------
    DataFrame
        cluster ("48 nodes"), recipe, trace, slots (mean JCT).

    Raises
    ------
    InputError
        If the file has no such run.
    """
    import pandas as pd

    kept = json.loads(Path(file).read_text("utf-8"))
    rows = []
    for n in nodes:
        for recipe, run in RUNS.items():
            name = f"{n} nodes, measured: {run}"
            if name not in kept:
                raise InputError(f"{file} has no run '{name}'; python -m benchmarks.claims --nodes {n} measures it.")
            found = kept[name]
            slots = found.get("drawn", found["best"])
            rows += [(f"{n} nodes", recipe, trace, jct) for trace, jct in enumerate(slots)]
    return pd.DataFrame(rows, columns=["cluster", "recipe", "trace", "slots"])
