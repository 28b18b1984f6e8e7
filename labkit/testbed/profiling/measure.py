"""Measure a testbed: hosts, speeds, overheads, slowdowns and links; and fit the models of a profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from labkit.core.errors import LabkitError
from labkit.speed.profiled import ColocationSample, LinkMeasurement, Overhead, Pool, Provenance, TestbedProfile
from labkit.speed.profiled.fits import speed_functions
from labkit.speed.profiled.nouns import QUIET
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.alone import ChangeMeasurement, Measurements, Say, alone, starts, warm_up
from labkit.testbed.profiling.beside import beside_load
from labkit.testbed.profiling.cores import pools
from labkit.testbed.profiling.crowd import SIZE, crowd
from labkit.testbed.profiling.gangs import MeasuredKind, walk
from labkit.testbed.profiling.links import measure_links
from labkit.testbed.profiling.stage import ProfilingSession
from labkit.testbed.run.training import TrainingTable

LOADS = (1, 2)
"""Numbers of busy cores beside a job."""

LINK_S = 0.2

STARTS = 3
"""Starts of each kind alone: their median counts."""


def measure(
    inventory: Inventory,
    kinds: Sequence[MeasuredKind],
    *,
    training: TrainingTable | None = None,
    loads: Sequence[int] = LOADS,
    n_crowd: int = SIZE,
    name: str = "",
    command: str = "",
    say: Say = lambda _: None,
    total: Callable[[int], None] = lambda _: None,
) -> TestbedProfile:
    """Measure what a simulation of a testbed needs.

    Parameters
    ----------
    inventory : Inventory
        The hosts; nothing else should run there.
    kinds : sequence of MeasuredKind
        What to train, and up to which gangs.
    training : TrainingTable, optional
        How jobs train: as those of the runs that are to be simulated.
    loads : sequence of int
        Busy cores beside a job, one measurement each.
    n_crowd : int
        Jobs that train at once at the end, where one machine has GPUs for so many; 0: none.
    name, command : str
        Of the testbed, and what was typed, for the profile.
    say : callable
        Called with each measurement that is done.
    total : callable
        Called with the number of measurements.

    Returns
    -------
    TestbedProfile
        A failed measurement is a row with the reason.

    Raises
    ------
    InputError
        If a model is not known, or a host cannot be used; nothing runs then.
    """
    began, how = time.monotonic(), training or TrainingTable()
    listed, found = list(kinds), Measurements()
    cluster = inventory.cluster()
    extra = [listed[i % len(listed)] for i in range(n_crowd)]
    total(sum(len(walk(kind, cluster)) + len(loads) for kind in listed) + len(extra) + 3)
    again = [kind for kind in listed for _ in range(STARTS - 1)]
    with ProfilingSession(inventory, [*listed, *extra, *again, listed[0], listed[0]], training=how) as stage:
        machines = pools(stage)
        say("cores")
        warm_up(stage, found, number=len(stage.kinds) - 1)
        if not any(change.kind == "cold_start" for change in found.changes):
            found.notes.append("no cold start was measured: the hosts had fork servers; cold starts count as warm ones")
        say("warm-up")
        beside = _jobs(stage, found, n_kinds=len(listed), loads=tuple(loads), say=say)
        for i in range(len(listed)):
            first = len(listed) + len(extra) + i * (STARTS - 1)
            starts(stage, range(first, first + STARTS - 1), i, found)
        links = _links(stage, found)
        say("links")
        costs = overheads(found.changes)
        warm_up(stage, found, number=len(stage.kinds) - 2)  # hosts that had no job for a while are cold again
        beside += crowd(stage, found, costs, n_kinds=len(listed), n_crowd=n_crowd, say=say)
    profile = TestbedProfile(
        name=name or inventory.path.stem, hosts=[replace(machine.host, ssh=None) for machine in inventory],
        pools=machines, cells=found.cells, overheads=costs, beside=beside, links=links,
        functions=speed_functions(found.cells, batch=float(how.batch)), yardstick=list(stage.readings),
    )  # fmt: skip
    return replace(profile, made=_made(command, how, found, machines, took_s=time.monotonic() - began))


def _jobs(
    stage: ProfilingSession, found: Measurements, *, n_kinds: int, loads: tuple[int, ...], say: Say
) -> list[ColocationSample]:
    rows: list[ColocationSample] = []
    for number, kind in enumerate(stage.kinds[:n_kinds]):
        with alone(stage, number, found, say) as trainee:
            if trainee is not None:
                rows += beside_load(trainee, walk(kind, stage.cluster)[-1], found, loads=loads, say=say)
    return rows


def overheads(changes: Sequence[ChangeMeasurement]) -> list[Overhead]:
    """Return the overheads of starts, rescales and stops: a row for each model and number of new processes."""
    rows = []
    for kind, model, n_new in dict.fromkeys((change.kind, change.model, change.n_new) for change in changes):
        mine = [change for change in changes if (change.kind, change.model, change.n_new) == (kind, model, n_new)]
        seconds, cpu_s = ([getattr(change, what) for change in mine] for what in ("seconds", "cpu_s"))
        rows.append(
            Overhead(
                kind=kind, model=model, n_new=n_new, median_s=round(float(np.median(seconds)), 3),
                p90_s=round(float(np.quantile(seconds, 0.9)), 3), cpu_s=round(float(np.median(cpu_s)), 3), n=len(mine),
            )
        )  # fmt: skip
    return rows


def _links(stage: ProfilingSession, found: Measurements) -> list[LinkMeasurement]:
    try:
        table = measure_links(stage.fleet, seconds=LINK_S)
    except (LabkitError, OSError) as error:
        found.notes.append(f"links: {error}")
        return []
    return [_link({str(key): value for key, value in row.items()}) for row in table.to_dict("records")]


def _link(row: Mapping[str, Any]) -> LinkMeasurement:
    well = not row["error"]
    return LinkMeasurement(
        source=row["source"], target=row["target"] or "?", error=row["error"],
        gbps=round(row["gbps"], 3) if well else None, rtt_ms=round(row["rtt_ms"], 3) if well else None,
    )  # fmt: skip


def _made(
    command: str, how: TrainingTable, found: Measurements, machines: Sequence[Pool], *, took_s: float
) -> Provenance:
    from labkit.testbed.agent.build import version

    busy = max((cell.busy_cores for cell in found.cells), default=0.0)
    notes = list(found.notes)
    if busy > QUIET:
        notes.append(
            f"something else kept up to {busy:.1f} cores busy meanwhile (see the cells): measure on a quiet testbed"
        )
    notes += [f"machine {pool.name} gives {pool.cores:g} cores to {len(pool.hosts)} hosts" for pool in machines]
    return Provenance(
        at=datetime.now(UTC).isoformat(timespec="seconds"), labkit=version(), command=command, took_s=round(took_s, 1),
        training=how.to_json(), notes=notes,
    )  # fmt: skip
