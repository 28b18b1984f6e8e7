"""Clusters by name, and names or expressions to clusters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from labkit.core.calls import read_call
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, unknown
from labkit.topology.bcube import bcube
from labkit.topology.fat_tree import fat_tree
from labkit.topology.inventory import from_inventory
from labkit.topology.leaf_spine import leaf_spine
from labkit.topology.servers import DEFAULT, Server, server
from labkit.topology.single_switch import no_network, single_switch
from labkit.topology.vl2 import pods, vl2

BUILDERS: Final[dict[str, Callable[..., Cluster]]] = {
    builder.__name__: builder for builder in (fat_tree, vl2, bcube, leaf_spine, pods, single_switch, no_network)
}
"""What an expression may call."""

EXPECTED: Final = "a call with plain values such as fat_tree(4) or leaf_spine(4, 2, 8)"

PHILLY: Final = Server("philly", sockets=((8, 32, 512),), device_type="gpu")
"""An 8-GPU machine as one device group; cores and memory are our choice, the trace names none."""

ALIBABA: Final = Server("alibaba", sockets=((8, 96, 512),), device_type="v100")
"""An 8-GPU machine of Alibaba's PAI cluster (96 cores, 512 GB) as one device group."""

OPENB: Final = (
    (549, "G2", 8, 96, 384), (387, "T4", 2, 104, 512), (107, "P100", 2, 16, 120), (39, "G3", 8, 128, 768),
    (28, "V100M16", 4, 32, 128), (22, "P100", 2, 64, 256), (21, "V100M32", 8, 96, 768), (19, "V100M16", 1, 8, 32),
    (17, "T4", 4, 96, 384), (9, "V100M32", 4, 48, 368), (7, "V100M16", 8, 64, 256), (3, "P100", 1, 8, 60),
    (2, "P100", 2, 8, 60), (2, "A10", 1, 128, 1024), (1, "V100M16", 8, 82, 336),
)  # fmt: skip
"""Alibaba's cluster of 2023: how many machines of a kind, and GPU type, GPUs, cores and GB of each."""

ALIBABA_HALF: Final = Server("alibaba-half", sockets=((4, 48, 256),), device_type="v100")

DLROVER: Final = Server("dlrover", sockets=((0, 64, 192),), device_type="cpu")
"""A machine of DLRover's evaluation (192 GB): two sockets of 16 cores with two threads each are 64 cores there."""

MIXED: Final = ((0.2, server("2gpu")), (0.4, DEFAULT), (0.4, server("dgx1")))
"""The mix (iii) of the MARL text, sec. VI-C."""


def _gavel(v100: int, p100: int, k80: int) -> Cluster:
    """Return Gavel's simulated cluster of 4-GPU servers, which has no network."""
    counts = zip((v100, p100, k80), ("v100", "p100", "k80"), strict=True)
    mix = [(gpus // 4, server(f"gavel-{kind}")) for gpus, kind in counts]
    return no_network(sum(count for count, _ in mix), servers=mix)


def _openb() -> Cluster:
    """Return the machines of the trace `openb`, each as one device group."""
    kinds = [(n, Server(f"{kind}-{gpus}", ((gpus, cpus, gb),), device_type=kind)) for n, kind, gpus, cpus, gb in OPENB]
    return no_network(sum(n for n, _ in kinds), servers=kinds)


def _dl2(n: int) -> Cluster:
    """Return DL2's simulated cluster: n nodes of 8 cores and 2 GPUs; placement does not matter there."""
    return no_network(n, servers=server("dl2"))


PRESETS: Final[dict[str, tuple[str, Callable[[], Cluster]]]] = {
    "demo": ("8 four-GPU machines under 4 leaves and 2 spines", lambda: leaf_spine(4, 2, 2, gbps=(10, 20))),
    "gavel-36x3": ("36 V100, 36 P100, 36 K80 of Gavel's simulation, no network", lambda: _gavel(36, 36, 36)),
    "gavel-8-16-24": ("8 V100, 16 P100, 24 K80 of Gavel's testbed, no network", lambda: _gavel(8, 16, 24)),
    "dl2-testbed": (
        "DL2's testbed: 13 servers of 2 GPUs on one switch, 50 Gbps",
        lambda: single_switch(13, servers=server("dl2"), gbps=50),
    ),
    "dl2-6n": ("DL2's simulator, 6 nodes, no network", lambda: _dl2(6)),
    "dl2-8n": ("DL2's simulator, 8 nodes, no network", lambda: _dl2(8)),
    "dl2-12n": ("DL2's simulator, 12 nodes, no network", lambda: _dl2(12)),
    "dl2-16n": ("DL2's simulator, 16 nodes, no network", lambda: _dl2(16)),
    "dl2-24n": ("DL2's simulator, 24 nodes, no network", lambda: _dl2(24)),
    "dl2-48n": ("DL2's simulator, 48 nodes, no network", lambda: _dl2(48)),
    "dl2-96n": ("DL2's simulator, 96 nodes, no network", lambda: _dl2(96)),
    "dl2-500n": ("DL2's simulator, 500 nodes, no network", lambda: _dl2(500)),
    "philly-480": ("480 GPUs in 60 machines of 8, no network", lambda: no_network(60, servers=PHILLY)),
    "alibaba-6500": (
        "6,500 GPUs: 812 machines of 8 and one of 4, no network",
        lambda: no_network(813, servers=[(812, ALIBABA), (1, ALIBABA_HALF)]),
    ),
    "openb": ("1,213 machines and 6,212 GPUs of 7 types of Alibaba's trace of 2023, no network", _openb),
    "dlrover-512": (
        "512 cores for DLRover's jobs: 8 machines of 64 cores and 192 GB, no GPUs, no network",
        lambda: no_network(8, servers=DLROVER),
    ),
    "marl-fat-tree": ("MARL: fat_tree(20), 2,000 four-GPU machines, 20 pods", lambda: fat_tree(20)),
    "marl-fat-tree-dgx1": ("the same of 8-GPU machines, mix (i)", lambda: fat_tree(20, servers=server("dgx1"))),
    "marl-fat-tree-uneven": ("the same of uneven sockets, mix (ii)", lambda: fat_tree(20, servers=server("uneven"))),
    "marl-fat-tree-mixed": ("the same of 2-, 4- and 8-GPU machines, mix (iii)", lambda: fat_tree(20, servers=MIXED)),
    "marl-vl2": ("MARL: vl2(20, 20), 2,000 four-GPU machines, 20 pods", lambda: vl2(20, 20)),
    "marl-bcube-1296": ("MARL: bcube(6, 3), 18 pods; the size is our reading", lambda: bcube(6, 3)),
    "marl-bcube-216": ("MARL: bcube(6, 2), 18 pods; the other reading", lambda: bcube(6, 2)),
    "marl-4x20": ("MARL, small: 4 pods of 20 four-GPU machines, pods(4, 20)", lambda: pods(4, 20)),
    "marl-2x40": ("MARL, small: 2 pods of 40 four-GPU machines, pods(2, 40)", lambda: pods(2, 40)),
    "marl-4x20-dgx1": ("marl-4x20 of 8-GPU machines, mix (i)", lambda: pods(4, 20, servers=server("dgx1"))),
    "marl-4x20-uneven": ("marl-4x20 of uneven sockets, mix (ii)", lambda: pods(4, 20, servers=server("uneven"))),
    "marl-4x20-mixed": ("marl-4x20 of 2-, 4- and 8-GPU machines, mix (iii)", lambda: pods(4, 20, servers=MIXED)),
    "marl-4x20-oversubscribed": (
        "marl-4x20 with racks that get 1/5 of their machines' bandwidth out",
        lambda: pods(4, 20, gbps=(10, 10, 20)),
    ),
    "marl-testbed": (
        "MARL's testbed: 12 g4dn.12xlarge, 50 Gbps, 2 pods",
        lambda: single_switch(12, servers=server("g4dn.12xlarge"), gbps=50, partitions=2),
    ),
}
"""What each preset is, and how to build it."""


def available() -> dict[str, str]:
    """Return the presets and what they are."""
    return {name: what for name, (what, _) in PRESETS.items()}


def build(what: str) -> Cluster:
    """Return the cluster of a preset, an expression or an inventory.

    Parameters
    ----------
    what : str
        A name of `available()`, a call of a builder with literals such as "leaf_spine(4, 2, 8, gbps=(25, 100))", where
        `servers` is the name of an architecture or a list of (share, name), or the path of a .toml inventory.

    Raises
    ------
    InputError
        If it is none of these, with the nearest name.

    Examples
    --------
    >>> print(build("fat_tree(4, servers='dgx1')"))
    fat_tree(4, servers='dgx1'): 16 machines, 128 GPUs (128 v100)
    """
    if not isinstance(what, str):
        raise InputError(f"cluster is {what!r}; expected a Cluster, a preset such as 'demo', or fat_tree(4).")
    if what in PRESETS:
        return replace(PRESETS[what][1](), name=what)
    if what.endswith(".toml"):
        return from_inventory(what)
    if "(" in what:
        return replace(_call(what), name=what)
    known = [*PRESETS, *(f"{name}({_parameters(builder)})" for name, builder in BUILDERS.items())]
    raise unknown("cluster", what, known, listing="labkit clusters")


def _parameters(builder: Callable[..., Cluster]) -> str:
    """Return the parameters that a builder must have."""
    parameters = inspect.signature(builder).parameters.values()
    return ", ".join(p.name for p in parameters if p.default is p.empty)


def _call(what: str) -> Cluster:
    """Return the cluster of an expression."""
    call = read_call(what, thing="cluster", expected=EXPECTED)
    name, args, options = call.name, call.args, call.options
    if name not in BUILDERS:
        raise unknown("topology", name, BUILDERS)
    if "servers" in options:
        options["servers"] = _servers(options["servers"])
    builder = BUILDERS[name]
    try:
        inspect.signature(builder).bind(*args, **options)
    except TypeError as error:
        options_of = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
        usage = f"{name}({_parameters(builder)}), with options {', '.join(options_of)}"
        raise InputError(f"cannot build '{what}': {error}; expected {usage}.") from None
    return builder(*args, **options)


def _servers(value: object) -> Server | list[tuple[float, Server]]:
    """Return the architecture of a name, or a mix of (share, name)."""
    if isinstance(value, str):
        return server(value)
    pairs = value if isinstance(value, list | tuple) else [None]
    mix = [pair for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], str)]
    if len(mix) < len(pairs) or not all(isinstance(share, int | float) for share, _ in mix):
        raise InputError(f"servers is {value!r}; expected a name such as 'dgx1', or a list of (share, name).")
    return [(share, server(name)) for share, name in mix]
