"""Room for what a live view says: nbval hears a kernel only after a cell has ended, and ZeroMQ keeps 1000 messages."""

from __future__ import annotations

from typing import Any

import zmq
from jupyter_client.connect import ConnectionFileMixin

connected = ConnectionFileMixin._create_connected_socket


def _roomy(client: Any, channel: str, identity: bytes | None = None) -> zmq.Socket[bytes]:
    client.context.rcvhwm = 0  # no limit
    return connected(client, channel, identity)


ConnectionFileMixin._create_connected_socket = _roomy  # type: ignore[method-assign]
