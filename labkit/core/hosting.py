"""Which machines may host the tasks of each job, and over how many of them its gang may lie.

A run has these rules whatever its scheduler: partitions (virtual clusters), gangs that wait for as few machines as they
need, and gangs that need so many machines. Placers keep to them; a session places anew what does not.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import same_type
from labkit.core.errors import InputError, unknown
from labkit.core.job_faults import MANNERS, ZONES
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Ints

SPLIT, FEW, PREFER = 0, -1, -2
"""How many machines a gang lies on: any number; as few as it needs, or it waits; as few as that if there is room. More
than 0: exactly so many."""
_CODES: Final = {"split": SPLIT, "wait": FEW, "prefer": PREFER}
WORDS: Final = {
    FEW: "gangs wait for as few machines as they need",
    PREFER: "gangs lie on as few machines as they need where there is room, and are split elsewhere",
    SPLIT: "gangs may be split over any machines",
}
"""What a header says."""


@dataclass(frozen=True, eq=False, slots=True)
class HostRules:
    """The rules of one run about where gangs may lie."""

    open: Bools
    """(R, G) the distinct sets of device groups that jobs may be placed on; the first is all of them."""
    row: Ints
    """(N,) which of these sets is each job's."""
    spread: Ints
    """(N,) `SPLIT`, `FEW`, `PREFER`, or the number of machines that a gang needs."""
    zone: Ints
    """(N,) 1: the gang lies within one rack, 2: within one pod, 0: anywhere."""
    zones: Ints
    """(2, G) the rack and the pod of each device group, -1: in none."""
    wait_s: float = math.inf
    """Seconds after its arrival from which on a gang that waits for few machines may be split; inf: never."""
    parts: tuple[Bools, ...] = ()
    """(G,) device groups of the parts of the cluster that share no job, several only where partitions divide it."""
    description: str = ""
    """The rules in words, for headers."""

    @classmethod
    def of(
        cls, jobs: Jobs, cluster: Cluster, *, consolidate: str | None = None, wait_s: float | None = None
    ) -> Self | None:
        """Return the rules for some jobs on a cluster; None where there is none.

        Partitions that the cluster does not have count as none: see `unmet_partitions`. Raise InputError if it is none
        of these, or a partition has no machines.

        `consolidate`: wait, prefer or split, for all jobs; by default as each job has it, and split where it has none;
        `wait_s`: seconds after which a gang that waits may be split.
        """
        if consolidate is not None and consolidate not in MANNERS:
            raise unknown("consolidate", str(consolidate), MANNERS)
        if wait_s is not None and not wait_s >= 0:
            raise InputError(f"consolidate_for_s is {wait_s!r}; expected seconds >= 0.")
        if empty := next((name for name in jobs.partitions if name in cluster.partitions and
                          not cluster.partitions[name].any()), None):  # fmt: skip
            raise InputError(f"partition '{empty}' has no machines; give it some, or leave its jobs out.")
        manner = jobs.consolidate if consolidate is None else np.full(len(jobs), consolidate, object)
        code = np.array([_CODES[str(one) or "split"] for one in manner], np.int32)
        tasks = jobs.max_workers + jobs.max_ps
        spread = np.where(jobs.nodes > 0, jobs.nodes, np.where(tasks > 1, code, SPLIT)).astype(np.int32)
        spread[(tasks == 1) & (spread == 1)] = SPLIT
        zone = np.where(tasks > 1, [("", *ZONES).index(str(one)) for one in jobs.within], 0).astype(np.int32)
        sets = [np.ones(cluster.n_groups, np.bool_)]
        of_name = np.zeros(len(jobs.partitions), np.int32)
        for i, name in enumerate(jobs.partitions):
            if name in cluster.partitions:
                of_name[i] = len(sets)
                sets.append(cluster.partitions[name][cluster.group_machine])
        row = of_name[jobs.partition]
        _constrain(jobs, cluster, sets, row)
        if not row.any() and not spread.any() and not zone.any():
            return None
        used = [sets[r] for r in np.unique(row).tolist()]
        description = _in_words(spread, zone, several=tasks > 1, wait_s=wait_s)
        if n := len(np.unique(row[row > 0])):
            what = "partition" + " or constraint" * bool((jobs.constraint != "").any())
            description += (
                f"; {np.count_nonzero(row):,} of {len(jobs):,} jobs are kept to the hosts of their {what} (of {n})"
            )
        return cls(
            np.array(sets),
            row,
            spread,
            zone,
            _zones(jobs, cluster, zone),
            math.inf if wait_s is None else float(wait_s),
            _parts(used),
            description,
        )

    @property
    def limited(self) -> bool:
        """Return whether some jobs are kept to a part of the cluster."""
        return bool(self.row.any())

    def part_of(self, row: Ints) -> Ints:
        """Return the part of the cluster in which each of some sets of device groups lies."""
        first = self.open.argmax(axis=1)
        part = [next((p for p, groups in enumerate(self.parts) if groups[g]), 0) for g in first.tolist()]
        found: Ints = np.array(part, np.int32)[row]
        return found

    def spread_at(self, jobs: Ints, *, waited_s: np.ndarray) -> Ints:
        """Return how many machines the gangs of some jobs lie on after so many seconds, (C,)."""
        spread = self.spread[jobs]
        if math.isinf(self.wait_s):
            return spread
        relaxed: Ints = np.where((spread == FEW) & (waited_s >= self.wait_s), PREFER, spread).astype(np.int32)
        return relaxed


def _zones(jobs: Jobs, cluster: Cluster, zone: Ints) -> Ints:
    """Return the rack and the pod of each device group, (2, G); a rack is the first switch that a machine hangs on."""
    rack, network = np.full(cluster.n_machines, -1, np.int32), cluster.network
    if network is not None:
        up = (network.link_from < cluster.n_machines) & (network.link_to >= cluster.n_machines)
        rack[network.link_from[up][::-1]] = network.link_to[up][::-1]
        _, rack[rack >= 0] = np.unique(rack[rack >= 0], return_inverse=True)
    if (zone == 1).any() and (rack < 0).any():
        raise InputError(
            f"job {jobs.id[int(np.argmax(zone == 1))]} is to lie within one rack, and {cluster.name} has none: its "
            "machines hang on no switches. Take a cluster with a network, as leaf_spine(4, 2, 8), or no `within`."
        )
    return np.stack([one[cluster.group_machine] for one in (rack, cluster.partition)]).astype(np.int32)


def _constrain(jobs: Jobs, cluster: Cluster, sets: list[Bools], row: Ints) -> None:
    """Add the sets of jobs that ask for features of machines, and let their rows, (N,), name them."""
    for text in dict.fromkeys(jobs.constraint.tolist()):
        if (machines := machines_with(text, cluster)) is None:
            continue
        mine = np.flatnonzero(jobs.constraint == text)
        for r in np.unique(row[mine]).tolist():
            row[mine[row[mine] == r]] = len(sets)
            sets.append(sets[r] & machines[cluster.group_machine])


def _in_words(spread: Ints, zone: Ints, *, several: Bools, wait_s: float | None) -> str:
    """Return how gangs lie, the most frequent first; with how many of them where they differ, and within what."""
    gangs = np.minimum(spread[several | (spread > 0)], 1)
    kinds, n = np.unique(gangs, return_counts=True)
    words = {**WORDS, 1: "gangs lie on the number of machines that they name"}
    if wait_s is not None:
        words[FEW] += f", at most {wait_s:g} s"
    parts = [words[int(kinds[i])] + f" ({n[i]:,} of {len(gangs):,})" * (len(n) > 1) for i in np.argsort(-n)]
    for i, name in enumerate(ZONES, 1):
        n_there = int(np.count_nonzero(zone == i))
        parts += [f"{n_there:,} gang{'s' * (n_there > 1)} within one {name}"] * (n_there > 0)
    return "; ".join(parts) or "all jobs are single tasks"


def _parts(sets: list[Bools]) -> tuple[Bools, ...]:
    """Return the unions of those sets of device groups that overlap."""
    parts: list[Bools] = []
    for mine in sets:
        apart = [part for part in parts if not (part & mine).any()]
        joined = np.logical_or.reduce([mine, *(part for part in parts if (part & mine).any())])
        parts = [*apart, joined]
    return tuple(parts)


def machines_with(constraint: str, cluster: Cluster) -> Bools | None:
    """Return which machines have the features of a constraint, (M,); None where there is none, or it names others.

    A constraint is that of Slurm [1]_: names joined by & and |, from left to right, with brackets; "@" before a name
    makes it that of a machine. Counts (`a*2`) and square brackets, which say how gangs mix, are not looked at.

    >>> from dataclasses import replace
    >>> from labkit.topology import no_network
    >>> made = replace(no_network(3), features={"big": np.array([1, 1, 0], bool), "new": np.array([0, 1, 1], bool)})
    >>> [machines_with(text, made).astype(int).tolist() for text in ("big&new", "[big|new]", "new&(big|@m2)")]
    [[0, 1, 0], [1, 1, 1], [0, 1, 1]]

    References
    ----------
    .. [1] https://slurm.schedmd.com/sbatch.html, --constraint
    """
    known: dict[str, Bools] = {name: np.asarray(has, np.bool_) for name, has in cluster.features.items()}
    words = _WORDS.findall(re.sub(r"\*\d+", "", constraint).translate(_BRACKETS))
    names = [word for word in words if word not in "&|()"]
    known |= {f"@{name}": np.array([one == name for one in cluster.machines]) for name in cluster.machines if
              f"@{name}" in names}  # fmt: skip
    if not names or any(name not in known for name in names):
        return None
    open_: list[tuple[Bools | None, str]] = []
    value: Bools | None = None
    operator = ""
    for word in [*words, ")"]:
        if word in ("&", "|"):
            operator = word
        elif word == "(":
            open_.append((value, operator))
            value, operator = None, ""
        else:
            term = known[word] if word != ")" else value
            if word == ")" and open_:
                value, operator = open_.pop()
            if term is not None:
                joined = np.logical_and if operator != "|" else np.logical_or
                value = term if value is None or term is value else joined(value, term)
    return value


_WORDS: Final = re.compile(r"[&|()]|[^&|()\s]+")
_BRACKETS: Final = str.maketrans("[],", "()&")


def with_types_as_partitions(jobs: Jobs, cluster: Cluster) -> tuple[Cluster, str]:
    """Return a cluster that names no partitions with those of jobs, by the device types they were recorded on.

    Returns
    -------
    cluster : Cluster
        The same where it has partitions, or jobs tell none, or every partition would have all machines.
    said : str
        What was guessed, for headers; "": nothing.
    """
    if cluster.partitions or not any(jobs.partitions):
        return cluster, ""
    machines, said = {}, []
    for i, name in enumerate(jobs.partitions):
        ran_on = sorted({kind for kind in jobs.measured_on[jobs.partition == i] if kind})
        types = [t for t, kind in enumerate(cluster.device_types) if any(same_type(one, kind) for one in ran_on)]
        if name and types:
            machines[name] = np.unique(cluster.group_machine[np.isin(cluster.group_type, types)])
            said.append(f"{name}: {', '.join(cluster.device_types[t] for t in types)}")
    if not any(len(each) < cluster.n_machines for each in machines.values()):
        return cluster, ""
    hosts = {name: [cluster.machines[m] for m in each] for name, each in machines.items()}
    return cluster.with_partitions(hosts), (
        f"{cluster.name} names no partitions, so those of the jobs are taken for the device types on which their jobs "
        f"ran ({'; '.join(said)})"
    )


def unmet_constraints(jobs: Jobs, cluster: Cluster) -> list[str]:
    """Return a sentence if jobs ask for features of machines that a cluster does not have."""
    names = [text for text in dict.fromkeys(jobs.constraint.tolist()) if text and machines_with(text, cluster) is None]
    if not names:
        return []
    n = int(np.isin(jobs.constraint, names).sum())
    return [
        f"constraints of jobs on features that {cluster.name} does not have: {n:,} of {len(jobs):,} jobs (the first "
        f"'{names[0]}'); these jobs may be placed anywhere."
    ]


def unmet_partitions(jobs: Jobs, cluster: Cluster) -> list[str]:
    """Return a sentence if jobs name partitions that a cluster does not have."""
    lacking = [i for i, name in enumerate(jobs.partitions) if name and name not in cluster.partitions]
    n = int(np.isin(jobs.partition, lacking).sum())
    if not n:
        return []
    return [
        f"partitions of jobs that {cluster.name} does not have: {len(lacking)} ({n:,} of {len(jobs):,} jobs, the first "
        f"'{jobs.partitions[lacking[0]]}'); these jobs may be placed anywhere. --partitions divides the cluster."
    ]


def with_partitions_of(jobs: Jobs, cluster: Cluster) -> Cluster:
    """Return a cluster with a partition for each that jobs name and it lacks, divided by what their jobs need.

    Machines go one after the other to the partition with the most GPU-seconds for each GPU that it has so far, after
    each got enough for its largest gang. Raise InputError if the machines do not suffice for the largest gang of each.
    """
    missing = [i for i, name in enumerate(jobs.partitions) if name and name not in cluster.partitions]
    if not missing:
        return cluster
    gpus = np.bincount(cluster.group_machine, cluster.capacity[:, 0], cluster.n_machines)
    taken = np.logical_or.reduce([np.zeros(cluster.n_machines, np.bool_), *cluster.partitions.values()])
    free = np.flatnonzero((gpus > 0) & ~taken)[::-1].tolist()
    need = jobs.gpus * np.nan_to_num(jobs.duration_s, nan=1.0)
    load: list[float] = np.bincount(jobs.partition, need, len(jobs.partitions)).tolist()
    largest = np.zeros(len(jobs.partitions))
    np.maximum.at(largest, jobs.partition, jobs.gpus)
    has = [0.0] * len(jobs.partitions)
    hosts: dict[int, list[int]] = {i: [] for i in missing}
    while free:
        short = [i for i in missing if has[i] < largest[i]]
        i = short[0] if short else max(missing, key=lambda p: load[p] / max(has[p], 1.0))
        hosts[i].append(free.pop())
        has[i] += float(gpus[hosts[i][-1]])
    if short := [i for i in missing if has[i] < largest[i]]:
        raise InputError(
            f"--partitions: {cluster.name} has too few machines for the {len(missing)} partitions of {jobs.name}: "
            f"'{jobs.partitions[short[0]]}' has a gang of {largest[short[0]]:g} GPUs. Take a larger cluster."
        )
    named = {name: np.array(cluster.machines)[there].tolist() for name, there in cluster.partitions.items()}
    return cluster.with_partitions(
        named | {jobs.partitions[i]: [cluster.machines[m] for m in each] for i, each in hosts.items()}
    )
