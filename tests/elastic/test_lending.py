"""Memory that is read in place: never torn, written only by its owner, used again and given back."""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.elastic.protocol.messages.blocks import BlockState, Gradient, Pull
from labkit.elastic.protocol.messages.codec import FrameKind, at, encode
from labkit.elastic.protocol.messages.orders import BeginTraining, OwnedBlock, Stop
from labkit.elastic.protocol.messages.reports import HandedOver, Report, TrainingBegun
from labkit.elastic.protocol.summation_tree import Node, cover
from labkit.elastic.server.block import Block, CopyOnWriteUpdates, Pushed, SeqlockUpdates
from labkit.elastic.server.optimizers import optimizer
from labkit.elastic.server.server import Arrivals, ParameterServer
from labkit.elastic.transport import Connection, FrameError, Handler, Message
from labkit.elastic.transport.shared_arrays import LINE, SharedArray, SharedArrayPool, SharedRegions, fetch
from labkit.elastic.worker.asynchronous import AsyncWorker
from labkit.elastic.worker.push_pull import FromServers
from labkit.elastic.worker.shard_gradients import FlatModel
from labkit.elastic.worker.synchronous import Worker
from tests.elastic.transport.ends import pair
from tests.hang import HANG_S

N = 1000


def place(n: int = N) -> SharedArray:
    found = SharedArrayPool().take(np.zeros(n, np.float32))
    assert found is not None
    return found


class Fill:
    """Updates that fill the parameters with their number, in two halves with something in between."""

    state_names = ()

    def __init__(self, between: Any = None) -> None:
        self.between = between

    def apply(self, param: np.ndarray, grad: Any, state: Any, *, step: int, **_: Any) -> None:
        param[: len(param) // 2] = step
        if self.between is not None:
            self.between()
        param[len(param) // 2 :] = step


# --- stamps


def test_parameters_that_stand_still_are_fetched_as_they_are() -> None:
    here, into = place(), np.empty(N, np.float32)
    here.open()
    here.params[:] = 7
    here.close()
    assert fetch(memoryview(here.whole), here.stamp, into)
    assert into.tolist() == [7] * N


def test_parameters_that_change_or_have_changed_are_never_taken_for_those_announced() -> None:
    """In the middle of an update, and after it."""
    here, into = place(), np.empty(N, np.float32)
    announced, during = here.stamp, []
    fill = Fill(lambda: during.append(fetch(memoryview(here.whole), announced, into)))
    SeqlockUpdates(fill, here).apply(here.params, None, {}, step=1)
    assert during == [False]
    assert not fetch(memoryview(here.whole), announced, into)
    assert fetch(memoryview(here.whole), here.stamp, into)


def test_an_update_that_fails_leaves_no_parameters_that_look_settled_as_before() -> None:
    here, into = place(), np.empty(N, np.float32)
    announced = here.stamp

    def fail() -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        SeqlockUpdates(Fill(fail), here).apply(here.params, None, {}, step=1)
    assert not fetch(memoryview(here.whole), announced, into)


def test_a_reader_beside_a_writer_gets_whole_versions_only() -> None:
    """The writer makes 400 updates of 4 MB; whatever a fetch accepts is one version, that which was announced."""
    here, into, over = place(1_000_000), np.empty(1_000_000, np.float32), threading.Event()
    latest = [(here.stamp, 0)]

    def write() -> None:
        for step in range(1, 401):
            SeqlockUpdates(Fill(), here).apply(here.params, None, {}, step=step)
            latest[0] = (here.stamp, step)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    refused = 0
    while not over.is_set():
        stamp, step = latest[0]
        if fetch(memoryview(here.whole), stamp, into):
            assert into.min() == into.max() == step
        else:
            refused += 1
    writer.join()
    assert refused


def test_stamps_go_round_and_stay_even() -> None:
    here = place()
    here.stamp = 0xFFFFFFFE
    SeqlockUpdates(Fill(), here).apply(here.params, None, {}, step=1)
    assert here.stamp == 0
    assert fetch(memoryview(here.whole), 0, np.empty(N, np.float32))


# --- places


def test_a_place_is_used_again_and_a_reader_that_still_has_its_stamp_notices() -> None:
    shelf, into = SharedArrayPool(), np.empty(N, np.float32)
    first = shelf.take(np.full(N, 1, np.float32))
    assert first is not None
    announced = first.stamp
    shelf.give(first)
    second = shelf.take(np.full(N, 2, np.float32))
    assert second is first
    assert not fetch(memoryview(first.whole), announced, into)


@given(sizes=st.lists(st.sampled_from([5, 16, 1000]), max_size=60))
@settings(max_examples=20)
def test_places_do_not_overlap_and_begin_on_lines_of_their_own(sizes: list[int]) -> None:
    shelf = SharedArrayPool()
    places = [shelf.take(np.full(n, i, np.float32)) for i, n in enumerate(sizes)]
    for i, (n, found) in enumerate(zip(sizes, places, strict=True)):
        assert found is not None
        assert found.params.tolist() == [i] * n
        assert found.whole.ctypes.data % (4 * LINE) == 0


def test_many_places_need_few_regions_and_waste_at_most_half() -> None:
    shelf = SharedArrayPool()
    for _ in range(2000):
        shelf.take(np.zeros(16, np.float32))
    assert len(shelf._regions) < 30
    assert sum(region.n_bytes for region in shelf._regions) <= 1.5 * 2000 * 4 * 32


def test_memory_goes_back_when_no_array_shows_it_any_more() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    shelf, lender = SharedArrayPool(), SharedRegions()
    kept = [shelf.take(np.zeros(N, np.float32)), lender.vector(N)]
    assert len(os.listdir("/proc/self/fd")) > before
    del shelf, lender, kept
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# --- gradients


@given(n_shards=st.integers(1, 12), data=st.data())
def test_borrowed_gradients_are_never_written_and_make_the_same_bits(n_shards: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(n_shards)
    leaves = rng.normal(size=(n_shards, 5)).astype(np.float32)
    edges = sorted({0, n_shards, *data.draw(st.lists(st.integers(0, n_shards), max_size=5))})
    ranges = list(pairwise(edges))
    ranges += data.draw(st.lists(st.sampled_from(ranges), max_size=2))
    nodes = data.draw(st.permutations([node for r in ranges for node in cover(*r, n_shards=n_shards)]))
    chosen = optimizer("momentum", lr=0.1)

    def pushed(borrowed: list[bool]) -> tuple[Block, list[np.ndarray]]:
        block = Block(number=0, params=np.linspace(-1, 1, 5, dtype=np.float32), state=chosen.init(5))
        given_ = []
        for node, lent in zip(nodes, borrowed, strict=True):
            grad = leaves[node.first : node.last].sum(axis=0)
            grad.flags.writeable = not lent
            given_.append(grad)
            block.push(grad, step=0, node=node, n_shards=n_shards, optimizer=chosen)
        return block, given_

    borrowed = data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes)))
    block, grads = pushed(borrowed)
    own, _ = pushed([False] * len(nodes))
    assert block.version == own.version == 1
    assert block.params.tobytes() == own.params.tobytes()
    assert block.state["velocity"].tobytes() == own.state["velocity"].tobytes()
    for node, grad, lent in zip(nodes, grads, borrowed, strict=True):
        if lent:
            assert grad.tobytes() == leaves[node.first : node.last].sum(axis=0).tobytes()
            assert not any(np.shares_memory(grad, buffer) for buffer in block.freed)


def test_buffers_of_a_sum_that_was_given_up_half_way_are_used_again() -> None:
    flat = FlatModel(torch.nn.Linear(3, 2), lender=SharedRegions())
    vectors = [flat.borrow() for _ in range(3)]
    flat.give_all_back()
    again = [flat.borrow() for _ in range(3)]
    assert {id(v) for v in again} == {id(v) for v in vectors}


# --- between two ends


class Heard(Handler):
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.more = threading.Condition()

    def received(self, channel: Connection, message: Message) -> None:  # type: ignore[override]
        with self.more:
            self.messages.append(message)
            self.more.notify_all()

    def wait(self, n: int) -> list[Message]:
        with self.more:
            assert self.more.wait_for(lambda: len(self.messages) >= n, HANG_S)
        return self.messages


GRADIENT = encode(Gradient(moves=0))


class Served(Arrivals):
    """A server's end of a connection to worker 0."""

    def __init__(self, server: ParameterServer) -> None:
        super().__init__(server, role="worker")

    def opened(self, channel: Any) -> None:
        self._server.add_worker(channel, number=0)


@contextmanager
def server_and_worker(
    handler: Handler, *, shares: bool, **options: Any
) -> Iterator[tuple[ParameterServer, Connection]]:
    server = ParameterServer(
        "ps-0",
        optimizer=Fill(),
        n_shards=1,
        report=lambda *_, **__: None,
        copy=lambda *_: None,
        shared_pool=SharedArrayPool(),
        **{"sync": True, **options},
    )
    near, far = pair(Served(server), handler, shares=shares)
    try:
        yield server, far
    finally:
        near.close()
        far.close()


def install(server: ParameterServer, n: int = N) -> None:
    """Give a server block 0 with zeros."""
    card = encode(BlockState(version=0, moves=0))
    near, far = pair(Arrivals(server, role="server"), Handler())
    far.request(FrameKind.STATE, np.zeros(n, np.float32), meta=card, block=0, step=at(server.era, 0)).result(10)
    far.close()
    near.close()


@pytest.mark.parametrize(("shares", "sync", "read"), [(True, True, True), (False, True, False), (True, False, False)])
def test_parameters_are_referred_to_only_where_memory_is_shared_and_training_synchronous(
    shares: bool, sync: bool, read: bool
) -> None:
    heard = Heard()
    with server_and_worker(heard, shares=shares, sync=sync) as (server, worker):
        install(server)
        worker.send(FrameKind.PULL, meta=encode(Pull([0], [0])), step=at(0, 0))
        (message,) = heard.wait(1)
        assert bool(worker.counts.received_bytes < 4 * N) == read
        params = np.frombuffer(message.payload, np.float32)[LINE if read else 0 :]
        assert params.tolist() == [0] * N


def test_a_process_that_shares_no_memory_gets_a_copy_that_an_update_does_not_reach() -> None:
    """Frames with version 0 wait behind each other while version 1 is made."""
    heard, n = Heard(), 1_000_000
    with server_and_worker(heard, shares=False) as (server, worker):
        install(server, n)
        for _ in range(8):
            worker.send(FrameKind.PULL, meta=encode(Pull([0], [0])), step=at(0, 0))
        worker.send(
            FrameKind.PUSH, np.ones(n, np.float32), meta=GRADIENT, block=0, offset=Node(0, 1).pack(), step=at(0, 0)
        )
        for message in heard.wait(8):
            assert not np.frombuffer(message.payload, np.float32).any()


def test_a_frame_says_which_stamp_its_parameters_bear() -> None:
    heard, into = Heard(), np.empty(N, np.float32)
    with server_and_worker(heard, shares=True) as (server, worker):
        install(server)
        worker.send(FrameKind.PULL, meta=encode(Pull([0], [0])), step=at(0, 0))
        worker.send(FrameKind.PULL, meta=encode(Pull([0], [0])), step=at(0, 1))
        (before,) = heard.wait(1)
        worker.send(
            FrameKind.PUSH, np.ones(N, np.float32), meta=GRADIENT, block=0, offset=Node(0, 1).pack(), step=at(0, 0)
        )
        after = heard.wait(2)[1]
        assert not fetch(before.payload, before.head.offset, into)
        assert fetch(after.payload, after.head.offset, into)
        assert into.tolist() == [1] * N


@pytest.mark.parametrize("shares", [True, False])
def test_a_block_that_goes_to_and_fro_needs_one_place_and_one_crate_on_each_server(shares: bool) -> None:
    told: queue.SimpleQueue[Report] = queue.SimpleQueue()
    servers = [
        ParameterServer(
            name, optimizer=Fill(), n_shards=1, sync=True, report=told.put,
            copy=lambda *_: None, shared_pool=SharedArrayPool(),
        )
        for name in ("ps-0", "ps-1")
    ]  # fmt: skip
    ends = pair(*(Arrivals(server, role="server") for server in servers), shares=shares)
    for server, other, channel in zip(servers, reversed(servers), ends, strict=True):
        server.peers.add_server(other.name, channel, "")
    install(servers[0])
    sent = 4 * N if shares else 0
    for turn in range(20):
        here, there = servers[turn % 2], servers[1 - turn % 2]
        here.handover.hand_over({0: there.name}, version=0)
        while not isinstance(told.get(timeout=HANG_S), HandedOver):
            pass
        assert here.blocks.slot(0).block is None
        assert ends[turn % 2].counts.shared_bytes == sent * (turn // 2 + 1)
    block = servers[0].blocks.slot(0).block
    assert block is not None
    assert block.place is not None
    assert block.params.tolist() == [0] * N
    for server in servers:
        assert server.blocks.shared_pool is not None
        assert len(server.blocks.shared_pool._regions) == 1
        assert len(server.handover.buffers._regions) == 1
    for end in ends:
        end.close()


def test_the_memory_of_a_block_whose_arrival_is_not_confirmed_is_not_used_again() -> None:
    """Its new owner may still be reading it."""
    server = ParameterServer(
        "ps-0", optimizer=Fill(), n_shards=1, sync=True, report=lambda *_, **__: None, copy=lambda *_: None,
        shared_pool=SharedArrayPool(),
    )  # fmt: skip
    near, far = pair(Arrivals(server, role="server"), Handler(), shares=True)  # takes it, and never answers
    server.peers.add_server("ps-1", near, "")
    install(server)
    server.handover.hand_over({0: "ps-1"}, version=0)
    far.close()
    near.close()
    other, end = pair(Handler(), Handler(), shares=True)
    crate = server.handover.buffers.pack([np.zeros(N, np.float32)], other)
    assert crate is not None
    assert len(server.handover.buffers._regions) == 2
    other.close()
    end.close()


def test_a_worker_that_came_too_late_for_a_version_asks_again_and_catches_up() -> None:
    """It gets word of version 0, but reads only after the server has made version 1."""
    late, word, go = Heard(), threading.Event(), threading.Event()
    reports: list[Report] = []
    ready = threading.Event()

    def report(report: Report) -> None:
        reports.append(report)
        if isinstance(report, TrainingBegun):
            ready.set()

    class Slow(Worker):
        def fetch(self, message: Message) -> bool:
            word.set()
            assert go.wait(HANG_S)
            return super().fetch(message)

    channels: dict[str, Connection] = {}
    model = torch.nn.Linear(N, 1, bias=False)
    worker = Slow(
        FlatModel(model), extents=[(0, N)], loss_of=lambda *_: model.weight.sum(), n_shards=1, n_steps=9999,
        channel_of=channels.__getitem__, report=report,
    )  # fmt: skip

    with server_and_worker(FromServers(worker), shares=True) as (server, channel):
        install(server)
        channels["ps-0"] = channel
        worker.on_order(BeginTraining(0, 0, (0, 0), 0, [OwnedBlock(0, "ps-0", 0)]))
        threading.Thread(target=worker.run, daemon=True).start()
        other, theirs = pair(Served(server), late, shares=True)
        theirs.send(FrameKind.PULL, meta=encode(Pull([0], [0])), step=at(0, 1))
        assert word.wait(HANG_S)  # of version 0
        theirs.send(
            FrameKind.PUSH, np.ones(N, np.float32), meta=GRADIENT, block=0, offset=Node(0, 1).pack(), step=at(0, 0)
        )
        late.wait(1)
        go.set()
        while not ready.wait(0.01):  # the others continue
            version = late.messages[-1].head.step
            theirs.send(FrameKind.PULL, meta=encode(Pull([0], [0])), step=at(0, version + 1))
            theirs.send(
                FrameKind.PUSH,
                np.ones(N, np.float32),
                meta=GRADIENT,
                block=0,
                offset=Node(0, 1).pack(),
                step=at(0, version),
            )
            assert len(late.messages) < 500
        (begun,) = [report.version for report in reports if isinstance(report, TrainingBegun)]
        assert begun > 1
        assert worker.flat.versions[begun % 2].tolist() == [begun] * N
        worker.on_order(Stop())
        other.close()
        theirs.close()


def test_a_worker_that_does_not_look_into_a_server_s_memory_refuses_to_be_referred_there() -> None:
    worker = AsyncWorker(
        FlatModel(torch.nn.Linear(N, 1)), extents=[(0, N)], loss_of=_nothing, batch=1, number=0, lease_s=9.0,
        channel_of=_nothing, report=_nothing,
    )  # fmt: skip
    heard = FromServers(worker)
    message = Message(head=_shared_head(), meta=b"", payload=memoryview(bytes(8)))
    with pytest.raises(FrameError, match="does not look"):
        heard.received(None, message)  # type: ignore[arg-type]


def _nothing(*_: Any) -> Any:
    return None


def _shared_head() -> Any:
    from labkit.elastic.transport.frames import SHARED, Head

    return Head(FrameKind.PARAMS, flags=SHARED)


class Stuck:
    """A channel on which a frame never goes out."""

    def flush(self, number: int, *, timeout_s: float) -> None:
        raise TimeoutError(number, timeout_s)


def test_parameters_on_their_way_are_left_alone_by_the_next_update() -> None:
    params = np.zeros(N, np.float32)
    block, sent = Block(number=0, params=params, state={}), [(Stuck(), 1)]
    keeping = CopyOnWriteUpdates(Fill(), block, sent, lambda n_bytes: np.empty(n_bytes // 4, np.float32))  # type: ignore[arg-type]
    grad = np.ones(N, np.float32)
    assert block.push(grad, step=0, node=Node(0, 2), n_shards=4, optimizer=keeping) is Pushed.KEPT
    assert sent  # nothing has changed yet, so nothing was copied
    assert block.push(grad.copy(), step=0, node=Node(2, 4), n_shards=4, optimizer=keeping) is Pushed.APPLIED
    assert not params.any()
    assert block.params.tolist() == [1] * N
    assert not sent


def test_a_shelf_without_memory_leaves_parameters_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.elastic.transport.shared.available_bytes", lambda: 0)
    assert SharedArrayPool().take(np.zeros(N, np.float32)) is None
    flat = FlatModel(torch.nn.Linear(3, 2), lender=SharedRegions())
    assert flat.borrow().shape == (8,)


def test_nothing_of_a_region_is_in_a_folder() -> None:
    kept = SharedRegions().vector(N)
    start = kept.__array_interface__["data"][0]
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    (name,) = (line[5] for line in maps if int(line[0].split("-")[0], 16) <= start < int(line[0].split("-")[1], 16))
    assert name.startswith("/memfd:labkit"), name  # memory without a name in any folder
