"""A unix socket that accepts orders for a job: one JSON line in, one JSON line out."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labkit.system.unix_sockets import reached
from labkit.testbed.run.orders import JobReply, message_of

LONGEST: Final = 1 << 20
"""Bytes of the longest line that is read."""

OrderAnswer = Callable[[bytes], JobReply]


@contextlib.contextmanager
def serving(folder: Path, name: str, answer: OrderAnswer) -> Iterator[Path]:
    """Answer orders at a socket in the folder, from processes of the same user; yield its path."""
    with _listening(folder, name) as sock:
        threading.Thread(target=_accept, args=(sock, answer), name=name, daemon=True).start()
        try:
            yield folder / name
        finally:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            (folder / name).unlink(missing_ok=True)


def _listening(folder: Path, name: str) -> socket.socket:
    """Return a listening socket that only processes of this user can connect to."""
    (folder / name).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        with reached(folder / name) as address:
            sock.bind(address)
    finally:
        os.umask(before)
    sock.listen(16)
    return sock


def _accept(sock: socket.socket, answer: OrderAnswer) -> None:
    while True:
        try:
            client, _ = sock.accept()
        except OSError:
            return
        if _uid(client) == os.getuid():
            threading.Thread(target=_attend, args=(client, answer), name="order", daemon=True).start()
        else:
            client.close()


def _uid(client: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def _attend(client: socket.socket, answer: OrderAnswer) -> None:
    """Answer each line until the client closes the connection; a line that is too long ends it."""
    with client, client.makefile("rwb") as lines, contextlib.suppress(OSError):
        while (line := lines.readline(LONGEST)).endswith(b"\n"):
            lines.write(json.dumps(message_of(answer(line))).encode() + b"\n")
            lines.flush()
