"""Gandiva_fair: users have equal shares of every device type, and trade time on fast GPUs for more on slow ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf
from typing import Final

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.hierarchical import Hierarchical
from labkit.schedulers.gavel.problem import Allocation, Problem

LITTLE: Final = 1e-9
"""GPUs, or parts of the time, that are not worth a trade."""


@dataclass(frozen=True, slots=True)
class GandivaFair:
    """Share by users' tickets, then let jobs that gain most from fast GPUs buy time there from those that gain least.

    Every user has the same part of each device type, by its tickets, and divides it equally among its jobs; what a
    user cannot use goes to the others (water filling). Then, for each two device types, the job with the largest
    speed-up on the fast one gives its time on the slow one away: `p` GPU-seconds for one on the fast type, to the job
    with the least speed-up. The price `p` is the largest speed-up of another user's job, as in a second-price auction,
    and at least the seller's own. So no job trains slower than without trades, and GPUs of each type are as busy. [1]_

    Attributes
    ----------
    aware : bool
        False: shares by tickets alone, without trades.
    tickets : mapping or sequence
        Tickets of each user by number; 1 for those that are not named. Without users in the trace, each job is one.

    Notes
    -----
    No code of the authors is public, so this was written from the rule and compared with no results of theirs; how
    they set the price was not checked with the text of the paper.
    Shares are carried out in Gavel's rounds, not by the paper's stride scheduling on each machine. What Shockwave's
    simulator calls Gandiva-fair is `gavel_proportional`, without tickets or trades.

    References
    ----------
    .. [1] Chaudhary et al., "Balancing efficiency and fairness in heterogeneous GPU clusters for deep learning",
       EuroSys 2020.
    """

    aware: bool = True
    tickets: Mapping[int, float] | Sequence[float] = field(default=())

    def __post_init__(self) -> None:
        self._by_tickets()

    def _by_tickets(self) -> Hierarchical:
        return Hierarchical(aware=False, entity_weight=self.tickets)

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares after all trades; there is no objective.

        Two users of one job with 4 GPUs each, two fast and two slow ones. The first trains 4 times as fast on a fast
        GPU, the second 1.5 times: it gets 1.5 slow GPUs for a fast one, as there is no other bidder.

        >>> problem = Problem.of([[4.0, 1.0], [1.5, 1.0]], capacity=[2, 2], n_gpus=4, entity=[0, 1])
        >>> GandivaFair(aware=False).allocate(problem).share.tolist()
        [[0.25, 0.25], [0.25, 0.25]]
        >>> GandivaFair().allocate(problem).share.round(4).tolist()
        [[0.4167, 0.0], [0.0833, 0.5]]
        """
        return with_what_is_there(problem, self._allocate)

    def _allocate(self, problem: Problem) -> Allocation:
        fair = self._by_tickets().allocate(problem)
        share = traded(problem, fair.share) if self.aware else fair.share
        return replace(fair, share=share, value=np.nan, bound=np.nan)


def traded(problem: Problem, share: Floats) -> Floats:
    """Return shares (J, V) after trades between each two columns, the two with the most different speed-ups first."""
    owner = problem.entity if len(np.unique(problem.entity)) > 1 else problem.job
    held = problem.n_gpus[:, None] * share
    spare = problem.n_gpus * (1.0 - share.sum(axis=1))
    ratios = {}
    for a, b in combinations(range(problem.speed.shape[1]), 2):
        both = np.flatnonzero((problem.speed[:, a] > 0) & (problem.speed[:, b] > 0)).astype(np.int32)
        if len(both) > 1:
            ratio = problem.speed[both, a] / problem.speed[both, b]
            fast, slow, ratio = (a, b, ratio) if np.log(ratio).sum() >= 0 else (b, a, 1.0 / ratio)
            ratios[fast, slow] = both, ratio
    for fast, slow in sorted(ratios, key=lambda pair: -float(np.ptp(np.log(ratios[pair][1])))):
        jobs, ratio = ratios[fast, slow]
        _trade(held, spare, jobs, ratio, owner[jobs], fast=fast, slow=slow)
    after: Floats = held / problem.n_gpus[:, None]
    return after


def _trade(held: Floats, spare: Floats, jobs: Ints, ratio: Floats, owner: Ints, *, fast: int, slow: int) -> None:
    """Exchange GPUs held (J, V) on two columns; `spare` (J,): how many more each job's gang can use on average."""
    on_fast, on_slow, free = held[jobs, fast].tolist(), held[jobs, slow].tolist(), spare[jobs].tolist()
    gain, user = ratio.tolist(), owner.tolist()
    order = np.argsort(ratio, kind="stable").tolist()
    buyers = [i for i in reversed(order) if on_slow[i] > LITTLE]
    sellers = [i for i in order if on_fast[i] > LITTLE]
    bids = _bids_of_others(buyers, gain, user)
    b = s = 0
    while b < len(buyers) and s < len(sellers) and gain[buyers[b]] > gain[sellers[s]] * (1 + LITTLE):
        buyer, seller = buyers[b], sellers[s]
        price = max(bids[b], gain[seller])
        grows = seller if price > 1 else buyer
        fits = free[grows] / abs(price - 1) if price != 1 else inf
        n = min(on_fast[seller], on_slow[buyer] / price, fits)
        on_fast[buyer] += n
        on_fast[seller] -= n
        on_slow[buyer] -= n * price
        on_slow[seller] += n * price
        free[seller] -= n * (price - 1)
        free[buyer] += n * (price - 1)
        full = fits <= n
        s += on_fast[seller] <= LITTLE or (full and grows == seller)
        b += on_slow[buyer] <= LITTLE or (full and grows == buyer)
    held[jobs, fast], held[jobs, slow], spare[jobs] = np.maximum(on_fast, 0), np.maximum(on_slow, 0), free


def _bids_of_others(buyers: list[int], gain: list[float], user: list[int]) -> list[float]:
    """Return the largest speed-up behind each buyer that is another user's; 0: there is none."""
    bids = [0.0] * len(buyers)
    for i in range(len(buyers) - 2, -1, -1):
        behind = buyers[i + 1]
        bids[i] = gain[behind] if user[behind] != user[buyers[i]] else bids[i + 1]
    return bids
