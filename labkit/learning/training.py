"""What all trainers have in common: updates one by one, and a state from which they go on."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from labkit.core.errors import InputError, LabkitError

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Update:
    """What came of an update.

    Attributes
    ----------
    kind : str
        "lesson" or "round".
    number : int
        How many there were before.
    slots : int
        Slots that were decided in training so far.
    mean_jct : float
        Of its episodes, in slots.
    loss, entropy : float
        Of the last part of its last epoch.
    cpu_s : float
        Processor time of training so far, in seconds.
    """

    kind: str
    number: int
    slots: int
    mean_jct: float
    loss: float
    entropy: float
    cpu_s: float


class TrainingDivergedError(LabkitError):
    """A loss was not finite; the policy is as it was before that update."""


class SavableWeights(Protocol):
    """Weights that can be written."""

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""


class Trains(Protocol):
    """What trains a policy, here or on several clusters."""

    n_done: int
    slots: int

    @property
    def n_updates(self) -> int:
        """How many updates there are in all."""

    def updates(self) -> Iterator[Update]:
        """Yield what came of each update that is left; after each, `state` is worth keeping."""

    def weights(self, source: str) -> SavableWeights:
        """Return the policy as it is, for a scheduler."""

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, for `torch.save`."""

    def go_on(self, state: dict[str, Any]) -> Self:
        """Go on from a state."""


class Training(ABC):
    """A trainer in one process.

    Attributes
    ----------
    n_done, slots : int
        Updates, and slots that it learned from, so far.
    cpu_s : float
        Processor time so far, in seconds.
    """

    n_done: int = 0
    slots: int = 0
    cpu_s: float = 0.0
    _rng: np.random.Generator

    @property
    @abstractmethod
    def n_updates(self) -> int:
        """How many updates there are in all."""

    @abstractmethod
    def _update(self) -> tuple[str, float, float, float]:
        """Learn, and count slots; return the kind of the update, the mean JCT in slots, the loss and the entropy."""

    @abstractmethod
    def _asked(self) -> dict[str, Any]:
        """Return what makes it this training and no other."""

    @abstractmethod
    def _learned(self) -> dict[str, Any]:
        """Return what it learned so far, for `torch.save`."""

    @abstractmethod
    def _relearn(self, learned: dict[str, Any]) -> None:
        """Take what a training like this one had learned."""

    def updates(self) -> Iterator[Update]:
        """Yield what came of each update that is left; after each, `state` is worth keeping."""
        while self.n_done < self.n_updates:
            yield self.update()

    def update(self) -> Update:
        """Learn from fresh episodes.

        Raises
        ------
        TrainingDivergedError
            If a loss was not finite; the policy is as it was before.
        InputError
            If a teacher cannot run a trace.
        """
        began_s, k = time.process_time(), self.n_done
        kind, mean_jct, loss, entropy = self._update()
        self.n_done += 1
        self.cpu_s += time.process_time() - began_s
        return Update(kind, k, self.slots, mean_jct, loss, entropy, self.cpu_s)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, for `torch.save`."""
        return {
            "asked": self._asked(), "n_done": self.n_done, "slots": self.slots, "cpu_s": self.cpu_s,
            "rng": self._rng.bit_generator.state, "learned": self._learned(),
        }  # fmt: skip

    def go_on(self, state: dict[str, Any]) -> Self:
        """Go on from a state.

        Raises
        ------
        InputError
            If it is that of another training.
        """
        refuse_other(state.get("asked", {}), expected=self._asked())
        self._relearn(state["learned"])
        self._rng.bit_generator.state = state["rng"]
        self.n_done, self.slots, self.cpu_s = state["n_done"], state["slots"], state["cpu_s"]
        return self


def refuse_other(asked: Mapping[str, Any], *, expected: Mapping[str, Any]) -> None:
    """Raise if a training to go on with is not the one that is expected.

    Raises
    ------
    InputError
        It names the first thing that differs.
    """
    for name, value in expected.items():
        if asked.get(name) == value:
            continue
        if name not in asked:
            raise InputError(
                f"the training to go on with is that of another kind of policy: it tells no {name}. Give it the same "
                "options, or another file."
            )
        raise InputError(
            f"the training to go on with has {name} {asked[name]!r:.80}; expected {value!r:.80}. "
            "Give it the same options, or another file."
        )


def copied(policy: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a network as they are now."""
    return {name: value.clone() for name, value in policy.state_dict().items()}


def refuse_not_finite(
    policy: nn.Module, before: dict[str, Tensor], *, loss: float, mean_jct: float, n_done: int
) -> None:
    """Raise, with the weights as they were before, unless an update gave numbers.

    Raises
    ------
    TrainingDivergedError
        It names the update and the loss.
    """
    if not (np.isfinite(loss) and np.isfinite(mean_jct)):
        policy.load_state_dict(before)
        raise TrainingDivergedError(
            f"the loss of update {n_done + 1} is {loss}; the weights are those of update {n_done}."
        )
