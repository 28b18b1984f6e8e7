"""What a policy is trained on: traces drawn anew for each episode, on one cluster or several, in a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import of_any_type
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.experiment.experiment import Experiment
from labkit.experiment.scenario import Scenario
from labkit.speed.dl2 import FittedTable, fitted
from labkit.speed.measured import ByGang, MeasuredSpeed, OfModels, SpeedTable
from labkit.speed.tabled import analytic
from labkit.topology import build
from labkit.workloads.expressions import is_generated, trace

FITTED = "fitted"
ANALYTIC = "analytic"
RANDOM = "random"

FIRST_SEED = 1_000_000
"""Seeds of training are this and above; evaluate with smaller ones."""
WINDOW: Final = 60
FEWEST_JOBS: Final = 40
"""Of a trace from which a policy learns."""
PLAIN: Final = Scenario(trace="")
"""A scenario in which all is as by default."""


def refuse_files(traces: Sequence[str], *, such_as: str) -> None:
    """Raise if a trace is a file.

    Raise InputError, which names the file, and a generator such as there should be.
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
    """What each episode draws from: clusters, traces and speeds, in a scenario that is the same for all.

    A generated trace has a seed of its own in each episode; of a file, an episode is a window: `window`.

    Attributes
    ----------
    clusters, traces : sequence of str
        Names, expressions or files; a cluster None is that of the scenario's profile.
    throughputs : sequence of path or str
        Tables of measured speeds; "fitted": the speeds that the scenario has, by default those that fit the trace by
        themselves; "analytic": those that Optimus' model predicts from ten gangs of each of DL2's models at their
        fitted speeds, or "analytic:FILE" from gangs of a table ("OfflineRL" of DL2's evaluation); "random": a table
        of its own in each episode (`RandomTable`).
    scenario : Scenario
        All else that an episode is; its trace, cluster and seed do not count.
    """

    clusters: Sequence[str | None]
    traces: Sequence[str]
    throughputs: Sequence[Path | str] = (FITTED,)
    scenario: Scenario = PLAIN

    @cached_property
    def _built(self) -> list[Cluster | None]:
        return [None if name is None else build(name) for name in self.clusters]

    @cached_property
    def _tables(self) -> list[ByGang | str | None]:
        return [RANDOM if path == RANDOM else _table(str(path)) for path in self.throughputs]

    @cached_property
    def _files(self) -> dict[str, Jobs]:
        return files_of(self.traces, first=self.scenario.first, format=self.scenario.format)

    @property
    def files(self) -> list[str]:
        """The traces that are files."""
        return list(self._files)

    def __call__(self, rng: np.random.Generator) -> Experiment:
        """Return the experiment of an episode."""
        return self._drawn(rng, held_out=False)

    def held_out(self, number: int) -> Experiment:
        """Return an experiment that training never draws: seed `number` of a trace, or a window of its last part."""
        return self._drawn(np.random.default_rng(number), held_out=True, seed=number)

    def sampled(self, number: int, *, stops: bool = False) -> Experiment:
        """Return an episode of a number: of every second one from a file, the jobs are drawn anew (a bootstrap).

        Those that training `stops` by come from the eighth of a file before the part that is held out, and from seeds
        of their own; the others from what is before.
        """
        return self._drawn(np.random.default_rng((number, int(stops))), stops=stops)

    def _drawn(
        self, rng: np.random.Generator, *, held_out: bool = False, seed: int | None = None, stops: bool | None = None
    ) -> Experiment:
        cluster = self._built[int(rng.integers(len(self._built)))]
        what = self.traces[int(rng.integers(len(self.traces)))]
        table = self._tables[int(rng.integers(len(self._tables)))]
        seed = FIRST_SEED + int(rng.integers(1 << 30)) if seed is None else seed
        scenario = replace(self.scenario, trace=what, cluster=cluster, seed=seed)
        if what in self._files:
            jobs = window(self._files[what], np.random.default_rng(seed), held_out=held_out, stops=stops)
            scenario = replace(scenario, trace=jobs, first=None, format=None)
        if isinstance(table, str):
            table = RandomTable.of(np.random.default_rng(seed))
        return Experiment.of(scenario if table is None else _at_speeds(scenario, table))

    def models(self) -> list[str]:
        """Return the models that occur, in order of first sight over some traces."""
        rng = np.random.default_rng(0)
        return list(dict.fromkeys(name for _ in range(20) for name in self(rng).jobs.models))

    @property
    def is_plain(self) -> bool:
        """Whether episodes are generated traces on clusters, at speeds that are given, and nothing more is said."""
        return not self._files and not set(self.scenario.changed) - {"slot_s"}

    def plain(self) -> dict[str, Any]:
        """Return the description of episodes for JSON: several clusters, traces or tables are lists."""
        drawn: dict[str, list[Any]] = {"trace": list(self.traces), "cluster": list(self.clusters)}
        if tuple(self.throughputs) != (FITTED,):
            drawn["throughputs"] = list(map(str, self.throughputs))
        told = self.scenario.plain() | {name: one[0] if len(one) == 1 else one for name, one in drawn.items()}
        return {name: value for name, value in told.items() if name != "seed" and value is not None}


def files_of(traces: Sequence[str], **options: Any) -> dict[str, Jobs]:
    """Return the jobs of each trace that is a file; `options` are `first` and `format` of a scenario.

    Raise InputError if one is too short to learn from.
    """
    scenario = replace(PLAIN, **options)
    found = {what: replace(scenario, trace=what).jobs() for what in traces if not is_generated(what)}
    for what, jobs in found.items():
        if len(jobs) < FEWEST_JOBS:
            raise InputError(
                f"trace {what} has {len(jobs)} jobs; expected {FEWEST_JOBS} or more, as a policy learns from windows "
                "of it, or a generator such as dl2_jobs('short_48n')."
            )
    return found


def window(jobs: Jobs, rng: np.random.Generator, *, held_out: bool, stops: bool | None = None) -> Jobs:
    """Return consecutive jobs of a trace, an eighth of it but at most `WINDOW`; the first one arrives at 0.

    Those held out are of the last quarter of the trace, the others of what is before; with `stops` either of the eighth
    before that quarter or of what is before it, and of every second one only the times of arrival are: its jobs are
    drawn with replacement from that part.
    """
    n = min(WINDOW, len(jobs) // 8)
    cut = len(jobs) - len(jobs) // 4
    if stops is None:
        first = int(rng.integers(cut, len(jobs) - n + 1) if held_out else rng.integers(cut - n + 1))
        some = jobs.take(np.arange(first, first + n))
        return some.with_columns(arrival_s=some.arrival_s - some.arrival_s[0])
    low, high = (cut - len(jobs) // 8, cut) if stops else (0, cut - len(jobs) // 8)
    first = int(rng.integers(low, high - n + 1))
    arrival_s = jobs.arrival_s[first : first + n]
    drawn = np.sort(rng.integers(low, high, size=n)) if rng.random() < 0.5 else np.arange(first, first + n)
    some = jobs.take(rng.permutation(drawn)) if len(np.unique(drawn)) < n else jobs.take(drawn)
    names = np.array([f"{name}.{k}" for k, name in enumerate(some.id)], object)
    return some.with_columns(arrival_s=arrival_s - arrival_s[0], id=names)


@dataclass(frozen=True, eq=False)
class RandomTable(OfModels):
    """Speeds that no measurement has: DL2's smooth ones by random powers of p and w, waves over both, and noise."""

    models: tuple[str, ...]
    grids: Mapping[str, Floats]
    """(P + 1, W + 1) samples/s of each model."""
    batch: Floats

    @classmethod
    def of(cls, rng: np.random.Generator, *, most: int = 32) -> Self:
        """Return a table for up to `most` tasks of each role."""
        smooth, grids = fitted(), {}
        p, w = np.log(np.arange(1, most + 1))[:, None], np.log(np.arange(1, most + 1))[None, :]
        rough = float(rng.choice([0.0, 0.02, 0.05]))
        for name in smooth.models:
            grid = smooth.grid(name, max_ps=most, max_workers=most)
            powers, waves, length = rng.uniform(-0.3, 0.3, 2), rng.uniform(0, 0.2), rng.uniform(0.5, 1.5)
            turn, phase = rng.standard_normal(2) / length, rng.uniform(0, 2 * np.pi)
            field = powers[0] * p + powers[1] * w + waves * np.cos(turn[0] * p + turn[1] * w + phase)
            grid[1:, 1:] *= np.exp(field + rng.normal(0, 0.3) + rough * rng.standard_normal(grid[1:, 1:].shape))
            grids[name] = grid
        return cls(smooth.models, grids, smooth.batch)

    @property
    def in_words(self) -> str:
        """What it is, for headers of runs."""
        return "a random table of speeds"

    def grid(self, model: str, *, max_ps: int, max_workers: int, clip: bool = False) -> Floats:  # noqa: ARG002
        """Return samples/s at every gang, (max_ps + 1, max_workers + 1); beyond the table what its edge has."""
        self.code(model)
        p, w = (np.minimum(np.arange(n + 1), len(self.grids[model]) - 1) for n in (max_ps, max_workers))
        return np.asarray(self.grids[model][np.ix_(p, w)])


def _at_speeds(scenario: Scenario, table: ByGang) -> Scenario:
    """Return a scenario whose jobs run at the speeds of a table."""
    jobs, cluster = scenario.jobs(), scenario.cluster
    if not isinstance(cluster, Cluster):
        raise InputError("--throughputs and a profile, which has speeds of its own, are given; leave one of them out.")
    jobs = of_any_type(jobs)[0] if scenario.any_type else jobs
    speed = MeasuredSpeed(jobs, cluster, table=table)
    return replace(
        scenario, trace=jobs, speed=speed, throughputs=None, arrival_rate=1.0, first=None, format=None, epoch_error=0.0
    )


def _table(what: str) -> ByGang | None:
    """Return a table of speeds; None: those that fit the trace by themselves."""
    if what == FITTED:
        return None
    kind, _, path = what.partition(":")
    if kind != ANALYTIC:
        return SpeedTable.read(what)
    known: SpeedTable | FittedTable = SpeedTable.read(path) if path else fitted()
    return analytic(known, known.models)
