"""A scenario: all that a simulation, or a run on machines, is except its scheduler. Each option has its one home here.

A field of `Scenario` with an `Option` is an option of every command that simulates, an argument of `labkit.simulate`,
`labkit.compare` and `labkit.Experiment.of`, a parameter of a sweep, and stands in a run's `run.json`.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

from labkit.core.calls import python_value
from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_unreadable

if TYPE_CHECKING:  # the command line reads the options before it needs any of these
    from labkit.core.cluster import Cluster
    from labkit.core.consent import Trust
    from labkit.core.jobs import Jobs
    from labkit.core.protocols import SpeedModel
    from labkit.core.quotas import Quotas
    from labkit.experiment.cadence import Cadence
    from labkit.experiment.reservations import Reservation, Reservations
    from labkit.results.record import RunRecord
    from labkit.simulator import Faults, Losses, Overheads, Troubles, Variation
    from labkit.speed.interference.levels import Level
    from labkit.speed.profiled import TestbedProfile

KEY: Final = "scenario"
"""In the options of a run: its scenario."""
EPOCH_STREAM: Final = 3
"""The simulator has streams 0, 1 and 2 of a seed, troubles stream 4."""
NUMBERS: Final = {float: "a number", int: "a whole number", bool: "True or False"}


@dataclass(frozen=True, slots=True)
class Option:
    """What is said of a field wherever it can be typed."""

    help: str
    """For the command line and the documentation; the unit is part of it."""
    kind: type = str
    """float, int, bool, str or Path: of what is typed."""
    flag: str = ""
    """On the command line; "": the field's name without its unit."""
    metavar: str = ""
    """What stands for the value in a help text; "": the kind."""
    least: float = -math.inf
    most: float = math.inf
    """`least` and `most`: the smallest and the largest value that it may have."""
    expected: str = ""
    """What an error says that it should have been; "": by its kind."""
    may_be_file: bool = False
    """It may name a file, which goes along with a sweep's cells and needs consent where a stored record names it."""
    random: str = ""
    """What a seed changes where it is set; "": nothing."""
    former: str = ""
    """A former name, which is still read; "": none."""
    simulated: bool = False
    """It is of simulations alone: machines have their own."""

    def read(self, value: Any) -> Any:
        """Return a value as Python's own: numpy's numbers, and "inf", as which JSON holds an infinite one."""
        return math.inf if self.kind is float and value == "inf" else python_value(value)

    def check(self, name: str, value: Any) -> None:
        """Raise InputError if a value cannot be this option's."""
        if value is None:
            raise InputError(f"{name} is None; expected {self.expected or NUMBERS.get(self.kind, 'a name')}.")
        if self.kind not in NUMBERS:
            return
        expected = self.expected or NUMBERS[self.kind] + (f" >= {self.least:g}" if self.least > -math.inf else "")
        is_kind = isinstance(value, int | float if self.kind is float else self.kind)
        if isinstance(value, bool) != (self.kind is bool) or not is_kind or not self.least <= value <= self.most:
            raise InputError(f"{name} is {value!r}; expected {expected}.")


def _option(default: Any, help: str, kind: type = str, **more: Any) -> Any:
    return field(default=default, metadata={"option": Option(help, kind, **more)})


SPEEDS: Final = (
    "Speed model: auto, bottleneck, dl2, flops (a guess), gavel, goodput, measured, step-time, recorded, or your own: "
    "file.py:Class."
)
USED: Final = "With --period: "


@dataclass(frozen=True, eq=False, kw_only=True)
class Scenario:
    """All that a simulation is except its scheduler; make one with `Scenario.of`, run it with `labkit.simulate`.

    Fields are plain values, which can be written down and read again; those in the last part are objects of Python's
    for which there is no text, or that stand for several of the plain ones (`overheads=Overheads(5, 5, 5)`).

    Attributes
    ----------
    trace : Jobs or str
        What arrives: jobs, a file, the name of a shipped trace, or a generator ("poisson(80, per_hour=12)").
    cluster : Cluster or str or None
        Where it runs: a preset, an expression ("fat_tree(4)"), or an inventory; None: the profile's.
    seed : int
        Seed of a generated trace and of the simulator.
    cadence, overheads, variation, faults, losses, believed, measure_every_s, history
        As `Experiment` has them.

    Raises
    ------
    InputError
        If a value cannot be, or two fields say the same thing.

    Examples
    --------
    >>> asked = Scenario.of("poisson(5, per_hour=12)", cluster="demo", arrival_rate=2)
    >>> asked.changed
    {'arrival_rate': 2}
    >>> Scenario.of("demo", cluster="demo", arrival_rat=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    labkit.core.errors.InputError: unknown option of a simulation 'arrival_rat'. Did you mean 'arrival_rate'? ...
    """

    trace: Jobs | str
    cluster: Cluster | str | None = None
    profile: TestbedProfile | str | Path | None = _option(
        None, "Profile of a testbed (`labkit profile`): its hosts, speeds and overheads.", Path, metavar="FILE",
        may_be_file=True,
    )  # fmt: skip
    throughputs: str | Path | None = _option(
        None, "Measured speeds: a CSV by model, gpus and type, or by type alone; Gavel's JSON; a table by (PSs, "
        "workers); or the folder of Pollux' measurements.",
        Path,
        may_be_file=True,
    )  # fmt: skip
    speed: SpeedModel | str = _option("auto", SPEEDS)
    interference: Level | str | Path | None = _option(
        "none",
        "How co-located jobs slow each other: none, mild, calibrated, or a FILE of measurements: a profile of "
        "`labkit profile`, or a table.",
        may_be_file=True,
    )
    quotas: Quotas | Mapping[str, float] | str | Path | None = _option(
        None, "GPU quota of each user: vision=8,*=4 (*: every other user), or a TOML FILE.",
        may_be_file=True,
    )  # fmt: skip
    reservations: Reservations | Sequence[Reservation] | Mapping[str, Any] | str | Path | None = _option(
        None,
        "Machines reserved for a period, for some users or for nobody: a TOML file with a table reservation.NAME for "
        "each.",
        Path, metavar="FILE", may_be_file=True,
    )  # fmt: skip
    consolidate: str | None = _option(
        None,
        "Machines per gang: wait (for as few as possible), prefer (as few as possible) or split (over any number). "
        "Default: the rule of the trace's own cluster if known, else split.",
    )
    consolidate_for_s: float | None = _option(
        None, "With --consolidate wait: split a gang that has waited for SECONDS since it arrived.", float, least=0
    )
    time_limits: str = _option(
        "recorded", "Jobs that stop at their time limits: recorded (those that reached them in the trace), all, "
        "or none.", simulated=True,
    )  # fmt: skip
    partitions: bool = _option(
        False, "Divide the cluster into the partitions (virtual clusters) that jobs name but the cluster lacks.", bool
    )
    arrival_rate: float = _option(
        1.0, "Factor on the trace's arrival rate: 2 means that jobs arrive twice as fast.", float,
        expected="a factor > 0, 2 for jobs that arrive twice as fast", former="load",
    )  # fmt: skip
    slot_s: float | None = _option(None, "Schedule every SECONDS instead of at every event.", float)
    first: int | None = _option(None, "Use only the first N jobs.", int, least=1)
    windows: int | None = _option(
        None, "Cut the trace into N windows of equal length; the seed selects the window.", int, least=1,
        simulated=True, random="each seed is another window of the trace",
    )  # fmt: skip
    window_jobs: int | None = _option(
        None, "With --windows: jobs in each window. Default: as many as fit.", int, flag="--of", least=1, simulated=True
    )
    drop_too_large: bool = _option(False, "Drop jobs that do not fit the empty cluster. A note shows how many.", bool)
    any_type: bool = _option(False, "Let jobs run on every device type, whatever they request.", bool)
    whole_gpus: bool = _option(False, "Allocate a whole GPU to each task that requests a fraction of one.", bool)
    format: str | None = _option(
        None, "Format of the trace, if the file does not show it; 'sacct(npu=1,shard=1/4)' counts an npu as 1 GPU "
        "and a shard as 1/4.",
    )  # fmt: skip
    start_s: float = _option(0.0, "Overhead of a job's first start, in seconds.", float, simulated=True)
    restart_s: float = _option(0.0, "Overhead of a restart from a checkpoint, in seconds.", float, simulated=True)
    rescale_s: float = _option(0.0, "Overhead of rescaling a running gang, in seconds.", float, simulated=True)
    overheads: Overheads | str | None = _option(
        None, "Published overheads: dlrover (20 s to launch + 100 s to start).", simulated=True
    )
    troubles: Troubles | str | Path | None = _option(
        "none", "Slow and hot tasks: a CSV file, or fractions of the jobs: hot_ps=0.13,slow_ps=0.06.", simulated=True,
        may_be_file=True, random="tasks are slow or hot",
    )  # fmt: skip
    sharding: str = _option(
        "dynamic",
        "Data sharding: dynamic, or static (each worker's share of the samples is fixed in advance).",
        simulated=True,
    )
    mtbf_s: float | None = _option(
        None,
        "Mean time between failures of a machine, in seconds. Needs --mttr.",
        float,
        simulated=True,
        random="machines fail",
    )
    mttr_s: float | None = _option(None, "Mean time to repair a machine, in seconds.", float, simulated=True)
    checkpoint_s: float = _option(
        0.0, "Seconds between checkpoints, to which failed jobs return. 0: no work is lost.",
        float, simulated=True,
    )  # fmt: skip
    preemption_loses_work: bool = _option(
        False, "Preempted jobs return to their newest checkpoint, too; without --checkpoint they restart from zero, "
        "like jobs that Slurm requeues.", bool, simulated=True,
    )  # fmt: skip
    period_s: float | None = _option(None, "Redraw the speed of each job every SECONDS.", float, simulated=True)
    speed_error: float | None = _option(
        None,
        f"{USED}relative error of the speed; 0.1 is up to 10% in either direction.",
        float,
        simulated=True,
        random="speeds vary",
    )
    straggler_probability: float | None = _option(
        None, f"{USED}the chance that a straggler slows a job.", float, simulated=True, random="jobs are slowed"
    )
    straggler_factor: float | None = _option(
        None, f"{USED}the fraction of its speed that such a job keeps.", float, simulated=True
    )
    epoch_error: float = _option(
        0.0, "Relative error of the declared epochs: 0.2 is up to 20% more or fewer.", float, simulated=True,
        random="jobs are longer or shorter than declared",
    )  # fmt: skip
    prices: Mapping[str, float] | str | Path | None = _option(
        None, "Dollars per GPU and hour: v100=2.48,a100=3.2, or a file of such lines.", metavar="PRICES",
        may_be_file=True,
    )  # fmt: skip
    strict: bool = _option(False, "Refuse throughputs that were not measured.", bool)
    seed: int = _option(
        0, "Seed of a generated trace and of the simulator.", int, least=0, expected="a whole number >= 0"
    )

    cadence: Cadence | str | None = None
    variation: Variation | None = None
    faults: Faults | None = None
    losses: Losses | None = None
    believed: SpeedModel | None = None
    measure_every_s: float | None = None
    history: Path | None = None
    speeds: str | None = None

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = option.read(getattr(self, name))
            object.__setattr__(self, name, value)
            if value is not None or (DEFAULTS[name] is not None and not option.may_be_file):
                option.check(name, value)
        for whole, parts in PARTS.items():
            given = [name for name in parts if getattr(self, name) != DEFAULTS[name]]
            if given and getattr(self, whole) is not None and not (whole == "faults" and given == ["checkpoint_s"]):
                raise InputError(f"{whole} and {given[0]} are given; expected one of them.")
        if self.windows is not None or self.window_jobs is not None:
            _refuse_odd_windows(self.trace, self.windows)

    @classmethod
    def of(cls, jobs: Scenario | Jobs | str | Path, **changes: Unpack[Fields]) -> Scenario:
        """Return a scenario of jobs or a trace; or one with some fields changed.

        Raises
        ------
        InputError
            If a field is misspelt, or a value cannot be; of jobs that are none.
        """
        named = current(changes)
        for name in named:
            if name not in DEFAULTS:
                raise unknown("option of a simulation", name, sorted(DEFAULTS))
        from labkit.core.jobs import Jobs

        if isinstance(jobs, Scenario):
            return replace(jobs, **named)
        if not isinstance(jobs, Jobs | str | Path):
            raise InputError(
                f"jobs is a {type(jobs).__name__}; expected Jobs, the path of a trace, or a generator such as "
                "'poisson(80, per_hour=12)'. Jobs.of(arrival_s=..., total_steps=..., n_workers=...) makes them from "
                "columns."
            )
        if isinstance(jobs, Jobs) and not len(jobs):
            raise InputError(
                f"{jobs.name} has no jobs; expected at least one. Does a condition, as in take(), fit none?"
            )
        return cls(trace=str(jobs) if isinstance(jobs, Path) else jobs, **named)

    def of_trace(self, trace: Jobs | str | Path) -> Scenario:
        """Return the scenario with another trace."""
        return replace(self, trace=str(trace) if isinstance(trace, Path) else trace)

    @property
    def changed(self) -> dict[str, Any]:
        """The fields that are not as they are by default, but for trace, cluster and seed."""
        given = {name: getattr(self, name) for name in DEFAULTS if name not in ("cluster", "seed")}
        return {name: value for name, value in given.items() if value is not DEFAULTS[name] and not _usual(name, value)}

    @property
    def files(self) -> list[tuple[str, str | Path]]:
        """The fields that may name a file, and what they name."""
        names = ["cluster", *(name for name, option in OPTIONS.items() if option.may_be_file)]
        return [(name, value) for name in names if isinstance(value := getattr(self, name), str | Path)]

    def jobs(self) -> Jobs:
        """Return the jobs that arrive: the first ones of the trace, at its arrival rate, with their true epochs."""
        import numpy as np

        from labkit.core.jobs import Jobs
        from labkit.workloads import scaled, window, with_epoch_error
        from labkit.workloads.expressions import trace as trace_of

        made = self.trace if isinstance(self.trace, Jobs) else trace_of(self.trace, seed=self.seed, format=self.format)
        if self.first is not None:
            made = made.take(np.arange(min(self.first, len(made))))
        if self.windows is not None:
            made = window(made, self.seed, n_windows=self.windows, n_jobs=self.window_jobs)
        if self.epoch_error:
            stream = np.random.SeedSequence(self.seed, spawn_key=(EPOCH_STREAM,))
            made = with_epoch_error(made, error=self.epoch_error, rng=np.random.default_rng(stream))
        return made if self.arrival_rate == 1 else scaled(made, arrival_rate=self.arrival_rate)

    @property
    def parts(self) -> dict[str, Any]:
        """Cadence, overheads, variation, faults and checkpoints as `Experiment` takes them, where some are given."""
        from labkit import simulator
        from labkit.experiment.cadence import Cadence, every_slot

        cadence = Cadence.published(self.cadence) if isinstance(self.cadence, str) else self.cadence
        cadence = cadence if self.slot_s is None else every_slot(self.slot_s)
        overheads = simulator.Overheads.published(self.overheads) if isinstance(self.overheads, str) else self.overheads
        made: dict[str, Any] = {"cadence": cadence, "overheads": overheads, "variation": self.variation}
        made |= {"faults": self.faults, "checkpoint_s": self.checkpoint_s or None}
        made |= {"preemption_loses_work": self.preemption_loses_work or None}
        for whole, names in BUILT.items():
            given = {names[name]: getattr(self, name) for name in names if getattr(self, name) != DEFAULTS[name]}
            if not given or (whole == "faults" and self.mtbf_s is None and self.mttr_s is None):
                continue
            kind = getattr(simulator, whole.capitalize())
            needed = [name for name in names if kind.__dataclass_fields__[names[name]].default is MISSING]
            if lacks := [name for name in needed if names[name] not in given]:
                told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names if names[name] in given)
                raise InputError(f"{told} without {lacks[0]}; these go together: {', '.join(names)}.")
            made[whole] = kind(**given)
        if made["faults"] is not None and self.faults is None:
            made["checkpoint_s"] = None
        return {name: value for name, value in made.items() if value is not None}

    def plain(self) -> dict[str, Any]:
        """Return the scenario as JSON can hold it; `own` lists what cannot be written down, but only given again."""
        told: dict[str, Any] = {"trace": self.trace if isinstance(self.trace, str) else self.trace.name}
        if isinstance(self.cluster, str):
            told["cluster"] = self.cluster
        told["seed"] = int(self.seed)
        own = [] if self.cluster is None or isinstance(self.cluster, str) else ["cluster"]
        for name, value in self.changed.items():
            try:
                if name == "faults" and self.checkpoint_s and value.checkpoint_s != self.checkpoint_s:
                    raise ValueError  # no field says that failures have other checkpoints than other losses
                told |= _plain(name, value)
            except (TypeError, ValueError, AttributeError):
                own.append(name)
        return told | ({"own": own} if own else {})

    @classmethod
    def read(cls, file: str | Path, **others: Any) -> Self:
        """Return the scenario of a TOML or JSON file, with a line for each field; `others` stand in for what it says.

        Raises
        ------
        InputError
            If it cannot be read, or names a field that there is not.
        """
        path = Path(file)
        refuse_unreadable(path, expected="a scenario", error=InputError)
        try:
            text = path.read_text(encoding="utf-8")
            told = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such file; check the path.") from None
        except (ValueError, UnicodeDecodeError) as error:
            raise InputError(f'{path} cannot be read ({error}); expected TOML, as trace = "demo".') from None
        return cls.from_plain(told, source=str(path), **others)

    @classmethod
    def of_run(cls, record: RunRecord, *, trust: Trust = False, **changes: Unpack[Fields]) -> Self:
        """Return the scenario of a run that was kept: its very jobs, and the rest as it was asked for, or is now.

        Raises
        ------
        InputError
            If its record holds none, or something of it could not be written down; or it names a file or a speed model
            outside labkit, and the user neither began it on this machine nor has `trust`: `labkit.core.consent`.
        """
        from labkit.core.consent import stored
        from labkit.core.outside import find, use_file

        told = record.info.config.get(KEY)
        if not isinstance(told, Mapping):
            raise InputError(f"run '{record.info.run}' holds no scenario; it is of an older labkit, or of machines.")
        named = current(changes)
        kept = {name: value for name, value in current(told).items() if name not in OF_JOBS and name not in named}
        made = cls.from_plain(kept, source=f"run '{record.info.run}'", trace=record.jobs, **named)
        with stored(trust):
            for name, file in made.files:
                if name in kept:
                    use_file(file, what=f"file of {name}")
            if ":" in str(kept.get("speed", "")):
                find(str(kept["speed"]), what="speed model")
        return made

    @classmethod
    def from_plain(cls, plain: Any, *, source: str, **others: Any) -> Self:
        """Return the scenario that `plain` wrote down; `others` stand in for what it says.

        Raises
        ------
        InputError
            If it is none, or something of it could not be written down and is not given.
        """
        if not isinstance(plain, Mapping) or not (isinstance(plain.get("trace"), str) or "trace" in others):
            raise InputError(f'{source} holds no scenario; expected at least trace = "demo" and cluster = "demo".')
        if missing := [name for name in plain.get("own", ()) if name not in others]:
            raise InputError(
                f"{source} cannot be reproduced: its {', '.join(map(str, missing))} came from Python; give it again."
            )
        named = current({name: value for name, value in plain.items() if name != "own"}) | current(others)
        for name in named:
            if name not in DEFAULTS and name != "trace":
                raise unknown(f"field of the scenario {source}", str(name), sorted(DEFAULTS))
        return cls(**named)


class Fields(TypedDict, total=False):
    """The fields of a scenario but its trace, as arguments."""

    cluster: Cluster | str | None
    profile: TestbedProfile | str | Path | None
    throughputs: str | Path | None
    speed: SpeedModel | str
    interference: Level | str | Path | None
    quotas: Quotas | Mapping[str, float] | str | Path | None
    reservations: Reservations | Sequence[Reservation] | Mapping[str, Any] | str | Path | None
    consolidate: str | None
    consolidate_for_s: float | None
    time_limits: str
    partitions: bool
    arrival_rate: float
    slot_s: float | None
    first: int | None
    windows: int | None
    window_jobs: int | None
    drop_too_large: bool
    any_type: bool
    whole_gpus: bool
    format: str | None
    start_s: float
    restart_s: float
    rescale_s: float
    overheads: Overheads | str | None
    troubles: Troubles | str | Path | None
    sharding: str
    mtbf_s: float | None
    mttr_s: float | None
    checkpoint_s: float
    preemption_loses_work: bool
    period_s: float | None
    speed_error: float | None
    straggler_probability: float | None
    straggler_factor: float | None
    epoch_error: float
    prices: Mapping[str, float] | str | Path | None
    strict: bool
    seed: int
    cadence: Cadence | str | None
    variation: Variation | None
    faults: Faults | None
    losses: Losses | None
    believed: SpeedModel | None
    measure_every_s: float | None
    history: Path | None
    speeds: str | None


OPTIONS: Final[dict[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(Scenario) if "option" in each.metadata
}
"""Each field that can be typed -> what is said of it."""
FORMER: Final = {option.former: name for name, option in OPTIONS.items() if option.former}
"""Former names of fields, which are still read -> their names."""
DEFAULTS: Final = {each.name: each.default for each in fields(Scenario) if each.name != "trace"}
BUILT: Final[dict[str, dict[str, str]]] = {
    "overheads": {name: name for name in ("start_s", "restart_s", "rescale_s")},
    "faults": {name: name for name in ("mtbf_s", "mttr_s", "checkpoint_s")},
    "variation": {
        "period_s": "period_s", "speed_error": "error", "straggler_probability": "straggler_probability",
        "straggler_factor": "straggler_factor",
    },
}  # fmt: skip
"""Parts of a simulation that an object can give -> the fields that say the same, and what the object calls them."""
PARTS: Final = {"cadence": ("slot_s",)} | {whole: tuple(names) for whole, names in BUILT.items()}
OF_JOBS: Final = (
    "format", "first", "windows", "window_jobs", "arrival_rate", "epoch_error", "any_type", "whole_gpus",
    "drop_too_large",
)  # fmt: skip
"""Fields that say which jobs arrive, and when: a run's record has the jobs as they came out."""


def _refuse_odd_windows(trace: Any, windows: int | None) -> None:
    from labkit.workloads.expressions import is_generated

    if windows is None:
        raise InputError("the jobs of a window are given without windows; expected how many windows (--windows), too.")
    if isinstance(trace, str) and is_generated(trace):
        raise InputError(f"{trace} is generated; windows are of a trace from a file. Repeat it with --seeds instead.")


def current(named: Mapping[str, object]) -> dict[str, Any]:
    """Return the given fields under their present names, where some have former ones.

    Raises
    ------
    InputError
        If a field is given under both.

    >>> current({"load": 2, "first": 5})
    {'arrival_rate': 2, 'first': 5}
    """
    if twice := [former for former, name in FORMER.items() if former in named and name in named]:
        raise InputError(f"{FORMER[twice[0]]} and {twice[0]}, its former name, are given; expected one of them.")
    return {FORMER.get(name, name): value for name, value in named.items()}


def _usual(name: str, value: Any) -> bool:
    """Return whether a value is a field's default; arrays are not compared."""
    default = DEFAULTS[name]
    return type(value) in (type(default), int, float, str, Path) and value == default


def _plain(name: str, value: Any) -> dict[str, Any]:
    """Return a field, or those that stand for it, as JSON can hold them; TypeError where that cannot be."""
    from labkit.core.quotas import Quotas
    from labkit.experiment.cadence import Cadence, every_slot
    from labkit.speed.interference.levels import Level

    if name in BUILT and not isinstance(value, str):
        found = {of: _plain(of, getattr(value, at))[of] for of, at in BUILT[name].items()}
        return {of: part for of, part in found.items() if part != DEFAULTS[of]}
    if isinstance(value, Cadence) and value == every_slot(value.slot_s):
        return {"slot_s": value.slot_s}
    if isinstance(value, Quotas):
        value = value.gpus
    value = "inf" if value == math.inf else python_value(value)
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, Level) and not value.measured:
        value = value.name
    json.dumps(value, allow_nan=False)
    return {name: value}
