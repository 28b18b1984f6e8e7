"""A Slurm allocation as an inventory: what scontrol says, and a real slurmctld in namespaces of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.testbed.inventory import Inventory, allocation, inventory_text, nodes_of, write_inventory
from tests.hang import HANG_S

PROGRAMS = ("slurmctld", "slurmd", "salloc", "scontrol", "unshare", "ip")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = next((name for name in PROGRAMS if not shutil.which(name, path=PATH)), "")
ADDRESS = "198.18.0.1"
"""Of no network: Slurm takes no name that leads to 127.0.0.1 alone."""
JOB = (
    "JobId=7 JobState=RUNNING NodeList=a[01-02],b JOB_GRES=gpu:v100:5   Nodes=a[01-02] CPU_IDs=0-3,8 Mem=2048 "
    "GRES=gpu:v100:2(IDX:1,3)   Nodes=b CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1"
)
NODES = "".join(f"NodeName={name} Gres=x NodeAddr={at} Port=1 RealMemory=16384 X=\n" for name, at in
                (("a01", "10.0.0.1"), ("a02", "10.0.0.2"), ("b", "b")))  # fmt: skip


def test_each_node_has_what_the_job_has_of_it():
    nodes = nodes_of(JOB, NODES)
    assert [(node.name, node.address, node.gpus, node.cpus, node.memory_gb, node.device_type) for node in nodes] == [
        ("a01", "10.0.0.1", 2, 5, 2.0, "v100"), ("a02", "10.0.0.2", 2, 5, 2.0, "v100"), ("b", "b", 0, 1, 16.0, "none"),
    ]  # fmt: skip


def test_the_inventory_can_be_read_and_tells_that_they_are_not_the_first_gpus(tmp_path):
    text = inventory_text(nodes_of(JOB, NODES), job="7")
    (tmp_path / "hosts.toml").write_text(text)
    hosts = Inventory.read(tmp_path / "hosts.toml")
    assert [(host.name, host.address, host.host.real_gpus) for host in hosts] == [
        ("a01", "10.0.0.1", 2), ("a02", "10.0.0.2", 2), ("b", "b", 0),
    ]  # fmt: skip
    assert "Not the first GPUs of each node" in text
    assert "Not the first GPUs" not in inventory_text(nodes_of(JOB.replace("1,3", "0-1"), NODES), job="7")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("Nodes=b CPU_IDs=0-15,16-31,48-56 Mem=0 GRES=gpu:a100:2(IDX:N/A)", (2, "a100", (), 41)),
        ("Nodes=b CPU_IDs=0-15 Mem=0 GRES_IDX=gpu(IDX:2,4)", (2, "gpu", (2, 4), 16)),
        ("Nodes=b CPU_IDs=0-15 Mem=0 GRES_IDX=gpu:k80(CNT:2)", (2, "k80", (), 16)),
        ("Nodes=b CPU_IDs=0-15 Mem=0 GRES=gpu:2(CNT:2),tmpdisk:9", (2, "gpu", (), 16)),
        ("Nodes=b CPU_IDs=0 Mem=0 GRES=gpu:k80:0", (0, "k80", (), 1)),
        ("Nodes=b CPU_IDs=0-3 Mem=0 GRES=gpu:1(IDX:0) Nodes=b CPU_IDs=4 Mem=0 GRES=gpu:1(IDX:3)",
         (2, "gpu", (0, 3), 5)),
    ],
)  # fmt: skip
def test_forms_of_several_versions_of_slurm_are_read(told, expected):
    """As public logs and issues show them: lists of cores, GPUs without files, components of a heterogeneous job."""
    (node,) = nodes_of(told, NODES)
    assert (node.gpus, node.device_type, node.gpu_numbers, node.cpus) == expected


def test_parts_of_gpus_are_refused():
    with pytest.raises(InputError, match=r"node b has parts of GPUs in this job \(shard\); expected whole ones"):
        nodes_of("Nodes=b CPU_IDs=0 Mem=0 GRES=shard:a100:4(0/8,4/8)", NODES)


def test_gpus_of_two_types_on_a_node_are_refused():
    with pytest.raises(InputError, match="node b has GPUs of the types v100, a100"):
        nodes_of(JOB.replace("GRES= ", "GRES=gpu:v100:1(IDX:0),gpu:a100:1(IDX:1) "), NODES)


@pytest.mark.parametrize(
    ("job", "told"),
    [("", "this process is in no allocation of Slurm"), ("1;ls", "job '1;ls' is none"), ("-h", "job '-h' is none")],
)
def test_what_is_no_allocation_is_told_with_how_to_have_one(monkeypatch, job, told):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError, match=f"{told}.*salloc"):
        allocation(job)


def test_without_slurm_the_place_for_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no scontrol here; run this where Slurm's commands are"):
        allocation("7")


def test_a_file_of_somebody_else_is_not_written_over(tmp_path):
    (tmp_path / "hosts.toml").write_text("[[hosts]]\n")
    with pytest.raises(InputError, match="is there already, and not made from Slurm"):
        write_inventory(tmp_path / "hosts.toml", job="7")


CONF = """
    ClusterName=labkit
    SlurmctldHost=ctl({address})
    SlurmUser=root
    AuthType=auth/none
    CredType=cred/none
    CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
    StateSaveLocation={folder}/state
    SlurmdSpoolDir={folder}/spool%n
    SlurmctldPidFile={folder}/ctld.pid
    SlurmdPidFile={folder}/slurmd-%n.pid
    SlurmctldLogFile={folder}/ctld.log
    SlurmdLogFile={folder}/slurmd-%n.log
    ProctrackType=proctrack/pgid
    TaskPlugin=task/none
    SelectType=select/cons_tres
    SelectTypeParameters=CR_Core_Memory
    GresTypes=gpu
    SlurmdParameters=config_overrides
    NodeName=gpu[01-02] NodeHostname=ctl NodeAddr={address} Port=[17011-17012] CPUs=8 RealMemory=16000 Gres=gpu:v100:4
    PartitionName=all Nodes=ALL Default=YES State=UP
"""
PROGRAM = """
    set -e
    ip link set lo up
    ip addr add {address}/32 dev lo
    hostname ctl
    mount --bind {folder}/hosts /etc/hosts
    export SLURM_CONF={folder}/slurm.conf
    slurmctld -D 2>{folder}/ctld.err &
    for node in gpu01 gpu02; do slurmd -D -N $node 2>{folder}/$node.err & done
    for turn in $(seq 120); do [ "$(sinfo -h -N -t idle 2>/dev/null | wc -l)" = 2 ] && break; sleep 0.25; done
    timeout 30 salloc -N 2 -n 2 --gres=gpu:v100:3 --mem=2048 "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING} here: apt-get install slurmctld slurmd slurm-client iproute2")
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd takes no other user than root")
def test_the_inventory_of_a_real_allocation_has_its_nodes_gpus_cores_and_memory(tmp_path: Path):
    folder = tmp_path
    (folder / "state").mkdir()
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} ctl\n")
    (folder / "slurm.conf").write_text(textwrap.dedent(CONF.format(address=ADDRESS, folder=folder)))
    (folder / "gres.conf").write_text(f"NodeName=gpu[01-02] Name=gpu Type=v100 File={folder}/gpu[0-3]\n")
    for number in range(4):
        os.mknod(
            folder / f"gpu{number}", 0o020600, os.makedev(1, 3)
        )  # as /dev/null: Slurm only looks whether it is there
    program = textwrap.dedent(PROGRAM.format(address=ADDRESS, folder=folder))
    code = "import sys; from labkit.testbed.inventory import write_inventory; write_inventory(sys.argv[1])"
    done = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", program,
         "sh", sys.executable, "-c", code, str(folder / "hosts.toml")],
        env={**os.environ, "PATH": PATH}, capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    if "unshare" in done.stderr and "Operation not permitted" in done.stderr:
        pytest.skip("namespaces are not allowed here")
    logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    hosts = Inventory.read(folder / "hosts.toml")
    assert [(host.name, host.address) for host in hosts] == [("gpu01", ADDRESS), ("gpu02", ADDRESS)]
    assert [(host.host.gpus, host.host.device_type, host.host.memory_gb) for host in hosts] == [(3, "v100", 2.0)] * 2
    assert all(host.host.cpus >= 1 for host in hosts)
