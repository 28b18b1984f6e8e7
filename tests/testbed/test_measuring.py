"""What agents and jobs tell becomes measurements of tasks, in the schema of a simulation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from labkit.core import Cause, Kind, Quantity, Role
from labkit.core.ledger import Ledger
from labkit.testbed.agent.messages import HostMeasurement, HostUse, Used
from labkit.testbed.errors import AgentRefused
from labkit.testbed.run.events import RunMeasuring, _rows, _used
from labkit.testbed.run.job_events import EventQuantities, LeftEvent, MemberName, Progress, StartedEvent, event_of
from labkit.testing.backends import same_events
from tests.hang import HANG_S
from tests.testbed.test_backend import jobs_of


def said(at_s: float, **cpu_s: float) -> dict[str, HostMeasurement]:
    """Return the measurement of host h0 with the processes of job 0."""
    processes = {pid.removeprefix("p"): seconds for pid, seconds in cpu_s.items()}
    memory_mb = dict.fromkeys(processes, 500.0)
    used = Used("r", "job-0", 1, 0.0, 0.0, 0.0, 0.0, processes=processes, processes_mb=memory_mb)
    return {"h0": HostMeasurement(at_s, HostUse(0.0, 0.0, 0.0, 0.0), [used])}


def heard(*events: tuple[str, dict[str, Any]]) -> EventQuantities:
    found = EventQuantities()
    for name, columns in events:
        found.note({"event": name, **columns})
    return found


def started(name: str, pid: int) -> tuple[str, dict[str, Any]]:
    return "started", {"name": name, "pid": pid, "host": "h0"}


def stepped(name: str, compute_s: float, wait_s: float) -> tuple[str, dict[str, Any]]:
    return "stepped", {"name": name, "compute_s": compute_s, "wait_s": wait_s}


def test_cores_are_processor_seconds_per_second_and_their_sum_is_that_of_the_role() -> None:
    job = heard(started("worker-0", 7), started("worker-4", 8), started("ps-0", 9))
    used = _used(job, said(10, p7=1.0, p8=0.0), said(14, p7=4.0, p8=2.0, p9=1.0), run="r", task="job-0")
    assert used[MemberName(Role.WORKER, 0), Quantity.CORES] == 0.75
    assert used[MemberName(Role.WORKER, 4), Quantity.CORES] == 0.5
    assert used[MemberName(Role.PS, 0), Quantity.MEMORY_GB] == 0.5
    assert (MemberName(Role.PS, 0), Quantity.CORES) not in used  # it was seen once: it is unknown since when
    rows = _rows(0, used)
    together = rows[(rows["task"] == -1) & (rows["quantity"] == Quantity.CORES)]
    assert together["role"].tolist() == [Role.WORKER]
    assert together["value"].tolist() == [1.25]


def test_the_slowest_worker_and_the_hottest_server_are_those_of_the_row_of_all_tasks() -> None:
    job = heard(
        started("worker-0", 1), started("worker-1", 2), started("ps-0", 3), started("ps-1", 4),
        stepped("worker-0", 0.1, 0.4), stepped("worker-0", 0.3, 0.2), stepped("worker-1", 0.4, 0.1),
        ("served", {"name": "ps-0", "bytes": 300}), ("served", {"name": "ps-1", "bytes": 100}),
        ("served", {"name": "ps-1", "bytes": 0}),
    )  # fmt: skip
    rows = _rows(0, job.taken())
    found = {(Quantity(r["quantity"]), int(r["task"])): round(float(r["value"]), 9) for r in rows}
    assert found == {
        (Quantity.COMPUTE_S, 0): 0.2, (Quantity.COMPUTE_S, 1): 0.4, (Quantity.COMPUTE_S, -1): 0.4,
        (Quantity.STEP_S, 0): 0.5, (Quantity.STEP_S, 1): 0.5, (Quantity.STEP_S, -1): 0.5,
        (Quantity.LOAD, 0): 0.75, (Quantity.LOAD, 1): 0.25, (Quantity.LOAD, -1): 0.75,
    }  # fmt: skip
    assert not job.taken()


def test_servers_tell_the_seconds_of_an_update_of_the_whole_model() -> None:
    job = heard(
        started("ps-0", 3), started("ps-1", 4), ("served", {"name": "ps-0", "bytes": 8, "update_s": 0.2}),
        ("served", {"name": "ps-1", "bytes": 8, "update_s": 0.5}), ("served", {"name": "ps-1", "bytes": 0}),
    )  # fmt: skip
    rows = _rows(0, job.taken())
    told = rows[rows["quantity"] == Quantity.COMPUTE_S]
    assert dict(zip(told["task"].tolist(), told["value"].tolist(), strict=True)) == {0: 0.2, 1: 0.5, -1: 0.5}
    assert set(told["role"].tolist()) == {Role.PS}


def test_a_member_that_has_left_is_measured_no_more() -> None:
    job = heard(started("ps-0", 3), ("served", {"name": "ps-0", "bytes": 10}), ("left", {"name": "ps-0"}))
    assert not job.taken() | _used(job, said(1, p3=1.0), said(2, p3=2.0), run="r", task="job-0")


def test_a_task_that_was_lost_is_told_with_its_host_its_status_and_its_cause() -> None:
    progress = Progress()
    progress.note(StartedEvent(name="ps-1", pid=3, host="h2"))
    told = progress.note(LeftEvent(name="ps-1", reason="exit code 137", cause="out_of_memory", code=137))
    assert told is not None
    assert told.task is not None
    assert (told.cause, told.task.member, told.task.host, told.task.code) == (
        Cause.OUT_OF_MEMORY, MemberName(Role.PS, 1), "h2", 137.0,
    )  # fmt: skip
    assert told.why == "ps-1 on h2: exit code 137"
    assert progress.note(LeftEvent(name="ps-1", expected=True, reason="exit code 0")) is None


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "stepped", "name": "worker-0", "compute_s": "long", "wait_s": 0}',
        '{"event": "stepped", "name": 3, "compute_s": 1, "wait_s": 0}',
        '{"event": "served", "name": "ps-0"}',
        '{"event": "served", "name": "ps-0", "bytes": 8, "update_s": NaN}',
        '{"event": "left", "name": "ps-0", "reason": null}',
        '{"event": "started", "name": "ps-0", "pid": 1}',
    ],
)
def test_events_of_another_form_are_the_fault_of_their_host(line: str) -> None:
    with pytest.raises(AgentRefused, match="are not what labkit writes"):
        event_of(line)


class OneHost:
    """A host whose agent answers twice."""

    up, run = {"h0": True}, "r"

    def __init__(self, *answers: dict[str, HostMeasurement]) -> None:
        self.answers = list(answers)

    def agent(self, name: str) -> OneHost:
        self.name = name
        return self

    def measure(self, *, each: bool) -> HostMeasurement:
        assert each
        return self.answers.pop(0)[self.name] if len(self.answers) > 1 else self.answers[0][self.name]


def test_tasks_that_start_are_no_sample_of_a_plan() -> None:
    settled = iter([True, False, False, True, True])
    measuring = RunMeasuring(OneHost(said(1)), every_s=HANG_S, on_rows=print, settled=lambda _: next(settled))
    measuring.note(0, StartedEvent(name="worker-0", pid=5, host="h0"))
    at = [said(second, p5=float(second)) for second in range(6)]
    n_rows = [len(measuring.measured(before, after)) for before, after in pairwise(at)]
    measuring.close()
    assert [n > 0 for n in n_rows] == [True, False, False, False, True], (
        "nor is the interval in which the last is there"
    )


def test_measurements_of_a_run_reach_the_ledger_as_those_of_a_simulation_do() -> None:
    import queue

    from labkit.topology import no_network

    heard_rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
    measuring = RunMeasuring(
        OneHost(said(1, p5=1.0), said(3, p5=2.0)), every_s=0.05, on_rows=heard_rows.put, settled=lambda _: True
    )  # type: ignore[arg-type]
    measuring.note(0, StartedEvent(name="worker-0", pid=5, host="h0"))
    ledger = Ledger(jobs_of(1), no_network(1))
    while ledger.use.newest[0, Role.WORKER, Quantity.CORES] != 0.5:
        rows = heard_rows.get(timeout=HANG_S)
        assert set(rows["kind"]) == {Kind.MEASURED}
        ledger.fold(rows)
    measuring.close()
    assert ledger.use.newest[0, Role.WORKER, Quantity.MEMORY_GB] == 0.5
    assert same_events(rows, rows)
