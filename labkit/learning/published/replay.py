"""Experience replay: samples of latest slots, of which an update draws some (sec. 4.3)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Floats
from labkit.schedulers.dl2.flat.form import Form
from labkit.schedulers.dl2.flat.slots import SlotSamples

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
    """The latest samples, N at most; all are as likely to be drawn.

    Attributes
    ----------
    columns : dict of str to array
        state, next (N, J, F); mask (N, A); chance (N, A); action (N,); behaviour, reward (N,); over (N,) whether
        nothing came after the slot.
    """

    def __init__(self, n: int, form: Form) -> None:
        of_jobs = n, form.n_jobs, form.n_features
        self.columns: dict[str, NDArray[Any]] = {
            "state": np.zeros(of_jobs, np.float32), "next": np.zeros(of_jobs, np.float32),
            "mask": np.zeros((n, form.n_actions), np.bool_), "chance": np.zeros((n, form.n_actions), np.float32),
            "action": np.zeros(n, np.int64), "behaviour": np.zeros(n, np.float32), "reward": np.zeros(n, np.float32),
            "over": np.zeros(n, np.bool_),
        }  # fmt: skip
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
