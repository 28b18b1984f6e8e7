"""Copies of the newest checkpoint of each job on this machine, for a start on another host.

A copy is a tar file, written from the folders and files that a host sends. It gets its name only after verification:
lengths and SHA-256 of all files, and that a checkpoint in it has all files that its manifest names. The copy before it
stays beside it. A copy ends with its own SHA-256, behind the end of the archive, where tar reads no more: it is
verified again before it is sent to a host.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from labkit.core.below import Below
from labkit.elastic.checkpoint.manifest import FILE, QUEUE, BadCheckpointError, Manifest, file_of
from labkit.testbed.errors import CutError, FileError, HostMessageError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.onhost.shared import CHUNK
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.host_messages import Entries, HostEntry, HostMessages

LOG = logging.getLogger(__name__)
ATTEMPTS, PATIENCE_S = 3, 60.0
DIGEST_SIZE: Final = 32
END_SIZE: Final = 2 * tarfile.BLOCKSIZE
"""Zeros at the end of an archive."""
DAMAGED: Final = ".damaged"
"""Ending of the name of a copy that was set aside."""
MOST_BYTES: Final = 256 * 10**9
MAX_MANIFEST: Final = 64 << 20
SAVED = "job/checkpoints"
"""Folder of checkpoints below that of a job's task."""
STEP: Final = re.compile(rf"{SAVED}/step-\d{{6,}}/{FILE}")


class CheckpointCache:
    """Checkpoints on this machine, a tar file for each job."""

    def __init__(self, fleet: Fleet, folder: Path, *, run: str) -> None:
        self._fleet, self._folder, self._run = fleet, folder, run

    def path(self, task: str) -> Path:
        """Return the file with the checkpoints of a task."""
        return self._folder / f"{task}.tar"

    def older(self, task: str) -> Path:
        """Return the file with the copy before the newest one."""
        return self._folder / f"{task}.older.tar"

    def fetch(self, machine: Machine, *, folder: str, task: str) -> None:
        """Copy the checkpoints of a task from a host; an earlier copy stays until the new one is verified.

        Raise HostError if it fails.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        partial, why = f".{task}.tar", ""
        try:
            for _ in range(ATTEMPTS):  # the job may remove an old checkpoint just then
                try:
                    self._read(machine, folder, partial)
                except HostMessageError as error:
                    why = str(error)
                else:
                    with Below(self._folder) as below:
                        if self.path(task).exists():
                            below.rename(self.path(task).name, to=self.older(task).name)
                        below.rename(partial, to=self.path(task).name)
                    return
        except TimeoutError:
            raise CutError(
                f"host {machine.name}: no checkpoint of {task}: nothing arrived for {PATIENCE_S:g} s."
            ) from None
        finally:
            (self._folder / partial).unlink(missing_ok=True)
        kept = "the one before is kept" if self.path(task).exists() else "there is no earlier one"
        why = f"host {machine.name}: the checkpoints of {task} cannot be read ({kept}): {why}"
        LOG.warning("no backup: %s", why)  # shown at once; the caller adds it to the run's notes
        raise FileError(why)

    def _read(self, machine: Machine, folder: str, target: str) -> None:
        """Write a tar file of what a host sends, verified and synced to the disk."""
        argv = [machine.python, "-c", source("pack"), folder, ".", SAVED]
        with self._fleet.stream(machine, argv) as stream, self._created(target) as file:
            stream.settimeout(PATIENCE_S)
            entries = Entries(HostMessages(stream), most_bytes=MOST_BYTES, below=SAVED)
            manifests: dict[str, bytes] = {}
            digested = _Digested(file)
            with tarfile.TarFile(fileobj=digested, mode="w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK) as archive:
                for entry in entries:
                    _add(archive, entry, manifests)
            refuse_incomplete(entries.sizes, manifests)
            file.write(digested.digest.digest())
            file.flush()
            os.fsync(file.fileno())

    def _created(self, name: str) -> BinaryIO:
        with Below(self._folder) as below:
            below.remove(name)
            return below.file(name, mode=0o644)

    def bring(self, machine: Machine, *, task: str, tell: Callable[[str], None]) -> str:
        """Copy the checkpoints of a task to a host; return the path below its folder, "" if there are none.

        `tell` is called where the newest copy here is damaged: with its path, and what the job goes on from. Raise
        FleetError if it fails.
        """
        copy = self._good_copy(task, tell)
        if copy is None:
            return ""
        there = f"incoming/{self._run}-{task}.tar"
        self._fleet.put(copy, there, only=[machine.name]).checked()
        return there

    def _good_copy(self, task: str, tell: Callable[[str], None]) -> Path | None:
        """Return the newest copy that is whole; damaged ones are set aside."""
        damaged = []
        for path in (self.path(task), self.older(task)):
            why = damage(path) if path.exists() else "it is not there"
            if not why:
                break
            if path.exists():
                aside = path.with_name(path.name + DAMAGED)
                path.replace(aside)
                damaged.append(f"{aside} ({why})")
        else:
            path = None
        if damaged:
            rest = "the copy before it" if path else "what its host holds, else from the beginning"
            tell(f"damaged here: {' and '.join(damaged)}; the job continues from {rest}")
        return path

    def forget(self, task: str) -> None:
        """Remove the copies of a task's checkpoints."""
        for path in (self.path(task), self.older(task)):
            path.unlink(missing_ok=True)
            path.with_name(path.name + DAMAGED).unlink(missing_ok=True)


def damage(path: Path) -> str:
    """Return the fault of a copy; empty: it is whole.

    A copy without a digest of its own, from an earlier labkit, is whole if its archive has a complete checkpoint.
    """
    try:
        n_bytes = path.stat().st_size
        with path.open("rb") as file:
            if n_bytes % tarfile.RECORDSIZE == DIGEST_SIZE:
                found = hashlib.sha256()
                for at in range(0, n_bytes - DIGEST_SIZE, CHUNK):
                    found.update(file.read(min(CHUNK, n_bytes - DIGEST_SIZE - at)))
                return "" if file.read() == found.digest() else "its SHA-256 is another one"
            file.seek(-min(n_bytes, END_SIZE), os.SEEK_END)
            if n_bytes % tarfile.RECORDSIZE or any(file.read()):
                return "cut off"
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                _read_through(archive)
    except (tarfile.TarError, HostMessageError, OSError) as error:
        return str(error).rstrip(".")
    return ""


def _read_through(archive: tarfile.TarFile) -> None:
    """Raise unless an archive has a complete checkpoint and can be read to its end."""
    sizes, manifests = {}, {}
    for member in archive:
        sizes[member.name] = member.size
        content = archive.extractfile(member)
        if content is not None and STEP.fullmatch(member.name) and member.size <= MAX_MANIFEST:
            manifests[member.name] = content.read()
        while content is not None and content.read(CHUNK):
            pass
    refuse_incomplete(sizes, manifests)


class _Digested(io.RawIOBase):
    """A file for writing that digests what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data: Any, /) -> int:
        """Write bytes; return how many."""
        self.digest.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()


def _add(archive: tarfile.TarFile, entry: HostEntry, manifests: dict[str, bytes]) -> None:
    """Add an entry to an archive with plain owner and mode; keep its content if it is a manifest."""
    member = tarfile.TarInfo("/".join(entry.parts))
    if entry.content is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o700
        archive.addfile(member)
        return
    member.size, member.mode = entry.size, 0o600
    content = _Content(entry.content, keep=bool(STEP.fullmatch(member.name)) and entry.size <= MAX_MANIFEST)
    archive.addfile(member, content)
    if content.kept is not None:
        manifests[member.name] = bytes(content.kept)


class _Content(io.RawIOBase):
    """A file object over parts that arrive one by one."""

    def __init__(self, parts: Iterator[bytes], *, keep: bool) -> None:
        super().__init__()
        self._parts, self._rest = parts, b""
        self.kept: bytearray | None = bytearray() if keep else None

    def read(self, size: int = -1, /) -> bytes:
        """Return size bytes, fewer only at the end."""
        while len(self._rest) < size and (part := next(self._parts, b"")):
            self._rest += part
        data, self._rest = self._rest[:size], self._rest[size:]
        if self.kept is not None:
            self.kept += data
        return data


def refuse_incomplete(sizes: dict[str, int], manifests: dict[str, bytes]) -> None:
    """Raise unless some checkpoint has every file that its manifest names, with the right size.

    Raise HostMessageError if none has.
    """
    for path, content in manifests.items():
        folder = path.removesuffix(FILE)
        with suppress(BadCheckpointError, TypeError, AttributeError):
            wanted = {
                folder + file_of(server): n for server, n in Manifest.from_json(content, name=folder).files.items()
            }
            if wanted.items() <= sizes.items() and folder + QUEUE in sizes:
                return
    raise HostMessageError("it has no complete checkpoint.")
