"""`labkit schedulers`: grouped by kind, each with a line of its own."""

from __future__ import annotations

from pathlib import Path

from labkit.schedulers import available
from labkit.schedulers.kinds import AGNOSTIC, KINDS, OTHERS, by_kind
from tests.command import labkit


def test_every_scheduler_has_a_kind_and_a_line_that_no_other_has() -> None:
    assert OTHERS not in by_kind(available())
    lines = [line for entries in by_kind(available()).values() for line, _ in entries.values()]
    assert len(lines) == len(set(lines)) == len(available())


def test_the_table_names_no_scheduler_that_is_not_there() -> None:
    named = [name for entries in KINDS.values() for name in entries]
    assert set(named) == {name.removesuffix(AGNOSTIC) for name in available()}
    assert len(named) == len(set(named))


def test_the_command_prints_them_under_their_kinds(tmp_path: Path) -> None:
    shown = labkit("schedulers", cwd=tmp_path).stdout
    places = [shown.index(f"{kind}\n") for kind in KINDS]
    assert places == sorted(places)
    assert "easy: fifo with backfilling that never delays the first waiting job [Lifka, JSSPP 1995]\n" in shown
