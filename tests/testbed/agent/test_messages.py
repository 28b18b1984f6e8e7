"""The agent sends the fields of the types that its client decodes, no others and under no other names."""

from __future__ import annotations

from dataclasses import fields

import pytest

from labkit.testbed.agent.messages import (
    PROTOCOL,
    Event,
    FolderRow,
    Hello,
    HostMeasurement,
    HostUse,
    ListedRun,
    ListedTask,
    StartedTask,
    Used,
    shaped,
)
from labkit.testbed.errors import AgentRefused


def names(kind):
    return {each.name for each in fields(kind)}


def test_replies_of_an_agent_have_the_fields_of_their_types(agent):
    assert set(agent.request("hello", protocol=PROTOCOL)) == names(Hello)
    started = agent.request("start", run="run", task="t", argv=["sleep", "1000"])
    assert set(started) == names(StartedTask)
    (run,) = agent.request("list")
    assert set(run) == names(ListedRun)
    assert set(run["tasks"]["t"]) == names(ListedTask)
    measured = agent.request("measure", pss=True, each=True)
    assert set(measured) == names(HostMeasurement)
    assert set(measured["host"]) == names(HostUse)
    assert set(measured["tasks"][0]) == names(Used)
    (row,) = agent.request("gc", dry_run=True)
    assert set(row) == names(FolderRow)


def test_events_of_an_agent_have_no_field_that_its_client_does_not_know(agent):
    agent.start("run", task="t", argv=["sh", "-c", "exit 3"])
    for event in agent.watching("watch", unfold=lambda item: [(0, each) for each in item], run="run", since=0):
        assert set(event) <= names(Event)
        if event["kind"] == "ended":
            break


@pytest.mark.parametrize("wrong", [None, [], {"pid": -1, "folder": "/f"}, {"pid": 1}, {"pid": 1, "folder": 5}])
def test_an_answer_of_another_form_is_refused(wrong):
    with pytest.raises(AgentRefused, match="has not the form"):
        shaped(StartedTask, wrong)
