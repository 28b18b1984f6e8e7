"""The controller on its own: what it commands when, with every process played by the test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.controller_state import (
    SHORTAGES,
    Command,
    End,
    JobTerms,
    Load,
    Note,
    Over,
    SavedMachine,
    Start,
    Tell,
)
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.messages.orders import (
    AssignShards,
    BeginEra,
    BeginTraining,
    BlockMove,
    ConnectTo,
    CopyBlocks,
    FinishStep,
    ForgetBlocks,
    GrantLease,
    Halt,
    HandOver,
    Pause,
    PauseAtVersion,
    ReportState,
    Resume,
    Stop,
    TakeBack,
)
from labkit.elastic.protocol.messages.reports import (
    Connected,
    ConnectFailed,
    CopyLate,
    Failed,
    HandedOver,
    OwnsBlock,
    Paused,
    StateReported,
    StepDone,
    Stuck,
    TrainingBegun,
    TrainingDone,
    Transferring,
    TransferUnconfirmed,
    UpdateDone,
    WantsLease,
)


class Play:
    """Carries out what a controller says, with processes that do at once what they are told."""

    def __init__(self, *, servers: int = 2, workers: int = 2, **terms: Any) -> None:
        self.machine = Controller(
            JobTerms(**{"sizes": [5] * 8, "n_shards": 8, "n_steps": 100, **terms}), reassign=reassign
        )
        self.heard: list[Command] = []
        self.leaves: dict[str, tuple[int, int]] = {}
        self.done(self.machine.start(servers=servers, workers=workers))

    def done(self, commands: list[Command]) -> None:
        self.heard += commands
        for command in commands:
            match command:
                case Tell(name, BeginTraining(shards=(first, last)) | AssignShards(first, last)):
                    self.leaves[name] = first, last

    def all(self, kind: type) -> list[Any]:
        return [command for command in self.heard if isinstance(command, kind)]

    def told(self, kind: type) -> list[Any]:
        return [command for command in self.all(Tell) if isinstance(command.order, kind)]

    def notes(self) -> list[str]:
        return [note.event for note in self.all(Note)]

    def join(self) -> None:
        """Let each process that was started join, and newcomers and servers meet."""
        for name in [m.name for m in self.machine.job.members.values() if not m.joined]:
            self.done(self.machine.joined(name, address=f"unix:/{name}"))
        for tell in self.told(ConnectTo):
            self.done(self.machine.reported(tell.to, Connected(server=tell.order.server)))

    def train(self, *, version: int = 0) -> None:
        """Bring it to where training goes on."""
        self.join()
        self.done(self.machine.loaded(version))
        for member in self.machine.job.of("worker"):
            self.done(self.machine.reported(member.name, TrainingBegun(version=version)))

    def step(self, version: int) -> None:
        for member in self.machine.job.of("worker"):
            self.done(self.machine.reported(member.name, StepDone(version, shards=1, compute_s=0.1, wait_s=0.0)))

    def move(self) -> None:
        """Let all blocks arrive that were told to move."""
        for tell in self.told(HandOver):
            for block, owner in tell.order.moves:
                moves = self.machine.job.moves[block] + 1
                self.done(self.machine.reported(owner, OwnsBlock(block=block, version=5, moves=moves)))

    def covered(self) -> list[int]:
        """Return the leaves of the workers that are there."""
        here = {m.name for m in self.machine.job.of("worker")}
        return sorted(leaf for name, (a, b) in self.leaves.items() if name in here for leaf in range(a, b))


def test_training_begins_when_all_have_joined_with_every_block_owned_and_every_leaf_dealt() -> None:
    play = Play(servers=2, workers=3)
    assert [s.name for s in play.all(Start)] == ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]
    assert not play.all(Load)
    play.join()
    (load,) = play.all(Load)
    assert sorted(load.owner) == list(range(8))
    assert sorted(load.owner.values()).count("ps-0") == 4
    play.train()
    assert play.covered() == list(range(8))


def test_a_first_process_that_ends_with_an_error_ends_the_job_and_one_that_is_killed_is_replaced() -> None:
    play = Play(servers=1, workers=1)
    play.done(play.machine.left("worker-0", reason="exit code -9"))
    assert [start.name for start in play.all(Start)] == ["ps-0", "worker-0", "worker-1"]
    assert not play.all(Over)
    play.done(play.machine.left("worker-1", reason="exit code 1: ImportError: no torch", by_itself=True))
    (over,) = play.all(Over)
    assert over.failure == "worker-1 ended before it had begun, exit code 1: ImportError: no torch"


def test_a_member_that_ends_with_an_error_later_is_replaced() -> None:
    play = Play(servers=1, workers=1)
    play.train()
    play.done(play.machine.left("worker-0", reason="exit code 1", by_itself=True))
    assert play.all(Start)[-1].name == "worker-1"
    assert not play.all(Over)


def test_a_handover_registers_assigns_migrates_and_updates_while_no_member_stands_still() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=2, strategy="handover"))
    assert play.notes()[-1] == "registration"
    assert not play.told(HandOver)
    play.join()
    assert [n for n in play.notes() if n in ("registration", "assignment", "migration", "update")][-1] == "migration"
    moved = {block: owner for tell in play.told(HandOver) for block, owner in tell.order.moves}
    assert sorted(moved.values()) == ["ps-2", "ps-2", "ps-3", "ps-3"]  # the fewest that level the load
    assert not play.told(PauseAtVersion)
    play.move()
    assert play.notes()[-1] == "scaled"
    assert set(play.machine.job.owner.values()) == {"ps-0", "ps-1", "ps-2", "ps-3"}


def test_suspension_holds_all_workers_at_one_version_and_lets_them_go_afterwards() -> None:
    play = Play()
    play.train()
    play.step(10)
    play.done(play.machine.scale(servers=1, strategy="suspend"))
    play.join()
    assert {tell.order.version for tell in play.told(PauseAtVersion)} == {13}
    assert {tell.order.version for tell in play.told(HandOver)} == {13}
    assert not play.told(Resume)
    play.move()
    assert {tell.to for tell in play.told(Resume)} == {"worker-0", "worker-1"}


@pytest.mark.parametrize("strategy", ["suspend", "checkpoint"])
def test_a_scaling_at_a_version_that_no_worker_would_wait_at_is_dropped(strategy: str) -> None:
    """With the last of 100 steps workers end: they would not pause at version 100."""
    early, late = Play(), Play()
    for play, last in ((early, 96), (late, 97)):
        play.train()
        play.step(last)
        play.done(play.machine.scale(servers=1, strategy=strategy))
        play.join()
    assert {tell.order.version for tell in early.told(PauseAtVersion)} == {99}
    assert not late.told(PauseAtVersion)
    assert [note.columns["why"] for note in late.all(Note) if note.event == "dropped"] == ["training is about to end"]


def test_servers_that_go_give_up_their_blocks_before_they_are_ended() -> None:
    play = Play(servers=3)
    play.train()
    play.done(play.machine.scale(servers=-1, strategy="handover"))
    assert not play.all(End)
    play.move()
    (end,) = play.all(End)
    assert end.name not in play.machine.job.owner.values()
    play.done(play.machine.left(end.name))
    assert play.notes()[-1] == "left"
    assert not play.told(Halt)


def test_requests_wait_for_each_other() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.done(play.machine.scale(workers=1, strategy="handover"))
    assert play.notes().count("registration") == 1
    play.join()
    play.move()
    assert play.notes().count("registration") == 2
    assert [s.name for s in play.all(Start)][-1] == "worker-2"


def test_a_new_worker_gets_leaves_only_once_it_has_the_parameters() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(workers=2, strategy="handover"))
    play.join()
    assert play.leaves["worker-2"] == play.leaves["worker-3"] == (0, 0)
    play.done(play.machine.reported("worker-2", TrainingBegun(version=4)))
    play.done(play.machine.reported("worker-3", TrainingBegun(version=4)))
    assert play.covered() == list(range(8))
    assert all(last > first for first, last in play.leaves.values())


def test_the_leaves_of_a_worker_that_died_go_to_the_others_at_once_and_it_is_replaced() -> None:
    play = Play(workers=3)
    play.train()
    play.done(play.machine.left("worker-1", reason="killed"))
    assert play.covered() == list(range(8))
    assert play.all(Start)[-1].name == "worker-3"
    assert not play.told(Halt)


def test_the_leaves_of_a_worker_that_died_go_to_none_that_lacks_the_parameters_still() -> None:
    """The others would wait for its gradients until it has them."""
    play = Play(workers=3)
    play.train()
    play.done(play.machine.scale(workers=1, strategy="handover"))
    play.join()
    play.done(play.machine.left("worker-1", reason="killed"))
    assert play.leaves["worker-3"] == (0, 0)
    assert play.covered() == list(range(8))


def test_the_last_worker_with_the_parameters_does_not_leave_before_another_has_them() -> None:
    """The one that was to follow it died: the next one is no part of the request, but is waited for."""
    play = Play(workers=1)
    play.train()
    play.done(play.machine.scale(replace=["worker-0"], strategy="handover"))
    play.join()
    play.done(play.machine.left("worker-1", reason="killed"))
    play.join()
    assert not play.told(FinishStep)
    play.done(play.machine.reported("worker-2", TrainingBegun(version=4)))
    assert [tell.to for tell in play.told(FinishStep)] == ["worker-0"]
    assert play.leaves["worker-2"] == (0, 8)


def test_the_death_of_a_server_with_blocks_takes_all_members_back_to_a_checkpoint() -> None:
    play = Play(save_every=10)
    play.train()
    play.step(20)
    play.done(play.machine.left("ps-0", reason="killed"))
    assert {tell.to for tell in play.told(Halt)} == {"worker-0", "worker-1"}
    assert len(play.all(Load)) == 1  # the replacement has not come yet
    play.join()
    assert len(play.all(Load)) == 2
    before, after = play.all(Load)
    assert after.era > before.era
    assert set(after.owner.values()) == {"ps-1", "ps-2"}
    play.train(version=10)
    assert {tell.order.version for tell in play.told(BeginTraining)[-2:]} == {10}


def test_a_destination_that_does_not_answer_is_ended_before_the_source_takes_its_block_back() -> None:
    """Never may two believe that they own a block."""
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    block = play.told(HandOver)[0].order.moves[0][0]
    source = play.told(HandOver)[0].to
    heard = len(play.heard)
    play.done(play.machine.reported(source, TransferUnconfirmed(block=block, version=3, owner="ps-2", moves=1, why="")))
    later = [c for c in play.heard[heard:] if isinstance(c, (End, Tell))]
    kill = next(i for i, c in enumerate(later) if isinstance(c, End) and c.kill and c.name == "ps-2")
    back = next(i for i, c in enumerate(later) if isinstance(c, Tell) and isinstance(c.order, TakeBack))
    assert kill < back


def test_checkpoints_are_asked_for_ahead_and_again_where_one_came_too_late() -> None:
    play = Play(save_every=10)
    play.train()
    for version in range(9):
        play.step(version)
    assert {tell.order.version for tell in play.told(CopyBlocks)} == {100, 10}
    play.done(play.machine.reported("ps-0", CopyLate(version=10, blocks=[0])))
    play.step(11)
    assert {tell.order.version for tell in play.told(CopyBlocks)} == {100, 10, 14}
    play.done(play.machine.saved_at(14))
    assert play.machine.checkpoints.saved == 14


def test_copies_that_are_lost_are_made_again_and_where_it_is_too_late_at_a_later_version() -> None:
    play = Play(save_every=10)
    play.train()
    for version in range(9):
        play.step(version)

    def lost(version: int) -> list[tuple[str, int]]:
        before = len(play.told(CopyBlocks))
        play.done(play.machine.copied(version))
        play.done(play.machine.copies_lost(version, "ps-0 was lost"))
        return [(tell.to, tell.order.version) for tell in play.told(CopyBlocks)[before:]]

    assert lost(10) == [("ps-0", 10), ("ps-1", 10)]
    play.done(play.machine.reported("ps-0", CopyLate(version=10, blocks=[0])))
    play.step(11)
    assert {tell.order.version for tell in play.told(CopyBlocks)} == {100, 10, 14}
    assert lost(100) == [("ps-0", 100), ("ps-1", 100)]
    assert not play.all(Over)


def test_a_restart_waits_for_copies_that_are_made_again() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="checkpoint"))
    n_told, version = len(play.told(CopyBlocks)), play.told(CopyBlocks)[-1].order.version
    play.done(play.machine.copied(version))
    play.done(play.machine.copies_lost(version, "ps-0 was lost"))
    assert [tell.order.version for tell in play.told(CopyBlocks)[n_told:]] == [version, version]
    assert not play.machine.job.members["ps-0"].leaving
    n_started = len(play.all(Start))
    play.done(play.machine.copied(version))
    play.done(play.machine.saved_at(version))
    assert len(play.all(Start)) > n_started


def test_a_job_ends_when_its_last_state_is_safe_and_its_workers_are_done() -> None:
    play = Play()
    play.train()
    play.done(play.machine.saved_at(100))
    assert not play.all(Over)
    for name in ("worker-0", "worker-1"):
        play.done(play.machine.reported(name, TrainingDone(version=100)))
    assert [over.failure for over in play.all(Over)] == [""]
    assert {end.name for end in play.all(End)} == set(play.machine.job.members)


def test_a_job_whose_processes_die_again_and_again_is_given_up() -> None:
    play = Play(restarts=2)
    play.train()
    for _ in range(3):
        name = play.machine.job.of("worker")[-1].name
        play.done(play.machine.left(name, reason="killed"))
    assert "3 processes died" in play.all(Over)[0].failure


def test_deaths_that_are_long_ago_or_before_a_step_forward_do_not_end_a_job() -> None:
    play = Play(restarts=2, restarts_within_s=60.0)
    play.train()

    def dies() -> None:
        play.done(play.machine.left(play.machine.job.of("worker")[-1].name, reason="killed"))
        play.join()

    for version in range(5):
        dies()
        dies()
        play.step(version)
    play.machine.job.now_s = 30.0
    dies()
    dies()
    play.machine.job.now_s = 90.0
    dies()
    dies()
    assert not play.all(Over)
    dies()
    assert "3 processes died within 60 s without a step forward" in play.all(Over)[0].failure


@pytest.mark.parametrize("phase", ["registration", "migration"])
def test_a_request_whose_only_newcomer_dies_is_dropped_where_no_other_member_would_be_left(phase: str) -> None:
    """The only server was to be replaced; with two it would be another's turn."""
    play = Play(servers=1)
    play.train()
    play.done(play.machine.scale(replace=["ps-0"], strategy="handover"))
    if phase == "migration":
        play.join()
        assert play.machine.requests.current is not None
        assert play.machine.requests.current.phase == phase
        lost = {
            "block": 0,
            "version": 1,
            "owner": "ps-1",
            "moves": 1,
            "era": play.machine.job.era,
            "why": "MemoryError",
        }
        play.done(play.machine.reported("ps-0", TransferUnconfirmed(**lost)))
    else:
        play.done(play.machine.left("ps-1", reason="exit code 12"))
    assert "dropped" in play.notes()
    assert [m.name for m in play.machine.job.of("server")] == ["ps-0"]
    assert set(play.machine.job.owner.values()) == {"ps-0"}
    assert play.machine.job.phase == "training"
    play.done(play.machine.scale(servers=1, strategy="handover"))
    assert play.machine.requests.current is not None


def test_more_servers_than_blocks_after_deaths_leave_some_without_and_end_nothing() -> None:
    play = Play(servers=2, sizes=[5, 5])
    play.train()
    play.done(play.machine.scale(replace=["ps-0"], strategy="handover"))
    play.join()
    for name in ("ps-1", "ps-2"):  # one with blocks, and one that comes
        play.done(play.machine.left(name, reason="killed"))
        play.join()
    play.done(play.machine.loaded(0))
    assert len(play.machine.job.of("server")) >= 2
    assert set(play.machine.job.owner) == {0, 1}
    assert play.machine.job.phase == "training"


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"workers": -2, "strategy": "handover"}, "left with 0 workers"),
        ({"servers": 7, "strategy": "handover"}, "9 servers for 8 blocks"),
        ({"replace": ["ps-9"], "strategy": "handover"}, "unknown member 'ps-9'"),
        ({"servers": 1, "strategy": "hand-over"}, "Did you mean 'handover'"),
        ({"servers": 1.5, "strategy": "handover"}, "expected whole numbers"),
    ],
)
def test_requests_that_cannot_be_are_refused_and_change_nothing(request_: dict[str, Any], what: str) -> None:
    play = Play()
    play.train()
    heard = len(play.heard)
    with pytest.raises(InputError, match=what):
        play.machine.scale(**request_)
    assert len(play.heard) == heard
    assert play.machine.requests.current is None


def test_there_may_be_as_many_servers_as_blocks() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=6, strategy="handover"))
    play.join()
    assert len(play.machine.job.of("server")) == 8


def test_a_replica_of_an_earlier_order_stays_known_while_a_later_one_is_pending() -> None:
    """It may be complete first, and an owner must not lose its block then."""
    play = Play(servers=3, standby=True)
    play.train()
    replication = play.machine.replication
    first = dict(replication.pending)
    gone = next(iter(first.values()))[0]
    replication.place([m.name for m in play.machine.job.of("server") if m.name != gone])
    known = {row.block: row.replicas for row in replication.rows()}
    again = [block for block, replica in first.items() if replication.pending[block] != replica]
    assert again
    assert all({first[block], replication.pending[block]} <= set(known[block]) for block in again)


def test_a_request_whose_newcomer_cannot_be_reached_is_dropped_and_training_goes_on() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, workers=1, strategy="handover"))
    play.done(play.machine.joined("ps-2", address="tls://10.0.0.9:1"))
    play.done(play.machine.reported("ps-0", ConnectFailed(server="ps-2", why="no process answers")))
    (dropped,) = [note for note in play.all(Note) if note.event == "dropped"]
    assert dropped.columns["why"] == "ps-0 cannot reach ps-2: no process answers"
    assert sorted(end.name for end in play.all(End)) == ["ps-2", "worker-2"]
    assert not play.all(Over)
    assert play.machine.requests.current is None
    play.done(play.machine.reported("ps-1", ConnectFailed(server="ps-2", why="no process answers")))
    assert play.notes().count("dropped") == 1


def test_a_request_whose_newcomer_cannot_listen_is_dropped() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.done(play.machine.unable("ps-2", why="finds no port"))
    (dropped,) = [note for note in play.all(Note) if note.event == "dropped"]
    assert dropped.columns["why"] == "ps-2 finds no port"
    assert [end.name for end in play.all(End)] == ["ps-2"]
    assert not play.all(Over)


@pytest.mark.parametrize("joined", [False, True])
def test_a_job_whose_first_processes_cannot_reach_each_other_ends_by_name(joined: bool) -> None:
    play = Play()
    if joined:
        play.join()
        play.done(play.machine.loaded(0))
        play.done(play.machine.reported("worker-0", TrainingBegun(version=0)))
    play.done(play.machine.reported("worker-1", ConnectFailed(server="ps-0", why="no process answers")))
    (over,) = play.all(Over)
    assert over.failure == "worker-1 cannot reach ps-0: no process answers"


def test_a_replacement_that_cannot_be_reached_is_replaced_in_turn() -> None:
    play = Play()
    play.train()
    play.done(play.machine.left("worker-1", reason="killed"))
    play.done(play.machine.joined("worker-2"))
    play.done(play.machine.reported("worker-2", ConnectFailed(server="ps-0", why="no process answers")))
    assert [(end.name, end.kill) for end in play.all(End)] == [("worker-2", True)]
    assert play.all(Start)[-1].name == "worker-3"
    assert not play.all(Over)


def test_when_the_only_worker_dies_training_goes_back_for_its_parameters_died_with_it() -> None:
    play = Play(workers=1)
    play.train()
    play.step(7)
    play.done(play.machine.left("worker-0", reason="killed"))
    assert play.notes()[-1] == "goes_back"
    play.train(version=0)
    assert play.leaves["worker-1"] == (0, 8)


def test_a_worker_that_died_before_any_was_ready_leaves_no_leaf_behind() -> None:
    play = Play(workers=3)
    play.join()
    play.done(play.machine.loaded(0))
    play.done(play.machine.left("worker-2", reason="killed"))
    assert play.covered() == list(range(8))


def test_a_member_that_was_cut_off_and_comes_back_is_told_what_it_missed_and_not_to_stop() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    (source,) = {tell.to for tell in play.told(HandOver)} & {"ps-0"}
    heard = len(play.heard)
    play.done(play.machine.joined(source, address="unix:/ps-0"))
    later = [type(c.order) for c in play.heard[heard:] if isinstance(c, Tell) and c.to == source]
    assert {ReportState, CopyBlocks, HandOver} <= set(later)
    assert Stop not in later
    assert play.notes()[-1] == "rejoined"


def test_a_server_that_comes_back_is_told_again_to_hand_over_what_it_has_and_nothing_that_has_arrived() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=2, strategy="handover"))
    play.join()
    order = next(tell.order for tell in play.told(HandOver) if tell.to == "ps-0")
    (block, owner), left = order.moves
    play.done(play.machine.reported(owner, OwnsBlock(block=block, version=3, moves=1)))
    n_told = len(play.told(HandOver))
    for name in ("ps-0", owner):
        play.done(play.machine.joined(name, address=f"unix:/{name}"))
    assert [(tell.to, tell.order.moves) for tell in play.told(HandOver)[n_told:]] == [("ps-0", [left]), (owner, [])]


def test_a_worker_that_comes_back_is_asked_what_it_has_and_gets_no_order_of_servers() -> None:
    play = Play()
    play.train()
    heard = len(play.heard)
    play.done(play.machine.joined("worker-0", address="unix:/worker-0"))
    later = {type(c.order) for c in play.heard[heard:] if isinstance(c, Tell) and c.to == "worker-0"}
    assert ReportState in later
    assert CopyBlocks not in later


def test_what_was_said_in_an_earlier_era_counts_no_more() -> None:
    play = Play()
    play.train()
    before = dict(play.machine.job.owner)
    play.done(play.machine.reported("ps-1", OwnsBlock(block=0, version=3, moves=9, era=play.machine.job.era - 1)))
    assert play.machine.job.owner == before


def test_a_doubt_about_a_block_that_has_moved_on_since_ends_no_member() -> None:
    """Its new owner had it, and gave it away: to take it back would make two owners."""
    play = Play()
    play.train()
    play.done(play.machine.reported("ps-1", OwnsBlock(block=0, version=5, moves=2)))
    heard = len(play.heard)
    play.done(play.machine.reported("ps-0", TransferUnconfirmed(block=0, version=3, owner="ps-1", moves=1, why="")))
    later = play.heard[heard:]
    assert not [c for c in later if isinstance(c, End)]
    assert [type(c.order) for c in later if isinstance(c, Tell)] == [ForgetBlocks]


def test_a_controller_that_died_after_the_end_does_not_begin_again() -> None:
    play = Play()
    play.train()
    play.done(play.machine.reported("worker-0", Failed(why="ValueError: no")))
    other = Controller(play.machine.job.terms, reassign=reassign)
    commands = other.take_over(play.machine.state())
    assert [c.failure for c in commands if isinstance(c, Over)] == ["worker-0: ValueError: no"]
    assert not [c for c in commands if isinstance(c, Start)]
    assert not [c for name in list(other.job.members) for c in other.left(name) if isinstance(c, Start)]


def test_a_newcomer_knows_the_era_before_any_server_hands_over_to_it() -> None:
    """It is told first, and what it says of having met others comes after that."""
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.done(play.machine.joined("ps-2", address="unix:/ps-2"))
    told = [type(tell.order) for tell in play.all(Tell) if tell.to == "ps-2"]
    assert told[0] is BeginEra
    for name in ("ps-0", "ps-1", "worker-0", "worker-1"):
        play.done(play.machine.reported(name, Connected(server="ps-2")))
    play.done(play.machine.reported("ps-2", Connected(server="ps-0")))
    assert not play.told(HandOver)
    play.done(play.machine.reported("ps-2", Connected(server="ps-1")))
    assert play.told(HandOver)


@pytest.mark.parametrize("dies_first", [True, False])
def test_a_block_that_went_to_a_server_that_died_is_lost_even_if_only_its_former_owner_told(dies_first: bool) -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    block = play.told(HandOver)[0].order.moves[0][0]
    here = {"block": block, "version": 5, "owner": "ps-2", "moves": 1, "seconds": 0.1, "bytes": 20}
    steps = [
        lambda: play.machine.left("ps-2", reason="killed"),
        lambda: play.machine.reported(play.told(HandOver)[0].to, HandedOver(**here)),
    ]
    for step in steps if dies_first else reversed(steps):
        assert not play.told(Halt)
        play.done(step())
    assert {tell.to for tell in play.told(Halt)} == {"worker-0", "worker-1"}


def test_a_server_that_dies_without_blocks_is_replaced_by_one_that_gets_its_share() -> None:
    """It had just come, or was to get its blocks later; training does not go back for it."""
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    play.done(play.machine.left("ps-2", reason="killed"))
    for tell in play.told(HandOver):
        for block, owner in tell.order.moves:
            columns = {"block": block, "owner": owner, "moves": 1, "version": 3, "why": "gone"}
            play.done(play.machine.reported(tell.to, TransferUnconfirmed(**columns)))
    for tell in play.told(TakeBack):
        for block in tell.order.blocks:
            play.done(play.machine.reported(tell.to, OwnsBlock(block=block, version=3, moves=2)))
    assert play.notes()[-2:] == ["scaled", "registration"]
    play.join()
    play.move()
    assert play.notes()[-1] == "repaired"
    assert sorted(set(play.machine.job.owner.values())) == ["ps-0", "ps-1", "ps-3"]
    assert not play.told(Halt)


def test_a_block_that_never_reached_a_dead_server_goes_to_the_one_in_its_place_however_late_that_is_told() -> None:
    """Its owner was still letting it go to the first when it was told of the second, so it heeds that order again."""
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    first = [(tell.to, block) for tell in play.told(HandOver) for block, _ in tell.order.moves]
    play.done(play.machine.left("ps-2", reason="killed"))
    play.join()
    second = {block: owner for tell in play.told(HandOver) for block, owner in tell.order.moves if owner == "ps-3"}
    late = [(source, block) for source, block in first if block in second]
    assert late
    for source, block in late:
        heard = len(play.heard)
        columns = {"block": block, "owner": "ps-2", "moves": 1, "version": 3, "why": "ps-2 is not connected"}
        play.done(play.machine.reported(source, TransferUnconfirmed(**columns)))
        orders = [c.order for c in play.heard[heard:] if isinstance(c, Tell) and c.to == source]
        assert orders == [TakeBack([block]), HandOver([BlockMove(block, "ps-3")], None)]


def test_a_server_that_was_to_go_and_dies_without_blocks_is_not_replaced() -> None:
    play = Play(servers=3)
    play.train()
    play.done(play.machine.scale(servers=-1, strategy="handover"))
    (going,) = play.machine.requests.current.going  # type: ignore[union-attr]
    for tell in play.told(HandOver):
        for block, owner in tell.order.moves[:-1]:
            play.done(play.machine.reported(owner, OwnsBlock(block=block, version=5, moves=1)))
    for block, owner in [move for tell in play.told(HandOver) for move in tell.order.moves][-1:]:
        columns = {"block": block, "owner": owner, "version": 5, "moves": 1, "seconds": 0, "bytes": 20}
        play.done(play.machine.reported(going, HandedOver(**columns)))  # it tells before the new owner does
    n_started = len(play.all(Start))
    play.done(play.machine.left(going, reason="killed"))
    play.move()
    assert play.notes()[-1] == "scaled"
    assert len(play.all(Start)) == n_started


def test_a_newcomer_that_does_not_come_drops_its_request_and_a_replacement_is_replaced() -> None:
    play = Play()
    play.train()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.done(play.machine.unable("ps-2", why="did not join within 5 s"))
    assert "dropped" in play.notes()
    play.done(play.machine.left("worker-1", reason="killed"))
    play.done(play.machine.unable("worker-2", why="did not join within 5 s"))
    assert play.all(Start)[-1].name == "worker-3"
    assert not play.all(Over)


def test_a_worker_that_is_stuck_is_ended_and_where_a_second_one_is_stuck_the_job_ends() -> None:
    play = Play(workers=3)
    play.train()
    stuck: dict[str, Any] = {
        "place": (4, 2),
        "why": "step 4, logical shard 2: no gradient after 9 s; the data or the model hangs",
    }
    play.done(play.machine.reported("worker-0", Stuck(**stuck)))
    assert [(end.name, end.kill) for end in play.all(End)] == [("worker-0", True)]
    assert play.covered() == list(range(8))
    play.done(play.machine.reported("worker-1", Stuck(**{**stuck, "place": (5, 0)})))
    assert not play.all(Over)
    play.done(play.machine.reported("worker-2", Stuck(**stuck)))
    assert play.all(Over)[0].failure == f"worker-2: {stuck['why']}."


def test_when_no_process_comes_the_job_ends_once_and_starts_no_more() -> None:
    play = Play()
    for name in ("worker-0", "worker-1", "ps-0"):
        play.done(play.machine.unable(name, why="did not join within 5 s"))
    assert [over.failure for over in play.all(Over)] == ["worker-0 did not join within 5 s"]
    assert len(play.all(Start)) == 4


class TakenOver(Play):
    """A play whose controller died, and whose processes tell the next one what they have."""

    def __init__(
        self, *, state: SavedMachine | None = None, names: list[str] | None = None, servers: int = 2, **terms: Any
    ) -> None:
        super().__init__(servers=servers, **terms)
        self.train()
        state = state or self.machine.state()
        self.owned = dict(self.machine.job.owner)
        self.machine = Controller(self.machine.job.terms, reassign=reassign)
        self.done(self.machine.take_over(state, names=names or []))
        for name in self.machine.job.members:
            self.done(self.machine.joined(name, address=f"unix:/{name}"))

    def tell(self, *, era: int, without: int | None = None, moving: str = "") -> None:
        for name in list(self.machine.job.members):
            for block, there in self.owned.items():
                if there == name and block != without:
                    columns = {"block": block, "version": 3, "moves": 0, "era": era}
                    self.done(self.machine.reported(name, OwnsBlock(**columns)))
            if moving and without is not None and self.owned[without] == name:
                self.done(self.machine.reported(name, Transferring(block=without, owner=moving, era=era)))
            self.done(self.machine.reported(name, StateReported(version=3, has=era)))


def test_a_controller_that_takes_over_goes_on_if_every_block_is_told() -> None:
    play = TakenOver()
    play.tell(era=1)
    assert play.notes()[-1] == "resumed"
    assert not play.told(Halt)


def test_a_controller_that_takes_over_orders_no_checkpoint_of_which_servers_would_not_hear() -> None:
    """Workers may be back some steps before servers are; the order would be lost, and no later one would follow."""
    play = TakenOver(save_every=2)
    play.done(play.machine.reported("worker-0", StateReported(version=3, has=1, training=True)))
    play.step(3)
    assert not [tell for tell in play.told(CopyBlocks) if tell.order.version < 100]
    play.tell(era=1)
    play.step(4)
    assert [tell.to for tell in play.told(CopyBlocks) if tell.order.version == 7] == ["ps-0", "ps-1"]


def test_a_block_that_no_server_has_any_more_takes_all_members_back() -> None:
    """The server that has it started after the last state that could be written, so none names it: it is ended."""
    play = TakenOver()
    play.tell(era=1, without=3)
    assert play.notes()[-1] == "goes_back"


@pytest.mark.parametrize(("to", "last"), [("ps-1", "resumed"), ("ps-9", "goes_back")])
def test_a_block_on_its_way_is_waited_for_if_its_new_owner_is_known(to: str, last: str) -> None:
    play = TakenOver()
    block = next(b for b, owner in play.owned.items() if owner == "ps-0")
    play.tell(era=1, without=block, moving=to)
    assert play.notes()[-1] == last


def test_after_a_state_of_an_era_before_all_begin_a_new_one() -> None:
    play = TakenOver()
    play.tell(era=4)
    assert play.notes()[-1] == "goes_back"
    assert play.machine.job.era > 4


def test_names_of_processes_that_the_state_does_not_know_are_never_given_again() -> None:
    """Their sockets, and their numbers in what servers remember of updates, are not those of others."""
    play = TakenOver(names=["ps-4", "worker-2", "controller"])
    play.tell(era=1)
    play.done(play.machine.scale(servers=1, workers=1, strategy="handover"))
    assert [s.name for s in play.all(Start)][-2:] == ["ps-5", "worker-3"]


def test_want_of_memory_is_no_crash_until_it_comes_again_and_again_with_no_more_of_it() -> None:
    play = Play(servers=2, workers=1, restarts=0)
    play.train()

    def starve() -> None:
        server = play.machine.job.of("server")[-1].name
        play.done(play.machine.left(server, reason="exit code 137: out of memory", cause=Cause.OUT_OF_MEMORY))
        play.join()

    for _ in range(SHORTAGES):
        starve()
    assert not play.all(Over)
    play.machine.forgive_shortages()
    for _ in range(SHORTAGES):
        starve()
    assert not play.all(Over)
    starve()
    (over,) = play.all(Over)
    assert over.cause == Cause.OUT_OF_MEMORY
    assert "processes ran out of memory within" in over.failure


def test_a_checkpoint_waits_for_a_stuck_worker_a_part_of_a_lease_and_is_not_tried_again_before_that_one_moves() -> None:
    play = Play(servers=2, workers=2, sync=False, n_samples=640, batch=8, save_every=1, lease_s=4.0)
    play.train()

    def wants(name: str, now_s: float) -> UpdateDone:
        before = len(play.told(GrantLease))
        play.machine.job.now_s = now_s
        play.done(play.machine.reported(name, WantsLease()))
        token, _, start, _ = play.told(GrantLease)[before].order.lease
        return UpdateDone(1, token, start + 8, loss=0.5, staleness=0, compute_s=0.1, wait_s=0.0)

    def stepped(name: str, done: UpdateDone, now_s: float) -> None:
        play.machine.job.now_s = now_s
        play.done(play.machine.reported(name, done))

    workers = ["worker-0", "worker-1"]
    play.machine.job.now_s = 10.0
    stuck = wants("worker-1", 10.0)
    stepped("worker-0", wants("worker-0", 10.0), 10.0)
    assert [tell.to for tell in play.told(Pause)] == workers
    play.done(play.machine.reported("worker-0", Paused(number=1, version=0)))
    play.done(play.machine.tick(workers, now_s=10.9))
    assert "unsaved" not in play.notes()
    play.done(play.machine.tick(workers, now_s=11.3))
    assert play.notes().count("unsaved") == 1
    assert "worker-0" in [tell.to for tell in play.told(Resume)]
    stepped("worker-0", wants("worker-0", 11.4), 11.4)
    assert len(play.told(Pause)) == 2
    stepped("worker-1", stuck, 11.6)
    assert len(play.told(Pause)) == 4


def test_copies_of_asynchronous_training_that_are_lost_are_not_made_again_while_workers_go_on() -> None:
    play = Play(sync=False, n_samples=640, batch=8, save_every=1)
    play.train()
    play.machine.checkpoints.save(3)
    play.done(play.machine.copies_lost(3, "ps-0 was lost"))
    assert play.notes().count("unsaved") == 1
    assert play.machine.checkpoints.saving is None
    assert len(play.told(CopyBlocks)) == 2


def test_no_samples_are_leased_while_training_goes_back_to_a_checkpoint() -> None:
    """Leases of the era that is given up would be void: the worker would train on samples that another one gets."""
    play = Play(servers=2, workers=2, sync=False, n_samples=640, batch=8)
    play.train()
    play.done(play.machine.left("ps-0", reason="it was killed", by_itself=True))
    assert play.notes()[-1] == "goes_back"
    play.done(play.machine.reported("worker-0", WantsLease()))
    play.done(play.machine.tick(["worker-0", "worker-1"], now_s=1.0))
    assert not play.told(GrantLease)
    play.train()
    play.done(play.machine.tick(["worker-0", "worker-1"], now_s=2.0))
    play.done(play.machine.reported("worker-0", WantsLease()))
    assert [tell.to for tell in play.told(GrantLease)] == ["worker-0"]


@pytest.mark.parametrize("heard", [[], [0]])
def test_the_loss_of_an_update_counts_once_however_often_it_is_reported(heard: list[int]) -> None:
    """Workers report their latest updates again to a controller that they had lost, and to one that took over."""
    play, records = Play(sync=False, n_samples=640, batch=8), []

    def reported_twice() -> list[tuple[int, float]]:
        n_heard = len(play.heard)
        for again in (False, True):
            play.done(play.machine.reported("worker-0", replace(update, again=again)))
        notes = [c for c in play.heard[n_heard:] if isinstance(c, Note) and c.event == "loss"]
        return [(note.columns["version"], note.columns["loss"]) for note in notes]

    play.machine._leases._journal = records.append
    play.train()
    play.done(play.machine.reported("worker-0", WantsLease()))
    token, _, start, _ = play.told(GrantLease)[0].order.lease
    update = UpdateDone(1, token, start + 8, loss=0.5, staleness=0, compute_s=0.1, wait_s=0.0)
    assert reported_twice() == [(0, 0.5)]
    state = play.machine.state()
    play.machine = Controller(play.machine.job.terms, reassign=reassign)
    play.done(play.machine.take_over(state, records=records, heard=heard))
    assert reported_twice() == ([] if heard else [(0, 0.5)])


def test_samples_that_kill_workers_are_still_named_after_an_era_that_began_from_a_checkpoint() -> None:
    play = Play(servers=2, workers=4, sync=False, n_samples=640, batch=8)
    play.train()
    leases = play.machine._leases
    for worker in ("worker-0", "worker-1", "worker-2"):
        play.done(play.machine.reported(worker, WantsLease()))
        leases.forget(worker, died=True)
    leases.open(leases.state())
    play.done(play.machine.reported("worker-3", WantsLease()))
    (over,) = play.all(Over)
    assert "failed 3 times" in over.failure
