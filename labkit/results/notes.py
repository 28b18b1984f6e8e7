"""What a reader of a table of runs should know beside it: what was asked and not got, what was not looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.core.events import Cause, Doubt, Events, Kind
from labkit.core.text import time_unit
from labkit.results.comparison import labels
from labkit.results.record import RunRecord

TYPES_DIFFER = "times_slower_on_slowest_type"
"""In the configuration of a run whose scheduler does not know types: by how much they differ in speed."""

AMOUNTS_COUNT = "amounts_count"
"""In the configuration of a run whose speed model looks at the cores and memory that tasks are given."""


def notes(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each thing to know of some runs.

    What was noted when they began (`labkit.experiment.caveats`); fallbacks that decided in the place of a policy; gangs
    that were placed with fewer tasks than their scheduler gave them; cores or memory that were given and change no
    speed; schedulers that give a job GPUs of any type although types differ in speed; jobs that were given up, so that
    means are over the others.
    """
    named = list(zip(labels(records), records, strict=True))
    told = list(dict.fromkeys(note for record in records for note in record.info.config.get("notes", ())))
    for label, record in named:
        n_cuts, n_jobs = int(record.summary["n_cuts"]), int((record.table["n_cuts"] > 0).sum())
        if n_cuts:
            were = "1 job was" if n_jobs == 1 else f"{n_jobs} jobs were"
            told.append(
                f"{label}: {were} given more tasks than could be placed, {n_cuts} times; the tasks that did not fit "
                "were left out."
            )
        told += fallbacks(record.events, name=label, fallback=fallback_of(record))
        told += given_up(record, name=label)
    told += [_unseen(label, record) for label, record in named if _gives_in_vain(record)]
    times = {label: float(record.info.config.get(TYPES_DIFFER, 1.0)) for label, record in named}
    unaware = [label for label, slower in times.items() if slower > 1]
    if unaware:
        told.append(
            f"{', '.join(unaware)}: a job gets GPUs of the first type with room, and here a job is up to "
            f"{max(times.values()):.3g} times slower on one type than on another; gavel_ schedulers look at that."
        )
    return told


def given_up(record: RunRecord, *, name: str) -> list[str]:
    """Return a sentence if jobs were given up: how many, and why."""
    rows = record.events[record.events["kind"] == Kind.DROPPED]
    if not len(rows):
        return []
    causes = [(cause, int((rows["cause"] == cause).sum())) for cause in Cause]
    why = ", ".join(f"{n} {cause.name.lower().replace('_', ' ')}" for cause, n in causes if n)
    return [
        f"{name}: {len(rows)} of {len(record.jobs)} jobs were given up{f' ({why})' * bool(why)}; its JCTs are those of "
        "the others."
    ]


WHY = {
    Doubt.NOT_FINITE: "its network gave out what is no finite number",
    Doubt.STARVED: "it would have let a job starve",
    Doubt.WORSE: "it would have done worse over the window before, on the speeds that were observed",
    Doubt.UNTRIED: "it had tried too few gangs to tell how fast others are",
}
"""Of each doubt, in words."""


def fallbacks(rows: Events, *, name: str, fallback: str) -> list[str]:
    """Return a sentence if a fallback decided in the place of a scheduler: how often, since when and why."""
    found = rows[rows["kind"] == Kind.FELL_BACK]
    if not len(found):
        return []
    n_all = int((rows["kind"] == Kind.DECIDED).sum())
    n_fell_back = len(np.unique(found["time_s"]))
    why = []
    for doubt, said in WHY.items():
        mine = found["time_s"][found["value"] == doubt]
        if len(mine):
            scale, unit = time_unit(float(mine[0]))
            why.append(f"{len(mine)} times because {said} (first at {mine[0] / scale:.3g} {unit})")
    return [f"{name}: its fallback {fallback} made {n_fell_back} of {n_all} decisions: {'; '.join(why)}."]


def fallback_of(record: RunRecord) -> str:
    """Return the name of a scheduler's fallback."""
    told = record.info.config.get("scheduler")
    return str(told.get("fallback", "")) if isinstance(told, dict) else ""


def _gives_in_vain(record: RunRecord) -> bool:
    """Tell whether simulated tasks were given cores or memory that the speed model does not look at."""
    if record.info.backend != "simulator" or record.info.config.get(AMOUNTS_COUNT):
        return False
    rows = record.events
    given = ~(np.isnan(rows["cpus"]) & np.isnan(rows["memory_gb"]))
    return bool(given.any())


def _unseen(label: str, record: RunRecord) -> str:
    speeds = record.info.config.get("speeds") or record.info.config.get("speed")
    return (
        f"{label}: it gives tasks other cores or memory than declared, which makes no job faster or slower here "
        f"(speeds: {speeds}); StepTime(cpu=...) takes cores into account."
    )
