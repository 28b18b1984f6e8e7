"""One word switches the lab from a simulation to machines; its form offers only what means something there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ipywidgets as ipw
import pytest

from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.notebook import LabApp
from labkit.system.doctor import which
from labkit.testbed.laptop import Bed
from labkit.testbed.laptop.processes import has_variable, processes
from labkit.testbed.laptop.server import VARIABLE
from tests.hang import HANG_S

SHORT = "id,model,arrival_s,total_steps,duration_s,n_ps,worker_cpus,ps_cpus\na,dssm,0,{},9,1,0.1,0.1\n"


@pytest.fixture
def bed(monkeypatch):
    if not which("sshd"):
        pytest.skip("no sshd here")
    with (
        tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder,
        Bed.up(1, folder=f"{folder}/bed", gpus=1) as up,
    ):
        monkeypatch.setenv("LABKIT_HOSTS", str(up.hosts_file))
        yield up


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(steps: int) -> str:
        Path("short.csv").write_text(SHORT.format(steps))
        return "short.csv"

    return write


def fields(app: LabApp) -> list[str]:
    return [part.value for part in app._form.box.children if isinstance(part, ipw.Label)]


def test_a_place_that_is_none_is_told():
    with pytest.raises(InputError, match="Did you mean 'testbed'"):
        LabApp("traces/demo.csv", where="tesbed")


def test_on_machines_the_form_names_hosts_and_offers_neither_seed_nor_pace(bed, trace):
    app = LabApp(trace(40), where="testbed", scheduler="fifo")
    assert [name.split(" (")[0] for name in fields(app)] == ["Trace", "Hosts", "Scheduler", "Arrival rate", "Slot"]
    assert app._form.cluster.value == str(bed.hosts_file)
    assert app._controls.pause.tooltip == "Make no decisions; jobs train on"
    assert app.choice.python() == (
        f'import labkit\n\nrecord = labkit.deploy("short.csv", inventory="{bed.hosts_file}", '
        'scheduler="fifo")\nrecord.summary'
    )
    assert app.choice.shell() == f"labkit deploy short.csv --scheduler fifo --inventory {bed.hosts_file}"
    app._form.cluster.value = "nowhere.toml"
    assert app.run is None
    assert "nowhere.toml" in app._controls.error.value


def test_a_run_on_machines_is_steered_and_recorded_as_a_simulated_one(bed, trace):
    app = LabApp(trace(60), where="testbed", scheduler="fifo")
    app.start()
    app.run.wait(HANG_S)
    assert (app.run.state, app.run.error) == ("done", "")
    (record,) = app.records
    assert record.info.backend == "testbed"
    assert (record.events["kind"] == Kind.LOSS).any()
    (kept,) = Path("runs").iterdir()
    assert '"done"' in (kept / "run.json").read_text()

    trace(1_000_000)
    app._form.trace.value = "./short.csv"
    app.start()
    while not app.run.metrics["n_running"]:
        app.run.wait(0.1)
    app.pause()
    n, now_s = app.run.metrics["n_decisions"], app.run.now_s
    until = time.monotonic() + HANG_S
    while app.run.now_s <= now_s + 1:  # time of machines cannot be held
        assert time.monotonic() < until
        app.run.wait(0.1)
    assert app.run.state == "paused"
    assert app.run.metrics["n_decisions"] == n
    app.stop()
    app.run.wait(HANG_S)
    assert app.run.state == "stopped"
    tasks = [each for each in processes() if "labkit.testbed.run.job_process" in each.command]
    assert not [each for each in tasks if has_variable(each.pid, f"{VARIABLE}={bed.plan.token}")]


def test_where_no_hosts_are_told_a_laptop_testbed_comes_up_and_ends_with_the_process(trace):
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as home:
        env = {name: value for name, value in os.environ.items() if name not in ("LABKIT_HOSTS", "XDG_STATE_HOME")}
        script = (
            "from labkit.notebook import LabApp; "
            f"app = LabApp({trace(40)!r}, where='testbed'); print(app._form.cluster.value, app.run.state)"
        )
        done = subprocess.run([sys.executable, "-c", script], env=env | {"HOME": home}, capture_output=True, text=True)
        assert done.stdout.split() == [f"{home}/.local/state/labkit/bed/hosts.toml", "ready"], done.stderr
        assert not [each for each in processes() if f"{home}/" in each.command]
        assert not (Path(home) / ".local/state/labkit/bed").exists()
