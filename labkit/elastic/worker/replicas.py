"""The replicas of blocks, as a worker knows them: which servers have one, and from which version on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from labkit.elastic.protocol.messages.orders import ReplicasOfBlock

One = tuple[str, int]
"""(server, turn): a replica, by its server and the number of the order that created it."""


class ReplicaMap:
    """The servers besides the owner that receive the gradients of each block.

    The owner of a block announces a replica and its first version before it sends that version to any worker. The
    controller announces the end of a replica. Each order has a turn, which counts up for each block, so that messages
    may arrive in any order.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[One, int]] = {}
        self._settled: dict[int, tuple[int, set[One]]] = {}

    def add(self, name: str, blocks: Iterable[Sequence[int]]) -> None:
        """Add replicas on a server: (block, first version, turn)."""
        for block, version, turn in blocks:
            if self.counts(block, (name, turn)):
                self._of.setdefault(block, {}).setdefault((name, turn), version)

    def settle(self, rows: Iterable[ReplicasOfBlock], *, begin: bool = False) -> None:
        """Take the controller's state of blocks; with `begin` add its replicas, for a worker that starts."""
        for block, upto, replicas in rows:
            self._settled[block] = upto, {(name, turn) for name, turn in replicas}
            if begin:
                for name, turn in replicas:
                    self.add(name, [(block, 0, turn)])
        for block, known in self._of.items():
            for one in [one for one in known if not self.counts(block, one)]:
                del known[one]

    def counts(self, block: int, one: One) -> bool:
        """Return whether a replica is valid: not ended by the controller."""
        upto, known = self._settled.get(block, (-1, set()))
        return one[1] > upto or one in known

    def at(self, version: int) -> dict[int, set[One]]:
        """Return the replicas of each block that has any at a version.

        >>> known = ReplicaMap()
        >>> known.add("ps-1", [(0, 5, 1)])
        >>> known.at(4), known.at(5)
        ({}, {0: {('ps-1', 1)}})
        """
        found = {b: {one for one, first in known.items() if first <= version} for b, known in self._of.items()}
        return {block: those for block, those in found.items() if those}


class StepReplicas:
    """Replicas that receive this step's gradients, and those that have not acknowledged it.

    Guarded by the worker's condition.

    Attributes
    ----------
    known : ReplicaMap
        All replicas.
    behind : dict
        Blocks of each server whose replicas have not made the version that is waited for.
    again : set
        Servers to be asked once more.
    """

    def __init__(self) -> None:
        self.known = ReplicaMap()
        self.behind: dict[str, set[int]] = {}
        self.again: set[str] = set()
        self._of: dict[int, set[One]] = {}

    def begin(self, version: int, owner: Mapping[int, str]) -> dict[str, list[int]]:
        """Begin the step from a version to the next; return the blocks to ask each server about."""
        known = self.known.at(version)
        self._of = {block: {one for one in those if one[0] != owner.get(block)} for block, those in known.items()}
        self.behind = self._by_name()
        self.again.clear()
        return {name: sorted(blocks) for name, blocks in self.behind.items()}

    def of(self, block: int) -> tuple[str, ...]:
        """Return the servers besides the owner that receive the gradients of a block."""
        return tuple(sorted({name for name, _ in self._of.get(block, ())}))

    def _by_name(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for block, those in self._of.items():
            for name, _ in those:
                found[name].add(block)
        return dict(found)

    def settle(self, rows: Iterable[ReplicasOfBlock], *, owner: Mapping[int, str], here: Collection[str]) -> None:
        """Stop waiting for replicas that have ended.

        A replica that has become the owner is still waited for in this step, because no other server may have this
        worker's gradients. `here` has the servers that exist.
        """
        self.known.settle(rows)
        for block, those in self._of.items():
            own = {name for name in here if name == owner.get(block)}
            self._of[block] = {one for one in those if one[0] in own or self.known.counts(block, one)}
        still = self._by_name()
        rest = {name: held & still.get(name, set()) for name, held in self.behind.items()}
        self.again |= {name for name, held in rest.items() if held and held != self.behind[name]}
        self.behind = {name: held for name, held in rest.items() if held}

    def once_more(self) -> dict[str, list[int]]:
        """Return the blocks to ask each server about again."""
        asked = {name: sorted(blocks) for name, blocks in self.behind.items() if name in self.again}
        self.again.clear()
        return asked
