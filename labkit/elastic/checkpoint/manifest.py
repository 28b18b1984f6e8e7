"""The manifest of a checkpoint, its exceptions, and renames and syncs that survive a crash.

CheckpointError
├── WriteError           a disk is full or broken; earlier checkpoints are untouched
├── BadCheckpointError   one checkpoint cannot be used: damaged, incomplete, stale
├── NoCheckpointError    there is no good checkpoint
└── OtherModelError      a checkpoint of another model or optimizer
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Layout, Param, Vector

FORMAT: Final = 1
"""Version of the format: raw little-endian float32, for each block its parameters, then its state by name."""

FILE: Final = "manifest.json"
QUEUE: Final = "queue.json"
CHECKPOINTS: Final = "checkpoints"
"""Folder of a job's checkpoints, in that of the job."""


class CheckpointError(LabkitError):
    """Any failure of checkpoints."""


class WriteError(CheckpointError, OSError):
    """A checkpoint could not be written; earlier checkpoints are untouched."""


class BadCheckpointError(CheckpointError):
    """A checkpoint that cannot be used: its `name`, and `why`."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


class NoCheckpointError(CheckpointError):
    """There is no good checkpoint; `bad` has the errors of the bad ones."""

    def __init__(self, message: str, *, bad: Iterable[BadCheckpointError] = ()) -> None:
        super().__init__(message)
        self.bad = tuple(bad)


class OtherModelError(CheckpointError, InputError):
    """A checkpoint of another model or optimizer."""


class BlockLike(Protocol):
    """A block as a checkpoint sees it; `labkit.elastic.server.block.Block` is one."""

    @property
    def number(self) -> int:
        """Which block."""
        ...

    @property
    def version(self) -> int:
        """Updates so far."""
        ...

    @property
    def params(self) -> Vector:
        """(n,) float32."""
        ...

    @property
    def state(self) -> Mapping[str, Vector]:
        """(n,) each: vectors of the optimizer."""
        ...

    @property
    def seen(self) -> Mapping[int, int]:
        """Number of the last update of each worker, in asynchronous mode."""
        ...


@dataclass(frozen=True, slots=True)
class SavedBlock:
    """A block of a checkpoint; it owns its arrays."""

    number: int
    version: int
    """`number` and `version`: number of the block, and updates so far."""
    params: Vector
    """(n,) float32."""
    state: Mapping[str, Vector] = field(default_factory=dict)
    """(n,) each."""
    seen: Mapping[int, int] = field(default_factory=dict)
    """Number of the last update of each worker, in asynchronous mode."""


def bytes_of(block: BlockLike) -> list[memoryview]:
    """Return the bytes of a block's parameters, then of its state in order of names; copied only if not contiguous."""
    vectors = [block.params, *(block.state[name] for name in sorted(block.state))]
    return [np.ascontiguousarray(vector, np.float32).data for vector in vectors]


def digest_of(blocks: Iterable[BlockLike]) -> str:
    """Return one digest of all blocks: SHA-256 over versions, parameters and optimizer state, in order of the blocks.

    It depends neither on the owners of blocks nor on the cut into blocks: equal training has equal digests. Raise
    CheckpointError if a block comes twice, because two servers own it.
    """
    ordered = sorted(blocks, key=lambda b: b.number)
    for before, block in pairwise(ordered):
        if block.number == before.number:
            raise CheckpointError(f"block {block.number} comes twice; expected one owner of each.")
    names = sorted(ordered[0].state) if ordered else []
    lengths = [(version, sum(len(b.params) for b in same)) for version, same in groupby(ordered, lambda b: b.version)]
    sha = hashlib.sha256(json.dumps([lengths, names]).encode())
    for vectors in zip(*map(bytes_of, ordered), strict=True):
        for vector in vectors:
            sha.update(vector)
    return sha.hexdigest()


def check_sum(buffers: Iterable[Buffer]) -> str:
    """Return the BLAKE2b digest of the concatenation of some buffers."""
    digest = hashlib.blake2b(digest_size=20)
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """The manifest's row of a block: where its bytes are, and their digest."""

    number: int
    version: int
    n: int
    """`number`, `version` and `n`: number of the block, updates so far, and length of each of its vectors."""
    server: str
    offset: int
    """`server` and `offset`: server whose file has the block, and the first byte in it."""
    seen: list[tuple[int, int]]
    """(worker, number of its last update) in asynchronous mode."""
    blake2b: str
    """Of its bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint."""

    step: int
    """Updates of the model so far; in asynchronous mode, the number that the controller gives it."""
    layout: str
    """Digest of the model's `Layout`."""
    optimizer: str
    options: dict[str, Any]
    """`optimizer` and `options`: name and options from which `labkit.elastic.server.optimizers.optimizer` makes it."""
    state: list[str]
    """Names of the optimizer's vectors, sorted."""
    blocks: list[BlockEntry]
    """Every block once."""
    files: dict[str, int]
    """Bytes in the file of each server."""
    queue: str
    """BLAKE2b of the file of the shard queue."""
    training: dict[str, Any] = field(default_factory=dict)
    """Settings that decide which samples a step takes: seed, batch, n_shards, n_samples; empty if not given."""

    def cut(self, params: Iterable[Param]) -> Layout:
        """Return the layout of parameters cut into these blocks."""
        sizes = [entry.n for entry in sorted(self.blocks, key=lambda entry: entry.number)]
        return Layout(tuple(params), tuple(zip(accumulate(sizes, initial=0), sizes, strict=False)))

    def to_json(self) -> bytes:
        """Return the text of the file, with a digest of itself."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({"blake2b": check_sum([_canonical(content)]), "manifest": content}, indent=0).encode()

    @classmethod
    def from_json(cls, text: bytes, *, name: str) -> Manifest:
        """Read the manifest of a checkpoint; `name` is for error messages.

        Raise BadCheckpointError if it is damaged, or of another format.
        """
        try:
            outside = json.loads(text)
            content = outside["manifest"]
            if check_sum([_canonical(content)]) != outside["blake2b"]:
                raise BadCheckpointError(name, f"{FILE} is damaged: its digest does not match.")
            form = content.pop("format")
            if form != FORMAT:
                raise BadCheckpointError(name, f"{FILE} is of format {form}; this version of labkit reads {FORMAT}.")
            return cls(**{**content, "blocks": [BlockEntry(**entry) for entry in content["blocks"]]})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise BadCheckpointError(name, f"{FILE} is damaged: {_glance(text)}") from None


def name_of(step: int) -> str:
    """Return the name of the folder of a checkpoint.

    >>> name_of(120)
    'step-000120'
    """
    return f"step-{step:06d}"


def file_of(server: str) -> str:
    """Return the name of the file with the blocks of a server."""
    return f"{server}.blocks"


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _glance(text: bytes) -> str:
    if not text.strip(b"\0"):
        return f"{len(text)} bytes, all of them 0." if text else "it is empty."
    return f"it is no manifest, or cut short after {len(text)} bytes."


Buffer = bytes | memoryview


class Disk:
    """The real file system. All methods raise OSError as the system does."""

    def make_folder(self, path: Path) -> None:
        """Create a folder that only its owner can enter; it must not exist."""
        path.mkdir(mode=0o700)

    def create(self, path: Path) -> BinaryIO:
        """Create and open a file; it must not exist."""
        return path.open("xb", buffering=0)

    def write(self, file: BinaryIO, buffers: Iterable[Buffer]) -> None:
        """Write everything, in as many calls as the system needs."""
        fault.at("disk.write")
        for buffer in buffers:
            rest = memoryview(buffer).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
                fault.at("disk.wrote")

    def sync(self, file: BinaryIO) -> None:
        """Return once the written bytes are on the disk; after an error they may never be."""
        fault.at("disk.sync")
        os.fsync(file.fileno())
        fault.at("disk.synced")

    def sync_folder(self, path: Path) -> None:
        """Return once the names in a folder are on the disk."""
        number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def rename(self, path: Path, to: Path) -> None:
        """Rename a folder atomically; a folder of the new name must be empty or not exist."""
        fault.at("disk.rename")
        path.rename(to)
        fault.at("disk.renamed")

    def remove(self, path: Path) -> None:
        """Remove a folder and its content, as far as possible."""
        shutil.rmtree(path, ignore_errors=True)
