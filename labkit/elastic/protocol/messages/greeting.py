"""What a process of a job says about itself when it connects, or is connected to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit.elastic.protocol.messages.codec import VERSION, MessageError, from_json, to_json
from labkit.elastic.protocol.messages.struct import Count, Struct, Text
from labkit.elastic.transport import AccessError, Peer


@dataclass(frozen=True, slots=True)
class Hello(Struct):
    """The greeting of a process.

    Attributes
    ----------
    name, role : str
        Name of the process; "server", "worker", "host" (a launcher), "client" or "controller".
    version : int
        Version of the messages that it sends.
    pid : int
        Process number on its host.
    address : str
        At which other members reach it; "": they do not.
    unable : str
        Why it cannot do its part; "": it can.
    token : str
        Of the controller: the key of connections in clear.
    """

    name: Text
    role: Text
    version: Count
    pid: Count = 0
    address: Text = ""
    unable: Text = ""
    token: Text = field(default="", repr=False)


def hello(
    name: str, role: str, *, pid: int = 0, address: str = "", unable: str = "", token: str = ""
) -> Mapping[str, object]:
    """Return the greeting of this process, as the transport sends it.

    >>> hello("worker-0", "worker", pid=7)
    {'name': 'worker-0', 'role': 'worker', 'version': 1, 'pid': 7}
    """
    said = Hello(name, role, VERSION, pid, address, unable, token)
    fields: dict[str, object] = json.loads(to_json(said, defaults=False))
    return fields


def greeted(peer: Peer) -> Hello:
    """Return the greeting of a peer.

    Raises
    ------
    AccessError
        If it is malformed, or its process sends messages of another version.
    """
    try:
        said = from_json(Hello, json.dumps(dict(peer.hello)).encode())
    except MessageError as error:
        raise AccessError(f"the greeting is malformed: {error}") from None
    if said.version != VERSION:
        raise AccessError(
            f"{said.name[:60]} sends messages of version {said.version}, and this process of version {VERSION}: "
            "install the same labkit on all hosts."
        )
    return said
