"""Attention (SCARL, its part for machines): a network over machines, and a placer that gives each task the best one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK, room
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.core.weights import WeightsFiles, fault_of, other_names
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import add_to, fill_rows, fill_with
from labkit.placers.base import of_one_type, place_or_pack
from reproductions.deepsys.placer import MODELS, machines_of, model_kind

OF_MACHINE: Final = (
    "free_gpus", "free_cores", "gpus", "cores", "own_workers", "own_ps", "holds_rest", "tasks", "length", "empty",
)  # fmt: skip
"""What is seen of a machine: free parts of its GPUs and cores, its GPUs / 8 and cores / 32, the gang's workers / 4 and
PSs / 4 there, whether all of the gang that is left would fit, others' tasks / 8 and the mean length of their jobs
(log of 1 + slots), and whether it is empty of others."""
N_ABOUT: Final = len(MODELS) + 1 + 3
N_TASK: Final = N_ABOUT + 6
"""What is seen of a task: of its job the model, workers / 4, PSs / 4 and length; whether it is a PS, workers / 4 and
PSs / 4 that are left, its GPUs / 2 and cores / 4, and whether the gang has a place already."""
WIDTH: Final = 32
SLOT_S: Final = 1800.0
HOW: Final = "python -m reproductions.attention --seed 1 --out attention.safetensors"
FILES: Final = WeightsFiles(
    policy="attention",
    version="1",
    remedy=f"Train it again: {HOW}.",
    folder=Path(__file__).with_name("weights"),
    of="weights of attention",
)


@by_reference
class Net(NamedTuple):
    """The weights: two layers for machines, two for the task, the summary of machines, and scores."""

    machine: Floats
    machine_bias: Floats
    machine2: Floats
    machine2_bias: Floats
    """`machine`, `machine_bias`, `machine2` and `machine2_bias`: (F, W), (W,), (W, W), (W,)."""
    task: Floats
    task_bias: Floats
    task2: Floats
    task2_bias: Floats
    """`task`, `task_bias`, `task2` and `task2_bias`: (Q, W), (W,), (W, W), (W,)."""
    look: Floats
    look_machine: Floats
    look_out: Floats
    """`look`, `look_machine` and `look_out`: (W, W), (W, W), (W,) of the attention that sums machines up."""
    query: Floats
    key: Floats
    out: Floats
    """`query`, `key` and `out`: (2 W, W), (W, W), (W,) of the attention whose scores choose."""

    def save(self, path: str | Path, *, source: str = "") -> None:
        """Write a file, whole or not at all."""
        FILES.write(path, self._asdict(), source=source)


SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "machine": (len(OF_MACHINE), WIDTH), "machine_bias": (WIDTH,),
    "machine2": (WIDTH, WIDTH), "machine2_bias": (WIDTH,),
    "task": (N_TASK, WIDTH), "task_bias": (WIDTH,), "task2": (WIDTH, WIDTH), "task2_bias": (WIDTH,),
    "look": (WIDTH, WIDTH), "look_machine": (WIDTH, WIDTH), "look_out": (WIDTH,),
    "query": (2 * WIDTH, WIDTH), "key": (WIDTH, WIDTH), "out": (WIDTH,),
}  # fmt: skip


@by_reference
class Stand(NamedTuple):
    """Machines as they stand: M machines of G device groups."""

    free: Floats
    capacity: Floats
    """`free` and `capacity`: (G, R) what is free, from which tasks are taken, and what there is."""
    first_group: Ints
    """(M + 1,) the groups of each machine."""
    tasks: Floats
    length: Floats
    """`tasks` and `length`: (M,) tasks of others, and the sum of their jobs' lengths."""


class GangView(NamedTuple):
    """What a job asks for: (R,) of a worker and of a PS, how many, where (G,) they may go, and what is seen of it."""

    worker: Floats
    ps: Floats
    n_workers: int
    n_ps: int
    workers_on: Bools
    ps_on: Bools
    about: Floats


@by_reference
class Notes(NamedTuple):
    """Choices that were made: n (1,) so many; what was seen, where tasks fitted, what was taken, and whose job."""

    n: Ints
    machines: np.ndarray
    task: np.ndarray
    fits: Bools
    action: Ints
    job: Ints
    """`machines`, `task`, `fits`, `action` and `job`: (D, M, F), (D, Q), (D, M), (D,) positions among the machines,
    (D,)."""


def notes_of(n: int, n_machines: int) -> Notes:
    """Return room for so many choices among so many machines at most."""
    return Notes(
        np.zeros(1, np.int64), np.zeros((n, n_machines, len(OF_MACHINE)), np.float32),
        np.zeros((n, N_TASK), np.float32), np.zeros((n, n_machines), np.bool_), np.zeros(n, np.int64),
        np.zeros(n, np.int64),
    )  # fmt: skip


NO_NOTES: Final = notes_of(0, 0)


def length_of(jobs: Jobs) -> Floats:
    """Return the length of each job, (N,): log of 1 + declared slots of half an hour; 0 where it tells none."""
    length: Floats = np.log1p(np.maximum(np.nan_to_num(jobs.duration_s, nan=0.0, posinf=0.0), 0.0) / SLOT_S)
    return length


def about_of(jobs: Jobs) -> Floats:
    """Return what is seen of each job, (N, N_ABOUT)."""
    about = np.zeros((len(jobs), N_ABOUT))
    about[np.arange(len(jobs)), model_kind(jobs)] = 1.0
    about[:, -3:] = np.column_stack([jobs.n_workers / 4, jobs.n_ps / 4, length_of(jobs)])
    return about


@inner
def scores(net: Net, seen: Floats, task: Floats) -> Floats:
    """Return the score of each machine, (M,), from (M, F) and (Q,) [1]_.

    e are tanh embeddings of two layers; g = sum_m softmax_m(u . tanh(A e_task + B e_m)) e_m;
    score_m = v . tanh(W [e_task | g] + R e_m).

    References
    ----------
    .. [1] Cheong et al., "SCARL: attentive reinforcement learning-based scheduling in a multi-resource heterogeneous
       cluster", IEEE Access 2019.
    """
    e = np.tanh(np.tanh(seen @ net.machine + net.machine_bias) @ net.machine2 + net.machine2_bias)
    q = np.tanh(np.tanh(task @ net.task + net.task_bias) @ net.task2 + net.task2_bias)
    looked = np.tanh(e @ net.look_machine + q @ net.look) @ net.look_out
    part = np.exp(looked - looked.max())
    g = (part / part.sum()) @ e
    score: Floats = np.tanh(e @ net.key + np.concatenate((q, g)) @ net.query) @ net.out
    return score


@inner
def see_machines(stand: Stand, gang: GangView, machines: Ints, left: Ints, own: Floats, seen: Floats) -> None:
    """Write what is seen of some machines, (M, F); `left`: workers and PSs to place, `own` (2, M): those placed."""
    for i in range(len(machines)):
        m = machines[i]
        free, there, holds = np.zeros(stand.free.shape[1]), np.zeros(stand.free.shape[1]), True
        for g in range(stand.first_group[m], stand.first_group[m + 1]):
            if gang.ps_on[g]:
                free += stand.free[g]
            there += stand.capacity[g]
        for r in range(len(free)):
            holds &= left[0] * gang.worker[r] + left[1] * gang.ps[r] <= free[r] + SLACK
        seen[i, 0] = free[GPUS] / max(there[GPUS], 1.0)
        seen[i, 1] = free[CPUS] / max(there[CPUS], 1.0)
        seen[i, 2], seen[i, 3] = there[GPUS] / 8, there[CPUS] / 32
        seen[i, 4], seen[i, 5], seen[i, 6] = own[0, i] / 4, own[1, i] / 4, holds
        seen[i, 7] = stand.tasks[m] / 8
        seen[i, 8] = stand.length[m] / max(stand.tasks[m], 1.0)
        seen[i, 9] = stand.tasks[m] <= 0


@inner
def see_task(gang: GangView, role: int, left: Ints, begun: bool, seen: Floats) -> None:
    """Write what is seen of a task, (Q,)."""
    demand, at = gang.worker if role == 0 else gang.ps, len(gang.about)
    fill_with(seen[:at], gang.about)
    seen[at], seen[at + 1], seen[at + 2] = role, left[0] / 4, left[1] / 4
    seen[at + 3], seen[at + 4], seen[at + 5] = demand[GPUS] / 2, demand[CPUS] / 4, begun


@inner
def _group(stand: Stand, demand: Floats, on: Bools, m: int) -> int:
    """Return the group of a machine with room for most tasks of a demand, the first of equals; -1: none."""
    best, most = -1, 0
    for g in range(stand.first_group[m], stand.first_group[m + 1]):
        if on[g]:
            n = room(stand.free[g], demand, 1 << 20)
            if n > most:
                best, most = g, n
    return best


@inner
def _drawn(score: Floats, fits: Bools, u: float) -> int:
    """Return a machine by the chances of its score among those where a task fits; u in [0, 1)."""
    top = -np.inf
    for i in range(len(score)):
        if fits[i]:
            top = max(top, score[i])
    total = 0.0
    for i in range(len(score)):
        if fits[i]:
            total += np.exp(score[i] - top)
    left, last = u * total, -1
    for i in range(len(score)):
        if fits[i]:
            left -= np.exp(score[i] - top)
            last = i
            if left < 0:
                return i
    return last


@inner
def _best(score: Floats, fits: Bools) -> int:
    """Return the machine of the highest score among those where a task fits, the first of equals; -1: none."""
    best = -1
    for i in range(len(score)):
        if fits[i] and (best < 0 or score[i] > score[best] + 1e-9):
            best = i
    return best


@kernel
def place(
    net: Net, stand: Stand, gang: GangView, machines: Ints, groups: Ints, draws: bool, rng: np.random.Generator,
    notes: Notes, job: int,
) -> bool:  # fmt: skip
    """Place a gang task by task, workers before PSs; where it does not fit, all is as before.

    Parameters
    ----------
    machines : array
        Those that are looked at.
    groups : array
        (workers + PSs,) to be written to: the device group of each task.
    draws : bool
        Draw machines by the softmax of their scores; False: the highest score.
    notes : Notes
        Choices are added as long as there is room; those of a gang that does not fit are taken out.
    """
    k, begun = len(machines), notes.n[0]
    seen, task, own = np.zeros((k, len(OF_MACHINE))), np.zeros(N_TASK), np.zeros((2, k))
    fits, on_group = np.zeros(k, np.bool_), np.zeros(k, np.int64)
    left = np.array([gang.n_workers, gang.n_ps])
    for t in range(gang.n_workers + gang.n_ps):
        role = 0 if t < gang.n_workers else 1
        demand, on = (gang.worker, gang.workers_on) if role == 0 else (gang.ps, gang.ps_on)
        anywhere = False
        for i in range(k):
            on_group[i] = _group(stand, demand, on, machines[i])
            fits[i] = on_group[i] >= 0
            anywhere |= fits[i]
        if not anywhere:
            for s in range(t):
                add_to(stand.free[groups[s]], gang.worker if s < gang.n_workers else gang.ps, 1)
            notes.n[0] = begun
            return False
        see_machines(stand, gang, machines, left, own, seen)
        see_task(gang, role, left, t > 0, task)
        score = scores(net, seen, task)
        i = _drawn(score, fits, rng.random()) if draws else _best(score, fits)
        at = notes.n[0]
        if at < len(notes.job):
            fill_rows(notes.machines[at], seen)
            fill_with(notes.task[at], task)
            fill_with(notes.fits[at, :k], fits)
            notes.fits[at, k:] = False
            notes.action[at], notes.job[at] = i, job
            notes.n[0] += 1
        groups[t] = on_group[i]
        add_to(stand.free[on_group[i]], demand, -1)
        own[role, i] += 1
        left[role] -= 1
    return True


@lru_cache(maxsize=8)
def load(path: str = "") -> Net:
    """Return the network of a file; "": the one that comes with labkit.

    Raises
    ------
    InputError
        If it cannot be read, or holds something else.
    """
    if path and Path(path).suffix != ".safetensors":
        raise InputError(
            f"weights of attention is {path!r}; expected the path of a .safetensors file. Make one: {HOW}."
        )
    tensors, _ = FILES.load(
        path or "attention", lambda tensors: other_names(tensors, tuple(SHAPES)) or fault_of(tensors, SHAPES)
    )
    return Net(**{name: tensor.astype(np.float64) for name, tensor in tensors.items()})


_NO_DRAWS = np.random.default_rng(0)


@dataclass(frozen=True, slots=True)
class Attention:
    """Put the tasks of a gang one by one on the machine with the highest score of additive attention [1]_ [2]_.

    Workers come before PSs; the score is `reproductions.attention.placer.scores`, by what is free on machines and by
    the tasks that are there. Ties go to the first machine; there the task goes to the group with most room. It knows no
    interference. Gangs that may shrink or share GPUs, and all of them where no gang finds room this way, are
    packed (`Pack`).

    Attributes
    ----------
    weights : str
        A file of `python -m reproductions.attention`; "": the weights that come with labkit.

    References
    ----------
    .. [1] Cheong et al., "SCARL: attentive reinforcement learning-based scheduling in a multi-resource heterogeneous
       cluster", IEEE Access 2019.
    .. [2] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A (Atte).
    """

    weights: str = ""

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_or_pack(
            lambda: by_attention(load(self.weights), snapshot, gangs, strict=strict), snapshot, gangs, strict=strict
        )


def by_attention(net: Net, snapshot: Snapshot, gangs: Gangs, *, strict: bool) -> tuple[Bools, list[Ints]]:
    """Return which gangs found room, and the rows of the placement: job, role, group, count."""
    cluster, table = snapshot.cluster, snapshot.table
    trial, machines = Trial(snapshot, without=gangs.named), machines_of(snapshot)
    stand, length, about = _stand(snapshot, trial), length_of(table), about_of(table)[gangs.job]
    up = snapshot.up[cluster.group_machine]
    placed = np.zeros(len(gangs), np.bool_)
    for i, job in enumerate(gangs.job.tolist()):
        n_workers, n_ps = int(gangs.n_workers[i]), int(gangs.n_ps[i])
        usable = of_one_type(snapshot, gangs, i, trial.room(job, Role.WORKER))
        gang = GangView(table.worker_demand[job], table.ps_demand[job], n_workers, n_ps, usable, up, about[i])
        groups = np.zeros(n_workers + n_ps, np.int64)
        placed[i] = place(net, stand, gang, machines, groups, False, _NO_DRAWS, NO_NOTES, job)
        if not placed[i]:
            if strict:
                break
            continue
        for t, group in enumerate(groups.tolist()):
            role = Role.WORKER if t < n_workers else Role.PS
            trial.add(job, role, group)
            stand.tasks[cluster.group_machine[group]] += 1
            stand.length[cluster.group_machine[group]] += length[job]
    return placed, trial.rows(gangs.job)


def _stand(snapshot: Snapshot, trial: Trial) -> Stand:
    """Return the machines with the tasks of others."""
    cluster, there = snapshot.cluster, trial.running()
    of, n = cluster.group_machine[there.group], cluster.n_machines
    length = length_of(snapshot.table)[there.job[there.row_job()]]
    return Stand(
        trial.free.copy(), trial.book.capacity, trial.book.first_group.astype(np.int64),
        np.bincount(of, there.count, n).astype(np.float64),
        np.bincount(of, there.count * length, n).astype(np.float64),
    )  # fmt: skip
