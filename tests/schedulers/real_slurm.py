"""A record of a real slurmctld, made in namespaces of its own with a clock that runs 40 times faster (libfaketime).

Eight false hosts with 32 false GPUs of two types, three partitions, jobs that sleep. Nothing outside the folder is
written, and all that runs ends with process 1 of the namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SPEED = 40.0
IP = "198.18.0.1"
"""Slurm takes no address of 127.0.0.0/8; this one is for tests (RFC 2544), on the loopback of the namespace."""
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "faketime", "unshare", "ip", "hostname")
SHAPES = ((1, 1), (1, 2), (1, 4), (2, 4), (2, 2), (3, 4))
"""Hosts of a job, and its GPUs on each."""
WHERE = (("a100", "a100"), ("v100", "v100"), ("", "every"), ("a100", "every"))
"""Type of GPU and partition."""

CONF = """ClusterName=fresh
SlurmctldHost=ctl({ip})
SlurmUser=root
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool%n
SlurmctldPidFile={at}/ctld.pid
SlurmdPidFile={at}/slurmd-%n.pid
SlurmctldLogFile={at}/ctld.log
SlurmdLogFile={at}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MinJobAge=1000000
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/basic
GresTypes=gpu
NodeName=n[0-3] NodeHostname=ctl NodeAddr={ip} Port=[17010-17013] CPUs=16 RealMemory=64000 Gres=gpu:a100:4
NodeName=n[4-7] NodeHostname=ctl NodeAddr={ip} Port=[17014-17017] CPUs=16 RealMemory=64000 Gres=gpu:v100:4
PartitionName=a100 Nodes=n[0-3] MaxTime=INFINITE
PartitionName=v100 Nodes=n[4-7] MaxTime=INFINITE
PartitionName=every Nodes=ALL Default=YES MaxTime=INFINITE
"""

INSIDE = """set -eu
mount -t tmpfs tmpfs /dev/shm  # where faketime names what its processes share by process id
ip link set lo up
ip addr add {ip}/32 dev lo
hostname ctl
printf '127.0.0.1 localhost\\n{ip} ctl\\n' > {at}/hosts
mount --bind {at}/hosts /etc/hosts
for i in 0 1 2 3; do mknod -m 666 {at}/gpu$i c 1 3; done
faketime -m -f '+0 x{speed:g}' bash {at}/daemons.sh &
exec {python} -m tests.schedulers.real_slurm {at}
"""

DAEMONS = """slurmctld -D 2> {at}/ctld.err &
for n in 0 1 2 3 4 5 6 7; do slurmd -D -N n$n 2> {at}/n$n.err & done
wait
"""


def missing() -> str:
    """Return why no record can be made here; "" where one can."""
    if os.geteuid():
        return "namespaces with hosts of their own need root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return f"not installed: {', '.join(lacking)} (apt-get install slurmctld slurmd faketime)" if lacking else ""


def record(at: Path, *, seed: int, n_jobs: int = 30, within_s: float = 540.0) -> tuple[Path, Path]:
    """Make a record in an empty folder; return what squeue and scontrol print at its end: jobs and hosts.

    Raise TimeoutExpired, with all processes ended, after so many seconds.
    """
    words = {"at": at, "ip": IP, "speed": SPEED, "python": sys.executable}
    (at / "state").mkdir()
    (at / "slurm.conf").write_text(CONF.format(**words))
    kinds = ((0, 3, "a100"), (4, 7, "v100"))
    (at / "gres.conf").write_text(
        "".join(f"NodeName=n[{a}-{b}] Name=gpu Type={kind} File={at}/gpu[0-3]\n" for a, b, kind in kinds)
    )
    (at / "daemons.sh").write_text(DAEMONS.format(**words))
    (at / "inside.sh").write_text(INSIDE.format(**words))
    (at / "workload.json").write_text(json.dumps(workload(seed, n_jobs)))
    apart = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    env = os.environ | {"SLURM_CONF": str(at / "slurm.conf"), "TZ": "UTC", "PYTHONPATH": str(Path(__file__).parents[2])}
    env["PATH"] += ":/usr/sbin:/sbin"
    subprocess.run([*apart, "bash", at / "inside.sh"], env=env, timeout=within_s, check=True)
    return at / "jobs.json", at / "nodes.txt"


def workload(seed: int, n_jobs: int) -> list[tuple[float, list[str]]]:
    """Return when jobs are submitted, in seconds of Slurm's clock, and what sbatch is told."""
    rng, at_s, jobs = np.random.default_rng(seed), 0.0, []
    for _ in range(n_jobs):
        at_s += rng.exponential(2520 / 30)
        nodes, gpus = SHAPES[rng.choice(len(SHAPES), p=[0.34, 0.2, 0.2, 0.1, 0.08, 0.08])]
        kind, partition = WHERE[rng.choice(len(WHERE), p=[0.35, 0.35, 0.2, 0.1])]
        run_s = float(np.clip(20 * rng.lognormal(3.55, 0.6), 120, 2200))
        limit_min = max(1, -(-run_s * rng.choice([1.2, 2.0, 4.0]) // 60)) + 1
        jobs.append((at_s, [
            "-N", str(nodes), "--ntasks-per-node=1", "-c", str(gpus), f"--mem={1000 * gpus}", "-p", partition,
            f"--gres=gpu:{kind}{':' if kind else ''}{gpus}", "-t", f"{limit_min:.0f}", "-o", "/dev/null", "-D", "/",
            *(["--exclusive"] if rng.random() < 0.1 else []), "--wrap", f"exec sleep {run_s / SPEED:.3f}",
        ]))  # fmt: skip
    return jobs


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _submit(at: Path) -> None:
    """Submit the workload, wait for its end, and write what Slurm says of jobs and hosts."""
    while subprocess.run("sinfo -h -N -t idle -p every | grep -c .", shell=True, capture_output=True).stdout != b"8\n":
        time.sleep(0.1)
    began = time.monotonic()
    for at_s, words in json.loads((at / "workload.json").read_text()):
        time.sleep(max(0.0, began + at_s / SPEED - time.monotonic()))
        _said("sbatch", *words)
    while _said("squeue", "-h"):
        time.sleep(0.5)
    (at / "jobs.json").write_text(_said("squeue", "-t", "all", "--json"))
    (at / "nodes.txt").write_text(_said("scontrol", "show", "node"))


if __name__ == "__main__":
    _submit(Path(sys.argv[1]))
