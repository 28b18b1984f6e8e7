"""A number in a table is never cut: neither in a pipe nor in a narrow terminal."""

from __future__ import annotations

import re

import pytest
from rich.table import Table

from labkit.cli import tables as cli_table
from labkit.cli.tables import numbers, show, words

LABEL = "gavel_las(round_s=60.0,space_sharing=True,estimate=0.5)"
VALUES = ["3,039.17", "12,345.67", "1,234,567.89", "99.99", "1.23", "100%", "$12,345.67", "1,000.00"]


def wide() -> Table:
    table = Table(box=None)
    words(table, "scheduler")
    numbers(table, *(f"heading {i}\n(min)" for i in range(len(VALUES))))
    table.add_row(LABEL, *VALUES)
    return table


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_narrow_table_folds_names_and_keeps_every_digit(columns, capsys, monkeypatch):
    monkeypatch.setattr(cli_table, "PIPED", columns)
    show(wide())
    printed = capsys.readouterr().out
    assert "…" not in printed
    for value in VALUES:
        assert value in printed
    folded = "".join(re.split(r"\s{2,}", line.strip())[0] for line in printed.splitlines() if line[:2].strip())
    assert LABEL in folded


def test_a_table_with_room_stands_in_one_line_per_row(capsys, monkeypatch):
    monkeypatch.setattr(cli_table, "PIPED", 250)
    show(wide())
    assert any(LABEL in line and VALUES[-1] in line for line in capsys.readouterr().out.splitlines())
