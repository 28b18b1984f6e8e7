"""Repairs on machines: another process takes the place of a task, blocks are spread anew, and training goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from labkit.core import Placement, Repair, Role, repairs_of
from labkit.core.events import Kind
from labkit.core.placement import Reason
from labkit.core.snapshot import Snapshot
from labkit.experiment.auto import auto
from labkit.testbed.training import Training

QUICK = Training(samples=512, lease_s=2.0, save_every=50)


@dataclass
class Mends:
    """One worker and two servers; then server 0 is replaced, and last the blocks are balanced."""

    quantum_s: float = 1.0
    todo: list[tuple[int, int, Repair]] = field(
        default_factory=lambda: [(Role.PS, 0, Repair.REPLACE), (Role.PS, -1, Repair.BALANCE)]
    )

    def schedule(self, snapshot: Snapshot) -> Placement:
        if len(snapshot.waiting):
            return Placement.of([0], job=[0, 0], role=[Role.WORKER, Role.PS], group=[0, 0], count=[1, 2])
        if self.todo and snapshot.jobs.speed[0] > 0:
            role, task, kind = self.todo.pop(0)
            return Placement.of([], repairs=repairs_of([(0, role, task, kind)]), reasons=[Reason(0, kind.name)])
        return Placement.nothing()


@pytest.mark.slow
def test_a_server_is_replaced_and_blocks_are_balanced_while_every_sample_counts_once(tmp_path: Path) -> None:
    record = auto("wide_deep", steps=1500, servers=2, workers=1, scheduler=Mends(), folder=tmp_path, training=QUICK)
    rows = record.events
    mended = rows[rows["kind"] == Kind.REPAIRED]
    assert mended["value"].tolist() == [Repair.REPLACE, Repair.BALANCE]
    assert record.decisions["reason"].tolist() == ["REPLACE", "BALANCE"]
    again = rows[(rows["kind"] == Kind.RESCALED) & (rows["time_s"] > mended["time_s"][0])]
    assert len(again) >= 1
    assert rows["value"][rows["kind"] == Kind.COMPLETED].tolist() == [1500.0]
    assert not np.isin(rows["kind"], (Kind.FAILED, Kind.TASK_FAILED, Kind.DROPPED)).any()
