"""What MARL as published is trained on: traces drawn anew for each epoch, on one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.core.cluster import Cluster
from labkit.experiment.experiment import Experiment
from labkit.experiment.fitting import refuse_unfit
from labkit.learning.settings import fresh, refuse_files
from labkit.topology import build
from labkit.workloads.catalogue import DL2_MODELS


@dataclass(frozen=True, eq=False)
class Setting:
    """A cluster and generators of traces, of which each epoch draws one.

    Attributes
    ----------
    cluster : str
        A preset or an expression.
    traces : sequence of str
        Generators.
    interference : str
        A level by name, or a file: what `Experiment.of` takes.

    Raises
    ------
    InputError
        If a trace is a file.
    """

    cluster: str
    traces: Sequence[str]
    interference: str = "calibrated"

    def __post_init__(self) -> None:
        refuse_files(self.traces, such_as="marl_jobs(load=5)")

    @cached_property
    def built(self) -> Cluster:
        """The cluster."""
        return build(self.cluster)

    def __call__(self, rng: np.random.Generator) -> Experiment:
        """Return the experiment of an epoch."""
        what = self.traces[int(rng.integers(len(self.traces)))]
        jobs = fresh(what, rng)
        options: dict[str, Any] = {"speed": "step-time", "interference": self.interference}
        return Experiment.of(jobs, cluster=self.built, **options)

    def models(self) -> list[str]:
        """Return the models that occur: the text's eight where they are among them, or those of some traces."""
        rng = np.random.default_rng(0)
        met = list(dict.fromkeys(name for _ in range(5) for name in self(rng).jobs.models))
        return list(DL2_MODELS) if set(met) <= set(DL2_MODELS) else met

    def refuse_unfit(self, *, n: int = 3) -> None:
        """Raise if a job of some epochs fits no machine.

        Raises
        ------
        InputError
            It names the job.
        """
        rng = np.random.default_rng(0)
        for _ in range(n):
            made = self(rng)
            refuse_unfit(made.jobs, made.cluster, made.speed.runs_on())
