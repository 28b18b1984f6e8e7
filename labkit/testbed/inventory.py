"""The machines of a testbed, from an inventory and ~/.ssh/config: address, login and capacity of each.

A Slurm allocation can be written as an inventory: its nodes, and what of each was allotted to the job.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.consent import Outside, digest_of, use
from labkit.core.errors import InputError, unknown
from labkit.core.faults import fault_report
from labkit.core.host_names import expanded, listed
from labkit.core.text import shortened
from labkit.testbed.ssh.options import NONE, Options, SshConfig, checked_defaults, checked_options
from labkit.testbed.ssh.options import expanded as expanded_config
from labkit.topology.inventory import Host, cluster_of, parse

USUAL = Path("testbed/hosts.toml")
"""Path of the inventory in a checkout."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Names of hosts are part of file names, of output, and of certificates."""
MAX_JUMPS = 8
ASK_S: Final = 30.0
JOB: Final = re.compile(r"\d+(?:_\d+)?(?:\+\d+)?", re.ASCII)
ALLOTTED: Final = re.compile(r"\bNodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES(?:_IDX)?=(\S*)", re.ASCII)
GPUS: Final = re.compile(
    r"\bgpu(?::(?!\d+(?:[(,]|$))([^:(,]+))?(?::(\d+))?(?:\((?:IDX:([\d,-]+)|CNT:(\d+))\))?", re.ASCII
)
"""Type, number and numbers of GPUs, or a count of those without files; an older Slurm leaves out the number:
GRES_IDX=gpu:a100(IDX:0-3)."""
PARTS: Final = re.compile(r"(?:^|,)(shard|mps)[:(]", re.ASCII)
NODE: Final = re.compile(r"\bNodeName=(\S+) .*?\bNodeAddr=(\S+).*?\bRealMemory=(\d+)", re.ASCII)
MB_PER_GB: Final = 1024.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A host of the testbed: how to reach it, and its capacity.

    Attributes
    ----------
    name : str
        As in the inventory and in events.
    address, port : str, int
        Where its SSH server listens.
    user : str
        User name for the login.
    key : Path or None
        The private key to log in with; None: the SSH agent's keys and those in ~/.ssh.
    python : str
        The Python to use there.
    folder : str
        Folder of labkit's files there; absolute, or below the home of the login with "~/".
    host : Host
        Its capacity: GPUs, cores, memory, links.
    proxy_command : str
        A program whose standard input and output lead to the server; %h, %p and %r stand for address, port and user.
    jump : Machine or None
        A machine through which this one is reached.
    local : bool
        It is this machine: nothing goes over SSH, or listens to an address.
    """

    name: str
    address: str
    port: int
    user: str
    key: Path | None
    python: str
    folder: str
    host: Host
    proxy_command: str = ""
    jump: Machine | None = None
    local: bool = False

    @property
    def key_name(self) -> str:
        """The name under which known_hosts files keep its key.

        >>> Machine("a", "10.0.0.1", 2222, "me", None, "python3", "~/.labkit", Host("a", 0, 1, 1)).key_name
        '[10.0.0.1]:2222'
        """
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    @property
    def place(self) -> str:
        """Address for people: user@address:port."""
        return f"{self.user}@{self.address}:{self.port}"

    def path(self, *parts: str) -> str:
        """Return a path below its folder."""
        return "/".join((self.folder.rstrip("/"), *parts))


@dataclass(frozen=True, slots=True)
class Inventory:
    """The machines of a testbed, in the order of the file.

    Attributes
    ----------
    path : Path
        The file that it was read from.
    machines : tuple of Machine
        At least one.
    known_hosts : Path
        File of the trusted host keys.
    groups : mapping
        Names for some of the machines, in the order of the file: the table [groups].
    partitions : mapping
        Machines of each partition, alike: the table [partitions].
    """

    path: Path
    machines: tuple[Machine, ...]
    known_hosts: Path
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path | None = None) -> Self:
        """Return the inventory of a file.

        Options of a host in the file count first, then its table [ssh], then ~/.ssh/config for the host's name.

        Parameters
        ----------
        path : str or Path, optional
            A TOML file; see `testbed/hosts.example.toml`. Without one: what the variable LABKIT_HOSTS names,
            testbed/hosts.toml, or the laptop testbed that is up, the first that is there.

        Raises
        ------
        InputError
            With every fault of the file: host, key, and what was expected.
        """
        file = default_path() if path is None else Path(path).expanduser()
        content = parse(file)
        here = file.absolute().parent
        defaults, faults = checked_defaults(content.ssh, here=here)
        use(_outside(file, defaults.config))  # a configuration of SSH may run programs as soon as it is looked into
        config, more = SshConfig.read(defaults.config)
        machines, others = _machines(content.hosts, defaults=defaults, config=config, here=here)
        if faults := [*content.faults, *faults, *more, *others]:
            raise InputError(fault_report(str(file), faults))
        return cls(file, tuple(machines), Path(defaults.known_hosts).expanduser(), content.groups, content.partitions)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the machines, in order."""
        return tuple(machine.name for machine in self.machines)

    def only(self, names: str | Iterable[str]) -> Self:
        """Return the inventory of some machines, in the order of the file; names may be one string with commas.

        A name may be that of a group, or have a range: "fast,gpu[01-04]".
        """
        wanted = [one for name in (listed(names) if isinstance(names, str) else names) for one in self.named(name)]
        if not wanted:
            raise InputError(f"no hosts are named; the inventory {self.path} has {', '.join(self.names)}.")
        return replace(self, machines=tuple(machine for machine in self.machines if machine.name in wanted))

    def named(self, name: str) -> list[str]:
        """Return the machines that a name stands for: one, those of a group, or those of a range.

        Raises
        ------
        InputError
            If it is none of these.
        """
        if name in self.groups:
            return list(self.groups[name])
        found = expanded(name)
        for one in found:
            if one not in self.names:
                raise unknown("host or group" if self.groups else "host", one, [*self.names, *self.groups])
        return found

    def cluster(self) -> Cluster:
        """Return the machines as a cluster: on one switch, each with its own link."""
        made = cluster_of([machine.host for machine in self.machines], name=self.path.stem)
        there = {name: np.isin(np.array(made.machines), list(hosts)) for name, hosts in self.partitions.items()}
        return replace(made, partitions=there)

    def __getitem__(self, name: str) -> Machine:
        if name not in self.names:
            raise unknown("host", name, self.names)
        return self.machines[self.names.index(name)]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines)

    def __len__(self) -> int:
        return len(self.machines)


def _outside(file: Path, config: str) -> Outside:
    """Return the outside files and programs of an inventory: proxy commands, an SSH file but the user's own."""
    texts = [("", file.read_bytes())]
    if config not in (NONE, Options().config, str(Path(Options().config).expanduser())) and Path(config).is_file():
        with suppress(InputError, OSError, UnicodeDecodeError):  # what cannot be read is told, and not used
            texts.append(("config", expanded_config(Path(config)).encode()))
    where = str(file.absolute())
    return Outside("inventory", where, where, digest_of(texts))


def default_path() -> Path:
    """Return the default inventory; notebooks find that of their checkout; InputError if there is none."""
    from labkit.testbed.laptop.plan import default_folder

    if named := os.environ.get("LABKIT_HOSTS"):
        return Path(named).expanduser()
    bed = default_folder() / "hosts.toml"
    found = next((path for path in (USUAL, ".." / USUAL, bed) if path.exists()), None)
    if found is None:
        raise InputError(
            f"there is no inventory: neither {USUAL} nor a laptop testbed. Copy testbed/hosts.example.toml to {USUAL} "
            "and describe your machines, or start a testbed on this machine: labkit bed up."
        )
    return found


def _machines(
    hosts: Iterable[Host], *, defaults: Options, config: SshConfig, here: Path
) -> tuple[list[Machine], list[str]]:
    """Return the machines of some hosts, and faults in how they are to be reached."""
    machines: list[Machine] = []
    faults: list[str] = []
    jumps: dict[str, str] = {}
    for number, host in enumerate(hosts, start=1):
        where = f"host {number} ({host.name})"
        own, wrong = checked_options(host.ssh or {}, where=f"{where}: ssh", here=here)
        faults += wrong
        if not NAME.fullmatch(host.name):
            faults.append(f"{where}: name is {host.name!r}; expected letters, digits, '.', '_' and '-', at most 63")
        options = own.over(defaults).over(config.options(host.name))
        machines.append(_machine(host, options))
        jumps[host.name] = options.proxy_jump or ""
    named = {machine.name: machine for machine in machines}
    for name, hops in jumps.items():
        try:
            named[name] = replace(named[name], jump=_jump(hops, named=named, defaults=defaults, config=config))
        except InputError as error:
            faults.append(f"host {name}: {error}")
    return [named[machine.name] for machine in machines], faults


def _machine(host: Host, options: Options) -> Machine:
    return Machine(
        name=host.name,
        address="" if options.local else options.address or host.name,
        port=options.port or 22,
        user=options.user or _own_name(),
        key=Path(options.key) if options.key else None,
        python=options.python or (sys.executable if options.local else "python3"),
        folder=options.folder or "~/.labkit",
        host=host,
        proxy_command=options.proxy_command or "",
        local=bool(options.local),
    )


def _jump(hops: str, *, named: Mapping[str, Machine], defaults: Options, config: SshConfig) -> Machine | None:
    """Return the last of some proxies, "user@host:port,...", each of which is reached through the one before it."""
    listed = [hop.strip() for hop in hops.split(",") if hop.strip() and hop.strip() != "none"]
    if len(listed) > MAX_JUMPS:
        raise InputError(f"proxy_jump has {len(listed)} hops; expected at most {MAX_JUMPS}")
    before: Machine | None = None
    for hop in listed:
        user, name, port = _hop(hop)
        login = Options(user=user, port=port)
        if name in named:
            machine = named[name]
            machine = replace(machine, user=user or machine.user, port=port or machine.port)
        else:
            host = Host(name, gpus=0, cpus=1, memory_gb=1)
            machine = _machine(host, login.over(config.options(name)).over(replace(defaults, port=None)))
        before = replace(machine, jump=before)
    return before


def _hop(text: str) -> tuple[str | None, str, int | None]:
    """Return user, host and port of "user@host:port".

    >>> _hop("me@bastion:2222"), _hop("bastion")
    (('me', 'bastion', 2222), (None, 'bastion', None))
    """
    found = re.fullmatch(r"(?:ssh://)?(?:([^@\s-][^@\s]*)@)?(\[[\w:.%]+\]|[A-Za-z0-9][^@:\s]*)(?::(\d+))?", text)
    if not found:
        raise InputError(f"proxy_jump is {text!r}; expected user@host:port")
    return found[1], found[2].strip("[]"), int(found[3]) if found[3] else None


def _own_name() -> str:
    """Return the name of the user of this process; its number if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


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

    Raise InputError if this is no allocation, there is no such job, it has no nodes (yet), or there is no Slurm here.

    Parameters
    ----------
    job : str
        Its id; by default that of the allocation that this process is in (SLURM_JOB_ID).
    """
    job = job or os.environ.get("SLURM_JOB_ID", "")
    if not JOB.fullmatch(job):
        problem = (
            f"job {shortened(job)!r} is none" if job else "this process is in no allocation of Slurm (SLURM_JOB_ID)"
        )
        raise InputError(f"{problem}; begin one (salloc -N 2 --gpus-per-node=4), or name it: --job ID.")
    job_text = _scontrol("show", "job", "-d", "-o", job)
    if not (names := [name for nodes, *_ in ALLOTTED.findall(job_text) for name in listed(nodes)]):
        state = re.search(r"\bJobState=(\w+)", job_text)
        raise InputError(
            f"job {job} of Slurm has no nodes: it is {state[1] if state else 'unknown'}; wait until it runs."
        )
    return nodes_of(job_text, _scontrol("show", "node", "-o", ",".join(names)))


def nodes_of(job_told: str, nodes_told: str) -> list[SlurmNode]:
    """Return the nodes of a job from what `scontrol show job -d -o` and `scontrol show node -o` say.

    >>> job_text = "NodeName=n1 X=1 NodeAddr=10.0.0.1 RealMemory=9"
    >>> (node,) = nodes_of("Nodes=n1 CPU_IDs=0-3,8 Mem=2048 GRES=gpu:v100:2(IDX:0,3)", job_text)
    >>> node.address, node.gpus, node.device_type, node.gpu_numbers, node.cpus, node.memory_gb
    ('10.0.0.1', 2, 'v100', (0, 3), 5, 2.0)
    >>> (node,) = nodes_of("Nodes=n1 CPU_IDs=0-15 Mem=2048 GRES_IDX=gpu(IDX:0-3)", job_text)
    >>> node.gpus, node.gpu_numbers, node.cpus
    (4, (0, 1, 2, 3), 16)
    """
    known = {name: (address, float(memory)) for name, address, memory in NODE.findall(nodes_told)}
    parts: dict[str, list[tuple[list[int], float, str]]] = {}  # of one node: components of a heterogeneous job
    for nodes, cpus, memory, gres in ALLOTTED.findall(job_told):
        for name in listed(nodes):
            parts.setdefault(name, []).append((_numbers(cpus), float(memory), gres))
    return [
        _node(
            name, known, cpus=len({one for cpus, *_ in each for one in cpus}), memory_mb=sum(mb for _, mb, _ in each),
            gres=",".join(gres for *_, gres in each),
        )
        for name, each in parts.items()
    ]  # fmt: skip


def _node(name: str, known: Mapping[str, tuple[str, float]], *, cpus: int, memory_mb: float, gres: str) -> SlurmNode:
    address, whole_mb = known.get(name, (name, memory_mb))
    gpus = GPUS.findall(gres)
    types = list(dict.fromkeys(kind for kind, *_ in gpus if kind))
    if len(types) > 1:
        raise InputError(f"node {name} has GPUs of the types {', '.join(types)} in this job; expected one: ask for it.")
    if not gpus and (part := PARTS.search(gres)):
        raise InputError(f"node {name} has parts of GPUs in this job ({part[1]}); expected whole ones: --gres=gpu:N.")
    held = sum(int(n or count or 0) or (len(_numbers(numbers)) if numbers else 0) for _, n, numbers, count in gpus)
    return SlurmNode(
        name=name, address=address, gpus=held, cpus=cpus,
        memory_gb=(memory_mb or whole_mb) / MB_PER_GB, device_type=(types or ["gpu" if gpus else "none"])[0],
        gpu_numbers=tuple(number for *_, numbers, _ in gpus if numbers for number in _numbers(numbers)),
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
        why = " ".join((done.stderr or done.stdout).split())[-300:]
        raise InputError(f"scontrol {' '.join(words)} failed: {why or done.returncode}; expected a job of this Slurm.")
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

    Raise InputError as `allocation`; or if the file is there and was not written by this.
    """
    path, first = Path(path), "# The allocation "
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(first):
        raise InputError(f"{path} is there already, and not made from Slurm; take another --inventory.")
    job = job or os.environ.get("SLURM_JOB_ID", "")
    nodes = allocation(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(inventory_text(nodes, job=job), encoding="utf-8")
    return nodes
