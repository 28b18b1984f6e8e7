"""`labkit figure`: a figure of some runs in the width of a paper's column."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.attach import Runs


class Figure(StrEnum):
    """What can be drawn."""

    JCT = "jct"
    BARS = "bars"
    UTILISATION = "utilisation"
    OVERHEADS = "overheads"
    FAIRNESS = "fairness"
    GANTT = "gantt"
    SEEDS = "seeds"


def figure(
    names: Annotated[list[str], typer.Argument(help="Folders of runs, or their ids under --runs.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="Output file: .pdf, .svg or .png.")],
    kind: Annotated[
        Figure, typer.Option(help="Kind of figure. seeds: paired differences of runs with several seeds.")
    ] = Figure.JCT,
    against: Annotated[
        str | None, typer.Option(help="With --kind seeds: baseline scheduler. Default: the first one.")
    ] = None,
    columns: Annotated[int, typer.Option(help="Width in columns: 1 (3.35 in) or 2 (7 in).", min=1, max=2)] = 1,
    width: Annotated[float | None, typer.Option("--width-mm", help="Width in mm, in place of --columns.")] = None,
    height: Annotated[float | None, typer.Option(help="Height of each panel's plotting area, in inches.")] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check whether the figure is fit for print: colours, type, height, collisions."),
    ] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Draw a figure for a paper: vector graphics, one column wide, no text below 7 pt."""
    from labkit.plots.figures import draw
    from labkit.plots.paper import for_paper, notes_of, refuse_figure, save_sized
    from labkit.plots.print_check import print_check
    from labkit.plots.publication import caption
    from labkit.results.store import load

    refuse_figure(out)
    records = [load(name, runs=runs) for name in names]
    chart = draw(records, kind=kind, base=against)
    sized = for_paper(chart, columns=columns, height_in=height, width_mm=width)
    print(save_sized(sized, out).resolve())
    print(f"Caption: {caption(records, kind=kind, notes=notes_of(chart))}")
    if check:
        found = print_check(sized)
        for row in found:
            print(f"{'ok ' if row.good else 'BAD'} {row.what}: {row.value:.3g} ({row.wanted})")
        raise typer.Exit(0 if all(row.good for row in found) else 1)
