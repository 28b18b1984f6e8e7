"""What jobs held from when to when: Gantt intervals, utilisation, heat-map, time by state, and pods that jobs left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, Role
from labkit.core.jobs import Jobs
from labkit.core.pods import n_pods
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Bools, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd


_GIVE_BACK = (Kind.PREEMPTED, Kind.COMPLETED, Kind.FAILED, Kind.DROPPED)
_WAITS = (Kind.ARRIVED, Kind.PREEMPTED, Kind.FAILED)
_TRAINS = (Kind.STARTED, Kind.RESCALED, Kind.PROGRESSED)
_MARKS = (Kind.ARRIVED, Kind.PLACED, *_TRAINS, Kind.PAUSED, *_GIVE_BACK)

WAITING, OVERHEAD, TRAINING, OVER = range(4)


@dataclass(frozen=True, eq=False, slots=True)
class Holdings:
    """The tasks that jobs held: P rows in order of the log, each from `start_s` to `end_s`."""

    job: Ints
    role: NDArray[np.int8]
    group: Ints
    """`job`, `role` and `group`: (P,) whose tasks, which role, where."""
    count: Floats
    gpus: Floats
    """`count` and `gpus`: (P,) tasks, and the GPUs they hold: half of them while the job shares them with another one.
    When it holds them alone from then on, without being placed anew, that is a row of its own."""
    cpus: Floats
    memory_gb: Floats
    """`cpus` and `memory_gb`: (P,) cores and GB that they hold: as declared, or as the decision gave them."""
    start_s: Floats
    end_s: Floats
    """`start_s` and `end_s`: (P,) seconds; tasks still held when the log ends, end with it."""

    @property
    def gpu_s(self) -> Floats:
        """GPU-seconds of each row, (P,)."""
        return self.gpus * (self.end_s - self.start_s)


def is_kind(rows: Events, *kinds: Kind) -> Bools:
    """Return which events are of some kinds, (E,)."""
    wanted = np.zeros(max(Kind) + 2, dtype=np.bool_)  # the last for kind -1
    wanted[list(kinds)] = True
    found: Bools = wanted[rows["kind"]]
    return found


def by_job(rows: Events, chosen: Bools) -> NDArray[np.intp]:
    """Return the indices of the chosen events, job after job, each job's in order of the log."""
    index = np.flatnonzero(chosen)
    return index[np.argsort(rows["job"][index], kind="stable")]


def end_s(rows: Events) -> float:
    """Return the time of the last event, 0 without any."""
    return float(rows["time_s"].max()) if len(rows) else 0.0


def placements(rows: Events) -> tuple[Bools, Bools]:
    """Return which events are rows of placements, and which of them are the first row of one, (E,) each."""
    job, time_s, placed = rows["job"], rows["time_s"], is_kind(rows, Kind.PLACED)
    begins = placed.copy()
    begins[1:] &= ~(placed[:-1] & (job[1:] == job[:-1]) & (time_s[1:] == time_s[:-1]))
    return placed, begins


def holdings(rows: Events, jobs: Jobs) -> Holdings:
    """Return the tasks that each job held, with start and end.

    The rows of a placement come together in the log and replace the job's earlier ones; PREEMPTED, COMPLETED, FAILED
    and DROPPED give everything back.
    """
    job, time_s = rows["job"], rows["time_s"]
    placed, begins = placements(rows)
    marks = by_job(rows, begins | is_kind(rows, *_GIVE_BACK))
    until = np.full(len(marks), end_s(rows))
    same_job = job[marks[1:]] == job[marks[:-1]]
    until[:-1][same_job] = time_s[marks[1:]][same_job]
    until_of = np.zeros(len(rows))
    until_of[marks] = until
    task = rows[placed]
    each = np.stack([jobs.worker_demand, jobs.ps_demand])[task["role"], task["job"]]
    for r, amount in ((CPUS, task["cpus"]), (MEMORY_GB, task["memory_gb"])):
        each[:, r] = np.where(np.isnan(amount), each[:, r], amount)
    gpus, cpus, memory_gb = (task["value"][:, None] * each).T
    placement = (np.cumsum(begins) - 1)[placed]  # of each row
    held = Holdings(
        job=task["job"],
        role=task["role"],
        group=task["group"],
        count=task["value"],
        gpus=gpus,
        cpus=cpus,
        memory_gb=memory_gb,
        start_s=task["time_s"],
        end_s=until_of[begins][placement],
    )
    if not (task["partner"] >= 0).any():
        return held
    together_s = _together_until(rows[begins], until_of[begins])[placement]
    return _shared(held, np.where((task["partner"] >= 0) & (task["role"] == Role.WORKER), together_s, -np.inf))


def _together_until(first: Events, until_s: Floats) -> Floats:
    """Return until when each placement's job shares its GPUs; of a pair, both come together in the log."""
    paired = np.flatnonzero(first["partner"] >= 0)
    job, partner = first["job"][paired], first["partner"][paired]
    couple = np.maximum(job, partner).astype(np.int64) << 32 | np.minimum(job, partner)
    order = np.argsort(couple, kind="stable")
    first_of = np.searchsorted(couple[order], couple[order])
    mate = first_of + ((np.arange(len(order)) - first_of) ^ 1)  # the other one of two that follow each other
    mate = np.where(mate < len(order), mate, 0)
    cut = couple[order][mate] != couple[order]  # the log ends between the two
    mine, theirs = until_s[paired[order]], until_s[paired[order]][mate]
    together_s = until_s.copy()
    together_s[paired[order]] = np.where(cut, mine, np.minimum(mine, theirs))
    return together_s


def _shared(rows: Holdings, together_s: Floats) -> Holdings:
    """Halve the GPUs of rows up to a moment; what a row holds after it is another row."""
    shares = np.isfinite(together_s)
    alone = shares & (together_s < rows.end_s)
    row = np.repeat(np.arange(len(shares)), 1 + alone)
    second = np.append(False, row[1:] == row[:-1])
    halved = np.where(shares[row] & ~second, 0.5, 1.0)
    return Holdings(
        job=rows.job[row],
        role=rows.role[row],
        group=rows.group[row],
        count=rows.count[row],
        gpus=rows.gpus[row] * halved,
        cpus=rows.cpus[row],
        memory_gb=rows.memory_gb[row],
        start_s=np.where(second, together_s[row], rows.start_s[row]),
        end_s=np.where(alone[row] & ~second, together_s[row], rows.end_s[row]),
    )


def gantt(rows: Events, jobs: Jobs, cluster: Cluster) -> pd.DataFrame:
    """Return a row per task group that was held, and when.

    Columns: job, id, role, machine, group, count, then gpus, cpus and memory_gb of all its tasks, start_s, end_s.
    """
    import pandas as pd

    held = holdings(rows, jobs)
    names = np.array([role.name.lower() for role in Role], dtype=object)
    return pd.DataFrame(
        {
            "job": held.job,
            "id": jobs.id[held.job].astype(str),
            "role": names[held.role].astype(str),
            "machine": np.array(cluster.machines, dtype=object)[cluster.group_machine[held.group]].astype(str),
            "group": held.group,
            "count": held.count,
            "gpus": held.gpus,
            "cpus": held.cpus,
            "memory_gb": held.memory_gb,
            "start_s": held.start_s,
            "end_s": held.end_s,
        }
    )


def utilisation(rows: Events, jobs: Jobs, cluster: Cluster) -> pd.DataFrame:
    """Return GPUs held over time, a step function: from time_s on, `gpus` are held, `fraction` of those built.

    Machines that failed count as built: what they take away shows as idle.
    """
    import pandas as pd

    held = holdings(rows, jobs)
    times = np.concatenate([[0.0], held.start_s, held.end_s, [end_s(rows)]])
    change = np.concatenate([[0.0], held.gpus, -held.gpus, [0.0]])
    moment, which = np.unique(times, return_inverse=True)
    gpus = np.cumsum(np.bincount(which, change, len(moment)))
    gpus = np.where(np.abs(gpus) < 1e-9, 0.0, gpus)
    return pd.DataFrame({"time_s": moment, "gpus": gpus, "fraction": gpus / max(cluster.n_gpus, 1)})


def heat_map(rows: Events, jobs: Jobs, cluster: Cluster, *, n_bins: int = 60) -> pd.DataFrame:
    """Return the mean GPUs held per machine and time bin: machine, bin, start_s, end_s, gpus, fraction.

    M * n_bins rows, machine after machine. A machine without GPUs has fraction 0.
    """
    held = holdings(rows, jobs)
    built = np.bincount(cluster.group_machine, cluster.capacity[:, GPUS], cluster.n_machines)
    machine = cluster.group_machine[held.group].astype(np.int64)
    return cells(machine, held.start_s, held.end_s, held.gpus, names=cluster.machines,
                 built=built.astype(np.float64), until_s=end_s(rows), n_bins=n_bins)  # fmt: skip


def cells(
    lane: NDArray[np.int64], from_s: Floats, to_s: Floats, gpus: Floats, *, names: Sequence[str], built: Floats,
    until_s: float, n_bins: int,
) -> pd.DataFrame:  # fmt: skip
    """Return the columns of `heat_map` for lanes, from what is held in which, from when to when, and what each has."""
    import pandas as pd

    edges = np.linspace(0.0, max(until_s, 1e-9), n_bins + 1)
    held_gpu_s = _ramps(lane, from_s, gpus, edges, len(names)) - _ramps(lane, to_s, gpus, edges, len(names))
    gpus = np.maximum(held_gpu_s / (edges[1] - edges[0]), 0.0)
    fraction = gpus / np.where(built > 0, built, np.inf)[:, None]
    return pd.DataFrame(
        {
            "machine": np.repeat(np.array(names, dtype=object).astype(str), n_bins),
            "bin": np.tile(np.arange(n_bins), len(names)),
            "start_s": np.tile(edges[:-1], len(names)),
            "end_s": np.tile(edges[1:], len(names)),
            "gpus": gpus.ravel(),
            "fraction": fraction.ravel(),
        }
    )


def _ramps(machine: NDArray[np.int64], from_s: Floats, rate: Floats, edges: Floats, n_machines: int) -> Floats:
    """Return the area per bin, (M, B), under steps of height `rate` that begin at `from_s` and never end."""
    n_bins, width = len(edges) - 1, edges[1] - edges[0]
    bin_of = np.clip(((from_s - edges[0]) / width).astype(np.int64), 0, n_bins - 1)
    cell = machine * n_bins + bin_of
    first = np.bincount(cell, rate * (edges[bin_of + 1] - from_s), n_machines * n_bins).reshape(n_machines, n_bins)
    steps = np.bincount(cell, rate, n_machines * n_bins).reshape(n_machines, n_bins)
    full = np.cumsum(steps, axis=1) - steps  # bins after the one in which the step begins
    area: Floats = first + full * width
    return area


def time_split(rows: Events, jobs: Jobs) -> pd.DataFrame:
    """Return how each job spent its time: job, waiting_s, overhead_s, training_s.

    Waiting: it holds no tasks. Overhead: it holds tasks and makes no progress (start, checkpoint, move, restart).
    Training: it holds tasks and progresses. Time after the last event of the log does not count.
    """
    import pandas as pd

    marks = by_job(rows, is_kind(rows, *_MARKS))
    job, kind, time_s = rows["job"][marks], rows["kind"][marks], rows["time_s"][marks]
    before = np.concatenate([[-1], kind[:-1]])
    first = np.concatenate([[True], job[1:] != job[:-1]]) if len(job) else np.zeros(0, np.bool_)
    placed_anew = (kind == Kind.PLACED) & ~(np.isin(before, _WAITS) | first)  # trains on until it is paused
    job, kind, time_s = job[~placed_anew], kind[~placed_anew], time_s[~placed_anew]
    state = _state_after()[kind]
    until = np.full(len(job), end_s(rows))
    same_job = job[1:] == job[:-1]
    until[:-1][same_job] = time_s[1:][same_job]
    spent = np.bincount(job * 4 + state, until - time_s, 4 * len(jobs)).reshape(-1, 4)
    columns = {"waiting_s": WAITING, "overhead_s": OVERHEAD, "training_s": TRAINING}
    return pd.DataFrame({"job": np.arange(len(jobs))} | {name: spent[:, axis] for name, axis in columns.items()})


def _state_after() -> NDArray[np.int64]:
    """Return a job's state after each kind of event, indexed by kind."""
    state = np.full(max(Kind) + 1, OVERHEAD)
    state[list(_WAITS)] = WAITING
    state[list(_TRAINS)] = TRAINING
    state[[Kind.COMPLETED, Kind.DROPPED]] = OVER
    return state


def forwarding(rows: Events, jobs: Jobs, cluster: Cluster) -> pd.DataFrame:
    """Return how many jobs of each pod were forwarded to each other pod, one row per pair of pods.

    Columns: home (the pod that a job belonged to), pod (where it was forwarded to), n_jobs (0 where home is pod: jobs
    that stay are no events), fraction (n_jobs over the jobs that arrived at that home; NaN where none did).

    A recording of a labkit that told of no pods has no such events, and zeros here.
    """
    import pandas as pd

    n = n_pods(cluster)
    belongs = jobs.home.copy()
    sent = np.zeros((n, n), np.int64)
    moves = rows[is_kind(rows, Kind.FORWARDED)]
    for job, to in zip(moves["job"].tolist(), moves["value"].astype(np.int64).tolist(), strict=True):
        sent[belongs[job], to] += 1
        belongs[job] = to
    came = rows["job"][is_kind(rows, Kind.ARRIVED)]
    homes = jobs.home[came]
    arrived = np.bincount(homes[homes >= 0], minlength=n).astype(np.float64)
    home, pod = np.divmod(np.arange(n * n), n)
    part = sent / np.where(arrived > 0, arrived, np.nan)[:, None]
    return pd.DataFrame({"home": home, "pod": pod, "n_jobs": sent.ravel(), "fraction": part.ravel()})
