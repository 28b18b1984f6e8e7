"""Inventories: hosts of a testbed from TOML, and every fault told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.topology import build, from_inventory

EXAMPLE = Path(__file__).parents[2] / "testbed" / "hosts.example.toml"

GOOD = """
[ssh]
user = "lab"

[[hosts]]
name = "alpha"
gpus = 3
cpus = 16
memory_gb = 64
device_type = "t4"
sockets = 2
link_gbps = 25

[[hosts]]
name = "beta"
gpus = 0
cpus = 4
memory_gb = 8
device_type = "none"
"""

BAD = """
colour = "red"

[[hosts]]
name = "alpha"
gpu = 3
gpus = -1
cpus = "many"
memory_gb = 64

[[hosts]]
name = "alpha"
gpus = 1
cpus = 4
link_gbps = 0
memory_gb = nan
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "lab.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_hosts_become_machines_on_one_switch(write):
    cluster = from_inventory(write(GOOD))
    assert (cluster.name, cluster.machines, cluster.device_types) == ("lab", ("alpha", "beta"), ("t4", "none"))
    assert cluster.capacity.tolist() == [[2, 8, 32], [1, 8, 32], [0, 4, 8]]
    assert cluster.network.link_gbps.tolist() == [25, 25, 10, 10]
    assert build(str(write(GOOD))).n_gpus == 3


def test_every_fault_is_told_with_its_key_and_what_was_expected(write):
    with pytest.raises(InputError) as error:
        from_inventory(write(BAD))
    for part in [
        "8 faults",
        "unknown table or key 'colour'; expected [[hosts]], [ssh], [groups], [partitions]",
        "host 1 (alpha): unknown key 'gpu'; did you mean 'gpus'?",
        "host 1 (alpha): gpus is -1; expected greater than or equal to 0",
        "host 1 (alpha): cpus is 'many'; expected a valid number",
        "host 2 (alpha): link_gbps is 0; expected greater than 0",
        "host 2: memory_gb is nan; expected a finite number",
        "host name 'alpha' occurs 2 times",
    ]:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no hosts"),
        ("hosts = 3", "it has no hosts"),
        ("hosts = [3]", "host 1: entry is 3; expected"),
        ("[[hosts]", "is not TOML"),
        (b"\x80\x00\xff", "is not TOML"),
        ("[[hosts]]\ngpus = 1\ncpus = 1\nmemory_gb = 1", "host 1: name is missing"),
    ],
)
def test_files_that_are_no_inventory_are_refused(write, text, message):
    with pytest.raises(InputError, match=message):
        from_inventory(write(text))


def test_hosts_name_their_pods_and_a_pod_without_hosts_is_told(write):
    host = '[[hosts]]\nname = "{}"\ngpus = 1\ncpus = 1\nmemory_gb = 1\n{}'
    in_pods = "\n".join(host.format(name, f"pod = {pod}") for name, pod in (("a", 1), ("b", 0), ("c", 1)))
    assert from_inventory(write(in_pods)).partition.tolist() == [1, 0, 1]
    assert from_inventory(write(host.format("a", ""))).partition.tolist() == [0]
    with pytest.raises(InputError, match="no host is in pod 1, and one is in pod 2; pods are numbered 0, 1"):
        from_inventory(write(in_pods.replace("pod = 1", "pod = 2")))
    with pytest.raises(InputError, match="pod is -1; expected greater than or equal to 0"):
        from_inventory(write(host.format("a", "pod = -1")))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        build(str(tmp_path / "none.toml"))


def test_the_example_that_ships_is_a_cluster():
    cluster = build(str(EXAMPLE))
    assert cluster.machines == ("gpu-a", "gpu-b", "gpu-c", "cpu-a")
    assert cluster.gpus_of_type().tolist() == [8, 4, 0]


def test_hosts_with_a_count_are_numbered_and_bounded(write):
    alike = '[[hosts]]\nname = "gpu"\ncount = {}\ngpus = 8\ncpus = 64\nmemory_gb = 512\n'
    cluster = from_inventory(write(alike.format(12)))
    assert cluster.machines[0] == "gpu01"
    assert len(cluster.machines) == 12
    for count in ("0", "-1", "1.5", "true", '"4"', "1000000000"):
        with pytest.raises(InputError, match=r"host 1 \(gpu\): count is .*; expected a whole number from 1 to 10,000"):
            from_inventory(write(alike.format(count)))
    with pytest.raises(InputError, match="give each host its own table"):
        from_inventory(write(alike.format(2) + '[hosts.ssh]\naddress = "10.0.0.1"\n'))
    with pytest.raises(InputError, match="host name 'gpu1' occurs 2 times"):
        from_inventory(write(alike.format(2) + alike.format(1).replace('"gpu"', '"gpu1"')))
