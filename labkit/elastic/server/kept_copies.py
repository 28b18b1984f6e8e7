"""Copies of blocks for a checkpoint, which a server keeps until the controller asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.frame_kinds import at, era_and_version
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.reports import BlockCopied, CopyLate, SendReport


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """The copy of a block: its vectors, and what a checkpoint needs besides."""

    block: int
    step: int
    vectors: list[Vector]
    described: BlockState


SendCopy = Callable[[KeptCopy, int], None]
"""Sends the controller a copy, with the turn of its order."""


class KeptCopies:
    """The copies of one server.

    The controller asks for a few at a time, as fast as they are written, so that its memory does not grow with the
    model.

    Parameters
    ----------
    report : callable
        Sends the controller a report.
    send : callable
        Sends the controller a copy.
    """

    def __init__(self, *, report: SendReport, send: SendCopy) -> None:
        self._report, self._send_one = report, send
        self._lock = threading.Lock()
        self._kept: dict[int, dict[int, KeptCopy]] = {}
        """Copies by `at(era, version)` and block."""

    def keep(self, block: int, step: int, vectors: list[Vector], described: BlockState) -> None:
        """Keep the copy of a block, and report it."""
        with self._lock:
            self._kept.setdefault(step, {})[block] = KeptCopy(block, step, vectors, described)
        era, version = era_and_version(step)
        fault.at("ps.copy.kept")
        self._report(BlockCopied(block, version, era=era))

    def send(self, blocks: Iterable[int], *, era: int, version: int, turn: int) -> None:
        """Send copies and forget them, and those of earlier versions; report those that are not here."""
        step, missing = at(era, version), []
        self.drop(step - 1)
        for block in blocks:
            with self._lock:
                copy = self._kept.get(step, {}).pop(block, None)
            if copy is None:
                missing.append(block)
            else:
                fault.at("ps.copy.sending")
                self._send_one(copy, turn)
        if missing:
            self._report(CopyLate(version, missing[:100], era=era))

    def drop(self, step: int) -> None:
        """Forget the copies of a version, given as `at(era, version)`, and of earlier ones."""
        with self._lock:
            for old in [known for known in self._kept if known <= step]:
                del self._kept[old]
