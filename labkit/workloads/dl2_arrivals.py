"""Arrivals on Google's cluster, in the figures of DL2's published simulator.

Jobs of each of 75 slots, as a series for at most 3, at most 5 and at most 10 arrivals in a slot: those of its parameter
sets. What its series have beyond the most (the second slot, mainly) is left out, as its simulator leaves it out.

.. [1] Peng et al., "DL2", `trace.py` of the public repository pengyanghua/DL2, commit 2e54920 (`Google_Trace`), from
   Google's cluster-usage traces.
"""

from __future__ import annotations

from typing import Final

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
