"""Checkpoints in the controller's process: copies of blocks go from servers to the disk, a few at a time.

Servers keep the copies of their blocks, and report each. When those of all blocks at a version are there, the
controller asks for as many as fit into `copy_fetch.WINDOW_BYTES`, writes each as it arrives, and asks for the next when
it is written. In its memory stay the entries of the manifest, so the memory does not depend on the size of the model.
Servers need no memory for this that they did not need before, and no access to the controller's disk: there is one way
for servers on its host and on others.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.errors import LabkitError
from labkit.elastic.checkpoint.store import SavedBlock, check_blocks
from labkit.elastic.controller.checkpoint_loading import CheckpointLoading
from labkit.elastic.controller.copy_fetch import CopyFetch
from labkit.elastic.controller.event_loop import ControllerRuntime
from labkit.elastic.controller.losses import STOP, NotFiniteError
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.protocol.commands import Keep, Load
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.orders import DropCopies, SendCopies
from labkit.elastic.protocol.messages.reports import BlockCopied, CopyLate
from labkit.elastic.transport import Message

ROOM: Final = 1.2
"""Free bytes of a place, per byte of a checkpoint, from which on the last state is saved there."""


class CheckpointKeeper:
    """Writes checkpoints in a thread of its own, and loads the newest one into the servers.

    Parameters
    ----------
    runtime : ControllerRuntime
        Shared by all parts.
    processes : MemberProcesses
        Of the servers.
    """

    def __init__(self, runtime: ControllerRuntime, processes: MemberProcesses) -> None:
        self._runtime, self._processes, self._machine = runtime, processes, runtime.machine
        self._checkpoints = runtime.spec.checkpoints(runtime.folder)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._loading = CheckpointLoading(runtime, processes, self._checkpoints, self._writer)
        n_vectors = 1 + len(self._checkpoints.optimizer.state_names)
        self._sizes = [4 * n_vectors * n for _, n in runtime.spec.extents]
        self._copied: dict[int, dict[int, str]] = defaultdict(dict)
        """Copies that servers keep: version -> block -> server."""
        self._fetches: deque[CopyFetch] = deque()
        """The first is under way, the others wait for it."""
        self._n_turns = 0
        self._places = [Path("/dev/shm"), Path(tempfile.gettempdir()), Path.home(), Path.cwd()]
        """Where the last state may be saved if it cannot be in the job's folder; each is tried once."""

    def close(self) -> None:
        """Wait until what has arrived whole is written; remove what has not."""
        self._give_up_incomplete()
        self._writer.shutdown()

    # --- copies

    def on_copied(self, server: str, report: BlockCopied) -> None:
        """Note the copy of a block; the machine is told when those of all blocks at a version are there."""
        if report.era != self._machine.job.era:
            return
        there = self._copied[report.version]
        there[report.block] = server
        if len(there) == len(self._sizes):
            for old in [v for v in self._copied if v < report.version]:
                del self._copied[old]
            self._runtime.execute(self._machine.copied(report.version))
            if self._copied.pop(report.version, None):
                self._drop(report.version)  # the machine does not want it any more

    def keep(self, command: Keep) -> None:
        """Write the copies of a version as a checkpoint."""
        self._n_turns += 1
        self._fetches.append(
            CopyFetch.of(
                command.version, self._copied.pop(command.version), turn=self._n_turns, queue=command.queue,
                sizes=self._sizes,
            )
        )  # fmt: skip
        if len(self._fetches) == 1:
            self._begin()

    def _begin(self) -> None:
        """Begin with the first of the fetches."""
        if self._fetches:
            self._in_thread(self._fetches[0], self._open)
            self._ask(self._fetches[0])

    def _ask(self, fetch: CopyFetch) -> None:
        for server, blocks in fetch.ask().items():
            if self._processes.channel(server) is None:
                self._give_up(fetch, f"{server} was lost before its copies were written")
                return
            self._processes.send(server, SendCopies(fetch.version, fetch.turn, blocks))

    def on_copy(self, message: Message, described: BlockState) -> None:
        """Take the copy of a block, and let it be written."""
        fetch, block = self._fetches[0] if self._fetches else None, message.head.block
        server = None if fetch is None else fetch.arrived(block, turn=message.head.offset)
        if fetch is not None and server is not None:
            self._in_thread(fetch, lambda fetch: self._write(fetch, server, message, described))

    def on_closed(self, server: str) -> None:
        """Give up a version whose copies may have been lost with a connection."""
        fetch = self._fetches[0] if self._fetches else None
        if fetch is not None and fetch.needs(server):
            self._give_up(fetch, f"the connection to {server} ended before its copies were written")

    def on_late(self, report: CopyLate) -> None:
        """Give up a version of which a server has no copies any more."""
        fetch = self._fetches[0] if self._fetches else None
        if fetch is not None and (report.era, report.version) == (self._machine.job.era, fetch.version):
            self._give_up(fetch, f"block {report.blocks[0]} is past it")

    # --- in the thread of the writer

    def _in_thread(self, fetch: CopyFetch, do: Callable[[CopyFetch], None]) -> None:
        self._writer.submit(self._guarded, fetch, do)

    def _guarded(self, fetch: CopyFetch, do: Callable[[CopyFetch], None]) -> None:
        """Do something for a checkpoint, unless it was given up; an error gives it up."""
        if fetch.over:
            return
        loop = self._runtime.loop
        try:
            do(fetch)
        except NotFiniteError as error:
            fetch.over = True
            loop.post(self._runtime.give_up, str(error))
        except LabkitError as error:
            fetch.over = True
            loop.post(self._on_unsaved, fetch, str(error), isinstance(error, OSError))
        except (OSError, MemoryError, LookupError, ValueError) as error:
            fetch.over = True
            loop.post(self._on_unsaved, fetch, f"{type(error).__name__}: {error}", isinstance(error, OSError))
        finally:
            if fetch.over:
                self._abandon(fetch)

    def _open(self, fetch: CopyFetch) -> None:
        fetch.draft = self._checkpoints.begin(fetch.version, mixed=not self._runtime.spec.sync)

    def _write(self, fetch: CopyFetch, server: str, message: Message, described: BlockState) -> None:
        rows = np.frombuffer(message.payload, np.float32).reshape(1 + len(described.names), -1)
        state = dict(zip(described.names, rows[1:], strict=True))
        block = SavedBlock(message.head.block, described.version, rows[0], state, dict(described.seen))
        if self._runtime.spec.on_nan == STOP:
            check_blocks([block], self._runtime.spec.layout, step=fetch.version)
        assert fetch.draft is not None
        fetch.draft.append(server, block)
        self._runtime.loop.post(self._on_written, fetch, block.number)

    def _commit(self, fetch: CopyFetch) -> None:
        assert fetch.draft is not None
        fetch.draft.commit(fetch.queue)
        self._runtime.loop.post(self._on_saved, fetch)

    def _abandon(self, fetch: CopyFetch) -> None:
        if fetch.draft is not None:
            fetch.draft.abandon()

    # --- what the writer tells

    def _on_written(self, fetch: CopyFetch, block: int) -> None:
        if fetch.over:
            return
        fetch.written(block)
        if fetch.n_left:
            self._ask(fetch)
        else:
            self._in_thread(fetch, self._commit)

    def _on_saved(self, fetch: CopyFetch) -> None:
        self._end(fetch)
        self._runtime.execute(self._machine.saved_at(fetch.version))

    def _on_unsaved(self, fetch: CopyFetch, why: str, of_system: bool) -> None:
        """Give a checkpoint up; the last state, which servers hold, is saved elsewhere if the disk is at fault."""
        self._end(fetch)
        self._drop(fetch.version)
        elsewhere = self._elsewhere() if of_system and fetch.version == self._runtime.spec.n_steps else None
        if elsewhere is None:
            self._runtime.execute(self._machine.unsaved(fetch.version, why))
            return
        self._checkpoints = self._runtime.spec.checkpoints(elsewhere)
        self._runtime.events.write("rescued", {"folder": str(elsewhere), "why": why})
        told = f"the last state is saved in {elsewhere}, since it could not be saved in the job's folder: {why}"
        self._runtime.events.write("told", {"what": told})
        self._runtime.execute(self._machine.copies_lost(fetch.version, why))

    def _elsewhere(self) -> Path | None:
        """Make a folder with room for a checkpoint, in memory or on another disk; None if there is none."""
        while self._places:
            place = self._places.pop(0)
            with contextlib.suppress(OSError):
                if shutil.disk_usage(place).free > ROOM * sum(self._sizes):
                    return Path(tempfile.mkdtemp(prefix="labkit-rescued-", dir=place))
        return None

    def _give_up(self, fetch: CopyFetch, why: str) -> None:
        """Give up a version of which copies are lost; all of them are asked for again if nothing comes after it."""
        if fetch.over:
            return
        fetch.over = True
        self._writer.submit(self._abandon, fetch)
        self._end(fetch)
        self._drop(fetch.version)
        self._runtime.execute(self._machine.copies_lost(fetch.version, why))

    def _end(self, fetch: CopyFetch) -> None:
        """Go on with the next fetch."""
        if self._fetches and self._fetches[0] is fetch:
            self._fetches.popleft()
            self._begin()

    def _drop(self, version: int) -> None:
        """Let all servers drop the copies that no checkpoint needs."""
        for server in self._machine.job.of("server"):
            self._processes.send(server.name, DropCopies(version))

    # --- loading

    def load(self, command: Load) -> None:
        """Send every block of the newest good checkpoint to its owner."""
        self._copied.clear()
        self._give_up_incomplete()
        self._loading.load(command)

    def _give_up_incomplete(self) -> None:
        """Give up versions that are not written whole; one that is may be the newest checkpoint."""
        for fetch in self._fetches:
            if fetch.n_left:
                fetch.over = True
                self._writer.submit(self._abandon, fetch)
        self._fetches = deque(fetch for fetch in self._fetches if not fetch.over)
