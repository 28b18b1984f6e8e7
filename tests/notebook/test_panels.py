"""A notebook looks on at a run of another process, and at one of its own, with the same views."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.experiment import Experiment, simulate
from labkit.notebook import LiveRun, RunBoard
from labkit.notebook.run import INTERRUPTED, RunGate
from labkit.results import RunWriter


@pytest.fixture
def record():
    jobs = Jobs.of(arrival_s=[0, 1, 30], total_steps=60, duration_s=60, n_workers=4)
    return simulate(jobs, cluster="no_network(1)", scheduler="fifo")


@pytest.fixture
def writer(record, tmp_path):
    info = replace(record.info, run="r")
    writer = RunWriter.create(tmp_path, info=info, jobs=record.jobs, cluster=record.cluster)
    writer.append(record.events[: len(record.events) // 2])
    writer.flush()
    yield writer
    writer.let_go()


def test_a_board_follows_a_folder_to_the_end_of_its_run(record, writer, tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.notebook.views.EVERY_S", 0.01)

    async def notebook():
        board = RunBoard("r", runs=tmp_path)
        assert board.status.status[0] == "running"
        writer.append(record.events[len(record.events) // 2 :])
        writer.close()
        await board._task
        return board

    board = asyncio.run(notebook())
    assert board.status.status == ["done", ""]
    assert dict(board.panels.cards.cards)["completed"] == "3 / 3"
    assert board.panels.decisions.decisions[-1][1:3] == ["job 0", "4 workers on m0"]


def test_a_folder_that_is_removed_is_told_in_the_board(writer, tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.notebook.views.EVERY_S", 0.01)

    async def notebook():
        board = RunBoard(writer.folder)
        shutil.rmtree(writer.folder)
        await board._task
        return board.status.status

    state, said = asyncio.run(notebook())
    assert state == "unreachable"
    assert said


def test_a_run_that_is_not_there_is_refused_with_the_nearest(writer, tmp_path):
    with pytest.raises(InputError, match="Did you mean 'r'"):
        RunBoard("rr", runs=tmp_path)


def test_a_run_of_this_kernel_has_the_same_board(record):
    live = LiveRun(Experiment.of(record.jobs, cluster="no_network(1)"), scheduler="fifo")
    board = RunBoard(live)
    live.start().wait()
    assert board.status.status == ["done", ""]
    assert dict(board.panels.cards.cards)["completed"] == "3 / 3"
    np.testing.assert_array_equal(live.record.events["kind"], record.events["kind"])


def test_a_board_shows_a_pause_at_once(record):
    async def notebook():
        live = LiveRun(Experiment.of(record.jobs, cluster="no_network(1)"), scheduler="fifo", speedup=1.0).start()
        board = RunBoard(live)
        live.pause()
        paused = board.status.status
        live.stop()
        return paused, board.status.status

    assert asyncio.run(notebook()) == (["paused", ""], ["stopping", ""])


def test_a_run_goes_on_and_says_so_when_the_cell_that_waits_for_it_is_interrupted(record):
    async def notebook():
        live = LiveRun(Experiment.of(record.jobs, cluster="no_network(1)"), scheduler="fifo", speedup=1.0)
        board = RunBoard(live)
        cell = asyncio.ensure_future(live.start()._until_over())
        await live.happened("started")
        await asyncio.sleep(0)  # the cell begins to wait
        cell.cancel()  # what a kernel does to the cell that awaits
        with pytest.raises(asyncio.CancelledError):
            await cell
        await asyncio.sleep(0)
        assert board.status.status == [live.state, live.status.text]
        told = (live.state, live.status.text)
        live.stop()
        await live
        return told, live.status

    told, at_last = asyncio.run(notebook())
    assert told == ("running", INTERRUPTED)
    assert (at_last.state, at_last.text) == ("stopped", "")


def test_a_gate_admits_one_decision_at_a_time_and_a_stopped_one_keeps_no_caller_waiting():
    gate = RunGate()
    assert not gate.shut
    gate.close()
    assert gate.shut
    gate.admit()
    assert (gate.shut, gate.pass_through(), gate.shut) == (False, True, True)
    gate.open()
    assert not gate.shut
    gate.close()
    gate.stop()
    gate.wait()
    assert not gate.pass_through()
