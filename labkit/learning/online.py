"""Learning online: once per slot, a policy that runs is changed by what came of its own decisions.

Nothing is simulated and no speed is asked: what is learned from is what a snapshot shows. Decisions are drawn by their
chances, and each slot is worth how much sooner its jobs were gone than a critic predicted.
"""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import nn

from labkit.core.draft import Batch
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.learning.dl2 import Policy, _Part, _Parts, loss_of
from labkit.learning.training import copied
from labkit.schedulers.dl2.network import Net, n_inputs
from labkit.schedulers.dl2.policy import DecisionRecord, How, decide, record
from labkit.schedulers.dl2.weights import Weights

DRAWS: Final = How(draws=True, keeps=True, lookahead=0, obeys=False)
HORIZON: Final = 10
"""Slots for which the jobs of a slot are followed."""
WARM_UP: Final = 20
"""Slots that the critic sees before the policy is changed."""
MEMORY: Final = 16
"""Newest slots that an update goes over; ratios of chances are clipped, as the policy has changed since."""
CLIP: Final = 0.2
RIDGE: Final = 3.0


@dataclass(eq=False, slots=True)
class _Slot:
    """A slot that was decided: its jobs (J,), what was seen of them (J, F), the decisions, and slots they stayed."""

    jobs: Ints
    features: Floats
    part: _Part | None
    stayed: Floats
    n_slots: int = 0
    better: float = 0.0


class Learner:
    """Changes a policy while it runs.

    Parameters
    ----------
    weights : Weights
        Where it begins.
    rng : Generator
        Draws the decisions.
    rate : float
        Of Adam.
    """

    def __init__(self, weights: Weights, *, rng: np.random.Generator, rate: float = 1e-4) -> None:
        self._weights, self._rng = weights, rng
        self._policy = policy_of(weights)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=rate)
        self.net: Net = weights.net
        """The policy as it is now."""
        self.n_updates = 0
        """So far."""
        self._pending: list[_Slot] = []
        self._learned: deque[_Slot] = deque(maxlen=MEMORY)
        n_features = n_inputs(len(weights.models)) + 1
        self._gram, self._aim = RIDGE * np.eye(n_features), np.zeros(n_features)
        self._n_matured, self._square = 0, 0.0
        self._now_s = -np.inf
        self._stopped = False

    def begin(self) -> None:
        """Begin another run: slots whose ends were not seen are forgotten, what was learned stays."""
        self._pending, self._now_s = [], -np.inf

    def decide(self, batch: Batch, snapshot: Snapshot) -> bool:
        """Learn from what has come of earlier slots, and fill the draft of this one; return whether all was finite."""
        if snapshot.now_s > self._now_s:
            self._now_s = snapshot.now_s
            self._follow(snapshot)
        n = int(batch.episode["n_observed"][0])
        most = int(batch.most[0].sum()) + n + 1
        rec = record(1, n_jobs=n, n_features=n_inputs(len(self._weights.models)), actions_per_slot=most)
        sound = decide(batch, 0, self._weights.slot_s, self.net, DRAWS, rec, self._rng)
        self._open(snapshot, rec)
        return sound

    def undo(self) -> None:
        """Forget the newest slot: something else was carried out."""
        if self._pending:
            self._pending.pop()

    def weights(self) -> Weights:
        """Return the policy as it is now, and say that it learned online."""
        source = f"{self._weights.source}; then {self.n_updates} updates online, once per slot, by dl2(learns=True)"
        return replace(self._weights, net=self.net, source=source)

    # --- what has come of a slot

    def _open(self, snapshot: Snapshot, rec: DecisionRecord) -> None:
        jobs = snapshot.jobs.number.copy()
        features = np.column_stack([rec.features[: len(jobs)], np.ones(len(jobs))]).astype(np.float64)
        self._pending.append(_Slot(jobs, features, _Parts(rec, 1).part(0), np.zeros(len(jobs))))

    def _follow(self, snapshot: Snapshot) -> None:
        """Count for how many slots jobs stayed, and learn from the slots that are over."""
        for slot in self._pending:
            slot.n_slots += 1
            slot.stayed += np.isin(slot.jobs, snapshot.jobs.number)
        over = [slot for slot in self._pending if slot.n_slots >= HORIZON or slot.stayed.max() < slot.n_slots]
        if not over:
            return
        gone = {id(slot) for slot in over}
        self._pending = [slot for slot in self._pending if id(slot) not in gone]
        for slot in over:
            self._judge(slot)
        if self._n_matured > WARM_UP and not self._stopped:
            self._update()

    def _judge(self, slot: _Slot) -> None:
        """Return how much sooner the jobs of a slot were gone than the critic predicted; then it learns that, too."""
        predicted = slot.features @ np.linalg.solve(self._gram, self._aim)
        slot.better = float((predicted - slot.stayed).sum())
        self._gram += slot.features.T @ slot.features
        self._aim += slot.features.T @ slot.stayed
        self._n_matured += 1
        if self._n_matured > WARM_UP:
            self._square += slot.better**2
            self._learned.append(slot)

    def _update(self) -> None:
        """Go over the newest slots once; where the loss is not finite, the policy stays as it is from then on."""
        scale = np.sqrt(self._square / max(self._n_matured - WARM_UP, 1)) + 1e-8
        before = copied(self._policy)
        losses = [
            _loss(self._policy, slot.part, slot.better / scale) for slot in self._learned if slot.part is not None
        ]
        if not losses:
            return
        loss = torch.stack(losses).mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._policy.parameters(), 0.5)
        self._optimizer.step()
        net = self._policy.net()
        if not (torch.isfinite(loss) and all(np.isfinite(part).all() for part in net)):
            self._policy.load_state_dict(before)
            self._stopped = True
            warnings.warn(
                f"dl2: the loss of update {self.n_updates + 1} online is not finite; it continues with the weights of "
                f"update {self.n_updates}, and learns no more.", stacklevel=2,
            )  # fmt: skip
            return
        self.net = net
        self.n_updates += 1


def _loss(policy: Policy, part: _Part, better: float) -> torch.Tensor:
    """Return the clipped loss of PPO of one slot's decisions, all of which were that much better."""
    gain = torch.full_like(part.log_chance, float(np.clip(better, -3.0, 3.0)))
    return loss_of(policy, replace(part, better=gain), clip=CLIP)[0]


def policy_of(weights: Weights) -> Policy:
    """Return the network of some weights, to learn on."""
    net = weights.net
    made = Policy(len(weights.models), net.bias.size)
    with torch.no_grad():
        for mine, theirs in (
            (made.seen.weight, net.seen.T), (made.seen.bias, net.bias), (made.middle.weight, net.middle.T),
            (made.middle.bias, net.middle_bias), (made.worth.weight, net.worth.T), (made.worth.bias, net.worth_bias),
            (made.held, net.held[:-1]), (made.stop, net.stop),
        ):  # fmt: skip
            mine.copy_(torch.from_numpy(np.ascontiguousarray(theirs)))
    return made
