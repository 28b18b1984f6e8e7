"""Means of any table by some of its columns, with the interval over what is left: seeds, traces, draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.errors import unknown
from labkit.results.sweeps import interval

if TYPE_CHECKING:
    import pandas as pd


def means_by(table: pd.DataFrame, by: str | Sequence[str], *, value: str, level: float = 0.95) -> pd.DataFrame:
    """Return the mean of a column for each combination of others, with Student's confidence interval.

    Parameters
    ----------
    table : DataFrame
        One row per run, job or draw.
    by : str or sequence of str
        Columns that tell the rows of the result apart.
    value : str
        The column whose mean is wanted; rows without a value count for nothing.
    level : float
        Of confidence.

    Returns
    -------
    DataFrame
        In the order of the table: the columns `by`; n; mean, low, high (NaN where fewer than two values are there).

    Raises
    ------
    InputError
        If the table has no such column.

    Examples
    --------
    >>> import pandas as pd
    >>> means_by(pd.DataFrame({"to": ["a", "a", "b"], "s": [1.0, 3.0, 5.0]}), "to", value="s")[["to", "n", "mean"]]
      to  n  mean
    0  a  2   2.0
    1  b  1   5.0
    """
    import pandas as pd

    keys = [by] if isinstance(by, str) else list(by)
    for name in (*keys, value):
        if name not in table.columns:
            raise unknown("column of the table", name, [str(column) for column in table.columns])
    rows = []
    for told, part in table.groupby(keys, sort=False, dropna=False):
        values = part[value].to_numpy(np.float64)
        known = values[~np.isnan(values)]
        rows.append((*told, len(known), *interval(known, level=level)))
    return pd.DataFrame(rows, columns=[*keys, "n", "mean", "low", "high"])
