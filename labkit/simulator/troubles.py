"""Troubles of single tasks, as a simulation has them: slow workers, slow parameter servers, hot ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError, TraceError, unknown
from labkit.core.events import Role
from labkit.core.faults import fault_report
from labkit.core.files import refuse_unreadable
from labkit.core.jobs import Jobs
from labkit.core.placement import Repair, Repairs
from labkit.core.resources import Floats, Ints
from labkit.core.running import TROUBLED, Running

TROUBLE: Final = np.dtype(
    [
        ("job", np.int32),
        ("role", np.int8),
        ("task", np.int32),
        ("after_s", np.float64),
        ("pace", np.float64),
        ("load", np.float64),
    ]
)
COLUMNS: Final = ("job", "role", "task", "after_s", "pace", "load")
ROLES: Final[Mapping[str, Role]] = {"worker": Role.WORKER, "ps": Role.PS}
KINDS: Final = ("hot_ps", "slow_ps", "slow_worker")
SLOW: Final = 0.25
"""Pace of a slow task: a quarter of its cores, as in section 6.2 of DLRover."""
HOT: Final = 2.0
"""Updates of a hot server against the mean."""
BEGINS_S: Final = (60.0, 600.0)
"""Seconds after its first start in which a drawn trouble of a job begins."""


@dataclass(frozen=True, eq=False)
class Troubles:
    """What goes wrong with single tasks of jobs, and when.

    From `after_s` seconds after the first start of its job a task works at `pace` (0.25: as if it had a quarter of its
    cores), and a parameter server has `load` times the mean share of updates. A trouble stays with the number of its
    task, also where the job is given other tasks, until the task is replaced (pace) or the blocks of the servers are
    spread anew (load). A job that has lost all its tasks starts with new processes: what was slow is no longer.

    Attributes
    ----------
    rows : array
        Of dtype `TROUBLE`, one per trouble; `Troubles.of` makes it.
    description : str
        In words, for headers.

    Raises
    ------
    InputError
        If a number makes no sense; `refuse_foreign` looks at jobs and tasks.
    """

    rows: NDArray[Any]
    description: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if wrong := _wrong(row):
                raise InputError(f"a trouble of job {row['job']}, task {row['task']}: {wrong}.")

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, float, float, float]], *, description: str = "") -> Self:
        """Return troubles, each a job, a role, a task, after_s, pace and load.

        >>> len(Troubles.of([(0, Role.PS, 1, 60.0, 0.25, 1.0)]))
        1
        """
        table = np.array([tuple(row) for row in rows], TROUBLE)
        return cls(table, description or f"{len(table)} given")

    @classmethod
    def drawn(
        cls, jobs: Jobs, *, rng: np.random.Generator, hot_ps: float = 0.13, slow_ps: float = 0.06,
        slow_worker: float = 0.0,
    ) -> Self:  # fmt: skip
        """Return one trouble for about these parts of the jobs, each of another job.

        By default the parts that DLRover found in production (section 6.4). A hot server has twice the mean load, what
        is slow works at a quarter of its pace, from a moment on between one and ten minutes after the job's first
        start. Only tasks that the job asked for are drawn, and hot ones of two servers or more.
        """
        parts = {"hot_ps": hot_ps, "slow_ps": slow_ps, "slow_worker": slow_worker}
        _refuse_odd(parts)
        chance = rng.random(len(jobs))
        task = rng.random(len(jobs))
        begins = rng.uniform(*BEGINS_S, len(jobs))
        rows, before = [], 0.0
        for kind, part in parts.items():
            role = Role.WORKER if kind == "slow_worker" else Role.PS
            n = jobs.n_workers if role == Role.WORKER else jobs.n_ps
            able = n >= (2 if kind == "hot_ps" else 1)
            for job in np.flatnonzero((before <= chance) & (chance < before + part) & able).tolist():
                hot = kind == "hot_ps"
                rows.append(
                    (job, int(role), int(task[job] * n[job]), float(begins[job]), 1.0 if hot else SLOW,
                     HOT if hot else 1.0)
                )  # fmt: skip
            before += part
        summary = ", ".join(f"{kind}={part:g}" for kind, part in parts.items() if part)
        return cls.of(rows, description=f"{summary or 'none'}: {len(rows)} of {len(jobs)} jobs")

    @classmethod
    def read(cls, path: str | Path, jobs: Jobs) -> Self:
        """Return the troubles of a CSV file with the columns job, role, task, after_s, pace, load.

        `job` is the id of the trace, `role` worker or ps; pace and load may be left out or blank: 1.

        Raises
        ------
        TraceError
            All faults at once, each with its line.
        """
        path = Path(path)
        refuse_unreadable(path, expected="a CSV file of troubles")
        try:
            with path.open(newline="", encoding="utf-8") as file:
                lines = csv.DictReader(file)
                names = lines.fieldnames or ()
                _refuse_columns(path, names)
                found = list(lines)
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceError(f"{path}: not a CSV file ({error}); expected columns {', '.join(COLUMNS)}.") from None
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such file of troubles; check the path.") from None
        number = {str(name): i for i, name in enumerate(jobs.id)}
        rows, faults = [], list[str]()
        for n, line in enumerate(found, start=2):
            try:
                rows.append(_row(line, number))
            except (InputError, ValueError) as error:
                faults.append(f"line {n}: {str(error).removesuffix('.')}")
        if faults:
            raise TraceError(fault_report(str(path), faults))
        return cls.of(rows, description=f"{len(rows)} of {path.name}")

    def __len__(self) -> int:
        return len(self.rows)


def troubles(options: Any, jobs: Jobs, *, rng: np.random.Generator) -> Troubles | None:
    """Return the troubles that a user names: a file, words such as `hot_ps=0.13,slow_ps=0.06`, or none.

    Raise InputError if they are neither; as `Troubles.read`; or a job or a task of them is not there.
    """
    if options is None or (isinstance(options, str) and options.strip() in ("", "none")):
        return None
    if isinstance(options, str | Path):
        of_words = isinstance(options, str) and "=" in options and not Path(options).exists()
        options = Troubles.drawn(jobs, rng=rng, **_parts(str(options))) if of_words else Troubles.read(options, jobs)
    if not isinstance(options, Troubles):
        raise InputError(
            f"troubles is {options!r:.60}; expected Troubles, a CSV file, or parts of the jobs such as 'hot_ps=0.13'."
        )
    refuse_foreign(options, jobs)
    return options


def refuse_foreign(troubles: Troubles, jobs: Jobs) -> None:
    """Raise if a trouble is of a job or of a task that can never be there.

    Raise InputError, which names the trouble.
    """
    for row in troubles.rows:
        job, task = int(row["job"]), int(row["task"])
        if not 0 <= job < len(jobs):
            raise InputError(f"a trouble is of job {job}; expected a job from 0 to {len(jobs) - 1}.")
        role = Role(row["role"])
        most = int((jobs.max_workers if role == Role.WORKER else jobs.max_ps)[job])
        if task >= most:
            raise InputError(
                f"a trouble is of {role.name.lower()} {task} of job {jobs.id[job]}, which never has more than {most} "
                "of them; they are numbered from 0."
            )


def _wrong(row: Any) -> str:
    """Return the fault of the numbers of a trouble; empty: none."""
    if row["role"] not in (Role.WORKER, Role.PS) or row["task"] < 0:
        return f"role is {row['role']} and task {row['task']}; expected role 0 (worker) or 1 (PS) and a task >= 0"
    if not 0 <= row["after_s"] < math.inf:
        return f"after_s is {row['after_s']:g}; expected seconds >= 0"
    if not 0 < row["pace"] <= 1:
        return f"pace is {row['pace']:g}; expected a part of its pace above 0, at most 1"
    if not 1 <= row["load"] < math.inf:
        return f"load is {row['load']:g}; expected times the mean share of updates, >= 1"
    if row["load"] > 1 and row["role"] != Role.PS:
        return f"load is {row['load']:g}; only parameter servers have a load"
    return ""


def _row(line: Mapping[str, Any], number: Mapping[str, int]) -> tuple[int, int, int, float, float, float]:
    """Return a trouble from the texts of a line."""
    if None in line or any(value is None for value in line.values()):
        raise InputError(f"expected {len(COLUMNS)} values or as many as the first line has")
    texts = {name: str(value).strip() for name, value in line.items()}
    if texts["job"] not in number:
        raise unknown("job", texts["job"], number)
    if texts["role"] not in ROLES:
        raise unknown("role", texts["role"], ROLES)
    after_s, pace, load = (_number(texts.get(name, ""), name) for name in ("after_s", "pace", "load"))
    task = _number(texts["task"], "task")
    if not task.is_integer():
        raise InputError(f"task is {texts['task']}; expected a whole number >= 0")
    row = (number[texts["job"]], int(ROLES[texts["role"]]), int(task), after_s, pace, load)
    if wrong := _wrong(np.array([row], TROUBLE)[0]):
        raise InputError(wrong)
    return row


def _number(text: str, name: str) -> float:
    if not text and name in ("pace", "load"):
        return 1.0
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or abs(number) > 1e9:
        raise InputError(f"{name} is '{text:.20}'; expected a number")
    return number


def _refuse_columns(path: Path, names: Iterable[str]) -> None:
    for name in names:
        if name not in COLUMNS:
            raise TraceError(f"{path}: {unknown('column', name, COLUMNS)}")
    for name in COLUMNS[:4]:
        if name not in names:
            raise TraceError(f"{path}: column {name} is missing; expected {', '.join(COLUMNS)}.")


def _parts(words: str) -> dict[str, float]:
    """Return the parts of the jobs that words name; a sweep divides its values by commas, and words by "+".

    >>> _parts("hot_ps=0.13+slow_ps=0.06")
    {'hot_ps': 0.13, 'slow_ps': 0.06, 'slow_worker': 0.0}
    """
    parts = dict.fromkeys(KINDS, 0.0)
    for word in words.replace("+", ",").split(","):
        name, _, value = word.partition("=")
        if name.strip() not in parts:
            raise unknown("trouble", name.strip(), KINDS)
        try:
            parts[name.strip()] = float(value)
        except ValueError:
            raise InputError(
                f"troubles '{words:.60}': {name.strip()} is '{value.strip():.20}'; expected a part of the jobs from 0 "
                "to 1, e.g. hot_ps=0.13."
            ) from None
    return parts


def _refuse_odd(parts: Mapping[str, float]) -> None:
    for name, part in parts.items():
        if not 0 <= part <= 1:
            raise InputError(f"{name} is {part:g}; expected a part of the jobs from 0 to 1.")
    if sum(parts.values()) > 1 + 1e-9:
        raise InputError(f"the parts of jobs in trouble are {sum(parts.values()):g} in all; expected at most 1.")


class ActiveTroubles:
    """The troubles of a run: T of them.

    `troubles`: all that will ever come; `jobs`: of the run.
    """

    def __init__(self, troubles: Troubles, jobs: Jobs) -> None:
        refuse_foreign(troubles, jobs)
        self._rows: NDArray[Any] = troubles.rows.copy()
        self._due_s: Floats = np.full(len(self._rows), np.inf)
        self._acts = np.zeros(len(self._rows), np.bool_)
        self._of: dict[int, list[int]] = {}
        for i, job in enumerate(self._rows["job"].tolist()):
            self._of.setdefault(job, []).append(i)

    @property
    def next_s(self) -> float:
        """When the next trouble begins; inf: none is known to begin."""
        return float(self._due_s.min(initial=np.inf))

    def starts(self, job: int, at_s: float) -> None:
        """Count the seconds of a job's troubles from its first start."""
        for i in self._of.get(job, ()):
            self._due_s[i] = at_s + self._rows["after_s"][i]

    def begin(self, now_s: float) -> Ints:
        """Let what is due begin, and return the jobs that have trouble with it."""
        due = self._due_s <= now_s
        self._acts |= due
        self._due_s[due] = np.inf
        return np.unique(self._rows["job"][due]).astype(np.int32)

    def repaired(self, repairs: Repairs) -> None:
        """Let repairs end what they mend."""
        for job, role, task, kind in repairs.tolist():
            for i in self._of.get(job, ()):
                row = self._rows[i]
                if not self._acts[i]:
                    continue
                if kind == Repair.BALANCE and row["role"] == Role.PS:
                    row["load"] = 1.0
                elif kind == Repair.REPLACE and (row["role"], row["task"]) == (role, task):
                    row["pace"] = 1.0

    def renewed(self, job: int) -> None:
        """Let what is slow of a job end: all of its processes are new."""
        for i in self._of.get(job, ()):
            if self._acts[i]:
                self._rows["pace"][i] = 1.0

    def with_troubles(self, running: Running) -> Running:
        """Return the tasks of running jobs with the troubles that they have now."""
        found: dict[tuple[int, int, int], tuple[float, float]] = {}
        for at, job in enumerate(running.job.tolist() if self._acts.any() else ()):
            for i in self._of.get(job, ()):
                _, role, task, _, pace, load = self._rows[i].tolist()
                if self._acts[i] and (pace < 1 or load > 1):
                    before = found.get((at, role, task), (1.0, 1.0))
                    found[at, role, task] = before[0] * pace, max(before[1], load)
        if not found:
            return running
        return replace(running, troubles=np.array([(*task, *how) for task, how in found.items()], TROUBLED))
