"""What an agent of MARL as published sees and may do, and how large its network is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from labkit.core.errors import InputError, unknown
from labkit.schedulers.marl.published.graphs import AGENTS, LEVELS

N_KINDS: Final = 2
"""R: GPUs and cores are told of; memory is not."""
HEADS: Final = ("equivariant", "flat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of a network; sections are those of the text [1]_, widths that it does not give are our choice.

    Attributes
    ----------
    models : tuple of str
        (M,) names of models that it tells apart.
    n_jobs : int
        J: jobs of a scheduler that are seen at once, the one that is placed among them; later ones are not seen.
    level : str
        "device": a task goes to a group of GPUs; "server": to a server, there to a group at random (sec. VI-A).
    agents : str
        "many": one for each pod; "one": one for the whole cluster, without an inter graph (sec. VI-E).
    head : str
        "equivariant": each place and each scheduler has its score from its own embedding, by weights that all share,
        so that they fit pods of any size. "flat": embeddings of all places side by side go into the encoder, and each
        action has weights of its own, as the text literally says: for `n_places` and `n_agents` alone.
    current_first : bool
        The job that is placed is the first of the J; False: all by arrival, and nothing tells which of them it is (C
        has its model and demand alone).
    n_places, n_agents : int
        P and N that a flat head is for; 0: of an equivariant one.
    inner_layers, inter_layers : int
        4 and 2 (sec. VI-A).
    width, n_state, n_encoder, n_hidden : int
        Of an inner layer; of the encoder's outcome and an inter layer; hidden units of the encoder, and of actor and
        critic: 128 (sec. VI-A).

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. IV.
    """

    models: tuple[str, ...]
    n_jobs: int = 32
    level: str = "device"
    agents: str = "many"
    head: str = "equivariant"
    current_first: bool = True
    n_places: int = 0
    n_agents: int = 0
    inner_layers: int = 4
    inter_layers: int = 2
    width: int = 16
    n_state: int = 32
    n_encoder: int = 128
    n_hidden: int = 128

    def __post_init__(self) -> None:
        for name, known in (("level", LEVELS), ("agents", AGENTS), ("head", HEADS)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        for name, least in (("n_jobs", 1), ("inner_layers", 1), ("inter_layers", 0), ("width", 1), ("n_state", 1),
                            ("n_encoder", 1), ("n_hidden", 1)):  # fmt: skip
            if not getattr(self, name) >= least:
                raise InputError(f"{name} is {getattr(self, name)}; expected a whole number >= {least}.")

    @property
    def n_node(self) -> int:
        """Numbers of a node, R + 2 J."""
        return N_KINDS + 2 * self.n_jobs

    @property
    def n_task(self) -> int:
        """Numbers of C, M + R + 2."""
        return len(self.models) + N_KINDS + 2

    @property
    def n_demand(self) -> int:
        """Numbers of a row of D, 2 R + 2."""
        return 2 * N_KINDS + 2

    @property
    def n_seen(self) -> int:
        """Numbers of an observation, which the encoder takes."""
        embedded = self.width * (self.n_places if self.head == "flat" else 2)
        return self.n_jobs * (len(self.models) + self.n_demand) + embedded + self.n_task

    @property
    def n_layers_of_state(self) -> int:
        """Parts of the state: the encoder's outcome, and each inter layer's; one agent has no inter graph."""
        return 1 + (self.inter_layers if self.agents == "many" else 0)

    @property
    def n_whole(self) -> int:
        """Numbers of the state s = h0 || h1 || h2."""
        return self.n_state * self.n_layers_of_state
