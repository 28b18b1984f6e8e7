"""Measure a testbed: hosts, speeds, overheads, slowdowns and links; write its profile, and show what is in it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.core.files import refuse_unwritable
from labkit.core.text import split_names
from labkit.speed.profiled import ColocationSample, LinkMeasurement, Overhead, Pool, Provenance, TestbedProfile, write
from labkit.speed.profiled.contention import speed_functions
from labkit.speed.profiled.profile import QUIET
from labkit.system.progress import counter, in_notebook
from labkit.testbed.doctor import Finding, HostProbe, Peer, probe_hosts
from labkit.testbed.errors import HostError
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.colocation import SIZE, beside_load, crowd
from labkit.testbed.profiling.gangs import MeasuredKind, kinds_named, kinds_of, walk
from labkit.testbed.profiling.isolated import ChangeMeasurement, Measurements, Say, alone, starts, warm_up
from labkit.testbed.profiling.session import ProfilingSession, pools
from labkit.testbed.run.training import TrainingTable
from labkit.testbed.ssh.fleet import Fleet
from labkit.workloads import read as read_trace

if TYPE_CHECKING:
    import pandas as pd

LOADS = (1, 2)
"""Numbers of busy cores beside a job."""
LINK_S = 0.2
STARTS = 3
"""Starts of each kind alone: their median counts."""


class Link(NamedTuple):
    """What was measured between two hosts, or why nothing was; without a target: why a host could not be reached."""

    source: str
    target: str = ""
    gbps: float = nan
    rtt_ms: float = nan
    error: str = ""


def measure_links(fleet: Fleet, *, seconds: float = 1.0) -> pd.DataFrame:
    """Send from every host to every other, one pair after the other, over one TCP connection without encryption.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    seconds : float
        Seconds for each pair.

    Returns
    -------
    DataFrame
        One row per pair: source, target, gbps, rtt_ms, error; and one for each host that could not be reached.
    """
    import pandas as pd

    rows: list[Link] = []
    with probe_hosts(fleet) as hosts:
        peers: dict[str, Peer] = {}

        def listen(probe: HostProbe) -> list[Finding]:
            machine = probe.machine
            echo = probe.listen(machine.address)
            if echo.port is not None:
                peers[machine.name] = (machine.address, echo.port, echo.word)
            return []

        hosts.each(listen)
        names = [machine.name for machine in fleet.inventory if machine.name in hosts.probes]
        for source, target in permutations(names, 2):
            if target in peers:
                rows.append(_measured(Link(source, target), hosts.probes[source], peers[target], seconds))
        rows += [Link(host, error=each.found) for host, found in hosts.findings.items() for each in found]
    return pd.DataFrame(rows, columns=Link._fields)


def _measured(link: Link, probe: HostProbe, peer: Peer, seconds: float) -> Link:
    """Return a link with what its source measures, or with the reason why it does not."""
    try:
        dialled = probe.dial({"it": peer})["it"]
        if dialled.rtt_s is None:
            return link._replace(error=dialled.error or "no answer")
        poured = probe.pour(peer, seconds=seconds)
    except HostError as error:
        return link._replace(error=str(error))
    if poured.bytes is None or not poured.seconds:
        return link._replace(error=poured.error or "no answer")
    return link._replace(gbps=8e-9 * poured.bytes / poured.seconds, rtt_ms=1e3 * dialled.rtt_s)


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
        samples = _jobs(stage, found, n_kinds=len(listed), loads=tuple(loads), say=say)
        for i in range(len(listed)):
            first = len(listed) + len(extra) + i * (STARTS - 1)
            starts(stage, range(first, first + STARTS - 1), i, found)
        links = _links(stage, found)
        say("links")
        costs = overheads(found.changes)
        warm_up(stage, found, number=len(stage.kinds) - 2)  # hosts that had no job for a while are cold again
        samples += crowd(stage, found, costs, n_kinds=len(listed), n_crowd=n_crowd, say=say)
    profile = TestbedProfile(
        name=name or inventory.path.stem, hosts=[replace(machine.host, ssh=None) for machine in inventory],
        pools=machines, cells=found.cells, overheads=costs, beside=samples, links=links,
        functions=speed_functions(found.cells, batch=float(how.samples_per_step)), yardstick=list(stage.readings),
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
    from labkit.testbed.agent.bridge import version

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


def measured_kinds(
    trace: str | Path | None, models: str, *, max_ps: int, max_workers: int, sync: bool
) -> list[MeasuredKind]:
    """Return the kinds to measure: models of a trace up to their largest gangs, or models by name.

    Raise InputError if neither or both are given.
    """
    if (trace is None) == (not models):
        raise InputError("expected either --models, such as dssm,wlm, or --trace FILE, whose models are measured.")
    if trace is not None:
        return kinds_of(read_trace(trace))
    return kinds_named(split_names(models), max_ps=max_ps, max_workers=max_workers, sync=sync)


def default_profile_path(inventory: Inventory) -> Path:
    """Return the default path of a profile: profiles/, by the name of the inventory."""
    return Path("profiles") / f"{name_of(inventory)}.json"


def name_of(inventory: Inventory) -> str:
    """Return the name of a testbed: that of its inventory's file; hosts.toml of the laptop testbed: laptop."""
    kinds = {machine.host.device_type for machine in inventory}
    return "laptop" if kinds == {"laptop"} else inventory.path.stem


def profile(
    inventory: Inventory,
    kinds: Sequence[MeasuredKind],
    *,
    out: Path | None = None,
    training: TrainingTable | None = None,
    loads: Sequence[int] = LOADS,
    n_crowd: int = SIZE,
    progress: bool = True,
) -> tuple[TestbedProfile, Path]:
    """Measure a testbed, and write its profile whole or not at all; return profile and path.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    kinds : sequence of MeasuredKind
        What to train.
    out : Path, optional
        The file; by default profiles/NAME.json.
    training, loads, n_crowd
        As `labkit.testbed.profiling.measure.measure` takes them.
    progress : bool
        Show a progress bar.
    """
    there = out or default_profile_path(inventory)
    refuse_unwritable(there)
    with _ending_at_sigterm(), _Bar(shown=progress) as bar:
        measured = measure(
            inventory, kinds, training=training, loads=loads, n_crowd=n_crowd, name=name_of(inventory),
            command=_command(), say=bar.say, total=bar.total,
        )  # fmt: skip
    return measured, write(measured, there)


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C: end processes on hosts now, not when their lease is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Bar:
    """A progress bar with one step per measurement; lines if there is no terminal."""

    def __init__(self, *, shown: bool) -> None:
        self._lines = shown and not sys.stderr.isatty() and not in_notebook()
        self._bar = counter(None, name="profile", unit="measurement", shown=shown and not self._lines)
        self._n = self._of = 0

    def total(self, n: int) -> None:
        """Set the number of steps."""
        self._of = n
        self._bar.reset(total=n)

    def say(self, what: str) -> None:
        """Count a step."""
        self._n += 1
        self._bar.set_postfix_str(what, refresh=False)
        self._bar.update(1)
        if self._lines:
            print(f"profile: {self._n} of {self._of}: {what}", file=sys.stderr, flush=True)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _command() -> str:
    import shlex

    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""


def show(profile: TestbedProfile, path: Path) -> None:
    """Print what was measured, and the path of the profile."""
    from labkit.testbed.terminal import show_frame

    show_frame(table(profile))
    for note in profile.made.notes:
        print(f"note: {note}")
    print(f"{path}: measured in {profile.made.took_s:.0f} s")


def table(profile: TestbedProfile) -> Any:
    """Return a row for each gang: speed, cores in use, and overheads of starts and rescales of its model."""
    import pandas as pd

    rows = []
    for cell in profile.cells:
        done = cell.step_s is not None
        rows.append(
            {
                "model": cell.model + ("" if cell.sync else " (async)"), "PS": cell.n_ps, "workers": cell.n_workers,
                "hosts": cell.n_hosts, "ms/step": f"{1e3 * (cell.step_s or 0):.1f}" if done else "-",
                "±": f"{1e3 * cell.spread_s:.1f}" if done else "-",
                "cores": f"{cell.cpu_s / (cell.step_s or 1):.2f}" if done else "-",
                "start s": _typical(profile, "start", cell.model),
                "rescale s": _typical(profile, "rescale", cell.model), "failed": cell.failed,
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame if frame["failed"].any() else frame.drop(columns="failed")


def _typical(profile: TestbedProfile, kind: str, model: str) -> str:
    found = [row for row in profile.overheads if (row.kind, row.model) == (kind, model)]
    return f"{max(found, key=lambda row: row.n).median_s:.1f}" if found else "-"
