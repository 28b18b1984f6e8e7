"""How nbval reaches its kernels, by files, without a limit on what they say; and how it compares what they show.

* jupyter_client picks ports that are free, and the kernel binds them a second later: of kernels that start side by
  side, one in hundreds finds a port taken, and dies.
* nbval hears a kernel only after a cell has ended, and ZeroMQ keeps 1000 messages: fewer than a live view says.
* nbval gives up when the last words of a cell take five seconds, as they do beside other work.
* nbval compares numbers to the last digit, in which processors differ: `tests.numbers_alike` says by how much they may.
* Notebooks that take long come first, so that none is waited for alone.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from itertools import count
from typing import Any

import nbval.kernel
import pytest
import zmq
from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.manager import KernelManager
from nbval.plugin import IPyNbCell, transform_streams_for_comparison

from tests.numbers_alike import difference

LONGEST = ("10_", "07_", "09_", "06_", "08_", "05_", "13_", "11_", "03_")

_sockets = tempfile.TemporaryDirectory(prefix="nbval-")
_numbers = count()
_connected = ConnectionFileMixin._create_connected_socket


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort notebooks by how long they take, roughly."""
    items.sort(key=lambda item: next((i for i, n in enumerate(LONGEST) if item.path.name.startswith(n)), len(LONGEST)))


class _KernelManager(KernelManager):
    def __init__(self, **options: Any) -> None:
        super().__init__(transport="ipc", ip=f"{_sockets.name}/{next(_numbers)}", **options)


def _unlimited(client: Any, channel: str, identity: bytes | None = None) -> zmq.Socket[bytes]:
    client.context.rcvhwm = 0
    return _connected(client, channel, identity)


def _compare(cell: IPyNbCell, new: list[Any], stored: list[Any], skip_compare: None = None) -> bool:
    found = difference(_by_type(cell, stored), _by_type(cell, new))
    cell.comparison_traceback = [found] if found else []
    return not found


def _by_type(cell: IPyNbCell, outputs: list[Any]) -> dict[str, list[Any]]:
    """Return what each stream and each MIME type shows, in its order, as nbval's own comparison has it."""
    shown = defaultdict(list)
    for output in transform_streams_for_comparison(outputs):
        for key, value in {**output, **output.get("data", {})}.items():
            if key not in cell.parent.skip_compare and key != "data":
                shown[key].append(cell.sanitize(value))
    return shown


IPyNbCell.compare_outputs = _compare
IPyNbCell.output_timeout = property(lambda cell: 600, lambda cell, seconds: None)
nbval.kernel.KernelManager = _KernelManager
ConnectionFileMixin._create_connected_socket = _unlimited  # type: ignore[method-assign]
