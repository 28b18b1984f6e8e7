"""The output format of programs on hosts: messages, cut into frames with lengths and ended by a SHA-256.

A message is a line that begins it, any number of frames `D LENGTH` with as many bytes behind the line, and a last one:
`E TOTAL SHA256`, or `X REASON` where the rest cannot be sent. Whatever else gets into the output, a greeting or the
warning of a library, is not a message. `labkit.testbed.ssh.host_messages` reads them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

BEGIN = b"\036labkit-message\n"
CHUNK = 1 << 18


class FramedMessage:
    """A message that is sent part by part; each part but the last is a whole number of chunks."""

    def __init__(self) -> None:
        self.out, self.sum, self.total = sys.stdout.buffer, hashlib.sha256(), 0
        self.out.write(BEGIN)

    def write(self, data: bytes) -> None:
        """Send the next bytes."""
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            self.out.write(b"\036D %d\n" % len(part) + part)
            self.sum.update(part)
        self.total += len(data)

    def end(self) -> None:
        """Send the end of the message."""
        self.out.write(b"\036E %d %s\n" % (self.total, self.sum.hexdigest().encode()))
        self.out.flush()

    def fail(self, why: str) -> None:
        """Report that the rest cannot be sent, and why."""
        self.out.write(b"\036X %s\n" % json.dumps(why[:500]).encode())
        self.out.flush()


def send(value: Any) -> None:
    """Send a value as JSON."""
    message = FramedMessage()
    message.write(json.dumps(value).encode())
    message.end()
