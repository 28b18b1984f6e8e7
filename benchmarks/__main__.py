"""Measure everything, write benchmarks/results.json, and print the table."""

from __future__ import annotations

import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import SHORT, Row
from labkit.core.errors import unknown

FOLDER = Path(__file__).parent
ALONE: Final = frozenset({"dlrover_live", "fidelity", "gpus", "ports"})
"""Benchmarks that take minutes or hours in which jobs train, need a GPU, or print their own table: only by name."""


def modules(wanted: Sequence[str]) -> list[str]:
    """Return the benchmark modules to run; where none is named, all but those that run only by name."""
    known = sorted(found.name for found in pkgutil.iter_modules([str(FOLDER)]) if not found.name.startswith("_"))
    for name in wanted:
        if name not in known:
            raise unknown("benchmark", name, known)
    return list(wanted) or [name for name in known if name not in ALONE]


def measure(names: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Run benchmark modules; return their rows, and the names of those that failed."""
    rows: list[Row] = []
    failed = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            module = import_module(f"benchmarks.{name}")
            made = module.rows() if hasattr(module, "rows") else []
            rows += [row if isinstance(row, Row) else Row(**row) for row in made]
        except Exception:
            traceback.print_exc()
            failed.append(name)
    return rows, failed


def write(rows: Sequence[Row], path: Path, *, everything: bool = False) -> list[dict[str, object]]:
    """Put rows into the file of results, whole or not at all; beside those of before, unless these are `everything`.

    Then only those of before are kept that run only by name.
    """
    kept = json.loads(path.read_text()) if path.exists() else []
    if everything:
        kept = [row for row in kept if str(row["command"]).rsplit(maxsplit=1)[-1] in ALONE]
    by_name = {str(row["name"]): row for row in kept} | {row.name: asdict(row) for row in rows}
    results = [by_name[name] for name in sorted(by_name)]
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1, default=_plain) + "\n")
    temporary.replace(path)
    return results


def _plain(value: object) -> object:
    """Return a numpy number as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no number that JSON can hold")


def show(rows: Sequence[Row]) -> None:
    """Print rows as a table: what falls short stands out."""
    from rich.console import Console
    from rich.table import Table

    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("what")
    for heading in ("measured", "goal"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    marks = {True: "[green]pass[/]", False: "[bold red]falls short[/]", None: ""}
    for row in rows:
        sign = "at least" if row.higher_is_better else "at most"
        goal = "" if row.goal is None else f"{sign} {row.goal:,g}"
        table.add_row(marks[row.met], row.name, f"{row.value:,.4g}", goal, row.unit)
    Console().print(table)


def main(arguments: Sequence[str]) -> int:
    """Measure, write, show; with `--short` only show.

    Returns 1 where a benchmark could not run at all, 2 where none has that name.
    """
    short = "--short" in arguments
    if short:
        os.environ[SHORT] = "1"
    try:
        names = modules([name for name in arguments if name != "--short"])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    rows, failed = measure(names)
    everything = not arguments and not failed
    if not short:
        write(rows, FOLDER / "results.json", everything=everything)
    show(rows)
    if failed:
        print(f"could not measure: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
