"""Repairs on machines: another process takes the place of a task, blocks are spread anew, and training goes on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from labkit.core import InputError, Placement, Repair, Role, repairs_of
from labkit.core.events import Events, Kind
from labkit.core.placement import Reason
from labkit.core.snapshot import Snapshot
from labkit.experiment.auto import auto
from labkit.experiment.history import add
from labkit.notebook import live_auto
from labkit.schedulers.dlrover.history import Likeness
from labkit.schedulers.dlrover.plan import Plan
from labkit.testbed.run.training import TrainingTable
from labkit.testing.plugs import Slowed
from tests.hang import HANG_S

QUICK = TrainingTable(samples=512, lease_s=2.0, save_every=50)


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
    record = auto("wide_deep", steps=1500, servers=2, workers=1, scheduler=Mends(), runs=tmp_path, training=QUICK)
    rows = record.events
    mended = rows[rows["kind"] == Kind.REPAIRED]
    assert mended["value"].tolist() == [Repair.REPLACE, Repair.BALANCE]
    assert record.decisions["reason"].tolist() == ["REPLACE", "BALANCE"]
    again = rows[(rows["kind"] == Kind.RESCALED) & (rows["time_s"] > mended["time_s"][0])]
    assert len(again) >= 1
    assert rows["value"][rows["kind"] == Kind.COMPLETED].tolist() == [1500.0]
    assert not np.isin(rows["kind"], (Kind.FAILED, Kind.TASK_FAILED, Kind.DROPPED)).any()


KEEPS_ITS_PLAN = (
    "dlrover(total_cores=0.8, most_cores=0.8, unit=0.04, gap_s=6, quantum_s=2, measure_every_s=2, min_gain=9, frees=1, "
    "back=9, n_more=0, hopeless=0.5, watch_memory=False)"
)
TWO_SERVERS = Plan(3, 0.12, 2, 0.16)
ONE_WORKER = Plan(1, 0.4, 2, 0.16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "name", "cores", "told"),
    [
        pytest.param(TWO_SERVERS, "ps-1", TWO_SERVERS.ps_cores, "ps-1 updates at 0.", id="server"),
        pytest.param(ONE_WORKER, "worker-0", ONE_WORKER.worker_cores, "worker-0 computes at 0.", id="only worker"),
    ],
)
def test_what_has_a_quarter_of_its_cores_is_found_and_replaced_and_speed_comes_back(
    tmp_path: Path, plan: Plan, name: str, cores: float, told: str
) -> None:
    """Tasks time their work: that is found within 30 s. How much speed comes back: `benchmarks dlrover_real`."""
    training = TrainingTable(width=0.3, batch=256, samples=2048)
    add(tmp_path / "plans.jsonl", Likeness("wide-deep", 256.0, "generated"), plan)

    async def story() -> None:
        run = live_auto(
            "wide_deep", steps=10**6, cores=0.8, runs=tmp_path, scheduler=KEEPS_ITS_PLAN, training=training,
        )  # fmt: skip
        run.start()
        try:
            await run.happened("progressed", n=20)
            began_s = run.now_s
            (victim,) = (member for member in run.members() if member.name == name)
            with Slowed(victim.pid, share=cores / 4):
                await asyncio.wait_for(run.happened("repaired"), timeout=HANG_S)
            mended_s = run.now_s
            await run.until(mended_s + 12)
            rows = run.record.events
            reason = run.record.decisions.iloc[-1]["reason"]
            before, slow, after = (
                _speed(rows, *window)
                for window in ((began_s - 8, began_s), (began_s + 2, mended_s), (mended_s + 4, mended_s + 12))
            )
            print(f"found after {mended_s - began_s:.0f} s: {reason}; {before:.1f}, {slow:.1f}, {after:.1f} steps/s")
            assert mended_s - began_s < 30
            assert reason.startswith(told)
            assert slow < 0.7 * before
            assert after > 2 * slow
        finally:
            run.stop()
            await run
        with pytest.raises(InputError, match=r"is over \(stopped\): no process trains any more"):
            run.members()

    asyncio.run(story())


def _speed(rows: Events, since_s: float, until_s: float) -> float:
    told = rows[rows["kind"] == Kind.PROGRESSED]
    steps = np.interp([since_s, until_s], told["time_s"], told["value"])
    return float(steps[1] - steps[0]) / (until_s - since_s)
