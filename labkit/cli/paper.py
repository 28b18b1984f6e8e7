"""`labkit paper`: all that a paper needs of some runs, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.attach import Runs
from labkit.cli.figure import Figure


def paper(
    names: Annotated[list[str], typer.Argument(help="Folders of runs, or their ids under --runs.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="Folder for the files.", metavar="FOLDER")],
    kind: Annotated[
        Figure | None,
        typer.Option(help="Kind of figure. Default: seeds for runs with several seeds or windows, else jct."),
    ] = None,
    columns: Annotated[int, typer.Option(help="Width in columns: 1 (3.35 in) or 2 (7 in).", min=1, max=2)] = 1,
    runs: Runs = Path("runs"),
) -> None:
    """Write a figure, its caption, a methods paragraph, BibTeX of the schedulers, and an archive of the runs."""
    from labkit.plots.publication import write_paper
    from labkit.results.store import find, load

    folders = [find(name, runs=runs) for name in names]
    records = [load(folder) for folder in folders]
    for path in write_paper(records, folders, to=out, kind=None if kind is None else kind.value, columns=columns):
        print(path.resolve())
    print(f"Caption: {(out / 'caption.txt').read_text(encoding='utf-8').strip()}")
