"""What was asked for and holds for every scheduler, in the words of a run's notes."""

from __future__ import annotations

import math
from typing import Final

from labkit.core.errors import InputError
from labkit.core.hosting import HostRules
from labkit.core.life import Traits
from labkit.core.protocols import Scheduler
from labkit.core.quotas import BEYOND, Quotas
from labkit.experiment.reservations import Reservations

UNWARNED: Final = ("machines: ", "quotas: ", "reservations: ", "jobs that start ")
"""How the sentences of rules begin."""
EXCLUSIVE: Final = "no other job starts there while one holds, under every scheduler"


def rules(quotas: Quotas | None, reservations: Reservations | None, hosting: HostRules | None = None) -> list[str]:
    """Return a sentence for each rule; they need no warning."""
    sentences = [] if hosting is None else [f"machines: {hosting.description}, under every scheduler"]
    sentences += [] if quotas is None else [f"quotas: {quotas}; {BEYOND}"]
    return sentences if reservations is None else [*sentences, f"reservations: {reservations}; {EXCLUSIVE}"]


def refuse_unruly(
    scheduler: Scheduler, quotas: Quotas | None, reservations: Reservations | None, *, name: str,
    hosting: HostRules | None = None, gated: bool = False,
) -> None:  # fmt: skip
    """Raise if there are rules that a scheduler cannot be held to.

    Raise InputError, which names the scheduler, and says why.
    """
    refuse_undivided(scheduler, divided=reservations is not None, name=name, remedy="--reservations")
    divided = hosting is not None and len(hosting.parts) > 1
    refuse_undivided(scheduler, divided=divided, name=name, remedy="--partitions and the cluster's partitions")
    traits = Traits.of(scheduler)
    if (quotas is not None or gated) and not traits.ideal and traits.lease_s is not None:
        what = "quotas hide those that it has stopped" if quotas is not None else "jobs that wait for others are hidden"
        raise InputError(
            f"{name} takes jobs that it is not shown for done, and {what}; leave it or "
            f"{'--quotas' if quotas is not None else 'begin_s, after and at_most'} out."
        )


def refuse_turns(scheduler: Scheduler, *, checkpoint_s: float, name: str) -> None:
    """Raise if a scheduler lets jobs take turns that lose more than they do, so that they may never end.

    Raise InputError, which names the scheduler, and says why.
    """
    traits = Traits.of(scheduler)
    turn_s = min(traits.quantum_s, math.inf if traits.lease_s is None else traits.lease_s)
    if traits.ideal:
        raise InputError(f"{name} shares GPUs at will and preempts no job; leave it or --preemption-loses-work out.")
    if turn_s < math.inf and not 0 < checkpoint_s <= turn_s:
        raise InputError(
            f"{name} lets jobs take turns of {turn_s:g} s, and those that are preempted lose their work since their "
            f"checkpoints, so that they may never end; give --checkpoint of at most {turn_s:g}, or leave "
            "--preemption-loses-work out."
        )


def refuse_undivided(scheduler: Scheduler, *, divided: bool, name: str, remedy: str) -> None:
    """Raise if a cluster is divided into parts, and a scheduler cannot be asked about one of them.

    Raise InputError, which names the scheduler, and says why.
    """
    traits = Traits.of(scheduler)
    if not divided or not (traits.ideal or traits.lease_s is not None):
        return
    why = "divides the cluster at will and knows no hosts"
    if not traits.ideal:
        why = "has leases, between which it cannot be asked, and takes jobs that it is not shown for done"
    raise InputError(f"{name} {why}; leave it or {remedy} out.")
