"""Newcomers get ready at a low priority, and only that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from labkit.elastic.newcomer import GROUP, NICE, gently


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


SESSION = """
from labkit.elastic.newcomer import GROUP, session_at
told = lambda: GROUP.read_text().split()[-1]
with session_at(10):
    inside = told()
print(inside, told())
"""


@pytest.mark.skipif(not GROUP.exists(), reason="this kernel does not share cores among sessions")
@pytest.mark.parametrize("own", [True, False])
def test_a_session_of_its_own_is_of_low_priority_meanwhile_and_that_of_others_is_left_alone(own) -> None:
    here = GROUP.read_text().split()[-1]
    told = subprocess.run(
        [sys.executable, "-c", SESSION], capture_output=True, text=True, check=True, start_new_session=own, timeout=60
    )
    assert told.stdout.split() == (["10", "0"] if own else [here, here])
