"""What compiled code must know of a classic scheduler to decide as it does: see `labkit.experiment.classic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.protocols import Placer, Scheduler
from labkit.core.resources import GPUS
from labkit.placers import ByNetwork, FirstFit

BY_ARRIVAL, BY_DURATION, BY_REMAINING, BY_QUEUE = range(4)
"""What jobs are ordered by: nothing but their arrival, declared seconds, those that are left, the queue of Tiresias."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a scheduler orders jobs, and what it does in that order.

    Attributes
    ----------
    key : int
        What jobs are ordered by, the least first, ties by arrival.
    preempts : bool
        Jobs that run are ordered too, as by `run_in_order`; otherwise as by `start_in_order`.
    backfill : bool
        A job that does not fit is passed over.
    threshold_gpu_s : float
        GPU-seconds from which on a job is in the second queue.
    moves : bool, optional
        Whether running jobs move: see `may_move`.
    """

    key: int
    preempts: bool
    backfill: bool
    threshold_gpu_s: float = 0.0
    moves: bool | None = None


NEVER: Final = None
"""In the place of a rule: this scheduler, with these options, decides in Python."""


def may_move(cluster: Cluster, moves: bool | None) -> bool:
    """Return whether running jobs move; by default (None) where a cluster, or one of its partitions, mixes GPU types.

    There a job that kept its machines could stay on the slowest type for good, beside faster ones that are free.
    """
    if moves is not None or len(cluster.gpu_types) < 2:
        return bool(moves)
    gpus = cluster.capacity[:, GPUS] > 0
    parts = [gpus & hosts[cluster.group_machine] for hosts in cluster.partitions.values()] or [gpus]
    return any(len(np.unique(cluster.group_type[part])) > 1 for part in parts)


def rule_of(scheduler: Scheduler, cluster: Cluster) -> Rule | None:
    """Return the rule by which a scheduler decides on a cluster; None where there is none.

    A class tells it by a method `rule()`. That of a parent does not count where `schedule` is another one, and no rule
    does where gangs are placed otherwise than by first fit.

    >>> from labkit.schedulers import make
    >>> from labkit.topology import no_network
    >>> rule_of(make("fifo"), no_network(4))
    Rule(key=0, preempts=False, backfill=False, threshold_gpu_s=0.0, moves=None)
    >>> rule_of(make("drf"), no_network(4))
    """
    kind = type(scheduler)
    owner = next((c for c in kind.__mro__ if "rule" in vars(c)), None)
    if owner is None or kind.schedule is not owner.__dict__.get("schedule"):
        return NEVER
    told: Rule | None = scheduler.rule()  # type: ignore[attr-defined]
    if told is NEVER:
        return NEVER
    return told if _by_first_fit(getattr(scheduler, "placer", None), cluster) else NEVER


def _by_first_fit(placer: Placer | None, cluster: Cluster) -> bool:
    if type(placer) is ByNetwork:
        placer = placer.otherwise if cluster.network is None else placer.networked
    return type(placer) is FirstFit
