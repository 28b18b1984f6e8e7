"""A learner: networks, a memory, and one update after each slot, as the switches say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labkit.core.resources import Floats
from labkit.learning.published.network import DenseNetwork
from labkit.learning.published.replay import Drawn, Prioritised, ReplayBuffer
from labkit.learning.published.switches import Published
from labkit.learning.published.updates import (
    entropy_of,
    importance,
    lesson_loss,
    log_chances,
    policy_loss,
    stale_gradient,
)
from labkit.learning.published.warm_up import Lessons
from labkit.learning.training import TrainingDivergedError
from labkit.schedulers.dl2.flat.form import Form
from labkit.schedulers.dl2.flat.network import FlatNet
from labkit.schedulers.dl2.flat.slots import SlotSamples

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
