"""Checkpoints in the controller's process: copies of blocks are written, and saved blocks go to their owners."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.checkpoint.store import Checkpoint, check_blocks
from labkit.elastic.controller.event_loop import ControllerRuntime
from labkit.elastic.controller.losses import STOP, NotFiniteError
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.protocol.commands import Keep, Load
from labkit.elastic.protocol.frame_kinds import FrameKind, at, era_and_version
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.codec import encode
from labkit.elastic.server.block import Block
from labkit.elastic.transport import Message, RemoteError, TransportError


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
        self._copies: dict[int, dict[int, Block]] = {}
        """Copies that have arrived: version -> block -> copy."""

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.shutdown()

    # --- writing

    def on_copy(self, message: Message, described: BlockState) -> None:
        """Take the copy of a block; the machine is told when those of all blocks at a version are there."""
        era, version = era_and_version(message.head.step)
        if era != self._machine.job.era:
            return
        blocks = self._copies.setdefault(version, {})
        blocks[message.head.block] = Block.arrived(message.head.block, message.payload, described)
        if len(blocks) == len(self._runtime.spec.extents):
            for old in [v for v in self._copies if v < version]:
                del self._copies[old]
            self._runtime.execute(self._machine.copied(version))

    def keep(self, command: Keep) -> None:
        """Write the copies of a version as a checkpoint."""
        blocks, owner = self._copies.pop(command.version), self._machine.job.owner
        by_owner: dict[str, list[Block]] = {}
        for number, block in blocks.items():
            by_owner.setdefault(owner[number], []).append(block)
        self._writer.submit(self._write, command.version, by_owner, command.queue)

    def _write(self, version: int, by_owner: Mapping[str, list[Block]], queue: Any) -> None:
        """Write a checkpoint, in the thread of the writer."""
        spec, loop = self._runtime.spec, self._runtime.loop
        try:
            if spec.on_nan == STOP:
                check_blocks((block for blocks in by_owner.values() for block in blocks), spec.layout, step=version)
            self._checkpoints.save(version, by_owner, queue=queue, mixed=not spec.sync)
        except NotFiniteError as error:
            loop.post(self._runtime.give_up, str(error))
        except LabkitError as error:
            loop.post(self._on_unsaved, version, str(error))
        except (OSError, MemoryError, LookupError) as error:
            loop.post(self._on_unsaved, version, f"{type(error).__name__}: {error}")
        else:
            loop.post(self._on_saved, version)

    def _on_saved(self, version: int) -> None:
        self._runtime.execute(self._machine.saved_at(version))

    def _on_unsaved(self, version: int, why: str) -> None:
        self._runtime.execute(self._machine.unsaved(version, why))

    # --- loading

    def load(self, command: Load) -> None:
        """Send every block of the newest good checkpoint to its owner."""
        self._copies.clear()
        try:
            newest = self._checkpoints.newest(
                on_bad=lambda bad: self._runtime.events.write("bad_checkpoint", {"why": str(bad)})
            )
        except LabkitError as error:
            self._runtime.give_up(str(error))
            return
        loading = _Loading(self, command.era, newest)
        for number, saved in newest.blocks.items():
            owner = command.owner[number]
            channel = self._processes.channel(owner)
            if channel is None:
                return  # the owner died: its end begins another era
            block = Block(
                number=number, params=saved.params, state=dict(saved.state), version=saved.version,
                seen=dict(saved.seen),
            )  # fmt: skip
            with contextlib.suppress(TransportError):
                step = at(command.era, newest.step)
                reply = channel.request(
                    FrameKind.STATE, *block.vectors(), meta=encode(block.description()), block=number, step=step
                )  # fmt: skip
                reply.add_done_callback(partial(loading.on_reply, owner))

    def post_loaded(self, era: int, version: int, queue: Any) -> None:
        """Let the loop tell the machine that a checkpoint is loaded; from any thread."""
        self._runtime.loop.post(self._on_loaded, era, version, queue)

    def _on_loaded(self, era: int, version: int, queue: Any) -> None:
        if era == self._machine.job.era:
            self._runtime.execute(self._machine.loaded(version, queue=queue))

    def post_refused(self, server: str, era: int, why: str) -> None:
        """Let the loop replace a server that refused a block: training would wait for it; from any thread."""
        self._runtime.loop.post(self._on_refused, server, era, why)

    def _on_refused(self, server: str, era: int, why: str) -> None:
        if era == self._machine.job.era and self._processes.is_running(server):
            self._runtime.events.write("unloaded", {"name": server, "why": why})
            self._processes.kill(server, Cause.UNREACHABLE)


class _Loading:
    """Counts the blocks of a checkpoint that have not arrived at their owners."""

    def __init__(self, keeper: CheckpointKeeper, era: int, checkpoint: Checkpoint) -> None:
        self._keeper, self._era, self._checkpoint = keeper, era, checkpoint
        self._n_left, self._lock = len(checkpoint.blocks), threading.Lock()

    def on_reply(self, owner: str, done: Future[Message]) -> None:
        """Handle a server's reply, in any thread; after a lost connection the server ends, or reports what it has."""
        failure = done.exception()
        if failure is not None:
            if isinstance(failure, RemoteError):
                self._keeper.post_refused(owner, self._era, str(failure))
            return
        with self._lock:
            self._n_left -= 1
            if not self._n_left:
                self._keeper.post_loaded(self._era, self._checkpoint.step, self._checkpoint.queue)
