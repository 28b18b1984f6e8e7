"""What many runs say together: a table of cells, means with confidence intervals over seeds, paired differences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.resources import Floats
from labkit.results.comparison import BOUND, BOUND_LABEL, FASTER

if TYPE_CHECKING:
    import pandas as pd


AFTER: Final = ("error", "run")
"""Columns behind the keys of a cell, before its metrics."""
LAST: Final = (BOUND, "cpu_s", "wall_s")
DONE: Final = ""
BOUNDED: Final = "mean_jct_s"
"""The metric of which there is a bound."""


def cell_table(
    rows: Iterable[Mapping[str, Any]], *, axes: Mapping[str, Sequence[Any]], folder: Path | None = None
) -> pd.DataFrame:
    """Return one row per cell, sorted by the grid.

    Columns: the axes (trace, cluster, parameters, scheduler, seed); error ("" where all is well, else why the cell
    failed); run (folder of the whole run, "" where it is not kept); the metrics of `labkit.results.summary`;
    bound_jct_s (mean JCT that no scheduler can go below there, NaN where it is not known); cpu_s, wall_s.
    `attrs["speeds"]` lists the speed models in words; `attrs[FASTER]`: the bound rests on gangs faster than asked.

    Parameters
    ----------
    rows : iterable of mapping
        As they stand in `cells.jsonl`; rows that are not of this grid are left out.
    axes : mapping
        Axis -> its values.
    folder : Path, optional
        Of the sweep.
    """
    import pandas as pd

    place = {name: {json.dumps(value): i for i, value in enumerate(values)} for name, values in axes.items()}
    chosen = []
    for row in rows:
        keys = row["keys"]
        at = tuple(place[name].get(json.dumps(keys.get(name)), -1) for name in axes)
        if set(keys) == set(axes) and -1 not in at:
            chosen.append((at, row))
    chosen.sort(key=lambda pair: pair[0])
    metrics = list(dict.fromkeys(name for _, row in chosen for name in row["metrics"]))
    columns: dict[str, list[Any]] = {name: [row["keys"][name] for _, row in chosen] for name in axes}
    columns["error"] = [row["error"] for _, row in chosen]
    columns["run"] = [str((folder or Path()) / row["run"]) if row["run"] else "" for _, row in chosen]
    columns |= {name: [_number(row["metrics"].get(name)) for _, row in chosen] for name in metrics}
    columns |= {name: [_number(row.get(name)) for _, row in chosen] for name in LAST}
    table = pd.DataFrame(columns)
    if all(value is not None for value in axes.get("windows", (None,))):
        table.attrs["pairs"] = "window"
    table.attrs["speeds"] = list(dict.fromkeys(row["speeds"] for _, row in chosen if row.get("speeds")))
    table.attrs[FASTER] = any(row.get(FASTER, False) for _, row in chosen)
    return table


def pairs_called(table: pd.DataFrame) -> str:
    """Return the key of paired runs: "seed", "window" of a trace, or "repeat" on machines."""
    return str(table.attrs.get("pairs", "seed"))


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def keys_of(table: pd.DataFrame) -> list[str]:
    """Return the columns that tell cells apart: those before `error`."""
    return list(table.columns[: list(table.columns).index("error")])


def sweep_means(table: pd.DataFrame, *, metric: str = "mean_jct_s", level: float = 0.95) -> pd.DataFrame:
    """Return the mean of a metric over seeds, with Student's confidence interval.

    Parameters
    ----------
    table : DataFrame
        From `labkit.sweep` or `labkit.results.read_sweep`.
    metric : str
        One of its columns.
    level : float
        Of confidence.

    Returns
    -------
    DataFrame
        One row per scheduler and combination of all other keys, in the order of the table: the keys but the seed; n
        (seeds whose cell did not fail), n_failed; mean, low, high (NaN where fewer than two seeds are there).
    """
    import pandas as pd

    _refuse_unknown(table, metric)
    by = [key for key in keys_of(table) if key != "seed"]
    rows = []
    for keys, part in table.groupby(by, sort=False, dropna=False):
        values = part[metric].to_numpy(np.float64)
        known = values[~np.isnan(values)]
        n_failed = int((part["error"] != DONE).sum())
        rows.append((*keys, len(known), n_failed, *interval(known, level=level)))
    return pd.DataFrame(rows, columns=[*by, "n", "n_failed", "mean", "low", "high"])


def sweep_differences(
    table: pd.DataFrame, *, metric: str = "mean_jct_s", base: str | None = None, level: float = 0.95
) -> pd.DataFrame:
    """Return how much each scheduler differs from one of them on the same seeds.

    Seeds are compared pair by pair, which takes out what they have in common: the interval is that of the mean of the
    differences, and is most often much narrower than those of the two means.

    Parameters
    ----------
    base : str, optional
        The scheduler with which others are compared; the first one by default.

    Returns
    -------
    DataFrame
        One row per other scheduler and combination of all other keys: the keys but the seed; n (seeds on which neither
        failed); mean, low, high of scheduler - base; base (its mean on these seeds); relative (mean / base); n_lower
        (seeds on which the scheduler is below the base).
    """
    import pandas as pd

    _refuse_unknown(table, metric)
    names = list(dict.fromkeys(table["scheduler"]))
    base = names[0] if base is None and names else base
    if base not in names:
        raise unknown("scheduler of the sweep", str(base), names)
    setting = [key for key in keys_of(table) if key not in ("seed", "scheduler")]
    columns = [*setting, "scheduler", "n", "mean", "low", "high", "base", "relative", "n_lower"]
    rows = []
    for keys, part in table.groupby(setting, sort=False, dropna=False):
        by_seed = part.set_index(["seed", "scheduler"])[metric].astype(np.float64).unstack("scheduler")  # noqa: PD010
        for name in names:
            if name == base or name not in by_seed or base not in by_seed:
                continue
            pairs = by_seed[[base, name]].dropna()
            delta = (pairs[name] - pairs[base]).to_numpy()
            mean, low, high = interval(delta, level=level)
            whole = float(pairs[base].mean()) if len(pairs) else np.nan
            relative, n_lower = mean / whole if whole else np.nan, int((delta < 0).sum())
            rows.append((*keys, name, len(pairs), mean, low, high, whole, relative, n_lower))
    return pd.DataFrame(rows, columns=columns)


def comparison(
    table: pd.DataFrame, *, metric: str = "mean_jct_s", base: str | None = None, level: float = 0.95
) -> pd.DataFrame:
    """Return means and differences side by side: what `labkit sweep` prints.

    Columns: those of `sweep_means`, then difference, difference_low, difference_high, relative, relative_low,
    relative_high of scheduler - base on the same seeds, n_pairs (seeds that both have) and n_lower (those on which the
    scheduler is below), NaN for the base itself, for the bound and, as all intervals, where every seed gave the same;
    times_bound (mean over that of the bound on the same seeds, NaN where there is none). The bound of the mean JCT is
    a row of its own, "(bound)".
    """
    table = with_bound(table) if metric == BOUNDED else table
    means = sweep_means(table, metric=metric, level=level)
    apart = sweep_differences(table, metric=metric, base=base, level=level)
    ends = {f"relative_{end}": apart[end] / apart["base"] for end in ("low", "high")}
    apart = apart.assign(**ends).drop(columns=["base"])
    apart = apart.rename(
        columns={"n": "n_pairs", "mean": "difference", "low": "difference_low", "high": "difference_high"}
    )
    keys = [key for key in keys_of(table) if key != "seed"]
    joined = means.merge(apart, on=keys, how="left", sort=False)
    joined = joined[[*means.columns, *(name for name in apart.columns if name not in keys)]]
    joined.loc[joined["scheduler"] == BOUND_LABEL, list(joined.columns[len(means.columns) :])] = np.nan
    if same_on_all(table):
        names = map(str, joined)
        over = [name for name in names if name in ("low", "high", "n_pairs") or name.endswith(("_low", "_high"))]
        joined = joined.assign(**dict.fromkeys(over, np.nan))
    return joined.assign(times_bound=_times_bound(table, by=keys) if metric == BOUNDED else np.nan)


def with_bound(table: pd.DataFrame) -> pd.DataFrame:
    """Return a sweep with the bound of the mean JCT as one more scheduler, "(bound)", behind the others.

    It has a row for each seed and combination of all other keys of which it is known; its other metrics are NaN.
    """
    import pandas as pd

    keys = keys_of(table)
    others = [key for key in keys if key != "scheduler"]
    known = table[table[BOUND].notna()].drop_duplicates(others)
    rows = known[[*keys, *AFTER, *LAST]].assign(scheduler=BOUND_LABEL, run="", **{BOUNDED: known[BOUND]})
    if not len(rows):
        return table
    joined = pd.concat([table, rows], ignore_index=True)
    order = joined.groupby([key for key in others if key != "seed"], sort=False, dropna=False).ngroup()
    joined = joined.iloc[order.argsort(kind="stable")].reset_index(drop=True)
    joined.attrs = table.attrs
    return joined


def _times_bound(table: pd.DataFrame, *, by: Sequence[str]) -> list[float]:
    """Return the mean JCT of each group of rows over its bound, on the seeds that have both."""
    ratios = []
    for _, part in table.groupby(list(by), sort=False, dropna=False):
        both = part[[BOUNDED, BOUND]].dropna().mean()
        ratios.append(float(both[BOUNDED] / both[BOUND]) if both[BOUND] > 0 else np.nan)
    return ratios


def interval(values: Floats, *, level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean of some values, and the interval that holds the true mean with this confidence (Student's t).

    >>> [round(x, 3) for x in interval(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.484, 4.484]
    """
    from scipy.stats import t

    if not 0 < level < 1:
        raise InputError(f"level is {level}; expected a confidence between 0 and 1, such as 0.95.")
    n = len(values)
    if n == 0:
        return np.nan, np.nan, np.nan
    mean = float(values.mean())
    if n == 1:
        return mean, np.nan, np.nan
    half = float(t.ppf(0.5 + level / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return mean, mean - half, mean + half


def idle_seeds(table: pd.DataFrame) -> list[str]:
    """Return the schedulers of which every seed gave the very same numbers, though there are several seeds."""
    metrics = [name for name in _metrics_of(table) if name not in LAST]
    done = table[table["error"] == DONE]
    found = []
    for name, part in done.groupby("scheduler", sort=False):
        setting = [key for key in keys_of(table) if key != "seed"]
        sizes = part.groupby(setting, dropna=False).size()
        distinct = part.drop_duplicates([*setting, *metrics])
        if (sizes > 1).all() and len(distinct) == len(sizes):
            found.append(str(name))
    return found


def same_on_all(table: pd.DataFrame) -> str:
    """Return the sentence to tell where every seed gave the same numbers with every scheduler; "" where some differ."""
    if not len(table) or not set(table["scheduler"]) <= {*idle_seeds(table), BOUND_LABEL}:
        return ""
    pair = pairs_called(table)
    return (
        f"All {table['seed'].nunique()} {pair}s gave the same numbers, since nothing in the trace or the schedulers is "
        f"random; they are one run of each, and intervals over {pair}s would say nothing."
    )


def refuse_unknown_metric(metric: str) -> None:
    """Raise if no sweep has a metric of that name, before one is run.

    Raise InputError with the nearest name.
    """
    from labkit.core.events import EventLog
    from labkit.core.jobs import Jobs
    from labkit.results.metrics import summary
    from labkit.topology import no_network

    nothing = EventLog().rows, Jobs.of(arrival_s=[0.0], total_steps=1.0), no_network(1)
    known = [*summary(*nothing), *LAST]
    if metric not in known:
        raise unknown("metric of a sweep", metric, known)


def _refuse_unknown(table: pd.DataFrame, metric: str) -> None:
    known = _metrics_of(table)
    if metric not in known:
        raise unknown("metric of the sweep", metric, known)


def _metrics_of(table: pd.DataFrame) -> list[str]:
    return [str(name) for name in table.columns[len(keys_of(table)) + len(AFTER) :]]


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
    for key, part in table.groupby(keys, sort=False, dropna=False):
        values = part[value].to_numpy(np.float64)
        known = values[~np.isnan(values)]
        rows.append((*key, len(known), *interval(known, level=level)))
    return pd.DataFrame(rows, columns=[*keys, "n", "mean", "low", "high"])
