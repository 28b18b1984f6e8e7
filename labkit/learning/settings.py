"""What a policy is trained on: traces drawn anew for each episode, on one cluster or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.experiment.experiment import Experiment
from labkit.speed.dl2 import FittedTable, fitted
from labkit.speed.measured import ByGang, MeasuredSpeed, SpeedTable
from labkit.speed.tabled import analytic
from labkit.topology import build
from labkit.workloads.expressions import is_generated, trace

FITTED = "fitted"
ANALYTIC = "analytic"

FIRST_SEED = 1_000_000
"""Seeds of training are this and above; evaluate with smaller ones."""


def refuse_files(traces: Sequence[str], *, such_as: str) -> None:
    """Raise if a trace is a file.

    Raises
    ------
    InputError
        It names the file, and a generator such as there should be.
    """
    for what in traces:
        if not is_generated(what):
            raise InputError(
                f"trace {what} is a file; expected a generator such as {such_as}: a policy that learns from one trace "
                "knows nothing of others."
            )


def fresh(generator: str, rng: np.random.Generator) -> Jobs:
    """Return a trace that no evaluation sees."""
    return trace(generator, seed=FIRST_SEED + int(rng.integers(1 << 30)))


@dataclass(frozen=True, eq=False)
class Setting:
    """Clusters and traces, of which each episode draws one.

    Attributes
    ----------
    clusters, traces : sequence of str
        Names or expressions; traces are generated, with a seed of their own in each episode.
    throughputs : sequence of path or str
        Tables of measured speeds; "fitted": the speeds that fit the trace by themselves; "analytic": those that
        Optimus' model predicts from ten gangs of each of DL2's models at their fitted speeds, or "analytic:FILE" from
        gangs of a table ("OfflineRL" of DL2's evaluation).
    """

    clusters: Sequence[str]
    traces: Sequence[str]
    throughputs: Sequence[Path | str] = (FITTED,)

    def __post_init__(self) -> None:
        refuse_files(self.traces, such_as="dl2_jobs('short_48n')")

    @cached_property
    def _built(self) -> list[Cluster]:
        return [build(name) for name in self.clusters]

    @cached_property
    def _tables(self) -> list[ByGang | None]:
        return [_table(str(path)) for path in self.throughputs]

    def __call__(self, rng: np.random.Generator) -> Experiment:
        """Return the experiment of an episode."""
        cluster = self._built[int(rng.integers(len(self._built)))]
        what = self.traces[int(rng.integers(len(self.traces)))]
        table = self._tables[int(rng.integers(len(self._tables)))]
        jobs = fresh(what, rng)
        if table is None:
            return Experiment.of(jobs, cluster=cluster)
        return Experiment.of(jobs, cluster=cluster, speed=MeasuredSpeed(jobs, cluster, table=table))

    def models(self) -> list[str]:
        """Return the models that occur, in order of first sight over some traces."""
        rng = np.random.default_rng(0)
        return list(dict.fromkeys(name for _ in range(20) for name in self(rng).jobs.models))


def _table(what: str) -> ByGang | None:
    """Return a table of speeds; None: those that fit the trace by themselves."""
    if what == FITTED:
        return None
    kind, _, path = what.partition(":")
    if kind != ANALYTIC:
        return SpeedTable.read(what)
    known: SpeedTable | FittedTable = SpeedTable.read(path) if path else fitted()
    return analytic(known, known.models)
