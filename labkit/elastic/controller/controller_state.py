"""State that all parts of the controller share: the job's terms, its members, and the owner of each block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from labkit.core.events import Cause
from labkit.elastic.controller.deaths import RESTARTS, WITHIN_S
from labkit.elastic.controller.placement import MemberPlacement, fewest
from labkit.elastic.process.causes import name_of
from labkit.elastic.protocol.messages.orders import OwnedBlock
from labkit.elastic.protocol.roles import HERE, Role

JobPhase = Literal["starting", "restoring", "loading", "training", "taking_over", "over"]


@dataclass(frozen=True, slots=True)
class JobTerms:
    """Constants of a job that the controller needs.

    Attributes
    ----------
    sizes : sequence of int
        Parameters of each block.
    n_shards : int
        V, logical shards of a batch.
    n_steps : int
        Updates of the whole training.
    save_every : int
        Steps between two checkpoints; 0: only the last state is saved.
    restarts, restarts_within_s : int, float
        Processes that may die and be replaced within so many seconds and without a step forward; see `Deaths`.
    standby : bool
        Whether every block has a replica on another server than its owner.
    sync : bool
        Whether all workers make an update together; else each makes its own, from samples that it has leased.
    n_samples, batch, seed, lease_s
        Of asynchronous training: samples in the dataset, samples of an update, seed of their order, seconds of a lease.
    sites : mapping
        The host of each site where members may run.
    tensors : sequence of int
        The parameter that each block belongs to, if servers are to start with whole parameters; else empty.
    """

    sizes: Sequence[int]
    n_shards: int
    n_steps: int
    save_every: int = 0
    restarts: int = RESTARTS
    restarts_within_s: float = WITHIN_S
    standby: bool = False
    sync: bool = True
    n_samples: int = 0
    batch: int = 1
    seed: int = 0
    lease_s: float = 3.0
    sites: Mapping[str, str] = field(default_factory=lambda: {HERE: HERE})
    tensors: Sequence[int] = ()


@dataclass(slots=True)
class Member:
    """A server or worker process of the job.

    Attributes
    ----------
    joined : bool
        Whether it has connected to this controller.
    ready : bool
        Whether it has the parameters (worker) or blocks (server) of the current era.
    leaving : bool
        Whether it has been ordered to end.
    version : int
        Latest version of the parameters that it has reported.
    begun : bool
        Whether a worker has been given parameters and logical shards in the current era.
    reported : bool
        Whether it has reported what it has to a controller that took over.
    ever_joined : bool
        Whether it has ever joined this controller or an earlier one; else it is still starting.
    site : str
        Where it runs.
    """

    name: str
    role: Role
    address: str = ""
    joined: bool = False
    ready: bool = False
    leaving: bool = False
    version: int = 0
    begun: bool = False
    reported: bool = False
    ever_joined: bool = False
    site: str = HERE


def leave_columns(
    member: Member, *, expected: bool, reason: str, cause: Cause = Cause.UNKNOWN, code: int | None = None
) -> dict[str, Any]:
    """Return the columns of the event that a member has ended; the cause is null if it had been ordered to end."""
    why = {"reason": reason, "cause": None if expected else name_of(cause), "code": code}
    return {"name": member.name, "role": member.role, "expected": expected, **why}


class Reassign(Protocol):
    """Assigns blocks to servers, given their present owners: it moves few bytes and keeps loads level."""

    def __call__(
        self,
        owner: Mapping[int, str],
        sizes: Sequence[int],
        servers: Sequence[str],
        /,
        *,
        load: Sequence[float] | None = None,
    ) -> dict[int, str]:
        """Return the server of each block; `load` is what each costs its server, by default its size."""
        ...


class ControllerState:
    """Members, block owners and progress of a job.

    Attributes
    ----------
    terms : JobTerms
        Constants of the job.
    members : dict
        Members by name, oldest first.
    owner : dict
        Server of each block; empty before the first load.
    moves : dict
        How often each block has changed its owner in this era: of two claims to a block, the higher number is newer.
    claimed : set of int
        Blocks that a server has reported to hold since this controller took over.
    load : list of float, optional
        Gradient traffic of each block, as measured when blocks were last balanced; None: never measured.
    era : int
        Number of the current load of a checkpoint. Reports of another era are ignored.
    phase : str
        "starting", "restoring", "loading", "training", "taking_over" or "over".
    progress : int
        Latest update that a worker has completed.
    lost : set of str
        Hosts that are lost.
    now_s : float
        Time of the event that is being handled, on the clock of the caller.
    numbers : dict
        Number of the next member of each role.
    """

    def __init__(self, terms: JobTerms) -> None:
        self.terms = terms
        self.members: dict[str, Member] = {}
        self.owner: dict[int, str] = {}
        self.moves: dict[int, int] = {}
        self.claimed: set[int] = set()
        self.load: list[float] | None = None
        self.era = 0
        self.phase: JobPhase = "starting"
        self.progress = 0
        self.lost: set[str] = set()
        self.now_s = 0.0
        self.numbers = {"server": 0, "worker": 0}

    # --- members

    def of(self, role: Role) -> list[Member]:
        """Return the members of a role that are not leaving, oldest first."""
        return [m for m in self.members.values() if m.role == role and not m.leaving]

    def add_member(self, role: Role, site: str) -> Member:
        """Enter a new member under the next free name of its role."""
        name = f"{'ps' if role == 'server' else 'worker'}-{self.numbers[role]}"
        self.numbers[role] += 1
        self.members[name] = Member(name, role, site=site)
        return self.members[name]

    def reserve(self, names: Iterable[str]) -> None:
        """Exclude these names from use by new members."""
        for name in names:
            kind, _, number = name.rpartition("-")
            role = {"ps": "server", "worker": "worker"}.get(kind)
            if role is not None and number.isdigit():
                self.numbers[role] = max(self.numbers[role], int(number) + 1)

    def n_begun(self) -> int:
        """Return how many workers have parameters and logical shards of this era."""
        return sum(m.begun for m in self.of("worker"))

    def n_ready(self) -> int:
        """Return how many workers have reported that they have parameters of this era."""
        return sum(m.ready for m in self.of("worker"))

    def is_new(self) -> bool:
        """Tell whether all first members have joined, but not all workers have their parameters yet."""
        complete = sum(self.numbers.values()) == len(self.members) and all(m.ever_joined for m in self.members.values())
        return complete and self.n_ready() < len(self.of("worker"))

    # --- sites

    def sites(self) -> list[str]:
        """Return the sites on hosts that are not lost."""
        return [site for site, host in self.terms.sites.items() if host not in self.lost]

    def site_for(self, role: Role, *, preferred: str = "") -> str:
        """Return the preferred site if its host is not lost, else the one with the fewest members of the role."""
        sites = self.sites()
        return preferred if preferred in sites else fewest(Counter(m.site for m in self.of(role)), sites)

    def placements(self) -> list[MemberPlacement]:
        """Return the site of each member that is not leaving, servers first."""
        return [MemberPlacement(m.name, m.role, m.site) for m in (*self.of("server"), *self.of("worker"))]

    # --- blocks

    def owned_blocks(self) -> list[OwnedBlock]:
        """Return each block with its owner and moves, as orders have it."""
        return [OwnedBlock(block, owner, self.moves[block]) for block, owner in self.owner.items()]

    def limited_to_blocks(self, servers: Iterable[str]) -> list[str]:
        """Return the servers that can have blocks: after failures there may be more servers than blocks."""
        return list(servers)[: len(self.terms.sizes)]
