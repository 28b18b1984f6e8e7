"""Training the seven numbers of `dl2`: an evolution strategy on runs of a scenario, stopped by runs held out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from labkit.core.resources import Floats
from labkit.experiment.experiment import Experiment
from labkit.learning.rollouts import PATIENCE, mean_spent_s
from labkit.learning.settings import Setting
from labkit.learning.training import Outcome, Training
from labkit.schedulers.dl2.beliefs import FROM_RULE, Numbers, numbers_of
from labkit.schedulers.dl2.learned import LearnedDL2, NumbersFile, load_numbers

BY_FACTOR: Final = np.isin(Numbers._fields, ("length", "spread", "noise", "stretch"))
"""Numbers that are drawn on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class NumbersRecipe:
    """How the numbers are trained.

    Attributes
    ----------
    n_rounds : int
        Generations.
    n_draws, n_best : int
        Candidates of a generation beside the present one, and how many of them the next one is the mean of.
    n_episodes, n_stops : int
        Runs of each candidate, the same for all, and runs held out, by which the best generation is chosen.
    spread : float
        Standard deviation of the first candidates, of a number or of its logarithm.
    """

    n_rounds: int = 12
    n_draws: int = 10
    n_best: int = 4
    n_episodes: int = 8
    n_stops: int = 12
    spread: float = 0.25


@dataclass(eq=False)
class NumbersTrainer(Training):
    """Trains the numbers of `dl2` on runs of a scenario; the same seed gives the same numbers.

    Traces from files begin with the numbers that ship, generated ones with those of the rule: so the shipped ones can
    be made again.

    In each generation all candidates run the same episodes; one is better by the mean of log(mean JCT / that of the
    present numbers), so that long episodes do not outvote short ones. The next mean is that of the best (cross-entropy
    method [1]_). Kept are the numbers of the generation that is best on episodes held out from training: the first
    ones where no later generation is better.

    References
    ----------
    .. [1] Rubinstein, "The cross-entropy method for combinatorial and continuous optimization", 1999.
    """

    setting: Setting
    slot_s: float
    seed: int = 1
    recipe: NumbersRecipe = field(default_factory=NumbersRecipe)
    scenario: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._mean = self._first = _scaled(load_numbers("seeing").numbers if self.setting.files else FROM_RULE)
        self._sd = np.full(len(self._mean), self.recipe.spread)
        self._best, self._least = self._mean, 0.0
        self._stops: list[Experiment] = []
        self._stops_before: Floats = np.empty(0)

    @property
    def n_of_kind(self) -> tuple[int, int]:
        """No lessons, and as many rounds as there are generations."""
        return 0, self.recipe.n_rounds

    @property
    def numbers(self) -> Numbers:
        """Those of the best generation so far."""
        return _unscaled(self._best)

    def _round(self, left: float) -> Outcome:  # noqa: ARG002
        recipe, rng = self.recipe, self._rng
        episodes = [self.setting.sampled(int(seed)) for seed in rng.integers(1 << 30, size=recipe.n_episodes)]
        before = self._jct(episodes, self._mean)
        drawn = self._mean + self._sd * rng.standard_normal((recipe.n_draws, len(self._mean)))
        ratio = [float(np.log(self._jct(episodes, one) / before).mean()) for one in drawn]
        best = np.vstack([self._mean, drawn])[np.argsort([0.0, *ratio], kind="stable")[: recipe.n_best]]
        self._mean, self._sd = best.mean(axis=0), 0.7 * best.std(axis=0) + 0.3 * self._sd
        held_out = self._held_out()
        if held_out < self._least:
            self._best, self._least = self._mean, held_out
        return float(before.mean()), held_out, float(np.log(self._sd).mean())

    def _held_out(self) -> float:
        """Return the mean log ratio of the present numbers to the first ones, on episodes that training never draws."""
        slots = self.slots  # those of training alone are counted
        if not self._stops:
            self._stops = [self.setting.sampled(k, stops=True) for k in range(self.recipe.n_stops)]
            self._stops_before = self._jct(self._stops, self._first)
        found = float(np.log(self._jct(self._stops, self._mean) / self._stops_before).mean())
        self.slots = slots
        return found

    def _jct(self, episodes: Sequence[Experiment], scaled: Floats) -> Floats:
        """Return the mean JCT of each episode under some numbers, in slots."""
        found = []
        for experiment in episodes:
            policy = LearnedDL2(fallback=None)
            policy.use(_unscaled(scaled))
            session = experiment.session(policy, patience=PATIENCE, on_stall="stop")
            session.run(policy)
            self.slots += math.ceil(session.now_s / self.slot_s)
            found.append(max(mean_spent_s(session), 1e-9) / self.slot_s)
        return np.array(found)

    def weights(self, source: str) -> NumbersFile:
        """Return the best numbers so far, for a scheduler."""
        return NumbersFile(self.numbers, source, dict(self.scenario))

    def _identity(self) -> dict[str, Any]:
        return {"numbers": asdict(self.recipe) | {"slot_s": self.slot_s, "seed": self.seed}} | {
            "scenario": dict(self.scenario)
        }

    def _learned(self) -> dict[str, Any]:
        return {"mean": self._mean.tolist(), "sd": self._sd.tolist(), "best": self._best.tolist(), "least": self._least}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self._mean, self._sd, self._best = (np.array(learned[name]) for name in ("mean", "sd", "best"))
        self._least = learned["least"]


def _scaled(numbers: Numbers) -> Floats:
    """Return numbers on the scales on which they are drawn."""
    values = np.array(numbers)
    return np.where(BY_FACTOR, np.log(np.where(BY_FACTOR, values, 1.0)), values)


def _unscaled(scaled: Floats) -> Numbers:
    return numbers_of(np.where(BY_FACTOR, np.exp(np.where(BY_FACTOR, scaled, 0.0)), scaled))
