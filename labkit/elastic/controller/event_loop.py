"""The loop of the controller's process, and what all of its parts share."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec

from labkit.elastic.controller.job_files import EventWriter
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.commands import Command
from labkit.elastic.protocol.spec import Spec
from labkit.elastic.transport import Lease

P = ParamSpec("P")


class EventLoop:
    """Functions that other threads post, to be called one after the other in the thread of the loop."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Let the loop call a function soon; from any thread."""
        self._posted.put(partial(function, *args, **kwargs))

    def next(self, *, timeout_s: float) -> Callable[[], object] | None:
        """Return the next call that is due; None: none was posted in this time."""
        try:
            return self._posted.get(timeout=timeout_s)
        except queue.Empty:
            return None


@dataclass(frozen=True, slots=True)
class ControllerRuntime:
    """What the parts of the controller's process share.

    Attributes
    ----------
    folder : Path
        Of the job.
    spec : Spec
        Of the job.
    lease : Lease
        From which timeouts derive.
    loop : EventLoop
        In whose thread all methods of the parts run, unless they say otherwise.
    events : EventWriter
        Events of the job.
    machine : Controller
        Decides.
    execute : callable
        Carries out the commands of the machine.
    remember : callable
        Writes the state for the next controller.
    """

    folder: Path
    spec: Spec
    lease: Lease
    loop: EventLoop
    events: EventWriter
    machine: Controller
    execute: Callable[[list[Command]], None]
    remember: Callable[[], None]

    def give_up(self, why: str) -> None:
        """End the job because it cannot go on."""
        self.execute(self.machine.give_up(why))
