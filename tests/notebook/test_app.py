"""The lab can be used without a browser: every button is a method, and the form is widgets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.experiment import simulate
from labkit.notebook import LabApp
from labkit.placers import FirstFit
from labkit.schedulers.base import run_in_order
from labkit.topology import no_network
from labkit.workloads import read
from tests.hang import HANG_S


@pytest.fixture
def trace(pytestconfig, monkeypatch) -> str:
    monkeypatch.chdir(pytestconfig.rootpath)
    return "traces/demo.csv"


class Longest:
    """Longest first."""

    def schedule(self, snapshot):
        jobs = snapshot.jobs
        return run_in_order(snapshot, jobs.number[np.argsort(-jobs.remaining_s, kind="stable")], FirstFit())


def finish(app: LabApp) -> None:
    app.start()
    app.run.wait(HANG_S)


def test_a_run_of_the_app_is_what_its_code_does(trace):
    app = LabApp(trace, cluster="demo", scheduler="las", seed=3, speedup=math.inf)
    finish(app)
    names: dict = {}
    exec(app.choice.python(), names)
    assert names["record"].summary == app.records[0].summary
    assert names["record"].info.seed == app.records[0].info.seed == 3


def test_options_of_the_scheduler_arrival_rate_and_slot_are_fields_and_stand_in_the_code(trace):
    app = LabApp(trace, scheduler="las", speedup=math.inf)
    app._form.options._fields["quantum_s"][0].value = 60.0
    app._form.arrival_rate.value, app._form.slot_s.value = 2.0, 300.0
    assert app.choice.scheduler == "las(quantum_s=60.0)"
    assert app.choice.python().splitlines()[-2].endswith("seed=0, arrival_rate=2, slot_s=300)")
    assert app.choice.shell().endswith("--seed 0 --arrival-rate 2 --slot 300")
    finish(app)
    names: dict = {}
    exec(app.choice.python(), names)
    assert names["record"].summary == app.records[0].summary
    app._form.scheduler.value = "fifo"
    assert "quantum_s" not in app._form.options._fields
    assert app.choice.scheduler == "fifo"


def test_the_form_suggests_traces_and_clusters(trace):
    app = LabApp(trace)
    assert {"demo", "philly-like"} <= set(app._form.trace.options)
    assert "demo" in app._form.cluster.options


def test_earlier_runs_stay_in_the_table_and_as_ghosts(trace):
    app = LabApp(trace, speedup=math.inf)
    for name in ("fifo", "srtf", "fifo", "drf"):
        app._form.scheduler.value = name
        finish(app)
    assert [record.info.scheduler for record in app.records] == ["fifo", "srtf", "fifo", "drf"]
    assert [ghost.name for ghost in app._panels.gantt.ghosts] == ["fifo", "srtf"]
    assert app._table.value.count("<tr") == 5


def test_a_scheduler_of_the_notebook_stands_beside_the_others(trace):
    app = LabApp(trace, scheduler="longest", schedulers={"longest": Longest()}, speedup=math.inf)
    finish(app)
    assert app.records[0].info.scheduler == "longest"
    assert "scheduler=longest," in app.choice.python()
    assert app.choice.shell().startswith("#")


def test_jobs_that_are_no_file_can_be_run_too():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=60, duration_s=60, n_workers=4)
    app = LabApp(jobs, cluster="no_network(1)", scheduler="fifo", speedup=math.inf)
    finish(app)
    assert app.records[0].summary == simulate(jobs, cluster=no_network(1), scheduler="fifo").summary
    assert "simulate(jobs," in app.choice.python()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("cluster", "dem", "Did you mean 'demo'?"), ("trace", "no-such-file.csv", "no-such-file.csv")],
)
def test_what_cannot_be_run_is_told_and_mended(trace, field, value, said):
    app = LabApp(trace, speedup=math.inf)
    widget = getattr(app._form, field)
    good, widget.value = widget.value, value
    assert app.run is None
    assert said.replace("'", "&#x27;") in app._controls.error.value
    for press in (app.start, app.pause, app.step, app.stop):
        press()
    widget.value = good
    assert app._controls.error.layout.display == "none"
    finish(app)
    assert app.run.state == "done"


def test_buttons_offer_only_what_can_be_done(trace):
    app = LabApp(trace, speedup=1.0)
    buttons = app._controls
    assert (buttons.run.disabled, buttons.pause.disabled, buttons.stop.disabled) == (False, True, True)
    app.start()
    assert (buttons.run.disabled, buttons.pause.disabled, buttons.stop.disabled) == (True, False, False)
    assert app._form.cluster.disabled
    app.pause()
    assert (buttons.run.disabled, buttons.pause.disabled, buttons.stop.disabled) == (False, True, False)
    app.stop()
    app.run.wait(HANG_S)
    assert (buttons.run.disabled, buttons.pause.disabled, buttons.stop.disabled) == (False, True, True)
    assert not app._form.cluster.disabled


def test_the_pace_can_be_changed_while_it_runs(trace):
    app = LabApp(trace, speedup=1.0)
    app.start()
    app._form.speedup.value = math.inf
    app.run.wait(HANG_S)
    assert app.run.state == "done"


def test_a_cell_shows_the_same_words_each_time(trace):
    assert repr(LabApp(trace)) == repr(LabApp(trace)) == "<LabApp: demo.csv on demo; run this cell to use it>"
    assert len(read(trace)) == len(LabApp(trace).run.board.jobs)
