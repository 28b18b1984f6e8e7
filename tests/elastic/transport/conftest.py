"""Short folders for sockets, what opens each scheme, and pairs of connected ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from labkit.elastic.transport import (
    Access,
    Address,
    Authority,
    Handler,
    Lease,
    Listener,
    PeerLimits,
    connect,
    new_token,
)
from labkit.elastic.transport.connection_limits import DEFAULT_LEASE, DEFAULT_LIMITS
from tests.elastic.transport.ends import Noting

SCHEMES = ["shm", "unix", "tls", "tcp"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose sockets have paths that fit (pytest's own are too long)."""
    path = Path(tempfile.mkdtemp(prefix="lk"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def accesses(tmp_path_factory) -> dict[str, Access]:
    keys = tmp_path_factory.mktemp("keys") / "ps-0"
    certificates = Authority("job-1").issue("ps-0", folder=keys)
    clear = Access(token=new_token(), plaintext=True)
    return {"shm": Access(), "unix": Access(), "tls": Access(certificates=certificates), "tcp": clear}


@pytest.fixture
def address(folder) -> Callable[[str], Address]:
    """Return a fresh address of a scheme."""
    made: list[Address] = []

    def make(scheme: str) -> Address:
        local = scheme in ("shm", "unix")
        made.append(Address.parse(f"{scheme}:{folder}/{len(made)}" if local else f"{scheme}://127.0.0.1:0"))
        return made[-1]

    return make


@pytest.fixture
def ends(address, accesses) -> Iterator[Callable[..., Any]]:
    """Return a function from a scheme to (client, server): connected channels whose handlers note everything."""
    with ExitStack() as stack:

        def make(
            scheme: str,
            *,
            server: Handler | None = None,
            client: Handler | None = None,
            lease: Lease = DEFAULT_LEASE,
            limits: PeerLimits = DEFAULT_LIMITS,
        ):
            there = server or Noting()
            access = accesses[scheme]
            listener = Listener(address(scheme), welcome=lambda peer: there, access=access, lease=lease, limits=limits)
            stack.callback(listener.close)
            channel = connect(listener.address, handler=client or Noting(), access=access, lease=lease, limits=limits)
            stack.callback(channel.close)
            return channel, there, listener

        yield make
