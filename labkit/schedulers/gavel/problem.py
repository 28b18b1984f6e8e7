"""What a policy decides on, and what it answers: columns over jobs, and shares of time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.resources import Floats, Ints


@dataclass(frozen=True, eq=False, slots=True)
class Sharing:
    """How fast jobs train when two of them share the same GPUs."""

    kind: Ints
    """(J,) the kind of each job. Jobs of one kind have the same model and the same number of GPUs."""
    speed: Floats
    """(K, K, V) steps/s of a job of the first kind beside one of the second on each column; 0: they cannot share it."""

    def of(self, pairs: Ints) -> Floats:
        """Return steps/s of both members of pairs (P, 2) on each column, (P, 2, V)."""
        a, b = self.kind[pairs[:, 0]], self.kind[pairs[:, 1]]
        return np.stack([self.speed[a, b], self.speed[b, a]], axis=1)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Problem:
    """The active jobs, in order of arrival, and the devices that they share.

    A column is a way to run: one for each device type; with placement sensitivity two, consolidated and not; and one
    for gangs that are larger than any one type. `use` says which types a column takes its GPUs from.

    Attributes
    ----------
    job : array
        (J,) job numbers, ascending.
    speed : array
        (J, V) steps/s of each job alone on each column, all its GPUs together; 0: it cannot run so.
    n_gpus : array
        (J,) GPUs of each job's gang, > 0 (the scale factor).
    capacity : array
        (T,) GPUs of each device type.
    use : array
        (V, T) fraction of its GPUs that a gang in a column takes from each type; rows sum to 1.
    weight : array
        (J,) shares.
    entity : array
        (J,) the user or organisation that each job belongs to.
    age_s : array
        (J,) seconds since arrival.
    steps_left : array
        (J,) believed.
    isolated_s : array
        (J,) seconds that the steps done so far would have taken with an equal share of the cluster.
    slo_left_s : array
        (J,) seconds until the job should be done; NaN: it has no SLO.
    price : array
        (T,) dollars per GPU and hour.
    sharing : Sharing or None
        Speeds of pairs; None: every job has its GPUs to itself.
    before : Allocation or None
        The previous answer, in terms of the jobs of this problem.
    number : int
        How many problems of this run came before.
    """

    job: Ints
    speed: Floats
    n_gpus: Floats
    capacity: Floats
    use: Floats
    weight: Floats
    entity: Ints
    age_s: Floats
    steps_left: Floats
    isolated_s: Floats
    slo_left_s: Floats
    price: Floats
    sharing: Sharing | None = None
    before: Allocation | None = None
    number: int = 0

    @classmethod
    def of(
        cls,
        speed: ArrayLike,
        *,
        capacity: ArrayLike,
        n_gpus: ArrayLike = 1,
        use: ArrayLike | None = None,
        weight: ArrayLike = 1.0,
        entity: ArrayLike = 0,
        age_s: ArrayLike = 0.0,
        steps_left: ArrayLike = 1.0,
        isolated_s: ArrayLike = 0.0,
        slo_left_s: ArrayLike = np.nan,
        price: ArrayLike = 1.0,
        sharing: Sharing | None = None,
    ) -> Self:
        """Return a problem from columns or scalars; a column takes its GPUs from one type by default.

        >>> Problem.of([[1.0, 3.0]], capacity=[1, 1]).n_jobs
        1
        """
        speeds = np.atleast_2d(np.asarray(speed, np.float64))
        there = np.atleast_1d(np.asarray(capacity, np.float64))
        n = len(speeds)

        def column(values: ArrayLike) -> Floats:
            return np.array(np.broadcast_to(np.asarray(values, np.float64), (n,)))

        return cls(
            job=np.arange(n, dtype=np.int32),
            speed=speeds,
            n_gpus=column(n_gpus),
            capacity=there,
            use=np.eye(len(there)) if use is None else np.asarray(use, np.float64),
            weight=column(weight),
            entity=column(entity).astype(np.int32),
            age_s=column(age_s),
            steps_left=column(steps_left),
            isolated_s=column(isolated_s),
            slo_left_s=column(slo_left_s),
            price=np.array(np.broadcast_to(np.asarray(price, np.float64), there.shape)),
            sharing=sharing,
        )

    @property
    def n_jobs(self) -> int:
        """How many jobs there are."""
        return len(self.job)

    @property
    def offered(self) -> Floats:
        """(V,) GPUs that a column can take in all: of the types that it uses, in the ratio in which it uses them."""
        with np.errstate(divide="ignore"):
            rooms = np.where(self.use > 0, self.capacity / np.where(self.use > 0, self.use, 1.0), np.inf)
        least: Floats = rooms.min(axis=1)
        return least

    def agnostic(self) -> Problem:
        """Return the problem without speeds, with what can run where alone: 1 step/s everywhere."""
        return replace(self, speed=(self.speed > 0).astype(np.float64), sharing=None)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Allocation:
    """The fraction of time that each job, and each pair of jobs, should spend in each column.

    Attributes
    ----------
    share : array
        (J, V) of jobs alone.
    pairs : array
        (P, 2) positions of the jobs that share GPUs for some of the time, the lower one first.
    pair_share : array
        (P, V) of pairs.
    value : float
        The policy's objective; NaN where it has none.
    bound : float
        What no allocation can exceed (or undercut, where less is better): a certificate for `value`.
    unmet : array
        Positions of jobs whose SLO cannot be met; the others' are.
    """

    share: Floats
    pairs: Ints = field(default_factory=lambda: np.empty((0, 2), np.int32))
    pair_share: Floats = field(default_factory=lambda: np.empty((0, 0)))
    value: float = np.nan
    bound: float = np.nan
    unmet: Ints = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def gap(self) -> float:
        """How far the value may be from the best one, relative; NaN where there is no objective."""
        return abs(self.value - self.bound) / max(abs(self.value), abs(self.bound), 1e-12)

    def speed(self, problem: Problem) -> Floats:
        """Return the steps/s that each job gets on average, (J,): its effective throughput."""
        rate: Floats = (self.share * problem.speed).sum(axis=1)
        if len(self.pairs) and problem.sharing is not None:
            both = (problem.sharing.of(self.pairs) * self.pair_share[:, None, :]).sum(axis=2)
            np.add.at(rate, self.pairs.ravel(), both.ravel())
        return rate

    def gpus_in_use(self, problem: Problem) -> Floats:
        """Return the GPUs of each type that are in use on average, (T,)."""
        gpus = problem.n_gpus @ self.share
        if len(self.pairs):
            gpus = gpus + problem.n_gpus[self.pairs[:, 0]] @ self.pair_share
        in_use: Floats = gpus @ problem.use
        return in_use


@runtime_checkable
class AllocationPolicy(Protocol):
    """From a problem to an allocation."""

    def allocate(self, problem: Problem) -> Allocation:
        """Return the fraction of time that each job should spend in each column."""
        ...
