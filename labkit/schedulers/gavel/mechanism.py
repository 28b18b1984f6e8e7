"""Rounds: what a policy allots is carried out by taking turns; what is left goes to the job that gains most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError, ProfileError
from labkit.core.life import Context, Profile
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.snapshot import Snapshot
from labkit.placers import Pack
from labkit.schedulers.gavel.estimator import NEWS, Estimator, refuse_options
from labkit.schedulers.gavel.prices import PRICES, refuse_odd_prices
from labkit.schedulers.gavel.problem import AllocationPolicy
from labkit.schedulers.gavel.profile import declared_profile
from labkit.schedulers.gavel.run import STAY, RoundState


@dataclass(eq=False)
class Gavel:
    """Carry out a policy's allocation in rounds [1]_.

    A policy says which fraction of its time each job should spend on each device type. Every round the jobs (and pairs
    of jobs) that are most overdue run; GPUs due to no job go to the job that gains most by them. The allocation
    is computed anew whenever jobs or machines come or go; within a round no job is stopped, but what becomes free is
    given out at once. See docs/mechanisms.md for how that differs from the published simulator (`published=True`).

    Attributes
    ----------
    policy : AllocationPolicy
        What to allot.
    placer : Placer
        Where gangs go, the largest first; by default on as few machines as possible.
    round_s : float
        Seconds between two decisions about jobs that run.
    recompute_s : float or None
        Least seconds between two allocations; None: 0, or 1,920 as published.
    space_sharing : bool
        Two jobs may share the same GPUs, where it was measured how fast they train so.
    estimate : float or None
        Run each kind of job beside this fraction of the reference jobs beforehand, and estimate its other pairs until
        they ran: see `labkit.schedulers.gavel.estimator`. None: all pairs are known.
    n_references : int or None
        Reference jobs of the estimate, drawn among the jobs; None: one of each kind.
    placement : bool
        Tell gangs on as few machines as possible from gangs that are spread.
    fill : bool or None
        Give away what is due to no job; False leaves it idle. None: as the policy has it, which is to give it away,
        except where GPUs cost money.
    stay : float or None
        Rounds by which another job must be more overdue than one that runs to take its place (fewer moves), and that
        a job may be kept off where it should run while another gains more there. None: 4 where rounds know speeds, 1
        where they do not: there a job has its share of the fast types only by taking turns.
    aware_rounds : bool or None
        Rounds know speeds by device type: they decide where what is left goes, and which jobs change places. False: all
        types where a job runs are alike. None: as the policy, so that nothing of an agnostic scheduler knows them.
    patience : float
        Rounds that a job may be ahead of or behind its allotment before the rest is forgotten; more than `stay`.
    published : bool
        Follow the published simulator rule by rule: see `labkit.schedulers.gavel.published`.
    ideal : bool
        Divide GPUs at will instead of in rounds: an experiment then lets jobs hold slices of time.
    seed : int
        Of the published order of device types, and of what is measured for an estimate.
    prices : mapping, optional
        Dollars per GPU and hour by device type; a policy about cost needs one for each type of the cluster.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020.
    """

    needs_durations: ClassVar[bool] = True

    policy: AllocationPolicy
    placer: Placer = Pack()
    round_s: float = 360.0
    recompute_s: float | None = None
    space_sharing: bool = False
    estimate: float | None = None
    n_references: int | None = None
    placement: bool = False
    fill: bool | None = None
    aware_rounds: bool | None = None
    stay: float | None = None
    patience: float = 8.0
    published: bool = False
    ideal: bool = False
    seed: int = 0
    prices: Mapping[str, float] = field(default_factory=lambda: dict(PRICES))
    _profile: Profile | None = field(default=None, init=False, repr=False)
    _run: RoundState | None = field(default=None, init=False, repr=False)
    _estimator: Estimator | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.round_s < np.inf:
            raise InputError(f"gavel: round_s is {self.round_s}; expected seconds > 0, e.g. 360.")
        if self.recompute_s is not None and not self.recompute_s >= 0:
            raise InputError(f"gavel: recompute_s is {self.recompute_s}; expected seconds >= 0.")
        stay = STAY[True] if self.stay is None else self.stay
        if not 0 <= stay < self.patience:
            raise InputError(
                f"gavel: stay is {stay} and patience {self.patience}; expected rounds >= 0, the second more."
            )
        refuse_odd_prices(self.prices)
        refuse_options(self.estimate, self.n_references, space_sharing=self.space_sharing)
        for name in ("published", "ideal"):
            if getattr(self, name) and (self.space_sharing or self.placement or (self.ideal and self.published)):
                others = ", ".join(sorted({"space_sharing", "placement", "published", "ideal"} - {name}))
                raise InputError(f"gavel: {name}=True goes alone, without any of {others}.")

    @property
    def quantum_s(self) -> float:
        """A session decides at least this often; the published rounds end by themselves."""
        return np.inf if self.published or self.ideal else self.round_s

    @property
    def lease_s(self) -> float | None:
        """Seconds of a lease that a backend grants with each decision; None: jobs go on until they are stopped."""
        return self.round_s if self.published else None

    @property
    def lives_on_types(self) -> bool:
        """Whether the policy decides by differences in speed between device types."""
        return bool(getattr(self.policy, "aware", False))

    @property
    def lives_on_slos(self) -> bool:
        """Whether the policy decides by the jobs' SLOs."""
        return bool(getattr(self.policy, "wants_slos", False))

    @property
    def pays(self) -> Mapping[str, float] | None:
        """What GPUs cost, to a policy about cost."""
        return self.prices if getattr(self.policy, "wants_prices", False) else None

    @property
    def n_allocations(self) -> int:
        """How many allocations were computed in this run so far."""
        return 0 if self._run is None else self._run.n_problems

    def begin(self, context: Context) -> None:
        """Have all kinds of jobs measured, and pairs of them if they are to share GPUs."""
        self.learn(context.profile(pairs=self.space_sharing))

    def learn(self, profile: Profile) -> None:
        """Take note of what was measured before the run.

        Raises
        ------
        ProfileError
            If jobs are to share GPUs, and the speed model does not know how fast they are then.
        """
        if self.space_sharing and profile.shared is None:
            raise ProfileError(
                "gavel: space_sharing=True needs the speeds of pairs, and this speed model knows none; give measured "
                "ones (--throughputs with Gavel's JSON), or leave it out."
            )
        self._profile = profile

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, move and stop."""
        run = self._run
        if run is None or not run.goes_on(snapshot):
            run = self._run = RoundState(snapshot, profile=self._believed(self._profile_of(snapshot)), options=self)
        if self._estimator is not None and (change := self._estimator.observe(snapshot)):
            run.take_in(self._estimator.profile, news=change > NEWS)
        return run.decide(snapshot)

    def _believed(self, profile: Profile) -> Profile:
        """Return the profile with its pairs as they are believed to be, estimated if that is asked for."""
        if self.estimate is None:
            return profile
        rng = np.random.default_rng(self.seed)
        self._estimator = Estimator(
            profile, fraction=self.estimate, n_references=self.n_references, rng=rng, patience_s=self.round_s / 2
        )
        return self._estimator.profile

    def _profile_of(self, snapshot: Snapshot) -> Profile:
        known = self._profile
        if known is None or len(known.kind) != len(snapshot.table):
            return declared_profile(snapshot.table, snapshot.runs_on, snapshot.cluster)
        return known
