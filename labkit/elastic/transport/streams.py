"""Byte streams over sockets: blocking, directly from and into the caller's buffers."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from typing import Protocol

MAX_PARTS = 512
"""Buffers per system call; Linux allows 1024 [IOV_MAX]."""
MAX_FILES = 4
"""File descriptors that may come with one frame; the kernel closes more."""

NEAR_BYTES = 96 * 1024
"""Send buffer of TCP within one host: without network delay a small one suffices, and it stays in the caches."""

_ROOM = socket.CMSG_SPACE(MAX_FILES * struct.calcsize("i"))
_QUIET, _AT_ONCE = int(socket.MSG_NOSIGNAL), int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_ALL, _ALL_WITH_FILES = int(socket.MSG_WAITALL), int(socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC)


class Stream(Protocol):
    """A byte stream in each direction; one thread may receive while another sends."""

    passes_files: bool
    """Whether file descriptors can be sent with bytes."""

    def receive(self, view: memoryview) -> int:
        """Fill a view; return how many bytes arrived before a heartbeat time passed without any.

        Raise EOFError if the peer has ended its direction, or this stream was aborted.
        """
        ...

    def receive_with_files(self, view: memoryview) -> tuple[int, list[int]]:
        """Do the same, and return the file descriptors that arrived with the bytes."""
        ...

    def send(self, parts: list[memoryview], *, file: int | None = None) -> None:
        """Send all parts, however long that takes, with a file descriptor if one is given."""
        ...

    def offer(self, parts: list[memoryview]) -> int:
        """Send what the kernel accepts at once; return the number of bytes."""
        ...

    def end(self) -> None:
        """End this direction; the peer still reads all bytes before the end."""
        ...

    def abort(self) -> None:
        """End both directions at once; threads that wait in this stream return."""
        ...

    def close(self) -> None:
        """Close the socket, after both threads have ended."""
        ...


def rest(parts: list[memoryview], n_sent: int) -> list[memoryview]:
    """Return the remainder of parts after so many bytes are sent.

    >>> [bytes(part) for part in rest([memoryview(b"abc"), memoryview(b"de")], 4)]
    [b'e']
    """
    for position, part in enumerate(parts):
        if n_sent < len(part):
            return [part[n_sent:], *parts[position + 1 :]]
        n_sent -= len(part)
    return []


class SocketStream:
    """A stream over a connected unix or TCP socket.

    `sock`: connected; this stream closes it. `beat_s`: seconds that one call of `receive` waits for bytes.
    """

    def __init__(self, sock: socket.socket, *, beat_s: float) -> None:
        self.sock = sock
        self.passes_files = sock.family == socket.AF_UNIX
        sock.settimeout(None)  # blocking mode, in which MSG_WAITALL waits for all bytes
        wait_us = max(1000, round(beat_s * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", *divmod(wait_us, 1_000_000)))
        if not self.passes_files:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _is_near(sock):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BYTES)

    def receive(self, view: memoryview) -> int:
        """See Stream."""
        try:
            n_got = self.sock.recv_into(view, len(view), _ALL)
        except BlockingIOError:
            return 0
        if n_got == 0:
            raise EOFError
        return n_got

    def receive_some(self, view: memoryview) -> int:
        """Receive available bytes, at least one; return their number, 0 if none arrived within a heartbeat."""
        try:
            n_got = self.sock.recv_into(view)
        except BlockingIOError:
            return 0
        if n_got == 0:
            raise EOFError
        return n_got

    def receive_with_files(self, view: memoryview) -> tuple[int, list[int]]:
        """See Stream."""
        try:
            n_got, extras, _, _ = self.sock.recvmsg_into([view], _ROOM, _ALL_WITH_FILES)
        except BlockingIOError:
            return 0, []
        files = [handle for extra in extras for handle in _files_in(*extra)]
        if n_got == 0:
            close_files(files)
            raise EOFError
        return n_got, files

    def send(self, parts: list[memoryview], *, file: int | None = None) -> None:
        """See Stream."""
        extras: Sequence[tuple[int, int, bytes]] = ()
        if file is not None:
            extras = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file))]
        while parts:
            n_sent = self.sock.sendmsg(parts[:MAX_PARTS], extras, _QUIET)
            parts, extras = rest(parts, n_sent), ()

    def offer(self, parts: list[memoryview]) -> int:
        """See Stream."""
        try:
            return self.sock.sendmsg(parts[:MAX_PARTS], (), _AT_ONCE)
        except BlockingIOError:
            return 0

    def end(self) -> None:
        """See Stream."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """See Stream."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See Stream."""
        self.sock.close()


def _is_near(sock: socket.socket) -> bool:
    """Return whether the other end of a TCP connection is on this host."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:
        return False


def _files_in(level: int, kind: int, data: bytes) -> list[int]:
    if level != socket.SOL_SOCKET or kind != socket.SCM_RIGHTS:
        return []
    handles = array.array("i")
    handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
    return list(handles)


def close_files(files: list[int]) -> None:
    """Close file descriptors that arrived and are not needed."""
    while files:
        os.close(files.pop())
