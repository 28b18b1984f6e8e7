"""The table of faults: `python -m tests.elastic.chaos.table RECORDS` writes it into docs/elastic-faults.md."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[3] / "docs" / "elastic-faults.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def cell(values: list[float], unit: float = 1.0, digits: int = 2) -> str:
    """Return median and 99th percentile."""
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    middle, high = np.percentile(known, [50, 99])
    return f"{middle * unit:.{digits}f} / {high * unit:.{digits}f}"


def rows(records: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    by_row: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by_row[record["row"], record["kind"]].append(record)
    lines = ["| row | what | n | detect (s) | recover (s) | lost steps | pause (s) |", "|---|---|---|---|---|---|---|"]
    for (row, kind), found in sorted(by_row.items()):
        columns = {name: [r[name] for r in found] for name in ("detect_s", "recover_s", "lost", "pause_s")}
        lines.append(
            f"| {row} | {kind} | {len(found)} | {cell(columns['detect_s'])} | {cell(columns['recover_s'])} | "
            f"{cell(columns['lost'], digits=0)} | {cell(columns['pause_s'])} |"
        )
    return lines


def main(path: Path, how: str) -> None:
    """Put the table of some records into the page."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    faults = sum(r["kind"] == "fault" for r in records)
    said = f"Measured by `{how}`: {faults} faults and {len(records) - faults} scalings.\n"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + said + "\n" + "\n".join(rows(records)) + "\n" + END + after)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "make chaos")
