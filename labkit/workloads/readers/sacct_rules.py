"""The rules of a Slurm site that an export tells of its jobs: partitions, hosts, dependencies, throttles, limits."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.host_names import listed
from labkit.core.resources import Bools
from labkit.workloads.readers.base import TraceTable, names_of, numbers_of, text_column
from labkit.workloads.readers.ledger import TraceLedger
from labkit.workloads.readers.submit_line import OPTIONS, options_of
from labkit.workloads.readers.times import moments_s, read_spans_s

if TYPE_CHECKING:
    import pandas as pd

SLURM_DELAY_S: Final = 2.0
"""Seconds between submission and Eligible that are Slurm's own."""
AT_ONCE_S: Final = 15.0
"""A task of an array that starts so soon after another one of it has ended had waited for that."""
_TASK: Final = re.compile(r"((?:.*/)?\d+)_\d+(?:#\d+)?")
_NUMBERS: Final = re.compile(r"\d+")
_PARENTS: Final = re.compile(r"(after\w*|singleton):?([\d_:+*]*)")
_DEPENDENCIES: Final = ("afterok", "afterany", "aftercorr")
"""Dependencies on the end of other jobs; one that failed is followed by none, so that all that ran may follow."""


def columns_of_rules(table: TraceTable) -> dict[str, Any]:
    """Return the columns that tell rules, of each row of an export."""
    import pandas as pd

    frame = table.frame

    def text(name: str) -> pd.Series:
        nothing = {"(null)": "", "None": "", "None assigned": ""}
        names = names_of(frame[name]) if name in frame else [""] * len(frame)
        return text_column([nothing.get(cell, cell) for cell in names])

    codes, lines = pd.factorize(text("SubmitLine"))  # many jobs are submitted alike
    told = [options_of(line) for line in lines]
    options = {key: np.array([each.get(key, "") for each in told], object) for key in OPTIONS}
    return {
        "limit_s": read_spans_s(frame["Timelimit"]) if "Timelimit" in frame else np.nan,
        "eligible_s": moments_s(table, "Eligible") if "Eligible" in frame else np.nan,
        "nodes": np.nan_to_num(numbers_of(frame["NNodes"])) if "NNodes" in frame else 0.0,
        "hosts": text("NodeList"), "partition": text("Partition"), "qos": text("QOS"),
        "constraint": text("Constraints"), "reason": text("Reason"), "licenses_": text("Licenses"),
        **{f"asked_{key}": text_column(values[codes]) for key, values in options.items()},
    }  # fmt: skip


def with_rules(rows: pd.DataFrame, whole: pd.DataFrame, ledger: TraceLedger, *, zero_s: float) -> pd.DataFrame:
    """Return rows with begin_s (from `zero_s`), after, array, at_most, nodes and constraint as `Jobs` has them.

    `whole` has the rows of all the file, in which arrays that still wait tell how many of their tasks may run.
    """
    ids: list[str] = rows["id"].tolist()
    base = np.array([_TASK.sub(r"\1", name) if "_" in name and _TASK.fullmatch(name) else "" for name in ids], object)
    at_most, guessed = _throttles(rows, base, _declared_throttles(whole))
    after, odd = _dependencies(rows, base)
    delay_s = (rows["eligible_s"] - rows["submit_s"]).to_numpy(np.float64)
    follows = after != ""
    begins = (delay_s > SLURM_DELAY_S) & ~follows & (at_most == 0)
    gpus, nodes = rows["gpus"].to_numpy(np.float64), rows["nodes"].to_numpy(np.float64)
    plain = (nodes >= 1) & (nodes <= np.maximum(gpus, 1))
    named = (rows["asked_hosts"] != "").to_numpy()
    constraint = rows["constraint"].to_numpy(dtype=object).copy()
    constraint[named] = [_constraint(*each) for each in zip(constraint[named], rows["asked_hosts"][named], strict=True)]
    rows = rows.assign(
        begin_s=np.where(begins, rows["eligible_s"] - zero_s, np.nan), at_most=at_most,
        after=text_column(after, index=rows.index), array=text_column(base, index=rows.index),
        nodes=np.where(plain & (rows["sizes"] == 1 if "sizes" in rows else True), nodes, 0).astype(np.int32),
        constraint=text_column(constraint, index=rows.index),
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
            plain.isin(preempted),
            "a rule that slurm(preempt_type=...) alone keeps: preemption by QOS or partition (state PREEMPTED)",
        )
    _not_modelled(rows, odd, ledger)
    return rows


def _not_modelled(rows: pd.DataFrame, odd: Bools, ledger: TraceLedger) -> None:
    """Note rules that the file tells of and that are not kept."""
    for column, what in (("asked_exclude", "--exclude"), ("asked_switches", "--switches")):
        ledger.remark((rows[column] != "").to_numpy(), f"a rule that is not kept: {what}")
    licensed = ((rows["asked_licenses"] != "") | (rows["licenses_"] != "")).to_numpy()
    ledger.remark(licensed, "a rule that is not kept: licenses")
    mixes = rows["constraint"].str.contains(r"\[.*\||\*\d").to_numpy(np.bool_) & (rows["nodes"] != 1).to_numpy()
    ledger.remark(mixes, "a rule that is not kept: constraints on all nodes of a job together ([a|b], a*2)")
    ledger.remark(odd, "a rule that is not kept: dependencies other than afterok, afterany, aftercorr")
    kinds = [name for name in rows["qos"].unique() if name]
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


def _declared_throttles(whole: pd.DataFrame) -> dict[str, int]:
    """Return how many tasks of an array may run at once, as its SubmitLine or a row that still waits tells."""
    declared: dict[str, int] = {}
    for identity, asked in zip(whole["id"], whole["asked_array"], strict=True):
        percent = ("%" in asked or "%" in identity) and "_" in identity
        if percent and (match := re.search(r"%(\d{1,6})", f"{asked} {identity}")):
            declared[identity.partition("_")[0]] = int(match[1])
    return declared


def _throttles(rows: pd.DataFrame, base: np.ndarray, declared: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
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
        if (n := declared.get(array.rpartition("/")[2], 0)) > 0:
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
    begun = np.searchsorted(np.sort(start_s), start_s, side="right")
    return int((begun - np.searchsorted(np.sort(np.maximum(start_s, end_s)), start_s, side="right")).max())


def _in_turns(start_s: np.ndarray, end_s: np.ndarray, n: int) -> bool:
    """Return whether each task but the first n started as another one of them ended."""
    later = np.sort(start_s)[n:]
    ends = np.r_[-np.inf, np.sort(end_s)]
    gaps = later - ends[np.searchsorted(ends, later, side="right") - 1]
    return len(gaps) > 1 and bool(gaps.max() <= AT_ONCE_S)


def _dependencies(rows: pd.DataFrame, base: np.ndarray) -> tuple[np.ndarray, Bools]:
    """Return the ids of the jobs that each row follows, joined by "+", and whether it has other dependencies."""
    after, odd = np.full(len(rows), "", dtype=object), np.zeros(len(rows), np.bool_)
    asked = rows["asked_after"].to_numpy(dtype=object)
    which = np.flatnonzero(asked != "")
    if not len(which):
        return after, odd
    ids: list[str] = rows["id"].tolist()
    mentioned = {number for i in which for number in re.findall(r"\d+", asked[i])}
    known: dict[str, list[str]] = defaultdict(list)
    for identity, array in zip(ids, base, strict=True):
        if not mentioned.isdisjoint(_NUMBERS.findall(identity)):
            known[identity].append(identity)
            if array:
                known[array].append(identity)
    for i in which:
        site, slash, own = ids[i].rpartition("/")
        parents: dict[str, None] = {}
        found = _PARENTS.findall(asked[i])
        for kind, numbers in found:
            for number in filter(None, re.split(r"[:]", numbers)) if kind in _DEPENDENCIES else ():
                name = f"{site}{slash}{re.sub(r'[*+].*$', '', number).removesuffix('_')}"
                task = f"{name}_{own.partition('_')[2]}" if kind == "aftercorr" else ""
                parents |= dict.fromkeys(known.get(task) or known.get(name) or [])
        parents.pop(ids[i], None)
        after[i] = "+".join(parents)
        odd[i] = "?" in asked[i] or any(kind not in _DEPENDENCIES for kind, _ in found)
    return after, odd
