"""DL2: a network that was trained says, slot by slot, which job gets a worker or a parameter server next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Protocol

import numpy as np

from labkit.core.draft import Batch
from labkit.core.errors import InputError
from labkit.core.files import refuse_unwritable
from labkit.core.jobs import Jobs
from labkit.core.life import Context, Traits, begin
from labkit.core.outside import from_packages
from labkit.core.placement import Placement
from labkit.core.protocols import Scheduler
from labkit.core.resources import Floats
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.drafts import draft_of
from labkit.schedulers.dl2.keeping import keep
from labkit.schedulers.dl2.monitor import Monitor
from labkit.schedulers.dl2.policy import BEST, NOTHING, decide
from labkit.schedulers.dl2.weights import Weights, load
from labkit.speed.dl2 import terms
from labkit.system.release import how_to_get


class Learner(Protocol):
    """What decides and learns in the place of a frozen policy: `labkit.learning.online.Learner`."""

    def decide(self, batch: Batch, snapshot: Snapshot) -> bool:
        """Fill the draft of a slot; return whether all was finite."""
        ...

    def undo(self) -> None:
        """Forget the newest slot: something else was carried out."""
        ...

    def weights(self) -> Weights:
        """Return the policy as it is now."""
        ...


SHIPPED: Final = ("dl2", "dl2-fitted")
"""Trained on DL2's measured speeds, and on the smooth model that is fitted to them."""

UNUSED = np.random.default_rng(0)
"""Nothing is drawn where the most probable action is taken."""


@dataclass(eq=False)
class DL2:
    """Give tasks one by one, each to the job to which it is worth most by a network that learned from simulations.

    It is DL2 [1]_ with a network that all jobs share, in place of one that sees a fixed number of jobs side by side.
    Each slot begins with nothing: by arrival, every job gets a worker and a parameter server, a rigid job its whole
    gang; then the most probable action is taken, again and again, until nothing finds room or stopping is it.
    It sees of a job its model, the epochs that it declared and that are left, its age, for how many slots it ran and
    what it holds; of the cluster its size and how many jobs of each model are there.
    It is told no speeds; which of several weights decides is chosen by the speeds that running jobs show
    (`labkit.schedulers.dl2.scheduler`). `dl2` without weights is another form: `labkit.schedulers.dl2.learned`.

    Jobs that keep their number of tasks stay where they are, and the others go to the first device group with room;
    where that leaves one without room, all go where its training would have them.

    It is watched (`monitor`): a scheduler that needs no training decides in its place in each slot in which its network
    gives out what is no finite number, as long as it would let a job starve, and after a window in which the jobs would
    have taken longer than under that one, until a later window says otherwise. Events (FELL_BACK) and notes tell it.

    Attributes
    ----------
    weights : str or sequence of str
        A name of `labkit.schedulers.dl2.shipped()`, or the path of a .safetensors file of `labkit train-policy`; of
        several, that one decides whose training was most like what is observed. The first one learns.
    quantum_s : float
        A session decides at least this often.
    fallback : str or None
        The scheduler that decides then; None: the policy is not watched.
    patience : int
        Slots after which a job starves that gets nothing, although there is room for it or others have more than a
        first gang.
    window : int
        Slots that are looked back on, simulated with the policy and with the fallback on the speeds that were observed.
    margin : float
        By which fraction the mean JCT must be worse.
    learns : bool
        Draw actions by their chances, and change the network once per slot by what came of them
        (`labkit.learning.online`); a run begins with the given weights.
    learned : str
        A .safetensors file for what it has learned, written after each slot; empty: it is lost when the run ends.

    References
    ----------
    .. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021.
    """

    knows_types: ClassVar[bool] = False

    weights: str | Sequence[str] = SHIPPED
    quantum_s: float = 1200.0
    fallback: str | None = "drf"
    patience: int = 5
    window: int = 20
    margin: float = 0.1
    learns: bool = False
    learned: str = ""
    _familiar: Familiar = field(init=False, repr=False)
    _instead: Scheduler | None = field(default=None, init=False, repr=False)
    _monitor: Monitor | None = field(default=None, init=False, repr=False)
    _learner: Learner | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("patience", 1), ("window", 1), ("margin", 0.0)):
            if not getattr(self, name) >= least:
                raise InputError(f"dl2: {name} is {getattr(self, name)}; expected a number >= {least}.")
        if self.learned:
            if not self.learns:
                raise InputError(f"dl2: learned is {self.learned!r}, and it does not learn; give it learns=True, too.")
            refuse_unwritable(self.learned, endings=(".safetensors",))
        self._familiar = Familiar(_loaded(self.weights))
        if self.learns:
            self._learner = _learner(self._policy, np.random.default_rng(0))
        if self.fallback is not None:
            self._instead = fallback_of(self.fallback)
            self._monitor = Monitor(self._policy.slot_s, self.patience, self.window, self.margin, self._rivals)

    def begin(self, context: Context) -> None:
        """Begin a run: what was learned or observed in earlier ones is forgotten, and a fallback may measure."""
        self._familiar = Familiar(self._familiar.policies)
        if self.learns:
            self._learner = _learner(self._policy, context.rng)
        if self._monitor is not None and self.fallback is not None:
            self._instead = fallback_of(self.fallback)
            begin(self._instead, context)
            self._monitor.rehearse = context.rehearse
            self._monitor.begin(context.jobs)

    def _rivals(self) -> tuple[Scheduler, Scheduler]:
        """Return this policy without its monitor, and its fallback."""
        alone = DL2(self.weights, fallback=None)
        alone._familiar = Familiar([self._policy if self._learner is None else self._learner.weights()])
        return alone, fallback_of(str(self.fallback))

    @property
    def _policy(self) -> Weights:
        return self._familiar.policies[0] if self.learns else self._familiar.best

    @property
    def stochastic(self) -> bool:
        """Whether it draws: only where it learns."""
        return self.learns

    def remarks(self) -> list[str]:
        """Return the caution for readers of its figures: that it learned meanwhile."""
        if not self.learns:
            return []
        kept = f"go to {self.learned}" if self.learned else "are lost when the run ends (learned=FILE keeps them)"
        return [f"it draws its actions and changes its weights while it runs; they {kept}."]

    def unmet(self, jobs: Jobs) -> list[str]:
        """Return the models of some jobs that its training has not met; a run with such jobs has a note."""
        return [name for name in jobs.models if name not in self._policy.models]

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the tasks of all jobs that are there."""
        if not len(snapshot.jobs):
            return Placement.nothing()
        self._familiar.note(snapshot)
        policy = self._policy
        batch = draft_of(snapshot, policy.models)
        if self._learner is None:
            sound = decide(batch, 0, policy.slot_s, policy.net, BEST, NOTHING, UNUSED)
        else:
            sound = self._learner.decide(batch, snapshot)
            if self.learned:
                self._learner.weights().save(self.learned)
        given = batch.placed[0]  # (J, 2, G)
        if self._monitor is None or self._instead is None:
            return keep(snapshot, given)
        doubts = self._monitor.doubts(snapshot, given.sum(axis=2, dtype=np.int32), sound=sound)
        if not doubts:
            return keep(snapshot, given)
        if self._learner is not None:
            self._learner.undo()
        return replace(self._instead.schedule(snapshot), doubts=np.array(doubts, np.int32))


def _loaded(names: str | Sequence[str]) -> list[Weights]:
    """Return weights by their names.

    Raise InputError if there are none, or several of which one does not tell the speeds of its training.
    """
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise InputError("dl2: weights is empty; expected a name or a path, or several.")
    found = [load(name) for name in names]
    for name, one in zip(names, found, strict=True):
        if len(found) > 1 and one.speeds is None:
            raise InputError(
                f"dl2: {name} does not tell the speeds of its training, so it cannot be one of several weights. Train "
                "it again (labkit train-policy dl2), or give it alone."
            )
    return found


def _learner(weights: Weights, rng: np.random.Generator) -> Learner:
    """Return the online learner: of a layer above, found by its entry point; it needs torch."""
    if (point := from_packages("learner").get("dl2")) is None:
        raise InputError("dl2(learns=True) needs labkit's entry points; install labkit again, or leave it out.")
    try:
        made: Learner = point.load()(weights, rng=rng)
    except ModuleNotFoundError as error:
        raise InputError(
            f"dl2(learns=True) needs {error.name}; {how_to_get(str(error.name))}, or leave it out."
        ) from None
    return made


def fallback_of(name: str) -> Scheduler:
    """Return the scheduler of a name, if it can decide in the place of another; InputError if it cannot."""
    from labkit.schedulers import make

    if not isinstance(name, str):
        raise InputError(f"dl2: fallback is {name!r:.60}; expected the name of a scheduler, e.g. 'drf', or None.")
    made = make(name)
    traits = Traits.of(made)
    own = type(made).__module__.startswith(__package__)
    if own or traits.lease_s is not None or traits.ideal or traits.oracle:
        what = "has been trained itself" if own else "decides by leases or slices, or is an oracle"
        raise InputError(f"dl2: fallback {name} {what}; expected one such as 'drf', 'srtf' or 'optimus'.")
    return made


Gang = tuple[str, int, int]
"""Model, parameter servers, workers."""


@dataclass(eq=False)
class Familiar:
    """Policies of which one decides: that under whose training the speeds of running jobs are most likely.

    A policy knows how fast its models are by heart, so one that was trained on other speeds gives tasks to the wrong
    jobs. It carries a smooth fit f of each model's speeds in training, and their spread b around it. A gang that showed
    a mean log speed y in n observations counts as (y - log f)^2 / v + log v, as in the logarithm of a normal density;
    v = 2 b^2 + e^2 / n, and e^2 is the variance of observations of one gang: a speed that varies from slot to slot is
    no sign of a rugged table. The policy with the smallest mean over gangs decides, the first one until something is
    observed.
    """

    policies: Sequence[Weights]
    """Those with `speeds`, if there are several."""
    _observed: dict[Gang, tuple[int, float, float]] = field(default_factory=dict, init=False, repr=False)
    _best: int = field(default=0, init=False, repr=False)

    @property
    def best(self) -> Weights:
        """The policy to follow."""
        return self.policies[self._best]

    def note(self, snapshot: Snapshot) -> None:
        """Take the speeds of running jobs into account."""
        if len(self.policies) < 2:
            return
        jobs = snapshot.jobs
        seen = np.flatnonzero(jobs.running & (jobs.speed > 0) & (jobs.n_ps > 0) & (jobs.n_workers > 0))
        columns = (jobs.model[seen], jobs.n_ps[seen], jobs.n_workers[seen], np.log(jobs.speed[seen]))
        for model, n_ps, n_workers, y in zip(*(column.tolist() for column in columns), strict=True):
            gang = jobs.models[model], n_ps, n_workers
            n, total, square = self._observed.get(gang, (0, 0.0, 0.0))
            self._observed[gang] = n + 1, total + y, square + y * y
        misfits = self.misfits
        self._best = 0 if np.isnan(misfits).all() else int(np.nanargmin(misfits))

    @property
    def misfits(self) -> Floats:
        """How unlikely the observed speeds are under the training of each policy, (K,); NaN: nothing to compare."""
        if not self._observed:
            return np.full(len(self.policies), np.nan)
        n, total, square = np.array([*self._observed.values()]).T
        mean, again = total / n, n.sum() - len(n)
        noise = max(float((square - n * mean**2).sum()), 0.0) / max(again, 1.0)
        return np.array([self._misfit(policy, mean, noise / n) for policy in self.policies])

    def _misfit(self, policy: Weights, mean: Floats, noise: Floats) -> float:
        """Return the misfit of one policy to gangs with these mean log speeds, of which noise is a variance."""
        if policy.speeds is None:
            return np.nan
        theta, spread = policy.speeds
        column = {name: m for m, name in enumerate(policy.models) if theta[m].any()}
        known = [(k, column[name], p, w) for k, (name, p, w) in enumerate(self._observed) if name in column]
        if not known:
            return np.nan
        k, model, n_ps, n_workers = np.array(known).T
        fitted = -np.log((terms(n_ps, n_workers, batch=1.0) * theta[model]).sum(axis=1))
        variance = 2 * spread[model] ** 2 + noise[k]
        return float(((mean[k] - fitted) ** 2 / variance + np.log(variance)).mean())
