"""What runs show, in sentences: from the numbers alone, and no more than they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.text import human_s, text_or_none, time_unit, without_seed
from labkit.results.calibration import calibration
from labkit.results.comparison import BOUND_LABEL, bills, bound_jct_s, in_time, labels
from labkit.results.record import RunRecord
from labkit.results.sweeps import keys_of, pairs_called, same_on_all, sweep_differences, sweep_means
from labkit.workloads.expressions import is_generated

if TYPE_CHECKING:
    import pandas as pd


WINDOWS: Final = "Windows are parts of one trace, each begun on an empty cluster: intervals are about this trace."
MOST_NAMED = 4
"""Schedulers that a sentence names one by one."""


def conclusion(
    records: Sequence[RunRecord], *, seeds: pd.DataFrame | None = None, base: str | None = None
) -> list[str]:
    """Return conclusions from runs, a sentence each; with several seeds, from the seeds.

    Parameters
    ----------
    records : sequence of RunRecord
        One run for each scheduler; with several seeds, those of one of them.
    seeds : DataFrame, optional
        The same schedulers on several seeds: from `labkit.sweep`.
    base : str, optional
        On one seed: the scheduler with which each of the others is compared.
    """
    if seeds is None:
        return [*one_run_each(records, base=base), *calibration(records), *_aims(records)]
    one = f"{pairs_called(seeds)} {records[0].info.config.get('repeat', records[0].info.seed)}"
    return [*summarize_seeds(seeds), *(f"On {one} alone: {sentence}" for sentence in _aims(records))]


def summarize_seeds(table: pd.DataFrame, *, metric: str = "mean_jct_s", level: float = 0.95) -> list[str]:
    """Return which scheduler is lowest over seeds, what others lose on it, and which cannot be told apart from it."""
    by, pair = [key for key in keys_of(table) if key not in ("seed", "scheduler")], pairs_called(table)
    if any(len(set(table[key])) > 1 for key in by):
        return ["This table has several settings; the figure compares the schedulers in each."]
    table = table[table["scheduler"] != BOUND_LABEL]
    means = sweep_means(table, metric=metric, level=level).dropna(subset=["mean"])
    whole = means[means["n_failed"] == 0]
    if whole.empty:
        return [f"No scheduler completed on every {pair}; nothing can be compared."]
    if same := same_on_all(table):
        return [same]
    if len(whole) > 1 and identical_runs(table):
        return [f"All schedulers have the same {_words(metric)} on each {pair}."]
    best = whole.iloc[int(whole["mean"].to_numpy().argmin())]
    what = _words(metric)
    n = int(best["n"])
    on = f"{n} {pair}{'s' * (n != 1)}"
    sentences = [f"On {on} {best['scheduler']} has the lowest {what}: {_of(best, metric)}."]
    apart = sweep_differences(table, metric=metric, base=str(best["scheduler"]), level=level)
    apart = apart[apart["scheduler"].isin(whole["scheduler"])]
    sentences += _against(apart, str(best["scheduler"]), level=level, pair=pair)
    if failed := [str(name) for name in means.loc[means["n_failed"] > 0, "scheduler"]]:
        sentences.append(f"Not compared because some of its runs failed: {', '.join(failed)}.")
    return [*sentences, *([WINDOWS] if pair == "window" else [])]


def _against(apart: pd.DataFrame, best: str, *, level: float, pair: str) -> list[str]:
    """Return sentences about differences to the best: which are shown, and which are not."""
    shown, near = [], []
    apart = apart[apart["n"] > 0].sort_values("mean", kind="stable")
    for row in apart.to_dict("records"):
        low, high = 100 * row["low"] / row["base"], 100 * row["high"] / row["base"]
        if np.isnan(low):
            near.append(f"{row['scheduler']} (one {pair}, so no confidence interval)")
        elif low > 0:
            shown.append(
                f"{row['scheduler']} {100 * row['relative']:+.1f}% ({low:+.1f} to {high:+.1f}%, higher on "
                f"{row['n'] - row['n_lower']} of {row['n']})"
            )
        else:
            near.append(f"{row['scheduler']} ({100 * row['relative']:+.1f}%, {low:+.1f} to {high:+.1f}%)")
    sentences = []
    if shown:
        sentences.append(
            f"Significantly higher than {best} on the same {pair}s ({level:.0%} confidence intervals): {_some(shown)}."
        )
    if near:
        sentences.append(f"Not significantly different from {best} on these {pair}s: {_some(near)}.")
    return sentences


def one_run_each(records: Sequence[RunRecord], *, base: str | None = None) -> list[str]:
    """Return which run has the lowest mean JCT, how others compare with `base`, and that one run is one run."""
    named = dict(zip(labels(records), records, strict=True))
    whole = {name: record for name, record in named.items() if record.complete}
    sentences = []
    if len(whole) > 1:
        means = {name: record.summary["mean_jct_s"] for name, record in whole.items()}
        best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        sentences.append(_ranked(whole, means, best, worst))
        sentences += against(whole, base=base)
        sentences.append(
            "Each scheduler ran once, so this does not show whether the difference holds for other traces. "
            f"{_more(records[0])}."
        )
    elif whole:
        ((name, record),) = whole.items()
        mean_s, bound_s = record.summary["mean_jct_s"], bound_jct_s(record)
        over = f", {mean_s / bound_s:.2f} times the lower bound" if bound_s == bound_s else ""
        sentences.append(f"{name}: the mean JCT of {len(record.jobs):,} jobs is {human_s(mean_s)}{over}.")
    if cut := [name for name in named if name not in whole]:
        sentences.append(f"Not compared because not all of its jobs completed: {_some(cut)}.")
    return sentences


def _more(record: RunRecord) -> str:
    """Return the advice for more evidence: other seeds of a generated trace; a trace from a file has none."""
    if is_generated(without_seed(record.info.trace or record.jobs.name)):
        return "Repeat it with --seeds 10"
    return "Repeat it with --windows 10, or on a trace from another period"


def _ranked(whole: dict[str, RunRecord], means: dict[str, float], best: str, worst: str) -> str:
    if means[best] == means[worst]:
        return f"All have the same mean JCT on this trace, {human_s(means[best])}."
    second = min((name for name in means if name != best), key=means.__getitem__)
    sentence = f"On this trace {best} has the lowest mean JCT: {human_s(means[best])}, {_below(means, best, second)}"
    sentence += f" and {_below(means, best, worst)}" if worst != second else ""
    if moved := _moved(whole[best], whole[second]):
        sooner, later = moved
        sentence += (
            f"; {sooner:,} of {len(whole[best].table):,} jobs are done sooner than with {second}, {later:,} later"
        )
    return sentence + "."


def finding(records: Sequence[RunRecord]) -> str:
    """Return in a sentence which run has the lowest mean JCT, and the bound; "" where no two runs differ."""
    whole = {label: record for label, record in zip(labels(records), records, strict=True) if record.complete}
    means = {name: record.summary["mean_jct_s"] for name, record in whole.items()}
    if len(set(means.values())) < 2:
        return ""
    best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    bound_s = bound_jct_s(whole[best])
    bound = f"; the lower bound is {human_s(bound_s)}" if bound_s == bound_s else ""
    return f"{best} has the lowest mean JCT: {human_s(means[best])}, {_below(means, best, worst)}{bound}."


def against(whole: Mapping[str, RunRecord], *, base: str | None) -> list[str]:
    """Return how the mean JCT of each run compares with that of one of them, and how many jobs are sooner and later."""
    if base is None or base not in whole or len(whole) < 2:
        return []
    mean_s, sentences = whole[base].summary["mean_jct_s"], []
    for name, record in whole.items():
        if name == base or not mean_s > 0:
            continue
        sentence = f"{name} mean JCT {record.summary['mean_jct_s'] / mean_s - 1:+.1%}"
        if moved := _moved(record, whole[base]):
            sentence += f", {moved[0]:,} of {len(record.table):,} jobs sooner, {moved[1]:,} later"
        sentences.append(sentence)
    return [f"Against {base}: {'; '.join(sentences)}."] if sentences else []


def _moved(record: RunRecord, other: RunRecord) -> tuple[int, int] | None:
    """Return how many jobs are done sooner and how many later than in another run; None where they are other jobs."""
    ours, theirs = (run.table.set_index("id")["jct_s"] for run in (record, other))
    if not ours.index.is_unique or set(ours.index) != set(theirs.index):
        return None
    theirs = theirs.loc[ours.index]
    alike = 1e-9 * theirs.abs()
    return int((ours - theirs < -alike).sum()), int((ours - theirs > alike).sum())


def _below(means: dict[str, float], best: str, other: str) -> str:
    return f"{1 - means[best] / means[other]:.1%} below {other}" if means[other] > 0 else f"as {other}"


def _aims(records: Sequence[RunRecord]) -> list[str]:
    """Return sentences on cost, deadlines and fairness, where runs are about them and differ."""
    whole = [(name, record) for name, record in zip(labels(records), records, strict=True) if record.complete]
    if len(whole) < 2:
        return []
    names, runs = [name for name, _ in whole], [record for _, record in whole]
    sentences = []
    cost = np.array(bills(runs))
    if np.ptp(cost) > 0:  # NaN where no run has prices
        i, j = int(cost.argmin()), int(cost.argmax())
        at = [
            f"${dollars:,.2f}, mean JCT {human_s(run.summary['mean_jct_s'])}"
            for dollars, run in zip(cost, runs, strict=True)
        ]
        sentences.append(f"Cheapest: {names[i]}, {at[i]} ({names[j]}: {at[j]}).")
    met = np.array([in_time(record) for record in runs])
    if np.ptp(met) > 0:
        i, j = int(met.argmax()), int(met.argmin())
        sentences.append(
            f"Most SLOs met: {names[i]}, {met[i]:.1%} of the jobs that have one ({names[j]}: {met[j]:.1%})."
        )
    rho = np.array([record.summary["max_rho"] for record in runs])
    if any("ftf" in name or "las" in name for name in names) and np.ptp(rho) > 0:
        i, j = int(rho.argmin()), int(rho.argmax())
        at = [
            f"{most:.2f} at most, {run.summary['mean_rho']:.2f} on average" for most, run in zip(rho, runs, strict=True)
        ]
        sentences.append(
            f"Fairest by the worst finish-time fairness of a job: {names[i]}, ρ {at[i]} ({names[j]}: {at[j]})."
        )
    return sentences


def _of(row: pd.Series[Any], metric: str) -> str:
    scale, unit = time_unit(float(row["mean"])) if metric.endswith("_s") else (1.0, "")
    mean, low, high = (f"{float(row[name]) / scale:,.4g}" for name in ("mean", "low", "high"))
    unit = f" {unit}" if unit else ""
    return f"{mean}{unit}" if row["low"] != row["low"] else f"{mean}{unit} (95%: {low} to {high})"


def _words(metric: str) -> str:
    return metric.removesuffix("_s").replace("_", " ").replace("jct", "JCT")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "; ".join(names[:MOST_NAMED]) + more


OUTCOMES: Final = ("mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s")
"""What two schedulers must have in common to count as the same; how often they were asked does not count."""


def identical_runs(table: pd.DataFrame) -> list[str]:
    """Return a note for each setting of a sweep in which all schedulers had identical results on every seed.

    `table`: from `labkit.sweep` or `labkit.results.read_sweep`.
    """
    table = table[table["scheduler"] != BOUND_LABEL]
    outcomes = [name for name in OUTCOMES if name in table]
    setting = [key for key in keys_of(table) if key not in ("seed", "scheduler") and len(set(table[key])) > 1]
    if not outcomes:
        return []
    parts = [((), table)] if not setting else list(table.groupby(setting, sort=False, dropna=False))
    same = [(dict(zip(setting, keys, strict=True)), part) for keys, part in parts if _same(part, outcomes)]
    if len(same) == len(parts):
        same = [({}, table)] if same else []
    return [_note(part, names) for names, part in same]


def _same(part: pd.DataFrame, outcomes: list[str]) -> bool:
    """Return whether there are two schedulers at least, and all have the same numbers on each seed."""
    if len(set(part["scheduler"])) < 2 or (part["error"] != "").any() or part[outcomes].isna().to_numpy().any():
        return False
    return len(part.drop_duplicates(["seed", *outcomes])) == len(set(part["seed"]))


def _note(part: pd.DataFrame, setting: dict[str, object]) -> str:
    names = ", ".join(dict.fromkeys(part["scheduler"]))
    where = " with " + ", ".join(f"{key} {text_or_none(value)}" for key, value in setting.items()) if setting else ""
    queued_s = part["mean_queueing_s"] if "mean_queueing_s" in part else part["mean_jct_s"]
    sentence = f"{names} gave identical results on every {pairs_called(part)}{where}"
    if (queued_s > 0).any():
        return sentence
    return f"{sentence} (no job ever waited); raise the arrival rate (--arrival-rate 2) or take a smaller cluster"
