"""Start and end a testbed, shape its links, and remove unused files."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.core.errors import InputError
from labkit.testbed import install as provision
from labkit.testbed.agent.client import Agent
from labkit.testbed.inventory import Inventory, Machine, default_path
from labkit.testbed.laptop import Bed
from labkit.testbed.laptop.networks import rates, reshape
from labkit.testbed.laptop.plan import BedPlan
from labkit.testbed.run import agents
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes

USUAL_HOSTS = 4
USUAL_GPUS = 1
"""Default of a laptop testbed: not real, but jobs request one."""


def up(
    inventory: Inventory | None = None,
    *,
    n_hosts: int | None = None,
    gpus: int | None = None,
    shaped: str | None = None,
) -> Outcomes:
    """Start a laptop testbed, or the agents of other hosts.

    Parameters
    ----------
    inventory : Inventory, optional
        The hosts; None: the laptop testbed in its default folder. Running servers are kept.
    n_hosts : int, optional
        Hosts of a laptop testbed; by default as many as it has, 4 for a new one.
    gpus : int, optional
        GPUs per host of a laptop testbed in its inventory; by default unchanged, 1 for a new one.
    shaped : str, optional
        Rate of the links of a laptop testbed, such as "200mbit"; by default unchanged, without limits for a new one.
    """
    if inventory is not None and not is_laptop(inventory):
        with Fleet(inventory) as fleet:
            return agents.start(fleet)
    folder = None if inventory is None else inventory.path.parent
    there = None if inventory is None else BedPlan.read(inventory.path.absolute().parent)
    n_hosts = n_hosts or (len(there.slots) if there else USUAL_HOSTS)
    if gpus is None:
        gpus = USUAL_GPUS if inventory is None else int(next(iter(inventory)).host.gpus)
    bed = Bed.up(n_hosts, folder=folder, gpus=gpus, shaped=shaped or (there.shaped_gbps if there else None))
    rows = [HostOutcome(each.name, True, f"{bed.plan.server} at {each.address}:{each.port}") for each in bed.status()]
    return Outcomes.of(rows)


def down(inventory: Inventory, *, runs: bool = False) -> Outcomes:
    """End a laptop testbed with all that runs on it, or the agents of other hosts.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    runs : bool
        End tasks on other hosts as well; otherwise agents with running tasks stay.
    """
    if not is_laptop(inventory):
        with Fleet(inventory) as fleet:
            return agents.stop(fleet, runs=runs)
    whole = Inventory.read(inventory.path)
    if len(inventory) < len(whole):
        raise InputError(
            f"a laptop testbed ends as a whole, not {', '.join(inventory.names)} alone; leave out -H, or: fab stop."
        )
    Bed.of(inventory.path.absolute().parent).down()
    return Outcomes.of(HostOutcome(name, True, "down, its files removed") for name in inventory.names)


def shape(inventory: Inventory, *, rate: str | float | None = None) -> Outcomes:
    """Return the rates of the links of a shaped laptop testbed, or set them.

    Parameters
    ----------
    inventory : Inventory
        The hosts: all of a laptop testbed, or some.
    rate : str or float, optional
        Gbps, or as "200mbit"; by default nothing is changed.

    Raises
    ------
    InputError
        If it is no laptop testbed, or its links have no limits.
    """
    if not is_laptop(inventory):
        raise InputError(f"{inventory.path} is not of a laptop testbed; links of real machines are not touched.")
    bed = Bed.of(inventory.path.absolute().parent)
    if rate is not None:
        reshape(bed.folder, rate, hosts=inventory.names)
    found = rates(bed.folder)
    return Outcomes.of(HostOutcome(name, True, found[name]) for name in inventory.names)


def default_inventory() -> Inventory | None:
    """Return the default inventory; None if there is none."""
    try:
        path = default_path()
    except InputError:
        return None
    return Inventory.read(path)


def is_laptop(inventory: Inventory) -> bool:
    """Return whether an inventory is that of a laptop testbed."""
    place = inventory.path.absolute().parent
    plan = BedPlan.read(place)
    return plan is not None and plan.hosts_file.absolute() == inventory.path.absolute()


def gc(fleet: Fleet, *, older_h: float = 24.0, dry_run: bool = False) -> Outcomes:
    """Remove unused files from hosts: folders of runs that are over, and results of earlier installs.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    older_h : float
        Hours since a run was over.
    dry_run : bool
        Only report what would be removed.

    Returns
    -------
    Outcomes
        One row per host, with `runs`, `environments` and `bytes` that went.
    """

    def clear(machine: Machine, agent: Agent) -> HostOutcome:
        rows = agent.gc(older_s=3600 * older_h, dry_run=dry_run)
        went = [row for row in rows if (row.remove if dry_run else row.removed)]
        did = f"{'would remove' if dry_run else 'removed'} {len(went)} runs" if went else "no run to remove"
        numbers = {"runs": len(went), "bytes": sum(row.n_bytes for row in went)}
        return HostOutcome(machine.name, True, did, numbers=numbers)

    return joined(agents.each(fleet, clear, renew=False, needed=False), provision.sweep(fleet, dry_run=dry_run))


def joined(*parts: Outcomes) -> Outcomes:
    """Return outcomes of several actions, a row per host; the first failure of a host is its outcome."""
    return Outcomes.of(_joined([part[host] for part in parts]) for host in (row.host for row in parts[0]))


def _joined(rows: Sequence[HostOutcome]) -> HostOutcome:
    failed = next((row for row in rows if not row.ok), None)
    if failed is not None:
        return failed
    numbers: dict[str, float] = {}
    for row in rows:
        numbers |= {name: numbers.get(name, 0.0) + value for name, value in row.numbers.items()}
    return HostOutcome(rows[0].host, True, "; ".join(row.did for row in rows), numbers=numbers)
