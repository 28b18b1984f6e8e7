"""Random histories of a job: whatever its processes say, in whatever order they die, the controller has an answer.

An exception in it ends the job, so there must be none; and blocks always have an owner that is there, or training goes
back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.controller_state import STRATEGIES, SavedMachine
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.messages.codec import from_json, to_json
from labkit.elastic.protocol.messages.reports import (
    ConnectFailed,
    HandedOver,
    HasReplica,
    OutOfMemory,
    OwnsBlock,
    Report,
    StateReported,
    Stuck,
    TrainingBegun,
    TransferUnconfirmed,
)
from tests.elastic.chaos.story import many
from tests.elastic.test_controller import Play

HISTORIES = 40
"""Of a seed."""


class History(Play):
    """A job to which anything happens that a seed draws; most of it makes sense."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.version = rng, 0
        standby = bool(rng.random() < 0.3)
        servers = int(rng.integers(1 + standby, 4))
        sizes = [5] * int(rng.choice([3, 4, 8]))
        every = int(rng.choice([0, 5]))
        super().__init__(
            servers=servers,
            workers=int(rng.integers(1, 4)),
            standby=standby,
            restarts=99,
            sizes=sizes,
            save_every=every,
        )
        self.happenings = [
            self.comes, self.comes, self.comes, self.steps, self.scales, self.scales, self.dies, self.newcomer_dies,
            self.newcomer_dies, self.doubted, self.doubted, self.moves, self.moves, self.handed, self.follows,
            self.loads, self.loads, self.ready, self.ready, self.saves, self.told_all, self.taken_over, self.unmet,
            self.memory, self.stuck, self.unable,
        ]  # fmt: skip

    def live(self) -> None:
        if self.rng.random() < 0.9:
            self.train()
        for number in self.rng.integers(len(self.happenings), size=int(self.rng.integers(5, 60))):
            if self.machine.job.phase == "over":
                return
            self.happenings[number]()

    def says(self, name: str, report: Report) -> None:
        self.done(self.machine.reported(name, report))

    def one(self, names: Any) -> str:
        return str(self.rng.choice(list(names) or ["ps-77"]))

    # --- what may happen

    def comes(self) -> None:
        waiting = [m.name for m in self.machine.job.members.values() if not m.joined]
        if waiting and self.rng.random() < 0.4:
            self.done(self.machine.joined(self.one(waiting), address="unix:/x"))
        elif self.rng.random() < 0.2:
            self.done(self.machine.joined(self.one(self.machine.job.members), address="unix:/x"))
        else:
            self.join()

    def steps(self) -> None:
        self.version += 1
        self.step(self.version)

    def scales(self) -> None:
        names = list(self.machine.job.members)
        asked: dict[str, Any] = {"servers": int(self.rng.integers(-1, 2)), "workers": int(self.rng.integers(-1, 2))}
        kind = self.rng.random()
        if kind < 0.4 and names:
            asked = {"replace": list(self.rng.choice(names, min(len(names), 2), replace=False))}
        elif kind < 0.6:
            asked = {"place": {"here": [int(self.rng.integers(1, 3)), int(self.rng.integers(1, 4))]}}
        try:
            self.done(self.machine.scale(**asked, strategy=self.one(STRATEGIES)))
        except InputError:
            return

    def dies(self) -> None:
        self.done(self.machine.left(self.one(self.machine.job.members), reason="killed"))

    def newcomer_dies(self) -> None:
        if self.machine.requests.current is not None and self.machine.requests.current.new:
            self.done(self.machine.left(self.one(self.machine.requests.current.new), reason="killed"))

    def _moving(self) -> dict[int, str]:
        scaling = self.machine.requests.current
        here = self.machine.job.members
        moves = {} if scaling is None else scaling.moves
        return {b: to for b, to in moves.items() if to in here and self.machine.job.owner[b] in here}

    def doubted(self) -> None:
        for block, to in list(self._moving().items())[:1]:
            owner, moves = self.machine.job.owner[block], self.machine.job.moves[block] + 1
            era = self.machine.job.era
            self.says(owner, TransferUnconfirmed(block, self.version, to, moves, "MemoryError", era=era))

    def moves(self) -> None:
        for block, to in self._moving().items():
            if self.rng.random() < 0.7 and to in self.machine.job.members:
                moves = self.machine.job.moves[block] + 1
                self.says(to, OwnsBlock(block, self.version, moves, era=self.machine.job.era))

    def handed(self) -> None:
        if self.machine.job.owner:
            block = int(self.rng.choice(list(self.machine.job.owner)))
            moves = self.machine.job.moves[block] + 1
            owner = self.one([*self.machine.job.members, "ps-77"])
            told = HandedOver(block, self.version, owner, moves, 0.1, 20, era=self.machine.job.era)
            self.says(self.one(self.machine.job.members), told)

    def follows(self) -> None:
        for block, (name, turn) in list(self.machine.replication.pending.items())[:2]:
            if name in self.machine.job.members:
                self.says(name, HasReplica(block, turn, self.version))

    def loads(self) -> None:
        if self.machine.job.phase == "loading":
            self.done(self.machine.loaded(self.version))

    def ready(self) -> None:
        for worker in self.machine.job.of("worker"):
            self.says(worker.name, TrainingBegun(self.version))

    def saves(self) -> None:
        self.done(self.machine.copied(self.version))
        self.done(self.machine.saved_at(self.machine.checkpoints.saving or self.version))

    def told_all(self) -> None:
        for name in list(self.machine.job.members):
            self.says(name, StateReported(self.version, self.machine.job.era))

    def taken_over(self) -> None:
        state, names = from_json(SavedMachine, to_json(self.machine.state())), list(self.machine.job.members)
        assert state == self.machine.state()
        self.machine = Controller(self.machine.job.terms, reassign=reassign)
        self.done(self.machine.take_over(state, names=names))

    def unmet(self) -> None:
        self.says(self.one(self.machine.job.members), ConnectFailed(self.one(self.machine.job.members), "cut"))

    def stuck(self) -> None:
        for worker in self.machine.job.of("worker")[:1]:
            self.says(worker.name, Stuck((1, int(self.rng.integers(1000))), "hangs"))

    def memory(self) -> None:
        for server in self.machine.job.of("server")[-1:]:
            self.says(server.name, OutOfMemory("out of memory"))

    def unable(self) -> None:
        self.done(self.machine.unable(self.one(self.machine.job.members), why="no port"))


@pytest.mark.parametrize("seed", many(3))
def test_no_history_ends_a_controller_with_an_exception(seed: int) -> None:
    for number in range(HISTORIES):
        history = History(np.random.default_rng([seed, number]))
        history.live()
        machine = history.machine
        if machine.job.phase == "training":
            assert set(machine.job.owner) == set(range(len(machine.job.terms.sizes)))
            assert set(machine.job.owner.values()) <= {*machine.job.members, "ps-77"}, f"seed {seed}, {number}"
