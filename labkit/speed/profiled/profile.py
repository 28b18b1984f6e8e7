"""What a profile of a testbed consists of, and its file: JSON, all faults reported together, whole or absent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from annotated_types import Ge, Gt, Len, Lt

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, ProfileError
from labkit.core.faults import fault_report
from labkit.core.files import write_text
from labkit.topology.inventory import Host, cluster_of

VERSION: Final = 1
"""Of the file."""

QUIET: Final = 0.15
"""Cores that something else may keep busy while a measurement is believed."""

Name = Annotated[str, Len(1)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Lt(float("inf"))]
Amount = Annotated[float, Ge(0), Lt(float("inf"))]


class ProfileRow:
    """What all parts of a profile share: an unknown key is a fault."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(ProfileRow):
    """Where the numbers come from."""

    at: str = ""
    """Date and time."""
    labkit: str = ""
    command: str = ""
    """`labkit` and `command`: version, and what was typed."""
    took_s: Amount = 0.0
    """How long it took to measure."""
    training: dict[str, Any] = field(default_factory=dict)
    """How jobs trained: width of the models, batch, ... (`labkit.testbed.run.training.TrainingTable`)."""
    notes: list[str] = field(default_factory=list)
    """What went wrong on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMeasurement(ProfileRow):
    """A gang of a model, measured while nothing else ran."""

    model: Name
    sync: bool = True
    """`model` and `sync`: what trained, and whether synchronously."""
    n_ps: Annotated[int, Ge(1)]
    n_workers: Annotated[int, Ge(1)]
    """`n_ps` and `n_workers`: the gang."""
    n_hosts: Annotated[int, Ge(1)] = 1
    """Over how many hosts it was spread."""
    step_s: Positive | None
    """Seconds between two updates, mean; None if the gang could not be measured."""
    cpu_s: Amount = 0.0
    """Processor seconds that an update takes, of all its processes."""
    ps_cpu_s: Amount | None = None
    """That part of it that parameter servers take; None where it is not known."""
    home_cpu_s: Amount = 0.0
    """That part of it that the job's own processes take, which lead the others."""
    n_steps: Count = 0
    """Updates that were measured."""
    spread_s: Amount = 0.0
    """Half of the range between the first and the last quarter of the seconds of single updates."""
    busy_cores: Amount = 0.0
    """Cores of the machine that something else kept busy meanwhile: 0 on a quiet testbed."""
    failed: str = ""
    """Why there is no measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(ProfileRow):
    """Cores that some hosts share: those of one machine."""

    name: Name
    """Of the machine."""
    hosts: Annotated[list[str], Len(1)]
    """Hosts that are in truth this one machine (they have the same boot id); on real testbeds one host."""
    cores: Positive
    """Processor seconds that it gives in a second, measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead(ProfileRow):
    """What a start, a rescale or a stop of a model's job takes when nothing else runs."""

    kind: Annotated[str, Len(1)]
    """"start": from the decision to the first step, where each host has a warm fork server. "cold_start": the same,
    where one has none yet, or no longer. "restart": from a checkpoint. "rescale": from the decision until the new gang
    trains; meanwhile the old one goes on; "cold_rescale": the same, on a host without a fork server. "stop": until it
    is gone."""
    model: Name
    n_new: Count = 0
    """Processes that it starts beside those of the job itself: workers and servers."""
    median_s: Amount
    p90_s: Amount
    """`median_s` and `p90_s`: of `n` measurements."""
    cpu_s: Amount = 0.0
    """Processor seconds that it takes beside those of the steps that were made meanwhile, median."""
    n: Annotated[int, Ge(1)] = 1


KINDS: Final = ("start", "cold_start", "restart", "rescale", "cold_rescale", "stop")
"""Of overheads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationSample(ProfileRow):
    """A job, or its start or rescale, that was measured beside others on the same cores."""

    job: Name
    co_runners: Name
    """`job` and `co_runners`: its model, and what was beside it: models of jobs, or "load-K", a generator that keeps K
    cores busy."""
    cpu_cores: Amount
    co_cpu_cores: Amount
    """`cpu_cores` and `co_cpu_cores`: cores that it uses alone, and those that the others use alone."""
    weight: Positive = 1.0
    co_weight: Positive = 1.0
    """`weight` and `co_weight`: processes that compete for cores, its own and the others'."""
    alone_s: Positive
    shared_s: Positive
    """`alone_s` and `shared_s`: seconds of an update, or of a change, alone and beside them."""
    busy_cores: Amount = 0.0
    """Cores that something else kept busy meanwhile; where it is more than `QUIET`, the row counts only if all are
    so."""
    what: Literal["step", "start", "rescale"] = "step"
    """"step": its updates. "start", "rescale": what it took to start, or to take in a worker more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement(ProfileRow):
    """What one TCP connection from a host to another carries."""

    source: Name
    target: Name
    gbps: Amount | None
    rtt_ms: Amount | None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted(ProfileRow):
    """Optimus' speed function of a model, fitted to its cells; see `labkit.speed.optimus.SpeedFunction`."""

    model: Name
    sync: bool = True
    theta: Annotated[list[Amount], Len(4, 5)]
    batch: Positive = 1.0
    error: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class YardstickSample(ProfileRow):
    """How fast a host was at a moment: processor seconds of a fixed piece of work, and cores that were busy before."""

    host: Name
    work_s: Positive
    busy_cores: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedProfile(ProfileRow):
    """What was measured on a testbed: all that a simulation of it needs."""

    __test__: ClassVar[bool] = False  # not a test, whatever pytest thinks of its name

    name: Name = "testbed"
    """Of the testbed."""
    hosts: Annotated[list[Host], Len(1)]
    """As its inventory has them."""
    pools: list[Pool] = field(default_factory=list)
    """Whose cores are whose; hosts in none have cores of their own."""
    cells: list[GangMeasurement] = field(default_factory=list)
    """Speeds and processor time by gang."""
    overheads: list[Overhead] = field(default_factory=list)
    beside: list[ColocationSample] = field(default_factory=list)
    links: list[LinkMeasurement] = field(default_factory=list)
    functions: list[Fitted] = field(default_factory=list)
    """`overheads`, `beside`, `links` and `functions`: what changes cost, how jobs slow each other, what links carry,
    and Optimus' speed functions."""
    interference: Annotated[list[float], Len(4, 4)] | None = None
    """Coefficients (4,) in profiles of an older labkit; simulations take slowdowns from `beside`."""
    warm_s: Positive = 60.0
    """Seconds without processes of jobs after which a host has no fork server any more: the next start is cold."""
    yardstick: list[YardstickSample] = field(default_factory=list)
    """How fast the hosts were meanwhile; none in profiles of an older labkit."""
    made: Provenance = field(default_factory=Provenance)
    """Where it comes from."""

    def cluster(self) -> Cluster:
        """Return the testbed as a cluster: its hosts on one switch."""
        return cluster_of(self.hosts, name=self.name)

    @property
    def models(self) -> list[str]:
        """Models of which at least one gang could be measured."""
        return list(dict.fromkeys(cell.model for cell in self.cells if cell.step_s is not None))

    def of(self, model: str, *, sync: bool = True) -> list[GangMeasurement]:
        """Return the gangs of a model that could be measured.

        Raise InputError if there is none: which models there are, and how to measure more.
        """
        mine = [cell for cell in self.cells if (cell.model, cell.sync) == (model, sync) and cell.step_s is not None]
        if mine:
            return mine
        how = "synchronous" if sync else "asynchronous"
        why = next((cell.failed for cell in self.cells if cell.model == model and cell.failed), "")
        raise InputError(
            f"the profile '{self.name}' has no {how} measurement of model '{model}'{why and f' ({why})'}; it has "
            f"{', '.join(self.models) or 'none'}. Measure it: labkit profile --models {model}"
            f"{'' if sync else ' --asynchronous'}."
        )

    def faults(self) -> list[str]:
        """Return the contradictions, a line each."""
        names = [host.name for host in self.hosts]
        faults = [f"hosts: two are named '{name}'" for name in dict.fromkeys(names) if names.count(name) > 1]
        faults += _pool_faults(self.pools, names)
        faults += _twice(self.cells)
        faults += [
            f"overheads: kind is '{row.kind}'; expected one of {', '.join(KINDS)}"
            for row in self.overheads
            if row.kind not in KINDS
        ]
        return faults

    def pool_of(self, cluster: Cluster) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, Any]]:
        """Return the pool of each device group of a cluster, (G,), and the cores of each pool.

        A machine that the profile does not know has a pool of its own with the cores of its groups.
        """
        index = {host: k for k, pool in enumerate(self.pools) for host in pool.hosts}
        cores = [pool.cores for pool in self.pools]
        own = np.bincount(cluster.group_machine, weights=cluster.capacity[:, 1], minlength=cluster.n_machines)
        machine = np.zeros(cluster.n_machines, np.int32)
        for m, name in enumerate(cluster.machines):
            if name not in index:
                cores.append(float(own[m]))
            machine[m] = index.get(name, len(cores) - 1)
        return machine[cluster.group_machine], np.array(cores)


def _pool_faults(pools: list[Pool], names: list[str]) -> list[str]:
    hosts = [(pool.name, host) for pool in pools for host in pool.hosts]
    faults = [f"pools: '{pool}' has a host '{host}' that is not in hosts" for pool, host in hosts if host not in names]
    listed = [host for _, host in hosts]
    twice = [host for host in dict.fromkeys(listed) if listed.count(host) > 1]
    return faults + [f"pools: host '{host}' is in two pools" for host in twice]


def _twice(cells: list[GangMeasurement]) -> list[str]:
    keys = [tuple(getattr(cell, f.name) for f in fields(GangMeasurement)[:5]) for cell in cells]
    return [
        f"cells: {model} with {n_ps} PS and {n_workers} workers on {n_hosts} hosts occurs {keys.count(key)} times"
        for key in dict.fromkeys(keys)
        if keys.count(key) > 1
        for model, _, n_ps, n_workers, n_hosts in [key]
    ]


FORMAT: Final = "labkit testbed profile"


def read(path: str | Path) -> TestbedProfile:
    """Read a profile.

    Raises
    ------
    ProfileError
        With every fault of the file: which part, which entry, what was expected.
    """
    from pydantic import TypeAdapter, ValidationError

    content = _content(Path(path))
    try:
        profile = TypeAdapter(TestbedProfile).validate_python(content)
    except ValidationError as error:
        raise ProfileError(fault_report(str(path), [_fault(fault) for fault in error.errors()])) from None
    if faults := profile.faults():
        raise ProfileError(fault_report(str(path), faults))
    return profile


def is_profile(path: str | Path) -> bool:
    """Return whether a file begins as a profile of a testbed does."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return FORMAT in file.read(200)
    except (OSError, ValueError):
        return False


def write(profile: TestbedProfile, path: str | Path) -> Path:
    """Write a profile, as a whole or not at all; return where it is.

    Raises
    ------
    ProfileError
        If it contradicts itself.
    """
    if faults := profile.faults():
        raise ProfileError(fault_report(f"profile '{profile.name}'", faults))
    there = Path(path)
    there.parent.mkdir(parents=True, exist_ok=True)
    write_text(there, _text(profile))
    return there


def _text(profile: TestbedProfile) -> str:
    """Return the file's text: a row of a table is a line."""
    parts = {"format": FORMAT, "version": VERSION, **asdict(profile)}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_part(part)}" for name, part in parts.items()) + "\n}\n"


def _part(part: Any) -> str:
    if isinstance(part, list) and part and isinstance(part[0], dict):
        return "[\n" + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in part) + "\n]"
    return json.dumps(part, allow_nan=False)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProfileError(f"{path}: there is no such file; labkit profile measures one.") from None
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: it cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise ProfileError(f"{path}: it is no profile of a testbed; labkit profile measures one.")
    if (version := content.pop("version", None)) != VERSION:
        raise ProfileError(f"{path}: it has version {version!r}, this labkit reads {VERSION}; measure it anew.")
    return content


def _fault(fault: Any) -> str:
    """Return one fault that pydantic found, in our words."""
    place = ""
    for key in fault["loc"]:
        place += f"[{key}]" if isinstance(key, int) else f".{key}" if place else str(key)
    kind = fault["type"]
    if kind == "unexpected_keyword_argument":
        known = [field.name for field in fields(TestbedProfile)] if len(fault["loc"]) == 1 else []
        near = get_close_matches(str(fault["loc"][-1]), known, n=1)
        return f"unknown key {place}" + (f"; did you mean '{near[0]}'?" if near else "")
    if kind == "missing":
        return f"{place} is missing"
    expected = str(fault["msg"]).removeprefix("Input should be ")
    shown = repr(fault["input"])
    return (
        f"{place} is {shown if len(shown) < 60 else shown[:57] + '...'}; expected {expected[0].lower()}{expected[1:]}"
    )
