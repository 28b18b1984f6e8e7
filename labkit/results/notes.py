"""What a reader of a table of runs should know beside it: what was asked and not got, what was not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from labkit.core.events import Cause, Doubt, Events, Kind
from labkit.core.text import shortened, time_unit
from labkit.results.comparison import labels
from labkit.results.record import RunRecord

TYPES_DIFFER = "times_slower_on_slowest_type"
"""In the configuration of a run whose scheduler does not know types: by how much they differ in speed."""

AMOUNTS_COUNT = "amounts_count"
"""In the configuration of a run whose speed model looks at the cores and memory that tasks are given."""

LOST_TO: Final = "its hosts are kept from now on for reservation "
WAITS_FOR: Final = "no hosts are left that it may have: waits for reservation "
"""How reasons begin that reservations give in the place of a scheduler; the name follows."""


def notes(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each thing to know of some runs.

    What was noted when they began (`labkit.experiment.caveats`); fallbacks that decided in the place of a policy; gangs
    that were placed with fewer tasks than their scheduler gave them; cores or memory that were given and change no
    speed; schedulers that give a job GPUs of any type although types differ in speed; jobs that their time limits
    ended, or that were given up, so that means are over the others; jobs that reservations stopped or held up;
    preemptions and changes that took no time; a mean JCT far above the best one; runs in which no job waited.
    """
    named = list(zip(labels(records), records, strict=True))
    lines = list(dict.fromkeys(note for record in records for note in record.info.config.get("notes", ())))
    for label, record in named:
        n_cuts, n_jobs = int(record.summary["n_cuts"]), int((record.table["n_cuts"] > 0).sum())
        if n_cuts:
            were = "1 job was" if n_jobs == 1 else f"{n_jobs} jobs were"
            lines.append(
                f"{label}: {were} allocated more tasks than the machines had room for ({n_cuts} times); the extra "
                "tasks were not started."
            )
        lines += fallbacks(record.events, name=label, fallback=fallback_of(record))
        lines += [
            *dropped_jobs(record, name=label),
            *ended_at_limits(record, name=label),
            *reserved(record, name=label),
        ]
    lines += [_unseen(label, record) for label, record in named if _gives_in_vain(record)]
    times = {label: float(record.info.config.get(TYPES_DIFFER, 1.0)) for label, record in named}
    lines += [*_free_changes(named), *_far_behind(named), *_never_waited(records)]
    unaware = [label for label, slower in times.items() if slower > 1]
    if unaware:
        lines.append(
            f"{', '.join(unaware)}: a job gets GPUs of the first type with room, and here a job is up to "
            f"{max(times.values()):.3g} times slower on one type than on another; gavel_ schedulers and sia look at "
            "that."
        )
    return lines


def reservation_effects(record: RunRecord) -> list[tuple[str, str, int]]:
    """Return the effects of reservations on a run: which one, which effect, on how many jobs."""
    explained = record.events[record.events["kind"] == Kind.EXPLAINED] if record.reasons else record.events[:0]
    found = []
    for begins, what in ((LOST_TO, "lost hosts when it started"), (WAITS_FOR, "waited, having no other hosts")):
        for number, text in enumerate(record.reasons):
            n = len(np.unique(explained["job"][explained["value"] == number])) if text.startswith(begins) else 0
            if n:
                found.append((text.removeprefix(begins), what, n))
    return found


def reserved(record: RunRecord, *, name: str) -> list[str]:
    """Return a sentence for each thing that reservations did to the jobs of a run."""
    return [
        f"{name}: reservation {one}: {n} job{'s' * (n != 1)} {what}." for one, what, n in reservation_effects(record)
    ]


def reserved_in(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the same sentences of rows of a sweep, each of all runs of a scheduler together."""
    counts: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        for one, what, n in row.get("reserved", ()):
            counts.setdefault((str(row["keys"]["scheduler"]), one, what), []).append(n)
    return [
        f"{name}: reservation {one}: {sum(each)} job{'s' * (sum(each) != 1)} in {len(each)} "
        f"run{'s' * (len(each) != 1)} {what}"
        for (name, one, what), each in counts.items()
    ]


FAR: Final = 10.0
"""A mean JCT of so many times the best one is told beside the table."""


def _free_changes(named: Sequence[tuple[str, RunRecord]]) -> list[str]:
    """Return a sentence if simulated jobs were stopped or changed, and that took no time."""
    counts = []
    for label, record in named:
        stops, changes = (int(record.summary[name]) for name in ("n_preemptions", "n_rescales"))
        if record.info.backend == "simulator" and stops + changes and not record.summary["overhead"] > 0:
            told = [f"{n:,} {what}{'s' * (n != 1)}" for n, what in ((stops, "preemption"), (changes, "rescaling")) if n]
            counts.append(f"{label} {' and '.join(told)}")
    if not counts:
        return []
    return [
        f"preemption and rescaling cost no time here ({shortened('; '.join(counts), most=300)}); --restart S and "
        "--rescale S charge seconds, --overheads dlrover those of the DLRover paper (in Python: overheads=)."
    ]


def _far_behind(named: Sequence[tuple[str, RunRecord]]) -> list[str]:
    """Return a sentence if the mean JCT of some runs is many times that of the best one."""
    means = {label: float(record.summary["mean_jct_s"]) for label, record in named if record.complete}
    best = min(means, key=means.__getitem__, default="")
    far = [f"{label} ({means[label] / means[best]:,.0f} times)" for label in means if means[label] > FAR * means[best]]
    if not far or not means[best] > 0:
        return []
    return [
        f"the mean JCT is more than {FAR:.0f} times that of {best} with {', '.join(far)}: whatever else is better "
        "there, jobs wait for it."
    ]


def _never_waited(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence if several schedulers had nothing to decide, for there was always room."""
    whole = len(records) > 1 and all(record.complete for record in records)
    if not whole or any(float(record.table["waiting_s"].sum()) > 0 for record in records):
        return []
    means = [float(record.summary["mean_jct_s"]) for record in records]
    why = "hardly differ" if max(means) <= ALIKE * min(means) else "differ only by the gangs and places that they give"
    return [f"no job ever waited, so schedulers {why}; --arrival-rate 4 lets jobs arrive 4 times as fast."]


ALIKE: Final = 1.01
"""Mean JCTs that are no further apart are told as hardly different."""


def ended_at_limits(record: RunRecord, *, name: str) -> list[str]:
    """Return a sentence if jobs were ended at their time limits: how many, and how much of their work was not done."""
    rows = record.events[(record.events["kind"] == Kind.COMPLETED) & (record.events["cause"] == Cause.TIME_LIMIT)]
    if not len(rows):
        return []
    jobs, of = record.jobs, rows["job"]
    undone = 1 - np.clip(rows["value"] / jobs.true_steps[of], 0, 1)
    hours = float(np.nansum(undone * jobs.duration_s[of] * jobs.gpus[of]) / 3600)
    return [
        f"{name}: {len(rows):,} of {len(jobs):,} jobs were ended at their time limits, with {hours:,.6g} GPU-hours of "
        "their declared work not done; their JCTs end there."
    ]


def dropped_jobs(record: RunRecord, *, name: str) -> list[str]:
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
    for doubt, sentence in WHY.items():
        mine = found["time_s"][found["value"] == doubt]
        if len(mine):
            scale, unit = time_unit(float(mine[0]))
            why.append(f"{len(mine)} times because {sentence} (first at {mine[0] / scale:.3g} {unit})")
    return [f"{name}: its fallback {fallback} made {n_fell_back} of {n_all} decisions: {'; '.join(why)}."]


def fallback_of(record: RunRecord) -> str:
    """Return the name of a scheduler's fallback."""
    options = record.info.config.get("scheduler")
    return str(options.get("fallback", "")) if isinstance(options, dict) else ""


def _gives_in_vain(record: RunRecord) -> bool:
    """Return whether simulated tasks were given cores or memory that the speed model does not look at."""
    if record.info.backend != "simulator" or record.info.config.get(AMOUNTS_COUNT):
        return False
    rows = record.events
    has_amounts = ~(np.isnan(rows["cpus"]) & np.isnan(rows["memory_gb"]))
    return bool(has_amounts.any())


def _unseen(label: str, record: RunRecord) -> str:
    speeds = record.info.config.get("speeds") or record.info.config.get("speed")
    return (
        f"{label}: it gives tasks other cores or memory than declared, which makes no job faster or slower here "
        f"(speeds: {speeds}); StepTime(cpu=...) takes cores into account."
    )
