"""A share of cores that a process keeps to by itself: on clocks that are told, and on the real one."""

from __future__ import annotations

import threading
import time

import pytest

from labkit.elastic.process.limits import PERIOD_S, Brake
from tests.hang import HANG_S


class Clocks:
    """Processor time and time of day that pass only when it is said."""

    def __init__(self) -> None:
        self.spent_s = self.now_s = 0.0

    def brake(self) -> Brake:
        return Brake(spent_s=lambda: self.spent_s, now_s=lambda: self.now_s)


def test_without_a_limit_no_thread_waits() -> None:
    clocks = Clocks()
    brake = clocks.brake()
    clocks.spent_s = 100.0
    assert brake.owed_s() == 0
    assert not brake.keep()


def test_what_is_owed_is_paid_by_time_and_idle_time_is_kept_for_a_period_only() -> None:
    clocks = Clocks()
    brake = clocks.brake()
    brake.limit(0.5)
    clocks.spent_s = clocks.now_s = 1.0
    assert brake.owed_s() == pytest.approx(1.0)
    clocks.now_s = 2.0
    assert brake.owed_s() == pytest.approx(0)
    clocks.now_s = 100.0
    assert brake.owed_s() == 0
    clocks.spent_s += 0.5 * PERIOD_S + 1
    assert brake.owed_s() == pytest.approx(2.0)


def test_threads_together_keep_to_the_share() -> None:
    brake, over = Brake(), threading.Event()
    brake.limit(0.25)
    began_s, spent_s = time.monotonic(), time.process_time()

    def work() -> None:
        while not over.is_set():
            sum(range(20_000))
            while brake.keep(most_s=0.1) and not over.is_set():
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    over.wait(2.0)
    used = (time.process_time() - spent_s) / (time.monotonic() - began_s)
    over.set()
    for thread in threads:
        thread.join()
    assert 0.02 < used < 0.3  # a machine that is busy gives less


def test_a_thread_that_waits_goes_on_at_once_when_the_limit_is_lifted() -> None:
    brake = Brake()
    brake.limit(0.0001)
    while brake.owed_s() < 10:
        sum(range(20_000))
    waiter = threading.Thread(target=brake.keep)
    waiter.start()
    brake.limit(None)
    waiter.join(HANG_S)
    assert not waiter.is_alive()
