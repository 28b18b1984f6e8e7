"""Which process asks which while blocks move: a server and a worker played by hand, message by message."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from labkit.elastic.protocol.messages.blocks import BlocksMoved, Gradient, MovedBlock, Pull
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode, encode
from labkit.elastic.protocol.messages.orders import BeginTraining, OwnedBlock, PauseAtVersion
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.server.block import Block
from labkit.elastic.server.optimizers import optimizer
from labkit.elastic.server.server import ParameterServer
from labkit.elastic.transport import Head, Message
from labkit.elastic.worker.synchronous import Worker
from tests.hang import HANG_S

N = 4


class Wire:
    """Takes down what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[str, Any]]] = []

    def send(self, kind: int, *buffers: Any, meta: bytes = b"", block: int = 0, offset: int = 0, step: int = 0) -> int:
        self.sent.append((kind, {"meta": meta, "block": block, "step": step}))
        return len(self.sent)

    def reply(self, to: Message, *buffers: Any, meta: bytes = b"") -> int:
        return self.send(0, meta=meta)

    def flush(self, number: int | None = None, *, timeout_s: float | None = None) -> None:
        return

    def kinds(self) -> list[int]:
        return [kind for kind, _ in self.sent]


def server() -> ParameterServer:
    made = optimizer("sgd", lr=0.1)
    return ParameterServer(
        "a", optimizer=made, n_shards=1, sync=True, report=lambda *_, **__: None, copy=lambda *_: None
    )


def state(moves: int, *, version: int) -> Message:
    """A block as it comes from another server."""
    block = Block(0, np.zeros(N, np.float32), {}, version=version, moves=moves)
    return Message(
        Head(kind=FrameKind.STATE, step=at(0, version)), encode(block.description()), memoryview(block.params).cast("B")
    )


def pull(moves: int, *, version: int) -> Message:
    return Message(Head(kind=FrameKind.PULL, step=at(0, version)), encode(Pull([0], [moves])), memoryview(b""))


def push(moves: int, *, version: int) -> Message:
    head = Head(kind=FrameKind.PUSH, step=at(0, version), offset=Node(0, 1).pack())
    return Message(head, encode(Gradient(moves)), memoryview(np.ones(N, np.float32)).cast("B"))


@pytest.fixture
def former() -> ParameterServer:
    """A server that had a block, and gave it to another at version 5."""
    made = server()
    made.handover.install(Wire(), state(0, version=4))
    made.peers.add_server("b", Wire(), "unix:/b")  # type: ignore[arg-type]
    made.blocks.slot(0).leaving = ("b", 5)
    made.peers.servers["b"][0].request = lambda *_, **__: __import__("concurrent.futures").futures.Future()  # type: ignore[attr-defined]
    made.gradients.push(Wire(), push(0, version=4))
    return made


def test_a_worker_that_asks_a_former_owner_is_told_the_new_one(former: ParameterServer) -> None:
    worker = Wire()
    former.replies.pull(worker, pull(0, version=6))
    former.gradients.push(worker, push(0, version=5))
    assert worker.kinds() == [FrameKind.MOVED, FrameKind.MOVED]
    assert decode(BlocksMoved, worker.sent[0][1]["meta"]).owner == "b"


def test_a_worker_that_knows_that_a_block_comes_back_waits_for_it_at_its_former_owner(former: ParameterServer) -> None:
    """The notice of the way back reached the worker before the block reached the server."""
    worker = Wire()
    former.replies.pull(worker, pull(2, version=9))
    former.gradients.push(worker, push(2, version=8))
    assert worker.kinds() == []
    former.handover.install(Wire(), state(2, version=8))
    assert worker.kinds() == [FrameKind.PARAMS]
    assert worker.sent[0][1]["step"] == at(0, 9)


def test_servers_that_hand_over_at_the_same_time_take_turns() -> None:
    """So that no step waits for the blocks of two of them."""
    leaves = []
    for turn in range(3):
        made = server()
        for block in range(4):
            card = encode(Block(block, np.zeros(N, np.float32), {}, version=7).description())
            head = Head(kind=FrameKind.STATE, step=at(0, 7), block=block)
            made.handover.install(Wire(), Message(head, card, memoryview(np.zeros(N, np.float32)).cast("B")))  # type: ignore[arg-type]
        made.handover.pace.bytes_per_step = lambda: 4 * N  # type: ignore[method-assign]
        made.handover.hand_over(dict.fromkeys(range(4), "b"), version=None, turn=(turn, 3))
        leaves += [made.blocks.slot(block).leaving[1] for block in range(4)]  # type: ignore[index]
    assert sorted(leaves) == list(range(8, 20))


def worker_of(servers: dict[str, Wire]) -> Worker:
    class Flat:
        lender = None
        versions = (np.zeros(N, np.float32), np.zeros(N, np.float32))

    made = Worker(
        Flat(), extents=[(0, N)], loss_of=lambda *_: None, n_shards=1, n_steps=99,  # type: ignore[arg-type]
        channel_of=lambda name: servers[name], report=lambda *_, **__: None,  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    made.on_order(BeginTraining(0, 9, (0, 1), 0, [OwnedBlock(0, "a", 0)]))
    made._orders.afresh = False
    return made


def test_a_worker_that_hears_of_two_moves_at_once_turns_to_each_owner_at_its_version() -> None:
    servers = {name: Wire() for name in "abc"}
    worker = worker_of(servers)
    worker._want(9)
    worker.on_moved(BlocksMoved("b", "unix:/b", [MovedBlock(0, 10, 1)], era=0))
    worker.on_moved(BlocksMoved("c", "unix:/c", [MovedBlock(0, 12, 2)], era=0))
    for version in (10, 11, 12, 13):
        worker._want(version)
    asked = {name: [entry["step"] for _, entry in wire.sent] for name, wire in servers.items()}
    assert asked == {"a": [9, 10], "b": [11, 12], "c": [13]}
    assert [decode(Pull, entry["meta"]).moves for wire in servers.values() for _, entry in wire.sent] == [
        [0],
        [0],
        [1],
        [1],
        [2],
    ]


def test_a_worker_that_stands_still_goes_on_if_it_is_to_stand_still_later() -> None:
    """A copy at the first version came too late; all are to meet at another one."""
    worker = worker_of({"a": Wire()})
    worker.on_order(PauseAtVersion(9))
    thread = threading.Thread(target=worker._hold, args=(10,), daemon=True)
    thread.start()
    worker.on_order(PauseAtVersion(12))
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_the_loop_of_a_worker_never_sees_half_of_an_order_to_begin() -> None:
    """It looks owners up without the lock while it pushes."""
    worker, seen = worker_of({"a": Wire()}), []

    def rows() -> Iterator[OwnedBlock]:
        seen.append(dict(worker._orders.owners.owner))
        yield OwnedBlock(0, "b", 3)

    worker.on_order(BeginTraining(1, 9, (0, 1), 0, rows()))  # type: ignore[arg-type]
    assert seen == [{0: "a"}]
    assert worker._orders.owners.owner == {0: "b"}
