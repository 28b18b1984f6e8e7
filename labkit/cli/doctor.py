"""`labkit doctor`: what is missing on this machine, or on the hosts of a testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.attach import Inventory


def doctor(
    testbed: Annotated[bool, typer.Option("--testbed", help="Check the hosts of a testbed instead.")] = False,
    inventory: Inventory = None,
    torch: Annotated[bool, typer.Option(help="On hosts: import torch, too. Takes seconds.")] = True,
) -> None:
    """Check this machine, or the hosts of a testbed, for missing software."""
    if testbed or inventory is not None:
        raise typer.Exit(0 if _hosts_can_run(inventory, torch=torch) else 1)
    from labkit.system import doctor as checkup

    raise typer.Exit(checkup.main())


def _hosts_can_run(inventory: Path | None, *, torch: bool) -> bool:
    """Show what was found on the hosts of an inventory; return whether jobs can run on all of them."""
    from labkit.testbed.doctor import examine
    from labkit.testbed.inventory import Inventory as Hosts
    from labkit.testbed.ssh.fleet import Fleet
    from labkit.testbed.terminal import show_examined

    with Fleet(Hosts.read(inventory)) as fleet:
        return show_examined(examine(fleet, torch=torch))
