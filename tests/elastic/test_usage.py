"""Cores and memory that processes use, against what a process knows of itself."""

from __future__ import annotations

import math
import os
import time

import pytest

from labkit.elastic.process.limits import (
    Gauge,
    MemberUsage,
    UsageReading,
    decode_readings,
    encode_readings,
    read,
    readings,
)
from labkit.elastic.protocol.messages.clients import MeasuredUsage

NAN = float("nan")


def test_what_a_process_used_is_read_from_outside() -> None:
    before = read(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        sum(range(1000))
    now = read(os.getpid())
    assert 0.09 < now.cpu_s - before.cpu_s < 0.2
    assert 0.01 < now.memory_gb < 10


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    gone = read(2**22 + 1)
    assert gone.cpu_s != gone.cpu_s
    assert gone.memory_gb != gone.memory_gb
    gauge = Gauge()
    gauge.used({"ps-0": gone})
    assert gauge.used({"ps-0": gone._replace(at_s=gone.at_s + 1)}) == {"ps-0": MemberUsage(None, None)}


def test_a_look_soon_after_the_last_one_tells_the_cores_of_that_one() -> None:
    gauge = Gauge()
    gauge.used({"ps-0": UsageReading(0.0, 0.0, 1.0)})
    assert gauge.used({"ps-0": UsageReading(1.0, 0.25, 1.0)})["ps-0"].cores == 0.25
    assert gauge.used({"ps-0": UsageReading(1.1, 0.35, 2.0)}) == {"ps-0": MemberUsage(0.25, 2.0)}
    assert gauge.used({"ps-0": UsageReading(2.0, 0.75, 2.0)})["ps-0"].cores == 0.5


def test_readings_of_another_host_arrive_as_they_were_and_nonsense_does_not() -> None:
    found = {"ps-0": UsageReading(1.0, 2.0, 0.5)}
    assert decode_readings(encode_readings(found)) == found
    assert encode_readings({"ps-0": UsageReading(1.0, NAN, NAN)}) == {"ps-0": (1.0, None, None)}
    assert math.isnan(decode_readings({"ps-0": MeasuredUsage(1.0, None, None)})["ps-0"].cpu_s)


def test_to_look_at_many_processes_takes_little_of_a_core() -> None:
    pids = {f"worker-{i}": os.getpid() for i in range(100)}
    began_s = time.process_time()
    for _ in range(5):
        readings(pids)
    assert (time.process_time() - began_s) / 5 < 0.01  # each second: at most 1 % of a core


@pytest.mark.parametrize("value", [0, -5])
def test_a_process_without_a_number_is_left_out(value: int) -> None:
    assert readings({"ps-0": value}) == {}
