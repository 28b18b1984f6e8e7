"""From an inventory to the GPU of each worker: real agents, launchers and processes; only the GPUs are not there."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import Jobs
from labkit.core.device_types import refuse_on_no_type
from labkit.core.devices import refuse_parts, refuse_slices, with_whole_gpus
from labkit.core.errors import InputError, PlacementError
from labkit.core.placement import Placement
from labkit.core.resources import amounts
from labkit.elastic.protocol.sites import Site
from labkit.experiment import Session
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.system.doctor import which
from labkit.testbed.errors import AgentRefused
from labkit.testbed.install import install
from labkit.testbed.inventory import Inventory
from labkit.testbed.laptop import Bed
from labkit.testbed.run.agents import status
from labkit.testbed.run.backend import SshBackend
from labkit.testbed.run.job_launcher import GpuClaims, checked_gpus
from labkit.testbed.run.training import gpus_of, place_of, sites_of
from labkit.testbed.ssh.fleet import Fleet
from labkit.testing.scenes import SharedSpeeds
from labkit.topology import no_network
from labkit.topology.servers import Server
from tests.hang import HANG_S
from tests.testbed.agent.conftest import dial, folder  # noqa: F401 - fixtures
from tests.testbed.agent.driver import Driver
from tests.testbed.agent.looking import environment, labelled, runs, wait_for
from tests.testbed.test_backend import TINY, jobs_of

SLEEP = ["sleep", "1000"]
HOST = (
    '[[hosts]]\nname = "{}"\ngpus = {}\ncpus = 8\nmemory_gb = 8\ndevice_type = "{}"\nsockets = 2\n'
    'ssh = {{ address = "127.0.0.1", user = "u" }}\n'
)

LAUNCHER = """
import sys, threading
from pathlib import Path
from labkit.elastic.process import launchers as launch, local_members
from labkit.elastic.protocol.messages.clients import StartMember
from labkit.elastic.protocol.sites import Site
from labkit.elastic.protocol.program import Spec

home = Path("home")
home.mkdir()
Spec((), (), "sgd", {}, batch=1, n_shards=1, n_steps=1).save(home)
launch.MODULES = local_members.MODULES = ("sits_there", "sits_there")
socket_0, socket_1 = Site("h/0", "h", devices=("gpu:0", "gpu:1")), Site("h/1", "h", devices=("gpu:2", "gpu:3"))

def spawn(name, role, site):
    try:
        print(name, processes.spawn(StartMember(name, role, site), home), flush=True)
    except OSError as error:
        print(name, error, flush=True)

def ended(name, code):
    if name == "worker-0":
        spawn("worker-3", "worker", socket_0)

processes = launch.LocalProcesses(Path("."), ended=ended)
spawn("ps-0", "server", socket_0)
spawn("worker-0", "worker", socket_0)
spawn("worker-1", "worker", socket_0)
spawn("worker-2", "worker", socket_1)
threading.Event().wait()
"""


@pytest.fixture
def driver(tmp_path):
    """A driver that tells of four GPUs."""
    return Driver(tmp_path / "driver")


@pytest.fixture
def launched(driver, dial, tmp_path):  # noqa: F811
    """An agent, and what the launcher of a job with GPUs 0 and 1 says."""
    (tmp_path / "sits_there.py").write_text("import signal; signal.pause()")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    agent = dial(env=driver.environment)
    env = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    agent.start("run", task="job", argv=[sys.executable, "-c", LAUNCHER], env=env, gpus=[{"n": 2, "of": [0, 1]}])
    return agent, agent.follow("run", task="job")


def said(lines, n):
    return dict(lines.next(timeout_s=HANG_S).split(" ", 1) for _ in range(n))


def seen_by(pid):
    return environment(int(pid)).get("CUDA_VISIBLE_DEVICES")


def test_each_worker_of_a_job_sees_one_gpu_of_its_own_and_a_ps_sees_none(launched, driver):
    _, lines = launched
    members = said(lines, 4)
    assert [seen_by(members[name]) for name in ("worker-0", "worker-1", "ps-0")] == [*driver.uuids[:2], ""]
    assert environment(int(members["worker-0"]))["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    command = Path(f"/proc/{members['worker-1']}/cmdline").read_text().split("\0")
    assert command[-3:] == ["h/0", driver.uuids[1], ""]
    assert members["worker-2"].startswith("site 'h/1': the job has none of the GPUs 2, 3 of this host")
    os.kill(int(members["worker-0"]), signal.SIGKILL)
    again = said(lines, 1)
    assert seen_by(again["worker-3"]) == driver.uuids[0]


def test_the_gpus_of_a_job_are_free_when_its_first_process_was_killed_and_its_workers_are_gone(launched, driver):
    agent, lines = launched
    members = said(lines, 4)
    first = agent.list("run")[0].tasks["job"].pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: agent.list("run")[0].tasks["job"].phase == "ended")
    assert not any(runs(int(members[name])) for name in ("ps-0", "worker-0", "worker-1"))
    assert seen_by(agent.start("other", task="job", argv=SLEEP, gpus=4).pid) == ",".join(driver.uuids)


def inventory_of(tmp_path, *hosts):
    path = tmp_path / "hosts.toml"
    path.write_text("".join(HOST.format(*host) for host in hosts))
    return Inventory.read(path)


def test_a_job_asks_each_host_for_the_gpus_of_the_sockets_that_it_sits_under(tmp_path):
    inventory = inventory_of(tmp_path, ("a", 3, "v100"), ("b", 2, "cpu"), ("c", 2, "None"))
    cluster = inventory.cluster()
    sites = sites_of(inventory, cluster, home="b")
    assert {site.name: site.devices for site in sites} == {
        "a/0": ("gpu:0", "gpu:1"), "a/1": ("gpu:2",), "b/0": ("cpu",), "b/1": ("cpu",), "c/0": ("cpu",),
        "c/1": ("cpu",),
    }  # fmt: skip
    place = {"a/0": (2, 0), "a/1": (1, 1), "b/0": (1, 0)}
    assert gpus_of(sites, place, host="a", per_worker=1) == [{"n": 2, "of": [0, 1]}, {"n": 1, "of": [2]}]
    assert gpus_of(sites, place, host="b", per_worker=1) == []
    without = sites_of(inventory, cluster, home="a", on_gpus=False)
    assert {device for site in without for device in site.devices} == {"cpu"}


@pytest.fixture
def claims(driver, dial):  # noqa: F811
    """Return a function that makes the claims of a job on host a, and the agent there."""
    agent = dial(env=driver.environment)
    hosts = SimpleNamespace(run="run", agent={"a": agent}.__getitem__)
    sites = [Site("a/0", "a", devices=("gpu:0", "gpu:1", "gpu:2", "gpu:3"))]

    def of(task):
        return GpuClaims(task, hosts=hosts, asks=lambda host, place: gpus_of(sites, place, host=host, per_worker=1))

    return of, agent


def start(agent, claims, task, n):
    claims.start("a", {"a/0": (n, 1)}, lambda gpus: agent.start("run", task=task, argv=SLEEP, gpus=gpus))


def holders(agent):
    tasks = agent.list("run")[0].tasks
    return {name: len(task.gpus or ()) for name, task in tasks.items() if task.phase != "ended"}


def test_a_job_holds_what_old_and_new_place_need_while_it_is_rescaled_and_then_the_new(claims):
    of, agent = claims
    job = of("job")
    start(agent, job, "job", 1)
    job.take(["a"], [{"a/0": (3, 1)}, {"a/0": (1, 1)}])
    assert holders(agent) == {"job": 3}
    assert not job.exceed({"a/0": (3, 1)})
    assert job.exceed({"a/0": (1, 1)})
    job.give_back({"a/0": (1, 1)})
    assert holders(agent) == {"job": 1}
    assert not job.exceed({"a/0": (1, 1)})


def test_a_job_waits_for_tasks_that_leave_their_gpus_and_is_refused_where_none_does(claims, monkeypatch):
    of, agent = claims
    start(agent, of("first"), "first", 4)
    later = threading.Thread(target=start, args=(agent, of("second"), "second", 2))
    later.start()
    agent.stop("run", task="first")
    later.join(HANG_S)
    assert holders(agent) == {"second": 2}
    monkeypatch.setattr("labkit.testbed.run.job_launcher.BUSY_S", 0.5)
    with pytest.raises(AgentRefused, match="3 GPUs of 4 asked for, 2 can be had"):
        start(agent, of("third"), "third", 3)
    assert holders(agent) == {"second": 2}


def test_a_job_that_is_to_stop_waits_for_gpus_no_more(claims, driver):
    of, agent = claims
    start(agent, of("first"), "first", 4)
    second = of("second")
    second._wanted = lambda: False
    with pytest.raises(AgentRefused, match="1 GPU of 4 asked for, 0 can be had"):
        start(agent, second, "second", 1)


def test_jobs_that_ask_for_parts_of_gpus_are_refused_before_the_run():
    halves = replace(jobs_of(2), worker_demand=np.tile(amounts(gpus=0.5, cpus=0.1), (2, 1)))
    with pytest.raises(InputError, match=r"job 0 \(2 of 2 jobs\) needs 0\.5 GPUs per worker.*--whole-gpus"):
        refuse_parts(halves)
    whole, n = with_whole_gpus(halves)
    refuse_parts(whole)
    assert n == 2


@settings(max_examples=4 * settings().max_examples)
@given(seed=st.integers(0, 2**32 - 1))
def test_simulator_and_agents_refuse_the_same_placements(seed):
    """The simulator checks its book of GPUs; an agent hands out numbered GPUs of a device group, each to one job.

    What an agent cannot know of GPUs (types, memory, modes), both ask of the same rule before anything runs; what it
    does not hand out (slices, parts of GPUs that the simulator has) is refused before a run on machines.
    """
    rng = np.random.default_rng(seed)
    n_groups, n = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    sockets = tuple((float(rng.integers(1, 5)), 1e3, 1e3) for _ in range(n_groups))
    mig = rng.choice(["", "", "3g.20gb"])
    exclusive, memory_gb = bool(rng.integers(2)), 40.0 if mig else float(rng.choice([np.nan, 16.0]))
    server = Server(
        "s", sockets, gpu_memory_gb=memory_gb, exclusive=exclusive, mig=("3g.20gb", "3g.20gb") if mig else ()
    )
    cluster = no_network(1, servers=server)
    gpus, group = rng.choice([0.5, 1, 1, 1, 2, 2, 2], n), rng.integers(0, n_groups, n)
    count = rng.integers(1, 3, n)
    jobs = Jobs.of(arrival_s=np.zeros(n), total_steps=1.0, duration_s=1.0, n_workers=count, device_type=mig,
                   worker_demand=np.stack([gpus, gpus * 0, gpus * 0], axis=1),
                   gpu_memory_gb=rng.choice([0.0, 0, 0, 8, 12, 17, 24], n))  # fmt: skip
    of_simulator, of_machines = (refused(jobs, cluster, ssh=ssh) for ssh in (False, True))
    parts = bool((gpus < 1).any())
    assert of_machines == (of_simulator or bool(mig) or parts)
    has_gb = memory_gb if not mig else 20.0
    lacks = jobs.gpu_memory_gb > np.minimum(gpus, 1) * has_gb  # NaN: not known, and nothing is refused
    assert of_simulator == bool(lacks.any() or (exclusive and parts))
    if of_machines:
        return
    simulator = Simulator(jobs, cluster, speed=Recorded(jobs, cluster))
    simulator.advance(0.0, stop_at_event=False)
    free = [[*range(int(g))] for g, *_ in sockets]
    sites = [Site(f"m0/{g}", "m0", devices=tuple(f"gpu:{d}" for d in free[g])) for g in range(n_groups)]
    fits = True
    for j in range(n):  # as each agent does for each job that starts
        place = place_of(cluster, role=np.array([0]), group=group[j : j + 1], count=count[j : j + 1])
        for ask in gpus_of(sites, place, host="m0", per_worker=float(gpus[j])):
            of = free[group[j]]
            assert set(ask["of"]) >= set(of)
            fits = fits and ask["n"] <= len(of)
            del of[: ask["n"]]
    placement = Placement.of(np.arange(n), job=np.arange(n), group=group, count=count)
    try:
        simulator.apply(placement)
        taken = True
    except PlacementError:
        taken = False
    assert taken == fits


TOLD = r"fit device group|is closed to it|each of which belongs to one task|their workers"


def two_hosts(rng):
    """Return an inventory of two hosts whose GPUs differ in type, memory and mode."""
    kinds = [
        f'gpus = {rng.integers(1, 5)}\ndevice_type = "{name}"\nexclusive = {str(bool(rng.integers(2))).lower()}\n'
        + f"gpu_memory_gb = {rng.choice([16, 32])}\n" * int(rng.integers(2))
        for name in ("v100", "t4")
    ]
    hosts = [
        f'[[hosts]]\nname = "{name}"\ncpus = 1000\nmemory_gb = 1000\n{kind}'
        'ssh = { address = "127.0.0.1", user = "u" }\n'
        for name, kind in zip("ab", kinds, strict=True)
    ]  # fmt: skip
    return "".join(hosts)


@settings(max_examples=4 * settings().max_examples)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_placement_by_hand_is_refused_on_machines_as_in_a_simulation(seed, tmp_path_factory):
    """Jobs with demands for types and memory, alone and in pairs, put anywhere: an agent hands out whole GPUs, and to
    the partner of a job those that the job has. Who may have which GPU, and beside whom, is worked out here by hand.
    """
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("hosts") / "hosts.toml"
    path.write_text(two_hosts(rng))
    inventory = Inventory.read(path)
    cluster, n = inventory.cluster(), int(rng.integers(2, 6))
    gpus, group, count = rng.choice([1, 1, 1, 2], n), rng.integers(0, 2, n), rng.integers(1, 3, n)
    pair = bool(rng.integers(2))
    if pair:  # mostly of one size and in one place, as it should be
        gpus[1], group[1], count[1] = (v[0] if rng.random() < 0.8 else v[1] for v in (gpus, group, count))
    jobs = Jobs.of(
        arrival_s=np.zeros(n), total_steps=1.0, duration_s=1.0, n_workers=count,
        worker_demand=np.stack([gpus, gpus * 0, gpus * 0], axis=1),
        device_type=rng.choice(["", "", "v100", "t4|v100", "!v100"], n).astype(object),
        gpu_memory_gb=rng.choice([0.0, 0, 0, 0, 12, 17], n),
    )  # fmt: skip
    kinds = [cluster.gpu_kinds.get(name) for name in cluster.device_types]
    sound, free = True, [*map(int, cluster.capacity[:, 0])]
    for j in range(n):
        name, kind = cluster.device_types[group[j]], kinds[group[j]]
        of_type = jobs.device_type[j] in ("", name, "t4|v100") or (jobs.device_type[j] == "!v100" and name == "t4")
        # a job that no type of the cluster has the memory for is never placed; it is refused before a run
        sound = sound and of_type and not (kind and kind.memory_gb < jobs.gpu_memory_gb[j])
        if pair and j == 1:
            sound = sound and gpus[0] == gpus[1] and group[0] == group[1] and count[0] == count[1]
            sound = sound and not (kind and kind.exclusive)
        else:
            free[group[j]] -= int(count[j] * gpus[j])
    sound = sound and min(free) >= 0
    partner = np.full(n, -1, np.int32)
    partner[:2] = [1, 0] if pair else [-1, -1]
    placement = Placement.of(np.arange(n), job=np.arange(n), group=group, count=count, partner=partner)
    simulator = Simulator(jobs, cluster, speed=SharedSpeeds(jobs, cluster))
    with pytest.MonkeyPatch.context() as patch:
        hosts = SimpleNamespace(absent={}, up={}, lease_s=600.0)
        session = SimpleNamespace(hosts=hosts, backups=None, notes=[], deployment=lambda *_, **__: Deaf())
        patch.setattr("labkit.testbed.run.backend.TestbedSession", lambda *_, **__: session)
        machines = SshBackend(jobs, inventory, run="hand", folder=path.parent)
        for backend in (simulator, machines):
            backend.advance(0.0, stop_at_event=False)
            with nullcontext() if sound else pytest.raises(PlacementError, match=TOLD):
                backend.apply(placement)


class Deaf:
    """Stands in for the processes of a job: nothing is started."""

    number, home, progress = 0, "", SimpleNamespace(saved=0)

    def set_target(self, place, **_):
        """Take note of nothing."""


def refused(jobs, cluster, *, ssh):
    """Return whether a run of jobs is refused before it begins: what a simulation checks, and machines beside that."""
    try:
        refuse_on_no_type(jobs, cluster)
        if ssh:
            refuse_parts(jobs)
            refuse_slices(cluster)
    except InputError:
        return True
    return False


def test_fewer_gpus_than_the_inventory_says_are_told_before_anything_runs(driver, dial, tmp_path):  # noqa: F811
    driver.mig.add(driver.uuids[1])
    driver.tell()
    hello = {"a": dial(env=driver.environment).hello}.__getitem__
    with pytest.raises(InputError, match=r'host a: the inventory says gpus = 5, its driver 4 .*device_type = "cpu"'):
        checked_gpus(inventory_of(tmp_path, ("a", 5, "gpu")), hello)
    type_note, mig_note = checked_gpus(inventory_of(tmp_path, ("a", 4, "v100")), hello)
    assert type_note.startswith("host a: the inventory calls them v100, the driver 'Fake-9000'")
    assert mig_note == "host a: GPU 1 is cut by MIG, so it is not handed out"
    assert checked_gpus(inventory_of(tmp_path, ("a", 1, "fake-9000"), ("b", 9, "cpu")), hello) == []
    driver.tell(broken=True)
    hello = {"a": dial(tmp_path / "broken", env=driver.environment).hello}.__getitem__
    with pytest.raises(InputError, match=r"gpus = 1, its driver 0 \(NVML: Driver Not Loaded\)"):
        checked_gpus(inventory_of(tmp_path, ("a", 1, "gpu")), hello)


@pytest.mark.skipif(not which("sshd"), reason="no sshd here")
def test_two_jobs_of_a_run_on_one_host_are_given_different_gpus(driver, dial, own_folder, tmp_path):  # noqa: F811
    """The GPUs are not there, so no worker gets further than to look for its own."""
    with Bed.up(1, folder=own_folder, gpus=2) as up:
        (machine,) = up.inventory
        home = tmp_path / "host"
        real = replace(machine, folder=str(home), host=replace(machine.host, device_type="fake-9000"))
        inventory = replace(up.inventory, machines=(real,))
        with Fleet(inventory) as fleet:
            install(fleet).checked()
        agent = dial(home, env=driver.environment)  # the one that the run finds there
        with SshBackend(jobs_of(2), inventory, run="two", folder=tmp_path / "run", training=TINY) as backend:
            assert backend.notes == []
            both = Placement.of([0, 1], job=[0, 0, 1, 1], role=[0, 1, 0, 1], group=[0] * 4, count=[1] * 4)
            session = Session(backend)  # the jobs arrive
            session._note(backend.apply(both))
            found: dict[str, set[str]] = {}
            wait_for(lambda: len(bound(home, found)) == 2, timeout_s=HANG_S)
            with Fleet(inventory) as fleet:
                assert "2 of 4 GPUs in use" in status(fleet)["h0"].did
        given = {event["task"]: set(event["gpus"]) for event in events_of(home) if event["kind"] == "started"}
        assert found == given
        assert sorted(map(sorted, given.values())) == [driver.uuids[:1], driver.uuids[1:2]]
        agent.shutdown()


def bound(home, found):
    """Add the GPUs that workers of each job see on a host; those of a worker that has ended stay."""
    for pid in labelled(home):
        if seen := environment(pid).get("CUDA_VISIBLE_DEVICES"):
            found.setdefault(environment(pid)["LABKIT_TASK"], set()).add(seen)
    return found


def events_of(home):
    """Return what the agent of a host has noted of all its runs."""
    return [json.loads(line) for path in home.glob("runs/*/events.jsonl") for line in path.read_text().splitlines()]
