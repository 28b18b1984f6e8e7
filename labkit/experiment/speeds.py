"""Which speed model fits a trace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.outside import find, from_packages
from labkit.core.protocols import SpeedModel
from labkit.core.resources import GPUS
from labkit.speed.interference.levels import Level
from labkit.speed.profiled import ProfiledSpeed
from labkit.workloads.named_traces import located
from labkit.workloads.own_speeds import TypeSpeeds, guessed_speeds, in_steps, is_speeds, read_speeds

if TYPE_CHECKING:
    from labkit.speed.goodput import Application

KINDS = ("auto", "bottleneck", "dl2", "flops", "gavel", "goodput", "measured", "profiled", "recorded", "step-time")

WITHOUT_FILE = ("bottleneck", "recorded", "step-time")
"""Those that read no throughputs."""


def speed_model(
    jobs: Jobs,
    cluster: Cluster,
    *,
    kind: str = "auto",
    throughputs: str | Path | None = None,
    strict: bool = False,
    interference: Level | None = None,
    sharding: str = "dynamic",
) -> SpeedModel:
    """Return the truth about speeds that a simulation of these jobs on this cluster uses.

    Parameters
    ----------
    kind : str
        "gavel": Gavel's measured throughputs by model, GPUs and device type. "measured": a table of speeds by
        (PS, workers), read from `throughputs`. "dl2": functions fitted to DL2's table. "profiled": a testbed's profile,
        read from `throughputs`. "step-time": computation and communication over the network.
        "bottleneck": DLRover's models on CPU cores, for asynchronous jobs with servers.
        "goodput": Pollux' measurements, a folder in `throughputs`: jobs train to the end of their application, and
        choose their batch. "recorded": the trace's own durations. "auto": the first of gavel, dl2, bottleneck,
        step-time and recorded that knows all models and device types, dl2 only for jobs whose steps are samples, as in
        DL2's traces; measured where `throughputs` is not JSON, gavel where it is a CSV of speeds by type, and goodput
        where it is a folder. "flops": a guess, recorded durations scaled by the published FLOPS of device types.
        `package.module:Name`, or the name of an entry point of the group `labkit.speeds`: what that returns when it is
        called with jobs and cluster.
    throughputs : path, optional
        Gavel's JSON, a table of measured speeds, a CSV of speeds by type, a testbed's profile, or the folder
        simulator/traces of Pollux' artifact; or the name of public ones that were fetched, as gavel-throughputs or
        dl2-speeds.
    strict : bool
        Refuse throughputs that would have to be estimated.
    interference : Level, optional
        How co-located jobs slow each other; only "step-time", which "auto" then is, can have it. A testbed's profile in
        `throughputs` has its own: beside it a measured one is told to schedulers alone.
    sharding : str
        "static": workers have their shares of the samples in advance; only "bottleneck" can have it. Else "dynamic".

    Raises
    ------
    InputError
        If the kind is not known, or it does not know a model or a device type.
    """
    throughputs = None if throughputs is None else located(throughputs)
    if throughputs is not None and (kind in WITHOUT_FILE or ":" in kind):
        raise InputError(
            f"speed model '{kind}' takes no throughputs, and {throughputs} is given; leave one of them out."
        )
    if sharding != "dynamic":
        return _sharded(jobs, cluster, sharding, kind=kind, throughputs=throughputs, interference=interference)
    if interference is not None and not (interference.measured and _is_profile(throughputs)):
        return _with_interference(jobs, cluster, interference, kind=kind, throughputs=throughputs, strict=strict)
    if kind not in KINDS:
        return _own(kind, jobs, cluster)
    kind = _fitting(jobs, cluster, throughputs) if kind == "auto" else kind
    return _labkits(kind, jobs, cluster, throughputs=throughputs, strict=strict)


def _sharded(
    jobs: Jobs, cluster: Cluster, sharding: str, *, kind: str, throughputs: str | Path | None,
    interference: Level | None,
) -> SpeedModel:  # fmt: skip
    """Return speeds of jobs whose samples are divided among workers in another way than on demand."""
    from labkit.speed.bottleneck import SHARDING, Bottleneck

    if sharding not in SHARDING:
        raise unknown("sharding", sharding, SHARDING)
    found = _fitting(jobs, cluster, throughputs) if kind == "auto" else kind
    asked = "interference" if interference is not None else f"speed '{found}'"
    if asked != "speed 'bottleneck'":
        raise InputError(
            f"sharding '{sharding}' needs speed 'bottleneck', which tells workers apart; {asked} does not. Leave one "
            "of them out."
        )
    return Bottleneck(jobs, cluster, sharding=sharding)


def _with_interference(
    jobs: Jobs, cluster: Cluster, level: Level, *, kind: str, throughputs: str | Path | None, strict: bool
) -> SpeedModel:
    """Return step times in which co-located jobs slow each other."""
    from labkit.speed.step_time import step_time

    asked = "throughputs" if throughputs is not None else "strict" if strict else f"speed '{kind}'"
    if asked not in ("speed 'auto'", "speed 'step-time'"):
        raise InputError(
            f"interference '{level}' needs speeds by step time, which know who runs beside whom; leave {asked} out, or "
            "interference."
        )
    return step_time(jobs, cluster, slowdown=level.slowdown(jobs, cluster))


def _labkits(kind: str, jobs: Jobs, cluster: Cluster, *, throughputs: str | Path | None, strict: bool) -> SpeedModel:
    if kind in ("gavel", "flops"):
        return _by_type(kind, jobs, cluster, throughputs, strict=strict)
    if kind == "dl2":
        return _fitted(jobs, cluster, throughputs, strict=strict)
    if kind in ("goodput", "measured", "profiled"):
        return _read(kind, jobs, cluster, throughputs)
    if kind == "step-time":
        from labkit.speed.step_time import step_time

        return step_time(jobs, cluster)
    if kind == "bottleneck":
        from labkit.speed.bottleneck import Bottleneck

        return Bottleneck(jobs, cluster)
    from labkit.speed.recorded import Recorded

    return Recorded(jobs, cluster)


def _read(kind: str, jobs: Jobs, cluster: Cluster, path: str | Path | None) -> SpeedModel:
    """Return a speed model of what was measured, which a file or a folder tells."""
    if kind == "profiled":
        return _profiled(jobs, cluster, path)
    if kind == "goodput":
        from labkit.speed.goodput import Goodput, in_progress

        applications = _applications(path)
        jobs, batch = in_progress(jobs, applications)
        return Goodput(jobs, cluster, applications=applications, batch=batch)
    from labkit.speed.measured import MeasuredSpeed, SpeedTable

    if path is None:
        raise InputError("speed model 'measured' needs a table of speeds; give it with --throughputs FILE.")
    return MeasuredSpeed(jobs, cluster, table=SpeedTable.read(path))


def _by_type(kind: str, jobs: Jobs, cluster: Cluster, throughputs: str | Path | None, *, strict: bool) -> SpeedModel:
    from labkit.speed.gavel import GavelSpeed
    from labkit.workloads.gavel import Throughputs

    given = type_speeds(jobs, cluster, kind=kind, throughputs=throughputs)
    if given is not None:
        return GavelSpeed(jobs, cluster, throughputs=given.table, strict=strict, description=given.description)
    table = None if throughputs is None else Throughputs.read(throughputs)
    return GavelSpeed(jobs, cluster, throughputs=table, strict=strict)


def type_speeds(jobs: Jobs, cluster: Cluster, *, kind: str, throughputs: str | Path | None) -> TypeSpeeds | None:
    """Return the speeds by device type that are given, or that follow from FLOPS; None if neither is asked for."""
    if kind == "flops":
        if throughputs is not None:
            raise InputError(f"speed model 'flops' is a guess, and {throughputs} is given too; leave --speed out.")
        return guessed_speeds(jobs, cluster.device_types)
    if throughputs is None or kind not in ("auto", "gavel") or not is_speeds(throughputs):
        return None
    return read_speeds(throughputs, jobs=jobs)


def with_steps(jobs: Jobs, cluster: Cluster, *, kind: str, throughputs: str | Path | None) -> tuple[Jobs, str]:
    """Return jobs whose steps suit measured speeds, and what is to be said of it: `in_steps`, `in_progress`."""
    if kind == "goodput" or (kind == "auto" and _is_folder(throughputs)):
        from labkit.speed.goodput import in_progress

        return in_progress(jobs, _applications(throughputs))[0], "jobs train to the end of their application"
    by_type = type_speeds(jobs, cluster, kind=kind, throughputs=throughputs)
    return (jobs, "") if by_type is None else in_steps(jobs, by_type)


def _fitted(jobs: Jobs, cluster: Cluster, throughputs: str | Path | None, *, strict: bool) -> SpeedModel:
    from labkit.speed.dl2 import fitted
    from labkit.speed.measured import MeasuredSpeed

    if throughputs is not None:
        raise InputError(
            f"speed model 'dl2' has figures of its own, and {throughputs} is given too; drop one of them: speed model "
            "'measured' takes a file."
        )
    if strict:
        raise InputError(
            "speeds of DL2's models are fitted, not measured, and strict is set; give the measured ones with "
            "--throughputs FILE (`labkit traces fetch dl2-speeds`), or leave strict out."
        )
    return MeasuredSpeed(jobs, cluster, table=fitted())


def _own(kind: str, jobs: Jobs, cluster: Cluster) -> SpeedModel:
    """Return a user's speed model."""
    if (found := find(kind, what="speed model")) is None:
        raise unknown("speed model", kind, {*KINDS, *from_packages("speed model")})
    if not callable(found):
        raise InputError(
            f"speed model {kind} is {found!r:.60}; expected a class or function that takes jobs and cluster."
        )
    try:
        model = found(jobs, cluster)
    except TypeError as error:
        raise InputError(f"speed model {kind} cannot be made from jobs and cluster: {error}.") from error
    if not isinstance(model, SpeedModel):
        raise InputError(
            f"speed model {kind} makes {model!r:.60}; expected a SpeedModel: local, speeds, runs_on, durations_s."
        )
    return model


def _profiled(jobs: Jobs, cluster: Cluster, path: str | Path | None) -> SpeedModel:
    from labkit.speed.profiled import ProfiledSpeed, read

    if path is None:
        raise InputError("speed model 'profiled' needs a testbed's profile; give it with --throughputs FILE.")
    return ProfiledSpeed(jobs, cluster, profile=read(path))


def _fitting(jobs: Jobs, cluster: Cluster, throughputs: str | Path | None) -> str:
    """Return the kind of speed model that knows these jobs."""
    if throughputs is not None:
        if _is_folder(throughputs):
            return "goodput"
        if not str(throughputs).endswith(".json"):
            return "gavel" if is_speeds(throughputs) else "measured"
        return "profiled" if _is_profile(throughputs) else "gavel"
    from labkit.workloads.gavel import Throughputs

    published = Throughputs.published()
    if set(jobs.models) <= set(published.models) and set(cluster.device_types) <= set(published.device_types):
        return "gavel"
    if _of_dl2(jobs):
        return "dl2"
    if _of_dlrover(jobs):
        return "bottleneck"
    distributed = (jobs.max_ps > 0).any() or np.isnan(jobs.duration_s).any()
    return "step-time" if distributed and all(_in_catalogue(name) for name in jobs.models) else "recorded"


def _is_folder(path: str | Path | None) -> bool:
    return path is not None and Path(path).is_dir()


def _applications(folder: str | Path | None) -> Mapping[str, Application]:
    """Return what was measured of Pollux' applications; read once as long as the files stay as they are."""
    if folder is None or not Path(folder).is_dir():
        raise InputError(
            f"speed model 'goodput' needs a folder of measurements, and has {folder or 'none'}; give --throughputs "
            "adaptdl/simulator/traces (git clone --branch osdi21-artifact https://github.com/petuum/adaptdl)."
        )
    files = sorted(Path(folder).glob("*/*.csv"))
    return _read_applications(str(folder), tuple((str(file), file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=1)
def _read_applications(folder: str, stamps: tuple[tuple[str, int], ...]) -> Mapping[str, Application]:  # noqa: ARG001
    from labkit.speed.goodput import read_applications

    return read_applications(folder)


def _is_profile(path: str | Path | None) -> bool:
    """Return whether a file is the profile of a testbed."""
    from labkit.speed.profiled.profile import is_profile

    return path is not None and str(path).endswith(".json") and is_profile(path)


def _of_dl2(jobs: Jobs) -> bool:
    """Return whether these are jobs of DL2's setting: of its models, with servers, and a step is a sample."""
    if not ((jobs.samples_per_step == 1) & (jobs.max_ps > 0)).all():
        return False
    from labkit.speed.dl2 import fitted

    return set(jobs.models) <= set(fitted().models)


def _of_dlrover(jobs: Jobs) -> bool:
    """Return whether these are jobs of DLRover's setting: of its models, asynchronous, with servers, without GPUs."""
    if jobs.sync.any() or (jobs.n_ps < 1).any() or (jobs.worker_demand[:, GPUS] > 0).any():
        return False
    from labkit.speed.bottleneck import WORK
    from labkit.workloads import catalogue

    return all(_in_catalogue(name) and catalogue.model(name).name in WORK for name in jobs.models)


def _in_catalogue(name: str) -> bool:
    from labkit.workloads import catalogue

    try:
        catalogue.model(name)
    except InputError:
        return False
    return True


def declared(jobs: Jobs, speed: SpeedModel) -> Jobs:
    """Return the jobs with every unknown duration filled in from the speed model."""
    unknown_s = np.isnan(jobs.duration_s)
    if not unknown_s.any():
        return jobs
    return jobs.with_columns(duration_s=np.where(unknown_s, speed.durations_s(), jobs.duration_s))


def resolve_speed(
    jobs: Jobs,
    cluster: Cluster,
    *,
    speed: SpeedModel | str,
    throughputs: str | Path | None,
    strict: bool,
    interference: Level | None,
    sharding: str,
) -> tuple[Jobs, SpeedModel, str]:
    """Return jobs, the speed model that was asked for by name or as itself, and in words where jobs got their steps.

    Raise InputError if it is neither; or a model is given beside an option that models made by name take.
    """
    if isinstance(speed, str):
        jobs, stretched = with_steps(jobs, cluster, kind=speed, throughputs=throughputs)
        made = speed_model(
            jobs, cluster, kind=speed, throughputs=throughputs, strict=strict, interference=interference,
            sharding=sharding,
        )  # fmt: skip
        return jobs, made, stretched
    if not isinstance(speed, SpeedModel):
        raise InputError(f"speed is {speed!r}; expected a SpeedModel, or a name such as 'auto' or 'gavel'.")
    if sharding != "dynamic":
        raise InputError(
            f"sharding '{sharding}' and a speed model ({type(speed).__name__}) are given; Bottleneck takes "
            "sharding='static' itself."
        )
    if interference is not None and not (interference.measured and isinstance(speed, ProfiledSpeed)):
        raise InputError(
            f"interference '{interference}' and a speed model ({type(speed).__name__}) are given; expected one of "
            "them: StepTime takes slowdown=level(...).slowdown(jobs, cluster), a testbed's profile has its own."
        )
    return jobs, speed, ""
