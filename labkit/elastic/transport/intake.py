"""Whole frames from a stream, one after another, each checked before it is used."""

from __future__ import annotations

import time

from labkit.elastic.transport.errors import PeerLostError
from labkit.elastic.transport.frames import HEADER, FrameOrder, Head, unpack, verify
from labkit.elastic.transport.streams import Stream, close_files
from labkit.elastic.transport.terms import Counts, Lease, PeerLimits

SCRATCH_BYTES = 64 * 1024


class Intake:
    """The receiving side of a stream.

    Parameters
    ----------
    stream : Stream
        Source of the bytes.
    lease : Lease
        Limits the time without bytes.
    limits : PeerLimits
        Largest frames.
    counts : Counts
        Counters of frames and bytes.
    deadline_s : float, optional
        Time of time.monotonic by which all frames must have arrived.
    """

    def __init__(
        self, stream: Stream, *, lease: Lease, limits: PeerLimits, counts: Counts, deadline_s: float | None = None
    ) -> None:
        self._stream, self._lease, self._counts, self._limits = stream, lease, counts, limits
        self._deadline_s = deadline_s
        self._header = memoryview(bytearray(HEADER.size))
        self._scratch = memoryview(bytearray(max(SCRATCH_BYTES, limits.meta_bytes)))
        self._begun_s: float | None = None
        self.order = FrameOrder()
        self.files: list[int] = []
        """File descriptors that arrived with the present frame."""

    def next(self) -> tuple[Head, bytes]:
        """Return head and meta part of the next frame that is not a duplicate; the caller reads its payload.

        Raises
        ------
        EOFError
            At the end of the stream, between frames.
        FrameError
            If the bytes are not a frame, or the frame is beyond the limits or out of order.
        PeerLostError
            If nothing arrived for the length of the lease, or the stream ended within a frame.
        """
        while True:
            head, meta = self._next()
            if self.order.fresh(head.sequence):
                return head, meta
            self._counts.refused["replayed"] += 1
            self.skip(head.payload_bytes)

    def _next(self) -> tuple[Head, bytes]:
        close_files(self.files)
        self._begun_s = None
        self.fill(self._header, header=True)
        head, check = unpack(self._header, limits=self._limits)
        raw = self._scratch[: head.meta_bytes]
        if head.meta_bytes:
            self.fill(raw)
        verify(self._header, raw, check)
        self._counts.received_frames += 1
        self._counts.received_bytes += HEADER.size + head.meta_bytes + head.payload_bytes
        return head, bytes(raw)

    def fill(self, view: memoryview, *, header: bool = False) -> None:
        """Receive bytes until the view is full."""
        n_got, n_silent = 0, 0
        while n_got < len(view):
            try:
                n_more = self._receive(view[n_got:], header=header)
            except EOFError:
                if header and n_got == 0:
                    raise
                raise PeerLostError("the peer ended in the middle of a frame.") from None
            n_got += n_more
            n_silent = 0 if n_more else n_silent + 1
            if n_got < len(view):
                self._check_time(n_silent, begun=n_got > 0 or not header)

    def _receive(self, view: memoryview, *, header: bool) -> int:
        if not header or not self._stream.passes_files:
            return self._stream.receive(view)
        n_got, files = self._stream.receive_with_files(view)
        self.files += files
        return n_got

    def _check_time(self, n_silent: int, *, begun: bool) -> None:
        now_s = time.monotonic()
        if self._deadline_s is not None and now_s > self._deadline_s:
            raise PeerLostError(f"the peer did not show who it is within {self._lease.greeting_s:g} s.")
        if n_silent >= self._lease.silent_beats:
            raise PeerLostError(f"the peer has been silent for its lease of {self._lease.base_s:g} s.")
        if begun:
            self._begun_s = self._begun_s or now_s
            if now_s - self._begun_s > self._lease.frame_s:
                raise PeerLostError(f"a frame was not complete after {self._lease.frame_s:g} s: the link is too slow.")

    def skip(self, n_bytes: int) -> None:
        """Read a payload and drop it."""
        while n_bytes:
            step = min(n_bytes, len(self._scratch))
            self.fill(self._scratch[:step])
            n_bytes -= step
