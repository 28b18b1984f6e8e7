"""Measuring a testbed: which gangs and where; a small profile of a laptop testbed; failures and interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.experiment import simulate
from labkit.speed.profiled import read
from labkit.testbed.agent.client import Agent
from labkit.testbed.inventory import Inventory
from labkit.testbed.laptop import Bed
from labkit.testbed.profiling.gangs import GangShape, MeasuredKind, kinds_named, kinds_of, place_of, walk
from labkit.testbed.profiling.isolated import ChangeMeasurement
from labkit.testbed.profiling.measure import measure, measured_kinds, overheads, profile, table
from labkit.testbed.profiling.session import ProfilingSession
from labkit.testbed.run.agents import AgentPool
from labkit.testbed.run.training import TrainingTable
from labkit.topology import no_network
from tests.hang import HANG_S
from tests.testbed.fabbing import environment

TINY = TrainingTable(width=0.05, samples=256)


def left_over(inventory: Inventory) -> list[str]:
    """Return the tasks of profiling runs that still run on some hosts."""
    from labkit.testbed.ssh.fleet import Fleet

    with Fleet(inventory) as fleet:
        hosts = AgentPool(fleet, run="look")
        hosts.get_ready()
        said = [(name, run) for name in inventory.names for run in hosts.agent(name).list()]
        hosts.close()
    return [
        f"{name}: {run.run}/{task}"
        for name, run in said
        if run.run.startswith("profile-")
        for task, its in run.tasks.items()
        if its.phase != "ended"
    ]


# --- which gangs


def test_a_walk_changes_little_from_gang_to_gang_and_visits_all() -> None:
    gangs = walk(MeasuredKind("m", max_ps=2, max_workers=3), no_network(3))
    once = [(gang.n_ps, gang.n_workers) for gang in gangs if gang.n_hosts == 1]
    assert sorted(once) == [(p, w) for p in (1, 2) for w in (1, 2, 3)]
    assert max(abs(a - c) + abs(b - d) for (a, b), (c, d) in zip(once[1:], once[:-1], strict=True)) == 1
    assert [str(gang) for gang in gangs if gang.n_hosts == 2] == ["2 PS, 3 workers on 2 hosts"]
    assert all(gang.n_hosts == 1 for gang in walk(MeasuredKind("m"), no_network(1)))


def test_large_gangs_are_sampled() -> None:
    gangs = walk(MeasuredKind("m", max_ps=8, max_workers=16), no_network(1))
    assert 8 <= len(gangs) <= 12
    assert GangShape(1, 1) in gangs


@pytest.mark.parametrize(
    "gang", [GangShape(1, 1), GangShape(2, 2), GangShape(3, 2), GangShape(2, 4, 2), GangShape(2, 9)]
)
def test_a_place_seats_exactly_the_gang(gang: GangShape) -> None:
    place = place_of(gang, no_network(3), first=2)
    assert sum(workers for workers, _ in place.values()) == gang.n_workers
    assert sum(servers for _, servers in place.values()) == gang.n_ps
    assert len({site.rpartition("/")[0] for site in place}) == gang.n_hosts


def test_a_trace_is_measured_up_to_its_largest_gangs_and_names_up_to_those_asked_for() -> None:
    jobs = Jobs.of(
        arrival_s=[0.0] * 3, total_steps=5, model=["dssm", "wlm", "dssm"], n_ps=1, max_workers=[1, 2, 4],
        max_ps=[2, 1, 1], sync=[True, False, True],
    )  # fmt: skip
    assert kinds_of(jobs) == [MeasuredKind("dssm", True, 2, 4), MeasuredKind("wlm", False, 1, 2)]
    assert kinds_named(["dssm", "dssm"], max_workers=3) == [MeasuredKind("dssm", True, 2, 3)]
    with pytest.raises(InputError, match="either --models"):
        measured_kinds(None, "", max_ps=1, max_workers=1, sync=True)
    with pytest.raises(InputError, match="either --models"):
        measured_kinds("trace.csv", "dssm", max_ps=1, max_workers=1, sync=True)


def test_overheads_are_told_by_kind_model_and_newcomers() -> None:
    rows = overheads(
        [ChangeMeasurement("rescale", "m", 1, s, 2 * s) for s in (1.0, 2.0, 6.0)]
        + [ChangeMeasurement("stop", "m", 0, 0.5)]
    )
    assert [(row.kind, row.n_new, row.median_s, row.cpu_s, row.n) for row in rows] == [
        ("rescale", 1, 2.0, 4.0, 3), ("stop", 0, 0.5, 0.0, 1),
    ]  # fmt: skip
    assert rows[0].p90_s == pytest.approx(5.2)


# --- on a laptop testbed


def test_a_profile_of_a_laptop_testbed_says_what_a_simulation_needs(bed: Inventory, tmp_path: Path) -> None:
    kinds = kinds_named(["dssm"], max_ps=1, max_workers=2)
    made, path = profile(
        bed, kinds, out=tmp_path / "p" / "laptop.json", training=TINY, loads=[1], n_crowd=2, progress=False
    )
    assert read(path) == made
    assert [(cell.n_ps, cell.n_workers, cell.n_hosts) for cell in made.cells][:2] == [(1, 1, 1), (1, 2, 2)]
    for cell in made.cells:
        assert not cell.failed
        assert 0 < (cell.step_s or 0) < 5
        assert 0 < cell.cpu_s < 10 * (cell.step_s or 0)
        assert 0 < (cell.ps_cpu_s or 0) < cell.cpu_s
    (pool,) = made.pools  # all hosts are this machine
    assert pool.hosts == list(bed.names)
    assert 0.1 < pool.cores <= (os.cpu_count() or 1)
    kinds_told = {row.kind for row in made.overheads}
    assert kinds_told - {"cold_start"} == {"start", "rescale", "stop"}
    assert ("cold_start" in kinds_told) != any("no cold start was measured" in note for note in made.made.notes)
    assert all(row.median_s > 0 for row in made.overheads)
    start = next(row for row in made.overheads if row.kind == "start")
    assert start.n == 3
    assert start.cpu_s < 10  # processes are forked: what they import is paid once, and not by the job
    assert [(row.what, row.co_runners) for row in made.beside] == [
        ("step", "load-1"), ("start", "dssm"), ("step", "dssm"), ("step", "dssm"), ("rescale", "dssm + dssm"),
    ]  # fmt: skip
    assert all(row.co_cpu_cores > 0 for row in made.beside)
    assert {(link.source, link.target) for link in made.links} == {
        (a, b) for a in bed.names for b in bed.names if a != b
    }
    assert [row.model for row in made.functions] == ["dssm"]
    assert {each.host for each in made.yardstick} == set(bed.names)
    assert made.made.training["width"] == 0.05
    assert len(table(made)) == len(made.cells)
    assert not left_over(bed)
    jobs = Jobs.of(arrival_s=0.0, total_steps=100, model="dssm", n_ps=1, max_workers=2)
    record = simulate(jobs, scheduler="fifo", profile=made, cluster=no_network(1))
    assert record.summary["mean_jct_s"] > start.median_s


def test_a_model_that_is_not_known_is_refused_before_anything_runs(bed: Inventory) -> None:
    with pytest.raises(InputError, match="unknown model 'alexnet'"):
        measure(bed, kinds_named(["alexnet"]), training=TINY)
    assert not left_over(bed)


def test_a_gang_that_fails_is_a_row_that_says_why_and_the_others_are_measured(bed: Inventory) -> None:
    """There are more servers than blocks of the model: the job refuses that gang, and goes on."""
    made = measure(bed, [MeasuredKind("dssm", True, 40, 1)], training=TINY.changed(), loads=(), n_crowd=0)
    failed = [cell for cell in made.cells if cell.failed]
    well = [cell for cell in made.cells if cell.step_s is not None]
    assert well
    assert failed
    assert all("blocks" in cell.failed for cell in failed)
    assert not left_over(bed)


def test_an_interrupted_profile_leaves_nothing_running_and_no_file(own_folder: Path, tmp_path: Path) -> None:
    with Bed.up(1, folder=own_folder, gpus=1) as up:
        out = tmp_path / "p.json"
        script = textwrap.dedent(
            f"""
            from pathlib import Path
            from labkit.testbed.inventory import Inventory
            from labkit.testbed.profiling.gangs import kinds_named
            from labkit.testbed.profiling.measure import measure
            from labkit.speed.profiled import write
            def main():
                kinds = kinds_named(["dssm"])
                made = measure(Inventory.read({str(up.hosts_file)!r}), kinds, say=lambda what: print(what, flush=True))
                write(made, Path({str(out)!r}))
            main()
            """
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("dssm"):
                break
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=HANG_S)
        assert "KeyboardInterrupt" in told
        assert not left_over(up.inventory)
        assert not list(tmp_path.iterdir())


def test_ctrl_c_while_all_hosts_are_asked_what_they_use_ends_the_run_there(
    bed: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections that were waited for are broken then; the end of the run goes over new ones."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def look() -> None:
        with ProfilingSession(bed, kinds_named(["dssm"]), training=TINY) as stage:
            for name in bed.names:
                stage.hosts.agent(name).start(stage.run, task="t", argv=["sleep", "1000"])
            assert len(left_over(bed)) == len(bed.names)
            monkeypatch.setattr(Agent, "measure", interrupted)
            stage.look()

    with pytest.raises(KeyboardInterrupt):
        look()
    assert not left_over(bed)


def test_the_command_line_measures_and_simulates(bed: Inventory, tmp_path: Path) -> None:
    out = tmp_path / "laptop.json"
    words = [
        "profile",
        "--inventory",
        str(bed.path),
        "--models",
        "dssm",
        "--max-ps",
        "1",
        "--max-workers",
        "1",
        "--width",
        "0.05",
    ]
    done = labkit(*words, "--loads", "1", "--crowd", "0", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"{out}: measured in" in done.stdout
    trace = tmp_path / "t.csv"
    trace.write_text("id,model,arrival_s,total_steps,duration_s,n_ps,worker_cpus,ps_cpus\na,dssm,0,100,5,1,0.1,0.1\n")
    done = labkit(
        "simulate",
        str(trace),
        "--profile",
        str(out),
        "--scheduler",
        "fifo",
        "--json",
        "--runs",
        str(tmp_path / "runs"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean_jct_s"] > 0
    done = labkit("profile", "--inventory", str(bed.path), "--models", "dssm", "--loads", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'x' is no number of cores" in done.stderr


def labkit(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "labkit", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=HANG_S, check=False)
