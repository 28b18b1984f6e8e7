"""`labkit traces`, `labkit clusters`, `labkit schedulers`, `labkit weights`: what there is to simulate."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit import cli_help
from labkit.printing import printable

if TYPE_CHECKING:
    from labkit.learning.disclosure import TensorSummary

weights = typer.Typer(help="Show what files of trained policies hold.", no_args_is_help=True)
traces = typer.Typer(help="Describe, list and download traces of jobs.", no_args_is_help=True)
Trace = Annotated[
    Path, typer.Argument(help="A file, a name of `labkit traces list`, or a generator.", autocompletion=cli_help.traces)
]


def schedulers() -> None:
    """List the schedulers, with their options."""
    from labkit import schedulers as folder

    rounds = ""
    for name in folder.available():
        made = folder.make(name)
        policy = getattr(made, "policy", None)
        what, options = _told(made if policy is None else policy)
        if policy is not None:
            rounds = _told(made)[1].replace(f"policy={policy!r}, ", "")
            what += ", knowing no speeds" * name.endswith("_agnostic")
            options = re.sub(r"aware=\w+(, )?", "", options)
        print(f"{name}\n    {what}.\n    options: {options or 'none'}")
    print(f"\nAll gavel_ names take these options too:\n    {rounds}")


def _told(part: object) -> tuple[str, str]:
    """Return what a scheduler or its policy does, and its options."""
    what = (type(part).__doc__ or "").strip().splitlines()[0].removesuffix(" [1]_.").removesuffix(".")
    return what, str(part).partition("(")[2].removesuffix(")")


def clusters() -> None:
    """List the clusters that have a name."""
    from labkit.topology import available

    for name, what in available().items():
        print(f"{name:22} {what}")


@traces.command("info")
def traces_info(file: Trace, format: Annotated[str | None, typer.Option(help="The trace's format.")] = None) -> None:
    """Describe a trace: jobs, time span, sizes, durations."""
    from labkit.workloads import info

    print(info(file, format=format))


@traces.command("fetch")
def traces_fetch(
    name: Annotated[str, typer.Argument(help="A name that `labkit traces list` shows.")],
    checksum: Annotated[str | None, typer.Option(help="SHA-256 that the file must have.")] = None,
) -> None:
    """Download a public trace, check it, and print where it is."""
    from labkit.workloads.fetch import fetch

    print(fetch(name, checksum=checksum))


@traces.command("list")
def traces_list() -> None:
    """List the traces that have a name: those that come with labkit, and public ones to download."""
    from labkit.workloads.fetch import PUBLIC, kept
    from labkit.workloads.shipped import shipped

    print("with labkit:")
    for name, path in shipped().items():
        print(f"  {name:20} {path}")
    print("public, by `labkit traces fetch NAME`, and from then on by name too:")
    for name, trace in PUBLIC.items():
        print(f"  {name:20} {trace}{' (fetched)' if kept(name) is not None else ''}")


@weights.command("show")
def weights_show(
    name: Annotated[
        str, typer.Argument(help="A .safetensors file, or weights that come with labkit.", metavar="FILE|NAME")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """List what a trained policy's file holds, and what of its training's data others can read from it."""
    from dataclasses import asdict

    from labkit.learning.disclosure import METADATA, disclosure

    found = disclosure(name)
    if as_json:
        print(json.dumps(asdict(found) | {"path": str(found.path)}))
        return
    print(printable(str(found.path)))
    for key, value in sorted(found.metadata.items()):
        print(f"  {printable(key)}: {printable(value)}" + (f"  [{METADATA[key]}]" if key in METADATA else ""))
    _show_tensors(found.tensors)
    if found.fault:
        print(f"note: {printable(found.fault)}")
    print(printable(found.readable))


def _show_tensors(tensors: Sequence[TensorSummary]) -> None:
    from rich.table import Table

    from labkit.cli_table import numbers, show, words

    table = Table(box=None, header_style="bold")
    words(table, "tensor")
    numbers(table, "shape", "type", "least", "greatest")
    words(table, "holds")
    for each in tensors:
        least, greatest = ("" if end is None else f"{end:.4g}" for end in (each.least, each.greatest))
        table.add_row(each.name, " x ".join(map(str, each.shape)), each.dtype, least, greatest, each.holds)
    show(table)
