"""Shared memory gives a peer what it was given, and nothing else."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.elastic.transport import FrameError, OversizedError, PeerLimits, Region
from labkit.elastic.transport.shared import REFERENCE, Regions, moved


def shared(*regions: Region, limits: PeerLimits | None = None) -> tuple[Regions, Regions]:
    """Return what two ends know of regions that the first one shares."""
    mine, theirs = Regions(limits or PeerLimits()), Regions(limits or PeerLimits())
    for region in regions:
        theirs.accept(region.fileno(), mine.describe(region))
        mine.add(region)
    return mine, theirs


@given(st.data())
def test_both_ends_mean_the_same_bytes(data):
    sizes = data.draw(st.lists(st.integers(1, 9000), min_size=1, max_size=4))
    regions = [Region(size) for size in sizes]
    mine, theirs = shared(*regions)
    which = data.draw(st.integers(0, len(sizes) - 1))
    start = data.draw(st.integers(0, sizes[which] - 1))
    end = data.draw(st.integers(start + 1, sizes[which]))
    regions[which].view[start:end] = bytes(range(1, 256)) * 40 and (b"\x07" * (end - start))
    seen = theirs.resolve(mine.refer(regions[which].view[start:end]))
    assert bytes(seen) == b"\x07" * (end - start)
    back = mine.resolve(theirs.refer(seen))
    assert np.shares_memory(np.frombuffer(back, np.uint8), np.frombuffer(regions[which].view, np.uint8))


@given(st.binary(max_size=40) | st.builds(REFERENCE.pack, *[st.integers(0, 255), *[st.integers(0, 9000)] * 3]))
def test_a_reference_points_into_a_shared_region_or_is_refused(raw):
    region = Region(4096)
    _, theirs = shared(region)
    try:
        seen = theirs.resolve(raw)
    except FrameError:
        return
    owner, number, offset, n_bytes = REFERENCE.unpack(raw)
    assert (owner, number) == (0, 0)
    assert offset + n_bytes <= 4096
    assert len(seen) == n_bytes


def test_memory_of_no_region_or_beyond_one_is_not_referred_to():
    region = Region(4096)
    mine, _ = shared(region)
    assert mine.refer(memoryview(bytearray(10))) is None
    assert Regions(PeerLimits()).refer(region.view) is None


def test_a_peer_may_write_only_where_it_may():
    closed, open_ = Region(4096), Region(4096, writable=True)
    mine, theirs = shared(closed, open_)
    assert theirs.resolve(mine.refer(closed.view)).readonly
    theirs.resolve(mine.refer(open_.view))[:4] = b"mine"
    assert bytes(open_.view[:4]) == b"mine"
    with pytest.raises(PermissionError):  # the kernel itself says no, whatever the peer's code does
        mmap.mmap(closed.fileno(), 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    lying = mine.describe(closed) | {"region": 2, "writable": True}
    with pytest.raises(FrameError, match="cannot be mapped"):
        theirs.accept(closed.fileno(), lying)


def test_a_file_that_could_shrink_under_its_readers_is_refused():
    """A reader of a mapping whose file has shrunk dies of SIGBUS [mmap(2)]."""
    handle = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, 4096)
    with pytest.raises(FrameError, match="could shrink"):
        Regions(PeerLimits()).accept(handle, {"region": 0, "n_bytes": 4096})
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(FrameError, match="smaller than it says"):
        Regions(PeerLimits()).accept(handle, {"region": 0, "n_bytes": 4097})
    os.close(handle)


@pytest.mark.parametrize("told", [{}, {"region": 0}, {"region": 1, "n_bytes": 10}, {"region": 0, "n_bytes": "10"}])
def test_a_region_that_is_not_described_is_refused(told):
    with pytest.raises(FrameError, match="describes no shared region"):
        Regions(PeerLimits()).accept(Region(10).fileno(), told)


def test_regions_are_few_and_not_too_large():
    limits = PeerLimits(region_bytes=4096, n_regions=1)
    _, theirs = shared(Region(4096), limits=limits)
    with pytest.raises(OversizedError, match="beyond the limits"):
        theirs.accept(Region(10).fileno(), {"region": 1, "n_bytes": 10})
    with pytest.raises(OversizedError, match="beyond the limits"):
        Regions(limits).accept(Region(5000).fileno(), {"region": 0, "n_bytes": 5000})


def test_memory_goes_back_when_no_reader_has_it_any_more():
    def n_regions() -> int:
        with open("/proc/self/maps") as maps:
            return maps.read().count("memfd:labkit")

    gc.collect()
    before = n_regions()
    region = Region(1 << 20)
    mine, theirs = shared(region)
    numbers = np.frombuffer(theirs.resolve(mine.refer(region.view)), np.uint8)
    assert n_regions() >= before + 1
    theirs.drop()
    mine.drop()
    assert numbers[0] == 0  # a view keeps what it shows
    del region, numbers
    gc.collect()
    assert n_regions() == before


def test_a_payload_is_copied_only_if_it_is_elsewhere():
    region = Region(100)
    assert moved(region.view[10:20], region.view[10:60]).obj is region.view.obj
    into = memoryview(bytearray(20))
    region.view[10:20] = b"0123456789"
    assert bytes(moved(region.view[10:20], into)) == b"0123456789"
    assert bytes(into[:11]) == b"0123456789\0"
    with pytest.raises(OversizedError, match="20 bytes came where there is room for 10"):
        moved(region.view[:20], into[:10])


def test_a_region_of_no_bytes_or_more_than_there_is_is_refused():
    with pytest.raises(InputError, match="give at least 1"):
        Region(0)
    with pytest.raises(InputError, match="bytes of memory left"):  # the kernel would kill processes to make room
        Region(1 << 60)
