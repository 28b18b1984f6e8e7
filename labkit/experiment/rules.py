"""What was asked for and holds for every scheduler, in the words of a run's notes."""

from __future__ import annotations

from typing import Final

from labkit.core.errors import InputError
from labkit.core.life import Traits
from labkit.core.protocols import Scheduler
from labkit.core.quotas import BEYOND, Quotas
from labkit.experiment.reservations import Reservations

KEPT: Final = "no other job starts there while one holds, under every scheduler"


def rules(quotas: Quotas | None, reservations: Reservations | None) -> list[str]:
    """Return a sentence for each rule; they need no warning."""
    said = [] if quotas is None else [f"quotas: {quotas}; {BEYOND}"]
    return said if reservations is None else [*said, f"reservations: {reservations}; {KEPT}"]


def refuse_unruly(scheduler: Scheduler, quotas: Quotas | None, reservations: Reservations | None, *, name: str) -> None:
    """Raise if there are rules that a scheduler cannot be held to.

    Raises
    ------
    InputError
        It names the scheduler, and says why.
    """
    refuse_undivided(scheduler, reservations, name=name)
    traits = Traits.of(scheduler)
    if quotas is not None and not traits.ideal and traits.lease_s is not None:
        raise InputError(
            f"{name} takes jobs that it is not shown for done, and quotas hide those that it has stopped; leave it or "
            "--quotas out."
        )


def refuse_undivided(scheduler: Scheduler, reservations: Reservations | None, *, name: str) -> None:
    """Raise if there are reservations, and a scheduler that cannot be asked about a part of the cluster.

    Raises
    ------
    InputError
        It names the scheduler, and says why.
    """
    traits = Traits.of(scheduler)
    if reservations is None or not (traits.ideal or traits.lease_s is not None):
        return
    why = "divides the cluster at will and knows no hosts"
    if not traits.ideal:
        why = "has leases, between which it cannot be asked, and takes jobs that it is not shown for done"
    raise InputError(f"{name} {why}; leave it or --reservations out.")
