"""`labkit compare` of placers: how full each makes a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.cli.sweep import seeds_of, tell
from labkit.core.errors import InputError, unknown
from labkit.core.text import split_names
from labkit.experiment.filling import ALLOCATED, LOAD
from labkit.experiment.filling import compare_placers as run_all
from labkit.experiment.scenario import Scenario
from labkit.topology import build
from labkit.workloads.expressions import trace


def compare_placers(
    scenario: Scenario, names: str, *, seeds: str | None, against: str | None, workers: int | None, as_json: bool,
    others: Mapping[str, Any], usual: str,
) -> None:  # fmt: skip
    """Print how much of the cluster each placer has allocated when gangs have asked for more than there is.

    Raises
    ------
    InputError
        If an option is given that means nothing here.
    """
    listed = split_names(names)
    _refuse(scenario, others, against=against, listed=listed)
    cluster = build(str(scenario.cluster))
    jobs = trace(str(scenario.trace), seed=scenario.seed, format=scenario.format, unscheduled=True)
    drawn = [scenario.seed] if seeds is None else seeds_of(seeds)
    if not as_json:
        print(usual or str(cluster))
        print(
            f"gangs of {jobs.name} ({len(jobs):,}) in random order, then copies, until they ask for {LOAD:.0%} of the "
            "GPUs; none ends, and one that finds no room is lost"
        )
        for note in jobs.notes:
            print(f"note: {note}")
    table = run_all(jobs, cluster, listed, seeds=drawn, workers=workers)
    tell(table, metric=ALLOCATED, base=against or listed[0], as_json=as_json)
    if not as_json:
        cpu_s = table.groupby("scheduler", sort=False)["cpu_s"].mean()
        print("CPU s a run: " + ", ".join(f"{name} {mean:.1f}" for name, mean in cpu_s.items()))


def _refuse(scenario: Scenario, others: Mapping[str, Any], *, against: str | None, listed: list[str]) -> None:
    given = [name for name, value in others.items() if value is not None]
    given += [f"--{name.replace('_', '-')}" for name in scenario.changed]
    if given:
        raise InputError(
            f"{given[0]} does not go with placers alone ({', '.join(listed)}), which fill a cluster and run nothing; "
            f"leave it out, or give each to a scheduler: fifo(backfill=True,placer={listed[0]})."
        )
    if against is not None and against not in listed:
        raise unknown("placer to compare --against", against, listed)
