"""Checkpoints in the controller's process: copies of blocks go to the disk a few at a time, and back to servers.

Servers keep the copies of their blocks, and report each. When those of all blocks at a version are there, the
controller asks for as many as fit into `WINDOW_BYTES`, writes each as it arrives, and asks for the next when
it is written. In its memory stay the entries of the manifest, so the memory does not depend on the size of the model.
Servers need no memory for this that they did not need before, and no access to the controller's disk: there is one way
for servers on its host and on others.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.checkpoint.files import CheckpointWriter
from labkit.elastic.checkpoint.manifest import BadCheckpointError, BlockEntry
from labkit.elastic.checkpoint.store import Checkpoints, SavedBlock, VerifiedCheckpoint, check_blocks
from labkit.elastic.controller.connections import ControllerRuntime
from labkit.elastic.controller.controller_state import Keep, Load
from labkit.elastic.controller.losses import STOP, NotFiniteError
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.codec import FrameKind, at, encode
from labkit.elastic.protocol.messages.orders import DropCopies, SendCopies
from labkit.elastic.protocol.messages.reports import BlockCopied, CopyLate
from labkit.elastic.server.block import Block
from labkit.elastic.shards import SavedShards
from labkit.elastic.transport import Message, RemoteError, TransportError

ROOM: Final = 1.2
"""Free bytes of a place, per byte of a checkpoint, from which on the last state is saved there."""


class CheckpointKeeper:
    """Writes checkpoints in a thread of its own, and loads the newest one into the servers."""

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
        message = f"the last state is saved in {elsewhere}, since it could not be saved in the job's folder: {why}"
        self._runtime.events.write("told", {"what": message})
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
        if self._fetches and self._fetches[0] is fetch:
            self._fetches.popleft()
            self._begin()

    def _drop(self, version: int) -> None:
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


@dataclass(slots=True, eq=False)
class _Sending:
    """The blocks of a verified checkpoint that have not arrived at their owners."""

    command: Load
    found: VerifiedCheckpoint
    left: deque[BlockEntry]
    n_left: int
    waiting_bytes: int = 0

    def next(self) -> list[BlockEntry]:
        """Return the blocks to send now."""
        chosen = []
        while self.left:
            n_bytes = self.bytes_of(self.left[0])
            if self.waiting_bytes and self.waiting_bytes + n_bytes > WINDOW_BYTES:
                break
            self.waiting_bytes += n_bytes
            chosen.append(self.left.popleft())
        return chosen

    def bytes_of(self, entry: BlockEntry) -> int:
        """Return the bytes of a block, its optimizer state included."""
        return 4 * entry.n * (1 + len(self.found.manifest.state))


class CheckpointLoading:
    """Loads the newest good checkpoint into the servers.

    It reads twice: no server gets a block of a checkpoint that has a bad one.
    """

    def __init__(
        self,
        runtime: ControllerRuntime,
        processes: MemberProcesses,
        checkpoints: Checkpoints,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._runtime, self._processes, self._machine = runtime, processes, runtime.machine
        self._checkpoints, self._thread = checkpoints, thread

    def load(self, command: Load) -> None:
        """Send every block of the newest good checkpoint to its owner."""
        self._thread.submit(self._find, command)

    def _current(self, command: Load) -> bool:
        return command.era == self._machine.job.era

    def _find(self, command: Load) -> None:
        loop, events = self._runtime.loop, self._runtime.events
        if not self._current(command):
            return
        try:
            checkpoint = self._checkpoints.newest_verified(
                on_bad=lambda bad: loop.post(events.write, "bad_checkpoint", {"why": str(bad)})
            )
        except LabkitError as error:
            loop.post(self._runtime.give_up, str(error))
        except (OSError, MemoryError) as error:
            loop.post(self._runtime.give_up, f"no checkpoint can be read: {type(error).__name__}: {error}")
        else:
            entries = sorted(checkpoint.manifest.blocks, key=lambda entry: entry.number)
            loop.post(self._send_next, _Sending(command, checkpoint, deque(entries), len(entries)))

    def _send_next(self, sending: _Sending) -> None:
        if self._current(sending.command):
            for entry in sending.next():
                self._thread.submit(self._read, sending, entry)

    def _read(self, sending: _Sending, entry: BlockEntry) -> None:
        if not self._current(sending.command):
            return
        try:
            saved = sending.found.block(entry)
        except (BadCheckpointError, OSError, MemoryError) as error:
            self._runtime.loop.post(self._on_unreadable, sending, str(error))
        else:
            self._runtime.loop.post(self._send, sending, entry, saved)

    def _on_unreadable(self, sending: _Sending, why: str) -> None:
        """Begin again, in another era, after a block was good and is not any more."""
        if self._current(sending.command):
            self._runtime.events.write("bad_checkpoint", {"why": why})
            self._runtime.execute(self._machine.unloaded())

    def _send(self, sending: _Sending, entry: BlockEntry, saved: SavedBlock) -> None:
        if not self._current(sending.command):
            return
        owner = sending.command.owner[entry.number]
        channel = self._processes.channel(owner)
        if channel is None:
            return  # the owner died: its end begins another era
        block = Block(
            number=entry.number, params=saved.params, state=dict(saved.state), version=saved.version,
            seen=dict(saved.seen),
        )  # fmt: skip
        with contextlib.suppress(TransportError):
            step = at(sending.command.era, sending.found.step)
            reply = channel.request(
                FrameKind.STATE, *block.vectors(), meta=encode(block.description()), block=entry.number, step=step
            )  # fmt: skip
            reply.add_done_callback(partial(self._on_reply, sending, owner, entry))

    def _on_reply(self, sending: _Sending, owner: str, entry: BlockEntry, done: Future[Message]) -> None:
        """Handle a server's reply, in any thread; after a lost connection the server ends, or reports what it has."""
        failure = done.exception()
        if failure is None:
            self._runtime.loop.post(self._on_arrived, sending, entry)
        elif isinstance(failure, RemoteError):
            self._runtime.loop.post(self._on_refused, owner, sending.command, str(failure))

    def _on_arrived(self, sending: _Sending, entry: BlockEntry) -> None:
        if not self._current(sending.command):
            return
        sending.waiting_bytes -= sending.bytes_of(entry)
        sending.n_left -= 1
        if sending.n_left:
            self._send_next(sending)
        else:
            self._runtime.execute(self._machine.loaded(sending.found.step, queue=sending.found.queue))

    def _on_refused(self, server: str, command: Load, why: str) -> None:
        """Replace a server that refused a block: training would wait for it."""
        if self._current(command) and self._processes.is_running(server):
            self._runtime.events.write("unloaded", {"name": server, "why": why})
            self._processes.kill(server, Cause.UNREACHABLE)


WINDOW_BYTES: Final = 24 << 20
"""Bytes of copies that are on their way from servers to the disk. One block may always be, however large it is."""


@dataclass(slots=True, eq=False)
class CopyFetch:
    """The copies of one version on their way from the servers to the disk."""

    version: int
    turn: int
    """`version` and `turn`: of the copies; number of the attempt."""
    queue: SavedShards | None
    """State of the shard queue at that version."""
    sizes: Sequence[int]
    """Bytes of each block, its optimizer state included."""
    left: deque[tuple[int, str]]
    """(block, server) that are to be asked for."""
    asked: dict[int, str] = field(default_factory=dict)
    """Server of each block that was asked for and has not arrived."""
    waiting_bytes: int = 0
    """Bytes that were asked for and are not written."""
    n_left: int = 0
    """Blocks that are not written."""
    draft: CheckpointWriter | None = None
    """The checkpoint as far as it is written; only the thread of the writer uses it."""
    over: bool = False
    """Whether it was given up: what arrives is dropped."""

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
        by_server: dict[str, list[int]] = defaultdict(list)
        while self.left:
            n_bytes = self.sizes[self.left[0][0]]
            if self.waiting_bytes and self.waiting_bytes + n_bytes > WINDOW_BYTES:
                break
            block, server = self.left.popleft()
            self.asked[block] = server
            self.waiting_bytes += n_bytes
            by_server[server].append(block)
        return by_server

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
