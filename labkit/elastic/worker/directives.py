"""What the controller has ordered a synchronous worker to do: era, logical shards, pauses, and owners of blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from labkit.elastic.protocol.messages.orders import OwnedBlock

Extent = tuple[int, int]
"""(first, n): first number of a block in the flat vector, and how many."""

Move = tuple[int, int, str]
"""(version, moves, owner): the server that owns a block from a version on, with its number of moves."""


def unlimited() -> bool:
    """Wait for nothing: no limit of cores applies."""
    return False


def unweighted() -> None:
    """Return None: losses are means, without a weight."""


class Halted(Exception):  # noqa: N818 - not a failure: training goes on elsewhere
    """Raised in the training loop when its step must be dropped: training goes back to a checkpoint, or ends."""


@dataclass(slots=True)
class BlockOwners:
    """The server that owns each block, and the owners that it will have; guarded by the worker's condition.

    Attributes
    ----------
    owner : dict
        Name of the server, by block.
    moves : dict
        How often the block has changed its owner. A server that had the block before, and does not have it yet again,
        parks requests with a later number.
    known : dict
        Number of the latest move that the worker knows of, by block.
    coming : dict
        Moves at later versions, by block, in order.
    changed : set
        Blocks with a new owner that has not been asked for them yet.
    """

    owner: dict[int, str] = field(default_factory=dict)
    moves: dict[int, int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    coming: dict[int, list[Move]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def begin(self, rows: Iterable[OwnedBlock]) -> None:
        """Start from the controller's map: each block with its owner and moves."""
        for block, owner, moves in rows:
            self.owner[block] = owner
            self.moves[block] = self.known[block] = moves

    def schedule(self, block: int, move: Move) -> None:
        """Add a move at a later version, unless a newer one is known."""
        version, moves, _ = move
        if moves > self.known.get(block, -1):
            self.known[block] = moves
            before = [known for known in self.coming.get(block, ()) if known[0] < version]
            self.coming[block] = [*before, move]

    def advance(self, version: int) -> set[int]:
        """Make the moves that are due at a version; return the blocks."""
        turned = {block for block, moves in self.coming.items() if moves[0][0] <= version}
        for block in turned:
            moves = self.coming.pop(block)
            while moves and moves[0][0] <= version:
                _, self.moves[block], self.owner[block] = moves.pop(0)
            if moves:
                self.coming[block] = moves
        return turned

    def correct(self, block: int, owner: str, moves: int, *, missing: Collection[int]) -> None:
        """Set the present owner of a block; if the block is in `missing`, the new owner is to be asked for it."""
        if self.owner[block] != owner and block in missing:
            self.changed.add(block)
        self.owner[block], self.moves[block] = owner, moves
        self.known[block] = max(moves, self.known.get(block, -1))
        self.coming[block] = [later for later in self.coming.pop(block, []) if later[1] > moves]
        if not self.coming[block]:
            del self.coming[block]


@dataclass(slots=True)
class Directives:
    """The controller's latest orders; guarded by the worker's condition.

    Attributes
    ----------
    era : int
        Number of the era.
    start : int or None
        Version with which the era begins; None while that is unknown.
    shards : (int, int)
        Logical shards of this worker, from the first to before the last.
    dealt : bool
        Whether `shards` has changed and the loop has not seen it.
    hold_at : int or None
        Version at which the worker pauses until it is ordered to go on.
    stop : bool
        Whether training ends at once.
    afresh : bool
        Whether the step in progress must be dropped.
    owners : BlockOwners
        Servers of the blocks.
    """

    era: int = 0
    start: int | None = None
    shards: tuple[int, int] = (0, 0)
    dealt: bool = False
    hold_at: int | None = None
    stop: bool = False
    afresh: bool = False
    owners: BlockOwners = field(default_factory=BlockOwners)
