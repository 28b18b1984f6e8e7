"""A Dask cluster on the laptop testbed: it runs sweeps, refuses other clients, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import distributed
import psutil
import pytest

from labkit.core.errors import InputError
from labkit.elastic.transport.certificates import Authority
from labkit.experiment import sweep
from labkit.experiment.on_dask import connect
from labkit.testbed import dask
from labkit.testbed.dask_host import HostPlan
from labkit.testbed.errors import FleetError
from labkit.testbed.inventory import Inventory
from tests.experiment.sweeping import numbers, small
from tests.hang import HANG_S


def processes_of(hosts: Inventory) -> list[psutil.Process]:
    """Return all processes of the sessions that the cluster's leaders began, as their own files tell."""
    leaders = [json.loads(path.read_text())["pid"] for path in leader_files(hosts)]
    return [each for each in psutil.process_iter() if session_of(each.pid) in leaders]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def leader_files(hosts: Inventory) -> list[Path]:
    homes = [hosts.path.parent / "hosts" / machine.name for machine in hosts]
    found = [home / ".labkit" / "dask" / "leader.json" for home in homes]
    return [path for path in found if path.exists()]


@pytest.fixture(scope="module")
def two(bed: Inventory) -> Inventory:
    return bed.only(["h0", "h1"])


@pytest.fixture(scope="module")
def here(two, short_folder) -> Iterator[Path]:
    """The folder of a cluster of two hosts with a worker each, which is gone afterwards."""
    folder = short_folder / "dask"
    dask.up(two, folder=folder, workers=1)
    there = processes_of(two)
    assert len(there) >= 4  # a leader and a worker on each host
    yield folder
    dask.down(two, folder=folder).checked()
    assert psutil.wait_procs(there, timeout=HANG_S)[1] == []
    assert leader_files(two) == []
    assert not folder.exists()


def test_a_sweep_on_the_hosts_gives_the_numbers_of_this_machine(here, two):
    grid = small(seeds=2)
    with connect(str(here)) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert {worker["name"] for worker in workers.values()} == {"h0-0", "h1-0"}
        assert {worker["host"] for worker in workers.values()} == {machine.address for machine in two}
        table = sweep(grid, client=client, progress=False)
    assert numbers(table).equals(numbers(sweep(grid, workers=0, progress=False)))


def test_a_client_without_a_certificate_of_this_cluster_is_refused(here, tmp_path):
    address = (here / "address").read_text().strip()
    assert address.startswith("tls://127.")
    with pytest.raises((OSError, TypeError)):
        distributed.Client(address.replace("tls://", "tcp://"), timeout=2)
    other = Authority("dask").issue("client", folder=tmp_path / "other")
    stranger = distributed.Security(
        require_encryption=True, tls_ca_file=str(here / "authority.pem"), tls_client_cert=str(other.certificate),
        tls_client_key=str(other.key),
    )  # fmt: skip
    with pytest.raises(OSError, match=r"(?i)timed out|ssl|tls|certificate"):
        distributed.Client(address, security=stranger, timeout=2)


def test_all_of_it_listens_on_the_addresses_of_the_inventory_or_within_the_host(here, two):
    addresses = {machine.address for machine in two}
    listening = [
        (each.pid, connection.laddr)
        for each in processes_of(two)
        for connection in each.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for _, address in listening} <= addresses | {"127.0.0.1"}
    assert addresses <= {address.ip for _, address in listening}


def test_keys_are_private_and_in_no_command_line(here, two):
    files = [*here.iterdir(), *(path for file in leader_files(two) for path in file.parent.iterdir())]
    keys = [path for path in files if path.suffix == ".key" or path.name == "plan.json"]
    assert len(keys) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert not [each for each in processes_of(two) if "PRIVATE KEY" in " ".join(each.cmdline())]


def test_a_second_cluster_on_the_same_hosts_is_refused_and_the_first_goes_on(here, two, tmp_path):
    with pytest.raises(FleetError, match=r"h0: .*has processes in .*; h1: .*has processes in .*fab dask-down"):
        dask.up(two, folder=tmp_path / "d", workers=1)
    with connect(str(here)) as client:
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2


def test_a_host_that_cannot_is_named_and_the_others_end_again(bed, tmp_path):
    third = bed["h3"]
    hosts = replace(bed, machines=(bed["h2"], replace(third, python="/nowhere/python")))
    with pytest.raises(FleetError, match=r"could not be started: h3: .*/nowhere/python"):
        dask.up(hosts, folder=tmp_path / "d", workers=1)
    assert processes_of(bed.only(["h2", "h3"])) == []


def test_workers_end_when_their_scheduler_is_gone(bed, tmp_path):
    hosts = bed.only(["h2", "h3"])
    dask.up(hosts, folder=tmp_path / "d", workers=1)
    there = processes_of(hosts)
    assert len(there) >= 4
    try:
        scheduler, _ = sorted(leader_files(hosts))
        leader = json.loads(scheduler.read_text())["pid"]
        first = [each for each in there if session_of(each.pid) == leader]
        os.kill(leader, signal.SIGKILL)
        assert psutil.wait_procs(there, timeout=HANG_S)[1] == [], first
    finally:
        dask.down(hosts, folder=tmp_path / "d").checked()


def test_hosts_whose_python_has_no_labkit_run_the_deployed_one(bed, short_folder, tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$*" in *"-m labkit"*) echo "No module named 'labkit'" >&2; exit 1 ;; esac
exec '{sys.executable}' "$@"
"""
    )
    python.chmod(0o755)
    hosts = replace(bed, machines=(replace(bed["h2"], python=str(python), folder="~/bare"),))
    address = dask.up(hosts, folder=short_folder / "bare", workers=1)
    try:
        with connect(str(short_folder / "bare")) as client:
            assert client.submit(lambda: __import__("labkit").__file__).result(timeout=HANG_S).rpartition("/env/")[1]
        assert address.startswith("tls://")
    finally:
        dask.down(hosts, folder=short_folder / "bare").checked()
    assert dask.down(replace(hosts, machines=(replace(hosts["h2"], folder="~/nothing"),)), folder=tmp_path / "x").ok


def test_a_plan_of_another_form_is_refused_by_its_field_and_shows_no_key(tmp_path: Path) -> None:
    plan = HostPlan(name="h0", address="127.0.0.1", idle_s=1.0, files={"host.key": "secret"})
    assert "secret" not in repr(plan)
    for name, value, why in (
        ("workers", "many", "workers: Input should be a valid integer"),
        ("files", {"../x": "secret"}, "no name of a file"),
    ):
        (tmp_path / "plan.json").write_text(json.dumps({**json.loads(plan.to_json()), name: value}), "utf-8")
        with pytest.raises(InputError, match=why) as refused:
            HostPlan.read(tmp_path)
        assert "secret" not in str(refused.value)
    (tmp_path / "plan.json").write_bytes(plan.to_json())
    assert HostPlan.read(tmp_path) == plan
