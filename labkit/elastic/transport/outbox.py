"""The sending side of a connection: a queue, and one thread that empties it.

A small frame is sent in the thread that posts it, as far as the kernel accepts it without waiting. The sender thread
sends the rest, and all large frames. So no handler waits for a peer that does not read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from labkit.elastic.transport.errors import ClosedError, PeerLostError, TransportError
from labkit.elastic.transport.frames import BYE, PING, Head, pack
from labkit.elastic.transport.streams import Stream, rest
from labkit.elastic.transport.terms import Counts, PeerLimits

SMALL_BYTES = 32 * 1024
"""Largest frame, in bytes, that is offered to the kernel at once."""
TOGETHER_BYTES = 128 * 1024
"""Bytes of waiting small frames that one system call sends, about."""


@dataclass(slots=True)
class _Item:
    sequence: int
    n_bytes: int
    parts: list[memoryview]
    file: int | None = None


class Outbox:
    """The queue of frames to be sent, in order.

    Parameters
    ----------
    stream : Stream
        Carries them.
    counts, limits : Counts, PeerLimits
        Counters, and how many frames may wait.
    heartbeat_s : float
        Seconds without a frame after which a heartbeat is sent.
    first : int
        Number of the last frame that was sent during the greeting.
    on_failure : callable
        Called with the error that ended the sending.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        counts: Counts,
        limits: PeerLimits,
        heartbeat_s: float,
        first: int,
        on_failure: Callable[[TransportError], None],
    ) -> None:
        self._stream, self._counts, self._limits = stream, counts, limits
        self._heartbeat_s, self._on_failure = heartbeat_s, on_failure
        self._sequence = self._sent = first
        self._queue: deque[_Item] = deque()
        lock = threading.Lock()
        self._changed, self._gone = threading.Condition(lock), threading.Condition(lock)
        self._writing = self._ending = self._over = False

    def post(
        self, head: Head, *, meta: bytes = b"", views: list[memoryview] | None = None, file: int | None = None
    ) -> int:
        """Give a frame a number, and send or queue it; return the number.

        Raises
        ------
        ClosedError
            If the connection is closing or over.
        """
        if len(self._queue) >= self._limits.queued_frames:
            lost = PeerLostError(f"{len(self._queue):,} frames wait for a peer that does not read.")
            self._on_failure(lost)
            raise lost
        views = views or []
        with self._changed:
            if self._ending or self._over:
                raise ClosedError("this connection is closed; nothing can be sent any more.")
            item = self._item(head, meta, views, file)
            if self._writing or self._queue or item.n_bytes > SMALL_BYTES or file is not None:
                self._queue.append(item)
                self._changed.notify_all()
                return item.sequence
            self._writing = True
        self._offer(item)
        return item.sequence

    def _item(self, head: Head, meta: bytes, views: list[memoryview], file: int | None) -> _Item:
        n_bytes = sum(map(len, views))
        numbered = Head(
            head.kind, head.flags, len(meta), n_bytes, head.block, head.offset, self._sequence + 1, head.request,
            head.step,
        )  # fmt: skip
        packed = pack(numbered, meta)
        self._sequence += 1
        return _Item(self._sequence, len(packed) + n_bytes, [memoryview(packed), *views], file)

    def _offer(self, item: _Item) -> None:
        """Send what the kernel accepts at once, in the caller's thread."""
        failure, left = None, item.parts
        try:
            left = rest(item.parts, self._stream.offer(item.parts))
        except OSError as error:
            failure = error
        with self._changed:
            self._writing = False
            if left:
                self._queue.appendleft(_Item(item.sequence, item.n_bytes, left))
            else:
                self._note([item])
            if self._queue or self._ending:
                self._changed.notify_all()
        if failure is not None:
            self._on_failure(_lost(failure))

    def run(self) -> None:
        """Run the sender thread: send until the outbox is closed."""
        try:
            while items := self._take():
                self._send(items)
                items.clear()  # not to hold the last payload while there is nothing to send
                self._counts.sender_cpu_s = time.thread_time()
        except OSError as error:
            self._on_failure(error if isinstance(error, TransportError) else _lost(error))
        finally:
            self._stream.end()
            self.stop()

    def _take(self) -> list[_Item]:
        """Wait for frames and return some, or a heartbeat after a time without any; nothing at the end."""
        with self._changed:
            while self._writing or not self._queue:
                if self._over or (self._ending and not self._writing):
                    return []
                if not self._changed.wait(self._heartbeat_s) and not self._writing and not self._queue:
                    self._queue.append(self._item(Head(PING), b"", [], None))
            self._writing = True
            return self._together()

    def _together(self) -> list[_Item]:
        items, n_bytes = [self._queue.popleft()], 0
        while self._queue and items[-1].file is None and self._queue[0].file is None:
            n_bytes += items[-1].n_bytes
            if n_bytes + self._queue[0].n_bytes > TOGETHER_BYTES:
                break
            items.append(self._queue.popleft())
        return items

    def _send(self, items: list[_Item]) -> None:
        try:
            self._stream.send([part for item in items for part in item.parts], file=items[0].file)
        finally:
            with self._changed:
                self._writing = False
        with self._changed:
            self._note(items)

    def _note(self, items: list[_Item]) -> None:
        self._sent = items[-1].sequence
        self._counts.sent_frames += len(items)
        self._counts.sent_bytes += sum(item.n_bytes for item in items)
        self._gone.notify_all()

    def flush(self, number: int | None, *, timeout_s: float | None) -> None:
        """Wait until the kernel has the bytes of a frame, or of all frames so far."""
        with self._changed:
            wanted = self._sequence if number is None else number
            done = self._gone.wait_for(lambda: self._sent >= wanted or self._over, timeout_s)
            if self._sent >= wanted:
                return
        if not done:
            raise TimeoutError(f"frame {wanted:,} was not sent within {timeout_s:g} s.")
        raise ClosedError(f"the connection ended before frame {wanted:,} was sent.")

    def finish(self) -> None:
        """Send the queued frames and a goodbye, and nothing afterwards."""
        with self._changed:
            if self._ending or self._over:
                return
            self._queue.append(self._item(Head(BYE), b"", [], None))
            self._ending = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop sending; queued frames are dropped."""
        with self._changed:
            self._over = True
            self._queue.clear()
            self._changed.notify_all()
            self._gone.notify_all()


def _lost(error: OSError) -> PeerLostError:
    return PeerLostError(f"the peer is gone: {error.strerror or error}.")
