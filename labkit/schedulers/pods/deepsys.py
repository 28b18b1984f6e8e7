"""DeepSys: each task where a learned predictor says that its job is fastest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.events import Role
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.placers.base import Rows, of_one_type, place_or_pack
from labkit.schedulers.pods.predictor import MachineTasks, features, load, model_gb, model_kind


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
        A file of `python -m labkit.learning.deepsys`; "": the weights that come with labkit.

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
        job, machines = int(self.gangs.job[i]), self._machines()
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

    def _machines(self) -> Ints:
        """Return the machines that the snapshot shows, with something to offer."""
        shown: Ints = np.unique(self.of[self.snapshot.offered.any(axis=1)])
        return shown
