"""Replicas of blocks: which server keeps each one, and the promotion of a replica when the owner dies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from labkit.core.errors import InputError
from labkit.elastic.controller.controller_state import CommandBuffer, ControllerState, Member, SavedReplicas
from labkit.elastic.protocol.messages.orders import (
    BlockMoves,
    BlockTurn,
    DropReplicas,
    NewReplica,
    Promote,
    Replica,
    ReplicasOfBlock,
    Replicate,
    SetOwners,
    SetReplicas,
)
from labkit.elastic.protocol.messages.reports import HasReplica

JUMP: Final = 16
"""Added to a block's moves at a promotion, so that they exceed all moves that the dead owner may have announced."""

Replicas = dict[int, Replica]
"""Replica of each block."""


class Replication:
    """Replicas of a job's blocks; without `JobTerms.standby` there are none.

    A block whose replica is to move to another server keeps its present replica until the new one is complete. The
    orders to replicate a block are counted; the number of an order is its turn. Reports that name an earlier turn are
    thereby known to be old.
    """

    def __init__(self, job: ControllerState, out: CommandBuffer) -> None:
        self._job, self._out = job, out
        self.replicas: Replicas = {}  # complete replicas: servers that have the block and all later gradients
        self.pending: Replicas = {}  # replicas that have been ordered and are not complete
        self.turns: dict[int, int] = {}  # number of orders so far, by block
        self._superseded: dict[int, set[Replica]] = {}
        """Pending replicas that a later order replaced; they may still become complete first."""
        self._takeovers: dict[tuple[str, str], tuple[int, set[int]]] = {}
        """Promotions in progress: (dead owner, new owner) -> number of blocks, and blocks not yet confirmed."""

    # --- placing replicas

    def place(self, servers: Sequence[str]) -> None:
        """Place a replica of every block on these servers, with the fewest changes."""
        job = self._job
        if not job.terms.standby or job.phase != "training":
            return
        before = {block: name for block, (name, _) in {**self.replicas, **self.pending}.items()}
        wanted = followers(job.owner, job.terms.sizes, servers, before=before)
        new = [block for block, name in wanted.items() if before.get(block) != name]
        for block in new:
            if block in self.pending:
                self._superseded.setdefault(block, set()).add(self.pending[block])
            self.turns[block] = self.turns.get(block, 0) + 1
            self.pending[block] = Replica(wanted[block], self.turns[block])
        self.order(new)

    def order(self, blocks: Collection[int]) -> None:
        """Order the owners of blocks to create the pending replicas; a repeated order has no effect."""
        by_owner: dict[str, list[NewReplica]] = {}
        for block in blocks:
            by_owner.setdefault(self._job.owner[block], []).append(NewReplica(block, *self.pending[block]))
        for owner, orders in by_owner.items():
            self._out.tell(owner, Replicate(orders))

    def on_complete(self, member: Member, report: HasReplica) -> None:
        """Handle the report that a server has a complete replica of a block: earlier replicas are released."""
        block, one = report.block, Replica(member.name, report.turn)
        if self.replicas.get(block) == one:
            return
        if self._job.owner.get(block) == member.name:  # it was promoted, and has not heard of it yet
            self._job.claimed.add(block)
            self._out.tell(member.name, Promote([BlockMoves(block, self._job.moves[block])]))
        elif one not in self._all_replicas(block):
            self._out.tell(member.name, DropReplicas([BlockTurn(block, report.turn)]))
        else:
            self._replace(block, one)
            if len(self.replicas) == len(self._job.owner) and not self.pending:
                self._out.note("follows", blocks=len(self.replicas))

    def _replace(self, block: int, one: Replica) -> None:
        """Make a replica the block's only complete one, and release those of earlier orders."""
        before = {known for known in self._all_replicas(block) if known[1] < one[1]}
        self._remove(block, {one, *before})
        self.replicas[block] = one
        if before:
            self.tell_workers(blocks=[block])
        for name, turn in sorted(before):
            if name in self._job.members:
                self._out.tell(name, DropReplicas([BlockTurn(block, turn)]))

    def _all_replicas(self, block: int) -> list[Replica]:
        known = [replicas[block] for replicas in (self.replicas, self.pending) if block in replicas]
        return known + sorted(self._superseded.get(block, ()))

    def _remove(self, block: int, these: Collection[Replica]) -> None:
        for replicas in (self.replicas, self.pending):
            if replicas.get(block) in these:
                del replicas[block]
        self._superseded[block] = self._superseded.get(block, set()) - set(these)
        if block not in self.pending:  # superseded orders count only while the later one is pending
            del self._superseded[block]

    # --- changes of servers and owners

    def forget_dead(self, *, alive: Collection[str] | None = None) -> None:
        """Remove replicas on servers that are gone, i.e. not among `alive`: by default the members that stay."""
        alive = [m.name for m in self._job.of("server")] if alive is None else alive
        for block in self._job.owner:
            self._remove(block, [known for known in self._all_replicas(block) if known[0] not in alive])
        self._takeovers = {pair: blocks for pair, blocks in self._takeovers.items() if pair[1] in alive}
        self.tell_workers()

    def owned_by(self, block: int, name: str) -> None:
        """Remove replicas of a block on the server that owns it now: an owner keeps no replica of its own block."""
        own = [known for known in self._all_replicas(block) if known[0] == name]
        self._remove(block, own)
        if own:
            self.tell_workers(blocks=[block])

    def clear(self) -> None:
        """Remove all replicas: blocks are loaded anew."""
        for everything in (self.replicas, self.pending, self._superseded, self._takeovers):
            everything.clear()

    def rows(self, blocks: Collection[int] | None = None) -> list[ReplicasOfBlock]:
        """Return the valid replicas of blocks, by default all, as orders have them."""
        if not self._job.terms.standby:
            return []
        chosen = self._job.owner if blocks is None else blocks
        return [ReplicasOfBlock(block, self.turns.get(block, 0), self._all_replicas(block)) for block in chosen]

    def tell_workers(self, *, blocks: Collection[int] | None = None, to: str = "") -> None:
        """Send the replicas of blocks to one worker, or to all."""
        if not self._job.terms.standby:
            return
        order = SetReplicas(self.rows(blocks), [m.name for m in self._job.of("server")])
        if to:
            self._out.tell(to, order)
        else:
            self._out.tell_workers(order)

    # --- promotion

    def promote(self, gone: Collection[str]) -> dict[int, str] | None:
        """Make the replicas of blocks of dead servers their owners; return these, or None if a block has no replica."""
        job = self._job
        lost = [block for block, name in job.owner.items() if name not in job.members or name in gone]
        heirs = {block: self.replicas[block][0] for block in lost if block in self.replicas}
        usable = all(self._is_alive(name, gone) for name in heirs.values())
        if not job.terms.standby or len(heirs) < len(lost) or not usable:
            return None
        for (dead, heir), blocks in _grouped((job.owner[b], heir, b) for b, heir in heirs.items()).items():
            self._takeovers[dead, heir] = len(blocks), set(blocks)
        for block, heir in heirs.items():
            job.owner[block], job.moves[block] = heir, job.moves.get(block, 0) + JUMP
            self._remove(block, self._all_replicas(block))
        for heir in sorted(set(heirs.values())):
            mine = [BlockMoves(b, job.moves[b]) for b, name in heirs.items() if name == heir]
            self._out.tell(heir, Promote(mine))
        if heirs:
            self._out.tell_workers(SetOwners(job.era, job.owned_blocks()))
            self.tell_workers(blocks=list(heirs))
        return heirs

    def _is_alive(self, name: str, lost: Collection[str]) -> bool:
        return name in self._job.members and name not in lost and self._job.members[name].joined

    def confirm_promotion(self, block: int, name: str) -> None:
        """Note that a promoted server has a block; record the promotion once all its blocks are confirmed."""
        for (dead, heir), (n, unconfirmed) in list(self._takeovers.items()):
            if heir == name and block in unconfirmed:
                unconfirmed.discard(block)
                if not unconfirmed:
                    del self._takeovers[dead, heir]
                    self._out.note("promoted", **{"from": dead, "to": heir, "blocks": n})

    # --- for the next controller

    def state(self) -> SavedReplicas:
        """Return the state for a controller that takes over."""
        superseded = [(block, one) for block, these in self._superseded.items() for one in sorted(these)]
        return SavedReplicas(
            complete=tuple(self.replicas.items()),
            pending=tuple(self.pending.items()),
            superseded=tuple(superseded),
            turns=tuple(sorted(self.turns.items())),
        )

    def take_over(self, state: SavedReplicas) -> None:
        """Restore what `state` returned."""
        self.replicas, self.pending, self.turns = dict(state.complete), dict(state.pending), dict(state.turns)
        for block, one in state.superseded:
            self._superseded.setdefault(block, set()).add(one)


def _grouped(rows: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], list[int]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for first, second, number in rows:
        groups.setdefault((first, second), []).append(number)
    return groups


LEVEL: Final = 1.05
"""Largest load over the mean at which no replica is moved."""

LEAST_SERVERS: Final = 2
"""Servers that replication needs."""


def check_standby(*, servers: int, sync: bool = True) -> None:
    """Raise unless a job can have a replica of every block.

    Raise InputError if training is asynchronous, or there are fewer than two servers.
    """
    if not sync:
        raise InputError(
            "standby=True with asynchronous training; expected synchronous: only there do two servers that get the "
            "same gradients make the same updates in the same order. Take save_every=N instead."
        )
    if servers < LEAST_SERVERS:
        raise InputError(
            f"standby=True with {servers} server{'s' if servers != 1 else ''}; expected at least {LEAST_SERVERS}: "
            "the replica of a block is on another server than its owner."
        )


def followers(
    owner: Mapping[int, str], sizes: Sequence[int], servers: Sequence[str], *, before: Mapping[int, str]
) -> dict[int, str]:
    """Return the server of each block's replica: never the owner, and with as few changes as possible.

    The load of the servers, from own blocks and replicas, is level to 5% as far as the sizes of blocks allow.

    Parameters
    ----------
    owner : mapping
        Owner of each block.
    sizes : sequence of int
        (B,) bytes, or numbers, of each block.
    servers : sequence of str
        Servers that may have replicas; with fewer than two, there are no replicas.
    before : mapping
        Server of each replica so far; it may name servers that are gone.

    Examples
    --------
    >>> followers({0: "a", 1: "a", 2: "b"}, [4, 4, 4], ["a", "b", "c"], before={0: "b", 2: "z"})
    {0: 'b', 1: 'c', 2: 'c'}
    """
    if len(servers) < LEAST_SERVERS:
        return {}
    load = dict.fromkeys(servers, 0)
    for block, name in owner.items():
        if name in load:
            load[name] += sizes[block]
    placed = {b: before[b] for b in owner if before.get(b) in load and before[b] != owner[b]}
    for block, name in placed.items():
        load[name] += sizes[block]
    for block in sorted(owner.keys() - placed.keys(), key=lambda b: (-sizes[b], b)):
        placed[block] = min((name for name in servers if name != owner[block]), key=load.__getitem__)
        load[placed[block]] += sizes[block]
    while (move := _relief(placed, owner, sizes, load)) is not None:
        block, name = move
        load[placed[block]] -= sizes[block]
        load[name] += sizes[block]
        placed[block] = name
    return dict(sorted(placed.items()))


def _relief(
    placed: Mapping[int, str], owner: Mapping[int, str], sizes: Sequence[int], load: Mapping[str, int]
) -> tuple[int, str] | None:
    """Return the largest replica of the most loaded server that a less loaded one can take, and that server."""
    most = max(load, key=load.__getitem__)
    if load[most] * len(load) <= LEVEL * sum(load.values()):
        return None
    held = sorted((block for block, name in placed.items() if name == most), key=lambda b: (-sizes[b], b))
    for block in held:
        for name in sorted(load, key=load.__getitem__):
            if name not in (most, owner[block]) and load[name] + sizes[block] < load[most]:
                return block, name
    return None
