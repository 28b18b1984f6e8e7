"""DeepSys: each task goes where a small network predicts the highest speed, from what stands beside it."""

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
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.core.weights import Tensors, WeightsFiles, other_names
from labkit.placers.base import Rows, of_one_type, place_or_pack
from labkit.workloads import catalogue

MODELS: Final = catalogue.DL2_MODELS
MOST: Final = 4
"""Machines of a gang that are looked at one by one: those with most of its tasks."""

N_FEATURES: Final = len(MODELS) + 1 + 4 + 5 * MOST + 2
HOW: Final = "python -m reproductions.deepsys --seed 1 --out deepsys.safetensors"
FILES: Final = WeightsFiles(
    policy="deepsys",
    version="1",
    remedy=f"Train it again: {HOW}.",
    folder=Path(__file__).with_name("weights"),
    of="weights of deepsys",
)


class MachineTasks(NamedTuple):
    """What stands on each machine: tasks, workers, and GB of parameters of the jobs of these tasks, (M,) each."""

    tasks: Floats
    workers: Floats
    gb: Floats


def model_gb(jobs: Jobs) -> Floats:
    """Return the GB of parameters of each job, (N,); 0 of a model that the catalogue does not know."""
    return _by_model(jobs, {model.name: model.bytes / 1e9 for model in catalogue.models()}, 0.0)


def model_kind(jobs: Jobs) -> Ints:
    """Return the position of each job's model in `MODELS`, (N,); their number for another one."""
    return _by_model(jobs, {name: float(k) for k, name in enumerate(MODELS)}, float(len(MODELS))).astype(np.int32)


def _by_model(jobs: Jobs, known: dict[str, float], otherwise: float) -> Floats:
    of = np.array([known.get(str(name), otherwise) for name in jobs.models] + [otherwise])
    found: Floats = of[jobs.model]
    return found


def machines_of(snapshot: Snapshot) -> Ints:
    """Return the machines that the snapshot shows, with something to offer."""
    shown: Ints = np.unique(snapshot.cluster.group_machine[snapshot.offered.any(axis=1)]).astype(np.int32)
    return shown


def features(kind: int, workers: Floats, servers: Floats, beside: MachineTasks) -> Floats:
    """Return what the network sees of a gang in some places, (K, N_FEATURES).

    Parameters
    ----------
    kind : int
        Position of its model in `MODELS`.
    workers, servers : array
        (K, M) its workers and PSs on each machine, one row for each place.
    beside : MachineTasks
        The tasks of others.

    Returns
    -------
    array
        The model, one-hot; workers / 4, PSs / 4, machines / 4, the part of (worker, PS) pairs on one machine; of the
        machines with most of its tasks: workers / 4, PSs / 4, and of others tasks / 8, workers / 4, GB; the most tasks
        and GB of others on any of its machines.
    """
    k, there = len(workers), workers + servers
    n_w, n_p = workers.sum(axis=1), servers.sum(axis=1)
    seen = np.zeros((k, N_FEATURES), np.float64)
    seen[:, kind] = 1.0
    at = len(MODELS) + 1
    local = (workers * servers).sum(axis=1) / np.maximum(n_w * n_p, 1.0)
    seen[:, at : at + 4] = np.column_stack([n_w / 4, n_p / 4, (there > 0).sum(axis=1) / 4, local])
    at += 4
    top = np.argsort(-there, axis=1, kind="stable")[:, :MOST]
    used = np.take_along_axis(there, top, axis=1) > 0
    for i, column in enumerate((workers / 4, servers / 4)):
        seen[:, at + i : at + 5 * top.shape[1] : 5] = np.take_along_axis(column, top, axis=1)
    for i, amount in enumerate((beside.tasks / 8, beside.workers / 4, beside.gb), start=2):
        seen[:, at + i : at + 5 * top.shape[1] : 5] = np.where(used, amount[top], 0.0)
    seen[:, -2] = np.where(there > 0, beside.tasks / 8, 0.0).max(axis=1)
    seen[:, -1] = np.where(there > 0, beside.gb, 0.0).max(axis=1)
    return seen


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network of two hidden layers of ReLU: features to speed over the speed alone on one machine."""

    layers: tuple[tuple[Floats, Floats], ...]
    """Weights (in, out) and biases (out,) of each layer."""
    source: str = ""
    """How it was made, and how well it predicts."""

    def __call__(self, seen: Floats) -> Floats:
        """Return the speed that is predicted, as part of the speed alone, (K,)."""
        for weights, bias in self.layers[:-1]:
            seen = np.maximum(seen @ weights + bias, 0.0)
        weights, bias = self.layers[-1]
        predicted: Floats = (seen @ weights + bias)[:, 0]
        return predicted

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        tensors = {f"weights{i}": weights for i, (weights, _) in enumerate(self.layers)}
        FILES.write(path, tensors | {f"bias{i}": bias for i, (_, bias) in enumerate(self.layers)}, source=self.source)


@lru_cache(maxsize=8)
def load(path: str = "") -> Predictor:
    """Return the predictor of a file; "": the one that comes with labkit.

    Raises
    ------
    InputError
        If it cannot be read, or holds something else.
    """
    if path and Path(path).suffix != ".safetensors":
        raise InputError(f"weights of deepsys is {path!r}; expected the path of a .safetensors file. Make one: {HOW}.")
    tensors, (source,) = FILES.load(path or "deepsys", _fault, source=str)
    return Predictor(_layers(tensors), source)


def _layers(tensors: Tensors) -> tuple[tuple[Floats, Floats], ...]:
    return tuple((tensors[f"weights{i}"].astype(float), tensors[f"bias{i}"].astype(float)) for i in range(3))


def _fault(tensors: Tensors) -> str:
    if fault := other_names(tensors, tuple(f"{kind}{i}" for kind in ("weights", "bias") for i in range(3))):
        return fault
    layers = _layers(tensors)
    sizes = [N_FEATURES, *(len(bias) for _, bias in layers)]
    fits = all(w.shape == (a, b) for (w, _), a, b in zip(layers, sizes, sizes[1:], strict=False))
    if not fits or sizes[-1] != 1 or not all(np.isfinite(t).all() for t in tensors.values()):
        found = [w.shape for w, _ in layers]
        return f"layers of {found}; expected finite ones from {N_FEATURES} features to one number"
    return ""


@dataclass(frozen=True, slots=True)
class DeepSys:
    """Put the tasks of a gang one by one on the machine with the highest speed predicted, workers before PSs [1]_.

    The speed is predicted of the gang with the tasks that have a place where they are and all others on the machine
    that is tried: a machine with room for the whole gang and few others wins. Ties go to the first machine, there to
    the emptiest device group. The text of DeepSys was not at hand: network and features are read from what [2]_ says.
    Gangs that may shrink or share GPUs, and all of them where no gang finds room this way, are packed (`Pack`).

    Attributes
    ----------
    weights : str
        A file of `python -m reproductions.deepsys`; "": the weights that come with labkit.

    References
    ----------
    .. [1] DeepSys, Internetware 2020.
    .. [2] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A.
    """

    weights: str = ""

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_or_pack(
            lambda: Greedy(snapshot, gangs, self.weights).place_all(strict=strict), snapshot, gangs, strict=strict
        )


class Greedy:
    """Machines and the tasks on them, which grow gang by gang."""

    def __init__(self, snapshot: Snapshot, gangs: Gangs, weights: str) -> None:
        self.snapshot, self.gangs, self.predict = snapshot, gangs, load(weights)
        self.trial = Trial(snapshot, without=gangs.named)
        self.of, n = snapshot.cluster.group_machine, snapshot.cluster.n_machines
        self.kind, self.gb = model_kind(snapshot.table), model_gb(snapshot.table)
        there = self.trial.running()
        machine, job = self.of[there.group], there.job[there.row_job()]
        self.beside = MachineTasks(
            np.bincount(machine, there.count, n).astype(np.float64),
            np.bincount(machine, there.count * (there.role == Role.WORKER), n).astype(np.float64),
            np.bincount(machine, there.count * self.gb[job], n).astype(np.float64),
        )

    def place_all(self, *, strict: bool) -> tuple[Bools, Rows]:
        """Return which gangs found room, and the rows of the placement: job, role, group, count."""
        placed = np.zeros(len(self.gangs), np.bool_)
        for i in range(len(placed)):
            placed[i] = self.place(i)
            if strict and not placed[i]:
                break
        return placed, self.trial.rows(self.gangs.job)

    def place(self, i: int) -> bool:
        """Place one more gang; where it does not fit, all is as before."""
        job, machines = int(self.gangs.job[i]), machines_of(self.snapshot)
        on = np.zeros((2, len(machines)))
        usable = of_one_type(self.snapshot, self.gangs, i, self.trial.room(job, Role.WORKER))
        left = [int(self.gangs.n_workers[i]), int(self.gangs.n_ps[i])]
        position = np.full(self.snapshot.cluster.n_machines, -1)
        position[machines] = np.arange(len(machines))
        mine: list[tuple[int, int]] = []
        beside = MachineTasks(*(column[machines] for column in self.beside))
        for role in (Role.WORKER, Role.PS):
            for _ in range(left[role]):
                room = self.trial.room(job, role)
                if role is Role.WORKER:
                    room = np.where(usable, room, 0)
                best = self._best(job, left, on, np.unique(position[self.of[room > 0]]), beside)
                if best < 0:
                    for its_role, group in mine:
                        self.trial.remove(job, its_role, group)
                    return False
                group = int(np.where(self.of == machines[best], room, 0).argmax())
                self.trial.add(job, role, group)
                mine.append((int(role), group))
                on[role, best] += 1
                left[role] -= 1
        for column, each in zip(self.beside, (on.sum(axis=0), on[0], on.sum(axis=0) * self.gb[job]), strict=True):
            column[machines] += each
        return True

    def _best(self, job: int, left: list[int], on: Floats, fits: Ints, beside: MachineTasks) -> int:
        """Return the position of the best of the machines where one more task fits, or -1."""
        if not len(fits):
            return -1
        k = np.arange(len(fits))
        workers, servers = (np.repeat(on[role][None], len(fits), axis=0) for role in (0, 1))
        workers[k, fits] += left[Role.WORKER]
        servers[k, fits] += left[Role.PS]
        predicted = self.predict(features(int(self.kind[job]), workers, servers, beside))
        return int(fits[predicted.round(6).argmax()])
