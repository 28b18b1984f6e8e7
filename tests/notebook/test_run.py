"""A live run can be steered at any moment, and is the same run as one without a view."""

from __future__ import annotations

import asyncio
import math
import threading
import time

import numpy as np
import pytest

from labkit.core import InputError, Jobs, Placement
from labkit.core.errors import StoppedError
from labkit.experiment import Experiment
from labkit.notebook.run import LiveRun
from labkit.results import RunState
from labkit.simulator import Paced
from labkit.topology import no_network
from tests.hang import HANG_S

"""Generous: the answer takes a few milliseconds, but machines that test are busy."""


@pytest.fixture
def experiment() -> Experiment:
    rng = np.random.default_rng(1)
    arrival_s = np.sort(rng.uniform(0, 3600, 40))
    jobs = Jobs.of(arrival_s=arrival_s, total_steps=600, duration_s=rng.uniform(60, 900, 40), n_workers=2, name="forty")
    return Experiment.of(jobs, cluster=no_network(2))


def same(one, other) -> bool:
    return all(
        np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in one.dtype.names
    )


class Broken:
    def schedule(self, snapshot):
        raise ZeroDivisionError("division\nby zero")


class Overfull:
    def schedule(self, snapshot):
        return Placement.of([0], job=[0], group=[0], count=[99])


class Asleep:
    def __init__(self):
        self.asked, self.woken = threading.Event(), threading.Event()

    def __deepcopy__(self, memo):
        return self

    def schedule(self, snapshot):
        self.asked.set()
        self.woken.wait(HANG_S)
        return Placement.nothing()


# --- without a loop: a script


def test_a_live_run_tells_the_same_story_as_a_plain_one(experiment):
    live = LiveRun(experiment, scheduler="srtf").start().wait()
    plain = experiment.run("srtf")
    assert live.state == "done"
    assert same(live.record.events, plain.events)
    assert live.record.info.state is RunState.DONE
    assert live.metrics["mean_jct_s"] == pytest.approx(plain.summary["mean_jct_s"])
    assert live.now_s == plain.events["time_s"].max()


def test_each_step_is_one_decision(experiment):
    live = LiveRun(experiment, scheduler="fifo", speedup=1.0)  # an hour of waiting, were it not for the steps
    for n in range(1, 6):
        live.step()
        until(lambda n=n: _decided(live) == n)
    time.sleep(0.1)
    assert _decided(live) == 5
    live.stop()
    live.wait(HANG_S)
    assert live.state == "stopped"


def _decided(live: LiveRun) -> int:
    return int(live.record.summary["n_decisions"]) if live.record.events.size else 0


def until(holds) -> None:
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_stop_in_the_middle_of_a_long_wait_answers_at_once(experiment):
    live = LiveRun(experiment, scheduler="fifo", speedup=0.01).start()
    until(lambda: live._paced._waiting)
    live.stop()
    live.wait(HANG_S)  # the wait itself is longer than that
    assert live.state == "stopped"


def test_what_was_not_due_when_a_run_was_stopped_is_not_in_its_record(experiment):
    live = LiveRun(experiment, scheduler="fifo", speedup=2000.0).start()
    until(lambda: len(live._heard) > 10)
    live.stop()
    live.wait(HANG_S)
    rows = live.record.events
    whole = experiment.run("fifo").events
    assert 0 < len(rows) < len(whole)
    assert same(rows, whole[: len(rows)])
    assert rows["time_s"].max() <= live.now_s + 1e-9
    assert live.record.info.state is RunState.STOPPED


def test_a_stopped_run_cannot_be_started_again(experiment):
    live = LiveRun(experiment, scheduler="fifo", speedup=1.0).start()
    live.stop()
    live.wait(HANG_S)
    live.start()
    live.step()
    live.pause()
    assert live.state == "stopped"


def test_the_pace_can_be_changed_in_the_middle_of_a_wait(experiment):
    live = LiveRun(experiment, scheduler="fifo", speedup=0.01).start()
    until(lambda: live._paced._waiting)
    live.speedup = math.inf
    assert live.wait(HANG_S).state == "done"


def test_waiting_for_a_run_that_was_never_started_says_so(experiment):
    with pytest.raises(InputError, match="call start"):
        LiveRun(experiment, scheduler="fifo").wait()


def test_waiting_for_what_does_not_happen_has_a_limit(experiment):
    async def notebook():
        live = LiveRun(experiment, scheduler="fifo", speedup=1.0).start()
        n = await live.happened("repaired", limit_s=0.1)
        over = live.over
        live.stop()
        await live
        return n, over

    assert asyncio.run(notebook()) == (0, False)


def test_errors_of_a_scheduler_come_in_one_line(experiment):
    live = LiveRun(experiment, scheduler=Broken()).start().wait()
    assert live.state == "failed"
    assert live.error.startswith("ZeroDivisionError: division by zero (in schedule, line ")
    assert "\n" not in live.error
    assert isinstance(live.exception, ZeroDivisionError)
    assert live.record.info.state is RunState.FAILED


def test_an_impossible_placement_is_told_as_labkit_tells_it(experiment):
    live = LiveRun(experiment, scheduler=Overfull()).start().wait()
    assert live.state == "failed"
    assert str(live.exception) == live.error


def test_a_scheduler_object_is_not_shared_between_runs(experiment):
    class Counts:
        n = 0

        def schedule(self, snapshot):
            self.n += 1
            raise InputError("enough.")

    mine = Counts()
    LiveRun(experiment, scheduler=mine).start().wait()
    assert mine.n == 0


# --- on a loop: a notebook


def test_awaiting_a_run_leaves_the_loop_free(experiment):
    async def notebook():
        live = LiveRun(experiment, scheduler="srtf", speedup=7200.0)
        ticks = 0

        async def tick():
            nonlocal ticks
            while not live.over:
                ticks += 1
                await asyncio.sleep(0.01)

        await asyncio.gather(live.start(), tick())
        return live, ticks

    live, ticks = asyncio.run(notebook())
    assert live.state == "done"
    assert ticks > 10
    assert same(live.record.events, experiment.run("srtf").events)


def test_traits_change_on_the_loop_only_and_not_too_often(experiment):
    threads, moments = set(), []

    async def notebook():
        live = LiveRun(experiment, scheduler="srtf", speedup=3600.0)
        live.observe(
            lambda change: (threads.add(threading.current_thread()), moments.append(time.monotonic())), "metrics"
        )
        began = time.monotonic()
        await live.start()
        return time.monotonic() - began

    took_s = asyncio.run(notebook())
    assert threads == {threading.main_thread()}
    assert len(moments) <= 20 * took_s + 3


def test_pause_freezes_the_clock_in_the_middle_of_a_wait(experiment):
    async def notebook():
        live = LiveRun(experiment, scheduler="fifo", speedup=100.0).start()
        while not live.now_s:
            await asyncio.sleep(0.01)
        live.pause()
        frozen_s = live._paced.now_s
        await asyncio.sleep(0.3)
        still_s, began = live._paced.now_s, time.monotonic()
        live.start()
        while live.now_s <= frozen_s:
            await asyncio.sleep(0.01)
        gone_s, later_s = time.monotonic() - began, live.now_s
        live.stop()
        await live
        return frozen_s, still_s, later_s, gone_s, live

    frozen_s, still_s, later_s, gone_s, live = asyncio.run(notebook())
    assert 0 < frozen_s == still_s < later_s
    assert later_s <= frozen_s + 100 * gone_s + 1e-6  # it went on at its pace, and did not catch up
    assert live.state == "stopped"


def test_buttons_pressed_on_another_thread_reach_the_loop(experiment):
    async def notebook():
        live = LiveRun(experiment, scheduler="fifo", speedup=1.0).start()
        presser = threading.Thread(target=lambda: (time.sleep(0.1), live.pause(), live.stop()))
        presser.start()
        await asyncio.wait_for(live, HANG_S)
        presser.join()
        return live

    assert asyncio.run(notebook()).state == "stopped"


def test_stop_is_told_even_while_a_scheduler_thinks(experiment):
    async def notebook():
        slow = Asleep()
        live = LiveRun(experiment, scheduler=slow).start()
        while not slow.asked.is_set():
            await asyncio.sleep(0.01)
        live.stop()
        told = live.state
        slow.woken.set()
        await live
        return told, live.state

    assert asyncio.run(notebook()) == ("stopping", "stopped")


# --- the paced clock


def test_a_paced_clock_runs_during_a_wait_and_stops_when_held(experiment):
    paced = Paced(experiment.simulator(), speedup=50.0)
    thread = threading.Thread(target=paced.advance, args=(1000.0,), kwargs={"stop_at_event": False})
    thread.start()
    until(lambda: paced.now_s > 1.0)
    paced.hold()
    held_s = paced.now_s
    time.sleep(0.1)
    assert paced.now_s == held_s < 1000.0
    paced.hurry()
    thread.join(HANG_S)
    assert paced.now_s == 1000.0


def test_an_interrupted_clock_withholds_what_was_not_due(experiment):
    paced = Paced(experiment.simulator(), speedup=1.0)
    paced.interrupt()
    with pytest.raises(StoppedError):
        paced.advance(1000.0, stop_at_event=False)


@pytest.mark.parametrize("speedup", [0.0, -1.0, math.nan])
def test_a_pace_must_be_positive(experiment, speedup):
    with pytest.raises(InputError, match="speedup"):
        Paced(experiment.simulator(), speedup=speedup)
