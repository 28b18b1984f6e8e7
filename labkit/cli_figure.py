"""`labkit figure`: a figure of some runs in the width of a paper's column."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, or their ids under --root.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="The file: .pdf, .svg or .png.")],
    kind: Annotated[
        Figure, typer.Option(help="What to draw; seeds: paired differences of runs of several seeds.")
    ] = Figure.JCT,
    columns: Annotated[int, typer.Option(help="1 (3.35 in wide) or 2 (7 in).", min=1, max=2)] = 1,
    height: Annotated[float | None, typer.Option(help="Inches of the plotted area of each panel.")] = None,
    root: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
) -> None:
    """Draw runs for a paper: vector graphics in a column's width, no type smaller than 7 pt."""
    from labkit.core.files import refuse_unwritable
    from labkit.plots.figures import draw
    from labkit.plots.paper import ENDINGS, notes_of, save_for_paper
    from labkit.results.store import load

    refuse_unwritable(out, endings=ENDINGS)
    chart = draw([load(run, root=root) for run in runs], kind=kind)
    print(save_for_paper(chart, out, columns=columns, height_in=height).resolve())
    if notes := notes_of(chart):
        print(f"for the caption: {'; '.join(notes)}")
