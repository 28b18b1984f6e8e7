"""Blocks of a checkpoint, read one by one, each verified: a reader needs memory for one block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from labkit.elastic.checkpoint.manifest import (
    BadCheckpointError,
    BlockEntry,
    Manifest,
    SavedBlock,
    check_sum,
    file_of,
)
from labkit.elastic.server.growing import mapped
from labkit.elastic.shards import SavedShards


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint all of whose blocks have been read and verified, none of which is in memory.

    Attributes
    ----------
    folder : Path
        Of the checkpoint.
    manifest : Manifest
        Its content.
    queue : SavedShards, optional
        State of the shard queue of asynchronous training.
    """

    folder: Path
    manifest: Manifest
    queue: SavedShards | None

    @property
    def step(self) -> int:
        """Of the checkpoint."""
        return self.manifest.step

    def block(self, entry: BlockEntry) -> SavedBlock:
        """Read a block, and verify it once more.

        Raises
        ------
        BadCheckpointError
            If it cannot be read any more, or has changed.
        """
        [found] = read_blocks(self.folder, entry.server, self.manifest, [entry])
        return found


def read_blocks(
    folder: Path, server: str, manifest: Manifest, entries: Iterable[BlockEntry] | None = None
) -> Iterator[SavedBlock]:
    """Yield blocks from the file of a server, all of them by default, each verified.

    Raises
    ------
    BadCheckpointError
        If the file is missing, has another length, or a block is damaged.
    """
    path, expected = folder / file_of(server), manifest.files[server]
    chosen = entries if entries is not None else [entry for entry in manifest.blocks if entry.server == server]
    try:
        with FileIO(path) as file:
            size = path.stat().st_size
            if size != expected:
                raise BadCheckpointError(folder.name, f"{path.name} has {size} bytes; expected {expected}.")
            for entry in chosen:
                yield _read(file, entry, manifest, name=folder.name)
    except OSError as error:
        raise BadCheckpointError(folder.name, f"{path.name} cannot be read: {error.strerror}.") from None


def _read(file: FileIO, entry: BlockEntry, manifest: Manifest, *, name: str) -> SavedBlock:
    n_rows = 1 + len(manifest.state)
    rows = mapped(n_rows * entry.n).reshape(n_rows, entry.n)  # goes back to the system as soon as it is dropped
    raw = rows.reshape(-1).view(np.uint8).data
    file.seek(entry.offset)
    n_read = 0
    while n_read < len(raw) and (n_more := file.readinto(raw[n_read:])):
        n_read += n_more
    if n_read < len(raw) or check_sum([raw]) != entry.blake2b:
        raise BadCheckpointError(
            name, f"block {entry.number} in {file_of(entry.server)} is damaged: its digest does not match."
        )
    state = dict(zip(manifest.state, rows[1:], strict=True))
    return SavedBlock(entry.number, entry.version, rows[0], state, dict(entry.seen))
