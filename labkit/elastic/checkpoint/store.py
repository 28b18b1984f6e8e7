"""Consistent checkpoints: model, optimizer and shard queue under one manifest, whole or not at all.

A checkpoint is a folder `step-000120` with a file for each server, `queue.json` and `manifest.json`. It is written
under another name, synced to the disk, and renamed (`labkit.elastic.checkpoint.files`), so that a `step-` folder is
complete. It is verified when it is read; a bad one is skipped for the one before. A checkpoint is never overwritten.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.files import CheckpointWriter, VerifiedCheckpoint, read_blocks
from labkit.elastic.checkpoint.manifest import (
    FILE,
    QUEUE,
    BadCheckpointError,
    BlockLike,
    CheckpointError,
    Disk,
    Manifest,
    NoCheckpointError,
    OtherModelError,
    SavedBlock,
    WriteError,
    check_sum,
    digest_of,
    file_of,
    name_of,
)
from labkit.elastic.controller.losses import CONTINUE, NotFiniteError
from labkit.elastic.protocol.blocks import Layout
from labkit.elastic.server.optimizers import Optimizer
from labkit.elastic.shards import SavedShards
from labkit.elastic.shards.book import JournalError, parsed

__all__ = [
    "BadCheckpointError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointWriter",
    "Checkpoints",
    "NoCheckpointError",
    "OtherModelError",
    "SavedBlock",
    "VerifiedCheckpoint",
    "WriteError",
    "digest_of",
]

Found = TypeVar("Found")
_NAME: Final = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read and verified."""

    step: int
    blocks: Mapping[int, SavedBlock]
    """Every block of the model, by number."""
    queue: SavedShards | None
    """State of the shard queue of asynchronous training."""
    options: Mapping[str, Any]
    passed_over: tuple[BadCheckpointError, ...] = field(default=())
    """Newer checkpoints that are bad, newest first, with the reason of each."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """See `Manifest`."""

    @property
    def digest(self) -> str:
        """See `digest_of`."""
        return digest_of(self.blocks.values())


class Checkpoints:
    """The checkpoints of one training in a folder.

    Only one process writes at a time. Any may read.
    """

    def __init__(
        self,
        folder: Path,  # created if it does not exist
        *,
        layout: Layout,
        optimizer: Optimizer,
        keep: int = 2,  # number of good checkpoints that are kept, at least 2; older ones are removed
        disk: Disk | None = None,
        # settings of the training that are written into each: see `Manifest`
        training: Mapping[str, Any] | None = None,
    ) -> None:
        if keep < 2:
            raise InputError(f"keep is {keep}; expected 2 or more: the newest checkpoint may turn out to be bad.")
        self.folder, self.layout, self.optimizer, self.keep = folder, layout, optimizer, keep
        self.disk = disk or Disk()
        self.training = training or {}
        self.in_work: set[Path] = set()
        """Folders of checkpoints that are being written."""
        self.verified: set[int] = set()
        """Steps whose checkpoints were written, or read and verified, by this process."""

    # --- write

    def save(
        self,
        step: int,
        servers: Mapping[str, Iterable[BlockLike]],
        *,
        queue: SavedShards | None = None,
        mixed: bool = False,
    ) -> Path:
        """Write a checkpoint from the blocks of each server; return its folder. See `begin` and `commit`."""
        with self.begin(step, mixed=mixed) as draft:
            for server, blocks in servers.items():
                draft.add(server, blocks)
            return draft.commit(queue)

    def begin(self, step: int, *, mixed: bool = False) -> CheckpointWriter:
        """Begin a checkpoint to which servers are added one by one.

        Unfinished checkpoints of processes that have died are removed. Raise OtherModelError if the folder has
        checkpoints of another model or optimizer; CheckpointError if the folder has a good checkpoint of a later step,
        from which this training did not start; WriteError if the folder cannot be made or written. `step`: 0 or more;
        names the checkpoint. `mixed`: whether blocks may have different versions, as in asynchronous training; else all
        must be at `step`.
        """
        if step < 0:
            raise InputError(f"a checkpoint of step {step}; expected 0 or more.")
        for known in self.steps():
            self._compatible(known)
            if known > step and self.is_good(known):
                raise CheckpointError(
                    f"there is a good {name_of(known)} in {self.folder}, later than {name_of(step)}: continue from "
                    "there, or give another folder."
                )
        try:
            if not self.folder.exists():
                self.folder.mkdir(mode=0o700, parents=True)
                self.disk.sync_folder(self.folder.parent)
            self._tidy()
            return CheckpointWriter(self, step, mixed=mixed)
        except OSError as error:
            raise self.write_error(step, error) from error

    def write_error(self, step: int, error: OSError) -> WriteError:
        """Return the error to raise when the system could not write."""
        good = next((name_of(known) for known in reversed(self.steps()) if known != step and self.is_good(known)), None)
        last = f"the last good one is {good}" if good else "there is no other one"
        return WriteError(
            error.errno,
            f"{name_of(step)} could not be written to {self.folder}: {error.strerror or error}; {last}. Free space or "
            "mend the disk, or give another folder.",
        )

    def prune(self) -> None:
        """Remove checkpoints older than the newest `keep` good ones, and unfinished ones that no process writes."""
        good = list(islice(filter(self.is_good, reversed(self.steps())), self.keep))
        if len(good) == self.keep:
            for step in [s for s in self.steps() if s < good[-1]]:
                self.set_aside(step)
        self._tidy()

    def set_aside(self, step: int) -> None:
        """Rename a checkpoint atomically, so that it is not found any more."""
        self.verified.discard(step)
        self.disk.rename(self.folder / name_of(step), self.folder / f".gone-{name_of(step)}-{os.urandom(4).hex()}")

    def _tidy(self) -> None:
        for path in self.folder.glob(".*-step-*"):
            if path not in self.in_work:
                self.disk.remove(path)

    # --- read

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step, which may not exist."""
        return self.folder / name_of(step)

    def steps(self) -> list[int]:
        """Return the steps that have checkpoints, good or bad, in order."""
        if not self.folder.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def newest(self, *, on_bad: Callable[[BadCheckpointError], None] | None = None) -> Checkpoint:
        """Read the newest good checkpoint; skip bad ones.

        It has the whole model in memory; see `newest_verified`. Raise NoCheckpointError if none is good; the message
        has the reason of each; OtherModelError if one is of another model or optimizer. `on_bad`: called with the error
        of each that is skipped.
        """
        return self._newest(lambda step, bad: self.load(step, passed_over=bad), on_bad)

    def newest_verified(self, *, on_bad: Callable[[BadCheckpointError], None] | None = None) -> VerifiedCheckpoint:
        """Verify the newest good checkpoint block by block; skip bad ones. As `newest`, but blocks stay on the disk."""
        return self._newest(lambda step, _: self.verify(step), on_bad)

    def _newest(
        self,
        read: Callable[[int, tuple[BadCheckpointError, ...]], Found],
        on_bad: Callable[[BadCheckpointError], None] | None,
    ) -> Found:
        bad: list[BadCheckpointError] = []
        for step in reversed(self.steps()):
            try:
                return read(step, tuple(bad))
            except BadCheckpointError as error:
                bad.append(error)
                if on_bad is not None:
                    on_bad(error)
        if not bad:
            raise NoCheckpointError(f"there is no checkpoint in {self.folder}.")
        raise NoCheckpointError(f"no checkpoint in {self.folder} is good: {' '.join(map(str, bad))}", bad=bad)

    def load(self, step: int, *, passed_over: tuple[BadCheckpointError, ...] = ()) -> Checkpoint:
        """Read and verify one checkpoint.

        Raise BadCheckpointError if any part is missing or damaged; OtherModelError if it is of another model or
        optimizer.
        """
        blocks: dict[int, SavedBlock] = {}
        found = self._verify(step, lambda block: blocks.update({block.number: block}))
        blocks, manifest = dict(sorted(blocks.items())), found.manifest
        return Checkpoint(step, blocks, found.queue, manifest.options, passed_over, manifest.training)

    def verify(self, step: int) -> VerifiedCheckpoint:
        """Read and verify one checkpoint, block by block, without keeping the blocks; errors as of `load`."""
        return self._verify(step, lambda _: None)

    def _verify(self, step: int, take: Callable[[SavedBlock], None]) -> VerifiedCheckpoint:
        """Read and verify one checkpoint; call `take` with each block, before it is known whether all are good."""
        name, path = name_of(step), self.folder / name_of(step)
        manifest = self._manifest(step)
        self._refuse_other(manifest, name)
        numbers = sorted(entry.number for entry in manifest.blocks if entry.server in manifest.files)
        if numbers != list(range(self.layout.n_blocks)):
            raise BadCheckpointError(name, f"it has {len(set(numbers))} blocks of {self.layout.n_blocks}.")
        for server in manifest.files:
            for block in read_blocks(path, server, manifest):
                take(block)
        queue = _read(path / QUEUE, name)
        if check_sum([queue]) != manifest.queue:
            raise BadCheckpointError(name, f"{QUEUE} is damaged: its digest does not match.")
        try:
            shards = None if queue == b"null" else parsed(queue)
        except JournalError as error:
            raise BadCheckpointError(name, f"{QUEUE} is {error}") from None
        self.verified.add(step)
        return VerifiedCheckpoint(path, manifest, shards)

    def _manifest(self, step: int) -> Manifest:
        name = name_of(step)
        manifest = Manifest.from_json(_read(self.folder / name / FILE, name), name=name)
        if manifest.step != step:
            raise BadCheckpointError(name, f"{FILE} is stale: it is that of {name_of(manifest.step)}.")
        return manifest

    def _refuse_other(self, manifest: Manifest, name: str) -> None:
        if manifest.layout != self.layout.digest:
            raise OtherModelError(
                f"{self.folder / name} is of another model: its layout is {manifest.layout[:8]}, this model's "
                f"{self.layout.digest[:8]} ({len(self.layout.params)} parameters, {self.layout.n} numbers, "
                f"{self.layout.n_blocks} blocks); give the model it was made with, or another folder."
            )
        if (manifest.optimizer, manifest.state) != (self.optimizer.name, sorted(self.optimizer.state_names)):
            raise OtherModelError(
                f"{self.folder / name} is of the optimizer {manifest.optimizer}; expected {self.optimizer.name}: "
                "continue with the same one, or give another folder."
            )

    def _compatible(self, step: int) -> None:
        """Raise OtherModelError for a checkpoint of another model or optimizer; do not judge a bad one."""
        try:
            self._refuse_other(self._manifest(step), name_of(step))
        except BadCheckpointError:
            return

    def is_good(self, step: int) -> bool:
        """Return whether a checkpoint is good; if this process has verified it, check only that its files exist."""
        try:
            if step not in self.verified:
                self.verify(step)
            name = name_of(step)
            files = self._manifest(step).files.items()
            return all((self.folder / name / file_of(server)).stat().st_size == n for server, n in files)
        except (BadCheckpointError, OtherModelError, OSError):
            return False


def check_blocks(blocks: Iterable[BlockLike], layout: Layout, *, step: int) -> None:
    """Raise NotFiniteError if a parameter or its optimizer state is NaN or infinite; the message names it."""
    for block in sorted(blocks, key=lambda b: b.number):
        for what, vector in (("", block.params), *sorted(block.state.items())):
            bad = np.flatnonzero(~np.isfinite(vector))
            if len(bad):
                at = layout.extents[block.number][0] + int(bad[0])
                owner = next(p.name for p in layout.params if p.first <= at < p.first + p.n)
                raise NotFiniteError(
                    f"the state at step {step} is not saved: {what and f'{what} of '}parameter '{owner}' has "
                    f'{vector[bad[0]]}. Lower the learning rate; on_nan="{CONTINUE}" continues with it.'
                )


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCheckpointError(name, f"{path.name} cannot be read: {error.strerror}.") from None
