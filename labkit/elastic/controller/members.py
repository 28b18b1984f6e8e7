"""The processes of a job as its controller sees them: who is there, who has which block, who computes what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from labkit.core.events import Cause
from labkit.elastic.controller.deaths import RESTARTS, WITHIN_S, Deaths, shortages
from labkit.elastic.controller.placement import MemberPlacement, fewest
from labkit.elastic.controller.shard_balance import ShardBalance
from labkit.elastic.process.causes import told
from labkit.elastic.protocol.commands import HERE, Command, Role, Start, Tell


@dataclass(frozen=True, slots=True)
class JobTerms:
    """What a job is, as far as the controller needs to know.

    Attributes
    ----------
    sizes : sequence of int
        Parameters of each block.
    n_shards : int
        V, logical shards of a batch.
    n_steps : int
        Of the whole training.
    save_every : int
        Steps between two checkpoints; 0: none but the last state.
    restarts, restarts_within_s : int, float
        Processes that may die and be replaced within so many seconds and without a step forward; see `Deaths`.
    standby : bool
        Whether every block is followed by another server than its owner.
    sync : bool
        Whether all workers make an update together; else each makes its own, with samples that it has leased.
    n_samples, batch, seed, lease_s
        Of asynchronous training: the dataset, samples of an update, the order, and how long a lease lasts.
    sites : mapping
        The host of each site where members may sit.
    tensors : sequence of int
        Of each block the parameter that it belongs to, if servers are to have whole ones at first; else empty.
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
    """A process of the job."""

    name: str
    role: Role
    address: str = ""
    joined: bool = False
    ready: bool = False
    leaving: bool = False
    version: int = 0
    begun: bool = False
    """Whether it was given parameters and leaves of this era."""
    told: bool = False
    """Whether it has told a new controller what it has."""
    came: bool = False
    """Whether it has ever joined, this controller or one before: else it is still starting."""
    site: str = HERE


def left(
    member: Member, *, expected: bool, reason: str, cause: Cause = Cause.UNKNOWN, code: int | None = None
) -> dict[str, Any]:
    """Return the columns of the event that a member is gone; the cause is null where it was to go."""
    why = {"reason": reason, "cause": None if expected else told(cause), "code": code}
    return {"name": member.name, "role": member.role, "expected": expected, **why}


class Reassign(Protocol):
    """From owners, sizes and the servers there will be to owners: few bytes move, and loads are level."""

    def __call__(
        self,
        owner: Mapping[int, str],
        sizes: Sequence[int],
        servers: Sequence[str],
        /,
        *,
        load: Sequence[float] | None = None,
    ) -> dict[int, str]:
        """Return the server of each block; `load` is what each costs its server, without it its size."""
        ...


class MemberTable:
    """Who is there, and what has been told to whom; the base of the controller.

    Parameters
    ----------
    terms : JobTerms
        Of the job.
    reassign : callable
        See `Reassign`; with no owners at all it makes the first assignment.
    """

    def __init__(self, terms: JobTerms, *, reassign: Reassign) -> None:
        self.terms, self._reassign = terms, reassign
        self.members: dict[str, Member] = {}
        self.owner: dict[int, str] = {}
        self.moves: dict[int, int] = {}
        self.era = 0
        self.phase = "starting"
        self.progress = 0
        self.deaths = Deaths(restarts=terms.restarts, within_s=terms.restarts_within_s)
        self.shortages = shortages(terms.restarts_within_s)
        """Of memory: they are no crashes."""
        self.now_s = 0.0
        """When what it is told now happens; whoever tells it has a clock."""
        self._numbers = {"server": 0, "worker": 0}
        self.load: list[float] | None = None
        """Of each block, as it was measured when blocks were last balanced; None: they never were."""
        self._claimed: set[int] = set()
        """Blocks of which a controller that takes over has heard."""
        self.lost: set[str] = set()
        """Hosts that are gone."""
        self._speeds = ShardBalance()
        self._out: list[Command] = []

    def of(self, role: Role) -> list[Member]:
        """Return the members of a role that stay, oldest first."""
        return [m for m in self.members.values() if m.role == role and not m.leaving]

    def _launch(self, role: Role, site: str) -> str:
        name = f"{'ps' if role == 'server' else 'worker'}-{self._numbers[role]}"
        self._numbers[role] += 1
        self.members[name] = Member(name, role, site=site)
        self._out.append(Start(name, role, site))
        return name

    def _reserve(self, names: Iterable[str]) -> None:
        """Give none of these names to anybody any more."""
        for name in names:
            kind, _, number = name.rpartition("-")
            role = {"ps": "server", "worker": "worker"}.get(kind)
            if role is not None and number.isdigit():
                self._numbers[role] = max(self._numbers[role], int(number) + 1)

    def _sites(self) -> list[str]:
        """Return the sites of hosts that are there."""
        return [site for site, host in self.terms.sites.items() if host not in self.lost]

    def _site_for(self, role: Role, *, rather: str = "") -> str:
        """Return where somebody may sit: there if possible, else where the fewest of a role are."""
        sites = self._sites()
        return rather if rather in sites else fewest(Counter(m.site for m in self.of(role)), sites)

    def _sitting(self) -> list[MemberPlacement]:
        return [MemberPlacement(m.name, m.role, m.site) for m in (*self.of("server"), *self.of("worker"))]

    def _introduce(self, member: Member) -> None:
        """Let a newcomer and the servers connect, before anything depends on it."""
        for other in self.members.values():
            if other is not member and other.joined:
                if member.role == "server":
                    self._tell(other.name, do="meet", name=member.name, address=member.address)
                if other.role == "server":
                    self._tell(member.name, do="meet", name=other.name, address=other.address)

    def _tell(self, to: str, **what: Any) -> None:
        self._out.append(Tell(to, what))

    def _tell_workers(self, **what: Any) -> None:
        for worker in self.members.values():
            if worker.role == "worker" and worker.joined:
                self._tell(worker.name, **what)

    def _dealt(self, workers: Sequence[str]) -> dict[str, tuple[int, int]]:
        return self._speeds.dealt(workers, n_shards=self.terms.n_shards)

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Return the logical shards of each worker."""
        return self._dealt([m.name for m in self.of("worker") if m.joined])

    def _deal(self, *, only_ready: bool = True) -> None:
        """Deal the logical shards anew; workers that are not ready yet get theirs later."""
        if not self.terms.sync:
            return
        workers = [m.name for m in self.of("worker") if m.joined and (m.begun or not only_ready)]
        for member in self.members.values():
            if member.role == "worker" and member.joined and member.name not in workers:
                self._tell(member.name, do="deal", leaves=(0, 0))
        for name, leaves in self._dealt(workers).items():
            self._tell(name, do="deal", leaves=leaves)

    def _n_begun(self) -> int:
        return sum(m.begun for m in self.of("worker"))

    def _map(self) -> list[list[Any]]:
        return [[block, owner, self.moves[block]] for block, owner in self.owner.items()]

    def _n_ready(self) -> int:
        return sum(m.ready for m in self.of("worker"))

    def _go_on(self) -> None:
        """Do the next thing that is due."""
        raise NotImplementedError

    def _end(self, failure: str, *, cause: Cause = Cause.ERROR) -> None:
        """End the job."""
        raise NotImplementedError

    def _cut_off(self, name: str, why: str, *, cause: Cause = Cause.UNREACHABLE) -> None:
        """End somebody at once who cannot be reached, or cannot reach others, and go on without."""
        raise NotImplementedError

    def _taken(self) -> list[Command]:
        out, self._out = self._out, []
        return out
