"""Options of commands about what goes wrong in a simulation."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Troubles = Annotated[
    str, typer.Option(help="Slow and hot tasks: a CSV file, or parts of the jobs: hot_ps=0.13,slow_ps=0.06.")
]
Sharding = Annotated[str, typer.Option(help="dynamic; or static: workers have their shares of the samples in advance.")]
AnyType = Annotated[bool, typer.Option("--any-type", help="Jobs may run on every device type, whatever they demand.")]
TooLarge = Annotated[
    bool,
    typer.Option("--drop-too-large", help="Leave out jobs that the empty cluster cannot hold; a note tells."),
]
Checkpoint = Annotated[
    float, typer.Option(help="Seconds between checkpoints, for jobs that run out of memory; 0: nothing is lost.")
]
Published = Annotated[
    str | None,
    typer.Option(help="What starts and changes take, by a paper: dlrover (20 s to launch + 100 s to start)."),
]


def overheads_of(name: str | None, *, start_s: float = 0.0, restart_s: float = 0.0, rescale_s: float = 0.0) -> Any:
    """Return overheads as a paper tells them, or of so many seconds each.

    Raises
    ------
    InputError
        If both are given, or a name is not known.
    """
    from labkit.core.errors import InputError
    from labkit.simulator import Overheads

    if name is None:
        return Overheads(start_s=start_s, restart_s=restart_s, rescale_s=rescale_s)
    if start_s or restart_s or rescale_s:
        raise InputError(f"--overheads {name} and --start, --restart or --rescale are given; expected one of them.")
    return Overheads.published(name)
