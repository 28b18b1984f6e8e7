"""`labkit bed up`, `down`, `status` and `list`: the laptop testbed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labkit.testbed.laptop import Bed
    from labkit.testbed.laptop.bed import FoundBed

app = typer.Typer(help="A testbed on this machine: a few SSH servers of your own, on loopback.", no_args_is_help=True)
Folder = Annotated[
    Path | None, typer.Option(help="Folder for all its files. Default: one folder per user below ~/.local/state.")
]


@app.command()
def up(
    hosts: Annotated[int, typer.Option(help="Number of hosts.", min=1, max=64, metavar="N")] = 4,
    folder: Folder = None,
    gpus: Annotated[int, typer.Option(help="GPUs per host in the inventory.", min=0)] = 1,
    pods: Annotated[
        int, typer.Option(help="Number of pods: each has its own scheduler and a share of the hosts.", min=1)
    ] = 1,
    shaped: Annotated[
        str | None, typer.Option(help="Link rate of each host, such as 200mbit. Each host then has its own network.")
    ] = None,
    server: Annotated[str | None, typer.Option(help="SSH server: sshd or paramiko (in Python).")] = None,
) -> None:
    """Start the testbed, and print how to use it. Running servers are kept."""
    from labkit.testbed.laptop import Bed

    bed = Bed.up(hosts, folder=folder, gpus=gpus, pods=pods, server=server, shaped=shaped)
    for note in bed.notes:
        print(f"note: {note}")
    _show(bed)
    flag = "" if folder is None else f" --folder {bed.folder}"
    print(f"inventory: {bed.hosts_file}")
    print(f"log in:    ssh -F {bed.folder / 'ssh_config'} {bed.plan.slots[0].name} COMMAND")
    print(f"end it:    labkit bed down{flag}")


@app.command()
def down(
    folder: Folder = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Stop all beds of this user, including those of killed notebooks."),
    ] = False,
) -> None:
    """Stop the testbed's servers and all their processes, and remove its files."""
    from labkit.testbed.laptop import down as end
    from labkit.testbed.laptop.bed import beds, end_bed

    if not everything:
        print("the laptop testbed is down" if end(folder) else "there is no laptop testbed")
        if folder is None and (others := beds()):
            _list(others, "still up:")
        return
    for all_beds in beds():
        end_bed(all_beds)
        print(f"the laptop testbed in {all_beds.folder} is down")
    if end():  # a bed without servers
        print("the laptop testbed is down")


@app.command("list")
def list_() -> None:
    """List all laptop testbeds of this user with running servers, in any folder."""
    from labkit.testbed.laptop.bed import beds

    if not (all_beds := beds()):
        print("no laptop testbed is up")
    else:
        _list(all_beds, "")


def _list(beds: list[FoundBed], heading: str) -> None:
    """Print beds, each with the command that ends it."""
    out = sys.stderr if heading else sys.stdout
    if heading:
        print(heading, file=out)
    for bed in beds:
        flag = "" if bed.is_default else f" --folder {bed.folder}" if bed.whole else " --all"
        gone = "" if bed.whole else ", its files are gone"
        print(f"  {bed.folder}: {', '.join(bed.hosts)}{gone}; end it: labkit bed down{flag}", file=out)


@app.command()
def status(folder: Folder = None) -> None:
    """Show the testbed's hosts. Exit code 1 if a server is gone."""
    from labkit.testbed.laptop import Bed

    bed = Bed.of(folder)
    _show(bed)
    if not all(host.alive for host in bed.status()):
        raise typer.Exit(1)


def _show(bed: Bed) -> None:
    links = "" if bed.plan.shaped_gbps is None else f" with links of {bed.plan.shaped_gbps:g} Gbps"
    print(f"{bed.plan.server} on {len(bed.plan.slots)} hosts{links}, in {bed.folder}")
    for host in bed.status():
        state = f"process {host.pid}" if host.alive else "GONE: labkit bed up starts it again"
        print(f"  {host.name:<4} {host.address}:{host.port:<6} {state}")
