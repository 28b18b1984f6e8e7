"""Speed models in which only the numbers of workers and parameter servers count, not where they are."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from labkit.core.resources import Floats, Ints


@runtime_checkable
class ByCounts(Protocol):
    """A speed model that is a table.

    Attributes
    ----------
    grid : array
        (K, P, W) steps per second with p parameter servers and w workers; more tasks than that are of no use.
    row : array
        (N,) which of the K tables is that of a job.
    """

    grid: Floats
    row: Ints
