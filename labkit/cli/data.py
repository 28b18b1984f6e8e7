"""`labkit traces`, `labkit clusters`, `labkit schedulers`, `labkit weights`: what there is to simulate."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli import help as cli_help
from labkit.system.printing import printable

if TYPE_CHECKING:
    import pandas as pd

    from labkit.learning.disclosure import TensorSummary
    from labkit.workloads.readers.ledger import Read
    from labkit.workloads.readers.mapped import ColumnMap


weights = typer.Typer(help="Show the contents of files of trained policies.", no_args_is_help=True)
traces = typer.Typer(help="Describe, list and download traces of jobs.", no_args_is_help=True)
clusters = typer.Typer(help="List the clusters that have a name; read the machines of your own.")
Trace = Annotated[
    Path,
    typer.Argument(help="A file, a name from `labkit traces list`, or a generator.", autocompletion=cli_help.traces),
]


def schedulers() -> None:
    """List the schedulers by kind: how each differs, its source, its options."""
    from labkit import schedulers as folder
    from labkit.schedulers.kinds import by_kind

    rounds = ""
    for kind, entries in by_kind(folder.available()).items():
        print(f"{kind}\n{'-' * len(kind)}")
        for name, (line, source) in entries.items():
            made = folder.make(name)
            policy = getattr(made, "policy", None)
            what, options = _summary_and_options(made if policy is None else policy)
            if policy is not None:
                rounds = _summary_and_options(made)[1].replace(f"policy={policy!r}, ", "")
                options = re.sub(r"aware=\w+(, )?", "", options)
            print(f"{name}: {line or what}{f' [{source}]' if source else ''}\n    options: {options or 'none'}")
        print()
    print(f"All gavel_ names take these options, too:\n    {rounds}")


def _summary_and_options(part: object) -> tuple[str, str]:
    """Return the summary of a scheduler or its policy, and its options."""
    what = (type(part).__doc__ or "").strip().splitlines()[0].removesuffix(" [1]_.").removesuffix(".")
    return what, str(part).partition("(")[2].removesuffix(")")


@clusters.callback(invoke_without_command=True)
def clusters_list(context: typer.Context) -> None:
    """List the clusters that have a name; `labkit clusters import` reads your own."""
    from labkit.topology import available

    if context.invoked_subcommand is not None:
        return
    for name, what in available().items():
        print(f"{name:22} {what}")


@clusters.command("import")
def clusters_import(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="What `scontrol show node` (or partition), `sinfo` or `kubectl get nodes -o json` printed, or a CSV "
            "of nodes; several files about the same hosts are merged.",
            metavar="FILE...",
        ),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the inventory here.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Keep hosts that are down or have no GPUs, too.")] = False,
    devices: Annotated[str, typer.Option(help="Devices that count as GPUs, too: npu, or huawei.com/Ascend910=1.")] = "",
) -> None:
    """Read the machines of a cluster, and write the inventory that --cluster takes."""
    from labkit.core.errors import InputError
    from labkit.core.files import refuse_unwritable
    from labkit.topology.machine_files import inventory, machines

    if output is not None:
        refuse_unwritable(output, endings=(".toml",))
    text, notes = inventory(
        machines(files, devices=devices), source=", ".join(file.name for file in files), every=every
    )
    if output is None:
        print(text, end="")
        return
    output.write_text(text, encoding="utf-8")
    from labkit.topology import build

    try:
        print(build(str(output)))
    except InputError:
        output.unlink()
        raise
    for note in notes:
        print(f"note: {note}")
    print(f"written to {output}; now: labkit traces check EXPORT --cluster {output}")


@traces.command("info")
def traces_info(file: Trace, format: Annotated[str | None, typer.Option(help="The trace's format.")] = None) -> None:
    """Describe a trace: jobs, time span, gang sizes, durations."""
    from labkit.workloads import info

    print(info(file, format=format))


@traces.command("check")
def traces_check(
    file: Trace,
    format: Annotated[str | None, typer.Option(help="The trace's format.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Machines that the trace is from: a name, or a file.", autocompletion=cli_help.clusters),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw GPUs in use over time: .pdf, .svg or .png.")] = None,
) -> None:
    """Check a trace before it is simulated: where its rows and GPU-hours are, what contradicts what, GPUs in use."""
    from labkit.core.errors import InputError
    from labkit.topology import build
    from labkit.workloads.readers import ledgered
    from labkit.workloads.trace_check import check, occupancy

    machines = None if cluster is None else build(cluster)
    print(check(file, format=format, cluster=machines))
    if figure is not None:
        from labkit.plots.paper import refuse_figure, save_for_paper
        from labkit.plots.traces import plot_occupancy

        refuse_figure(figure)
        segments = ledgered(file, format=format).segments
        if segments is None or not len(segments.gpus):
            raise InputError(f"{file} has no start times of jobs; --figure draws recorded schedules.")
        held = None if machines is None else machines.n_gpus
        print(save_for_paper(plot_occupancy(occupancy(segments), n_gpus=held), figure).resolve())


@traces.command("fetch")
def traces_fetch(
    name: Annotated[str, typer.Argument(help="A name from `labkit traces list`.")],
    checksum: Annotated[str | None, typer.Option(help="Expected SHA-256 of the file.")] = None,
) -> None:
    """Download a public trace, verify its checksum, and print its path."""
    from labkit.workloads.named_traces import fetch

    print(fetch(name, checksum=checksum))


@traces.command("list")
def traces_list(
    formats: Annotated[bool, typer.Option("--formats", help="List the formats that are read instead.")] = False,
) -> None:
    """List the traces that have a name: those that come with labkit, and public ones to download."""
    from labkit.workloads.named_traces import PUBLIC, fetched, shipped
    from labkit.workloads.readers import FORMATS

    if formats:
        for name, reader in FORMATS.items():
            print(f"{name:14} {(reader.__doc__ or '').splitlines()[0].removeprefix('Return the ').removesuffix('.')}")
        return

    print("with labkit:")
    for name, path in shipped().items():
        print(f"  {name:20} {path}")
    print("public, by `labkit traces fetch NAME`, and from then on by name too:")
    for name, trace in PUBLIC.items():
        print(f"  {name:20} {trace}{' (fetched)' if fetched(name) is not None else ''}")


@weights.command("show")
def weights_show(
    name: Annotated[
        str,
        typer.Argument(help="A .safetensors file, or the name of weights that ship with labkit.", metavar="FILE|NAME"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List what a trained policy's file contains, including training data that others could read from it."""
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
    from labkit.cli.tables import new_table, numbers, show, words

    table = new_table()
    words(table, "tensor")
    numbers(table, "shape", "type", "least", "greatest")
    words(table, "holds")
    for each in tensors:
        least, greatest = ("" if end is None else f"{end:.4g}" for end in (each.least, each.greatest))
        table.add_row(each.name, " x ".join(map(str, each.shape)), each.dtype, least, greatest, each.holds)
    show(table)


N_EXAMPLES = 3


def traces_import(
    file: Annotated[Path, typer.Argument(help="A table of jobs with a header; any columns.", metavar="FILE")],
    map: Annotated[
        str, typer.Option(help="Meaning of the columns: arrival=submit_time,duration=runtime:min (FIELD=COLUMN:UNIT).")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Accept the proposal without asking.")] = False,
) -> None:
    """Declare what the columns of a table of jobs mean, so that all commands can read it.

    It proposes a meaning for each column, with a confidence and examples. The answer is kept beside the file, in
    FILE.labkit.toml. The exit code is 1 if nothing was kept.
    """
    from labkit.workloads.readers import mapped, sniff
    from labkit.workloads.readers.mapped import keep, named, sidecar

    told = named(map)
    known = _readable_format(file) if not sidecar(file).exists() and not told else None
    if known is not None:
        print(
            f"{file} is a trace of format {known}, which needs no import: labkit traces info {file} (import it all the "
            "same: --map FIELD=COLUMN,...)"
        )
        return
    frame, separator = mapped.table(file)
    mapping = mapped.proposed(frame, separator, chosen=told)
    show_proposal(file, frame, mapping)
    read = mapped.mapped(file, mapping)
    _show_read(read)
    if not yes and not _agreed():
        print(f"Not kept. Change it with --map FIELD=COLUMN[:UNIT],..., or keep it: labkit traces import {file} --yes")
        raise typer.Exit(1)
    print(f"kept in {keep(mapping, file)}; now: labkit compare {file} --cluster ...")
    assert sniff(file) == "mapped"


def _readable_format(file: Path) -> str | None:
    """Return the format as which a file can be read without import; None where there is none."""
    from labkit.core.errors import TraceError
    from labkit.workloads.readers import read, sniff

    try:
        found = sniff(file)
    except TraceError:
        return None
    try:
        read(file, format=found)
    except TraceError as error:
        print(f"note: it looks like {found}, but is not read as that: {error}")
        return None
    return found


def show_proposal(file: Path, frame: pd.DataFrame, mapping: ColumnMap) -> None:
    """Print a row for each field that a column means, and the columns that are not used."""
    from labkit.cli.tables import new_table, show, words
    from labkit.workloads.readers.mapped import FIELDS

    print(f"{file}: {len(frame):,} rows, columns separated by {mapping.separator!r}")
    table = new_table()
    words(table, "field", "what it is", "column", "unit", "how sure", "examples")
    for name, source in mapping.sources.items():
        seen = [value for value in frame[source.column].dropna().unique() if str(value).strip()][:N_EXAMPLES]
        shown = " | ".join(str(value)[:24] for value in seen)
        unit = " ".join(
            filter(None, (source.unit if FIELDS[name].units else "", f"per {source.per}" * bool(source.per)))
        )
        table.add_row(name, FIELDS[name].what, source.column, unit, source.sure, shown)
    show(table)
    used = {source.column for source in mapping.sources.values()}
    if unused := [str(column) for column in frame.columns if column not in used]:
        print(f"not used: {', '.join(unused[:20])}{f' and {len(unused) - 20} more' * (len(unused) > 20)}")
    if absent := [name for name in FIELDS if name not in mapping.sources]:
        print(f"no column for: {', '.join(absent)}")


def _show_read(read: Read) -> None:
    print(f"{len(read.jobs):,} jobs of {read.ledger.n_rows:,} rows")
    for note in dict.fromkeys((*read.jobs.notes, *filter(None, [read.ledger.balance()]))):
        print(f"note: {note}")


def _agreed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Read it so from now on?", default=True)
