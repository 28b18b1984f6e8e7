"""What each of several runs did with one job, or at one moment, and why: from their events, rules and reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from labkit.core.device_types import meets
from labkit.core.errors import InputError, unknown
from labkit.core.events import Kind, Role
from labkit.core.hosting import FEW, HostRules
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.text import amount, human_s
from labkit.results.calibration import FOLLOWS_RECORD
from labkit.results.comparison import labels
from labkit.results.intervals import Holdings, holdings
from labkit.results.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

CAUSES: Final = {
    "begin": "before the moment that it names",
    "after": "for jobs that it follows",
    "array": "for its turn in its array",
    "room": "for room on its machines",
    "shape": "for room on as few machines as its gang needs",
    "order": "behind other jobs although its gang had room",
}
"""Why a job waits at a moment, and how a sentence about all of its waits says so."""

MOST_NAMED: Final = 4
"""Machines and jobs that a sentence names; of more, it says how many."""


class Wait(NamedTuple):
    """Why a job waits at a moment: one of `CAUSES`, and a sentence."""

    cause: str
    text: str


class ExplainedRun:
    """A run as its events tell it: who held what, what was free, and why a job waited at any moment.

    `record`: the run; `ruled`: the same jobs with their own rules, which a run of the recorded schedule does not have.
    """

    def __init__(self, record: RunRecord, *, ruled: Jobs | None = None) -> None:
        self.record, self.jobs, self.cluster = record, record.jobs if ruled is None else ruled, record.cluster
        self.holdings: Holdings = holdings(record.events, record.jobs)
        table = record.table.set_index("job").reindex(range(len(record.jobs)))
        self.start_s, self.done_s = (table[name].to_numpy(np.float64) for name in ("first_start_s", "completion_s"))
        self._arrival_s = record.jobs.arrival_s
        self._rules = HostRules.of(self.jobs, record.cluster)
        self._number = {str(name): i for i, name in enumerate(record.jobs.id)}
        self._amounts: Floats = np.stack([self.holdings.gpus, self.holdings.cpus, self.holdings.memory_gb], axis=1)

    def runs(self, at_s: float) -> Ints:
        """Return the jobs that hold tasks from a moment on, (J,)."""
        return np.unique(self.holdings.job[(self.holdings.start_s <= at_s) & (self.holdings.end_s > at_s)])

    def waits(self, at_s: float) -> Ints:
        """Return the jobs that are there at a moment, hold nothing and are not done, in order of arrival, (J,)."""
        gone = self.record.events[self.record.events["kind"] == Kind.DROPPED]
        over_s = self.done_s.copy()
        over_s[gone["job"]] = gone["time_s"]
        there = (self._arrival_s <= at_s) & ~(over_s <= at_s)
        there[self.runs(at_s)] = False
        return np.flatnonzero(there).astype(np.int32)

    def free(self, at_s: float) -> Floats:
        """Return the free capacity from a moment on, (G, R); none on machines that are gone."""
        now = (self.holdings.start_s <= at_s) & (self.holdings.end_s > at_s)
        free = self.cluster.capacity.astype(np.float64).copy()
        np.subtract.at(free, self.holdings.group[now], self._amounts[now])
        free[~self._up(at_s)] = 0.0
        return free

    def _up(self, at_s: float) -> Bools:
        up = np.ones(self.cluster.n_machines, np.bool_)
        events = self.record.events
        for row in events[np.isin(events["kind"], (Kind.LEFT, Kind.JOINED)) & (events["time_s"] <= at_s)]:
            up[row["machine"]] = row["kind"] == Kind.JOINED
        found: Bools = up[self.cluster.group_machine]
        return found

    def why(self, job: int, at_s: float, *, free: Floats | None = None) -> Wait:
        """Return why a job that waits does so at a moment; `free` if that is known, (G, R)."""
        held_back = self._own_rule(job, at_s)
        if held_back is not None:
            return held_back
        free = self.free(at_s) if free is None else free
        open_ = self._groups(job)
        demand = self.jobs.worker_demand[job]
        with np.errstate(divide="ignore", invalid="ignore"):
            by_group = np.floor(np.nanmin(np.where(demand > 0, free / demand, np.nan), axis=1) + 1e-9)
        by_group = np.where(open_, by_group, 0.0).clip(min=0.0)
        n, asked = int(self.jobs.n_workers[job]), f"{amount(float(self.jobs.gpus[job]))} GPUs"
        if by_group.sum() < n:
            gpus = free[open_, GPUS].clip(min=0.0).sum()
            short = "" if gpus < self.jobs.gpus[job] else ", but cores or memory are short"
            return Wait("room", f"needs {asked}, {amount(float(gpus))} free on its machines{short}")
        if not self._has_shape(job, by_group, n):
            return Wait("shape", f"needs {asked} on {_machines(self._spread(job))} with room")
        before = self._arrival_s < self._arrival_s[job]
        before[self.runs(at_s)] = False
        n_before = int((before & ~(self.done_s <= at_s)).sum())
        return Wait("order", f"its {asked} are free; earlier jobs that wait, too: {n_before:,}")

    def _own_rule(self, job: int, at_s: float) -> Wait | None:
        """Return which rule of its own a job waits for; None: none."""
        jobs = self.jobs
        if jobs.begin_s[job] > at_s:
            return Wait("begin", f"does not begin before {human_s(float(jobs.begin_s[job]))}")
        parents = [name for name in str(jobs.after[job]).split("+") if name in self._number]
        open_ = [name for name in parents if not self.done_s[self._number[name]] <= at_s]
        if open_:
            return Wait("after", f"follows job {_some(open_)}")
        if jobs.at_most[job] > 0:
            running = int((jobs.array[self.runs(at_s)] == jobs.array[job]).sum())
            if running >= jobs.at_most[job]:
                return Wait("array", f"{running} tasks of its array run, of at most {int(jobs.at_most[job])}")
        return None

    def _groups(self, job: int) -> Bools:
        """Return the device groups on which a job may have workers, (G,)."""
        open_ = np.ones(self.cluster.n_groups, np.bool_)
        if self._rules is not None:
            open_ = self._rules.open[self._rules.row[job]].copy()
        if demanded := str(self.jobs.device_type[job]):
            fits = np.array([meets(demanded, kind) for kind in self.cluster.device_types], np.bool_)
            open_ &= fits[self.cluster.group_type]
        return open_

    def _spread(self, job: int) -> int:
        return 0 if self._rules is None else int(self._rules.spread[job])

    def _has_shape(self, job: int, by_group: Floats, n: int) -> bool:
        """Return whether a gang has room on as many machines as it needs, of the room in each group, (G,)."""
        k = self._spread(job)
        room = np.bincount(self.cluster.group_machine, by_group, self.cluster.n_machines)
        if k == FEW:
            largest = self.cluster.capacity[:, GPUS].max(initial=1.0)
            k = max(1, int(np.ceil(self.jobs.gpus[job] / max(largest, 1.0))))
            return bool(np.sort(room)[-k:].sum() >= n)
        return k <= 0 or int((room >= -(-n // k)).sum()) >= k

    def machines(self, job: int, at_s: float) -> list[str]:
        """Return the machines on which a job holds tasks from a moment on."""
        mine = (self.holdings.job == job) & (self.holdings.start_s <= at_s) & (self.holdings.end_s > at_s)
        found = np.unique(self.cluster.group_machine[self.holdings.group[mine]])
        return [self.cluster.machines[m] for m in found.tolist()]

    def reason(self, job: int, at_s: float) -> str:
        """Return the scheduler's last reason about a job, up to a moment; "": none."""
        said = self.record.decisions
        said = said[(said["job"] == str(self.jobs.id[job])) & (said["time_s"] <= at_s)]
        return str(said["reason"].iloc[-1]) if len(said) else ""

    def waited_s(self, job: int) -> dict[str, float]:
        """Return for how many seconds a job waited, by cause."""
        spent: dict[str, float] = {}
        for from_s, to_s in self._waits(job):
            at = np.concatenate([self.holdings.start_s, self.holdings.end_s, [self.jobs.begin_s[job]]])
            moments = np.unique(at[(at > from_s) & (at < to_s)])
            edges = np.concatenate([[from_s], moments, [to_s]])
            for at_s, free in zip(edges[:-1].tolist(), self._free_over(edges[:-1]), strict=True):
                cause = self.why(job, at_s, free=free).cause
                spent[cause] = spent.get(cause, 0.0) + float(edges[np.searchsorted(edges, at_s, "right")] - at_s)
        return spent

    def _waits(self, job: int) -> list[tuple[float, float]]:
        """Return the spans in which a job waits, in order."""
        mine = self.holdings.job == job
        spans = sorted(set(zip(self.holdings.start_s[mine].tolist(), self.holdings.end_s[mine].tolist(), strict=True)))
        last_s = self.done_s[job] if np.isfinite(self.done_s[job]) else float(self.record.events["time_s"].max())
        edges = [float(self._arrival_s[job]), *(at for span in spans for at in span), float(last_s)]
        return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]

    def _free_over(self, moments: Floats) -> Iterator[Floats]:
        """Yield what is free from each of some moments on, in order of time, (G, R)."""
        free = self.free(float(moments[0]))
        yield free
        inside = (np.r_[self.holdings.start_s, self.holdings.end_s] > moments[0]) & (
            np.r_[self.holdings.start_s, self.holdings.end_s] <= moments[-1]
        )
        at = np.r_[self.holdings.start_s, self.holdings.end_s][inside]
        group = np.r_[self.holdings.group, self.holdings.group][inside]
        change = np.concatenate([-self._amounts, self._amounts])[inside]
        order = np.argsort(at, kind="stable")
        ends = np.searchsorted(at[order], moments[1:], side="right")
        for first, last in zip(np.r_[0, ends[:-1]].tolist() if len(ends) else [], ends.tolist(), strict=True):
            np.add.at(free, group[order[first:last]], change[order[first:last]])
            yield free


def facts_of(records: Sequence[RunRecord]) -> dict[str, ExplainedRun]:
    """Return the facts of some runs of one trace by label; the recorded one has the rules of jobs that others have."""
    ruled = next((record.jobs for record in records if not record.info.config.get(FOLLOWS_RECORD)), None)
    found = {}
    for name, record in zip(labels(records), records, strict=True):
        same = ruled is not None and record.info.config.get(FOLLOWS_RECORD) and np.array_equal(ruled.id, record.jobs.id)
        found[name] = ExplainedRun(record, ruled=ruled if same else None)
    return found


def of_job(records: Sequence[RunRecord], job: str) -> pd.DataFrame:
    """Return the treatment of a job in each run and the reason, a row each.

    Columns: scheduler; waited_s (all of its waits), start_s, end_s (NaN: not in this run); machines (of its first
    start), why (a sentence: what it waited for and how long, what ended as it started, who passed it).

    Raises
    ------
    InputError
        If there is no such job.
    """
    import pandas as pd

    rows = []
    for name, facts in facts_of(records).items():
        i = number_of(facts.jobs, job)
        spent, at_s = facts.waited_s(i), float(facts.start_s[i])
        rows.append({
            "scheduler": name, "waited_s": sum(spent.values()), "start_s": at_s, "end_s": float(facts.done_s[i]),
            "machines": _some(facts.machines(i, at_s)), "why": _of_job(facts, i, spent),
        })  # fmt: skip
    return pd.DataFrame(rows)


def of_moment(records: Sequence[RunRecord], at_s: float) -> pd.DataFrame:
    """Return how each run stood at a moment, a row each.

    Columns: scheduler; running, waiting (jobs), gpus (in use), starts (jobs that start at that moment, or at the next
    one at which any does), next_s (that moment; NaN: none), first (the job that waits longest), why (it waits).
    """
    import pandas as pd

    rows = []
    for name, facts in facts_of(records).items():
        running, waiting = facts.runs(at_s), facts.waits(at_s)
        now = (facts.holdings.start_s <= at_s) & (facts.holdings.end_s > at_s)
        later = facts.start_s[facts.start_s >= at_s]
        next_s = float(later.min()) if len(later) else np.nan
        starts = facts.jobs.id[facts.start_s == next_s].astype(str).tolist()
        first = int(waiting[0]) if len(waiting) else -1
        rows.append({
            "scheduler": name, "running": len(running), "waiting": len(waiting),
            "gpus": float(facts.holdings.gpus[now].sum()), "next_s": next_s, "starts": _some(starts),
            "first": str(facts.jobs.id[first]) if first >= 0 else "",
            "why": _waits_because(facts, first, at_s) if first >= 0 else "",
        })  # fmt: skip
    return pd.DataFrame(rows)


def jobs_of_moment(records: Sequence[RunRecord], at_s: float) -> pd.DataFrame:
    """Return each job that some run has not done at a moment: job, gpus, arrival_s, differs, and a column for each run.

    A run's column says "runs on ..." or "waits: ..." with the reason, "done" or "given up"; jobs about which the runs
    differ come first.
    """
    import pandas as pd

    facts = facts_of(records)
    ids = dict.fromkeys(
        str(one.jobs.id[i]) for one in facts.values() for i in np.union1d(one.runs(at_s), one.waits(at_s)).tolist()
    )
    rows = []
    jobs = records[0].jobs
    for job in ids:
        cells = [_state(one, job, at_s) for one in facts.values()]
        i = number_of(jobs, job)
        kinds = {cell.partition(" ")[0] for cell in cells}
        rows.append({"job": job, "gpus": float(jobs.gpus[i]), "arrival_s": float(jobs.arrival_s[i]),
                     "differs": len(kinds) > 1, **dict(zip(facts, cells, strict=True))})  # fmt: skip
    frame = pd.DataFrame(rows, columns=["job", "gpus", "arrival_s", "differs", *facts])
    return frame.sort_values(["differs", "arrival_s"], ascending=[False, True], kind="stable").reset_index(drop=True)


def _machines(k: int) -> str:
    """Return how many machines a gang needs, in words.

    >>> _machines(1), _machines(2), _machines(FEW)
    ('one machine', '2 machines', 'as few machines as hold it')
    """
    return "one machine" if k == 1 else f"{k} machines" if k > 1 else "as few machines as hold it"


def number_of(jobs: Jobs, job: str) -> int:
    """Return the number of a job in its run; InputError if there is no such job, with the nearest name."""
    found = np.flatnonzero(jobs.id.astype(str) == job)
    if len(found):
        return int(found[0])
    near = [str(name) for name in jobs.id if re.split(r"[_+#/]", str(name))[0] == job]
    if near:
        raise InputError(f"{jobs.name}: job {job} has {len(near):,} parts; name one of them: {_some(near)}.")
    raise unknown(f"job of {jobs.name}", job, [str(name) for name in jobs.id])


def _state(facts: ExplainedRun, job: str, at_s: float) -> str:
    i = number_of(facts.jobs, job)
    if i in facts.runs(at_s):
        return f"runs on {_some(facts.machines(i, at_s))}"
    return f"waits: {_waits_because(facts, i, at_s)}" if i in facts.waits(at_s) else "done"


def _waits_because(facts: ExplainedRun, job: int, at_s: float) -> str:
    said = facts.reason(job, at_s)
    return facts.why(job, at_s).text + (f" ({said})" if said else "")


def _of_job(facts: ExplainedRun, job: int, spent: dict[str, float]) -> str:
    """Return why a job started when it did, in a sentence."""
    start_s, arrival_s = facts.start_s, facts.jobs.arrival_s
    if np.isnan(start_s[job]):
        return "never started in this run"
    parts = [f"waited {human_s(spent[cause])} {what}" for cause, what in CAUSES.items() if spent.get(cause)]
    parts = parts or ["started at once"]
    if spent.get("room") or spent.get("shape"):
        parts[0] += f" (at arrival: {facts.why(job, float(arrival_s[job])).text})"
    mine = (facts.holdings.job == job) & (facts.holdings.start_s == start_s[job]) & (facts.holdings.role == Role.WORKER)
    here = np.isin(facts.holdings.group, facts.holdings.group[mine]) & (facts.holdings.end_s == start_s[job])
    if len(freed := np.unique(facts.holdings.job[here & (facts.holdings.job != job)])):
        parts.append(f"started as {_some(facts.jobs.id[freed].astype(str).tolist())} made room")
    during = (start_s > arrival_s[job]) & (start_s < start_s[job])
    if passed := int((during & (arrival_s > arrival_s[job])).sum()):
        parts.append(f"later jobs that started before it: {passed:,}")
    lost = int(facts.record.table.set_index("job")["n_preemptions"].get(job, 0))
    parts += [f"preemptions: {lost:,}"] if lost else []
    return "; ".join([*parts, *filter(None, [facts.reason(job, np.inf)])])


def _some(names: Sequence[str]) -> str:
    """Return a few names, and how many more there are.

    >>> _some(["a", "b"]), _some(list("abcdef"))
    ('a, b', 'a, b, c, d and 2 more')
    """
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
