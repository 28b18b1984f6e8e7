"""Deaths of servers that others follow: what the controller decides, and a whole job on a stage, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.controller_state import End, Load, Note, Start, Tell
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.messages.orders import (
    DropReplicas,
    Halt,
    HandOver,
    Promote,
    Replicate,
    SetOwners,
    SetReplicas,
)
from labkit.elastic.protocol.messages.reports import HasReplica, OwnsBlock, ReplicaFailed, StateReported
from tests.elastic.chaos.story import many
from tests.elastic.stage import Stage, control
from tests.elastic.test_controller import Play


class Followed(Play):
    """A play whose servers begin to follow as they are told, and take the place of those that die."""

    def __init__(self, *, servers: int = 3, **terms: Any) -> None:
        super().__init__(servers=servers, standby=True, **terms)
        self.train()
        self.follow()

    def follow(self) -> None:
        """Let each server keep the replicas that it was told to, if it and the owner are there."""
        for tell in self.told(Replicate):
            for block, name, turn in tell.order.blocks:
                if tell.to in self.machine.job.members:
                    self.done(self.machine.reported(name, HasReplica(block=block, turn=turn, version=3)))

    def inherit(self) -> None:
        for tell in self.told(Promote):
            for block, moves in tell.order.blocks:
                self.done(self.machine.reported(tell.to, OwnsBlock(block=block, version=4, moves=moves)))

    def kill(self, name: str) -> None:
        self.done(self.machine.left(name, reason="killed"))


def test_every_block_is_followed_as_soon_as_training_has_begun() -> None:
    play = Followed()
    machine = play.machine
    assert machine.replication.replicas.keys() == machine.job.owner.keys()
    assert all(machine.replication.replicas[block][0] != name for block, name in machine.job.owner.items())
    assert play.notes()[-1] == "follows"


def test_a_dead_servers_blocks_are_owned_by_their_followers_and_training_does_not_go_back() -> None:
    play = Followed()
    shadow = {b: n for b, (n, _) in play.machine.replication.replicas.items()}
    lost = [b for b, n in play.machine.job.owner.items() if n == "ps-0"]
    moves = dict(play.machine.job.moves)
    play.kill("ps-0")
    assert all(play.machine.job.owner[block] == shadow[block] for block in lost)
    assert all(
        play.machine.job.moves[block] > moves[block] + 2 for block in lost
    )  # ahead of what ps-0 may have announced
    assert sorted(b for tell in play.told(Promote) for b, _ in tell.order.blocks) == lost
    play.inherit()
    assert play.notes().count("promoted") == len({shadow[block] for block in lost})
    assert not play.told(Halt)
    assert len(play.all(Load)) == 1
    assert [s.name for s in play.all(Start)][-1] == "ps-3"


def test_workers_hear_of_the_new_owners_before_they_hear_that_these_follow_no_more() -> None:
    """Else they would not wait for what only the new owners have."""
    play = Followed()
    heard = len(play.heard)
    play.kill("ps-0")
    orders = [c.order for c in play.heard[heard:] if isinstance(c, Tell) and c.to == "worker-0"]
    said, replicas = [type(order) for order in orders], [order for order in orders if isinstance(order, SetReplicas)]
    assert said.index(SetOwners) < len(said) - 1 - said[::-1].index(SetReplicas)
    assert any(not row.replicas for row in replicas[-1].blocks)


def test_what_was_lost_is_followed_again_at_once_and_shared_with_the_replacement_when_it_has_come() -> None:
    play = Followed()
    play.kill("ps-0")
    play.inherit()
    play.follow()
    assert play.machine.replication.replicas.keys() == play.machine.job.owner.keys()
    assert set(play.machine.job.owner.values()) == {"ps-1", "ps-2"}
    play.join()
    play.move()
    play.follow()
    assert play.notes()[-1] == "repaired"
    assert set(play.machine.job.owner.values()) == {"ps-1", "ps-2", "ps-3"}
    assert all(play.machine.replication.replicas[block][0] != name for block, name in play.machine.job.owner.items())


def test_one_after_the_other_may_die() -> None:
    play = Followed()
    for name in ("ps-0", "ps-1", "ps-2"):
        play.kill(name)
        play.inherit()
        play.follow()
        play.join()
        play.move()
        play.follow()
    assert play.notes().count("repaired") == 3
    assert not play.told(Halt)


@pytest.mark.parametrize("joined", [True, False])
def test_no_server_is_promoted_that_dies_with_the_owner_or_is_not_there(joined: bool) -> None:
    """Workers would wait for it."""
    play = Followed()
    owner, replication = dict(play.machine.job.owner), play.machine.replication
    assert {replication.replicas[b][0] for b, name in owner.items() if name == "ps-0"} == {"ps-1", "ps-2"}
    play.machine.job.members["ps-1"].joined = joined
    assert replication.promote({"ps-0", "ps-1"} if joined else {"ps-0"}) is None
    assert play.machine.job.owner == owner


def test_if_owner_and_follower_both_die_all_members_go_back() -> None:
    play = Followed(servers=2)
    play.kill("ps-0")
    play.kill("ps-1")
    assert play.told(Halt)
    assert len([s for s in play.all(Start) if s.role == "server"]) == 4
    play.join()
    assert set(play.all(Load)[-1].owner.values()) == {"ps-2", "ps-3"}
    play.train(version=0)
    play.follow()
    assert play.machine.replication.replicas.keys() == play.machine.job.owner.keys()


def test_before_redundancy_is_complete_a_death_takes_all_members_back() -> None:
    play = Play(servers=3, standby=True)
    play.train()
    play.done(play.machine.left("ps-0", reason="killed"))
    assert play.told(Halt)


def test_the_former_follower_keeps_following_until_the_new_one_has_the_block() -> None:
    """A follower that is about to leave is replaced first; the block is never without."""
    play = Followed()
    play.done(play.machine.scale(servers=-1, strategy="handover"))
    going = play.machine.requests.current.going  # type: ignore[union-attr]
    play.move()
    assert play.notes()[-1] == "following"
    assert any(name in going for name, _ in play.machine.replication.replicas.values())
    assert not [end for end in play.heard if getattr(end, "name", "") in going and type(end).__name__ == "End"]
    play.follow()
    assert play.notes()[-1] == "scaled"
    assert not any(name in going for name, _ in play.machine.replication.replicas.values())
    assert {b for tell in play.told(DropReplicas) for b, _ in tell.order.blocks}


def test_a_server_that_is_to_leave_stays_until_it_has_given_away_what_it_was_promoted_to_meanwhile() -> None:
    play = Followed()
    play.done(play.machine.scale(servers=-1, strategy="handover"))
    play.kill("ps-0")
    play.inherit()
    job, heard, n_rounds = play.machine.job, 0, 0
    while "ps-2" in job.owner.values() and n_rounds < 3:
        assert "ps-2" not in [end.name for end in play.all(End)]
        told, heard, n_rounds = play.heard[heard:], len(play.heard), n_rounds + 1
        orders = [c.order for c in told if isinstance(c, Tell) and isinstance(c.order, HandOver)]
        for block, to in [move for order in orders for move in order.moves]:
            play.done(play.machine.reported(to, OwnsBlock(block=block, version=5, moves=job.moves[block] + 1)))
    assert n_rounds == 2
    assert set(job.owner.values()) == {"ps-1"}
    assert "ps-2" in [end.name for end in play.all(End)]


def test_a_new_server_with_blocks_stays_where_its_request_is_dropped_since_training_is_about_to_end() -> None:
    """The server that it replaces was promoted meanwhile, and the steps that are left do not suffice for more moves."""
    play = Followed()
    play.done(play.machine.scale(replace=["ps-2"], strategy="suspend"))
    play.join()
    play.move()
    play.kill("ps-0")
    play.inherit()
    play.step(97)
    play.follow()
    assert [note.columns["why"] for note in play.all(Note) if note.event == "dropped"] == ["training is about to end"]
    assert set(play.machine.job.owner.values()) == {"ps-1", "ps-2", "ps-3"}
    assert not play.all(End)


def test_a_move_goes_on_from_the_new_owner_if_the_old_one_dies_amid_it() -> None:
    play = Followed()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    source = play.told(HandOver)[0]
    heard = len(play.heard)
    play.kill(source.to)
    again = [c for c in play.heard[heard:] if isinstance(c, Tell) and isinstance(c.order, HandOver)]
    assert sorted(b for tell in again for b, _ in tell.order.moves) == sorted(b for b, _ in source.order.moves)
    assert all(tell.to != source.to for tell in again)
    assert "dropped" not in play.notes()


def test_a_server_that_cannot_be_given_a_block_to_follow_is_ended() -> None:
    """Workers would wait for it for ever."""
    play = Play(servers=3, standby=True)
    play.train()
    block, name, turn = play.told(Replicate)[0].order.blocks[0]
    owner = play.machine.job.owner[block]
    play.done(play.machine.reported(owner, ReplicaFailed(block=block, turn=turn, follower=name, why="")))
    assert name not in play.machine.job.members


def test_a_server_that_comes_back_is_told_again_to_replicate_its_own_blocks_alone() -> None:
    play = Play(servers=3, standby=True)
    play.train()
    first, n_told = [tell for tell in play.told(Replicate) if tell.to == "ps-0"], len(play.told(Replicate))
    play.done(play.machine.joined("ps-0", address="unix:/ps-0"))
    assert play.told(Replicate)[n_told:] == first


def test_a_controller_that_takes_over_knows_which_servers_follow_and_which_were_about_to() -> None:
    play = Followed()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    play.move()  # now some are about to follow
    assert play.machine.replication.pending
    state = play.machine.state()
    other = Controller(play.machine.job.terms, reassign=reassign)
    other.take_over(state)
    assert (other.replication.replicas, other.replication.pending, other.replication.turns) == (
        play.machine.replication.replicas, play.machine.replication.pending, play.machine.replication.turns
    )  # fmt: skip


def test_a_server_that_died_with_the_controller_is_replaced_by_its_followers() -> None:
    play = Followed()
    state, owner = play.machine.state(), dict(play.machine.job.owner)
    play.machine = Controller(play.machine.job.terms, reassign=reassign)
    play.done(play.machine.take_over(state))
    for name in [m for m in play.machine.job.members if m != "ps-0"]:
        play.done(play.machine.joined(name, address=f"unix:/{name}"))
    play.kill("ps-0")
    for name in list(play.machine.job.members):
        for block, there in owner.items():
            if there == name:
                play.done(play.machine.reported(name, OwnsBlock(block=block, version=3, moves=0)))
        play.done(play.machine.reported(name, StateReported(version=3, has=1)))
    play.inherit()
    assert "resumed" in play.notes()
    assert "promoted" in play.notes()
    assert not play.told(Halt)


@pytest.mark.parametrize("servers", [-1, -2])
def test_with_standby_at_least_two_servers_stay(servers: int) -> None:
    play = Followed(servers=2)
    with pytest.raises(InputError, match=r"left with (1 server; expected at least 2|0 servers)"):
        play.machine.scale(servers=servers, strategy="handover")


# --- a whole job, with a network that delivers in any order


def victims(stage: Stage, role: str) -> list[str]:
    here = stage.machine.job.members
    return [a.name for a in stage.actors.values() if a.alive and a.role == role and a.name in here]


class Trouble:
    """Something that happens to a job on a stage, drawn anew each time."""

    def __init__(self, rng: np.random.Generator, kinds: str) -> None:
        self._rng, self._kinds = rng, list(kinds)
        self.told: list[str] = []
        self.safe = True
        """Whether only such servers were killed whose blocks others followed."""

    def __call__(self, stage: Stage) -> None:
        if "began" in stage.events() and stage.over is None and not stage.machine.job.is_new():
            getattr(self, str(self._rng.choice(self._kinds)))(stage)

    def s(self, stage: Stage, n: int = 1) -> None:
        """Kill a server."""
        here = victims(stage, "server")
        chosen = [str(name) for name in self._rng.choice(here, size=min(n, len(here)), replace=False)]
        self.safe = self.safe and stage.machine.job.phase == "training" and stage.redundant(chosen)
        self.told.append(f"kill {chosen}")
        for name in chosen:
            stage.kill(name)

    def S(self, stage: Stage) -> None:  # noqa: N802
        """Kill two servers."""
        self.s(stage, 2)

    def w(self, stage: Stage) -> None:
        """Kill a worker, but not the last one."""
        begun = [name for name in victims(stage, "worker") if stage.machine.job.members[name].begun]
        if len(begun) > 1:
            self.told.append("kill a worker")
            stage.kill(str(self._rng.choice(begun)))

    def c(self, stage: Stage) -> None:
        """Scale."""
        asked = {"servers": int(self._rng.integers(-1, 3)), "workers": int(self._rng.integers(-1, 2))}
        strategy = str(self._rng.choice(["handover", "suspend", "checkpoint"], p=[0.6, 0.3, 0.1]))
        self.told.append(f"{strategy} {asked}")
        try:
            stage.carry_out(stage.machine.scale(**asked, strategy=strategy))
        except InputError:
            self.told.append("refused")

    def r(self, stage: Stage) -> None:
        """Kill the controller."""
        self.told.append("kill the controller")
        stage.restart_controller()


def troubled(seed: int, kinds: str, *, n: int) -> tuple[Stage, Trouble]:
    """Train while things happen; the parameters are those of training to which nothing happens."""
    rng = np.random.default_rng(seed)
    servers, workers = int(rng.integers(2, 5)), int(rng.integers(2, 4))
    stage = Stage(seed, servers=servers, workers=workers, n_steps=int(rng.integers(8, 20)), save_every=seed % 6)
    trouble = Trouble(rng, kinds)
    at: dict[int, Callable[[Stage], None]] = {int(frame): trouble for frame in rng.integers(50, 2500, size=n)}
    try:
        params = stage.run(at)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {trouble.told}: {error}") from error
    assert np.array_equal(params, control(stage.extents, n_steps=stage.n_steps, n_shards=stage.n_shards)), trouble.told
    return stage, trouble


@pytest.mark.parametrize("seed", many(25))
def test_a_server_may_die_at_any_moment_and_the_numbers_are_the_same(seed: int) -> None:
    """None goes back if all that died was followed."""
    stage, trouble = troubled(seed, "s", n=1)
    assert not trouble.safe or "goes_back" not in stage.events()


@pytest.mark.parametrize("kinds", ["sw", "sc", "sr", "sSwcr"])
@pytest.mark.parametrize("seed", many(10))
def test_any_process_may_die_while_it_scales_or_changes_its_controller(seed: int, kinds: str) -> None:
    troubled(1000 + seed, kinds, n=3)
