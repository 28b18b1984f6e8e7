"""The switches of DL2 as published: one for each part of its design, and for what its released code does otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from labkit.core.errors import InputError
from reproductions.dl2.policy import Form
from reproductions.switches import refuse_beyond, refuse_unknown

RULES: Final = ("paper", "released")
LOSSES: Final = ("cross_entropy", "mean_square", "absolute")
REWARDS: Final = ("slot", "job")


@dataclass(frozen=True, slots=True)
class Published:
    """How DL2's own network is made and trained; sections are those of the paper [1]_.

    Attributes
    ----------
    rules : str
        "paper", or "released": state, masks, placement, exploration and order of the released code (see `Form`).
    n_jobs, n_units, n_layers : int
        J jobs that are seen at once; units of a layer, and layers (sec. 4.1, 6.2).
    all_reduce : bool
        J + 1 actions, for jobs without parameter servers (sec. 7).
    first_bundle : bool
        Each job has a worker and a parameter server before the network is asked; the paper does not say so, the
        released code does it.
    scaled : bool
        The state is brought to about 1; neither the paper nor the released code does it.
    warm_up : str
        The scheduler that is imitated first (sec. 4.2), with options in its name; "": none.
    n_taught, n_lessons : int
        Traces that it is watched on, and hundreds of mini-batches of what it did.
    sl_loss, sl_rate : str, float
        "cross_entropy", "mean_square" or "absolute" (sec. 6.5), and the rate of Adam.
    apart, voids, shuffled : bool
        Of what a teacher did: a worker and a parameter server are two actions in place of one; what it left free is
        learned as void; rows of a state stand in any order. The released code: True, False, True.
    n_rounds : int
        Traces of reinforcement learning, with one update after each slot (sec. 4.3).
    rate, batch : float, int
        The rate of Adam, and samples of an update.
    discount : float
        Of the value of the next slot; 0: none, as in the released code, whose discount factor is never used.
    entropy : float
        Weight of the entropy in the loss. 0: none.
    exploration : float
        Chance of the better action in a poor state (job-aware exploration). 0: none; by the released code's rules, all
        that is above 0 is the same.
    replay : int
        Samples of latest slots from which those of an update are drawn; 0: all of the last slot, and no others.
    actor_critic : bool
        Rewards are compared with a value network's; False: with their moving average.
    critic_first : int
        Updates in which the value network learns alone: as long as it expects too little of a policy that was warmed
        up, whatever that one does looks better than expected. The paper says nothing of it; the released code has a
        constant for it that has no effect.
    reward : str
        "slot": eq. 1 of all jobs, for all actions of a slot. "job": of the action's job alone (sec. 6.5).
    fairness : float
        Weight in a slot's reward of how evenly the slot's dominant shares are given to the jobs that are there: Jain's
        index, 1/J to 1. 0: none. Section 7 leaves open which term it is.
    speed_error, epoch_error : float
        In training, jobs are faster or slower, and longer or shorter than declared, each by up to this fraction
        (sec. 6.4).
    n_types, type_every : int
        Jobs of the first so many models alone, the warm-up included, and of two more each time after so many slots
        (sec. 6.4). 0: of all from the beginning.
    clusters : int
        Learn on so many clusters at once; what they learned is averaged after each trace (sec. 6.5, "Federated
        training"). See `reproductions.dl2.federated`.
    corrected : bool
        Samples of older policies count by the ratio of chances, at most 1; not in the paper.
    prioritised : bool
        Samples of larger errors are replayed more often, and none before the memory is full, as in the released code.
    stale : bool
        Gradients are taken at the chances of the time of the action, as in the released code, not at those of now.
    mean_entropy : bool
        The entropy is a mean over actions, as in the released code, not a sum: 3 J + 1 times as small.

    References
    ----------
    .. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021.

    Examples
    --------
    >>> Published(warm_up="srtf", actor_critic=False).form(8).n_actions
    121
    >>> Published.released().form(8).n_features
    6
    """

    rules: str = "paper"
    n_jobs: int = 40
    n_units: int = 256
    n_layers: int = 2
    all_reduce: bool = False
    first_bundle: bool = False
    scaled: bool = True
    warm_up: str = "drf"
    n_taught: int = 40
    n_lessons: int = 30
    sl_loss: str = "cross_entropy"
    sl_rate: float = 5e-3
    apart: bool = False
    voids: bool = True
    shuffled: bool = False
    n_rounds: int = 100
    rate: float = 1e-4
    batch: int = 256
    discount: float = 0.9
    entropy: float = 0.1
    exploration: float = 0.4
    replay: int = 8192
    actor_critic: bool = True
    critic_first: int = 0
    reward: str = "slot"
    fairness: float = 0.0
    speed_error: float = 0.0
    epoch_error: float = 0.0
    n_types: int = 0
    type_every: int = 1000
    clusters: int = 1
    corrected: bool = False
    prioritised: bool = False
    stale: bool = False
    mean_entropy: bool = False

    def __post_init__(self) -> None:
        refuse_unknown(self, rules=RULES, sl_loss=LOSSES, reward=REWARDS)
        counts = "n_jobs", "n_units", "n_layers", "batch", "type_every", "clusters"
        amounts = "n_taught", "n_lessons", "n_rounds", "replay", "critic_first", "entropy", "fairness", "n_types"
        refuse_beyond(self, counts, lambda x: x >= 1, "a whole number >= 1")
        refuse_beyond(self, amounts, lambda x: x >= 0, "a number >= 0")
        refuse_beyond(self, ("discount", "exploration"), lambda x: 0 <= x <= 1, "a number from 0 to 1")
        refuse_beyond(self, ("speed_error", "epoch_error"), lambda x: 0 <= x < 1, "a fraction from 0 to below 1")
        refuse_beyond(self, ("rate", "sl_rate"), lambda x: x > 0, "a learning rate > 0")
        if self.prioritised and not self.replay:
            raise InputError("prioritised is True, and replay is 0; expected samples to replay, such as replay=8192.")

    @classmethod
    def released(cls, **changes: Any) -> Self:
        """Return what the released code does, with changes; facts: parameters.py, rl_env.py, train.py at 2e54920."""
        n_jobs = changes.get("n_jobs", 20)
        given: dict[str, Any] = {
            "rules": "released", "n_jobs": n_jobs, "n_units": 6 * n_jobs * 2 // 3, "first_bundle": True,
            "scaled": False, "warm_up": "drf(published=True)", "apart": True, "voids": False, "shuffled": True,
            "discount": 0.0, "prioritised": True, "stale": True, "mean_entropy": True,
        }  # fmt: skip
        return cls(**given | changes)

    def n_known(self, slots: int) -> int | None:
        """Return of how many models there are jobs after some slots of learning; None: of all.

        >>> [Published(n_types=4).n_known(slots) for slots in (0, 999, 1000, 2000)]
        [4, 4, 6, 8]
        """
        return self.n_types + 2 * (slots // self.type_every) if self.n_types else None

    @property
    def n_of_kind(self) -> tuple[int, int]:
        """How many lessons and rounds there are; without a teacher, no lessons."""
        return self.n_lessons if self.warm_up else 0, self.n_rounds

    def form(self, n_models: int) -> Form:
        """Return what a network for L models sees and may do."""
        return Form(self.rules == "released", self.n_jobs, n_models, self.all_reduce, self.first_bundle, self.scaled)
