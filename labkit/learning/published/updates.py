"""What an update changes: the losses of supervised and of reinforcement learning (sec. 4.2, 4.3, 6.5)."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

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
