"""Real agents in folders of their own; whatever a test starts is gone after it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labkit.testbed.agent.client import Agent
from labkit.testbed.run.session import LocalBridge
from tests.hang import HANG_S
from tests.testbed.agent.looking import agent_pid, labelled, wait_for

Dial = Callable[..., Agent]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder for an agent; at the end, agent and tasks are killed, whatever they think of it."""
    path = tmp_path / "home"
    yield path
    end_all(path)


def end_all(path: Path) -> None:
    pid = agent_pid(path)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: agent_pid(path) is None)
    while left := labelled(path):
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


@pytest.fixture
def dial(folder: Path) -> Iterator[Dial]:
    """Return a function that connects to the agent of the folder (or of another), and starts it if there is none."""
    with contextlib.ExitStack() as stack:
        others = set()

        def connect(path: Path = folder, **options: object) -> Agent:
            others.add(path)
            return stack.enter_context(Agent(LocalBridge(path, **options), timeout_s=HANG_S))

        yield connect
    for path in others - {folder}:
        end_all(path)


@pytest.fixture
def agent(dial: Dial) -> Agent:
    """Return a connection to an agent of its own."""
    return dial()
