"""How true a prediction was: two runs of the same jobs, side by side, and what explains the gap between them.

One run is real (or takes the part of it), the other was predicted. A gap is always real minus predicted: positive where
reality took longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from labkit.core.clock import jct_s
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.results.record import RunRecord
from labkit.results.spans import Doing, stretches
from labkit.speed.profiled.profile import YardstickSample

if TYPE_CHECKING:
    import pandas as pd


STATES: Final = (
    Doing.WAITING, Doing.STARTING, Doing.RESCALING, Doing.TRAINING, Doing.RECOVERY, Doing.FINISHING,
)  # fmt: skip

PARTS: Final = {
    "waiting": "in the queue, without tasks",
    "starting": "from its tasks to its first step",
    "rescaling": "pauses, and steps of the old gang until the new one takes over",
    "speed": "the same steps with the same gangs, slower or faster",
    "other gangs": "the scheduler gave other gangs",
    "recovery": "lost steps, and failures until it trains again",
    "finishing": "from its last step to its end",
}
"""The parts of a gap, and what each is."""


def job_fidelity(real: RunRecord, predicted: RunRecord) -> pd.DataFrame:
    """Return both runs side by side, a row per job that completed in both, in order of arrival.

    Columns: job, id, model; real_jct_s, simulated_jct_s, gap_s (real - simulated), error (gap_s / real_jct_s); and for
    each of `STATES` the seconds spent in it, real_waiting_s, simulated_waiting_s and so on. They add up to the JCT.

    * waiting: without tasks, after its arrival or a preemption.
    * starting: from getting tasks to the first step, at first or after a preemption.
    * rescaling: from being placed anew to being rescaled, less the time that the steps made meanwhile take with the new
      gang. So a pause counts in full; training on with the old gang counts for what the new one would have saved, and
      is negative where the old one is the faster.
    * training: all other time in which steps are made that are not lost later.
    * recovery: time for steps that were lost later, and from a failure to the next step.
    * finishing: from the last step to the end. 0 where no event tells the last step before the job is completed.

    Raises
    ------
    InputError
        If the runs are not of the same jobs.
    """
    refuse_others(real.jobs, predicted.jobs)
    both = real.table.merge(predicted.table, on="job", suffixes=("", "_predicted"))
    both = both[both["completion_s"].notna() & both["completion_s_predicted"].notna()].reset_index(drop=True)
    table = both[["job", "id", "model"]].copy()
    table["real_jct_s"], table["simulated_jct_s"] = both["jct_s"], both["jct_s_predicted"]
    table["gap_s"] = table["real_jct_s"] - table["simulated_jct_s"]
    table["error"] = table["gap_s"] / table["real_jct_s"]
    spent = {"real": _Spent(real), "simulated": _Spent(predicted)}
    for state in STATES:
        for name, times in spent.items():
            table[f"{name}_{state}_s"] = times.of(table["job"], state)
    return table


def gap_parts(real: RunRecord, predicted: RunRecord) -> pd.DataFrame:
    """Return the parts of the gap of each job: job, id, gap_s, and a column of seconds for each of `PARTS`.

    The parts of a job add up to its gap. All but two are differences of what `job_fidelity` tells. The rest, the
    difference in training time, divides into *speed* and *other gangs*. With n steps made with a gang g (workers and
    PSs) at t seconds per step, training takes sum_g n_g t_g, and

        sum n_g t_g - sum n'_g t'_g  =  sum (n_g + n'_g) / 2 (t_g - t'_g)  +  sum (t_g + t'_g) / 2 (n_g - n'_g)
                                        speed                                 other gangs

    so that neither run is the yardstick: with the runs exchanged, each part changes its sign and nothing else. For a
    gang that a job has in one run only, t of the other run is that of its other jobs of the same model with such a
    gang; where there is none, the two are taken to be equal. Placement and neighbours are part of speed. Training time
    with a gang that made no step at all counts as speed.

    This is bookkeeping and not a cause: a job may wait longer because another one was slower.

    Raises
    ------
    InputError
        If the runs are not of the same jobs.
    """
    table = job_fidelity(real, predicted)
    parts = table[["job", "id", "gap_s"]].copy()
    for state in STATES:
        if state != Doing.TRAINING:
            parts[str(state)] = table[f"real_{state}_s"] - table[f"simulated_{state}_s"]
    training = _training_parts(_Spent(real), _Spent(predicted))
    both = [training.get(job, (0.0, 0.0)) for job in table["job"].tolist()]
    parts["speed"], parts["other gangs"] = [speed for speed, _ in both], [gangs for _, gangs in both]
    return parts[["job", "id", "gap_s", *PARTS]]


def explained(table: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the gap between the mean JCTs, a row per part and their sum.

    Parameters
    ----------
    table, parts : DataFrame
        From `job_fidelity` and `gap_parts`.

    Returns
    -------
    DataFrame
        Index part; real_s and simulated_s (mean seconds per job; training stands in the row of speed, and other gangs
        have none of their own), gap_s (mean), percent (of the real mean JCT), what.
    """
    import pandas as pd

    jct_s = float(table["real_jct_s"].mean()) if len(table) else np.nan
    rows = []
    for part, what in PARTS.items():
        state = Doing.TRAINING if part == "speed" else part
        both = [
            float(table[name].mean()) if name in table else np.nan
            for name in (f"real_{state}_s", f"simulated_{state}_s")
        ]
        rows.append((part, *both, float(parts[part].mean()), what))
    rows.append(("all", jct_s, float(table["simulated_jct_s"].mean()), float(parts["gap_s"].mean()), "JCT"))
    frame = pd.DataFrame(rows, columns=["part", "real_s", "simulated_s", "gap_s", "what"]).set_index("part")
    frame.insert(3, "percent", 100 * frame["gap_s"] / jct_s)
    return frame


def fidelity_summary(real: RunRecord, predicted: RunRecord) -> dict[str, float]:
    """Return a comparison in a few numbers, over the jobs that completed in both runs.

    Returns
    -------
    dict
        n_jobs (compared), n_left_out; real_mean_jct_s, simulated_mean_jct_s, gap_percent ((real - simulated) / real);
        real_makespan_s, simulated_makespan_s, makespan_gap_percent; mean_abs_error_percent (mean over jobs of
        |gap| / real JCT); order (Spearman's correlation of the two orders of JCTs; NaN with fewer than two jobs);
        drift_percent (how much slower the machines were than when the profile was measured, mean over the JCTs) and
        gap_without_drift_percent (the gap with that divided out); NaN where the run or the profile has no yardstick.
    """
    table = job_fidelity(real, predicted)
    means = {name: float(table[f"{name}_jct_s"].mean()) if len(table) else np.nan for name in ("real", "simulated")}
    spans = {name: record.summary["makespan_s"] for name, record in (("real", real), ("simulated", predicted))}
    return {
        "n_jobs": len(table),
        "n_left_out": len(real.jobs) - len(table),
        "real_mean_jct_s": means["real"],
        "simulated_mean_jct_s": means["simulated"],
        "gap_percent": _percent(means["real"], means["simulated"]),
        "real_makespan_s": spans["real"],
        "simulated_makespan_s": spans["simulated"],
        "makespan_gap_percent": _percent(spans["real"], spans["simulated"]),
        "mean_abs_error_percent": 100 * float(table["error"].abs().mean()) if len(table) else np.nan,
        "order": _order(table["real_jct_s"].to_numpy(), table["simulated_jct_s"].to_numpy()),
        **_without_drift(real, predicted, table),
    }


def _without_drift(real: RunRecord, predicted: RunRecord, table: pd.DataFrame) -> dict[str, float]:
    """Return the drift of the machines, and the gap between the mean JCTs with it divided out, in percent."""
    drift = Drift.of(real, predicted)
    if drift is None or not len(table):
        return {"drift_percent": np.nan, "gap_without_drift_percent": np.nan}
    lives = real.table.set_index("job").loc[table["job"]]
    arrival_s, end_s = (drift.machine_s(lives[name].to_numpy()) for name in ("arrival_s", "completion_s"))
    mean_s = float(jct_s(arrival_s=arrival_s, completion_s=end_s).mean())
    return {
        "drift_percent": 100 * (float(lives["jct_s"].to_numpy().mean()) / mean_s - 1),
        "gap_without_drift_percent": _percent(mean_s, float(table["simulated_jct_s"].mean())),
    }


def refuse_others(jobs: Jobs, others: Jobs) -> None:
    """Raise if two runs are not of the same jobs.

    Raise InputError with the first difference.
    """
    if len(jobs) != len(others):
        raise InputError(f"the runs have {len(jobs)} and {len(others)} jobs; compare two runs of one trace.")
    for name, what in (("id", "is called"), ("true_steps", "has so many steps:"), ("arrival_s", "arrives (s) at")):
        mine, theirs = getattr(jobs, name), getattr(others, name)
        if (differ := np.flatnonzero(mine != theirs)).size:
            j = int(differ[0])
            raise InputError(
                f"job number {j} {what} {mine[j]} in one run and {theirs[j]} in the other; compare runs of one trace."
            )


Key = tuple[int, int, int]
"""A job, and the workers and PSs of a gang."""


class _Spent:
    """How each job of a run spent its time."""

    def __init__(self, record: RunRecord) -> None:
        self._model = record.jobs.model
        self.seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
        """(job, state) -> seconds."""
        self.gangs: defaultdict[Key, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        """(job, workers, PSs) -> steps made while training, and seconds."""
        pieces = stretches(record.events)
        pieces["seconds"] = pieces["end_s"] - pieces["start_s"] - pieces["lost_s"]
        columns = ["job", "doing", "n_workers", "n_ps", "seconds", "steps", "lost_s"]
        rows = list(zip(*(pieces[name].tolist() for name in columns), strict=True))
        for job, doing, n_workers, n_ps, seconds, steps, lost_s in rows:
            self.seconds[job, doing] += seconds
            self.seconds[job, Doing.RECOVERY] += lost_s
            if doing == Doing.TRAINING:
                self._train((job, n_workers, n_ps), steps, seconds)
        self._alike = self._by_model()
        known = {key: self.step_s(key) for key in self.gangs}
        for job, doing, n_workers, n_ps, seconds, steps, _ in rows:
            if doing == Doing.RESCALING and steps > 0:
                self._carry_over((job, n_workers, n_ps), steps, seconds, known)

    def of(self, jobs: pd.Series[Any], state: str) -> Floats:
        """Return the seconds that each of some jobs spent in a state."""
        return np.array([self.seconds.get((job, state), 0.0) for job in jobs.tolist()], dtype=np.float64)

    def step_s(self, key: Key) -> float:
        """Return the seconds per step of a job with a gang, or of its model's jobs with such a gang; NaN: unknown."""
        steps, seconds = self.gangs.get(key, (0.0, 0.0))
        return seconds / steps if steps > 0 else self._alike.get((int(self._model[key[0]]), *key[1:]), np.nan)

    def _train(self, key: Key, steps: float, seconds: float) -> None:
        before = self.gangs[key]
        self.gangs[key] = before[0] + steps, before[1] + seconds

    def _by_model(self) -> dict[tuple[int, int, int], float]:
        """Return the seconds per step of (model, workers, PSs)."""
        total: defaultdict[tuple[int, int, int], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for (job, n_workers, n_ps), (steps, seconds) in self.gangs.items():
            key = (int(self._model[job]), n_workers, n_ps)
            total[key] = total[key][0] + steps, total[key][1] + seconds
        return {key: seconds / steps for key, (steps, seconds) in total.items() if steps > 0}

    def _carry_over(self, key: Key, steps: float, seconds: float, step_times: dict[Key, float]) -> None:
        """Count steps that were made during a rescaling as if the new gang had made them."""
        each_s = step_times.get(key, np.nan)
        each_s = self.step_s(key) if np.isnan(each_s) else each_s
        moved_s = seconds if np.isnan(each_s) else steps * each_s
        self._train(key, steps, moved_s)
        self.seconds[key[0], Doing.TRAINING] += moved_s
        self.seconds[key[0], Doing.RESCALING] -= moved_s


def _training_parts(real: _Spent, predicted: _Spent) -> dict[int, tuple[float, float]]:
    """Return the difference in training time of each job in two parts: speed and gangs."""
    parts: dict[int, tuple[float, float]] = {}
    for key in sorted({*real.gangs, *predicted.gangs}):
        (n, seconds), (m, theirs) = real.gangs.get(key, (0.0, 0.0)), predicted.gangs.get(key, (0.0, 0.0))
        t, u = real.step_s(key), predicted.step_s(key)
        t, u = (u if np.isnan(t) else t), (t if np.isnan(u) else u)
        t, u = (0.0, 0.0) if np.isnan(t) else (t, u)
        still = (0.0 if n > 0 else seconds) - (0.0 if m > 0 else theirs)
        before = parts.get(key[0], (0.0, 0.0))
        parts[key[0]] = before[0] + (n + m) / 2 * (t - u) + still, before[1] + (t + u) / 2 * (n - m)
    return parts


def _percent(real: float, predicted: float) -> float:
    return 100 * (real - predicted) / real if real > 0 else np.nan


def _order(first: Floats, second: Floats) -> float:
    """Return Spearman's correlation; NaN where one of the two has no order."""
    from scipy.stats import rankdata

    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return np.nan
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


REFERENCE: Final = "yardstick"
"""In the configuration of a simulated run: the readings of its profile, as `reference` returns them."""
BIN_S: Final = 10.0
"""Seconds of a run whose readings count together, by their median."""


def reference(readings: Iterable[YardstickSample]) -> list[list[Any]]:
    """Return the median reading of each host by whole busy cores, rows of host, cores and seconds, for JSON.

    >>> times = {0.9: 2.0, 1.1: 9.0, 1.2: 4.0, 2.0: 7.0}
    >>> reference(YardstickSample(host="a", work_s=times[cores], busy_cores=cores) for cores in times)
    [['a', 1, 4.0], ['a', 2, 7.0]]
    """
    found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for each in readings:
        found[each.host, round(each.busy_cores)].append(each.work_s)
    return [[host, cores, float(np.median(seconds))] for (host, cores), seconds in sorted(found.items())]


def readings_of(record: RunRecord) -> tuple[Floats, list[YardstickSample]]:
    """Return the readings of a run: times (R,), and the readings."""
    rows = record.events[record.events["kind"] == Kind.YARDSTICK]
    columns = (rows[name].tolist() for name in ("machine", "value", "cpus"))
    found = [
        YardstickSample(host=record.cluster.machines[machine], work_s=work_s, busy_cores=cores)
        for machine, work_s, cores in zip(*columns, strict=True)
    ]
    return rows["time_s"], found


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """How many times slower than in the profile the machines were, in each `BIN_S` seconds of a run, (B,)."""

    slower: Floats

    @classmethod
    def of(cls, real: RunRecord, predicted: RunRecord) -> Self | None:
        """Return the drift between a run and what predicted it; None: one of the two has no readings."""
        then = _by_host(predicted)
        times, now = readings_of(real)
        known = [i for i, reading in enumerate(now) if reading.host in then]
        if not known:
            return None
        ratio = np.array([now[i].work_s / _nearest(then[now[i].host], now[i].busy_cores) for i in known])
        number = (times[known] // BIN_S).astype(int)
        seen = np.unique(number)
        medians = np.array([np.median(ratio[number == each]) for each in seen])
        last = np.searchsorted(seen, np.arange(seen[-1] + 1), side="right") - 1
        return cls(medians[np.maximum(last, 0)])

    def machine_s(self, time_s: Floats) -> Floats:
        """Return how long the machines of the profile would have taken for what happened up to some times."""
        edges = BIN_S * np.arange(len(self.slower) + 1)
        passed = np.concatenate([[0.0], np.cumsum(BIN_S / self.slower)])
        later_s = np.maximum(time_s - edges[-1], 0.0) / self.slower[-1]
        seconds: Floats = np.interp(time_s, edges, passed) + later_s
        return seconds


def without_drift(summary: Mapping[str, float]) -> str:
    """Return the drift and the gap without it, of a `labkit.results.fidelity_summary`, in words."""
    if not np.isfinite(summary["drift_percent"]):
        return "drift of the machines unknown: the run or the profile has no yardstick"
    return (
        f"drift of the machines {summary['drift_percent']:+.1f}%, gap without it "
        f"{summary['gap_without_drift_percent']:+.1f}%"
    )


def _by_host(predicted: RunRecord) -> Mapping[str, dict[float, float]]:
    """Return seconds by busy cores for each host: of the profile of a simulated run, or those of a run on machines."""
    rows = predicted.info.config.get(REFERENCE) or reference(readings_of(predicted)[1])
    found: defaultdict[str, dict[float, float]] = defaultdict(dict)
    for host, cores, work_s in rows:
        found[str(host)][float(cores)] = float(work_s)
    return found


def _nearest(seconds: Mapping[float, float], busy_cores: float) -> float:
    return seconds[min(seconds, key=lambda cores: abs(cores - busy_cores))]
