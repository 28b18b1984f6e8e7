"""Checkpoints of a job do not pass through the memory of its controller; lost copies cost no state."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.elastic.checkpoint.manifest import Disk
from labkit.elastic.checkpoint.store import Checkpoints
from labkit.elastic.controller import checkpoint_keeper
from labkit.elastic.controller.checkpoint_keeper import CheckpointKeeper, CopyFetch
from labkit.elastic.controller.connections import EventLoop
from labkit.elastic.controller.controller_state import Keep, Load
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.codec import FrameKind, at, decode
from labkit.elastic.protocol.messages.orders import BlockOrder, DropCopies, SendCopies
from labkit.elastic.protocol.messages.reports import BlockCopied, CopyLate
from labkit.elastic.server.optimizers import optimizer
from labkit.elastic.server.replicas import KeptCopies, KeptCopy
from labkit.elastic.transport import Message, RemoteError
from labkit.elastic.transport.frames import Head
from tests.elastic.saving import queue_at
from tests.hang import HANG_S

LAYOUT = layout([("weight", (40, 32))], block_bytes=512)
BYTES = 3 * 512
"""Of a block with the state of Adam."""
WINDOW = 4 * BYTES


class SlowDisk(Disk):
    """Writes a block only when it is allowed to."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.free = False

    def write(self, file: Any, buffers: Any) -> None:
        if not self.free:
            assert self.allowed.acquire(timeout=HANG_S)
        super().write(file, buffers)


@dataclass
class Machine:
    """What the keeper tells the state machine; it keeps every version of which all blocks are copied."""

    told: list[tuple[str, Any]] = field(default_factory=list)
    wants: bool = True

    def __post_init__(self) -> None:
        self.job = SimpleNamespace(era=1, of=lambda _: [SimpleNamespace(name=name) for name in ("ps-0", "ps-1")])

    def copied(self, version: int) -> list[Any]:
        return [Keep(version, queue_at(version))] if self.wants else []

    def saved_at(self, version: int) -> list[Any]:
        self.told.append(("saved", version))
        return []

    def unsaved(self, version: int, why: str) -> list[Any]:
        self.told.append(("unsaved", why))
        return []

    def copies_lost(self, version: int, why: str) -> list[Any]:
        self.told.append(("lost", why))
        return []

    def loaded(self, version: int, *, queue: Any) -> list[Any]:
        self.told.append(("loaded", (version, queue)))
        return []

    def unloaded(self) -> list[Any]:
        self.told.append(("unloaded", None))
        return []

    def give_up(self, why: str) -> list[Any]:
        self.told.append(("given up", why))
        return []


class Stage:
    """A keeper with two servers whose frames arrive at once; `run` lets the loop go on."""

    def __init__(self, folder: Path, *, disk: Disk | None = None) -> None:
        self.machine, self.loop, self.events = Machine(), EventLoop(), []
        self.disk = disk or Disk()
        self.checkpoints = Checkpoints(folder, layout=LAYOUT, optimizer=optimizer("adam"), disk=self.disk)
        spec = SimpleNamespace(
            checkpoints=lambda _: self.checkpoints, extents=LAYOUT.extents, layout=LAYOUT, sync=True, on_nan="stop"
        )
        runtime = SimpleNamespace(
            spec=spec, folder=folder, machine=self.machine, loop=self.loop, execute=self.execute,
            events=SimpleNamespace(write=lambda name, columns: self.events.append((name, columns))),
            give_up=lambda why: self.machine.give_up(why),
        )  # fmt: skip
        self.on_way = self.most_on_way = 0
        self.connected = {"ps-0", "ps-1"}
        self.servers = {
            name: KeptCopies(report=lambda r, name=name: self.loop.post(self.hear, name, r), send=self.arrive)
            for name in sorted(self.connected)
        }
        self.got: dict[int, Any] = {}
        self.replies: list[Future[Message]] = []
        self.keeper = CheckpointKeeper(runtime, self)  # type: ignore[arg-type]

    # --- what the keeper sees of the processes

    def channel(self, name: str) -> Any:
        return self if name in self.connected else None

    def is_running(self, name: str) -> bool:
        return name in self.connected

    def kill(self, name: str, _: Any) -> None:
        self.machine.told.append(("killed", name))

    def send(self, name: str, order: BlockOrder) -> None:
        if name not in self.connected:
            return
        if isinstance(order, SendCopies):
            self.on_way += BYTES * len(order.blocks)
            self.most_on_way = max(self.most_on_way, self.on_way)
            self.servers[name].send(order.blocks, era=1, version=order.version, turn=order.turn)
        elif isinstance(order, DropCopies):
            self.servers[name].drop(at(1, order.version))

    def request(self, kind: int, *vectors: Any, meta: bytes, block: int, step: int) -> Future[Message]:
        assert kind == FrameKind.STATE
        self.got[block] = (step, [vector.copy() for vector in vectors], decode(BlockState, meta))
        self.replies.append(Future())
        return self.replies[-1]

    # --- what arrives

    def hear(self, name: str, report: Any) -> None:
        if isinstance(report, BlockCopied):
            self.keeper.on_copied(name, report)
        elif isinstance(report, CopyLate):
            self.keeper.on_late(report)

    def arrive(self, copy: KeptCopy, turn: int) -> None:
        payload = memoryview(np.concatenate(copy.vectors)).cast("B")
        head = Head(int(FrameKind.SNAPSHOT), 0, 0, len(payload), copy.block, turn, 0, 0, copy.step)
        self.loop.post(self.keeper.on_copy, Message(head, b"", payload), copy.described)

    def execute(self, commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, Keep):
                self.keeper.keep(command)

    def copy(self, version: int, *, but: tuple[int, ...] = (), value: float = 1.0) -> None:
        """Let the servers copy all blocks at a version, but for some."""
        for number, n in enumerate(LAYOUT.sizes):
            if number not in but:
                vectors = [np.full(n, value + number + row, np.float32) for row in range(3)]
                described = BlockState(version, 0, names=["mean", "square"])
                self.servers[f"ps-{number % 2}"].keep(number, at(1, version), vectors, described)

    def step(self) -> bool:
        """Let the loop do one thing; return whether there was one."""
        call = self.loop.next(timeout_s=0.3)
        if call is None:
            return False
        function = call.func  # type: ignore[attr-defined]
        if getattr(function, "__name__", "") == "_on_written":
            self.on_way -= BYTES
        call()
        return True

    def until(self, n_told: int) -> list[tuple[str, Any]]:
        """Let the loop go on until the machine has been told so many things."""
        for _ in range(5_000):
            if len(self.machine.told) >= n_told:
                break
            self.step()
        return self.machine.told

    def kept(self) -> int:
        """Return how many copies servers keep."""
        return sum(len(blocks) for server in self.servers.values() for blocks in server._kept.values())


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_keeper, "WINDOW_BYTES", WINDOW)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "checkpoints", disk=SlowDisk())
    made.disk.free = True  # type: ignore[attr-defined]
    yield made
    made.disk.free = True  # type: ignore[attr-defined]
    made.disk.allowed.release(100)  # type: ignore[attr-defined]
    made.keeper.close()


def test_copies_that_arrive_are_a_good_checkpoint_and_servers_keep_none(stage: Stage) -> None:
    stage.copy(4)
    assert stage.until(1) == [("saved", 4)]
    found = stage.checkpoints.newest()
    assert (found.step, found.queue) == (4, queue_at(4))
    assert found.blocks[3].params.tolist() == [4.0] * LAYOUT.sizes[3]
    assert found.blocks[3].state["square"].tolist() == [6.0] * LAYOUT.sizes[3]
    assert stage.kept() == 0
    assert list((stage.checkpoints.folder).glob(".*")) == []


def test_a_slow_disk_holds_copies_back_at_the_servers_not_in_the_controller(stage: Stage) -> None:
    disk: Any = stage.disk
    disk.free = False
    stage.copy(4)
    while stage.step():
        pass  # nothing is written, so that nothing more is asked for
    assert LAYOUT.n_blocks * BYTES > 2 * WINDOW
    assert stage.on_way == WINDOW
    assert stage.kept() == LAYOUT.n_blocks - WINDOW // BYTES
    disk.allowed.release(1)
    while stage.step():
        pass
    assert stage.kept() == LAYOUT.n_blocks - WINDOW // BYTES - 1
    disk.allowed.release(100)
    assert stage.until(1) == [("saved", 4)]
    assert stage.most_on_way == WINDOW


def test_a_newer_version_overtakes_one_that_is_incomplete(stage: Stage) -> None:
    stage.copy(4, but=(2,))
    stage.copy(9)
    assert stage.until(1) == [("saved", 9)]
    stage.copy(4)  # what is late of it is dropped, by the next one at the latest
    stage.copy(12)
    stage.until(3)
    assert stage.machine.told[-1] == ("saved", 12)
    assert stage.checkpoints.steps()[-1] == 12
    assert stage.kept() == 0


def test_a_version_that_is_being_written_is_finished_before_the_next_one(stage: Stage) -> None:
    disk: Any = stage.disk
    disk.free = False
    stage.copy(4)
    stage.copy(6)
    while stage.step():
        pass
    disk.allowed.release(100)
    assert stage.until(2) == [("saved", 4), ("saved", 6)]
    assert stage.checkpoints.steps() == [4, 6]


@pytest.mark.parametrize("how", ["closed", "gone", "late"])
def test_lost_copies_give_the_version_up_and_leave_nothing_and_the_next_one_is_saved(stage: Stage, how: str) -> None:
    disk: Any = stage.disk
    disk.free = False
    stage.copy(4)
    while stage.step():
        pass
    if how == "closed":
        stage.keeper.on_closed("ps-1")
    elif how == "late":
        stage.keeper.on_late(CopyLate(4, [1], era=1))
    else:
        stage.connected.remove("ps-1")
        disk.allowed.release(2)  # the next of ps-0 is asked for, then one of ps-1
    [(what, why)] = stage.until(1)
    assert what == "lost", why
    assert {"closed": "connection to ps-1 ended", "gone": "ps-1 was lost", "late": "block 1 is past it"}[how] in why
    stage.connected.add("ps-1")
    stage.servers["ps-1"].drop(at(1, 4))
    assert stage.kept() == 0
    disk.free = True
    disk.allowed.release(100)
    stage.copy(4, value=7.0)  # a late copy of the first attempt must not be taken for one of this
    assert stage.until(2)[1:] == [("saved", 4)]
    found = stage.checkpoints.newest()
    assert [block.params[0] for block in found.blocks.values()] == [7.0 + n for n in range(LAYOUT.n_blocks)]
    assert list((stage.checkpoints.folder).glob(".*")) == []


def test_a_connection_that_ends_after_its_copies_came_costs_nothing(stage: Stage) -> None:
    stage.copy(4)
    while stage.keeper._fetches == type(stage.keeper._fetches)() or stage.keeper._fetches[0].needs("ps-1"):
        assert stage.step()
    stage.keeper.on_closed("ps-1")
    assert stage.until(1) == [("saved", 4)]


def test_a_version_that_is_not_wanted_is_dropped_at_the_servers(stage: Stage) -> None:
    stage.machine.wants = False
    stage.copy(4)
    while stage.step():
        pass
    assert stage.kept() == 0
    assert stage.checkpoints.steps() == []


def test_what_is_not_finite_ends_the_job_and_is_not_saved(stage: Stage) -> None:
    stage.copy(4, value=float("nan"))
    [(what, why), *_] = stage.until(1)
    assert what == "given up"
    assert "the state at step 4 is not saved: parameter 'weight' has nan" in why
    stage.keeper.close()
    assert list(stage.checkpoints.folder.iterdir()) == []


def test_a_copy_of_another_shape_is_no_checkpoint_and_no_crash(stage: Stage) -> None:
    stage.copy(4)
    stage.servers["ps-1"].keep(1, at(1, 4), [np.zeros(5, np.float32)], BlockState(4, 0, names=["mean", "square"]))
    [(what, why)] = stage.until(1)
    assert what == "unsaved"
    assert "ValueError" in why or "block 1" in why
    while stage.step():
        pass
    assert stage.kept() == 0, "servers keep no copies of a checkpoint that was given up"
    stage.keeper.close()
    assert list(stage.checkpoints.folder.iterdir()) == []


def test_a_new_era_gives_up_what_is_half_written(stage: Stage) -> None:
    stage.copy(2)
    stage.until(1)
    disk: Any = stage.disk
    disk.free = False
    stage.copy(4)
    while stage.step():
        pass
    stage.machine.job.era = 2
    owner = {n: f"ps-{n % 2}" for n in range(LAYOUT.n_blocks)}
    stage.keeper.load(Load(2, owner))
    disk.free = True
    disk.allowed.release(100)
    stage.machine.told.clear()
    answered = 0
    while not stage.machine.told:
        stage.step()
        assert len(stage.replies) - answered <= WINDOW // BYTES, "blocks on their way to servers are bounded too"
        for reply in stage.replies[answered:]:
            reply.set_result(Message(Head(16), b"", memoryview(b"")))
        answered = len(stage.replies)
    assert stage.machine.told == [("loaded", (2, queue_at(2)))]
    assert sorted(stage.got) == list(range(LAYOUT.n_blocks))
    assert stage.got[5][0] == at(2, 2)
    assert stage.got[5][1][1].tolist() == [7.0] * LAYOUT.sizes[5]
    assert stage.checkpoints.steps() == [2]


def until_told(stage: Stage) -> None:
    """Let servers accept each block that they are sent, until the machine is told how the load went."""
    while not stage.machine.told:
        stage.step()
        for reply in stage.replies:
            if not reply.done():
                reply.set_result(Message(Head(16), b"", memoryview(b"")))


def test_no_server_gets_a_block_of_a_checkpoint_with_a_bad_one(stage: Stage) -> None:
    for n_saved, version in enumerate((2, 4), 1):
        stage.copy(version, value=float(version))
        stage.until(n_saved)
    path = stage.checkpoints.path(4) / "ps-1.blocks"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # of its last block
    path.write_bytes(raw)
    stage.checkpoints.verified.clear()
    stage.machine.told.clear()
    stage.keeper.load(Load(1, dict.fromkeys(range(LAYOUT.n_blocks), "ps-0")))
    until_told(stage)
    assert stage.machine.told == [("loaded", (2, queue_at(2)))]
    assert {step for step, *_ in stage.got.values()} == {at(1, 2)}
    [(event, columns)] = stage.events
    assert event == "bad_checkpoint"
    assert "in ps-1.blocks is damaged" in columns["why"]


def test_a_block_that_is_damaged_after_it_was_verified_begins_another_era(stage: Stage) -> None:
    stage.copy(2)
    stage.until(1)
    stage.machine.told.clear()
    stage.keeper.load(Load(1, dict.fromkeys(range(LAYOUT.n_blocks), "ps-0")))
    while not stage.replies:
        stage.step()
    path = stage.checkpoints.path(2) / "ps-1.blocks"
    path.write_bytes(bytes(path.stat().st_size))
    until_told(stage)
    assert stage.machine.told[0] == ("unloaded", None)


def test_a_server_that_refuses_a_block_is_replaced(stage: Stage) -> None:
    stage.copy(2)
    stage.until(1)
    stage.machine.told.clear()
    stage.keeper.load(Load(1, dict.fromkeys(range(LAYOUT.n_blocks), "ps-0")))
    while not stage.replies:
        stage.step()
    stage.replies[0].set_exception(RemoteError("it is of another era"))
    assert stage.until(1)[0] == ("killed", "ps-0")


def test_servers_are_asked_in_turns_and_a_block_beyond_the_window_alone() -> None:
    owner = {0: "ps-0", 1: "ps-0", 2: "ps-0", 3: "ps-1", 4: "ps-1"}
    fetch = CopyFetch.of(3, owner, turn=1, queue=None, sizes=[WINDOW, BYTES, BYTES, 9 * WINDOW, BYTES])
    asked: dict[str, list[int]] = defaultdict(list)
    rounds = []
    while fetch.n_left:
        now = fetch.ask()
        rounds.append(sorted(block for blocks in now.values() for block in blocks))
        for server, blocks in now.items():
            asked[server] += blocks
            for block in blocks:
                assert fetch.arrived(block, turn=2) is None
                assert fetch.arrived(block, turn=1) == server
                assert fetch.arrived(block, turn=1) is None
                fetch.written(block)
    assert rounds == [[0], [3], [1, 2, 4]]
    assert asked == {"ps-0": [0, 1, 2], "ps-1": [3, 4]}
