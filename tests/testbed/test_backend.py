"""A trace on the laptop testbed: real SSH, real agents, real training; the same session as a simulation."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.core import Cause, Jobs, Placement, Role
from labkit.core.errors import InputError, PlacementError
from labkit.core.events import Events, Kind
from labkit.core.ledger import Ledger
from labkit.core.resources import amounts
from labkit.experiment import Session, attach, deploy
from labkit.results.record import RunState
from labkit.testbed.agent.client import Agent
from labkit.testbed.inventory import Inventory
from labkit.testbed.laptop import Bed
from labkit.testbed.run.agents import AgentPool, usage
from labkit.testbed.run.backend import SshBackend
from labkit.testbed.run.job_events import MemberName
from labkit.testbed.run.training import TrainingTable
from labkit.testbed.ssh.fleet import Fleet
from tests.hang import HANG_S

TINY = TrainingTable(width=0.05, samples=256, save_every=20, lease_s=5.0)


def jobs_of(n: int = 2, *, steps: int | list[int] = 60, every_s: float = 0.0, **more: object) -> Jobs:
    """Jobs that train a small model for so many steps, with one worker and one PS."""
    return Jobs.of(
        arrival_s=every_s * np.arange(n), total_steps=steps, model="dssm", duration_s=10.0, n_workers=1, n_ps=1,
        worker_demand=amounts(gpus=1, cpus=0.01, memory_gb=0.01), ps_demand=amounts(cpus=0.01, memory_gb=0.01), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def ran(rows: Events, kind: Kind) -> list[int]:
    return rows["job"][rows["kind"] == kind].tolist()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def backend(bed: Inventory, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SshBackend]:
    made = SshBackend(
        getattr(request, "param", jobs_of()), bed, run=f"t{os.getpid()}-{tmp_path.name[-20:]}", folder=tmp_path,
        training=TINY,
    )  # fmt: skip
    with made:
        yield made


def until(session: Session, kind: Kind, *, n: int = 1) -> None:
    """Let time pass, without decisions, until something has happened so often."""
    for _ in range(300):  # seconds: machines differ
        if np.count_nonzero(session.log.rows["kind"] == kind) >= n:
            return
        session._note(session.backend.advance(session.now_s + 1.0, stop_at_event=False))
    raise AssertionError(f"{kind!r} did not happen: {session.log.rows[-3:]}, {session.backend.notes}")  # type: ignore[attr-defined]


def on(group: int, job: int = 0, *, workers: int = 1, servers: int = 1) -> Placement:
    return Placement.of([job], job=[job, job], role=[0, 1], group=[group, group], count=[workers, servers])


def test_a_trace_runs_to_its_end_and_is_a_record_like_that_of_a_simulation(bed: Inventory, runs: Path) -> None:
    seen: list[int] = []
    begun: list[tuple[str, bool]] = []
    record = deploy(
        jobs_of(3, every_s=0.5), inventory=bed, scheduler="fifo", runs=runs, training=TINY,
        observers=[lambda batch: seen.append(len(batch))], run="w1",
        on_start=lambda folder: begun.append((folder.name, (folder / "run.json").exists() and not seen)),
    )  # fmt: skip
    assert begun == [("w1", True)]
    assert (record.info.run, record.info.scheduler) == ("w1", "fifo")
    assert record.info.state == RunState.DONE
    assert record.info.backend == "testbed"
    assert 0 <= record.info.config["cold_starts"] <= 3
    rows = record.events
    assert sorted(ran(rows, Kind.COMPLETED)) == [0, 1, 2]
    assert sorted(ran(rows, Kind.STARTED)) == [0, 1, 2]
    assert (np.diff(rows["time_s"]) >= 0).all()
    assert record.summary["n_unfinished"] == 0
    assert sum(seen) == len(rows)
    ledger = Ledger(record.jobs, record.cluster)
    ledger.fold(rows)
    assert np.allclose(ledger.book.free, record.cluster.capacity)
    assert set(ran(rows, Kind.LOSS)) == {0, 1, 2}


def test_a_placement_that_does_not_fit_is_refused_and_changes_nothing(backend: SshBackend) -> None:
    session = Session(backend)
    with pytest.raises(PlacementError, match="does not fit device group 0"):
        session.step(on(0, workers=2))
    assert not ran(session.log.rows, Kind.PLACED)


def test_a_job_moves_stops_and_goes_on_elsewhere_and_loses_no_step(bed: Inventory, tmp_path: Path) -> None:
    jobs = jobs_of(1, steps=1200)
    with SshBackend(jobs, bed, run=f"move-{os.getpid()}", folder=tmp_path, training=TINY) as backend:
        session = Session(backend)
        session._note(backend.apply(on(0)))
        until(session, Kind.PROGRESSED, n=2)
        session._note(backend.apply(on(1)))  # a hot scaling: all its tasks move to another host
        until(session, Kind.RESCALED)
        session._note(backend.apply(Placement.of([0])))
        (preempted,) = session.log.rows[session.log.rows["kind"] == Kind.PREEMPTED]
        assert (preempted["job"], preempted["cause"]) == (0, Cause.PREEMPTED)
        gone = backend._deployments[0]
        with gone._state.change:
            assert gone._state.change.wait_for(lambda: not gone.home, HANG_S)
        session._note(backend.apply(on(2)))  # another home: its checkpoint is brought there
        until(session, Kind.COMPLETED)
        started = session.log.rows[session.log.rows["kind"] == Kind.STARTED]
        assert started["value"][0] == 0
        assert started["value"][1] > 0
        result = json.loads(backend.hosts.agent("h2").read(backend.run, task="job-0", file="result.json").data)
        assert result["steps"] == 1200
    alone = undisturbed(jobs, tmp_path)
    assert result["digest"] == alone


@pytest.mark.parametrize("backend", [jobs_of(1, steps=5000)], indirect=True)
def test_a_scaling_that_comes_to_nothing_is_taken_back_at_once(backend: SshBackend) -> None:
    session = Session(backend)
    session._note(backend.apply(on(0)))
    until(session, Kind.STARTED)
    session._note(backend.apply(on(0, servers=9)))  # there are eight shards
    assert session.ledger.book.allocations["n_ps"][0] == 9
    until(session, Kind.PLACED, n=6)
    assert session.ledger.book.allocations["n_ps"][0] == 1
    assert not ran(backend.apply(on(0)), Kind.PLACED), "it is there"
    until(session, Kind.PROGRESSED, n=len(ran(session.log.rows, Kind.PROGRESSED)) + 2)
    assert "9 servers for 8" in backend.notes[0]


@pytest.mark.parametrize("backend", [jobs_of(steps=[5000, 300])], indirect=True)
def test_a_job_whose_place_was_given_away_when_its_scaling_comes_to_nothing_stops_and_can_be_placed_again(
    backend: SshBackend,
) -> None:
    session = Session(backend)
    session._note(backend.apply(on(0)))
    until(session, Kind.STARTED)
    moved = Placement.of(
        [0, 1], job=[0, 0, 1, 1], role=[0, 1, 0, 1], group=[1, 1, 0, 0], count=[1, 9, 1, 1]
    )  # the second job takes the first one's place
    session._note(backend.apply(moved))
    until(session, Kind.FAILED)
    assert ran(session.log.rows, Kind.FAILED) == [0]
    session._note(backend.apply(on(1)))
    until(session, Kind.STARTED, n=3)
    until(session, Kind.COMPLETED)
    assert sorted(ran(session.log.rows, Kind.STARTED)) == [0, 0, 1]
    assert (session.ledger.book.free >= 0).all()


def test_a_job_that_starts_again_where_it_was_tells_nothing_of_its_earlier_life(bed: Inventory, tmp_path: Path) -> None:
    with SshBackend(jobs_of(1, steps=1500), bed, run=f"again-{os.getpid()}", folder=tmp_path, training=TINY) as backend:
        session = Session(backend)
        session._note(backend.apply(on(0)))
        until(session, Kind.PROGRESSED, n=2)
        session._note(backend.apply(Placement.of([0])))
        gone = backend._deployments[0]
        with gone._state.change:
            assert gone._state.change.wait_for(lambda: not gone.home, HANG_S)
        session._note(backend.advance(session.now_s, stop_at_event=False))
        saved = gone.progress.saved
        session._note(backend.apply(on(0)))
        until(session, Kind.COMPLETED)
    rows = session.log.rows
    again = rows[np.flatnonzero(rows["kind"] == Kind.PREEMPTED)[0] :]
    assert again["value"][again["kind"] == Kind.STARTED].tolist() == [saved]
    assert (again["value"][again["kind"] == Kind.PROGRESSED] >= saved).all()
    assert again["value"][again["kind"] == Kind.PROGRESSED][-1] == 1500  # the last step is told


def test_a_measured_job_tells_use_pace_and_load_and_a_killed_worker_its_cause(bed: Inventory, tmp_path: Path) -> None:
    training = TINY.changed(measure_every_s=0.5)
    with SshBackend(
        jobs_of(1, steps=100_000), bed, run=f"tells-{os.getpid()}", folder=tmp_path, training=training
    ) as backend:
        session = Session(backend)
        session._note(backend.apply(on(0, servers=2)))
        seen = session.snapshot().jobs
        while np.isnan([*seen.used_cores[0], *seen.slowest_step_s, *seen.slowest_compute_s, *seen.hottest_load]).any():
            until(session, Kind.MEASURED, n=len(ran(session.log.rows, Kind.MEASURED)) + 1)
            seen = session.snapshot().jobs
        assert 0 < seen.slowest_compute_s[0] < seen.slowest_step_s[0]
        assert 0.5 <= seen.hottest_load[0] <= 1
        assert (seen.used_cores[0] < 2 * (os.cpu_count() or 1)).all()
        assert (seen.peak_memory_gb[0] > 0.01).all()
        assert backend._measuring is not None
        host, pid = backend._measuring._jobs[0].where[MemberName(Role.WORKER, 0)]
        os.kill(pid, signal.SIGKILL)
        until(session, Kind.TASK_FAILED)
        (lost,) = session.log.rows[session.log.rows["kind"] == Kind.TASK_FAILED]
        assert (lost["job"], lost["role"], lost["task"], lost["cause"]) == (0, Role.WORKER, 0, Cause.KILLED)
        assert (lost["value"], backend.cluster.machines[lost["machine"]]) == (-signal.SIGKILL, host)
        assert any("worker-0 on" in note for note in backend.notes)


def test_a_run_on_machines_tells_how_fast_its_hosts_are_while_they_have_tasks(bed: Inventory, tmp_path: Path) -> None:
    with SshBackend(
        jobs_of(1, steps=100_000), bed, run=f"yard-{os.getpid()}", folder=tmp_path, training=TINY
    ) as backend:
        session = Session(backend)
        session._note(backend.apply(on(1)))
        until(session, Kind.YARDSTICK, n=2)
    read = session.log.rows[session.log.rows["kind"] == Kind.YARDSTICK]
    assert {backend.cluster.machines[machine] for machine in read["machine"]} == {"h1"}
    assert ((read["value"] > 0) & (read["value"] < 1) & (read["cpus"] >= 0)).all()
    assert set(read["job"]) == {-1}


def undisturbed(jobs: Jobs, folder: Path) -> str:
    """Return the digest of the same job trained in one place from its beginning to its end."""
    from labkit.elastic import models, train
    from labkit.elastic.data import dataset

    name = models.size_of(jobs.models[0], width=TINY.width).name
    result = train(
        models.build(name, width=TINY.width, seed=0), dataset(name, n=TINY.samples, seed=0, width=TINY.width),
        models.loss(name), steps=int(jobs.true_steps[0]), batch=TINY.batch, shards=TINY.shards, workers=1, servers=1,
        optimizer=TINY.optimizer, lr=models.learning_rate(name), seed=0,
    )  # fmt: skip
    return result.digest


def test_a_host_that_dies_takes_its_jobs_with_it_and_they_go_on_elsewhere(own_folder: Path, tmp_path: Path) -> None:
    with Bed.up(2, folder=own_folder, gpus=1) as up:
        jobs = jobs_of(1, steps=1500)
        with SshBackend(jobs, up.inventory, run="dies", folder=tmp_path, training=TINY) as backend:
            session = Session(backend)
            session._note(backend.apply(on(0)))
            until(session, Kind.PROGRESSED, n=2)
            kill_host(up, "h0", backend)
            until(session, Kind.LEFT)
            rows = session.log.rows
            assert ran(rows, Kind.FAILED) == [0]
            for kind in (Kind.FAILED, Kind.LEFT):
                (row,) = rows[rows["kind"] == kind]
                assert (row["machine"], row["cause"]) == (0, Cause.HOST_LOST)
            session._note(backend.apply(on(1)))
            until(session, Kind.COMPLETED)
            assert session.log.rows["value"][session.log.rows["kind"] == Kind.COMPLETED][-1] == 1500


def kill_host(up: Bed, name: str, backend: SshBackend) -> None:
    """End a host as a power cut does: its SSH server with all connections, its agent, and all that it runs."""
    agent = backend.hosts.agent(name)
    roots = [task.pid for run in agent.list() for task in run.tasks.values()]
    roots += [next(host.pid for host in up.status() if host.name == name), int(agent.hello.pid)]
    for pid in [each for root in roots for each in family(root)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    said = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout
    return [pid, *(each for child in said.split() for each in family(int(child)))]


def test_a_run_whose_process_is_killed_goes_on_when_another_attaches(bed: Inventory, runs: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_backend import TINY, jobs_of
        from labkit.experiment import deploy
        def main():
            deploy(jobs_of(2, steps=400), inventory={str(bed.path)!r}, scheduler="fifo", runs={str(runs)!r},
                   training=TINY, observers=[lambda rows: print(*rows["kind"].tolist(), flush=True)])
        main()
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    progressed = str(int(Kind.PROGRESSED))
    for line in process.stdout:
        if progressed in line.split():
            break
    process.kill()
    process.communicate()
    (run,) = runs.iterdir()
    record = attach(run)
    rows = record.events
    assert sorted(ran(rows, Kind.ARRIVED)) == [0, 1]
    assert sorted(ran(rows, Kind.COMPLETED)) == [0, 1]
    assert sorted(set(ran(rows, Kind.STARTED))) == [0, 1]
    assert not ran(rows, Kind.FAILED)
    assert (np.diff(rows["time_s"]) >= 0).all()
    with pytest.raises(InputError, match="is over"):
        attach(run)


def test_a_job_that_cannot_train_here_is_refused_before_anything_starts(bed: Inventory, runs: Path) -> None:
    with pytest.raises(InputError, match="unknown model 'alexnet'"):
        deploy(
            Jobs.of(arrival_s=0, total_steps=10, model="alexnet", duration_s=5), inventory=bed, scheduler="fifo",
            runs=runs,
        )  # fmt: skip
    assert not runs.exists()


def test_a_scheduler_with_leases_is_refused(bed: Inventory, runs: Path) -> None:
    with pytest.raises(InputError, match="leases, which only the simulator has"):
        deploy(jobs_of(), inventory=bed, scheduler="gavel_las(published=True)", runs=runs)
    assert not runs.exists()


def test_a_live_run_of_a_notebook_takes_machines_as_it_takes_a_simulation(bed: Inventory, tmp_path: Path) -> None:
    from labkit.experiment import Experiment
    from labkit.notebook.run import LiveRun

    jobs = jobs_of(1, steps=40)
    with SshBackend(jobs, bed, run=f"live-{os.getpid()}", folder=tmp_path, training=TINY) as backend:
        run = LiveRun(Experiment.of(jobs, cluster=bed.cluster()), scheduler="fifo", backend=backend)
        run.start().wait(HANG_S)
    assert run.state == "done", run.error
    assert run.metrics["n_done"] == 1
    assert ran(run.record.events, Kind.COMPLETED) == [0]


def test_a_task_that_is_begun_while_the_run_ends_is_not_left_behind(
    bed: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, ended = threading.Event(), threading.Event()
    start, end = Agent.start, AgentPool.end

    def held_up(self: Agent, run: str, **task: Any) -> dict[str, Any]:
        begins.set()
        assert ended.wait(HANG_S), "the run was never ended"
        return start(self, run, **task)

    def end_and_tell(self: AgentPool, run: str) -> None:
        end(self, run)
        ended.set()

    monkeypatch.setattr(Agent, "start", held_up)
    monkeypatch.setattr(AgentPool, "end", end_and_tell)
    run = f"late-{os.getpid()}"
    backend = SshBackend(jobs_of(1, steps=100_000), bed, run=run, folder=tmp_path / "live", training=TINY)
    backend.advance(0.0, stop_at_event=False)
    backend.apply(on(0))
    assert begins.wait(HANG_S)
    backend.close()
    with Fleet(bed) as fleet:
        left = usage(fleet)
    assert run not in set(left["run"]), "no host knew the run when it was ended there for the first time"
    assert left["memory_mb"].dtype == "float64", "where there are no tasks, too"


def test_a_live_run_on_machines_stops_at_once(bed: Inventory, tmp_path: Path) -> None:
    from labkit.experiment import Experiment
    from labkit.notebook.run import LiveRun

    jobs = jobs_of(1, steps=100_000)
    with SshBackend(jobs, bed, run=f"stop-{os.getpid()}", folder=tmp_path, training=TINY) as backend:
        run = LiveRun(Experiment.of(jobs, cluster=bed.cluster()), scheduler="fifo", backend=backend)
        run.start()
        while not run.metrics.get("n_running"):
            run.wait(0.1)
        run.stop()
        run.wait(HANG_S)
        assert run.state == "stopped"
    with SshBackend(jobs, bed, run=f"after-{os.getpid()}", folder=tmp_path / "b", training=TINY) as after:
        for name in bed.names:
            runs = [run for run in after.hosts.agent(name).list() if run.run == f"stop-{os.getpid()}"]
            assert not [task for run in runs for task in run.tasks.values() if task.phase != "ended"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
@pytest.mark.parametrize("backend", [jobs_of(1, steps=5000)], indirect=True)
def test_other_cores_reach_the_processes_of_a_running_job_which_goes_on(backend: SshBackend) -> None:
    def members() -> dict[str, int]:
        return {member.role: member.pid for member in backend.members(0)}

    def cores(pid: int) -> int:
        return len(os.sched_getaffinity(pid))

    session = Session(backend)
    session._note(backend.apply(on(0)))
    until(session, Kind.PROGRESSED)
    before = members()
    everything = cores(before["worker"])
    lent = Placement.of([0], job=[0, 0], role=[0, 1], group=[0, 0], cpus=[0.25, np.nan])
    session._note(backend.apply(lent))
    until(session, Kind.RESIZED)
    assert session.snapshot().running().cpus.tolist() == [0.25, 0.01]
    assert not any("0.25 cores" in note for note in backend.notes), "a share of a core can be had on every host"
    assert not ran(backend.apply(lent), Kind.PLACED), "it has them"
    until(session, Kind.PROGRESSED, n=len(ran(session.log.rows, Kind.PROGRESSED)) + 2)
    assert members() == before
    assert cores(before["worker"]) == 1
    assert cores(before["server"]) == everything
    session._note(backend.apply(on(0)))  # as declared: no limit
    until(session, Kind.RESIZED, n=2)
    assert cores(before["worker"]) == everything
    assert ran(session.log.rows, Kind.RESCALED) == []
