"""Files of a checkpoint: its blocks are written one by one, and read and verified one by one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.manifest import (
    FILE,
    QUEUE,
    BadCheckpointError,
    BlockEntry,
    BlockLike,
    Buffer,
    CheckpointError,
    Disk,
    Manifest,
    SavedBlock,
    WriteError,
    bytes_of,
    check_sum,
    file_of,
    name_of,
)
from labkit.elastic.protocol.blocks import Layout
from labkit.elastic.protocol.messages.codec import to_json
from labkit.elastic.server.block import mapped
from labkit.elastic.server.optimizers import Optimizer
from labkit.elastic.shards import SavedShards


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint all of whose blocks have been read and verified, none of which is in memory."""

    folder: Path
    manifest: Manifest
    queue: SavedShards | None
    """State of the shard queue of asynchronous training."""

    @property
    def step(self) -> int:
        """Of the checkpoint."""
        return self.manifest.step

    def block(self, entry: BlockEntry) -> SavedBlock:
        """Read a block, and verify it once more; BadCheckpointError if it cannot be read any more, or has changed."""
        [block] = read_blocks(self.folder, entry.server, self.manifest, [entry])
        return block


def read_blocks(
    folder: Path, server: str, manifest: Manifest, entries: Iterable[BlockEntry] | None = None
) -> Iterator[SavedBlock]:
    """Yield blocks from the file of a server, all of them by default, each verified.

    Raise BadCheckpointError if the file is missing, has another length, or a block is damaged.
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


_SERVER: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class CheckpointFolder(Protocol):
    """Where a `CheckpointWriter` keeps checkpoints; see `labkit.elastic.checkpoint.store.Checkpoints`."""

    folder: Path
    disk: Disk
    layout: Layout
    optimizer: Optimizer
    training: Mapping[str, Any]
    in_work: set[Path]
    verified: set[int]

    def verify(self, step: int) -> VerifiedCheckpoint:
        """Verify the checkpoint of a step block by block; raise BadCheckpointError if it is damaged."""

    def set_aside(self, step: int) -> None:
        """Rename the checkpoint of a step, so that it is not found any more."""

    def prune(self) -> None:
        """Remove checkpoints that are older than those to keep."""

    def write_error(self, step: int, error: OSError) -> WriteError:
        """Return the error to raise when the system could not write."""


class CheckpointWriter:
    """A checkpoint that is being written, in a folder whose name readers ignore.

    It is a context manager: a checkpoint that is not committed at the end is removed. So it is after any error.
    """

    def __init__(self, home: CheckpointFolder, step: int, *, mixed: bool) -> None:
        self.step, self.mixed, self._home, self._disk = step, mixed, home, home.disk
        self.folder = home.folder / f".partial-{name_of(step)}-{os.getpid()}-{os.urandom(4).hex()}"
        self._entries: list[BlockEntry] = []
        self._files: dict[str, int] = {}
        self._open: dict[str, BinaryIO] = {}
        self._disk.make_folder(self.folder)
        home.in_work.add(self.folder)

    def append(self, server: str, block: BlockLike) -> None:
        """Write one block to the file of a server; `commit` syncs it. Only the entry of the block stays in memory.

        Raise WriteError, CheckpointError as `add`.
        """
        if server not in self._open:
            self._check_name(server)
            with self._failing():
                self._open[server] = self._disk.create(self.folder / file_of(server))
                self._files[server] = 0
        entries: list[BlockEntry] = []
        with self._failing():
            parts = self._bytes_of(server, [block], entries, offset=self._files[server])
            self._disk.write(self._open[server], parts)
        self._entries += entries
        self._files[server] += self._n_bytes(entries)

    def add(self, server: str, blocks: Iterable[BlockLike]) -> None:
        """Write the blocks of one server, and sync them to the disk.

        Raise WriteError if the system cannot write; earlier checkpoints are untouched; CheckpointError if a block does
        not fit the model, or is not at the version of the checkpoint.
        """
        self._check_name(server)
        entries: list[BlockEntry] = []
        self._write(self.folder / file_of(server), self._bytes_of(server, blocks, entries))
        self._entries += entries
        self._files[server] = self._n_bytes(entries)

    def _check_name(self, server: str) -> None:
        if not _SERVER.fullmatch(server) or server in self._files:
            raise InputError(f"server '{server}' cannot name a file; expected letters, digits, -, _ and ., each once.")

    def _n_bytes(self, entries: Iterable[BlockEntry]) -> int:
        return sum(4 * entry.n * (1 + len(self._home.optimizer.state_names)) for entry in entries)

    def commit(self, queue: SavedShards | None = None) -> Path:
        """Make it a checkpoint, atomically, and remove checkpoints that are too old; return its folder.

        A good checkpoint of the same step stays if its content is the same; a bad one is replaced. Raise WriteError if
        the system cannot write; earlier checkpoints are untouched; CheckpointError if a block is missing or comes
        twice, or a good checkpoint of this step has another content. `queue`: state of the shard queue of asynchronous
        training.
        """
        numbers, home = sorted(entry.number for entry in self._entries), self._home
        missing = sorted(set(range(home.layout.n_blocks)) - set(numbers))
        if missing or len(numbers) > len(set(numbers)):
            twice = [n for n in set(numbers) if numbers.count(n) > 1]
            what = f"lacks block {missing[0]}" if missing else f"has block {twice[0]} twice"
            raise CheckpointError(f"{name_of(self.step)} {what}; expected each of {home.layout.n_blocks} blocks once.")
        text = b"null" if queue is None else to_json(queue)
        manifest = Manifest(
            step=self.step, layout=home.layout.digest, optimizer=home.optimizer.name, options=home.optimizer.options,
            state=sorted(home.optimizer.state_names), blocks=self._entries, files=self._files, queue=check_sum([text]),
            training=dict(home.training),
        )  # fmt: skip
        self._sync_open()
        self._write(self.folder / QUEUE, [text])
        self._write(self.folder / FILE, [manifest.to_json()])
        return self._publish(manifest)

    def _publish(self, manifest: Manifest) -> Path:
        home, path = self._home, self._home.folder / name_of(self.step)
        try:
            self._disk.sync_folder(self.folder)
            if not path.exists() or self._gives_way(manifest):
                self._disk.rename(self.folder, path)
                home.in_work.discard(self.folder)
            self._disk.sync_folder(home.folder)
        except OSError as error:
            raise self._failed(error) from error
        self.abandon()
        home.verified.add(self.step)
        with contextlib.suppress(OSError):  # too many old checkpoints are harmless
            home.prune()
        return path

    def _gives_way(self, manifest: Manifest) -> bool:
        """Set a bad checkpoint of the same step aside; return False if a good one with the same content stays."""
        try:
            known = self._home.verify(self.step).manifest
        except BadCheckpointError:
            self._home.set_aside(self.step)
            return True
        same = _content(manifest) == _content(known)
        if not same:
            self.abandon()
            raise CheckpointError(
                f"there is a good {name_of(self.step)} in {self._home.folder} that says something else, and no "
                "good one is overwritten: give another folder, or remove those from which this training did not start."
            )
        return False

    def _sync_open(self) -> None:
        """Sync the files that `append` has written, and close them."""
        with self._failing():
            for server in list(self._open):
                with self._open.pop(server) as file:
                    self._disk.sync(file)

    def abandon(self) -> None:
        """Remove it; does nothing after `commit`."""
        while self._open:
            self._open.popitem()[1].close()
        if self.folder in self._home.in_work:
            self._home.in_work.discard(self.folder)
            with contextlib.suppress(OSError):
                self._disk.remove(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()

    def _bytes_of(
        self, server: str, blocks: Iterable[BlockLike], entries: list[BlockEntry], offset: int = 0
    ) -> Iterator[Buffer]:
        """Yield the bytes of blocks, and add each to the manifest; the first is at `offset`."""
        for block in blocks:
            self._check(block)
            parts = bytes_of(block)
            seen = [(int(worker), int(number)) for worker, number in sorted(block.seen.items())]
            n, version = len(block.params), int(block.version)
            entries.append(BlockEntry(int(block.number), version, n, server, offset, seen, check_sum(parts)))
            offset += sum(part.nbytes for part in parts)
            yield from parts

    def _check(self, block: BlockLike) -> None:
        name, layout, names = name_of(self.step), self._home.layout, sorted(self._home.optimizer.state_names)
        if not 0 <= block.number < layout.n_blocks:
            raise CheckpointError(f"{name}: block {block.number} is not one of {layout.n_blocks}.")
        n = layout.sizes[block.number]
        if sorted(block.state) != names or any(v.shape != (n,) for v in chain([block.params], block.state.values())):
            shapes = {key: v.shape for key, v in block.state.items()}
            raise CheckpointError(
                f"{name}: block {block.number} has parameters {block.params.shape} and state {shapes}; "
                f"expected ({n},) each, and {names}."
            )
        if block.version != self.step and not self.mixed:
            raise CheckpointError(
                f"{name}: block {block.number} is at version {block.version}; expected {self.step}, as all of them."
            )

    def _write(self, path: Path, buffers: Iterable[Buffer]) -> None:
        with self._failing(), self._disk.create(path) as file:
            self._disk.write(file, buffers)
            self._disk.sync(file)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Remove the checkpoint if the body fails; name the step if the disk did."""
        try:
            yield
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            self.abandon()
            raise

    def _failed(self, error: OSError) -> WriteError:
        self.abandon()
        return self._home.write_error(self.step, error)


def _content(manifest: Manifest) -> dict[int, tuple[int, str]]:
    """Return version and digest of each block."""
    return {entry.number: (entry.version, entry.blake2b) for entry in manifest.blocks}
