"""fab doctor: what it finds on real hosts, how bad that is, and what to do about it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.testbed.doctor import (
    DoctorReport,
    Finding,
    HostExpectation,
    Severity,
    check_clock,
    check_facts,
    check_ports,
    check_torch,
    examine,
    expectation_of,
    probe_hosts,
)
from labkit.testbed.install import install
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.profiling.measure import measure_links
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.host_messages import ConnectResult, Deployed, HostFacts, Torch
from labkit.topology.inventory import Host
from tests.hang import HANG_S
from tests.testbed.fabbing import ROOT, elsewhere, environment, hosts_file

WANTED = HostExpectation("a", "python3", "~/.labkit", gpus=2, cpus=8, memory_gb=64, hash="0123456789abcdef")
FACTS = HostFacts(
    python="3.12.1", cores=8, memory_gb=62.8, free_gb=100.0, folder="/h/.labkit", writable=True, mode=0o700,
    deployed=Deployed(hash="0123456789abcdef", python="x"), agent="alive", gpus=["V100, 16 GiB, 1"] * 2,
)  # fmt: skip


def found(examined: DoctorReport, host: str, check: str) -> Finding:
    (finding,) = [each for each in examined.findings if (each.host, each.check) == (host, check)]
    return finding


def judged(check: str, **facts) -> Finding:
    (finding,) = [each for each in check_facts(WANTED, replace(FACTS, **facts)) if each.check == check]
    return finding


def test_a_host_that_is_as_the_inventory_says_has_no_fault():
    assert {finding.state for finding in check_facts(WANTED, FACTS)} == {Severity.OK}


@pytest.mark.parametrize(
    ("check", "facts", "state", "said"),
    [
        ("python", {"python": "3.10.2"}, Severity.FAULT, "python3.11"),
        ("folder", {"writable": False}, Severity.FAULT, "may write"),
        ("folder", {"mode": 0o755}, Severity.FAULT, "chmod 700 /h/.labkit"),
        ("disk", {"free_gb": 0.1}, Severity.FAULT, "fab gc"),
        ("disk", {"free_gb": 2.0}, Severity.NOTE, "fab gc"),
        ("labkit", {"deployed": Deployed(hash="", python="")}, Severity.NOTE, "fab install"),
        ("labkit", {"deployed": Deployed(hash="fedc", python="x")}, Severity.NOTE, "fab install"),
        ("GPUs", {"gpus": ["V100, 16 GiB, 1"]}, Severity.FAULT, "the inventory says 2"),
        ("GPUs", {"gpus": ["V100, 16 GiB, 1"] * 4}, Severity.NOTE, "left alone"),
        ("cores", {"cores": 4}, Severity.NOTE, "the inventory says 8"),
        ("memory", {"memory_gb": 30.0}, Severity.NOTE, "64 GB"),
        ("agent", {"agent": "dead"}, Severity.NOTE, "fab start"),
    ],
)
def test_what_is_not_as_it_should_be_has_a_hint(check, facts, state, said):
    finding = judged(check, **facts)
    assert finding.state == state
    assert said in finding.hint


@pytest.mark.parametrize(
    ("kind", "gpus", "state", "told"),
    [
        ("cpu", [], Severity.OK, "2 in the inventory only"),
        ("none", [], Severity.OK, "2 in the inventory only"),
        ("Laptop", [], Severity.OK, "2 in the inventory only"),
        ("cpu", ["V100, 16 GiB, 1"], Severity.OK, '1 real ones left alone: device_type = "cpu"'),
        ("gpu", [], Severity.FAULT, "the inventory says 2"),
        ("v100", ["Tesla V100-SXM2-16GB, 16 GiB, 1"] * 2, Severity.OK, "2 Tesla V100-SXM2-16GB"),
        ("t4", ["Tesla V100-SXM2-16GB, 16 GiB, 1"] * 2, Severity.NOTE, "the inventory calls them t4"),
    ],
)
def test_what_the_inventory_calls_gpus_decides_whether_they_must_be_there(kind, gpus, state, told):
    host = Host(name="a", gpus=2, cpus=8, memory_gb=64, device_type=kind)
    machine = Machine("a", "127.0.0.1", 22, "u", None, "python3", "~/.labkit", host)
    (finding,) = [
        each
        for each in check_facts(expectation_of(machine, WANTED.hash), replace(FACTS, gpus=gpus))
        if each.check == "GPUs"
    ]
    assert finding.state == state
    assert told in finding.found + finding.hint
    assert check_torch(expectation_of(machine, ""), Torch(version="2", gpus=0, error=""), deployed=True).state == (
        Severity.FAULT if kind in ("gpu", "v100", "t4") else Severity.OK
    )


def test_a_clock_is_judged_by_what_is_certain():
    assert check_clock(WANTED, offset_s=0.3, bound_s=0.25).state == Severity.OK
    assert check_clock(WANTED, offset_s=-0.3, bound_s=0.1).state == Severity.NOTE
    assert check_clock(WANTED, offset_s=7200, bound_s=0.1).state == Severity.FAULT


def test_a_firewall_between_two_hosts_is_a_fault_of_both_names():
    finding = check_ports(WANTED, "10.0.0.1", {"b": ConnectResult(0.001), "c": ConnectResult(error="timed out")})
    assert finding.state == Severity.FAULT
    assert "c (timed out)" in finding.found
    assert "b" not in finding.found.split("reach ")[1]


def test_torch_that_sees_too_few_gpus_is_a_fault_where_they_are_real():
    said = Torch(version="2.13", gpus=0, error="")
    assert check_torch(WANTED, said, deployed=True).state == Severity.FAULT
    assert check_torch(replace(WANTED, pretends=True), said, deployed=True).state == Severity.OK
    broken = Torch(version="", gpus=0, error="No module named 'torch'")
    assert check_torch(WANTED, broken, deployed=False).state == Severity.NOTE
    assert check_torch(WANTED, broken, deployed=True).state == Severity.FAULT


def test_the_laptop_testbed_is_well(fleet):
    install(fleet).checked()
    examined = examine(fleet, torch=False)
    assert examined.ok, examined.findings
    for host in ("h0", "h3"):
        assert found(examined, host, "labkit").found.endswith("as here")
        assert found(examined, host, "ports").found.startswith("3 of 3")
        assert found(examined, host, "GPUs").found == "1 in the inventory only"
        assert found(examined, host, "clock").state == Severity.OK
    assert len(examined.df()) == len(examined.findings)
    assert examined._repr_html_().count("<tr>") == len(examined.findings) + 1


def test_hosts_that_are_down_or_unknown_or_have_no_python_are_faults_and_the_others_are_examined(bed, tmp_path):
    machines = list(bed)
    machines[1] = replace(machines[1], port=1)
    machines[2] = replace(machines[2], python="/no/python")
    machines[3] = replace(machines[3], host=replace(machines[3].host, device_type="v100"))
    with Fleet(Inventory(bed.path, tuple(machines), bed.known_hosts)) as fleet:
        examined = examine(fleet, torch=False)
    assert examined.faulty == ["h1", "h2", "h3"]
    assert "cannot be reached" in found(examined, "h1", "reach").found
    assert "/no/python ended" in found(examined, "h2", "reach").found
    assert "inventory says 1" in found(examined, "h3", "GPUs").hint
    assert found(examined, "h0", "ports").found.startswith("1 of 1")
    with Fleet(replace(bed, known_hosts=tmp_path / "none")) as fleet:
        examined = examine(fleet, torch=False)
    assert len(examined.findings) == 4
    assert {finding.hint.endswith("fab trust") for finding in examined.findings} == {True}


def test_an_address_that_is_not_the_hosts_own_is_told(bed):
    with Fleet(bed.only("h0")) as fleet, probe_hosts(fleet) as hosts:
        port = hosts.probes["h0"].listen("192.0.2.1")
    assert "192.0.2.1" in (port.error or "")


def test_the_door_of_the_examination_says_nothing_to_strangers_and_closes_with_it(bed):
    with Fleet(bed.only("h0")) as fleet:
        with probe_hosts(fleet) as hosts:
            address = bed["h0"].address
            door = hosts.probes["h0"].listen(address)
            with socket.create_connection((address, door.port), timeout=HANG_S) as stranger:
                stranger.sendall(b"x" * 32)
                assert stranger.recv(100) == b""
            wrong = hosts.probes["h0"].dial({"it": (address, door.port, "y" * 32)})
            assert wrong["it"] == ConnectResult(error="another program answers there")
        assert fleet.run(["true"]).ok
    for _ in range(1000):
        with socket.socket() as sock:
            if sock.connect_ex((address, door.port)):
                break
        os.sched_yield()
    else:
        pytest.fail("the door is still open")


def test_links_are_measured_for_each_pair(bed):
    with Fleet(bed.only("h0,h1,h2")) as fleet:
        frame = measure_links(fleet, seconds=0.05)
    assert len(frame) == 6
    assert (frame["gbps"] > 0.01).all()
    assert (frame["error"] == "").all()


def test_an_agents_dead_socket_is_told_from_a_living_one(bed, short_folder):
    place = short_folder / "dead"
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place / "agent.sock"))
    with Fleet(elsewhere(bed.only("h0"), folder=str(place))) as fleet:
        assert found(examine(fleet, torch=False), "h0", "agent").state == Severity.NOTE


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labkit", "doctor", *words],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip


def test_the_command_line_ends_with_1_only_where_jobs_cannot_run(bed, tmp_path):
    done = doctor("--inventory", str(bed.path), "--no-torch")
    assert done.returncode == 0, done
    assert "Jobs can run on all 4 hosts." in done.stdout

    def break_one(content):
        content["hosts"][2]["ssh"]["port"] = 1

    broken = doctor("--inventory", str(hosts_file(tmp_path / "hosts.toml", bed, change=break_one)), "--no-torch")
    assert broken.returncode == 1, broken
    assert re.search(r"fault +h2 +reach: .*cannot be reached", broken.stdout)
    assert "Jobs cannot run on 1 of 4 hosts: h2." in broken.stdout


@pytest.mark.slow
def test_torch_is_imported_by_the_python_that_jobs_will_have(bed):
    with Fleet(bed.only("h0")) as fleet:
        install(fleet).checked()
        finding = found(examine(fleet), "h0", "torch")
    assert finding.state == Severity.OK
    assert re.match(r"\d+\.\d+", finding.found)


def test_a_hosts_file_is_left_as_it_is(bed, tmp_path):
    """The helper above writes what it read."""
    again = Inventory.read(hosts_file(tmp_path / "hosts.toml", bed))
    assert [machine.place for machine in again] == [machine.place for machine in bed]
    assert Path(again.known_hosts) == bed.known_hosts


def test_the_example_of_an_inventory_can_be_read_also_with_all_that_is_commented_out(tmp_path):
    text = (ROOT / "testbed" / "hosts.example.toml").read_text()
    every = re.sub(r"^# (\w+ = |\[)", r"\1", text, flags=re.MULTILINE).replace(
        "~/.ssh/known_hosts", str(tmp_path / "known")
    )
    for content in (text, every):
        path = tmp_path / "hosts.toml"
        path.write_text(content.replace("[ssh]", '[ssh]\nconfig = "none"') if content == text else content)
        inventory = Inventory.read(path)
        assert inventory["gpu-c"].python.endswith("python3.13")
        assert inventory["cpu-a"].address == "cpu-a"
        assert inventory["gpu-b"].user == "ada"
