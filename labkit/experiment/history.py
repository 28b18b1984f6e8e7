"""Final plans of earlier runs, in a file beside the runs: where the next job of their kind starts."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Protocol, runtime_checkable

from annotated_types import Ge, Gt

from labkit.core.below import Below
from labkit.core.errors import InputError
from labkit.core.events import Events
from labkit.core.files import refuse_closed, refuse_unreadable
from labkit.schedulers.dlrover.history import History, Likeness
from labkit.schedulers.dlrover.plan import Plan

FILE: Final = "plans.jsonl"
"""Its name in the folder of runs."""


@runtime_checkable
class Remembers(Protocol):
    """A scheduler that starts jobs as earlier ones ended."""

    past: History
    """What is known when a run begins."""

    @property
    def history(self) -> History:
        """What is known now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """A line of the file: a job's kind, and the plan that it ended with."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore"}

    model: str
    batch: Annotated[float, Ge(0)]
    dataset: str
    n_workers: Annotated[int, Ge(1)]
    worker_cores: Annotated[float, Gt(0)]
    n_ps: Annotated[int, Ge(1)]
    ps_cores: Annotated[float, Gt(0)]
    ps_memory_gb: Annotated[float, Ge(0)] = 0.0
    at: str = ""

    @property
    def kind(self) -> Likeness:
        """Of which jobs it is."""
        return Likeness(self.model, self.batch, self.dataset)

    @property
    def plan(self) -> Plan:
        """What the last of them ended with."""
        return Plan(
            self.n_workers, self.worker_cores, self.n_ps, self.ps_cores, ps_memory_gb=self.ps_memory_gb
        )  # fmt: skip


def read(path: Path) -> History:
    """Return the final plans of a file, later lines before earlier ones; no file holds none.

    Raises
    ------
    InputError
        If a line is none of labkit's: which, and what is wrong with it.
    """
    from pydantic import TypeAdapter, ValidationError

    refuse_unreadable(path, expected="final plans, as labkit writes them")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return History()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"history {path}: {why}; expected final plans, a JSON object in each line.") from None
    known, form = History(), TypeAdapter(HistoryLine)
    for number, text in enumerate(lines, start=1):
        try:
            line = form.validate_json(text)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"])) or "the line"
            raise InputError(f"history {path}, line {number}: {where}: {fault['msg']}; remove the line.") from None
        known = known.noted({line.kind: line.plan})
    return known


def add(path: Path, kind: Likeness, plan: Plan) -> None:
    """Append the final plan of a job; several runs may write one file."""
    line = HistoryLine(
        **asdict(kind), n_workers=plan.n_workers, worker_cores=plan.worker_cores, n_ps=plan.n_ps,
        ps_cores=plan.ps_cores, ps_memory_gb=plan.ps_memory_gb, at=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with Below(path.parent.resolve()) as below, below.append(path.name) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(line)).encode() + b"\n")


def attach_history(path: Path | None, scheduler: object) -> Callable[[Events], None] | None:
    """Give a scheduler that remembers what a file holds, and return an observer that adds what it learns.

    None where there is no file, or the scheduler remembers nothing. Raise InputError if the file is damaged, or cannot
    be written.
    """
    if path is None or not isinstance(scheduler, Remembers):
        return None
    refuse_closed(path.parent)
    scheduler.past = read(path)
    known = dict(scheduler.past.alike)

    def look(_: Events) -> None:
        for kind, plan in scheduler.history.alike.items():
            if known.get(kind) != plan:
                known[kind] = plan
                add(path, kind, plan)

    return look
