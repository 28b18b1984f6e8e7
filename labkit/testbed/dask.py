"""A Dask cluster on the hosts of an inventory, for sweeps: only holders of its certificates can connect."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from labkit.elastic.transport.certificates import Authority, Certificates, private_folder
from labkit.testbed.dask_host import HostPlan
from labkit.testbed.errors import FleetError
from labkit.testbed.install import install, python_of
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.outcomes import Answers, readable

JOB: Final = "dask"
THERE: Final = "dask"
"""Folder of the cluster, below labkit's folder on a host."""
PROGRAM: Final = "labkit.testbed.dask_host"
START_S: Final = 120.0
REFUSED: Final = "the Dask cluster could not be started"
IDLE_S: Final = 4 * 3600.0
ADDRESS: Final = re.compile(r"tls://[\w.:\[\]-]{1,300}:\d{1,5}")
STOP: Final = '[ ! -x "$1" ] || exec "$1" -m "$2" stop "$3"'
"""A host without labkit has no cluster to stop."""


def up(
    inventory: Inventory,
    *,
    folder: str | Path | None = None,
    workers: int | None = None,
    idle_s: float = IDLE_S,
    fleet: Fleet | None = None,
) -> str:
    """Start a scheduler on the first host and workers on all, and return the scheduler's address.

    All processes listen on the addresses of the inventory, use TLS, and refuse clients without a certificate of an
    authority made for this cluster, whose key never leaves this process's memory. Raise FleetError if a host cannot,
    then those that could have ended again; or if a host has a cluster already, which goes on.

    Parameters
    ----------
    inventory : Inventory
        The hosts; labkit is deployed to them, as by `fab install`.
    folder : path, optional
        Where the address and the caller's own certificate go, for `labkit sweep --dask FOLDER`; by default the folder
        `dask` beside the inventory.
    workers : int, optional
        Worker processes of each host, of one thread each; by default as many as its cores.
    idle_s : float
        The cluster ends by itself after so long without work.
    """
    here = _folder(inventory, folder)
    with _open(inventory, fleet) as hosts:
        if failed := install(hosts).failed:
            raise FleetError(f"{REFUSED}: " + "; ".join(f"{row.host}: {row.did}" for row in failed))
        _all_ok(hosts.run(lambda machine: _words(machine, "free"), timeout_s=START_S))
        authority = Authority(JOB)
        private_folder(here)
        authority.issue("client", folder=here)
        try:
            return _start(hosts, authority, here, workers=workers, idle_s=idle_s)
        except BaseException:
            down(inventory, folder=here, fleet=hosts)
            raise


def down(inventory: Inventory, *, folder: str | Path | None = None, fleet: Fleet | None = None) -> Answers:
    """End the cluster's processes on all hosts, and remove its keys there and here; none of it need exist."""
    here = _folder(inventory, folder)
    with _open(inventory, fleet) as hosts:
        answers = hosts.run(
            lambda machine: ["/bin/sh", "-c", STOP, "sh", python_of(machine), PROGRAM, machine.path(THERE)]
        )
    if answers.ok:
        for name in ("address", *(path.name for path in _files(Certificates.of("client", job=JOB, folder=here)))):
            (here / name).unlink(missing_ok=True)
        if here.is_dir() and not any(here.iterdir()):
            here.rmdir()
    return answers


def _start(fleet: Fleet, authority: Authority, here: Path, *, workers: int | None, idle_s: float) -> str:
    first, *others = fleet.inventory
    address = _begin(fleet, authority, [first], workers=workers, idle_s=idle_s)[first.name].stdout.strip()
    if not ADDRESS.fullmatch(address):
        raise FleetError(f"{REFUSED}: {first.name} has no address: {readable(address)[:80]}")
    if others:
        _begin(fleet, authority, others, workers=workers, idle_s=idle_s, scheduler=address)
    (here / "address").write_text(address + "\n", "utf-8")
    return address


def _begin(
    fleet: Fleet, authority: Authority, machines: Iterable[Machine], *, workers: int | None, idle_s: float,
    scheduler: str = "",
) -> Answers:  # fmt: skip
    """Send each machine its plan and its key, and start its processes."""
    names = [machine.name for machine in machines]
    _all_ok(fleet.run(lambda machine: ["mkdir", "-p", "-m", "700", machine.folder, machine.path(THERE)], only=names))
    for name in names:
        machine = fleet.inventory[name]
        plan = HostPlan(
            name=name, address=machine.address, scheduler=scheduler, workers=workers, idle_s=idle_s,
            files=_issued(authority),
        )  # fmt: skip
        _all_ok(fleet.put(plan.to_json(), machine.path(THERE, "plan.json"), mode=0o600, only=[name]))
    return _all_ok(fleet.run(lambda machine: _words(machine, "start"), timeout_s=START_S, only=names))


def _words(machine: Machine, do: str) -> list[str]:
    return [python_of(machine), "-m", PROGRAM, do, machine.path(THERE)]


def _all_ok(answers: Answers) -> Answers:
    if not answers.ok:
        why = "; ".join(f"{row.host}: {row.why}" for row in answers.failed)
        raise FleetError(f"{REFUSED}: {why}")
    return answers


def _issued(authority: Authority) -> dict[str, str]:
    """Return the files of one host: authority, certificate and key, as text."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="labkit-") as scratch:
        certificates = authority.issue("host", folder=Path(scratch))
        return {path.name: path.read_text("utf-8") for path in _files(certificates)}


def _files(certificates: Certificates) -> tuple[Path, Path, Path]:
    return certificates.authority, certificates.certificate, certificates.key


def _folder(inventory: Inventory, folder: str | Path | None) -> Path:
    return Path(folder) if folder is not None else inventory.path.parent / THERE


def _open(inventory: Inventory, fleet: Fleet | None) -> AbstractContextManager[Fleet]:
    """Return the fleet of the caller, which stays open, or a new one, which is closed."""
    return Fleet(inventory) if fleet is None else nullcontext(fleet)
