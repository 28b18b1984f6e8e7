"""Tasks for the hosts of a testbed: `fab --list` names them, `fab --help TASK` tells the options of one.

Each reads the inventory (--inventory), takes -H a,b as a filter, works on all hosts at once, and calls one function of
labkit.testbed, as a notebook would.
"""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.context import Context

from labkit.core.errors import InputError
from labkit.testbed.fab import fleet, inventory_of, refuse_former, task
from labkit.testbed.terminal import agreed, key_outcomes, line_printer, show, show_examined

refuse_former(sys.argv)

WHERE = {"inventory": "File that describes the hosts; else testbed/hosts.toml, else the laptop testbed that is up."}


@task(
    help={
        **WHERE,
        "hosts": "How many, of a laptop testbed; else as many as it has, 4 for a new one.",
        "gpus": "That each host of a laptop testbed says it has; else as many as it says, 1 in a new one.",
        "shaped": "Rate of each link of a laptop testbed, such as 200mbit.",
    }
)
def up(c: Context, inventory: str = "", hosts: int = 0, gpus: int = 0, shaped: str = "") -> bool:
    """Start a laptop testbed, or the agents of real hosts."""
    from labkit.testbed.upkeep import default_inventory, up

    found = inventory_of(c, inventory) if inventory or default_inventory() else None
    return show(up(found, n_hosts=hosts or None, gpus=gpus or None, shaped=shaped or None))


@task(help={**WHERE, "end-runs": "End what runs on real hosts too; a laptop testbed ends with all that runs on it."})
def down(c: Context, inventory: str = "", end_runs: bool = False) -> bool:
    """End the laptop testbed, or the agents of real hosts."""
    from labkit.testbed.upkeep import down

    return show(down(inventory_of(c, inventory), runs=end_runs))


@task(help={**WHERE, "torch": "Import torch on the hosts too, which takes seconds."})
def doctor(c: Context, inventory: str = "", torch: bool = True) -> bool:
    """Check every host, and give a hint per fault."""
    from labkit.testbed.doctor import examine

    with fleet(c, inventory) as hosts:
        return show_examined(examine(hosts, torch=torch))


@task(help={**WHERE, "yes": "Do not ask: the fingerprints were compared elsewhere."})
def trust(c: Context, inventory: str = "", yes: bool = False) -> bool:
    """Show keys of hosts that are not known, and add them."""
    from labkit.testbed.ssh.connect import trust

    return show(key_outcomes(trust(inventory_of(c, inventory), agree=agreed(yes=yes))))


@task(
    help={
        **WHERE,
        "wheelhouse": "Folder of wheels for hosts that reach no index.",
        "index": "Address of an index for pip on the hosts, besides that of their pip.conf.",
        "requirements": "Only print what such a folder must hold, for `pip download -r`.",
    }
)
def install(c: Context, inventory: str = "", wheelhouse: str = "", index: str = "", requirements: bool = False) -> bool:
    """Bring labkit to the hosts; only what changed travels."""
    from labkit.testbed import install as provision

    if requirements:
        print("\n".join(provision.requirements()))
        return True
    with fleet(c, inventory) as hosts:
        return show(
            provision.install(
                hosts, wheelhouse=wheelhouse or None, index=index, stream=line_printer(hosts.inventory.names)
            )
        )


@task(
    help={
        "inventory": "The file to write.",
        "job": "Id of the allocation; else the one that this shell is in.",
    }
)
def from_slurm(c: Context, inventory: str = "testbed/hosts.toml", job: str = "") -> None:  # noqa: ARG001 - of every task
    """Write the nodes of a Slurm allocation as an inventory."""
    from labkit.testbed.inventory import write_inventory

    nodes = write_inventory(inventory, job=job)
    for node in nodes:
        gpus = f"{node.gpus} GPUs ({node.device_type})" if node.gpus else "no GPUs"
        print(f"{node.name}: {gpus}, {node.cpus} cores, {node.memory_gb:.4g} GB, at {node.address}")
    print(f"inventory: {Path(inventory).absolute()}")


@task(help=WHERE)
def start(c: Context, inventory: str = "") -> bool:
    """Start an agent on every host that has none."""
    from labkit.testbed.run.agents import start

    with fleet(c, inventory) as hosts:
        return show(start(hosts))


@task(help={**WHERE, "end-runs": "End all runs too.", "run": "End this run alone; agents stay."})
def stop(c: Context, inventory: str = "", end_runs: bool = False, run: str = "") -> bool:
    """End agents of hosts where nothing runs; or runs."""
    from labkit.testbed.run.agents import stop

    with fleet(c, inventory) as hosts:
        return show(stop(hosts, runs=run or end_runs))


@task(help=WHERE)
def status(c: Context, inventory: str = "") -> bool:
    """Show what runs on every host, and what it uses."""
    from labkit.testbed.run.agents import status

    with fleet(c, inventory) as hosts:
        return show(status(hosts))


@task(
    help={
        **WHERE,
        "follow": "Go on until the tasks have ended.",
        "host": "Only of these hosts, as -H.",
        "lines": "Last lines of each task to begin with.",
        "run": "Of this run; else the latest of each host.",
        "task": "Of this task alone.",
    }
)
def logs(
    c: Context,
    inventory: str = "",
    follow: bool = False,
    host: str = "",
    lines: int = 20,
    run: str = "",
    task: str = "",
) -> bool:
    """Show what the tasks of a run say."""
    from labkit.testbed.run.host_files import logs

    with fleet(c, inventory, host) as hosts:
        told = line_printer(hosts.inventory.names)
        return show(logs(hosts, on_line=told, run=run, task=task, lines=lines, follow=follow))


@task(
    help={
        **WHERE,
        "trace": "The jobs: a trace in any format that `labkit traces info` reads.",
        "scheduler": "A name that `labkit schedulers` lists, with options in brackets.",
        "runs": "Folder in which each run gets a folder of its own.",
        "profile": "Of this testbed, from `fab profile`: speeds for the scheduler.",
    }
)
def deploy(
    c: Context,
    trace: str = "",
    inventory: str = "",
    scheduler: str = "optimus",
    runs: str = "runs",
    profile: str = "",
) -> bool:
    """Train the jobs of a trace, under a scheduler."""
    from labkit.cli.attach import tell, tell_watch
    from labkit.experiment.deployed import deploy

    if not trace:
        raise InputError("no trace is given; expected --trace FILE. To bring labkit to the hosts: fab install.")
    record = deploy(
        trace,
        inventory=inventory_of(c, inventory),
        scheduler=scheduler,
        runs=runs,
        profile=profile or None,
        progress=True,
        begun=tell_watch,
    )
    tell(record, runs=Path(runs), as_json=False)
    return not record.summary["n_unfinished"]


@task(
    help={
        **WHERE,
        "trace": "Its models are measured, up to their largest gangs.",
        "models": "Instead: some by name, as dssm,wlm, up to 2 PSs and 2 workers.",
        "out": "The file; else profiles/NAME.json, by the name of the testbed.",
    }
)
def profile(c: Context, trace: str = "", models: str = "", inventory: str = "", out: str = "") -> bool:
    """Measure what a simulation of the testbed needs."""
    from labkit.testbed.profiling.measure import measured_kinds, profile, show

    kinds = measured_kinds(trace or None, models, max_ps=2, max_workers=2, sync=True)
    made, there = profile(inventory_of(c, inventory), kinds, out=Path(out) if out else None)
    show(made, there)
    return not any(cell.failed for cell in made.cells)


@task(
    help={
        **WHERE,
        "run": "Its name; else the latest.",
        "runs": "The folder where runs are kept here: what comes goes to RUNS/RUN/hosts.",
        "most-gb": "A host that has more to send is refused.",
    }
)
def fetch(c: Context, run: str = "", inventory: str = "", runs: str = "runs", most_gb: float = 16.0) -> bool:
    """Bring back what a run left on the hosts."""
    from labkit.testbed.run.host_files import fetch

    with fleet(c, inventory) as hosts:
        return show(fetch(hosts, run, runs=runs, most_gb=most_gb))


@task(help={**WHERE, "rate": "To set, in either direction: Gbps, or as 200mbit; without it, rates are shown."})
def shape(c: Context, inventory: str = "", rate: str = "") -> bool:
    """Show or set link rates of a shaped laptop testbed."""
    from labkit.testbed.upkeep import shape

    return show(shape(inventory_of(c, inventory), rate=rate or None))


@task(help={**WHERE, "seconds": "For each pair of hosts."})
def bench(c: Context, inventory: str = "", seconds: float = 1.0) -> bool:
    """Measure the link between each two hosts."""
    from labkit.testbed.profiling.measure import measure_links
    from labkit.testbed.terminal import show_frame

    with fleet(c, inventory) as hosts:
        measured = measure_links(hosts, seconds=seconds)
    show_frame(measured)
    return not measured["error"].any()


@task(help={**WHERE, "dry-run": "Only say what would go.", "older": "Hours since a run was over."})
def gc(c: Context, inventory: str = "", dry_run: bool = False, older: float = 24.0) -> bool:
    """Remove old runs and labkits from the hosts."""
    from labkit.testbed.upkeep import gc

    with fleet(c, inventory) as hosts:
        return show(gc(hosts, older_h=older, dry_run=dry_run))


@task(help={**WHERE, "workers": "Processes per host; else one per core.", "folder": "For the address and our own key."})
def dask_up(c: Context, inventory: str = "", workers: int = 0, folder: str = "") -> bool:
    """Start a Dask cluster on the hosts, for `labkit sweep`."""
    from labkit.testbed import dask

    with fleet(c, inventory) as hosts:
        print(dask.up(hosts.inventory, folder=folder or None, workers=workers or None, fleet=hosts))
    return True


@task(help={**WHERE, "folder": "As for dask-up."})
def dask_down(c: Context, inventory: str = "", folder: str = "") -> bool:
    """End the Dask cluster of the hosts."""
    from labkit.testbed import dask
    from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes

    with fleet(c, inventory) as hosts:
        rows = dask.down(hosts.inventory, folder=folder or None, fleet=hosts)
    return show(Outcomes.of(HostOutcome(row.host, row.ok, row.why or "its Dask processes are gone") for row in rows))
