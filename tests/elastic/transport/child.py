"""A process at the other end: python -m tests.elastic.transport.child ADDRESS, with what opens it in its environment.

It answers every request with what it brought, adds one in place to what it is given in shared memory (kind 31), and
ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from labkit.elastic.transport import Access, Address, Certificates, Channel, Lease, Listener, Message
from tests.elastic.transport.ends import Echo

ADD_ONE = 31


class Adding(Echo):
    def received(self, channel: Channel, message: Message) -> None:
        if message.head.kind == ADD_ONE:
            np.frombuffer(message.payload, np.float32)[:] += 1
        super().received(channel, message)


def told(access: Access) -> dict[str, str]:
    """Return what a child needs to know to be let in, for its environment; never on its command line."""
    known = {"token": access.token.hex(), "plaintext": access.plaintext, "certificates": None}
    if access.certificates is not None:
        known["certificates"] = {name: str(value) for name, value in asdict(access.certificates).items()}
    return {"LABKIT_TEST_ACCESS": json.dumps(known)}


def heard() -> Access:
    known = json.loads(os.environ["LABKIT_TEST_ACCESS"])
    names = known["certificates"]
    certificates = names and Certificates(names.pop("job"), **{name: Path(path) for name, path in names.items()})
    return Access(certificates=certificates, token=bytes.fromhex(known["token"]), plaintext=known["plaintext"])


def main(address: str, lease_s: str) -> None:
    listener = Listener(
        Address.parse(address), welcome=lambda peer: Adding(), access=heard(), lease=Lease(float(lease_s))
    )
    print(listener.address, flush=True)
    sys.stdin.read()
    listener.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
