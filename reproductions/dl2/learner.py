"""What learns in DL2 as published: networks, losses (sec. 4.2, 4.3, 6.5), replay, and one update after each slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labkit.core.resources import Floats
from labkit.learning.training import TrainingDivergedError
from reproductions.dl2.policy import FlatNet, Form, SlotSamples
from reproductions.dl2.switches import Published
from reproductions.dl2.warm_up import Lessons

SMALL = 0.02
"""Standard deviation of the released code's weights, and of what is last in the paper's."""


class DenseNetwork(nn.Module):
    """Fully connected layers with ReLU over a state (J, F), and a linear one of `n_out` behind them (sec. 4.1).

    By the released code's rules each layer is followed by a factor and a summand of each unit, which is what its batch
    normalisation amounts to where it is never told that it trains.
    """

    def __init__(self, form: Form, n_out: int, *, n_units: int, n_layers: int) -> None:
        super().__init__()
        n_in = form.n_jobs * form.n_features
        small = SMALL if form.released else None
        self.first, self.first_bias = _weights(n_in, n_units, small), _zeros(n_units)
        middle = [_weights(n_units, n_units, small).data for _ in range(n_layers - 1)]
        self.middle = nn.Parameter(torch.stack(middle) if middle else torch.zeros(0, n_units, n_units))
        self.middle_bias = nn.Parameter(torch.zeros(n_layers - 1, n_units))
        gain = 1 + 0.002 * torch.randn(n_layers, n_units) if form.released else torch.ones(n_layers, n_units)
        self.gain = nn.Parameter(gain, requires_grad=form.released)
        self.shift = nn.Parameter(torch.zeros(n_layers, n_units), requires_grad=form.released)
        self.last, self.last_bias = _weights(n_units, n_out, SMALL), _zeros(n_out)

    def forward(self, state: Tensor) -> Tensor:
        """Return (B, n_out) for states (B, J, F)."""
        units = torch.relu(state.flatten(1) @ self.first + self.first_bias) * self.gain[0] + self.shift[0]
        for m in range(len(self.middle)):
            units = torch.relu(units @ self.middle[m] + self.middle_bias[m]) * self.gain[m + 1] + self.shift[m + 1]
        scores: Tensor = units @ self.last + self.last_bias
        return scores

    def net(self) -> FlatNet:
        """Return the weights for compiled code: the same numbers in the same place, so that learning changes them."""
        return FlatNet(*(getattr(self, name).detach().numpy() for name in FlatNet._fields))

    def copy(self) -> FlatNet:
        """Return the weights as they are now."""
        return FlatNet(*(np.ascontiguousarray(part.copy(), np.float32) for part in self.net()))


def _weights(n_in: int, n_out: int, small: float | None) -> nn.Parameter:
    """Return weights (in, out) with a standard deviation of `small`, or of sqrt(2 / in)."""
    return nn.Parameter(torch.randn(n_in, n_out) * ((2 / n_in) ** 0.5 if small is None else small))


def _zeros(n: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(n))


NEVER: Final = -1e9
"""The score of what is not allowed."""
TINY: Final = 1e-6
"""Is added to chances before their logarithm in the released code's entropy."""


def log_chances(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the logarithm of each action's chance, (B, A); actions that are not allowed have none."""
    return torch.log_softmax(scores.masked_fill(~mask, NEVER), 1)


def lesson_loss(scores: Tensor, mask: Tensor, action: Tensor, kind: str) -> Tensor:
    """Return how far chances (B, A) are from a teacher's actions (B,): cross entropy, mean square or mean distance."""
    logs = log_chances(scores, mask)
    if kind == "cross_entropy":
        return -logs.gather(1, action[:, None]).mean()
    off = logs.exp() - torch.nn.functional.one_hot(action, scores.shape[1])
    return (off**2).mean() if kind == "mean_square" else off.abs().mean()


def entropy_of(logs: Tensor) -> Tensor:
    """Return the mean entropy of B policies, in nats."""
    return -(logs.exp() * logs).sum(1).mean()


def policy_loss(
    scores: Tensor, mask: Tensor, action: Tensor, advantage: Tensor, *, entropy: float, weight: Tensor | None = None
) -> Tensor:
    """Return the loss whose gradient is minus that of eq. 2 with an advantage for Q, and of the weighted entropy.

    Parameters
    ----------
    scores, mask : Tensor
        (B, A) of the network now, and what was allowed.
    action, advantage : Tensor
        (B,) what was done, and how much better it was than expected.
    entropy : float
        Weight of the entropy, which is summed over actions.
    weight : Tensor, optional
        (B,) how much each sample counts.
    """
    logs = log_chances(scores, mask)
    mine = logs.gather(1, action[:, None])[:, 0]
    gained = (advantage if weight is None else weight * advantage) * mine
    return -gained.mean() - entropy * entropy_of(logs)


def stale_gradient(chance: Tensor, action: Tensor, advantage: Tensor, *, entropy: float, mean: bool) -> Tensor:
    """Return the gradient by scores, (B, A), that the released code follows: at stored chances, whatever they are now.

    Its loss is -mean(advantage log chance[action]) + entropy * mean(chance log(chance + 1e-6)), the second mean over
    actions too if `mean`; chances (B, A) are those of the time of the action, and softmax is differentiated there.
    """
    chance = chance.detach().clone().requires_grad_(True)
    mine = chance.gather(1, action[:, None])[:, 0]
    loss = -(advantage * torch.log(mine.clamp_min(1e-30))).mean()
    spread = chance * torch.log(chance + TINY)
    loss = loss + entropy * (spread.mean() if mean else spread.sum(1).mean())
    (by_chance,) = torch.autograd.grad(loss, chance)
    with torch.no_grad():
        return chance * (by_chance - (by_chance * chance).sum(1, keepdim=True))


def importance(logs: Tensor, action: Tensor, behaviour: Tensor) -> Tensor:
    """Return the ratio of what an action's chance is now to what it was, (B,), at most 1."""
    with torch.no_grad():
        now = logs.gather(1, action[:, None])[:, 0].exp()
        return (now / behaviour.clamp_min(1e-8)).clamp_max(1.0)


LARGEST: Final = 4.0
"""No error counts for more in the released code's priorities."""
POWER: Final = 0.9
FIRST_CORRECTION: Final = 0.1
CORRECTION_STEP: Final = 1e-4

Whole = NDArray[np.int64]


class Drawn(NamedTuple):
    """Some samples: where they stand in the memory, (B,), and how much each counts, (B,)."""

    rows: Whole
    weight: NDArray[np.float32]


class ReplayBuffer:
    """The latest samples, N at most; all are as likely to be drawn."""

    def __init__(self, n: int, form: Form) -> None:
        of_jobs = n, form.n_jobs, form.n_features
        self.columns: dict[str, NDArray[Any]] = {
            "state": np.zeros(of_jobs, np.float32), "next": np.zeros(of_jobs, np.float32),
            "mask": np.zeros((n, form.n_actions), np.bool_), "chance": np.zeros((n, form.n_actions), np.float32),
            "action": np.zeros(n, np.int64), "behaviour": np.zeros(n, np.float32), "reward": np.zeros(n, np.float32),
            "over": np.zeros(n, np.bool_),
        }  # fmt: skip
        """state, next (N, J, F); mask (N, A); chance (N, A); action (N,); behaviour, reward (N,); over (N,) whether
        nothing came after the slot."""
        self.n, self._at = 0, 0

    @property
    def size(self) -> int:
        """Most samples that it holds, N."""
        return len(self.columns["action"])

    def add(self, kept: SlotSamples, reward: Floats, following: NDArray[np.float32], *, over: bool) -> Whole:
        """Add the samples of a slot with their rewards (n,) and the first state of the next slot; return their rows."""
        n = min(int(kept.n[0]), self.size)
        rows = (self._at + np.arange(n)) % self.size
        for name in ("state", "mask", "chance", "action", "behaviour"):
            self.columns[name][rows] = getattr(kept, name)[:n]
        self.columns["reward"][rows], self.columns["next"][rows] = reward[:n], following
        self.columns["over"][rows] = over
        self._at, self.n = int((self._at + n) % self.size), min(self.n + n, self.size)
        return rows

    @property
    def ready(self) -> bool:
        """Whether there is enough to learn from."""
        return self.n > 0

    def draw(self, n: int, rng: np.random.Generator) -> Drawn:
        """Return up to n samples, each once."""
        rows = rng.choice(self.n, size=min(n, self.n), replace=False)
        return Drawn(rows, np.ones(len(rows), np.float32))

    def told(self, drawn: Drawn, errors: Floats) -> None:
        """Take note of how far off the values of drawn samples were; all count alike here."""

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on."""
        return {"columns": {k: v[: self.n].copy() for k, v in self.columns.items()}, "at": self._at}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.n, self._at = len(state["columns"]["action"]), state["at"]
        for name, column in state["columns"].items():
            self.columns[name][: self.n] = column


class Prioritised(ReplayBuffer):
    """The released code's memory (prioritized_memory.py): samples of larger errors are drawn more often.

    New ones count by how far their reward is above the mean, at least 1. None is drawn before it is full.
    """

    def __init__(self, n: int, form: Form) -> None:
        super().__init__(n, form)
        self.priority = np.zeros(n)
        self.correction = FIRST_CORRECTION

    @property
    def ready(self) -> bool:
        """Whether it is full."""
        return self.n == self.size

    def add(self, kept: SlotSamples, reward: Floats, following: NDArray[np.float32], *, over: bool) -> Whole:
        """Add samples; see `Replay.add`. The mean is that of the memory as each of them comes in."""
        known = self.columns["reward"]
        total, n_before, begin = float(known[: self.n].sum(dtype=np.float64)), self.n, self._at
        n = min(int(kept.n[0]), self.size)
        pushed_out = known[(begin + np.arange(n)) % self.size].astype(np.float64)  # 0 where there was none
        rows = super().add(kept, reward, following, over=over)
        new = known[rows].astype(np.float64)
        means = (total + np.cumsum(new - pushed_out)) / np.minimum(n_before + 1 + np.arange(n), self.size)
        self.priority[rows] = np.maximum(1.0, new - means)
        return rows

    def draw(self, n: int, rng: np.random.Generator) -> Drawn:
        """Return n samples, one of each n-th of the sum of priorities; what is drawn often counts for less."""
        self.correction = min(1.0, self.correction + CORRECTION_STEP)
        sums = np.cumsum(self.priority[: self.n])
        at = (np.arange(n) + rng.random(n)) * sums[-1] / n
        rows = np.minimum(np.searchsorted(sums, at), self.n - 1)
        weight = (self.priority[rows] / self.priority[: self.n].min()) ** -self.correction
        return Drawn(rows, weight.astype(np.float32))

    def told(self, drawn: Drawn, errors: Floats) -> None:
        """Set priorities by errors (B,)."""
        self.priority[drawn.rows] = np.minimum(np.abs(errors) + 0.01, LARGEST) ** POWER

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on."""
        return super().state() | {"priority": self.priority[: self.n].copy(), "correction": self.correction}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        super().go_on(state)
        self.priority[: self.n], self.correction = state["priority"], state["correction"]


MEMORY_OF_A_SLOT: Final = 4096
"""Samples of a slot that are learned from where there is no replay."""
REMEMBERED: Final = 0.99
"""Of the moving average of rewards, with each new slot."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Losses of policy and value network, and the mean entropy of the policy in nats."""

    loss: float
    value_loss: float
    entropy: float

    @classmethod
    def mean(cls, told: Sequence[Self]) -> Self:
        """Return the mean of several; 0 of none."""
        return cls(*(float(np.mean([getattr(one, name) for one in told])) if told else 0.0 for name in cls.__slots__))


class Learner:
    """DL2's own networks while they learn; draw their first weights from torch's seed.

    Attributes
    ----------
    policy, value : DenseNetwork
        Networks.
    n_updates : int
        Updates of reinforcement learning so far.
    """

    def __init__(self, switches: Published, form: Form) -> None:
        self.switches, self.form = switches, form
        layers = {"n_units": switches.n_units, "n_layers": switches.n_layers}
        self.policy, self.value = DenseNetwork(form, form.n_actions, **layers), DenseNetwork(form, 1, **layers)
        self.memory = (Prioritised if switches.prioritised else ReplayBuffer)(switches.replay or MEMORY_OF_A_SLOT, form)
        self.n_updates, self.n_lessons = 0, 0
        self._mean, self._last = float("nan"), np.empty(0, np.int64)
        self._by_lessons, self._by_reward, self._of_value = (
            torch.optim.Adam(net.parameters(), lr=rate)
            for net, rate in (
                (self.policy, switches.sl_rate),
                (self.policy, switches.rate),
                (self.value, switches.rate),
            )
        )

    def adopt(self, net: FlatNet) -> None:
        """Begin with the weights of a policy that was trained."""
        with torch.no_grad():
            for name, part in net._asdict().items():
                getattr(self.policy, name).copy_(torch.from_numpy(part))

    # --- supervised learning

    def study(self, taught: Lessons, rng: np.random.Generator) -> Learned:
        """Learn from a mini-batch of what a teacher did; see `TrainingDivergedError`."""
        rows = rng.integers(len(taught.action), size=self.switches.batch)
        mask = torch.from_numpy(np.ones_like(taught.mask[rows]) if self.form.released else taught.mask[rows])
        scores = self.policy(torch.from_numpy(taught.state[rows]))
        loss = lesson_loss(scores, mask, torch.from_numpy(taught.action[rows]), self.switches.sl_loss)
        self._by_lessons.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._step(self._by_lessons, self.policy, loss, f"lesson {self.n_lessons + 1}")
        self.n_lessons += 1
        return Learned(float(loss.detach()), 0.0, float(entropy_of(log_chances(scores.detach(), mask))))

    # --- reinforcement learning

    def remember(self, kept: SlotSamples, reward: Floats, following: NDArray[np.float32], *, over: bool) -> None:
        """Take note of a slot: its samples, what each was worth (N,), and the first state of the next slot (J, F)."""
        n = int(kept.n[0])
        self._last = self.memory.add(kept, reward, following, over=over)
        if n:
            mean = float(np.mean(reward[:n]))
            self._mean = REMEMBERED * self._mean + (1 - REMEMBERED) * mean if np.isfinite(self._mean) else mean

    def update(self, rng: np.random.Generator) -> Learned | None:
        """Learn from samples of latest slots, or of the last one; None: that one has none, or there are too few."""
        if not len(self._last) or not self.memory.ready:
            return None
        if self.switches.replay:
            drawn = self.memory.draw(self.switches.batch, rng)
        else:
            drawn = Drawn(self._last, np.ones(len(self._last), np.float32))
        some = {name: torch.from_numpy(column[drawn.rows]) for name, column in self.memory.columns.items()}
        weight = torch.from_numpy(drawn.weight)
        advantage, value_loss = self._advantage(some)
        scores = self.policy(some["state"])
        loss, entropy = self._policy_gradient(scores, some, advantage, weight)
        which = f"update {self.n_updates + 1}"
        if value_loss is not None:
            self._of_value.zero_grad()
            value_loss.backward()  # type: ignore[no-untyped-call]
            _refuse_no_number(self.policy, loss, which)
            self._step(self._of_value, self.value, value_loss, which)
        if self.n_updates >= self.switches.critic_first:
            self._step(self._by_reward, self.policy, loss, which)
        self.memory.told(drawn, advantage.numpy())
        self.n_updates += 1
        told = 0.0 if value_loss is None else float(value_loss.detach())
        return Learned(float(loss.detach()), told, float(entropy))

    def _advantage(self, some: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return how much better samples were than expected, (B,), and the loss of what was expected."""
        switches, reward = self.switches, some["reward"]
        if not switches.actor_critic:
            mean = float(self.memory.columns["reward"][: self.memory.n].mean()) if switches.prioritised else self._mean
            return reward - mean, None
        value, target = self.value(some["state"])[:, 0], reward
        if switches.discount:
            with torch.no_grad():
                target = reward + switches.discount * self.value(some["next"])[:, 0] * ~some["over"]
        return (target - value).detach(), ((value - target) ** 2).mean()

    def _policy_gradient(
        self, scores: Tensor, some: dict[str, Tensor], advantage: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Set the policy's gradients; return its loss and its entropy now."""
        switches, mask, action = self.switches, some["mask"], some["action"]
        logs = log_chances(scores.detach(), mask)
        self._by_reward.zero_grad()
        if switches.stale:
            gradient = stale_gradient(
                some["chance"], action, advantage * weight, entropy=switches.entropy, mean=switches.mean_entropy
            )
            scores.backward(gradient)  # type: ignore[no-untyped-call]
            return gradient.abs().sum(), entropy_of(logs)
        if switches.corrected:
            weight = weight * importance(logs, action, some["behaviour"])
        by = switches.entropy / (self.form.n_actions if switches.mean_entropy else 1)
        loss = policy_loss(scores, mask, action, advantage, entropy=by, weight=weight)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss, entropy_of(logs)

    def _step(self, optimizer: torch.optim.Optimizer, net: DenseNetwork, loss: Tensor, which: str) -> None:
        _refuse_no_number(net, loss, which)
        optimizer.step()

    # --- what is kept

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, for `torch.save`."""
        parts = (self.policy, self.value, self._by_lessons, self._by_reward, self._of_value)
        memory = self.memory.state()
        memory["columns"] = {name: torch.from_numpy(column) for name, column in memory["columns"].items()}
        if "priority" in memory:
            memory["priority"] = torch.from_numpy(memory["priority"])
        told = {"n_updates": self.n_updates, "n_lessons": self.n_lessons, "mean": self._mean, "memory": memory}
        return told | {"parts": [part.state_dict() for part in parts]}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        parts: tuple[Any, ...] = (
            self.policy, self.value, self._by_lessons, self._by_reward, self._of_value,
        )  # fmt: skip
        for part, kept in zip(parts, state["parts"], strict=True):
            part.load_state_dict(kept)
        memory = dict(state["memory"])
        memory["columns"] = {name: column.numpy() for name, column in memory["columns"].items()}
        if "priority" in memory:
            memory["priority"] = memory["priority"].numpy()
        self.memory.go_on(memory)
        self.n_updates, self.n_lessons, self._mean = state["n_updates"], state["n_lessons"], state["mean"]


def _refuse_no_number(net: nn.Module, loss: Tensor, which: str) -> None:
    """Raise if a loss or a gradient is not finite, before it changes anything."""
    norm = nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
    if not (torch.isfinite(loss) and torch.isfinite(norm)):
        raise TrainingDivergedError(
            f"the loss of {which} is {float(loss.detach()):g} and its gradient {float(norm):g}; expected finite "
            "numbers. The weights are those before it; try a smaller rate."
        )
