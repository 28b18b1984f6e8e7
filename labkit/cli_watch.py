"""`labkit watch`: look on at a run from a second place, in a terminal or a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def watch(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under --folder.", metavar="RUN")],
    folder: Annotated[Path, typer.Option(help="Where runs are kept, each in a folder of its own.")] = Path("runs"),
    once: Annotated[
        bool, typer.Option("--once", help="Show it as it is, and end; as where there is no terminal.")
    ] = False,
) -> None:
    """Show how far a run is, from any terminal, until it ends; exit code 1 if it stopped before its end."""
    from rich.console import Console

    from labkit.live.follow import FollowedRun
    from labkit.live.terminal import follow, shown
    from labkit.results.store import find

    seen, console = FollowedRun(find(run, root=folder)), Console()
    if not once and sys.stdout.isatty():
        follow(seen, console)
    console.print(shown(seen))
    raise typer.Exit(0 if seen.going or seen.status.state == "done" else 1)
