"""Messages between the processes of a job: each arrives as it was sent, or is refused by name."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit.elastic
from labkit.elastic.controller.connections import Admission, Receivers
from labkit.elastic.protocol.messages import blocks, clients, codec, orders, reports
from labkit.elastic.protocol.messages.codec import VERSION, FrameKind, MessageError, decode, encode
from labkit.elastic.protocol.messages.struct import Struct
from labkit.elastic.protocol.sites import Site
from labkit.elastic.transport import AccessError, Head, Message, Peer

MODULES = (blocks, clients, codec, orders, reports)
MESSAGES = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Struct) and is_dataclass(kind) and kind.__module__ == module.__name__
]
UNIONS = {
    orders: orders.Order,
    reports: reports.Report,
    clients: clients.ClientRequest | clients.ClientAnswer | clients.LauncherOrder | clients.LauncherReport,
}
PARTS = {reports.MemberReport}
"""Bases of messages."""

st.register_type_strategy(Site, st.sampled_from([Site("a/0", "a"), Site("b/1", "b", "10.0.0.7", ("cuda:0",), (0, 3))]))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=5)
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(kind: type[Struct], data: st.DataObject) -> None:
    sent = data.draw(st.from_type(kind))
    assert decode(kind, encode(sent)) == sent


def described(kind: type[Struct]) -> dict[str, Any]:
    """Return the fields of a valid message, as JSON has them."""
    raw = encode(st.from_type(kind).example())
    values: dict[str, Any] = json.loads(raw.partition(b" ")[2])
    return values


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_with_a_field_missing_unknown_or_of_another_type_is_refused_by_name(kind: type[Struct]) -> None:
    good, name = described(kind), kind.__name__
    bad = [("unknown", {**good, "unknown": 1})]
    for field in fields(kind):  # type: ignore[arg-type]
        bad.append((field.name, {**good, field.name: {"no": {"no": None}}}))
        if field.default is MISSING and field.default_factory is MISSING:
            bad.append((field.name, {key: value for key, value in good.items() if key != field.name}))
    for field_name, values in bad:
        raw = name.encode() + b" " + json.dumps(values).encode()
        with pytest.raises(MessageError, match=rf"^{name}\.{field_name}\b"):
            decode(kind, raw)


NAMED = st.builds(lambda kind, rest: kind.__name__.encode() + b" " + rest, st.sampled_from(MESSAGES), st.binary())
"""The name of a message, and no message."""


@settings(max_examples=4 * settings().max_examples)
@given(st.binary() | NAMED)
def test_what_is_no_message_is_refused_and_nothing_else_happens(raw: bytes) -> None:
    with pytest.raises(MessageError):
        decode(orders.Order, raw)


def test_a_message_that_is_for_others_is_refused() -> None:
    with pytest.raises(MessageError, match="a message 'BeginEra'; expected AssignShards, BeginTraining, "):
        decode(orders.WorkerOrder, encode(orders.BeginEra(3)))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_where_it_would_be_sent(number: float) -> None:
    with pytest.raises(MessageError, match=r"^Resumed\.seconds"):
        encode(reports.Resumed(3, number))
    with pytest.raises(MessageError, match=r"^ShardLosses\.losses"):
        encode(reports.ShardLosses(3, [reports.ShardLoss(0, number)]))


def test_a_value_of_another_type_is_refused_where_it_would_be_sent() -> None:
    with pytest.raises(MessageError, match=r"CopyBlocks cannot be encoded: .*version"):
        encode(orders.CopyBlocks("seven"))  # type: ignore[arg-type]


@pytest.mark.parametrize("module", UNIONS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_message_of_a_module_is_in_its_union(module: Any) -> None:
    here = {kind for kind in MESSAGES if kind.__module__ == module.__name__} - PARTS
    assert here == set(get_args(UNIONS[module]))


def test_no_two_messages_have_one_name() -> None:
    names = [kind.__name__ for kind in MESSAGES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_no_field_may_have_any_value(kind: type[Struct]) -> None:
    hints = get_type_hints(kind, include_extras=True)
    assert not [field.name for field in fields(kind) if _has_any(hints[field.name])]  # type: ignore[arg-type]


def _has_any(hint: Any) -> bool:
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return any(_has_any(of) for of in get_type_hints(hint, include_extras=True).values())
    return hint is Any or any(_has_any(argument) for argument in get_args(hint))


def test_no_process_reads_a_message_without_the_decoder() -> None:
    package = Path(labkit.elastic.__file__).parent
    unchecked = re.compile(r"\bmeta\[|\.meta\.get|dict\((message|reply)\.meta|getattr\(self, f|json\.loads\(.*\.meta")
    found = [str(path) for path in package.rglob("*.py") if unchecked.search(path.read_text())]
    assert not found


def test_the_kinds_of_frames_name_the_messages_that_exist() -> None:
    source = Path(labkit.elastic.__file__).parent / "protocol" / "messages" / "codec.py"
    named = set(re.findall(r"`([A-Z]\w+)`", source.read_text()))
    assert named == {kind.__name__ for kind in MESSAGES if kind.__module__ == blocks.__name__}
    assert len(FrameKind) == 15


# --- what the controller lets in

MAY = {
    "client": {FrameKind.CLIENT_REQUEST},
    "server": {FrameKind.REPORT, FrameKind.SNAPSHOT},
    "worker": {FrameKind.REPORT},
    "host": {FrameKind.REPORT},
}
"""Kinds of frames that a process may send the controller, by its role."""


class Door:
    """The controller's end of a connection of a process with a role, and what passes it."""

    def __init__(self, role: str) -> None:
        self.passed: list[Any] = []
        self.refused: list[tuple[str, str]] = []
        receivers = Receivers(
            opened=lambda *_: None, closed=lambda *_: None, reported=lambda _, report, __: self.passed.append(report),
            copied=lambda _, described: self.passed.append(described), asked=lambda *_: self.passed.append("asked"),
            hosted=lambda *told: self.passed.append(told[-1]), refused=lambda *why: self.refused.append(why),
        )  # fmt: skip
        admission = Admission("local", launchers=["guest"] if role == "host" else [], loop=self, receivers=receivers)  # type: ignore[arg-type]
        self._handler = admission(Peer("uid 0", codec.hello("guest", role)))

    def post(self, call: Any, *arguments: Any) -> None:
        call(*arguments)

    def send(self, kind: FrameKind, raw: bytes) -> None:
        self._handler.received(None, Message(Head(kind), raw, memoryview(b"")))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize("kind", FrameKind)
def test_each_role_may_send_the_controller_its_own_frames_only(role: str, kind: FrameKind) -> None:
    report = encode(clients.Leaving()) if role == "host" else encode(reports.WantsLease())
    door, raw = Door(role), encode(blocks.BlockState(1, 0)) if kind == FrameKind.SNAPSHOT else report
    if kind in MAY[role]:
        door.send(kind, raw)
        assert len(door.passed) == 1
        return
    with pytest.raises(AccessError, match=f"a {role} may not send the controller a frame of kind {kind}"):
        door.send(kind, raw)
    assert not door.passed


def test_a_malformed_report_is_an_event_that_names_sender_message_and_field() -> None:
    door = Door("server")
    with pytest.raises(MessageError):
        door.send(FrameKind.REPORT, b'OwnsBlock {"block":"three","version":1,"moves":0}')
    assert door.refused == [("malformed", "guest: OwnsBlock.block: Input should be a valid integer.")]
    assert not door.passed


def test_a_process_whose_messages_have_another_version_is_refused_with_both_versions() -> None:
    said = {**codec.hello("worker-0", "worker"), "version": VERSION + 1}
    why = f"sends messages of version {VERSION + 1}, and this process of version {VERSION}"
    with pytest.raises(AccessError, match=why):
        codec.greeted(Peer("uid 0", said))
    with pytest.raises(AccessError, match=r"malformed: Hello\.version: Field required"):
        codec.greeted(Peer("uid 0", {"name": "worker-0", "role": "worker"}))
