"""Whether a run that goes on in a thread may make its next decision: paused, one step at a time, or to be stopped."""

from __future__ import annotations

import threading


class RunGate:
    """Steered from any thread; the run's thread waits at it before each decision.

    Attributes
    ----------
    stopping : bool
        Whether the run is to end.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._paused, self._tickets = False, 0
        self.stopping = False

    def open(self) -> None:
        """Let decisions be made."""
        self._change(paused=False, tickets=0)

    def close(self) -> None:
        """Let no decision be made until `open` or `admit`."""
        self._change(paused=True, tickets=0)

    def admit(self) -> None:
        """Let one decision be made, and no further one."""
        self._change(paused=True, tickets=self._tickets + 1)

    def stop(self) -> None:
        """End all waiting: no decision is made any more."""
        with self._turn:
            self.stopping = True
            self._turn.notify_all()

    def _change(self, *, paused: bool, tickets: int) -> None:
        with self._turn:
            self._paused, self._tickets = paused, tickets
            self._turn.notify_all()

    @property
    def shut(self) -> bool:
        """Whether the run has to wait."""
        return self._paused and not self._tickets and not self.stopping

    def wait(self) -> None:
        """Wait while it is shut."""
        with self._turn:
            self._turn.wait_for(lambda: not self.shut)

    def pass_through(self) -> bool:
        """Take the right to one decision; False: the run is to stop."""
        with self._turn:
            self._tickets = max(self._tickets - 1, 0)
            return not self.stopping
