"""Real processes: a killed one is noticed at once, a stopped one within the lease, and nothing is left of any."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from labkit.elastic.transport import Address, Lease, Listener, PeerLostError, Region, connect, slices
from tests.elastic.transport.child import ADD_ONE, told
from tests.elastic.transport.conftest import SCHEMES
from tests.elastic.transport.ends import Echo, Noting
from tests.hang import HANG_S

ROOT = Path(__file__).parents[3]
LEASE = Lease(3.0)


@pytest.fixture
def spawned(address, accesses):
    """Return a function from a scheme to (process, channel, handler of this end)."""
    children, channels = [], []

    def spawn(scheme: str, *, lease: Lease = LEASE):
        command = [sys.executable, "-m", "tests.elastic.transport.child", str(address(scheme)), str(lease.base_s)]
        child = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | told(accesses[scheme]), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        children.append(child)
        where = Address.parse(child.stdout.readline().strip())
        handler = Noting()
        channels.append(connect(where, handler=handler, access=accesses[scheme], lease=lease))
        return child, channels[-1], handler

    yield spawn
    for channel in channels:
        channel.close()
    for child in children:
        child.stdin.close()
        child.send_signal(signal.SIGCONT)
        child.wait(HANG_S)
        child.stdout.close()


def stop(child):
    """Stop the process and return when every thread of it stands still: the signal alone is not yet that."""
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_killed_process_is_noticed_before_its_lease_is_over(spawned, scheme):
    child, channel, handler = spawned(scheme)
    numbers = np.arange(1 << 20, dtype=np.float32)
    into = np.zeros_like(numbers)
    replies = [
        channel.request(30, piece, into=into.view(np.uint8)[start : start + len(piece)], offset=start)
        for start, piece in slices(numbers)
    ]
    for reply in replies:
        reply.result(HANG_S)
    assert hashlib.sha256(into).digest() == hashlib.sha256(numbers).digest()
    stop(child)  # so that the next request is certainly on its way when the process dies
    reply = channel.request(30, b"never answered")
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(PeerLostError):
        reply.result(HANG_S)
    assert isinstance(end := handler.end(), PeerLostError)
    assert "silent for its lease" not in str(end)


def test_a_stopped_process_is_noticed_within_the_lease_but_not_before_half_of_it(spawned):
    lease = Lease(1.0)
    child, _, handler = spawned("unix", lease=lease)
    began_s = time.monotonic()
    stop(child)
    assert "silent for its lease of 1 s" in str(handler.end())
    assert 0.5 * lease.base_s < time.monotonic() - began_s


def test_a_process_that_pauses_for_less_than_the_lease_is_kept(spawned):
    lease = Lease(2.0)
    child, channel, handler = spawned("unix", lease=lease)
    stop(child)
    assert not handler.is_over.wait(0.4 * lease.base_s)
    os.kill(child.pid, signal.SIGCONT)
    assert bytes(channel.request(30, b"awake").result(HANG_S).payload) == b"awake"


def test_shared_memory_is_worked_on_in_place_by_another_process(spawned):
    child, channel, handler = spawned("shm")
    region = Region(1 << 22, writable=True)
    assert channel.share(region)
    numbers = np.frombuffer(region.view, np.float32)
    numbers[:] = np.arange(1 << 20)
    sent_before = channel.counts.sent_bytes
    for reply in [channel.request(ADD_ONE, piece) for _, piece in slices(numbers)]:
        message = reply.result(HANG_S)
        assert np.shares_memory(np.frombuffer(message.payload, np.float32), numbers)
    np.testing.assert_array_equal(numbers, np.arange(1, (1 << 20) + 1))
    assert channel.counts.sent_bytes - sent_before < 1000
    child.kill()
    assert isinstance(handler.end(), PeerLostError)
    numbers += 1  # the memory outlives the peer


def settled(listener: Listener) -> tuple[int, int]:
    """Return how many files are open and how many threads run, once connections that end have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith(("reader", "sender", "greeting")):
            thread.join(HANG_S)
    assert listener.connections == ()
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def n_maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:labkit")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_200_connections_leave_no_file_no_thread_and_no_memory(scheme, address, accesses):
    server = Echo()
    listener = Listener(address(scheme), welcome=lambda peer: server, access=accesses[scheme])
    region = Region(1 << 16)
    n_mapped = n_maps()

    def once():
        channel = connect(listener.address, handler=Noting(), access=accesses[scheme])
        channel.share(region)
        channel.request(30, region.view[:1000]).result(HANG_S)
        channel.close()

    once()
    before = settled(listener)
    for _ in range(200):
        once()
    assert settled(listener) == before
    assert n_maps() == n_mapped
    listener.close()
    assert threading.active_count() == before[1] - 1
