"""A Slurm allocation as an inventory: its nodes, and what of each was allotted to the job."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labkit.core.errors import InputError
from labkit.core.text import shortened
from labkit.topology.host_names import listed

ASK_S: Final = 30.0
JOB: Final = re.compile(r"\d+(?:_\d+)?(?:\+\d+)?", re.ASCII)
ALLOTTED: Final = re.compile(r"\bNodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", re.ASCII)
GPUS: Final = re.compile(r"\bgpu(?::([^:(,]+))?:(\d+)(?:\(IDX:([\d,-]+)\))?", re.ASCII)
NODE: Final = re.compile(r"\bNodeName=(\S+) .*?\bNodeAddr=(\S+).*?\bRealMemory=(\d+)", re.ASCII)
MB_PER_GB: Final = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """What a job has of a node.

    Attributes
    ----------
    name, address : str
        In Slurm, and where it can be reached.
    gpus, cpus : int
        Of the job there.
    memory_gb : float
        Of the job there; of the node where the job asked for none.
    device_type : str
        The type of its GPUs in Slurm's configuration; gpu where that names none, none where there are no GPUs.
    gpu_numbers : tuple of int
        Which of the node's GPUs they are; empty where Slurm does not tell.
    """

    name: str
    address: str
    gpus: int
    cpus: int
    memory_gb: float
    device_type: str
    gpu_numbers: tuple[int, ...] = ()


def allocation(job: str = "") -> list[SlurmNode]:
    """Return the nodes of an allocation, as `scontrol` tells them.

    Parameters
    ----------
    job : str
        Its id; by default that of the allocation that this process is in (SLURM_JOB_ID).

    Raises
    ------
    InputError
        If this is no allocation, there is no such job, it has no nodes (yet), or there is no Slurm here.
    """
    job = job or os.environ.get("SLURM_JOB_ID", "")
    if not JOB.fullmatch(job):
        asked = f"job {shortened(job)!r} is none" if job else "this process is in no allocation of Slurm (SLURM_JOB_ID)"
        raise InputError(f"{asked}; begin one (salloc -N 2 --gpus-per-node=4), or name it: --job ID.")
    told = _scontrol("show", "job", "-d", "-o", job)
    if not (names := [name for nodes, *_ in ALLOTTED.findall(told) for name in listed(nodes)]):
        state = re.search(r"\bJobState=(\w+)", told)
        raise InputError(
            f"job {job} of Slurm has no nodes: it is {state[1] if state else 'unknown'}; wait until it runs."
        )
    return nodes_of(told, _scontrol("show", "node", "-o", ",".join(names)))


def nodes_of(job_told: str, nodes_told: str) -> list[SlurmNode]:
    """Return the nodes of a job from what `scontrol show job -d -o` and `scontrol show node -o` say.

    >>> told = "NodeName=n1 X=1 NodeAddr=10.0.0.1 RealMemory=9"
    >>> (node,) = nodes_of("Nodes=n1 CPU_IDs=0-3,8 Mem=2048 GRES=gpu:v100:2(IDX:0,3)", told)
    >>> node.address, node.gpus, node.device_type, node.gpu_numbers, node.cpus, node.memory_gb
    ('10.0.0.1', 2, 'v100', (0, 3), 5, 2.0)
    """
    known = {name: (address, float(memory)) for name, address, memory in NODE.findall(nodes_told)}
    return [
        _node(name, known, cpus=len(_numbers(cpus)), memory_mb=float(memory), gres=gres)
        for nodes, cpus, memory, gres in ALLOTTED.findall(job_told)
        for name in listed(nodes)
    ]


def _node(name: str, known: Mapping[str, tuple[str, float]], *, cpus: int, memory_mb: float, gres: str) -> SlurmNode:
    address, whole_mb = known.get(name, (name, memory_mb))
    gpus = GPUS.findall(gres)
    types = list(dict.fromkeys(kind for kind, *_ in gpus if kind))
    if len(types) > 1:
        raise InputError(f"node {name} has GPUs of the types {', '.join(types)} in this job; expected one: ask for it.")
    return SlurmNode(
        name=name, address=address, gpus=sum(int(n) for _, n, _ in gpus), cpus=cpus,
        memory_gb=(memory_mb or whole_mb) / MB_PER_GB, device_type=(types or ["gpu" if gpus else "none"])[0],
        gpu_numbers=tuple(number for *_, numbers in gpus if numbers for number in _numbers(numbers)),
    )  # fmt: skip


def _numbers(text: str) -> list[int]:
    """Return the numbers of "0-3,8"."""
    return [int(name) for name in listed(f"[{text}]")]


def _scontrol(*words: str) -> str:
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=ASK_S, check=False)
    except FileNotFoundError:
        raise InputError(
            "there is no scontrol here; run this where Slurm's commands are, such as its login node."
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"scontrol did not answer within {ASK_S:g} s; ask again when slurmctld does.") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise InputError(f"scontrol {' '.join(words)} failed: {said or done.returncode}; expected a job of this Slurm.")
    return done.stdout


def inventory_text(nodes: Sequence[SlurmNode], *, job: str) -> str:
    """Return the inventory of some nodes, as TOML."""
    return "\n".join(_lines(nodes, job)) + "\n"


def _lines(nodes: Sequence[SlurmNode], job: str) -> Iterator[str]:
    yield f"# The allocation {job} of Slurm; made by `fab from-slurm`. It is good for as long as that job runs."
    if any(node.gpu_numbers and node.gpu_numbers != tuple(range(node.gpus)) for node in nodes):
        yield "# Not the first GPUs of each node: logins must see those of the job alone (pam_slurm_adopt)."
    for node in nodes:
        yield ""
        yield "[[hosts]]"
        yield f'name = "{node.name}"'
        yield f"gpus = {node.gpus}"
        yield f"cpus = {node.cpus}"
        yield f"memory_gb = {node.memory_gb:.4g}"
        yield f'device_type = "{node.device_type}"'
        if node.address != node.name:
            yield f'ssh = {{ address = "{node.address}" }}'


def write_inventory(path: str | Path, *, job: str = "") -> list[SlurmNode]:
    """Write the inventory of an allocation to a file, which is new or was written by this; return its nodes.

    Raises
    ------
    InputError
        As `allocation`; or if the file is there and was not written by this.
    """
    path, first = Path(path), "# The allocation "
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(first):
        raise InputError(f"{path} is there already, and not made from Slurm; take another --inventory.")
    job = job or os.environ.get("SLURM_JOB_ID", "")
    nodes = allocation(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(inventory_text(nodes, job=job), encoding="utf-8")
    return nodes
