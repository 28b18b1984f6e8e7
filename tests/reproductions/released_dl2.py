"""DL2's released environment, job by job in plain Python: what compiled episodes by its rules are checked against.

Written from the description of rl_env.py, scheduler_base.py and cluster.py (github.com/pengyanghua/DL2 at 2e54920),
with nothing of labkit's own draft; resources are slots, of which a core is one and a GPU four.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.experiment import Experiment


@dataclass
class Job:
    number: int
    type: int
    arrival: int
    epochs: float
    worker: np.ndarray
    ps: np.ndarray
    most: int
    speed: np.ndarray
    done: float = 0.0
    w: int = 0
    p: int = 0
    end: float = np.nan


@dataclass
class Released:
    """One episode: `begin` a slot, `act` until it is over, `move` on."""

    jobs: list[Job]
    n_nodes: int
    slot_s: float
    n_seen: int
    now: int = 0
    used: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, experiment: Experiment, *, slot_s: float, n_seen: int, models: list[str]) -> Released:
        table, grid, row = experiment.jobs, experiment.speed.grid, experiment.speed.row
        jobs = [
            Job(
                number=i,
                type=models.index(table.models[table.model[i]]) + 1,
                arrival=round(table.arrival_s[i] / slot_s),
                epochs=table.total_steps[i] / table.steps_per_epoch[i],
                worker=np.array([table.worker_demand[i, 1], 4 * table.worker_demand[i, 0]]),
                ps=np.array([table.ps_demand[i, 1], 4 * table.ps_demand[i, 0]]),
                most=int(table.max_workers[i]),
                speed=grid[row[i]] / table.steps_per_epoch[i],  # epochs a second by (p, w)
            )
            for i in range(len(table))
        ]
        return cls(jobs, experiment.cluster.n_groups, slot_s, n_seen)

    @property
    def there(self) -> list[Job]:
        return [job for job in self.jobs if job.arrival <= self.now and np.isnan(job.end)]

    @property
    def over(self) -> bool:
        return all(not np.isnan(job.end) for job in self.jobs)

    def begin(self) -> None:
        self.used = np.zeros((self.n_nodes, 2))
        for job in self.there:
            job.w = job.p = 0
        for job in self.there:
            if self._alloc(job.worker + job.ps):
                job.w = job.p = 1

    def _alloc(self, request: np.ndarray) -> bool:
        node = min(range(self.n_nodes), key=lambda i: (round(self.used[i].sum(), 6), i))
        if (self.used[node] + request > 8 + 1e-9).any():
            return False
        self.used[node] += request
        return True

    @property
    def window(self) -> list[Job]:
        return [job for job in self.there if not (job.w >= job.most and job.p >= job.most)][: self.n_seen]

    def state(self) -> np.ndarray:
        """Return 6 x J numbers, as the code has them."""
        state = np.zeros((6, self.n_seen))
        for k, job in enumerate(self.window):
            share = (job.w * job.worker + job.p * job.ps).max() / (8 * self.n_nodes)
            state[:, k] = [job.type, self.now - job.arrival, 1 - job.done / job.epochs, share, job.w, job.p]
        return state

    def mask(self) -> np.ndarray:
        mask = np.zeros(3 * self.n_seen + 1, bool)
        mask[-1] = True
        for k, job in enumerate(self.window):
            mask[3 * k] = job.w < job.most
            mask[3 * k + 1] = job.p < job.most
            mask[3 * k + 2] = job.w < job.most and job.p < job.most
        return mask

    def act(self, action: int) -> bool:
        """Return whether what an action asks for found room."""
        job, what = self.window[action // 3], action % 3
        w, p = int(what in (0, 2)), int(what in (1, 2))
        if not self._alloc(w * job.worker + p * job.ps):
            return False
        job.w, job.p = job.w + w, job.p + p
        return True

    def could_fail(self) -> bool:
        """Tell whether some action that is allowed finds no room."""
        used = self.used.copy()
        for action in np.flatnonzero(self.mask()[:-1]).tolist():
            job, what = self.window[action // 3], action % 3
            fits = self._alloc((what in (0, 2)) * job.worker + (what in (1, 2)) * job.ps)
            self.used = used.copy()
            if not fits:
                return True
        return False

    def move(self) -> float:
        """Let the slot pass; return its reward, eq. 1."""
        reward = 0.0
        for job in self.there:
            if not (job.w and job.p):
                continue
            can = float(job.speed[job.p, job.w]) * self.slot_s
            did = min(can, job.epochs - job.done)
            job.done += did
            reward += did / job.epochs
            if can >= did and job.done >= job.epochs * (1 - 1e-12):
                job.end = self.now + did / can
        self.now += 1
        while not self.there and not self.over:
            self.now += 1
        return reward
