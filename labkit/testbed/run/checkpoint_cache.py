"""The newest checkpoint of each job, kept here: a job goes on elsewhere when it is moved, or its host is gone.

A backup is a tar file that is written here of what the host sends, folder by folder and file by file. It gets its name
only when everything has come and was verified: lengths and SHA-256 of all files, and that a checkpoint in it has all
files that its manifest names. Until then the one before stays as it is.
"""

from __future__ import annotations

import io
import logging
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from labkit.elastic.checkpoint.manifest import FILE, QUEUE, BadCheckpointError, Manifest, file_of
from labkit.testbed.errors import CutError, FileError, HostMessageError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.onhost.frame import CHUNK
from labkit.testbed.ssh.entries import Entries, HostEntry
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.frames import HostMessages

LOG = logging.getLogger(__name__)
ATTEMPTS, PATIENCE_S = 3, 60.0
MOST_BYTES: Final = 256 * 10**9
MAX_MANIFEST: Final = 64 << 20
SAVED = "job/checkpoints"
"""Of the folder of a job's task: where its checkpoints are."""
STEP: Final = re.compile(rf"{SAVED}/step-\d{{6,}}/{FILE}")


class CheckpointCache:
    """Checkpoints on this machine, a tar file for each job.

    Parameters
    ----------
    fleet : Fleet
        Connections to the hosts.
    folder : Path
        Where they are kept.
    run : str
        Whose they are, on the hosts.
    """

    def __init__(self, fleet: Fleet, folder: Path, *, run: str) -> None:
        self._fleet, self._folder, self._run = fleet, folder, run

    def path(self, task: str) -> Path:
        """Return where the checkpoints of a task are kept."""
        return self._folder / f"{task}.tar"

    def fetch(self, machine: Machine, *, folder: str, task: str) -> None:
        """Bring the checkpoints of a task here; those kept before stay until the new ones are whole and verified.

        Raises
        ------
        HostError
            If it does not succeed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        partial, why = self._folder / f".{task}.tar", ""
        try:
            for _ in range(ATTEMPTS):  # the job may remove an old checkpoint just then
                try:
                    self._read(machine, folder, partial)
                except HostMessageError as error:
                    why = str(error)
                else:
                    partial.replace(self.path(task))
                    return
        except TimeoutError:
            raise CutError(
                f"host {machine.name}: no checkpoint of {task}: nothing came for {PATIENCE_S:g} s."
            ) from None
        finally:
            partial.unlink(missing_ok=True)
        kept = "the one before is kept" if self.path(task).exists() else "there is no earlier one"
        told = f"host {machine.name}: the checkpoints of {task} cannot be read ({kept}): {why}"
        LOG.warning("no backup: %s", told)  # in the terminal at once; whoever asked writes it into the run's notes
        raise FileError(told)

    def _read(self, machine: Machine, folder: str, target: Path) -> None:
        """Write a tar file of what comes from a host, verified and brought to the disk."""
        argv = [machine.python, "-c", source("pack"), folder, ".", SAVED]
        with self._fleet.stream(machine, argv) as stream, target.open("wb") as file:
            stream.settimeout(PATIENCE_S)
            entries = Entries(HostMessages(stream), most_bytes=MOST_BYTES, below=SAVED)
            manifests: dict[str, bytes] = {}
            with tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK) as archive:
                for entry in entries:
                    _add(archive, entry, manifests)
            refuse_incomplete(entries.sizes, manifests)
            file.flush()
            os.fsync(file.fileno())

    def bring(self, machine: Machine, *, task: str) -> str:
        """Bring the checkpoints of a task to a host; return where below its folder they are, "" if there are none.

        Raises
        ------
        FleetError
            If it does not succeed.
        """
        if not self.path(task).exists():
            return ""
        there = f"incoming/{self._run}-{task}.tar"
        self._fleet.run(["mkdir", "-p", machine.path("incoming")], only=[machine.name]).checked()
        self._fleet.put(self.path(task), there, only=[machine.name]).checked()
        return there

    def forget(self, task: str) -> None:
        """Remove what is kept of a task."""
        self.path(task).unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, entry: HostEntry, manifests: dict[str, bytes]) -> None:
    """Write an entry into an archive: a plain folder or file of ours, whatever it was; keep it if it is a manifest."""
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
    """Parts that come one by one, as a file."""

    def __init__(self, parts: Iterator[bytes], *, keep: bool) -> None:
        super().__init__()
        self._parts, self._rest = parts, b""
        self.kept: bytearray | None = bytearray() if keep else None

    def read(self, size: int = -1, /) -> bytes:
        """Return as many bytes, fewer only at the end."""
        while len(self._rest) < size and (part := next(self._parts, b"")):
            self._rest += part
        data, self._rest = self._rest[:size], self._rest[size:]
        if self.kept is not None:
            self.kept += data
        return data


def refuse_incomplete(sizes: dict[str, int], manifests: dict[str, bytes]) -> None:
    """Raise unless some checkpoint has every file that its manifest names, as long as it says.

    Raises
    ------
    HostMessageError
        If none has.
    """
    for path, content in manifests.items():
        folder = path.removesuffix(FILE)
        with suppress(BadCheckpointError, TypeError, AttributeError):
            wanted = {
                folder + file_of(server): n for server, n in Manifest.from_json(content, name=folder).files.items()
            }
            if wanted.items() <= sizes.items() and folder + QUEUE in sizes:
                return
    raise HostMessageError("what came has no complete checkpoint.")
