"""Options of commands about what is simulated: the part of a trace, speeds, what changes take, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from labkit.core.errors import InputError
from labkit.core.files import refuse_unreadable

if TYPE_CHECKING:
    from labkit.core.jobs import Jobs


Format = Annotated[str | None, typer.Option(help="The trace's format, where it cannot be told from the file.")]
First = Annotated[int | None, typer.Option(help="Only the first so many jobs.", min=1)]
Load = Annotated[float, typer.Option(help="2: jobs arrive twice as fast.")]
Slot = Annotated[float | None, typer.Option(help="Decide every so many seconds, instead of at every event.")]
TestbedProfile = Annotated[
    Path | None,
    typer.Option(help="Of a testbed, from `labkit profile`: its hosts, speeds and overheads.", metavar="FILE"),
]
Throughputs = Annotated[
    Path | None,
    typer.Option(
        help="Speeds: a CSV by model, gpus and type, or by type alone; Gavel's JSON; a table by (PS, workers)."
    ),
]
Speed = Annotated[
    str,
    typer.Option(
        help="auto, bottleneck, dl2, flops (a guess), gavel, measured, step-time, recorded, or own: file.py:Class."
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse throughputs that were not measured.")]
Start = Annotated[float, typer.Option(help="Seconds that a first start takes.")]
Restart = Annotated[float, typer.Option(help="Seconds that a restart from a checkpoint takes.")]
Rescale = Annotated[float, typer.Option(help="Seconds that a change of a running gang takes.")]
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
    """Return overheads as a paper tells them, or of so many seconds each; None: none given, so that a profile counts.

    Raises
    ------
    InputError
        If both are given, or a name is not known.
    """
    from labkit.core.errors import InputError
    from labkit.simulator import Overheads

    given = bool(start_s or restart_s or rescale_s)
    if name is None:
        return Overheads(start_s=start_s, restart_s=restart_s, rescale_s=rescale_s) if given else None
    if given:
        raise InputError(f"--overheads {name} and --start, --restart or --rescale are given; expected one of them.")
    return Overheads.published(name)


def first_jobs(trace: Path, *, seed: int, format: str | None, first: int | None) -> Jobs:
    """Return the jobs of a trace by name, file or generator, or only the first ones."""
    import numpy as np

    from labkit.workloads.expressions import trace as jobs_of

    jobs = jobs_of(trace, seed=seed, format=format)
    return jobs if first is None else jobs.take(np.arange(min(first, len(jobs))))


def cadence_of(slot: float | None) -> Any:
    """Return the cadence with a decision every so many seconds; None: the usual one."""
    from labkit.experiment.cadence import every_slot

    return None if slot is None else every_slot(slot)


_EXPECTED: Final = (
    "expected dollars per GPU and hour by device type, such as v100=2.48,a100=3.2, or a file of such lines"
)


def prices_of(text: str) -> dict[str, float]:
    """Return prices from `type=dollars,...`, or from a file with `type=dollars` or `type,dollars` on each line.

    >>> prices_of("v100=2.48, a100=3.2")
    {'v100': 2.48, 'a100': 3.2}

    Raises
    ------
    InputError
        If it is neither; the message names the part that cannot be read.
    """
    if "=" in text and not Path(text).exists():
        parts = text.split(",")
    else:
        refuse_unreadable(Path(text), expected="prices by device type", error=InputError)
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise InputError(f"--prices {text}: there is no such file; {_EXPECTED}.") from None
        parts = [line.split("#")[0].replace(",", "=") for line in lines]
    told = [part.strip() for part in parts if part.strip()]
    _refuse_twice(told)
    prices: dict[str, float] = {}
    for i, part in enumerate(told):
        kind, _, price = (word.strip() for word in part.partition("="))
        try:
            prices[kind] = float(price)
        except ValueError:
            if i == 0 and "=" in part and not any(letter.isdigit() for letter in price):  # a heading
                continue
            raise InputError(f"--prices: '{part}' is no price; {_EXPECTED}.") from None
        if not (kind and 0 < prices[kind] < float("inf")):
            raise InputError(f"--prices: '{part}' is no price; {_EXPECTED}.")
    if not prices:
        raise InputError(f"--prices {text}: it holds no price; {_EXPECTED}.")
    return prices


def _refuse_twice(parts: list[str]) -> None:
    kinds = [part.partition("=")[0].strip() for part in parts]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise InputError(f"--prices: {twice} has {kinds.count(twice)} prices; leave one.")
