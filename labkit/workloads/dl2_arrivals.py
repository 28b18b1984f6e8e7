"""Arrivals on Google's cluster, in the figures of DL2's published simulator, and arrivals like those on Microsoft's.

Jobs of each of 75 slots, as a series for at most 3, at most 5 and at most 10 arrivals in a slot: those of its parameter
sets. What its series have beyond the most (the second slot, mainly) is left out, as its simulator leaves it out.

.. [1] Peng et al., "DL2", `trace.py` of the public repository pengyanghua/DL2, commit 2e54920 (`Google_Trace`), from
   Google's cluster-usage traces.
.. [2] Jeon et al., "Analysis of large-scale multi-tenant GPU clusters for DNN training workloads", USENIX ATC 2019; its
   trace is public (msr-fiddle/philly-traces, CC-BY-4.0).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

GOOGLE: Final[dict[int, tuple[int, ...]]] = {
    3: (
        2, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 3, 3, 3, 2, 3, 3, 3, 3, 3, 2, 2, 3, 3, 3, 2, 2, 2, 1, 2, 2, 2, 2, 2,
        2, 3, 3, 1, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2, 1, 2, 1, 2, 3, 3, 3, 3, 3, 2, 2, 2, 2, 3, 2, 1, 2, 1, 2, 2, 2,
        2, 2, 2, 3, 2,
    ),
    5: (
        4, 5, 5, 4, 5, 5, 5, 4, 3, 3, 4, 3, 4, 5, 5, 4, 5, 5, 5, 5, 4, 3, 3, 4, 5, 4, 3, 3, 3, 2, 3, 3, 3, 4, 3,
        3, 4, 4, 2, 3, 3, 2, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 3, 4, 4, 3, 2, 4, 2, 3, 3, 4,
        3, 3, 3, 4, 3,
    ),
    10: (
        6, 10, 8, 7, 8, 10, 9, 7, 6, 5, 6, 5, 7, 8, 9, 6, 8, 8, 8, 8, 7, 5, 5, 7, 9, 7, 5, 5, 5, 3, 5, 6, 4, 6,
        6, 6, 7, 7, 4, 5, 5, 3, 5, 5, 4, 6, 5, 6, 5, 3, 4, 4, 6, 7, 7, 7, 7, 7, 6, 6, 6, 6, 7, 6, 4, 6, 4, 5, 4,
        6, 5, 6, 5, 7, 6,
    ),
}  # fmt: skip
"""Most arrivals in a slot -> arrivals of each slot."""

PHILLY: Final = (
    0.06, 0.14, 0.14, 0.14, 0.14, 0.21, 0.21, 0.21, 0.27, 0.29, 0.29, 0.36, 0.39, 0.44, 0.52, 0.63, 0.82, 1.27, 3.50,
    9.94,
)  # fmt: skip
"""Arrivals of a slot of 20 minutes over the mean of all, of each twentieth of the slots by size: 80,702 jobs submitted
to Philly [2]_ from 24 September to 12 December 2017 (`labkit traces fetch philly`). Half of all jobs come in one slot
of 20."""

STAYS: Final = 0.75
"""Correlation of one slot's level with the next; then the counts have about the trace's own, 0.48."""


def philly_like(n: int, *, jobs_per_slot: float, rng: np.random.RandomState) -> list[int]:
    """Return arrivals of `n` slots with lulls and heavy bursts, as Philly's are: Poisson about a level that wanders.

    The level's rank among all slots is that of a Gaussian process with correlation `STAYS`; `PHILLY` has the levels.
    """
    counts, level = [], rng.randn()
    for _ in range(n):
        rank = 0.5 * (1 + math.erf(level / math.sqrt(2)))
        counts.append(int(rng.poisson(jobs_per_slot * PHILLY[min(int(rank * len(PHILLY)), len(PHILLY) - 1)])))
        level = STAYS * level + math.sqrt(1 - STAYS**2) * rng.randn()
    return counts
