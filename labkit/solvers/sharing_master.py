"""The linear program over groups of like jobs; ways to run enter it only when prices say that they pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.solvers.lp import LinearProgram, Solution
from labkit.solvers.sharing_ways import NOBODY, Groups, Ways

FEW = 4000
"""Ways up to which all of them are in the program from the start."""

PAYS = 1e-9
"""A way pays if its reduced cost is more."""

COSTS = 1e-8
"""A way is in no optimum if its reduced cost, relative to the greatest price, is less than minus this."""

SHORT = 1e-9
"""What a group's jobs may lack of what they need, relative to the fastest of them."""


@dataclass(frozen=True, eq=False, slots=True)
class Cut:
    """What the needier jobs of a group need beyond a rate must come from ways that are faster than it.

    Jobs of a group with needs w can share its ways, with times X and rates s, if and only if no job is asked for more
    than its time, and for all rates r: sum_m X_m (s_m - r)+ >= sum_j (w_j - r)+ (weak majorisation [1]_). Rates of the
    ways suffice.

    References
    ----------
    .. [1] Hardy, Littlewood and Polya, "Inequalities", 1934, sec. 2.18 to 2.20.
    """

    group: int
    rate: float
    jobs: Ints
    ways: Ints
    over: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Optimum:
    """An optimum over all ways.

    Attributes
    ----------
    x : array
        (W,) time of each way.
    level : float
        The value of the extra column, t.
    value, bound : float
        The objective, and what no other time exceeds.
    price : array
        (J,) what a little less need of each job is worth.
    """

    x: Floats
    level: float
    value: float
    bound: float
    price: Floats


class Master:
    """Most of sum_w gain_w x_w + t such that devices and time suffice and each job has need_j + growth_j t.

    Parameters
    ----------
    groups, ways : Groups, Ways
        The jobs, and what they can do.
    capacity : array
        (T,) devices of each type, > 0.
    use : array
        (V, T) fraction of devices that a column takes from each type.
    gain : array, optional
        (W,) objective; 0 by default.
    """

    def __init__(
        self, groups: Groups, ways: Ways, *, capacity: Floats, use: Floats, gain: Floats | None = None
    ) -> None:
        self.groups, self.ways = groups, ways
        self.gain = np.zeros(len(ways)) if gain is None else gain
        self.n_types = len(capacity)
        self.cuts: list[Cut] = []
        self.chosen, self.barred = np.zeros((2, len(ways)), np.bool_)
        self.order: Ints = np.empty(0, np.int64)  # way of each column but the first, t
        self._rows = _rows(groups, ways, use / capacity)
        self._members = _Members(ways, len(groups))
        self._crowded = groups.n > 1
        self._program = LinearProgram(maximise=True)
        self._method, self._dual = "choose", np.empty(0)
        self._start()

    @property
    def n_columns(self) -> int:
        """How many ways are in the program."""
        return len(self.order)

    def _start(self) -> None:
        n_groups = len(self.groups)
        program = self._program
        program.add_columns([0.0])  # t
        program.add_rows(np.zeros((self.n_types, 1)), upper=1.0)
        program.add_rows(np.zeros((n_groups, 1)), upper=self.groups.n)
        program.add_rows(np.zeros((n_groups, 1)), lower=-np.inf)
        few = len(self.ways) <= FEW
        self._enter(np.arange(len(self.ways)) if few else self._promising())

    def _promising(self) -> Ints:
        """Return all ways alone, and for each group and column the partner with which they get most done."""
        ways = self.ways
        alone = np.flatnonzero(~ways.paired)
        pairs = np.flatnonzero(ways.paired)
        best = pairs[np.argsort(-(ways.rate_a + ways.rate_b)[pairs], kind="stable")]
        n = int(ways.column.max(initial=0)) + 1
        found = [alone]
        for side in (ways.a, ways.b):
            found.append(best[np.unique(side[best] * n + ways.column[best], return_index=True)[1]])
        return np.unique(np.concatenate(found))

    def _enter(self, which: Ints) -> None:
        """Put ways into the program."""
        from scipy import sparse

        rows = self._rows[:, which]
        if self.cuts:
            of = np.full(len(self.ways), -1)
            of[which] = np.arange(len(which))
            extra = sparse.lil_matrix((len(self.cuts), len(which)))
            for c, cut in enumerate(self.cuts):
                here = of[cut.ways] >= 0
                extra[c, of[cut.ways[here]]] = cut.over[here]
            rows = sparse.vstack([rows, extra], format="csc")
        self._program.add_columns(self.gain[which], entries=rows)
        self.chosen[which] = True
        self.order = np.concatenate([self.order, which])

    # --- what is asked

    def ask(self, need: Floats, growth: Floats, *, least: float = 0.0, most: float = np.inf) -> None:
        """Ask for need + growth t of each job, relative to its fastest, and t at least `least` and at most `most`.

        The last solution must be one still if `least` is > 0.
        """
        self.need, self.growth = need, growth
        program, groups = self._program, self.groups
        first, n_groups = self.n_types + len(groups), len(groups)
        rows = np.arange(first, first + n_groups + len(self.cuts))
        needs = np.bincount(groups.of, need, n_groups).tolist() + [self._need_of(cut) for cut in self.cuts]
        grows = np.bincount(groups.of, growth, n_groups).tolist() + [float(growth[cut.jobs].sum()) for cut in self.cuts]
        program.set_limits(rows, lower=needs)
        program.set_column(0, rows, -np.array(grows))
        program.set_cost([0], 1.0)
        program.set_bounds([0], lower=least, upper=most)
        self._method = "choose"
        if least > 0:
            program.park(0, int(np.abs(self._dual).argmax()))
            self._method = "primal"

    def _need_of(self, cut: Cut) -> float:
        return float(self.need[cut.jobs].sum()) - cut.rate * len(cut.jobs)

    def stay(self) -> None:
        """Bar the ways that are in no optimum from all solutions to come, which then are optima of this one too.

        So jobs that are held at what they have cannot give up next to nothing for the sake of others, who would get
        much for it: later levels depend on earlier ones no more than they must.
        """
        pay = self._pay(self._dual)
        self.barred |= pay < -COSTS * max(1.0, float(np.abs(self._dual).max()))
        self._program.set_bounds(np.flatnonzero(self.barred[self.order]) + 1, upper=0.0)

    def set_gain(self, gain: Floats) -> None:
        """Change the objective, (W,)."""
        self.gain = gain
        self._program.set_cost(np.arange(1, 1 + len(self.order)), gain[self.order])

    # --- the optimum

    def best(self) -> Optimum:
        """Return an optimum over all ways, for each job and not only for groups.

        Raises
        ------
        InfeasibleError
            If the ways so far cannot meet the needs.
        """
        while True:
            answer, excess = self._over_all_ways()
            self._dual, self._method = answer.dual, "dual"
            x = np.zeros(len(self.ways))
            x[self.order] = np.maximum(answer.x[1:], 0.0)
            level = float(answer.x[0])
            if not self._cut_off(x, self.need + self.growth * level):
                break
        return Optimum(x, level, answer.value, answer.bound + excess, self._prices(answer))

    def _over_all_ways(self) -> tuple[Solution, float]:
        """Let ways enter until none pays; return the optimum, and what the others could add at most."""
        while True:
            answer = self._program.solve(method=self._method)
            pay = self._pay(answer.dual)
            entering = self._entering(pay)
            if not len(entering):
                most = np.zeros(len(self.groups))
                np.maximum.at(most, self.ways.a, np.where(self.barred, 0.0, pay))
                return answer, float(most @ self.groups.n)
            self._enter(entering)
            self._method = "primal"

    def _pay(self, dual: Floats) -> Floats:
        """Return the reduced cost of all ways, (W,)."""
        n_base = self._rows.shape[0]
        pay: Floats = self.gain - self._rows.T @ dual[:n_base]
        for c, cut in enumerate(self.cuts):
            if dual[n_base + c]:
                pay[cut.ways] -= dual[n_base + c] * cut.over
        return pay

    def _entering(self, pay: Floats) -> Ints:
        """Return the best way of each group on either side, of those that pay."""
        which = np.flatnonzero((pay > PAYS) & ~self.chosen & ~self.barred)
        if not len(which):
            return which
        which = which[np.argsort(-pay[which], kind="stable")]
        first = [np.unique(side[which], return_index=True)[1] for side in (self.ways.a, self.ways.b)]
        return which[np.unique(np.concatenate(first))]

    def _prices(self, answer: Solution) -> Floats:
        n_base, n_groups = self._rows.shape[0], len(self.groups)
        price: Floats = -answer.dual[n_base - n_groups : n_base][self.groups.of]
        for cut, dual in zip(self.cuts, answer.dual[n_base:], strict=True):
            price[cut.jobs] -= dual
        return price

    # --- jobs within a group

    def _cut_off(self, x: Floats, need: Floats) -> bool:
        """Add cuts that times break if a group cannot give its jobs what they need; return whether there were any."""
        from scipy import sparse

        found = [cut for g in self._suspects(x, need) for cut in self._broken(g, x, need)]
        if not found:
            return False
        column = np.full(len(self.ways), -1)
        column[self.order] = np.arange(1, 1 + len(self.order))
        rows = sparse.lil_matrix((len(found), 1 + len(self.order)))
        for c, cut in enumerate(found):
            inside = column[cut.ways] >= 0
            rows[c, column[cut.ways[inside]]] = cut.over[inside]
            rows[c, 0] = -float(self.growth[cut.jobs].sum())
        self._program.add_rows(rows, lower=[self._need_of(cut) for cut in found])
        self.cuts += found
        return True

    def _suspects(self, x: Floats, need: Floats) -> Ints:
        """Return the groups of several jobs where somebody needs more than the slowest way in use."""
        used = np.flatnonzero(x > 0)
        slowest, most = np.full(len(self.groups), np.inf), np.zeros(len(self.groups))
        np.minimum.at(slowest, self.ways.a[used], self.ways.rate_a[used])
        pairs = used[self.ways.b[used] != NOBODY]
        np.minimum.at(slowest, self.ways.b[pairs], self.ways.rate_b[pairs])
        np.maximum.at(most, self.groups.of, need)
        return np.flatnonzero(self._crowded & (most > slowest))

    def _broken(self, g: int, x: Floats, need: Floats) -> list[Cut]:
        ways, rates = self._members.of(g)
        jobs = np.flatnonzero(self.groups.of == g)
        found = []
        for rate in np.unique(rates[x[ways] > 0]):
            over = np.maximum(rates - rate, 0.0)
            needy = jobs[need[jobs] > rate]
            if float(over @ x[ways]) < float((need[needy] - rate).sum()) - SHORT * len(needy):
                faster = over > 0
                which, place = np.unique(ways[faster], return_inverse=True)
                summed = np.bincount(place, over[faster], len(which)).astype(np.float64)
                found.append(Cut(g, float(rate), needy, which, summed))
        return found


class _Members:
    """The ways in which each group takes part, on either side."""

    def __init__(self, ways: Ways, n_groups: int) -> None:
        paired = np.flatnonzero(ways.paired)
        group = np.concatenate([ways.a, ways.b[paired]])
        order = np.argsort(group, kind="stable")
        self._way = np.concatenate([np.arange(len(ways)), paired])[order]
        self._rate = np.concatenate([ways.rate_a, ways.rate_b[paired]])[order]
        self._first = np.searchsorted(group[order], np.arange(n_groups + 1))

    def of(self, g: int) -> tuple[Ints, Floats]:
        """Return the ways and the rates of a group; twice the same way for two jobs of the group."""
        inside = slice(self._first[g], self._first[g + 1])
        return self._way[inside], self._rate[inside]


def _rows(groups: Groups, ways: Ways, use: Floats) -> Any:
    """Return devices of each type, time and work of each group by way, sparse (T + G + G, W)."""
    from scipy import sparse

    n_groups, n_types, n_ways = len(groups), use.shape[1], len(ways)
    pairs = np.flatnonzero(ways.paired)
    group, way = np.concatenate([ways.a, ways.b[pairs]]), np.concatenate([np.arange(n_ways), pairs])
    rate = np.concatenate([ways.rate_a, ways.rate_b[pairs]])
    types, taking = np.nonzero(use.T[:, ways.column])
    taken = (use.T[:, ways.column] * ways.size)[types, taking]
    entries = np.concatenate([taken, np.ones(len(group)), rate])
    row = np.concatenate([types, n_types + group, n_types + n_groups + group])
    column = np.concatenate([taking, way, way])
    return sparse.csc_matrix((entries, (row, column)), shape=(n_types + 2 * n_groups, n_ways))
