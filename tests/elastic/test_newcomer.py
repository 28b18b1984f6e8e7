"""Newcomers get ready at a low priority, and only that."""

from __future__ import annotations

import os
import threading

import pytest

from labkit.elastic.process.newcomer import NICE, gently


def own_priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_what_is_done_gently_has_a_low_priority_and_what_follows_does_not() -> None:
    before, inside = own_priority(), []
    gently(lambda: inside.append(own_priority()))
    assert inside == [NICE]
    assert own_priority() == before
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(own_priority()))
    thread.start()
    thread.join()
    assert later == [before]


def test_an_error_on_the_way_is_raised() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        gently(lambda: __import__("no_such_module"))
