"""The servers that follow each block, as a worker knows them: from which version on, and until told otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

One = tuple[str, int]
"""A server that follows, and the turn in which it was told to."""

Row = Sequence[object]
"""What the controller says of a block: [block, turn, [[name, turn], ...]]; of all orders to follow it up to a turn only
these count."""


class ReplicaMap:
    """Who else gets the gradients of a block than its owner.

    The owner of a block announces who follows from which version on, before it gives anybody that version; the
    controller says when following has ended. Every order to follow has a turn, which counts up for each block, so that
    what is old is told from what is new in whatever order it comes.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[One, int]] = {}
        self._settled: dict[int, tuple[int, set[One]]] = {}

    def add(self, name: str, blocks: Iterable[Sequence[int]]) -> None:
        """Note that a server follows blocks: (block, first version, turn)."""
        for block, version, turn in blocks:
            if self.counts(block, (name, turn)):
                self._of.setdefault(block, {}).setdefault((name, turn), version)

    def settle(self, rows: Iterable[Row], *, begin: bool = False) -> None:
        """Take what the controller says of blocks; a worker that begins takes over those who follow already."""
        for block, upto, known in rows:
            self._settled[block] = upto, {(name, turn) for name, turn in known}  # type: ignore[index,assignment,attr-defined]
            if begin:
                for name, turn in known:  # type: ignore[attr-defined]
                    self.add(name, [(block, 0, turn)])  # type: ignore[list-item]
        for block, known in self._of.items():
            for one in [one for one in known if not self.counts(block, one)]:
                del known[one]

    def counts(self, block: int, one: One) -> bool:
        """Tell whether an order to follow has not been withdrawn."""
        upto, known = self._settled.get(block, (-1, set()))
        return one[1] > upto or one in known

    def at(self, version: int) -> dict[int, set[One]]:
        """Return who follows each block that somebody follows at a version.

        >>> known = ReplicaMap()
        >>> known.add("ps-1", [(0, 5, 1)])
        >>> known.at(4), known.at(5)
        ({}, {0: {('ps-1', 1)}})
        """
        found = {b: {one for one, first in known.items() if first <= version} for b, known in self._of.items()}
        return {block: those for block, those in found.items() if those}


class StepReplicas:
    """Whom a worker serves besides the owners during one step, and who has yet to say that it is abreast of them.

    Guarded by the worker's condition.
    """

    def __init__(self) -> None:
        self.known = ReplicaMap()
        self.behind: dict[str, set[int]] = {}
        """Blocks of each server that has not made the version that is waited for."""
        self.again: set[str] = set()
        """Servers that are to be asked once more."""
        self._of: dict[int, set[One]] = {}

    def begin(self, version: int, owner: Mapping[int, str]) -> dict[str, list[int]]:
        """Begin the step that leads from a version to the next; return whom to ask about which blocks."""
        known = self.known.at(version)
        self._of = {block: {one for one in those if one[0] != owner.get(block)} for block, those in known.items()}
        self.behind = self._by_name()
        self.again.clear()
        return {name: sorted(blocks) for name, blocks in self.behind.items()}

    def of(self, block: int) -> tuple[str, ...]:
        """Return who gets the gradients of a block besides its owner."""
        return tuple(sorted({name for name, _ in self._of.get(block, ())}))

    def _by_name(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for block, those in self._of.items():
            for name, _ in those:
                found[name].add(block)
        return dict(found)

    def settle(self, rows: Iterable[Row], *, owner: Mapping[int, str], here: Collection[str]) -> None:
        """Wait no longer for those that follow no more.

        One who follows no more because it owns the block now is waited for until the end of the step: nobody else may
        have what this worker computed. `here` are the servers there are.
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
        """Return whom to ask again about which blocks."""
        asked = {name: sorted(blocks) for name, blocks in self.behind.items() if name in self.again}
        self.again.clear()
        return asked
