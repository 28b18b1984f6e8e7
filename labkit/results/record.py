"""The record of a run: its options (one row), the jobs, the cluster, and its events; decisions and task use in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Cause, Events, Kind, Quantity, Role, names, positions, to_frame
from labkit.core.jobs import Jobs
from labkit.core.resources import Ints

if TYPE_CHECKING:
    import pandas as pd

    from labkit.plots.of_runs import RunPlots


RUN_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
"""Ids of runs name folders."""


class RunState(StrEnum):
    """How far a run has come."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    TAKEN_OVER = "taken over"


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The row of a run in the table of runs: everything that is needed to do it again.

    Attributes
    ----------
    run : str
        Its id, also the name of its folder: letters, digits, '.', '_' and '-'.
    scheduler, backend, cluster, trace : str
        What was simulated or deployed, by name.
    seed : int
        Of the run's generator.
    config : mapping
        All other options; anything that JSON can hold.
    commit : str
        Of labkit's repository, with "+" behind it where files had been changed.
    versions : mapping
        Package -> version.
    host, command, started : str
        Where it ran, what was typed, and when (ISO 8601).
    state : RunState
        How far it has come.
    wall_s : float
        Seconds that it took on the wall's clock; NaN: not known.
    dropped : mapping
        Jobs that were given up, by id, and why; of runs on machines.
    """

    run: str
    scheduler: str
    backend: str = "simulator"
    cluster: str = ""
    trace: str = ""
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    command: str = ""
    started: str = ""
    state: RunState = RunState.DONE
    wall_s: float = float("nan")
    dropped: Mapping[str, str] = field(default_factory=dict)


TAKEN_BY: Final = "taken_over_by"
"""In the configuration of a run that another process drives from another copy of its folder: which one."""
COLD_STARTS: Final = "cold_starts"
"""In the configuration of a run on machines: processes of jobs that were started on a host without a fork server."""
LOAD: Final = "load"
"""In the configuration of a run whose jobs arrive faster or slower than in the trace: how many times as fast."""


def arrivals(load: float) -> str:
    """Return how fast jobs arrive, to stand behind the name of a trace; nothing where it is as in the trace.

    >>> arrivals(4.0), arrivals(1)
    (', arrivals 4 times as fast', '')
    """
    return f", arrivals {load:g} times as fast" if load != 1 else ""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run as it can be plotted, compared and replayed; simulated and deployed runs look the same."""

    info: RunInfo
    jobs: Jobs
    cluster: Cluster
    events: Events
    reasons: Sequence[str] = ()
    """Why decisions changed jobs: the texts that EXPLAINED events name by number; `decisions` has both together."""

    def __repr__(self) -> str:
        return f"<run of {self.info.scheduler} on {self.info.trace}, {self.info.cluster}: {self.info.state}>"

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per job: `labkit.results.metrics.job_table`."""
        from labkit.results.metrics import job_table

        return job_table(self.events, self.jobs)

    @cached_property
    def summary(self) -> dict[str, float]:
        """The run in a dozen numbers: `labkit.results.metrics.summary`."""
        from labkit.results.metrics import summary

        return summary(self.events, self.jobs, self.cluster)

    @cached_property
    def measured(self) -> pd.DataFrame:
        """What was measured of tasks, if the run asked for it: `labkit.results.record.measured`."""
        return measured(self.events, self.jobs)

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Why jobs and their tasks failed or lost what they held: `labkit.results.record.failures`."""
        return failures(self.events, self.jobs, self.cluster)

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """Why decisions changed jobs, as far as schedulers told: `labkit.results.record.decisions`."""
        return decisions(self.events, self.jobs, self.reasons)

    @property
    def plot(self) -> RunPlots:
        """Figures of this run: `run.plot.gantt()`."""
        from labkit.plots.of_runs import RunPlots

        return RunPlots([self])

    @property
    def arrivals(self) -> str:
        """How fast jobs arrive, where it is not as in the trace: to stand behind the name of the trace."""
        return arrivals(float(self.info.config.get(LOAD, 1.0)))

    @property
    def n_done(self) -> int:
        """How many jobs completed."""
        return int(self.summary["n_jobs"] - self.summary["n_unfinished"])

    @property
    def complete(self) -> bool:
        """Whether every job of the trace completed: otherwise means are over those that were quick enough."""
        return self.n_done == len(self.jobs)

    def frame(self) -> pd.DataFrame:
        """Return the events with a column `run` in front, ready to be laid over those of other runs."""
        frame = to_frame(self.events)
        frame.insert(0, "run", self.info.run)
        return frame


def decisions(rows: Events, jobs: Jobs, reasons: Sequence[str]) -> pd.DataFrame:
    """Return why decisions changed jobs, a row each: time_s, job, reason, predicted_steps_per_s (NaN: not predicted).

    `job` is the id of the trace. Schedulers that tell no reasons have no rows.

    Raises
    ------
    InputError
        If an event names a text that is not among the reasons.
    """
    import pandas as pd

    rows = rows[rows["kind"] == Kind.EXPLAINED]
    numbers = rows["value"].astype(np.int64)
    if len(unknown := numbers[(numbers < 0) | (numbers >= len(reasons))]):
        raise InputError(
            f"reason {unknown[0]} is named by an event, and the run has {len(reasons)} of them; its list of reasons "
            "does not belong to its events."
        )
    texts = np.array([*reasons, ""], dtype=object)
    return pd.DataFrame(
        {
            "time_s": rows["time_s"], "job": jobs.id[rows["job"]].astype(str), "reason": texts[numbers].astype(str),
            "predicted_steps_per_s": rows["speed"],
        }
    )  # fmt: skip


FAILURES: Final = (Kind.TASK_FAILED, Kind.FAILED, Kind.DROPPED, Kind.PREEMPTED)
"""After which a job holds a task less, or none, although it is not done."""


def measured(rows: Events, jobs: Jobs) -> pd.DataFrame:
    """Return the measurements, a row each: time_s, job, role, task, quantity, value.

    `job` is the id of the trace; `task` is -1 where a row tells of all tasks of a role: what of them, `Quantity` says.
    """
    import pandas as pd

    rows = rows[rows["kind"] == Kind.MEASURED]
    return pd.DataFrame(
        {
            "time_s": rows["time_s"],
            "job": _ids(rows["job"], jobs),
            "role": pd.Categorical.from_codes(rows["role"], pd.Index(names(Role))),
            "task": rows["task"],
            "quantity": pd.Categorical.from_codes(positions(rows["quantity"], Quantity), pd.Index(names(Quantity))),
            "value": rows["value"],
        }
    )


def failures(rows: Events, jobs: Jobs, cluster: Cluster) -> pd.DataFrame:
    """Return why tasks were lost, a row each: time_s, job, kind, role, task, machine, cause, detail.

    `kind` is task_failed, or failed, dropped or preempted for the whole job; then there is no role and `task` is -1.
    `machine` is empty where none has a part in it or it is not known; `cause` is unknown in runs of an older labkit.
    `detail` is the exit status of a task, as a sentence.
    """
    import pandas as pd

    rows = rows[np.isin(rows["kind"], FAILURES)]
    machines = np.array([*cluster.machines, ""], dtype=object)
    causes = np.where(rows["cause"] < 0, int(Cause.UNKNOWN), rows["cause"])
    return pd.DataFrame(
        {
            "time_s": rows["time_s"],
            "job": _ids(rows["job"], jobs),
            "kind": [Kind(kind).name.lower() for kind in rows["kind"].tolist()],
            "role": pd.Categorical.from_codes(rows["role"], pd.Index(names(Role))),
            "task": rows["task"],
            "machine": machines[rows["machine"]].astype(str),
            "cause": pd.Categorical.from_codes(positions(causes, Cause), pd.Index(names(Cause))),
            "detail": [_detail(int(row["kind"]), float(row["value"])) for row in rows],
        }
    )


def _ids(numbers: Ints, jobs: Jobs) -> NDArray[np.str_]:
    return jobs.id[numbers].astype(str)


def _detail(kind: int, status: float) -> str:
    """Return how a task ended, in words.

    >>> _detail(Kind.TASK_FAILED, -9.0), _detail(Kind.TASK_FAILED, 1.0), _detail(Kind.FAILED, 20.0)
    ('ended by signal 9', 'exit code 1', '')
    """
    if kind != Kind.TASK_FAILED or np.isnan(status):
        return ""
    return f"ended by signal {-status:.0f}" if status < 0 else f"exit code {status:.0f}"
