"""Which copies of blocks a controller asks servers for, so that few bytes wait for the disk."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Final

from labkit.elastic.checkpoint.writer import CheckpointWriter
from labkit.elastic.shards import SavedShards

WINDOW_BYTES: Final = 24 << 20
"""Bytes of copies that are on their way from servers to the disk. One block may always be, however large it is."""


@dataclass(slots=True, eq=False)
class CopyFetch:
    """The copies of one version on their way from the servers to the disk.

    Attributes
    ----------
    version, turn : int
        Of the copies; number of the attempt.
    queue : SavedShards, optional
        State of the shard queue at that version.
    sizes : sequence of int
        Bytes of each block, its optimizer state included.
    left : deque
        (block, server) that are to be asked for.
    asked : dict
        Server of each block that was asked for and has not arrived.
    waiting_bytes : int
        Bytes that were asked for and are not written.
    n_left : int
        Blocks that are not written.
    draft : CheckpointWriter, optional
        The checkpoint as far as it is written; only the thread of the writer uses it.
    over : bool
        Whether it was given up: what arrives is dropped.
    """

    version: int
    turn: int
    queue: SavedShards | None
    sizes: Sequence[int]
    left: deque[tuple[int, str]]
    asked: dict[int, str] = field(default_factory=dict)
    waiting_bytes: int = 0
    n_left: int = 0
    draft: CheckpointWriter | None = None
    over: bool = False

    @classmethod
    def of(
        cls, version: int, owner: Mapping[int, str], *, turn: int, queue: SavedShards | None, sizes: Sequence[int]
    ) -> CopyFetch:
        """Return a fetch of all blocks, from their servers in turns: so each has something to send."""
        by_server: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for block, server in sorted(owner.items()):
            by_server[server].append((block, server))
        in_turns = chain.from_iterable(zip_longest(*by_server.values()))
        return cls(version, turn, queue, sizes, deque(filter(None, in_turns)), n_left=len(owner))

    def ask(self) -> dict[str, list[int]]:
        """Return the blocks to ask each server for now."""
        found: dict[str, list[int]] = defaultdict(list)
        while self.left:
            n_bytes = self.sizes[self.left[0][0]]
            if self.waiting_bytes and self.waiting_bytes + n_bytes > WINDOW_BYTES:
                break
            block, server = self.left.popleft()
            self.asked[block] = server
            self.waiting_bytes += n_bytes
            found[server].append(block)
        return found

    def arrived(self, block: int, *, turn: int) -> str | None:
        """Return the server that a block was asked from; None: it was not asked for, or came before."""
        return self.asked.pop(block, None) if turn == self.turn and not self.over else None

    def written(self, block: int) -> None:
        """Note that a block is written."""
        self.waiting_bytes -= self.sizes[block]
        self.n_left -= 1

    def needs(self, server: str) -> bool:
        """Return whether blocks have not arrived that this server has."""
        return server in self.asked.values() or any(server == name for _, name in self.left)
