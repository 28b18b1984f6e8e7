"""A client's connection to the controller of a job: it reconnects as needed, and each request is carried out once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, TypeVar

from labkit.core.errors import InputError
from labkit.elastic.errors import NoAnswerError, OverError
from labkit.elastic.process.causes import LOOK_S, Waking
from labkit.elastic.protocol.messages.clients import ClientRequest, GetStatus, JobStatus
from labkit.elastic.protocol.messages.codec import FrameKind, MessageError, decode, encode, hello
from labkit.elastic.protocol.messages.struct import Struct
from labkit.elastic.protocol.program import CONTROLLER_SOCKET
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
"""Leases that an answer may take: more than it takes to restart a controller that was killed."""
ANSWER_S: Final = 30.0
"""Seconds that an answer may always take: a busy machine needs some to start a controller, however short the lease."""
RECONNECT_S: Final = 0.05
BUSY: Final = "it is alive, and busy or stopped."


Answer = TypeVar("Answer", bound=Struct)


def new_id() -> str:
    """Return an id for a request, by which the controller recognises that it is repeated."""
    return new_token().hex()[:16]


class ControllerClient:
    """Sends requests to the controller of a job.

    A connection ends when either process has not run for longer than the lease: a laptop that slept, a process that was
    stopped. The client then connects again and repeats the request under its id, by which the controller recognises a
    request that it has carried out.

    Parameters
    ----------
    folder : Path
        Of the job.
    lease : Lease
        Of the job.
    ended : Event
        Set when the job is over.
    limit_s : float, optional
        Seconds that an answer may take; by default `ANSWER_LEASES`, and `ANSWER_S` at least.
    """

    def __init__(self, folder: Path, *, lease: Lease, ended: threading.Event, limit_s: float | None = None) -> None:
        self._address = Address.parse(f"unix:{folder / CONTROLLER_SOCKET}")
        self._lease, self._ended = lease, ended
        self._limit_s = max(ANSWER_LEASES * lease.base_s, ANSWER_S) if limit_s is None else limit_s
        self._channel: Channel | None = None
        self._connecting = threading.Lock()

    def ask(self, request: ClientRequest, answer: type[Answer]) -> Answer:
        """Return the controller's answer, a message of type `answer`.

        Raise InputError if it refuses the request; nothing has changed then; NoAnswerError if it does not answer in
        time; only time in which this process was awake counts; OverError if the job is over.
        """
        try:
            raw = encode(request)
        except MessageError as error:
            raise InputError(str(error)) from None
        return decode(answer, self._asked(request.WORD, raw))

    def _asked(self, word: str, request: bytes) -> bytes:
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
                    f"the controller has not answered '{word}' for {self._limit_s:g} s: {why} The job goes on without "
                    "it; ask again, or look at its controller.log."
                )
            self._ended.wait(RECONNECT_S)
        raise OverError(f"the job is over and cannot be asked for '{word}' any more; wait() returns its result.")

    def _answered(self, request: bytes, waking: Waking) -> bytes:
        reply = self._connected().request(FrameKind.CLIENT_REQUEST, meta=request)
        while True:
            try:
                return reply.result(LOOK_S).meta
            except TimeoutError:
                if waking.look() > self._limit_s:
                    reply.cancel()
                    raise

    def open(self) -> None:
        """Wait until the controller listens; errors as those of `ask`."""
        self.ask(GetStatus(), JobStatus)

    def _connected(self) -> Channel:
        """Return the connection, which is opened if there is none; TransportError if the controller does not listen."""
        with self._connecting:
            if self._channel is None:
                self._channel = connect(
                    self._address, handler=_Closing(self), access=Access(),
                    hello=hello("launcher", "client"), lease=self._lease,
                )  # fmt: skip
            return self._channel

    def on_closed(self, channel: Channel) -> None:
        """Forget a connection that has ended: the next request opens another."""
        with self._connecting:
            if self._channel is channel:
                self._channel = None

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._connecting:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class _Closing(Handler):
    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        self._client.on_closed(channel)
