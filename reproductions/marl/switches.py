"""The switches of MARL as published: one for each part that the text leaves open, or that one may leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from labkit.core.errors import InputError
from reproductions.marl.graphs import AGENTS, HEADS, LEVELS, Form, Graphs
from reproductions.switches import refuse_beyond, refuse_unknown

REWARDS: Final = ("own", "speed", "pod", "all")


@dataclass(frozen=True, slots=True)
class Published:
    """How MARL's own networks are made and trained; sections are those of the text [1]_.

    Attributes
    ----------
    level, agents, head, current_first, n_jobs, width, n_state
        As in `reproductions.marl.graphs.Form`.
    shared : bool
        All schedulers have the same weights, which learn from what all of them did; False: each has its own, as the
        text has it.
    n_epochs : int
        Traces that it is trained on, one after the other.
    discount : float
        gamma, from one task to the next (sec. IV-C). The text's value is lost; 0.99 is that of the authors' DL2.
    rate : float
        Of Adam. The text's value is lost; 1e-4 is that of the authors' DL2.
    entropy : float
        Weight of the entropy in the loss. The text does not mention one; 0.1 is that of the authors' DL2.
    reward : str
        What a task is worth: the progress of its job in the interval ("own", as the text has it), that over what the
        job would have made alone by its declared duration ("speed", 0 to about 1, however long the job is), the mean
        progress of all jobs that run in the pod then ("pod"), or in the cluster ("all").
    room_elsewhere : bool
        Forward only to schedulers whose pods may hold the gang.
    clip : float
        Largest norm of a gradient; 0: as large as it is, as in the text.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", IEEE TNSM 2021.

    Examples
    --------
    >>> Published(level="server", agents="one").n_epochs
    100
    """

    level: str = "device"
    agents: str = "many"
    head: str = "equivariant"
    current_first: bool = True
    n_jobs: int = 32
    width: int = 16
    n_state: int = 32
    shared: bool = True
    n_epochs: int = 100
    discount: float = 0.99
    rate: float = 1e-4
    entropy: float = 0.1
    reward: str = "own"
    room_elsewhere: bool = True
    clip: float = 0.0

    def __post_init__(self) -> None:
        refuse_unknown(self, level=LEVELS, agents=AGENTS, head=HEADS, reward=REWARDS)
        refuse_beyond(self, ("n_jobs", "width", "n_state"), lambda x: x >= 1, "a whole number >= 1")
        refuse_beyond(self, ("n_epochs", "entropy", "clip"), lambda x: x >= 0, "a number >= 0")
        refuse_beyond(self, ("discount",), lambda x: 0 <= x <= 1, "a number from 0 to 1")
        refuse_beyond(self, ("rate",), lambda x: x > 0, "a learning rate > 0")

    def form(self, models: tuple[str, ...], graphs: Graphs) -> Form:
        """Return the form of networks for some models and the schedulers of a cluster.

        Raises
        ------
        InputError
            If the head is flat, and pods are of several sizes.
        """
        places = sorted({graph.n_places for graph in graphs.inner})
        flat = self.head == "flat"
        if flat and len(places) > 1:
            raise InputError(f"head is flat, and pods have {places[0]} to {places[-1]} places; take head=equivariant.")
        return Form(
            models=models, n_jobs=self.n_jobs, level=self.level, agents=self.agents, head=self.head,
            current_first=self.current_first, width=self.width, n_state=self.n_state,
            n_places=places[0] if flat else 0, n_agents=graphs.n_agents if flat else 0,
        )  # fmt: skip
