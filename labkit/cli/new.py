"""`labkit new`: a part of one's own to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Begin a scheduler of your own: file, test and notebook.", no_args_is_help=True)


@app.callback()
def new() -> None:
    """Begin a part of your own: its file, its test, and a notebook; each works as it is."""


@app.command()
def scheduler(
    name: Annotated[
        str, typer.Argument(help="Name of the file, such as smallest_first. The class is then SmallestFirst.")
    ],
    folder: Annotated[Path, typer.Option(help="Folder for the files.")] = Path(),
) -> None:
    """Write NAME.py, test_NAME.py and NAME.ipynb. Existing files are never overwritten."""
    from labkit.templates import new_scheduler

    code, test, notebook = new_scheduler(name, folder=folder)
    kind = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    told = {code: "the scheduler", test: "what is claimed of it", notebook: "a run, and ten seeds with FIFO"}
    print("\n".join(f"{path}: {what}" for path, what in told.items()))
    where = "'poisson(40, per_hour=30)' --cluster 'no_network(2)'"
    print(f"\nTry it:\n  labkit compare {where} --schedulers 'fifo,{code}:{kind}' --seeds 5\n  pytest {test}")
