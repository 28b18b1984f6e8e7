"""Training the placement policy: it imitates an oracle, then compares what came of its own choices.

Traces are simulated in compiled code (`episodes`); the networks learn in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from labkit.core.cluster import Cluster
from labkit.core.resources import Bools, Floats, Ints
from labkit.learning.marl.episodes import ActionRule, Rec
from labkit.learning.marl.plays import Play, Played, Submits, WorldOf, all_played, played
from labkit.learning.marl.settings import Setting
from labkit.learning.training import NetworkTraining, Outcome
from labkit.schedulers.marl.network import FEATURES, N_TOP, NEVER, WAITING, Net
from labkit.schedulers.marl.weights import TrainedFor, Weights
from labkit.speed.interference.levels import Level
from labkit.speed.what_if import N_SLOWDOWN_FEATURES

MOST_BETTER: Final = 3.0
"""Choices are better or worse by at most so many standard deviations, for learning."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a policy is trained; the defaults are the best that was found.

    Attributes
    ----------
    n_lessons, n_rounds : int
        Updates in which it imitates the oracle, and updates of policy gradient.
    n_draws : int
        Times that the trace of a round is played.
    leaves_one_out : bool
        Each job's blame is judged against that of the same job in the other plays; False: against the mean of all jobs.
    n_hidden, n_units, n_agents : int
        Units of the network for slowdowns and of the head, and heads: 1 is shared by all pods.
    n_fits : int
        Steps of the optimizer in a lesson.
    obeys : float
        Chance that a lesson goes on as the oracle says.
    lesson_rate, rate : float
        Learning rates (Adam); that of rounds falls linearly.
    n_epochs : int
        Times that a round goes over its decisions.
    clip : float
        Of the ratio of chances (PPO).
    doubt : float
        Times that what placements are worth is divided by in rounds, so that others are tried too.
    forwards, waits : bool
        False: jobs leave home only where it has no room; a job that finds room is never left in the queue.
    """

    n_lessons: int = 6
    n_rounds: int = 40
    n_draws: int = 4
    n_hidden: int = 16
    n_units: int = 16
    n_agents: int = 1
    n_fits: int = 400
    obeys: float = 0.7
    lesson_rate: float = 1e-2
    rate: float = 1.5e-2
    n_epochs: int = 4
    clip: float = 0.2
    doubt: float = 2.0
    leaves_one_out: bool = True
    forwards: bool = True
    waits: bool = True


class Policy(nn.Module):
    """The network of `labkit.schedulers.marl.network` as torch knows it."""

    def __init__(self, n_hidden: int, n_units: int, n_agents: int, *, waits: bool = True) -> None:
        super().__init__()
        a = n_agents
        self.seen = nn.Parameter(0.5 * torch.randn(N_SLOWDOWN_FEATURES, n_hidden))
        self.out = nn.Parameter(0.3 * torch.randn(n_hidden))
        self.first = nn.Parameter((0.3 * torch.randn(1, len(FEATURES), n_units)).repeat(a, 1, 1))
        self.bias = nn.Parameter(torch.zeros(a, n_units))
        self.last = nn.Parameter(torch.zeros(a, n_units))
        self.sharp = nn.Parameter(torch.full((a,), 3.0))  # of which the exponential is taken
        self.wait = nn.Parameter(torch.zeros(a, len(WAITING)))
        with torch.no_grad():
            self.wait[:, -1] = -2.3
        self.waits = waits

    def predicted(self, felt: Tensor) -> Tensor:
        """Return slowdowns, (S,), from what is seen of tasks, (S, 6)."""
        return 1 + functional.softplus(torch.relu(felt @ self.seen) @ self.out)

    def forward(self, features: Tensor, cost: Tensor, agent: Tensor) -> Tensor:
        """Return the logits of placements and waiting, (D, K + 1), from (D, K + 1, F), (D, K) and agents (D,)."""
        hidden = torch.tanh(
            torch.einsum("dkf,dfu->dku", features[:, :-1], self.first[agent]) + self.bias[agent][:, None]
        )
        sharp = torch.exp(self.sharp)[agent]
        worth = (hidden * self.last[agent][:, None]).sum(2) - sharp[:, None] * cost
        waiting = (features[:, -1, : len(WAITING)] * self._wait()[agent]).sum(1)
        return torch.cat([worth, waiting[:, None]], 1)

    def _wait(self) -> Tensor:
        return self.wait * torch.exp(self.sharp)[:, None]

    def net(self) -> Net:
        """Return the weights for compiled code."""
        wait = self._wait()
        if not self.waits:
            wait = torch.zeros_like(wait)
            wait[:, -1] = NEVER
        parts = (self.seen, self.out, self.first, self.bias, self.last, wait, torch.exp(self.sharp))
        return Net(*(np.ascontiguousarray(part.detach().numpy(), np.float64) for part in parts))


@dataclass(eq=False)
class Trainer(NetworkTraining):
    """Trains a policy on traces drawn from `worlds`; the same seed gives the same weights.

    Attributes
    ----------
    where : executor or Client, optional
        Where traces are played: of `concurrent.futures`, or the client of a Dask cluster. The plays of a round are
        independent of each other, and give the same bits on machines of one kind; None: here, one after the other.

    Examples
    --------
    >>> trainer = Trainer(world_of_a_trace, seed=1)  # doctest: +SKIP
    >>> for update in trainer.updates():  # doctest: +SKIP
    ...     print(update.mean_jct)
    >>> trainer.weights("how it was made").save("mine.safetensors")  # doctest: +SKIP
    """

    worlds: WorldOf
    seed: int = 1
    recipe: Recipe = field(default_factory=Recipe)
    where: Submits | None = None
    policy: Policy = field(init=False, repr=False)
    _felt: list[Tensor] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        recipe = self.recipe
        sizes = recipe.n_hidden, recipe.n_units, recipe.n_agents
        self._begin(lambda: Policy(*sizes, waits=recipe.waits), torch.optim.Adam)

    def _played(self, seed: int, how: ActionRule, *, n: int = 1, n_samples: int = 1) -> list[Played]:
        """Return the outcomes of n plays of a trace."""
        net = self.policy.net()
        if not how.teaches:
            doubt = self.recipe.doubt
            net = net._replace(last=net.last / doubt, wait=net.wait / doubt, sharp=net.sharp / doubt)
        plays = [Play(net, how, seed, self._seed(), n_samples) for _ in range(n)]
        told = all_played(self.worlds, plays, where=self.where)
        self.slots += sum(one.slots for one in told)
        if self.where is not None:
            self.cpu_s += sum(one.cpu_s for one in told)
        return told

    # --- imitation

    def _lesson(self, left: float) -> Outcome:
        """Imitate: what tasks suffer beside others, and where the oracle puts gangs."""
        recipe, seed = self.recipe, self._seed()
        (told,) = self._played(seed, ActionRule(True, True, recipe.obeys, not recipe.forwards), n_samples=60_000)
        self._felt.append(torch.from_numpy(told.rec.felt))
        felt, part = torch.cat(self._felt), _parts(told.rec, told.home, recipe.n_agents, taught=True)
        self._set_rate(recipe.lesson_rate * left + 1e-3)
        loss = torch.zeros(())
        for _ in range(recipe.n_fits):
            rows = torch.from_numpy(self._rng.integers(len(felt), size=512))
            one = felt[rows]
            loss = (torch.log(self.policy.predicted(one[:, :-1])) - torch.log(one[:, -1])).square().mean() * 30
            if len(part.action):
                some = torch.from_numpy(self._rng.integers(len(part.action), size=128))
                loss = loss - 0.1 * self._log_chances(part, some)[torch.arange(128), part.action[some]].mean()
            if not torch.isfinite(loss):
                break
            self._step(loss, frozen=("sharp", "wait"))  # the oracle never waits, and is never in doubt
        return told.mean_jct, float(loss.detach()), 0.0

    # --- policy gradient

    def _round(self, left: float) -> Outcome:
        """Play one trace several times, and make more probable what turned out better than in the others."""
        recipe, seed = self.recipe, self._seed()
        told = self._played(seed, ActionRule(True, False, 0.0, not recipe.forwards), n=recipe.n_draws)
        parts = [_parts(one.rec, one.home, recipe.n_agents, taught=False) for one in told]
        blame = np.array([one.blame for one in told])
        better = better_than_others(blame) if recipe.leaves_one_out else better_than_all(blame)
        part, worth = _Part.joined(parts), torch.cat([_of_jobs(b, p.job) for b, p in zip(better, parts, strict=True)])
        with torch.no_grad():
            before = self._log_chances(part, doubt=recipe.doubt)[torch.arange(len(part.action)), part.action]
        self._set_rate(recipe.rate * left)
        loss, entropy = torch.zeros(()), torch.zeros(())
        for _ in range(recipe.n_epochs):
            chances = self._log_chances(part, doubt=recipe.doubt)
            mine = chances[torch.arange(len(part.action)), part.action]
            ratio = torch.exp(mine - before)
            clipped = ratio.clamp(1 - recipe.clip, 1 + recipe.clip)
            loss = -torch.minimum(ratio * worth, clipped * worth).mean()
            entropy = -(chances.exp() * chances.clamp(min=-1e3)).sum(1).mean()
            if not torch.isfinite(loss):
                break
            self._step(loss)
        return float(np.mean([one.mean_jct for one in told])), float(loss.detach()), float(entropy.detach())

    def _log_chances(self, part: _Part, rows: Tensor | None = None, *, doubt: float = 1.0) -> Tensor:
        mine = part if rows is None else part.take(rows)
        worth = (self.policy(mine.features, mine.cost, mine.agent) / doubt).masked_fill(~mine.mask, -1e9)
        return torch.log_softmax(worth, 1)

    # --- what is kept

    def weights(self, source: str) -> Weights:
        """Return the policy as it is, for a scheduler."""
        known: Level | None = getattr(self.worlds, "interference_level", None)
        clusters: list[Cluster] = getattr(self.worlds, "built", [])
        return Weights(self.policy.net(), source, TrainedFor.of(known, clusters))

    def _identity(self) -> dict[str, Any]:
        told = self.worlds.identity() if isinstance(self.worlds, Setting) else {}
        return asdict(self.recipe) | {"seed": self.seed} | told

    def _learned(self) -> dict[str, Any]:
        felt = self._felt if self.n_done < self.recipe.n_lessons else []
        return super()._learned() | {"felt": felt}

    def _relearn(self, learned: dict[str, Any]) -> None:
        super()._relearn(learned)
        self._felt = list(learned["felt"])


def mean_jct(net: Net, worlds: WorldOf, seeds: Sequence[int]) -> Floats:
    """Return the mean JCT in slots of the trace of each seed, (S,); the most probable placements are taken."""
    frozen = ActionRule(False, False, 0.0, False)
    return np.array([played(worlds, Play(net, frozen, seed, 0)).mean_jct for seed in seeds])


def better_than_others(blame: Floats) -> Floats:
    """Return by how much each job came off better than in the other plays of its trace, (K, N) from (K, N).

    In standard deviations of the whole, at most `MOST_BETTER`; the sum over plays is 0 before that.
    """
    k = len(blame)
    return _scaled((blame.sum(0) - blame) / max(k - 1, 1) - blame)


def better_than_all(blame: Floats) -> Floats:
    """Return by how much each job came off better than the mean job of all plays, (K, N) from (K, N), as above."""
    return _scaled(blame.mean() - blame)


def _scaled(better: Floats) -> Floats:
    scaled: Floats = np.clip(better / (better.std() + 1e-8), -MOST_BETTER, MOST_BETTER)
    return scaled


def _of_jobs(better: Floats, job: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(better[job].astype(np.float32))


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """Decisions: what was seen (D, K + 1, F), costs (D, K), the agent (D,), what was allowed, and what was done."""

    features: Tensor
    cost: Tensor
    agent: Tensor
    mask: Tensor
    action: Tensor
    job: NDArray[np.int64]

    def take(self, rows: Tensor) -> _Part:
        """Return some of them."""
        picked = (self.features[rows], self.cost[rows], self.agent[rows], self.mask[rows], self.action[rows])
        return _Part(*picked, self.job[rows.numpy()])

    @classmethod
    def joined(cls, parts: list[_Part]) -> _Part:
        """Return the decisions of several."""
        features, cost, agent, mask, action = (
            torch.cat([getattr(p, name) for p in parts]) for name in ("features", "cost", "agent", "mask", "action")
        )
        return cls(features, cost, agent, mask, action, np.concatenate([p.job for p in parts]))


def _parts(rec: Rec, home: Ints, n_agents: int, *, taught: bool) -> _Part:
    """Return the decisions of a record; `taught`: those of which the oracle's choice is known, with that."""
    n = int(rec.n[0])
    keep = np.flatnonzero(rec.taught[:n] >= 0) if taught else np.arange(n)
    features, n_top = rec.features[:n][keep], rec.n_top[:n][keep]
    rows, there = np.arange(len(keep)), np.arange(N_TOP) < n_top[:, None]
    waiting = features[rows, n_top]
    may_wait: Bools = ~np.any(np.isnan(waiting), axis=1)
    whole = np.concatenate(
        [np.where(there[:, :, None], features[:, :-1], 0.0), np.nan_to_num(waiting)[:, None]], axis=1
    )
    action = (rec.taught if taught else rec.action)[:n][keep]
    action = np.where(action >= n_top, N_TOP, action)
    agent = np.maximum(home[rec.job[:n][keep]], 0) % n_agents
    mask = np.concatenate([there, (may_wait & (not taught))[:, None]], axis=1)
    return _Part(
        torch.from_numpy(whole.astype(np.float32)), torch.from_numpy(rec.cost[:n][keep] * there),
        torch.from_numpy(agent), torch.from_numpy(mask), torch.from_numpy(action), rec.job[:n][keep],
    )  # fmt: skip
