"""A checkpoint on its way from the disk to the servers: all blocks are verified, then sent, a few at a time."""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.checkpoint.manifest import BadCheckpointError, BlockEntry
from labkit.elastic.checkpoint.store import Checkpoints, SavedBlock, VerifiedCheckpoint
from labkit.elastic.controller.copy_fetch import WINDOW_BYTES
from labkit.elastic.controller.event_loop import ControllerRuntime
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.protocol.commands import Load
from labkit.elastic.protocol.frame_kinds import FrameKind, at
from labkit.elastic.protocol.messages.codec import encode
from labkit.elastic.server.block import Block
from labkit.elastic.transport import Message, RemoteError, TransportError


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

    Parameters
    ----------
    runtime, processes
        Of the controller.
    checkpoints : Checkpoints
        Of the job.
    thread : ThreadPoolExecutor
        Reads; its one thread writes too, so that a checkpoint that is being written is complete before.
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
        """Verify the newest checkpoint, in the thread of the reader."""
        loop, events = self._runtime.loop, self._runtime.events
        if not self._current(command):
            return
        try:
            found = self._checkpoints.newest_verified(
                on_bad=lambda bad: loop.post(events.write, "bad_checkpoint", {"why": str(bad)})
            )
        except LabkitError as error:
            loop.post(self._runtime.give_up, str(error))
        except (OSError, MemoryError) as error:
            loop.post(self._runtime.give_up, f"no checkpoint can be read: {type(error).__name__}: {error}")
        else:
            entries = sorted(found.manifest.blocks, key=lambda entry: entry.number)
            loop.post(self._send_next, _Sending(command, found, deque(entries), len(entries)))

    def _send_next(self, sending: _Sending) -> None:
        if self._current(sending.command):
            for entry in sending.next():
                self._thread.submit(self._read, sending, entry)

    def _read(self, sending: _Sending, entry: BlockEntry) -> None:
        """Read a block, in the thread of the reader."""
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
