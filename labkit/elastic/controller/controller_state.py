"""State of the controller: members, their deaths, owners of blocks; its commands, and its form for a successor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from labkit.core.errors import InputError, unknown
from labkit.core.events import Cause
from labkit.elastic.process.causes import RESTARTS, WITHIN_S, name_of
from labkit.elastic.protocol.messages.orders import Order, OwnedBlock, Replica, WorkerOrder
from labkit.elastic.protocol.messages.struct import HERE, Count, Number, Role, Struct, Text
from labkit.elastic.protocol.sites import JobPlacement, MemberPlacement, fewest
from labkit.elastic.shards import SavedShards

SHORTAGES: Final = 10
"""Processes that may run out of memory within the same time and without progress, while their limit is unchanged."""


def check_restarts(restarts: int, within_s: float) -> None:
    """Raise InputError unless `restarts` is a whole number, 0 or more, and `within_s` above 0."""
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise InputError(f"restarts is {restarts!r}; expected a whole number, 0 or more.")
    if not within_s > 0:
        raise InputError(f"restarts_within_s is {within_s!r}; expected seconds above 0.")


@dataclass(frozen=True, slots=True)
class Death(Struct):
    """The death of a process, or of all processes of a host at once."""

    what: str
    """Name of the process, and how it ended."""
    when_s: Number
    """Time, on the clock of the controller's machine."""
    furthest: Count
    """Updates that were complete until then, at most."""
    joined: bool
    """Whether the process had ever joined the job."""


class Deaths:
    """Recent deaths since which training has made no progress.

    Progress does not cancel the death of a process that had never joined; it counts until another process joins.

    Parameters
    ----------
    restarts : int
        Deaths that a job survives.
    within_s : float
        Seconds for which a death counts.
    how : str
        What the processes did, for the message.
    remedy : str
        What was exceeded, or what can be done, for the message.
    """

    def __init__(
        self, *, restarts: int = RESTARTS, within_s: float = WITHIN_S, how: str = "died", remedy: str = ""
    ) -> None:
        self._restarts, self._within_s, self._how = restarts, within_s, how
        self._remedy = remedy or f"more than restarts={restarts}."
        self._known: list[Death] = []
        self._furthest = 0

    def reached(self, step: int) -> None:
        """Note how many updates are complete."""
        self._furthest = max(self._furthest, step)

    def forgive(self) -> None:
        """Forget all deaths: their reason has been removed."""
        self._known.clear()

    def joined(self) -> None:
        """Note that a process has joined."""
        self._known = [death for death in self._known if death.joined]

    def note(self, what: str, *, now_s: float, joined: bool) -> str:
        """Note a death; return why the job must end, or an empty string if it goes on.

        Examples
        --------
        >>> deaths = Deaths(restarts=1, within_s=60)
        >>> deaths.note("ps-0 (exit code -9)", now_s=0.0, joined=True)
        ''
        >>> deaths.note("ps-1 (exit code -9)", now_s=1.0, joined=True)[:63]
        '2 processes died within 60 s without a step forward, the last o'
        """
        self._known = [death for death in self._known if self._counts(death, now_s)]
        self._known.append(Death(what, now_s, self._furthest, joined))
        n = len(self._known)
        if n <= self._restarts:
            return ""
        return (
            f"{n} process{'es' * (n > 1)} {self._how} within {self._within_s:g} s without a step forward, the last of "
            f"them {what}; {self._remedy}"
        )

    def _counts(self, death: Death, now_s: float) -> bool:
        stuck = not death.joined or death.furthest >= self._furthest
        return stuck and now_s - death.when_s < self._within_s

    def state(self) -> tuple[Death, ...]:
        """Return the state for a controller that takes over."""
        return tuple(self._known)

    def take_over(self, deaths: Iterable[Death]) -> None:
        """Restore what `state` returned."""
        self._known = list(deaths)
        self._furthest = max((death.furthest for death in self._known), default=0)


def shortages(within_s: float) -> Deaths:
    """Return a limit on processes that run out of memory, which do not count towards `restarts`.

    >>> shortages(60.0).note("ps-1", now_s=0.0, joined=True)
    ''
    """
    remedy = "give them more memory (Job.resize), or spread the blocks over more servers."
    return Deaths(restarts=SHORTAGES, within_s=within_s, how="ran out of memory", remedy=remedy)


Strategy = Literal["handover", "suspend", "checkpoint"]
"""Blocks move while training goes on, or while workers pause; or all members restart from a checkpoint."""

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)


def checked_strategy(name: str) -> Strategy:
    """Return the strategy of this name; InputError if there is none."""
    for strategy in STRATEGIES:
        if strategy == name:
            return strategy
    raise unknown("strategy", name, STRATEGIES)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a member on a site."""

    name: str
    role: Role
    site: str = HERE


@dataclass(frozen=True, slots=True)
class End:
    """End a member: send it the order `stop`, or kill it."""

    name: str
    kill: bool = False


@dataclass(frozen=True, slots=True)
class Tell:
    """Send an order to a member."""

    to: str
    order: Order


@dataclass(frozen=True, slots=True)
class Load:
    """Send the blocks of the newest good checkpoint, with its version, to their owners."""

    era: int
    owner: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Keep:
    """Write a checkpoint of the copies of a version, with the state of the shard queue, if the job has one."""

    version: int
    queue: SavedShards | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Write an event."""

    event: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Over:
    """End the job; `failure` has the reason of a failure, "" if there was none."""

    failure: str = ""
    cause: Cause = Cause.UNKNOWN


Command = Start | End | Tell | Load | Keep | Note | Over


JobPhase = Literal["starting", "restoring", "loading", "training", "taking_over", "over"]


@dataclass(frozen=True, slots=True)
class JobTerms:
    """Constants of a job that the controller needs."""

    sizes: Sequence[int]
    """Parameters of each block."""
    n_shards: int
    """V, logical shards of a batch."""
    n_steps: int
    """Updates of the whole training."""
    save_every: int = 0
    """Steps between two checkpoints; 0: only the last state is saved."""
    restarts: int = RESTARTS
    restarts_within_s: float = WITHIN_S
    """`restarts` and `restarts_within_s`: processes that may die and be replaced within so many seconds and without a
    step forward; see `Deaths`."""
    standby: bool = False
    """Whether every block has a replica on another server than its owner."""
    sync: bool = True
    """Whether all workers make an update together; else each makes its own, from samples that it has leased."""
    n_samples: int = 0
    batch: int = 1
    seed: int = 0
    lease_s: float = 3.0
    """`n_samples`, `batch`, `seed` and `lease_s`: of asynchronous training: samples in the dataset, samples of an
    update, seed of their order, seconds of a lease."""
    sites: Mapping[str, str] = field(default_factory=lambda: {HERE: HERE})
    """The host of each site where members may run."""
    tensors: Sequence[int] = ()
    """The parameter that each block belongs to, if servers are to start with whole parameters; else empty."""


@dataclass(slots=True)
class Member:
    """A server or worker process of the job."""

    name: str
    role: Role
    address: str = ""
    joined: bool = False
    """Whether it has connected to this controller."""
    ready: bool = False
    """Whether it has the parameters (worker) or blocks (server) of the current era."""
    leaving: bool = False
    """Whether it has been ordered to end."""
    version: int = 0
    """Latest version of the parameters that it has reported."""
    begun: bool = False
    """Whether a worker has been given parameters and logical shards in the current era."""
    reported: bool = False
    """Whether it has reported what it has to a controller that took over."""
    ever_joined: bool = False
    """Whether it has ever joined this controller or an earlier one; else it is still starting."""
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
    """Members, block owners and progress of a job."""

    def __init__(self, terms: JobTerms) -> None:
        self.terms = terms
        self.members: dict[str, Member] = {}  # members by name, oldest first
        self.owner: dict[int, str] = {}  # server of each block; empty before the first load
        # how often each block has changed its owner in this era: of two claims to a block, the higher number is newer
        self.moves: dict[int, int] = {}
        self.claimed: set[int] = set()  # blocks that a server has reported to hold since this controller took over
        # gradient traffic of each block, as measured when blocks were last balanced; None: never measured
        self.load: list[float] | None = None
        self.era = 0  # number of the current load of a checkpoint. Reports of another era are ignored
        self.phase: JobPhase = "starting"  # "starting", "restoring", "loading", "training", "taking_over" or "over"
        self.progress = 0  # latest update that a worker has completed
        self.lost: set[str] = set()  # hosts
        self.now_s = 0.0  # time of the event that is being handled, on the clock of the caller
        self.numbers = {"server": 0, "worker": 0}  # number of the next member of each role

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
        """Return whether all first members have joined, but not all workers have their parameters yet."""
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


class CommandBuffer:
    """Commands in the order of their issue."""

    def __init__(self, job: ControllerState) -> None:
        self._job = job
        self._commands: list[Command] = []

    def add(self, command: Command) -> None:
        """Add a command."""
        self._commands.append(command)

    def launch(self, role: Role, site: str) -> str:
        """Start a new member on a site; return its name."""
        member = self._job.add_member(role, site)
        self._commands.append(Start(member.name, role, site))
        return member.name

    def end(self, name: str, *, kill: bool = False) -> None:
        """Stop a member, or kill it."""
        self._commands.append(End(name, kill=kill))

    def tell(self, to: str, order: Order) -> None:
        """Send a member an order."""
        self._commands.append(Tell(to, order))

    def tell_workers(self, order: WorkerOrder) -> None:
        """Send an order to all workers that have joined."""
        for worker in self._job.members.values():
            if worker.role == "worker" and worker.joined:
                self.tell(worker.name, order)

    def note(self, event: str, /, **columns: Any) -> None:
        """Record an event of the job."""
        self._commands.append(Note(event, columns))

    def take(self) -> list[Command]:
        """Return the commands so far, and empty the buffer."""
        commands, self._commands = self._commands, []
        return commands


VERSION: Final = 1
"""Version of the file: increase it with every change of a field."""


class SiteMembers(NamedTuple):
    """Workers and servers that a placement has at a site."""

    site: Text
    workers: Count
    servers: Count


class AskedScaling(NamedTuple):
    """The id that a client gave to a request to scale, and the number of the request."""

    id: Text
    number: Count


@dataclass(frozen=True, slots=True)
class SavedMember(Struct):
    """A member; the fields are those of `Member`."""

    name: Text
    role: Role
    address: Text
    leaving: bool
    site: Text
    ever_joined: bool


@dataclass(frozen=True, slots=True)
class SavedScaling(Struct):
    """A scaling request that means the same to the next controller; the fields are those of `ScalingRequest`."""

    number: Count
    place: tuple[SiteMembers, ...] | None
    strategy: Strategy
    last: bool

    @property
    def placement(self) -> JobPlacement | None:
        """Workers and servers of each site."""
        return None if self.place is None else {one.site: (one.workers, one.servers) for one in self.place}


@dataclass(frozen=True, slots=True)
class SavedRequests(Struct):
    """Scaling requests: the current one, and those that wait."""

    n_asked: Count
    """Number of the newest request."""
    dropped: tuple[Count, ...]
    """Numbers of requests that end with this controller."""
    again: tuple[SavedScaling, ...]
    """Requests that begin anew."""
    repairs: tuple[tuple[Text, ...], ...]
    """Of each repair, the sites of the servers that died."""


@dataclass(frozen=True, slots=True)
class SavedReplicas(Struct):
    """Replicas of blocks."""

    complete: tuple[tuple[Count, Replica], ...]
    pending: tuple[tuple[Count, Replica], ...]
    superseded: tuple[tuple[Count, Replica], ...]
    """`complete`, `pending` and `superseded`: block and replica: of replicas that are complete, that have been ordered,
    and that a later order has replaced."""
    turns: tuple[tuple[Count, Count], ...]
    """Block, and number of orders so far."""


@dataclass(frozen=True, slots=True)
class SavedMachine(Struct):
    """State of the state machine; members report the progress of training themselves."""

    phase: JobPhase
    era: Count
    saved: Count
    """`phase`, `era` and `saved`: see `ControllerState` and `CheckpointSchedule`."""
    members: tuple[SavedMember, ...]
    """Oldest first."""
    next_server: Count
    next_worker: Count
    """`next_server` and `next_worker`: number of the next member of each role."""
    lost: tuple[Text, ...]
    owners: tuple[Text, ...]
    moves: tuple[Count, ...]
    """`owners` and `moves`: of each block, by its number: its server, and how often it has changed its owner; empty
    before the first load."""
    load: tuple[Number, ...] | None
    """Gradient traffic of each block; None: never measured."""
    deaths: tuple[Death, ...]
    shortages: tuple[Death, ...]
    """`deaths` and `shortages`: recent deaths, and processes that ran out of memory."""
    failure: str
    cause: Cause
    """`failure` and `cause`: how the job has ended."""
    requests: SavedRequests
    replicas: SavedReplicas


@dataclass(frozen=True, slots=True)
class SavedProcess(Struct):
    """A process of a member that runs."""

    name: Text
    site: Text
    pid: Count
    """Its number on its host; 0: not known yet."""
    begun_s: Number | None
    """When it was ordered to start, on the monotonic clock of this machine; None: it has joined."""


@dataclass(frozen=True, slots=True)
class SavedController(Struct):
    """State of a controller."""

    version: Literal[1]
    """`VERSION` of the labkit that has written it."""
    machine: SavedMachine
    processes: tuple[SavedProcess, ...]
    asked: tuple[AskedScaling, ...]
    """Requests of clients, whose repetition the next controller recognises."""

    def contradiction(self, *, sites: Collection[str], n_blocks: int) -> str:
        """Return the first field that contradicts the job's description, with its value; "": there is none."""
        machine = self.machine
        for where, site in self._sites():
            if site not in sites:
                return f"SavedController.{where} is {site!r}: expected one of {', '.join(sites)}"
        owned, measured = machine.owners or machine.moves, machine.load is not None
        for where, row, full in (
            ("owners", machine.owners, owned), ("moves", machine.moves, owned), ("load", machine.load or (), measured),
        ):  # fmt: skip
            if len(row) != n_blocks and full:
                return f"SavedController.machine.{where} has {len(row)} blocks: expected {n_blocks}"
        for where, block in self._replicated():
            if block >= n_blocks:
                return f"SavedController.machine.replicas.{where} is {block}: expected a number below {n_blocks}"
        return ""

    def _replicated(self) -> Iterator[tuple[str, int]]:
        """Return each field of the replicas that names a block, and the block."""
        known = self.machine.replicas
        for where, rows in (("complete", known.complete), ("pending", known.pending), ("superseded", known.superseded)):
            for i, (block, _) in enumerate(rows):
                yield f"{where}.{i}.0", block
        for i, (block, _) in enumerate(known.turns):
            yield f"turns.{i}.0", block

    def _sites(self) -> Iterator[tuple[str, str]]:
        """Return each field that names a site, and the site."""
        for i, member in enumerate(self.machine.members):
            yield f"machine.members.{i}.site", member.site
        for i, process in enumerate(self.processes):
            yield f"processes.{i}.site", process.site
        for i, scaling in enumerate(self.machine.requests.again):
            for k, one in enumerate(scaling.place or ()):
                yield f"machine.requests.again.{i}.place.{k}.site", one.site
