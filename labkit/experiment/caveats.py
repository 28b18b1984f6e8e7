"""What the numbers of a run rest on, in words: its speed model, and what its scheduler asks for and cannot have."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import unmet_types
from labkit.core.jobs import Jobs
from labkit.core.life import Contention, Traits
from labkit.core.protocols import Scheduler, SpeedModel
from labkit.core.resources import Floats
from labkit.core.text import shortened
from labkit.experiment.profile import measure_profile
from labkit.speed.recorded import Recorded
from labkit.topology.servers import ARCHITECTURES
from labkit.workloads.own_speeds import TFLOPS, unheard_types

if TYPE_CHECKING:
    from pathlib import Path

WORDS = {
    "Recorded": "the trace's own durations",
    "GavelSpeed": "measured throughputs by model, GPUs and device type",
    "ProfiledSpeed": "a testbed's profile",
    "StepTime": "computation and communication of the model catalogue",
}
"""What each speed model goes by that does not say so itself (`in_words`)."""

ALIKE = 1e-9
"""Speeds that differ by less than this, relative, are equal."""


class Caveat(UserWarning):
    """A run whose numbers do not mean what its scheduler's name promises."""


def speeds_in_words(jobs: Jobs, cluster: Cluster, *, speed: SpeedModel, source: str | Path | None = None) -> str:
    """Return which speed model is in use, where its figures are from, and whether it tells device types apart.

    >>> from labkit.speed.recorded import Recorded
    >>> from labkit.topology import no_network
    >>> jobs = Jobs.of(arrival_s=[0], total_steps=[60], duration_s=60)
    >>> speeds_in_words(jobs, no_network(1), speed=Recorded(jobs, no_network(1)))
    "the trace's own durations"
    """
    said: str = getattr(speed, "in_words", None) or WORDS.get(type(speed).__name__, type(speed).__name__)
    profile = getattr(speed, "profile", None)
    if profile is not None and hasattr(profile, "name"):
        said += f" ({profile.name})"
    elif source is not None:
        said += f" ({source})"
    n_types = len(cluster.gpu_types)
    return f"{said}; all {n_types} device types equally fast" if types_alike(jobs, cluster, speed=speed) else said


def types_alike(jobs: Jobs, cluster: Cluster, *, speed: SpeedModel) -> bool:
    """Return whether a cluster has several device types, and every job is as fast on one as on any other it runs on."""
    if len(cluster.gpu_types) < 2 or not len(jobs):
        return False
    if isinstance(speed, Recorded):
        return True
    return bool(_same_in_each_row(measure_profile(jobs, cluster, speed=speed, pairs=False).alone))


def _same_in_each_row(speed: Floats) -> bool:
    """Return whether the speeds > 0 of each row are equal, and some row has two of them."""
    there = speed > 0
    least = np.where(there, speed, np.inf).min(axis=1)
    most = np.where(there, speed, -np.inf).max(axis=1)
    several = there.sum(axis=1) > 1
    return bool(several.any() and (most[several] <= least[several] * (1 + ALIKE)).all())


def caveats(
    jobs: Jobs,
    cluster: Cluster,
    *,
    speed: SpeedModel,
    scheduler: Scheduler,
    name: str,
    speeds: str,
    fails: bool = False,
    interference: Contention | None = None,
) -> list[str]:
    """Return the cautions for readers of this scheduler's numbers, a sentence each.

    Parameters
    ----------
    speed : SpeedModel
        The truth about speeds.
    name : str
        What the scheduler is called.
    speeds : str
        The speed model in words.
    fails : bool
        Whether machines fail.
    interference : Contention, optional
        What the scheduler will be told of co-located jobs.
    """
    traits, found = Traits.of(scheduler), [*jobs.notes, *unmet_types(jobs, cluster), *_unheard(jobs, cluster, speed)]
    if traits.lives_on_types and types_alike(jobs, cluster, speed=speed):
        kinds, source = ", ".join(cluster.gpu_types), speeds.partition(";")[0]
        so = "by price alone" if traits.pays is not None else "as its agnostic version would"
        found.append(
            f"{name} lives on differences in speed between device types, and here {kinds} are equally fast (speeds: "
            f"{source}); so it decides {so}. --throughputs FILE gives measured or relative "
            "speeds, --speed flops guesses them."
        )
    if traits.oracle and jobs.malleable.any():
        found.append(
            f"{name} is an oracle: it knows the true speed of every gang before the run, which no scheduler can; its "
            "figures show what such knowledge is worth."
        )
    if traits.lives_on_slos and np.isnan(jobs.slo_s).all():
        so = "all of them are best effort" if traits.pays is None else "it only minimises cost"
        found.append(f"{name}: no job of {jobs.name} has an SLO (slo_s), so {so}.")
    if traits.ideal and fails:
        found.append(
            f"{name}: where GPUs are divided at will the cluster is one machine; it fails as often as each of the real "
            "ones, and all of it at a time."
        )
    remarks = getattr(scheduler, "remarks", None)
    found += [f"{name}: {said}" for said in (remarks() if remarks is not None else ())]
    cautions = getattr(scheduler, "cautions", None)
    found += [f"{name}: {said}" for said in (cautions(jobs, cluster, interference) if cautions is not None else ())]
    unmet = getattr(scheduler, "unmet", None)  # of a scheduler that was trained
    if unmet is not None and (strange := unmet(jobs)):
        found.append(
            f"{name}: its training has met no {shortened(', '.join(strange))}; it decides about such jobs by their "
            "epochs and ages alone. `labkit train-policy` trains one on your own jobs."
        )
    return found


def _unheard(jobs: Jobs, cluster: Cluster, speed: SpeedModel) -> list[str]:
    """Return a sentence if a cluster has types of GPU that labkit has never heard of, and speeds do not tell apart."""
    ours = (server.device_type for server in ARCHITECTURES.values())
    if not isinstance(speed, Recorded) or not (odd := unheard_types(cluster.device_types, jobs, heard=ours)):
        return []
    near = [f"{kind} (near: {', '.join(found)})" if (found := _near(kind)) else kind for kind in odd]
    return [
        f"device_type of {cluster.name} that neither a job nor labkit's lists of GPUs name: {', '.join(near)}; check "
        "how it is written."
    ]


def _near(kind: str) -> list[str]:
    return get_close_matches(kind.casefold(), TFLOPS, n=2, cutoff=0.5)


def fell_back(name: str, scheduler: Scheduler) -> str:
    """Return the caution about a run in which a fallback decided; notes of the run have the numbers."""
    return (
        f"{name}: its fallback {getattr(scheduler, 'fallback', None)} decided in its place at times (events FELL_BACK "
        "say when and why); its figures are those of both."
    )
