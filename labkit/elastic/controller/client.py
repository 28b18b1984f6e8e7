"""The line from who has started a job to its controller: dialled again whenever it breaks, each request done once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.elastic.errors import NoAnswerError, OverError
from labkit.elastic.process.time_limits import LOOK_S, Waking
from labkit.elastic.protocol.messages import FrameKind
from labkit.elastic.protocol.spec import CONTROLLER_SOCKET
from labkit.elastic.transport import (
    Access,
    Address,
    Channel,
    Handler,
    Lease,
    RemoteError,
    TransportError,
    connect,
    new_token,
)

ANSWER_LEASES: Final = 10
"""Leases that an answer may take: longer than a controller is away that was killed and is started again."""
ANSWER_S: Final = 30.0
"""Seconds that it may take at least: a busy machine takes some to start a controller, however short the lease."""
REDIAL_S: Final = 0.05
BUSY: Final = "it is alive, and busy or stopped."


class Line:
    """Asks the controller of a job.

    A connection ends when either side stood still for longer than the lease: a laptop that slept, a process that was
    stopped. Then it is dialled again and the request is said again; by its number the controller knows what it has
    done already.

    Parameters
    ----------
    folder : Path
        Of the job.
    lease : Lease
        Of the job.
    ended : Event
        Is set when the job is over.
    limit_s : float, optional
        Seconds that an answer may take; by default `ANSWER_LEASES`, and `ANSWER_S` at least.
    """

    def __init__(self, folder: Path, *, lease: Lease, ended: threading.Event, limit_s: float | None = None) -> None:
        self._address = Address.parse(f"unix:{folder / CONTROLLER_SOCKET}")
        self._lease, self._ended = lease, ended
        self._limit_s = max(ANSWER_LEASES * lease.base_s, ANSWER_S) if limit_s is None else limit_s
        self._channel: Channel | None = None
        self._dialling = threading.Lock()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Return what the controller answers.

        Raises
        ------
        InputError
            If it refuses; the job goes on as it was.
        NoAnswerError
            If it does not answer in time; only time in which this process was awake counts.
        OverError
            If the job is over.
        """
        request = {"do": do, "ask": new_token().hex()[:16], **arguments}
        waking, why = Waking(), BUSY
        while not self._ended.is_set():
            try:
                return self._answered(request, waking)
            except RemoteError as error:
                raise InputError(str(error)) from None
            except TransportError as error:
                why = str(error)
            except TimeoutError:
                why = BUSY
            if waking.look(every_s=self._lease.base_s) > self._limit_s:
                raise NoAnswerError(
                    f"the controller has not answered '{do}' for {self._limit_s:g} s: {why} The job goes on without "
                    "it; ask again, or look at its controller.log."
                )
            self._ended.wait(REDIAL_S)
        raise OverError(f"the job is over and cannot be asked for '{do}' any more; wait() returns its result.")

    def _answered(self, request: dict[str, Any], waking: Waking) -> dict[str, Any]:
        reply = self._dialled().request(FrameKind.TELL, meta=request)
        while True:
            try:
                return dict(reply.result(LOOK_S).meta)
            except TimeoutError:
                if waking.look() > self._limit_s:
                    reply.cancel()
                    raise

    def open(self) -> None:
        """Wait until the controller listens; errors as those of `ask`."""
        self.ask("status")

    def _dialled(self) -> Channel:
        """Return a connection; TransportError if nobody listens."""
        with self._dialling:
            if self._channel is None:
                self._channel = connect(
                    self._address, handler=_Hears(self), access=Access(),
                    hello={"name": "launcher", "role": "client"}, lease=self._lease,
                )  # fmt: skip
            return self._channel

    def hung_up(self, channel: Channel) -> None:
        """Dial again for the next request: this connection is over."""
        with self._dialling:
            if self._channel is channel:
                self._channel = None

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._dialling:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class _Hears(Handler):
    """Hears the end of a connection."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        self._line.hung_up(channel)
