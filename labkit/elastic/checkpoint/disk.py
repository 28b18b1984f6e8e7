"""The file system calls of a checkpoint, one method each, so that tests can inject failures between any two."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from labkit.elastic.process import fault_injection as fault

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
