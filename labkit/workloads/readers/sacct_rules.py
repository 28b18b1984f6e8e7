"""The rules of a Slurm site that an export tells of its jobs: partitions, hosts, dependencies, throttles, limits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.host_names import listed
from labkit.workloads.readers.base import TraceTable, names_of, numbers_of
from labkit.workloads.readers.ledger import TraceLedger
from labkit.workloads.readers.times import moments_s, read_spans_s

if TYPE_CHECKING:
    import pandas as pd

BEGUN_S: Final = 2.0
"""Seconds between submission and Eligible that are Slurm's own."""
AT_ONCE_S: Final = 15.0
"""A task of an array that starts so soon after another one of it has ended had waited for that."""
_OPTIONS: Final = {
    "array": ("array", "-a "), "after": ("dependency", "-d "), "hosts": ("nodelist", "-w "),
    "exclude": ("exclude", "-x "), "licenses": ("licenses", "-L "), "switches": ("switches", "--switches="),
}  # fmt: skip
_FOUND: Final = {
    key: re.compile(rf"(?:^|\s)(?:--{long}[= ]|{short})\s*(\S+)") for key, (long, short) in _OPTIONS.items()
}
"""Options of sbatch whose values a SubmitLine tells."""
_PARENTS: Final = re.compile(r"(after\w*|singleton):?([\d_:+*]*)")
_KEPT: Final = ("afterok", "afterany", "aftercorr")
"""Dependencies on the end of other jobs; one that failed is followed by none, so that all that ran may follow."""


def columns_of_rules(table: TraceTable) -> dict[str, Any]:
    """Return the columns that tell rules, of each row of an export."""
    frame = table.frame

    def text(name: str) -> list[str]:
        return (
            [cell if cell not in ("(null)", "None") else "" for cell in names_of(frame[name])]
            if name in frame
            else [""] * len(frame)
        )

    submitted = text("SubmitLine")
    lines = dict.fromkeys(submitted)  # many jobs are submitted alike
    read = {key: {line: _value(pattern, line) for line in lines} for key, pattern in _FOUND.items()}
    options = {key: [found[line] for line in submitted] for key, found in read.items()}
    return {
        "limit_s": read_spans_s(frame["Timelimit"]) if "Timelimit" in frame else np.nan,
        "eligible_s": moments_s(table, "Eligible") if "Eligible" in frame else np.nan,
        "nodes": np.nan_to_num(numbers_of(frame["NNodes"])) if "NNodes" in frame else 0.0,
        "hosts": [name if name != "None assigned" else "" for name in text("NodeList")],
        "partition": text("Partition"), "qos": text("QOS"), "constraint": text("Constraints"),
        "reason": text("Reason"), "licenses_": text("Licenses"),
        **{f"asked_{key}": values for key, values in options.items()},
    }  # fmt: skip


def _value(pattern: re.Pattern[str], line: str) -> str:
    match = pattern.search(line) if line else None
    return match[1] if match else ""


def with_rules(rows: pd.DataFrame, whole: pd.DataFrame, ledger: TraceLedger, *, zero_s: float) -> pd.DataFrame:
    """Return rows with begin_s (from `zero_s`), after, array, at_most, nodes and constraint as `Jobs` has them.

    `whole` has the rows of all the file, in which arrays that still wait tell how many of their tasks may run.
    """
    base = rows["id"].str.extract(r"^((?:.*/)?\d+)_\d+(?:#\d+)?$")[0].fillna("").to_numpy(dtype=object)
    at_most, guessed = _throttles(rows, base, _told_throttles(whole))
    after, odd = _dependencies(rows, base)
    delay_s = (rows["eligible_s"] - rows["submit_s"]).to_numpy(np.float64)
    follows = np.array([text != "" for text in after], np.bool_)
    begins = (delay_s > BEGUN_S) & ~follows & (at_most == 0)
    gpus, nodes = rows["gpus"].to_numpy(np.float64), rows["nodes"].to_numpy(np.float64)
    plain = (
        (nodes >= 1) & (nodes <= np.maximum(gpus, 1)) & ~rows["id"].str.contains("+", regex=False).to_numpy(np.bool_)
    )
    rows = rows.assign(
        begin_s=np.where(begins, rows["eligible_s"] - zero_s, np.nan), after=after, array=base, at_most=at_most,
        nodes=np.where(plain & (rows["sizes"] == 1 if "sizes" in rows else True), nodes, 0).astype(np.int32),
        constraint=[_constraint(*each) for each in zip(rows["constraint"], rows["asked_hosts"], strict=True)],
    )  # fmt: skip
    depends = begins & (rows["reason"] == "Dependency").to_numpy()
    ledger.remark(depends, "a dependency that the file does not name, so that they begin when they became eligible")
    ledger.remark(begins & ~depends, "a moment before which they do not begin (Eligible)")
    ledger.remark(follows, "jobs that must end before (SubmitLine)")
    ledger.remark((at_most > 0) & ~guessed, "an array of which so many run at once (%N)")
    ledger.remark(guessed, "an array whose tasks waited for each other, so that no more run at once than were seen to")
    preempted = whole["id"][whole["state"] == "PREEMPTED"]
    if len(preempted):
        plain = rows["id"].str.replace(r"^.*/|#\d+$", "", regex=True)
        ledger.remark(
            plain.isin(preempted), "a rule that is not kept: preemption by QOS or partition (state PREEMPTED)"
        )
    _not_modelled(rows, odd, ledger)
    return rows


def _not_modelled(rows: pd.DataFrame, odd: Sequence[bool], ledger: TraceLedger) -> None:
    """Note rules that the file tells of and that are not kept."""
    for column, what in (("asked_exclude", "--exclude"), ("asked_switches", "--switches")):
        ledger.remark((rows[column] != "").to_numpy(), f"a rule that is not kept: {what}")
    licensed = ((rows["asked_licenses"] != "") | (rows["licenses_"] != "")).to_numpy()
    ledger.remark(licensed, "a rule that is not kept: licenses")
    ledger.remark(
        np.array(odd, np.bool_), "a rule that is not kept: dependencies other than afterok, afterany, aftercorr"
    )
    kinds = [name for name in dict.fromkeys(rows["qos"]) if name]
    if len(kinds) > 1:
        ledger.check(f"qualities of service ({', '.join(kinds[:6])}) count under the scheduler slurm alone.")


def _constraint(constraint: str, hosts: str) -> str:
    """Return features and hosts that a job asks for as one constraint.

    >>> _constraint("a100&nvlink", ""), _constraint("big", "n[1-2]")
    ('a100&nvlink', '(@n1|@n2)&(big)')
    """
    if not hosts:
        return constraint
    try:
        named = "|".join(f"@{name}" for name in listed(hosts))
    except InputError:
        return constraint
    return f"({named})&({constraint})" if constraint else named


def _told_throttles(whole: pd.DataFrame) -> dict[str, int]:
    """Return how many tasks of an array may run at once, as its SubmitLine or a row that still waits tells."""
    told: dict[str, int] = {}
    for identity, asked in zip(whole["id"], whole["asked_array"], strict=True):
        if "%" in (text := f"{asked} {identity}") and "_" in identity and (match := re.search(r"%(\d{1,6})", text)):
            told[identity.partition("_")[0]] = int(match[1])
    return told


def _throttles(rows: pd.DataFrame, base: np.ndarray, told: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tasks of each row's array may run at once, (N,), 0: any number; and where that was guessed."""
    at_most, guessed = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.bool_)
    members: dict[str, list[int]] = defaultdict(list)
    for i, array in enumerate(base):
        if array:
            members[array].append(i)
    start, end = rows["start_s"].to_numpy(np.float64), rows["end_s"].to_numpy(np.float64)
    limited = (rows["reason"] == "JobArrayTaskLimit").to_numpy()
    for array, mine in members.items():
        at = np.array(mine)
        if (n := told.get(array.rpartition("/")[2], 0)) > 0:
            at_most[at] = n
        elif (
            len(at) > 1
            and (n := _most_at_once(start[at], end[at]))
            and (limited[at].any() or _in_turns(start[at], end[at], n))
        ):
            at_most[at], guessed[at] = n, True
    return at_most, guessed


def _most_at_once(start_s: np.ndarray, end_s: np.ndarray) -> int:
    """Return how many tasks ran at the same time; 0 where that is not known."""
    if not (np.isfinite(start_s).all() and np.isfinite(end_s).all()):
        return 0
    return int(max(((start_s <= at) & (end_s > at)).sum() for at in start_s))


def _in_turns(start_s: np.ndarray, end_s: np.ndarray, n: int) -> bool:
    """Return whether each task but the first n started as another one of them ended."""
    later = np.sort(start_s)[n:]
    gaps = [(at - end_s[end_s <= at]).min(initial=np.inf) for at in later]
    return len(gaps) > 1 and max(gaps) <= AT_ONCE_S


def _dependencies(rows: pd.DataFrame, base: np.ndarray) -> tuple[list[str], list[bool]]:
    """Return the ids of the jobs that each row follows, joined by "+", and whether it has other dependencies."""
    if not (rows["asked_after"] != "").any():
        return [""] * len(rows), [False] * len(rows)
    known: dict[str, list[str]] = defaultdict(list)
    for identity, array in zip(rows["id"], base, strict=True):
        known[identity].append(identity)
        if array:
            known[array].append(identity)
    after, odd = [], []
    for identity, asked in zip(rows["id"], rows["asked_after"], strict=True):
        site, slash, own = identity.rpartition("/")
        parents: dict[str, None] = {}
        found = _PARENTS.findall(asked)
        for kind, numbers in found:
            for number in filter(None, re.split(r"[:]", numbers)) if kind in _KEPT else ():
                name = f"{site}{slash}{re.sub(r'[*+].*$', '', number).removesuffix('_')}"
                task = f"{name}_{own.partition('_')[2]}" if kind == "aftercorr" else ""
                parents |= dict.fromkeys(known.get(task) or known.get(name) or [])
        parents.pop(identity, None)
        after.append("+".join(parents))
        odd.append("?" in asked or any(kind not in _KEPT for kind, _ in found))
    return after, odd
