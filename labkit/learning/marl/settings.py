"""A trace on a cluster with interference, ready to be played in compiled code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.experiment.experiment import Experiment
from labkit.experiment.fitting import refuse_unfit
from labkit.learning.marl.episodes import World
from labkit.learning.settings import FIRST_SEED, files_of, fresh, window
from labkit.schedulers.marl.network import Scene
from labkit.schedulers.marl.scenes import declared_speed, scene_of
from labkit.speed.interference.levels import Level, level
from labkit.speed.interference.model import InterferenceModel
from labkit.speed.interference.use import ModelUse
from labkit.speed.step_time import step_time
from labkit.speed.what_if import facts_of, slow_of, tasks_of
from labkit.topology import build
from labkit.workloads.expressions import trace


def world_of(
    jobs: Jobs,
    cluster: Cluster,
    *,
    model: InterferenceModel | None,
    uses: Mapping[str, ModelUse] | None,
    declared_uses: Mapping[str, ModelUse] | None = None,
) -> tuple[Scene, World]:
    """Return the scheduler's knowledge, and the truth; both empty, and of the same jobs.

    `model`, `uses`: the truth about interference: `Level.model`,
    `Level.uses`; `declared_uses`: what the scheduler knows
    that tasks use: `Level.declared`.
    """
    truth = step_time(jobs, cluster, share="equal")
    runs_on, n = truth.runs_on(), len(jobs)
    declared = jobs.declared.as_if_true()
    known = scene_of(declared, cluster, runs_on=runs_on, speed=declared_speed(declared, cluster), uses=declared_uses)
    facts, most = facts_of(jobs, cluster, speed=truth, uses=uses), int((jobs.n_workers + jobs.n_ps).max())
    return known, World(
        jobs.arrival_s.astype(np.float64), jobs.true_steps.astype(np.float64), facts, slow_of(model),
        tasks_of(facts, most_tasks=most), np.zeros(n), np.full(n, np.nan), np.full(n, np.nan),
        np.full((n, most), -1, np.int64),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Setting:
    """Clusters and traces, of which each episode draws one, and how co-located jobs slow each other there.

    Attributes
    ----------
    clusters, traces : sequence of str
        Names or expressions. A generated trace has a seed of its own in each episode; of a file, an episode is a
        window, as in `labkit.learning.settings.Setting`.
    interference : str
        As `labkit.speed.interference.levels.level` takes it.
    """

    clusters: Sequence[str]
    traces: Sequence[str]
    interference: str = "calibrated"

    def __getstate__(self) -> dict[str, Any]:
        """Return clusters and interference by content: workers elsewhere need no file."""
        return {
            **self.__dict__,
            "built": self.built,
            "files": self.files,
            "interference_level": self.interference_level,
        }

    def identity(self) -> dict[str, Any]:
        """Return the identity of a training in this setting: names, and the content of files."""
        files = [what for what in (*self.clusters, *self.traces, self.interference) if Path(what).is_file()]
        digests = [hashlib.sha256(Path(what).read_bytes()).hexdigest()[:16] for what in files]
        told = {"clusters": list(self.clusters), "traces": list(self.traces), "interference": str(self.interference)}
        return {**told, "files": digests}

    @cached_property
    def built(self) -> list[Cluster]:
        """The clusters."""
        return [build(name) for name in self.clusters]

    @cached_property
    def interference_level(self) -> Level | None:
        """The interference by what is known of it; None: none."""
        return level(self.interference)

    def __call__(self, rng: np.random.Generator) -> tuple[Scene, World]:
        """Return the trace of an episode on a cluster: what is known, and the truth."""
        return self.world(*self.drawn(rng))

    def drawn(self, rng: np.random.Generator) -> tuple[Jobs, Cluster]:
        """Return the trace of an episode and its cluster."""
        cluster = self.built[int(rng.integers(len(self.built)))]
        what = self.traces[int(rng.integers(len(self.traces)))]
        if what in self.files:
            return window(self.files[what], rng, held_out=False), cluster
        return fresh(what, rng), cluster

    @cached_property
    def files(self) -> dict[str, Jobs]:
        """The jobs of each trace that is a file; a short one is refused."""
        return files_of(self.traces)

    def held_out(self, number: int) -> Experiment:
        """Return an experiment that training never draws: seed `number` of a trace, or a window of its last quarter."""
        rng = np.random.default_rng(number)
        cluster = self.built[int(rng.integers(len(self.built)))]
        what = self.traces[int(rng.integers(len(self.traces)))]
        jobs = window(self.files[what], rng, held_out=True) if what in self.files else trace(what, seed=number)
        return Experiment.of(jobs, cluster=cluster, interference=self.interference_level)

    def world(self, jobs: Jobs, cluster: Cluster) -> tuple[Scene, World]:
        """Return the scheduler's knowledge of a trace on a cluster, and the truth."""
        known = self.interference_level
        if known is None:
            return world_of(jobs, cluster, model=None, uses=None)
        return world_of(jobs, cluster, model=known.model, uses=known.uses, declared_uses=known.declared)

    @property
    def n_pods(self) -> int:
        """Pods of the cluster that has most."""
        return max(int(cluster.partition.max()) + 1 for cluster in self.built)

    def refuse_unfit(self, *, n: int = 3) -> None:
        """Raise if a job fits no machine in one of some episodes.

        Raises
        ------
        InputError
            It names the job.
        """
        for cluster in self.built:
            for what in self.traces:
                for seed in range(n):
                    jobs = self.files[what] if what in self.files else trace(what, seed=FIRST_SEED + seed)
                    made = Experiment.of(jobs, cluster=cluster, interference=self.interference_level)
                    refuse_unfit(made.jobs, made.cluster, made.speed.runs_on())
