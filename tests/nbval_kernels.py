"""How nbval reaches its kernels: by files, without a limit on what they say.

* jupyter_client picks ports that are free, and the kernel binds them a second later: of kernels that start side by
  side, one in hundreds finds a port taken, and dies.
* nbval hears a kernel only after a cell has ended, and ZeroMQ keeps 1000 messages: fewer than a live view says.
"""

from __future__ import annotations

import tempfile
from itertools import count
from typing import Any

import nbval.kernel
import zmq
from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.manager import KernelManager

_sockets = tempfile.TemporaryDirectory(prefix="nbval-")
_numbers = count()
_connected = ConnectionFileMixin._create_connected_socket


class _KernelManager(KernelManager):
    def __init__(self, **options: Any) -> None:
        super().__init__(transport="ipc", ip=f"{_sockets.name}/{next(_numbers)}", **options)


def _unlimited(client: Any, channel: str, identity: bytes | None = None) -> zmq.Socket[bytes]:
    client.context.rcvhwm = 0
    return _connected(client, channel, identity)


nbval.kernel.KernelManager = _KernelManager
ConnectionFileMixin._create_connected_socket = _unlimited  # type: ignore[method-assign]
