"""What tasks and host use, from /proc and from NVML."""

from __future__ import annotations

import os
import sys

import pytest

from labkit.testbed.agent import gpus
from labkit.testbed.agent.messages import HeldGpu
from labkit.testbed.errors import AgentTimeout
from tests.hang import HANG_S
from tests.testbed.agent.looking import kill_agent, runs, wait_for

FAKE = '''
"""Two GPUs that are not there."""
import os, time
class NVMLError(Exception):
    pass
class Thing:
    def __init__(self, **has):
        self.__dict__.update(has)
def nvmlInit():
    if os.path.exists(PLACE + "/hangs"):
        time.sleep(1000)
    if os.path.exists(PLACE + "/broken"):
        raise NVMLError("Driver Not Loaded")
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(device): return b"Fake 9000" if device else "Fake 9000"
def nvmlDeviceGetUUID(device): return f"GPU-{device}"
def nvmlDeviceGetMemoryInfo(device): return Thing(total=80_000_000_000, used=10_000_000_000 * (device + 1))
def nvmlDeviceGetUtilizationRates(device):
    if device: raise NVMLError("Not Supported")
    return Thing(gpu=75, memory=30)
def nvmlDeviceGetPcieThroughput(device, counter): return (1000, 250)[counter]
def nvmlDeviceGetPowerUsage(device): raise NVMLError("Not Supported")
def nvmlDeviceGetComputeRunningProcesses(device):
    pids = [int(pid) for pid in open(PLACE + "/pids").read().split()]
    return [Thing(pid=pid, usedGpuMemory=2_000_000_000) for pid in pids] + [Thing(pid=1, usedGpuMemory=None)]
'''


@pytest.fixture
def with_gpus(tmp_path, dial):
    """Return an agent on a host with two GPUs, and where its tests say what these do."""
    place = tmp_path / "nvml"
    place.mkdir()
    (place / "pynvml.py").write_text(FAKE.replace("PLACE", repr(str(place))))
    (place / "pids").write_text("")
    path = os.pathsep.join([str(place), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return lambda **options: dial(env={**os.environ, "PYTHONPATH": path}, **options), place


def test_a_task_is_measured_with_all_its_processes(agent):
    agent.start("run", task="busy", argv=["sh", "-c", "(setsid sh -c 'while :; do :; done' &); sleep 1000"])
    agent.start("run", task="idle", argv=["sleep", "1000"])
    samples = agent.measuring(every_s=0.3)
    seen = [samples.next(timeout_s=HANG_S) for _ in range(4)]
    samples.close()
    tasks = {task.task: task for task in seen[-1].tasks}
    assert (tasks["busy"].n_processes, tasks["idle"].n_processes) == (3, 1)
    assert tasks["busy"].cpu_s > 0
    assert max(task.cpu_percent for sample in seen for task in sample.tasks if task.task == "busy") > 1
    assert tasks["idle"].cpu_percent < 1
    assert 0.1 < tasks["idle"].rss_mb < 50
    assert all(sample.over_s > 0.1 for sample in seen)


def test_the_yardstick_is_read_while_a_task_runs_and_takes_at_most_a_hundredth_of_a_core(agent):
    readings = {}

    def read():
        readings.update((each.boot_s, each) for each in agent.renew("run"))
        return len(readings) > 1

    agent.start("run", task="idle", argv=["sleep", "1000"])
    wait_for(read)
    (first, one), (second, other) = sorted(readings.items())[:2]
    for each in (one, other):
        assert 0 < each.work_s < 1
        assert each.busy_cores >= 0
    assert 2 * other.work_s <= 0.01 * (second - first)  # it is done twice, once to warm the caches


def test_an_agent_whose_host_has_no_task_leaves_the_yardstick_alone(agent):
    agent.start("run", task="t", argv=["true"])
    wait_for(lambda: agent.list("run")[0].tasks["t"].phase == "ended")
    assert agent.renew("run") == []


def test_the_host_is_measured(agent):
    said = agent.measure()
    host = said.host
    assert 0 <= host.cpu_percent <= 100 * (os.cpu_count() or 1) + 50
    assert 0 < host.free_memory_mb <= host.memory_mb
    assert host.free_disk_mb > 0
    assert said.gpus == []
    assert said.gpus_absent
    assert said.tasks == []


def test_shared_memory_is_counted_once_if_asked(agent):
    program = "import os, time; data = b'x' * 50_000_000; [os.fork() for _ in range(2)]; print('ready', flush=True)"
    agent.start("run", task="t", argv=[sys.executable, "-c", program + "; time.sleep(1000)"])
    following = agent.follow("run", task="t")
    assert [following.next(timeout_s=HANG_S) for _ in range(4)] == ["ready"] * 4
    (task,) = agent.measure(pss=True).tasks
    assert task.rss_mb > 200
    assert 50 < task.pss_mb < 150


def test_a_task_that_ended_is_measured_no_more(agent):
    agent.start("run", task="t", argv=["true"])
    wait_for(lambda: agent.list("run")[0].tasks["t"].phase == "ended")
    assert agent.measure().tasks == []


def test_gpus_are_reported_with_their_load_and_the_tasks_that_hold_them(with_gpus):
    connect, place = with_gpus
    agent = connect()
    assert agent.hello.gpus == [HeldGpu(index, "Fake 9000", uuid=f"GPU-{index}", memory_mb=80000) for index in (0, 1)]
    pid = agent.start("run", task="t", argv=["sleep", "1000"]).pid
    (place / "pids").write_text(f"{pid} {os.getpid()}")
    samples = agent.measuring(every_s=0.3)
    sample = next(each for each in samples if each.tasks[0].gpu_memory_mb)
    samples.close()
    assert sample.tasks[0].gpu_memory_mb == 4000  # on both
    one, two = sample.gpus
    assert (one.busy_percent, one.memory_busy_percent, one.used_mb, one.power_w) == (75, 30, 10000, None)
    assert (one.pcie_tx_mb_s, one.pcie_rx_mb_s) == (1.0, 0.25)
    assert (two.busy_percent, two.used_mb) == (None, 20000)


def test_a_driver_that_does_not_work_is_told(with_gpus):
    connect, place = with_gpus
    (place / "broken").write_text("")
    agent = connect()
    assert (agent.hello.gpus, agent.hello.gpus_absent) == ([], "NVML: Driver Not Loaded")
    assert agent.measure().gpus_absent == "NVML: Driver Not Loaded"


def test_a_driver_that_hangs_takes_nothing_along(with_gpus):
    connect, place = with_gpus
    (place / "hangs").write_text("")
    agent = connect()
    assert agent.hello.gpus_absent == "the NVIDIA driver did not answer within 5 s"
    samples = agent.measuring(every_s=0.3)
    assert samples.next(timeout_s=HANG_S).gpus == []
    samples.close()
    assert agent.list() == []


@pytest.mark.parametrize(("hangs", "killed"), [(False, False), (True, True)])
def test_the_process_that_reads_gpus_ends_with_the_agent(with_gpus, folder, hangs, killed):
    connect, place = with_gpus
    if hangs:
        (place / "hangs").write_text("")
    agent = connect()
    children = [int(pid) for pid in open_children(agent.hello.pid)]
    assert len(children) == 1
    if killed:
        kill_agent(folder)
    else:
        agent.shutdown()
    wait_for(lambda: not any(runs(pid) for pid in children))


def open_children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def test_without_pynvml_the_reason_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "no module pynvml" in gpus.answer()().absent


def test_samples_that_no_client_takes_are_left_out_and_counted(agent):
    samples = agent.measuring(every_s=0.2)
    with pytest.raises(AgentTimeout):
        agent.request("nothing_answers_this_in_time", wait_s=0.0)
    wait_for(lambda: samples._items.qsize() >= 8)
    wait_for(lambda: agent.measure() and samples._items.qsize() == 8)
    first = [samples.next(timeout_s=HANG_S) for _ in range(8)]
    assert first[-1].n_missed == 0
    assert samples.next(timeout_s=HANG_S).n_missed >= 1


def test_each_process_of_a_task_is_measured_a_spinning_one_and_a_sleeping_one(agent):
    """What the kernel itself counts for the process between the same two looks is the truth."""
    script = "sh -c 'while :; do :; done' & sleep 1000"
    agent.start("run", task="job-0", argv=["sh", "-c", script])
    wait_for(lambda: spinning(agent))
    (spins,) = spinning(agent)
    first, before_s = agent.measure(each=True), ran_s(spins)
    wait_for(lambda: ran_s(spins) > before_s + 0.5)
    last, after_s = agent.measure(each=True), ran_s(spins)
    then, now = (said.tasks[0] for said in (first, last))
    used_s = {pid: now.processes[pid] - then.processes[pid] for pid in then.processes}
    assert used_s.pop(str(spins)) == pytest.approx(after_s - before_s, abs=0.25)
    assert used_s
    assert max(used_s.values()) <= 0.02
    assert all(0.1 < mb < 50 for mb in now.processes_mb.values())


def spinning(agent) -> list[int]:
    tasks = agent.measure(each=True).tasks
    return [int(pid) for task in tasks for pid, seconds in task.processes.items() if seconds > 0.1]


def ran_s(pid: int) -> float:
    """Return the processor seconds of a process as its scheduler counts them: proc(5), schedstat."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9
