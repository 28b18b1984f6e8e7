"""Members of a job are its tasks, numbered in the order of its rows, whichever came and went."""

from __future__ import annotations

from labkit.core.events import Role
from labkit.testbed.run.job_events import LeftEvent, MemberName, StartedEvent
from labkit.testbed.run.tasks import TaskNumbers, TaskResources

ROWS = [(Role.WORKER, "a/0", 2), (Role.PS, "b/0", 1), (Role.PS, "a/0", 1), (Role.WORKER, "b/0", 1)]


def seated(*names: tuple[str, str]) -> TaskNumbers:
    seating = TaskNumbers()
    for name, site in names:
        seating.note(StartedEvent(name=name, host="a", pid=1, site=site))
    return seating


def test_tasks_are_numbered_in_the_order_of_the_rows():
    seating = seated(("worker-0", "a/0"), ("worker-1", "b/0"), ("worker-2", "a/0"), ("ps-0", "a/0"), ("ps-1", "b/0"))
    numbers = {str(member): task for member, task in seating.tasks(ROWS).items()}
    assert numbers == {"worker-0": 0, "worker-2": 1, "worker-1": 2, "ps-1": 0, "ps-0": 1}
    assert str(seating.of_task(ROWS, Role.PS, 0)) == "ps-1"
    assert seating.of_task(ROWS, Role.PS, 2) is None


def test_a_replacement_has_the_number_of_its_predecessor_once_that_is_gone():
    seating = seated(("ps-0", "a/0"), ("ps-1", "a/0"), ("ps-2", "a/0"))
    rows = [(Role.PS, "a/0", 2)]
    assert seating.tasks(rows) == {MemberName(Role.PS, 0): 0, MemberName(Role.PS, 1): 1}  # ps-2 is still to take over
    seating.note(LeftEvent(name="ps-0", reason="exit code 0"))
    assert seating.tasks(rows) == {MemberName(Role.PS, 2): 0, MemberName(Role.PS, 1): 1}


def test_amounts_go_to_members_in_the_order_of_tasks():
    seating = seated(("ps-4", "a/0"), ("ps-3", "a/0"))
    assert seating.amounts([TaskResources("a/0", Role.PS, 0.2, None), TaskResources("a/0", Role.PS, 0.4, 1.0)]) == {
        "ps-4": (0.2, None), "ps-3": (0.4, 1.0),
    }  # fmt: skip
    seating.clear()
    assert seating.amounts([TaskResources("a/0", Role.PS, 0.2, None)]) == {}
