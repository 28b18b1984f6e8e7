"""Interference models judged on profiles of synthetic servers, beside the errors that were published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.speed.interference import compare_models
from labkit.speed.interference.measured import PRESETS, profile
from labkit.system.progress import counted

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED: Final = {
    "two_stage": 13.1, "quadratic": 22.9, "linear": 24.6, "without_pcie": 27.5, "without_cpu": 36.3,
}  # fmt: skip
"""Mean errors in %: Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", 2021,
Table III."""


def model_errors(seeds: Sequence[int], *, progress: bool = False) -> pd.DataFrame:
    """Return the held-out error of each published model on each synthetic server, once for each seed.

    A seed draws a profile with kinds of jobs of its own; a model is fitted to four fifths of it and predicts the rest,
    five times in turn.

    Returns
    -------
    DataFrame
        server (of `labkit.speed.interference.measured.PRESETS`, or "published"), model, seed, error in %: the mean of
        |predicted - measured| / measured.
    """
    import pandas as pd

    rows = []
    for server, seed in counted(
        [(server, seed) for server in PRESETS for seed in seeds], name="profiles", shown=progress
    ):
        drawn = profile(server, rng=np.random.default_rng(seed))
        found = compare_models(drawn, models=PUBLISHED, repeats=1, rng=np.random.default_rng(seed))
        error = found.set_index("model")["held_out_error"]
        rows += [(server, model, seed, 100 * float(error[model])) for model in PUBLISHED]
    rows += [("published", model, 0, error) for model, error in PUBLISHED.items()]
    return pd.DataFrame(rows, columns=["server", "model", "seed", "error"])
