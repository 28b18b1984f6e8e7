"""Training DL2's policy: first it imitates a teacher, then it compares what else it might do in a slot.

It needs no live cluster: episodes are simulated (`rollouts`), the network learns in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labkit.core.resources import Floats, Ints
from labkit.learning.branches import NO_BRANCHES, Branching, play
from labkit.learning.env import ExperimentOf
from labkit.learning.envs import SlotEnvs
from labkit.learning.rollouts import N_SPARE, PATIENCE, episodes_of
from labkit.learning.training import NetworkTraining, Outcome
from labkit.schedulers.dl2.network import N_TASK_FEATURES, Net, n_inputs
from labkit.schedulers.dl2.policy import BEST, NOTHING, DecisionRecord, How, record
from labkit.schedulers.dl2.weights import SpeedFit, Weights
from labkit.speed.dl2 import THETA, fit, terms
from labkit.speed.tabled import ByCounts

USUAL_SLOTS: Final = 80
"""Of an episode, for which there is room at first."""
MOST_BETTER: Final = 4.0
"""Branches are better or worse by at most so many standard deviations, for learning."""
LEAST_SPREAD: Final = 0.001
"""Of speeds around their coefficients."""
FEWEST_GANGS: Final = 2 * len(THETA)
"""Of a model, for coefficients that do not give its speeds back."""
FAILED: Final = 1e-3
"""Of the fastest gang's speed: what is slower does not train."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a policy is trained; the defaults are the best that was found.

    Attributes
    ----------
    n_lessons, n_rounds : int
        Updates in which it imitates the teacher, and updates in which it learns from branches.
    n_envs : int
        Episodes of an update, each with a trace of its own.
    n_branches, n_slots, share : int, int, float
        As `labkit.learning.branches.Branching` has them.
    n_jobs : int
        Most jobs that are seen at once.
    n_units : int
        H, units of a layer.
    lookahead : int
        Tasks that the teacher looks ahead.
    lesson_rate, rate : float
        Learning rates (Adam) of lessons and rounds; both fall linearly.
    n_epochs, lesson_parts, n_parts : int
        Times that an update goes over its decisions, and parts of lessons and of rounds: an optimizer's step each.
    clip : float
        Of the ratio of chances (PPO).
    """

    n_lessons: int = 180
    n_rounds: int = 40
    n_envs: int = 16
    n_branches: int = 8
    n_slots: int = 10
    share: float = 0.3
    n_jobs: int = 40
    n_units: int = 64
    lookahead: int = 6
    lesson_rate: float = 3e-3
    rate: float = 3e-4
    n_epochs: int = 2
    lesson_parts: int = 32
    n_parts: int = 8
    clip: float = 0.2


class Policy(nn.Module):
    """The network of `labkit.schedulers.dl2.network` as torch knows it."""

    def __init__(self, n_models: int, n_units: int) -> None:
        super().__init__()
        self.n_models = n_models
        self.seen = nn.Linear(n_inputs(n_models), n_units)
        self.held = nn.Parameter(0.2 * torch.randn(n_models, N_TASK_FEATURES, n_units))
        self.middle = nn.Linear(n_units, n_units)
        self.worth = nn.Linear(n_units, 3)
        self.stop = nn.Parameter(torch.zeros(1))
        nn.init.orthogonal_(self.worth.weight, 0.01)
        nn.init.zeros_(self.worth.bias)

    def forward(self, features: Tensor, job: Tensor, tasks: Tensor) -> Tensor:
        """Return the logits of actions, (R, 3), to `job` (R,) of S jobs `features` (S, F) with `tasks` (R, 6)."""
        of_model = features[:, : self.n_models][job]
        mixed = (of_model[:, :, None] * tasks[:, None, :]).reshape(len(tasks), -1)
        one = torch.relu(self.seen(features)[job] + mixed @ self.held.reshape(-1, self.held.shape[-1]))
        worth: Tensor = self.worth(torch.relu(self.middle(one)))
        return worth

    def net(self) -> Net:
        """Return the weights for compiled code; models that are not told apart are the mean of those that are."""
        held = torch.cat([self.held, self.held.mean(0, keepdim=True)])
        parts = (
            self.seen.weight.T, held, self.seen.bias, self.middle.weight.T, self.middle.bias, self.worth.weight.T,
            self.worth.bias, self.stop,
        )  # fmt: skip
        return Net(*(np.ascontiguousarray(part.detach().numpy(), np.float32) for part in parts))


@dataclass(eq=False)
class Trainer(NetworkTraining):
    """Trains a policy on episodes drawn from `experiments`; the same seed gives the same weights.

    `scenario` goes into the weights: what was asked for beside the defaults, as `Setting.plain` writes it down.

    Examples
    --------
    >>> trainer = Trainer(experiment_of, models=DL2_MODELS, slot_s=1200.0, seed=1)  # doctest: +SKIP
    >>> for update in trainer.updates():  # doctest: +SKIP
    ...     print(update.mean_jct)
    >>> trainer.weights("how it was made").save("mine.safetensors")  # doctest: +SKIP
    """

    experiments: ExperimentOf
    models: Sequence[str]
    slot_s: float
    seed: int = 1
    recipe: Recipe = field(default_factory=Recipe)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    policy: Policy = field(init=False, repr=False)

    def __post_init__(self) -> None:
        recipe = self.recipe
        self._begin(lambda: Policy(len(self.models), recipe.n_units), torch.optim.Adam)
        self._episodes = episodes_of(
            self.experiments, n_envs=recipe.n_envs, n_jobs=recipe.n_jobs, slot_s=self.slot_s, models=self.models
        )
        self._branching = Branching(recipe.n_branches, recipe.n_slots, float(recipe.share))
        self._record = self._room(1)

    def _room(self, n_slots: int) -> DecisionRecord:
        return record(n_slots, n_jobs=self.recipe.n_jobs, n_features=n_inputs(len(self.models)))

    def _lesson(self, left: float) -> Outcome:
        return self._play_with_teacher(left), *self._learn(max(self.recipe.lesson_rate * left, 1e-4), imitates=True)

    def _round(self, left: float) -> Outcome:
        return self._play_with_branches(), *self._learn(self.recipe.rate * left, imitates=False)

    def _seeds(self, n: int) -> list[int]:
        return [int(seed) for seed in self._rng.integers(1 << 31, size=n)]

    def _play_with_teacher(self, left: float) -> float:
        """Play episodes, the earlier the more often as the teacher says; return their mean JCT in slots."""
        recipe = self.recipe
        seeds = self._seeds(recipe.n_envs)
        obeys = bool(self._rng.random() < left - 0.5) or self.n_done == 0
        how, net = How(draws=True, keeps=True, lookahead=recipe.lookahead, obeys=obeys), self.policy.net()
        return self._recorded(
            lambda: self._episodes.play(seeds, net, how, self._record, self._rng), n_episodes=recipe.n_envs
        )

    def _play_with_branches(self) -> float:
        """Play episodes with branches; return their mean JCT in slots."""
        recipe, net = self.recipe, self.policy.net()
        seeds = self._seeds(recipe.n_envs + N_SPARE)
        return self._recorded(
            lambda: self._episodes.explore(seeds, net, self._record, self._rng, self._branching),
            n_episodes=int(recipe.n_envs * recipe.n_branches * max(recipe.share, 0.05) * 2),
        )

    def _recorded(self, play: Callable[[], float], *, n_episodes: int) -> float:
        """Record what is played; where episodes are longer than usual, play them again with more room."""
        n_slots, draws = n_episodes * USUAL_SLOTS, self._rng.bit_generator.state
        while True:
            if len(self._record.first) < n_slots:
                self._record = self._room(n_slots)
            self._record.n[:] = 0
            try:
                return play()
            except IndexError:
                n_slots, self._rng.bit_generator.state = 2 * len(self._record.first), draws

    def _learn(self, rate: float, *, imitates: bool) -> tuple[float, float]:
        """Go over what was recorded; return loss and entropy of the last part."""
        self.slots += int(self._record.n[3])
        self._set_rate(rate)
        parts = _Parts(self._record, self.recipe.lesson_parts if imitates else self.recipe.n_parts)
        loss, entropy = torch.zeros(()), torch.zeros(())
        for _ in range(self.recipe.n_epochs):
            for m in self._rng.permutation(len(parts)).tolist():
                part = parts.part(m)
                if part is None:
                    continue
                loss, entropy = loss_of(self.policy, part, clip=None if imitates else self.recipe.clip)
                if not torch.isfinite(loss):
                    return float(loss.detach()), float(entropy.detach())
                self._step(loss)
        return float(loss.detach()), float(entropy.detach())

    # --- what is kept

    @cached_property
    def _speeds(self) -> SpeedFit:
        return speeds_of(self.experiments, self.models)

    def weights(self, source: str) -> Weights:
        """Return the policy as it is, for a scheduler."""
        return Weights(self.policy.net(), tuple(self.models), self.slot_s, source, self._speeds, self.scenario)

    def _identity(self) -> dict[str, Any]:
        told = asdict(self.recipe) | {"models": list(self.models), "slot_s": self.slot_s, "seed": self.seed}
        return told | {"scenario": dict(self.scenario)}

    def go_on(self, state: dict[str, Any]) -> Self:
        """Go on from a state; one of an older labkit is of a plain scenario."""
        return super().go_on(state | {"asked": {"scenario": {}} | state.get("asked", {})})


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """Decisions of some slots: rows of the network as `Policy` takes them, and A actions, as in `DecisionRecord`."""

    features: Tensor
    job: Tensor
    tasks: Tensor
    row: Tensor
    mask: Tensor
    action: Tensor
    log_chance: Tensor
    better: Tensor


def loss_of(policy: Policy, part: _Part, *, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return the loss of some decisions, and their mean entropy.

    `clip`: by how much a ratio of chances may differ from 1 (PPO); None: the decisions are a teacher's, to be imitated.
    """
    worth = policy(part.features, part.job, part.tasks)
    scores = torch.cat([worth[part.row].flatten(1), policy.stop.expand(len(part.row), 1)], 1)
    log_chances = torch.log_softmax(scores.masked_fill(~part.mask, -1e9), 1)
    mine = log_chances.gather(1, part.action[:, None])[:, 0]
    entropy = -(log_chances.exp() * log_chances).sum(1).mean()
    if clip is None:
        return -mine.mean(), entropy
    ratio = torch.exp(mine - part.log_chance)
    return -torch.minimum(ratio * part.better, ratio.clamp(1 - clip, 1 + clip) * part.better).mean(), entropy


class _Parts:
    """A record in parts of about as many slots each."""

    def __init__(self, rec: DecisionRecord, n: int) -> None:
        n_seen_jobs, n_rows, n_actions, n_slots = map(int, rec.n)
        self._rec = rec
        slot_edges = np.linspace(0, n_slots, n + 1).astype(np.int64)
        self._jobs_at = np.append(rec.first[:n_slots], n_seen_jobs)[slot_edges]
        self._rows = np.searchsorted(rec.job[:n_rows], self._jobs_at)
        self._actions = np.searchsorted(rec.slot[:n_actions], slot_edges)
        self._n_jobs = int(rec.n_jobs[:n_slots].max(initial=1))
        better = rec.reward[:n_slots] / (rec.reward[:n_slots].std() + 1e-8)
        self._better = np.clip(better, -MOST_BETTER, MOST_BETTER).astype(np.float32)

    def __len__(self) -> int:
        return len(self._jobs_at) - 1

    def part(self, m: int) -> _Part | None:
        """Return a part; None where nothing was decided."""
        rec, n = self._rec, self._n_jobs
        (s0, s1), (r0, r1), (a0, a1) = (
            (edges[m], edges[m + 1]) for edges in (self._jobs_at, self._rows, self._actions)
        )
        if a0 == a1:
            return None
        last, action = 3 * rec.row.shape[1], rec.action[a0:a1]
        mask = np.column_stack([rec.mask[a0:a1, : 3 * n], rec.mask[a0:a1, -1]])
        return _Part(
            features=torch.from_numpy(rec.features[s0:s1]),
            job=_whole(rec.job[r0:r1] - s0),
            tasks=torch.from_numpy(task_features(rec.n_ps[r0:r1], rec.n_workers[r0:r1])),
            row=_whole(np.maximum(rec.row[a0:a1, :n] - r0, 0)),
            mask=torch.from_numpy(mask),
            action=_whole(np.where(action == last, 3 * n, action)),
            log_chance=torch.from_numpy(rec.log_chance[a0:a1]),
            better=torch.from_numpy(self._better[rec.slot[a0:a1]]),
        )


def task_features(n_ps: Ints, n_workers: Ints) -> NDArray[np.float32]:
    """Return the network's features of the tasks of rows, (R, 6), as the compiled policy makes them."""
    p, w = n_ps.astype(np.float32), n_workers.astype(np.float32)
    columns = [p / 16, w / 16, np.sqrt(p) / 4, np.sqrt(w) / 4, p == 0, w == 0]
    return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)


def _whole(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int64))


def speeds_of(experiments: ExperimentOf, models: Sequence[str], *, n: int = 20) -> SpeedFit:
    """Return how fast each model runs in some episodes: coefficients, and the spread of its speeds around them.

    A model has none where its episodes have too few gangs, since coefficients would give these speeds back.
    """
    rng = np.random.default_rng(0)
    grids: dict[str, list[Floats]] = {}
    for _ in range(n):
        made = experiments(rng)
        if isinstance(made.speed, ByCounts):
            for code in np.unique(made.jobs.model).tolist():
                row = made.speed.row[np.argmax(made.jobs.model == code)]
                grids.setdefault(made.jobs.models[code], []).append(made.speed.grid[row])
    theta, spread = np.zeros((len(models), len(THETA))), np.full(len(models), LEAST_SPREAD)
    for model, name in enumerate(models):
        found = [_gangs(grid) for grid in grids.get(name, [])]
        if not found or max(len(seconds) for _, seconds in found) < FEWEST_GANGS:
            continue
        gangs, seconds = (np.concatenate(part) for part in zip(*found, strict=True))
        theta[model] = fit(gangs, seconds)
        spread[model] = max(np.abs(np.log(seconds / (gangs @ theta[model]))).mean(), LEAST_SPREAD)
    return SpeedFit(theta, spread)


def _gangs(grid: Floats) -> tuple[Floats, Floats]:
    """Return the terms (n, 6) and the seconds of a step (n,) of gangs that train, from steps/s by PSs and workers."""
    rate = grid[1:, 1:]
    p, w = np.nonzero(rate > FAILED * rate.max(initial=0.0))
    return terms(p + 1, w + 1, batch=1.0), 1 / rate[p, w]


def mean_jct(
    weights: Weights, experiments: Callable[[int], Any], seeds: Sequence[int], *, n_jobs: int = 40
) -> NDArray[np.float64]:
    """Return the mean JCT in slots of the experiment of each seed, (S,); the most probable actions are taken."""
    left = iter(seeds)
    envs = SlotEnvs(
        lambda _: experiments(next(left)), n_envs=len(seeds), n_jobs=n_jobs, slot_s=weights.slot_s,
        models=weights.models, reward="time", patience=PATIENCE,
    )  # fmt: skip
    envs.reset(seed=0)
    play(envs.batch, envs.rules, weights.net, BEST, NOTHING, np.random.default_rng(0), NO_BRANCHES)
    slots: NDArray[np.float64] = -envs.batch.episode["worth"]
    return slots
