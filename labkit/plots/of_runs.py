"""Figures of a run, or of several: `run.plot.gantt()`, `labkit.compare(...).plot.cdf()`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from labkit.plots.figures import draw
from labkit.plots.utilisation import plot_heat_map
from labkit.results import RunRecord, heat_map, labels


@dataclass(frozen=True, repr=False)
class RunPlots:
    """The figures of some runs; each method returns an Altair chart, which a notebook shows."""

    records: Sequence[RunRecord]

    def __repr__(self) -> str:
        kinds = [name for name in vars(RunPlots) if not name.startswith("_") and name != "records"]
        return f"<figures of {len(self.records)} runs: {', '.join(f'.{kind}()' for kind in kinds)}>"

    def bars(self) -> alt.TopLevelMixin:
        """Draw mean, median and 95th percentile of the JCT."""
        return draw(self.records, kind="bars")

    def cdf(self) -> alt.TopLevelMixin:
        """Draw the distribution of the JCT."""
        return draw(self.records, kind="jct")

    def fairness(self) -> alt.TopLevelMixin:
        """Draw the distribution of finish-time fairness: JCT over the JCT with an equal share."""
        return draw(self.records, kind="fairness")

    def gantt(self) -> alt.TopLevelMixin:
        """Draw when each job ran, a chart per run on one axis of time."""
        return draw(self.records, kind="gantt")

    def overheads(self) -> alt.TopLevelMixin:
        """Draw how jobs spend their time: waiting, starting and changing, training."""
        return draw(self.records, kind="overheads")

    def utilisation(self) -> alt.TopLevelMixin:
        """Draw the share of GPUs in use over time."""
        return draw(self.records, kind="utilisation")

    def machines(self) -> alt.TopLevelMixin:
        """Draw how full each machine is over time, a chart per run."""
        named = zip(labels(self.records), self.records, strict=True)
        charts = [plot_heat_map(heat_map(run.events, run.jobs, run.cluster), heading=name) for name, run in named]
        return charts[0] if len(charts) == 1 else alt.vconcat(*charts)

    def seeds(self, base: str | None = None) -> alt.TopLevelMixin:
        """Draw the paired differences of runs with several seeds to a scheduler; by default to the first one."""
        return draw(self.records, kind="seeds", base=base)
