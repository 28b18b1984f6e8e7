"""What the claims of DL2 are measured on: clusters, traces and speeds; and what its rivals do there."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.experiment import Experiment, every_slot
from labkit.experiment.caveats import Caveat
from labkit.experiment.scenario import Scenario
from labkit.learning.settings import FITTED, Setting
from labkit.simulator import Variation
from labkit.speed.dl2 import fitted
from labkit.speed.measured import ByGang, MeasuredSpeed, SpeedTable
from labkit.speed.tabled import analytic, rings
from labkit.topology import build
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2.federated import Federated
from reproductions.dl2.switches import Published
from reproductions.dl2.trainer import Trainer

SLOT_S: Final = 1200.0
TRACE: Final = "dl2_jobs('short_48n', pattern='google')"
RIVALS: Final = (
    "drf", "drf(published=True)", "fifo(published=True)", "srtf(published=True)", "tetris(published=True)", "optimus",
    "constant", "lookahead", "dl2", "drf, rings",
)  # fmt: skip
NETWORKS: Final = "dl2(weights=('dl2', 'dl2-fitted'))"
"""What `dl2` is in these results: the networks that share DL2's form."""
OF_DISTURBED: Final = ("drf", "optimus", "dl2")
ERRORS: Final = (0.2,)


@dataclass(frozen=True)
class World:
    """DL2's machines, its jobs, and one of two kinds of speeds.

    Attributes
    ----------
    n_nodes : int
        Machines of 8 cores and 2 GPUs.
    speeds : str
        A table of measured speeds, or "fitted".
    rings : bool
        Jobs have no parameter servers; see `labkit.speed.tabled.rings`.
    """

    n_nodes: int
    speeds: str
    rings: bool = False

    def key(self, what: str) -> str:
        """Return the name of a result."""
        return f"{self.n_nodes} nodes, {'fitted' if self.speeds == FITTED else 'measured'}: {what}"

    @cached_property
    def cluster(self) -> Cluster:
        """The machines."""
        return build(f"dl2-{self.n_nodes}n")

    @cached_property
    def table(self) -> ByGang:
        """The true speeds."""
        return fitted() if self.speeds == FITTED else SpeedTable.read(Path(self.speeds))

    def experiment(self, seed: int, **options: Any) -> Experiment:
        """Return what a policy is judged on."""
        known = dl2_jobs("short_48n", seed=seed, pattern="google")
        jobs = Scenario.of(known, seed=seed, epoch_error=options.pop("epoch_error", 0.0)).jobs()
        return self._on(jobs, self.table, cadence=every_slot(SLOT_S), seed=seed, **options)

    def _on(self, jobs: Jobs, table: ByGang, **options: Any) -> Experiment:
        """Return some jobs on a table's speeds."""
        if self.rings:
            jobs = jobs.with_columns(n_ps=np.zeros_like(jobs.n_ps), max_ps=np.zeros_like(jobs.max_ps))
        of = rings(jobs, self.cluster, table=table) if self.rings else MeasuredSpeed(jobs, self.cluster, table=table)
        return Experiment.of(jobs, cluster=self.cluster, speed=of, **options)

    def trainer(self, switches: Published, seed: int, *, on: str) -> Trainer | Federated:
        """Return what trains on the true speeds, or on those that the analytical model predicts."""
        setting = Setting([f"dl2-{self.n_nodes}n"], [TRACE], [self.speeds])
        table = analytic(self.table, DL2_MODELS) if on == "analytical" else self.table

        def draw(rng: np.random.Generator) -> Experiment:
            return self._on(setting(rng).jobs, table)

        kind = Federated if switches.clusters > 1 else Trainer
        return kind(draw, list(DL2_MODELS), SLOT_S, seed=seed, switches=switches)

    # --- rivals

    def rival(self, scheduler: str, seeds: Iterable[int]) -> dict[str, Any]:
        """Return the mean JCT in slots of each trace."""
        name, _, kind = scheduler.partition(", ")
        world = replace(self, rings=kind == "rings")
        return {"best": [self._jct(world.experiment(seed), name) for seed in seeds]}

    @property
    def rivals(self) -> tuple[str, ...]:
        """Names of schedulers."""
        return RIVALS

    @property
    def disturbances(self) -> list[str]:
        """What is to be measured where speeds vary, or lengths are not those declared."""
        return [
            f"{kind} {error:g}, {scheduler}" for kind in ("speed error", "epoch error") for error in ERRORS
            for scheduler in OF_DISTURBED
        ]  # fmt: skip

    def disturbed(self, what: str, seeds: Iterable[int]) -> dict[str, Any]:
        """Return the mean JCT in slots of each trace, with an error of all speeds (anew in each slot) or lengths."""
        kind, _, scheduler = what.partition(", ")
        error = float(kind.rsplit(" ", 1)[1])
        options: dict[str, Any] = (
            {"variation": Variation(period_s=SLOT_S, error=error)} if kind.startswith("speed")
            else {"epoch_error": error}
        )  # fmt: skip
        return {"best": [self._jct(self.experiment(seed, **options), scheduler) for seed in seeds]}

    def _jct(self, experiment: Experiment, scheduler: str) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Caveat)
            record = experiment.run(NETWORKS if scheduler == "dl2" else scheduler)
        return round(record.summary["mean_jct_s"] / SLOT_S, 4)
