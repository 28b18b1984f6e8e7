"""Placement of replicas: every block has one on another server than its owner, so that a death costs no step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from labkit.core.errors import InputError

LEVEL: Final = 1.05
"""Largest load over the mean at which no replica is moved."""

LEAST_SERVERS: Final = 2
"""Servers that replication needs."""


def check_standby(*, servers: int, sync: bool = True) -> None:
    """Raise unless a job can have a replica of every block.

    Raises
    ------
    InputError
        If training is asynchronous, or there are fewer than two servers.
    """
    if not sync:
        raise InputError(
            "standby=True with asynchronous training; expected synchronous: only there do two servers that get the "
            "same gradients make the same updates in the same order. Take save_every=N instead."
        )
    if servers < LEAST_SERVERS:
        raise InputError(
            f"standby=True with {servers} server{'s' if servers != 1 else ''}; expected at least {LEAST_SERVERS}: "
            "the replica of a block is on another server than its owner."
        )


def followers(
    owner: Mapping[int, str], sizes: Sequence[int], servers: Sequence[str], *, before: Mapping[int, str]
) -> dict[int, str]:
    """Return the server of each block's replica: never the owner, and with as few changes as possible.

    The load of the servers, from own blocks and replicas, is level to 5 % as far as the sizes of blocks allow.

    Parameters
    ----------
    owner : mapping
        Owner of each block.
    sizes : sequence of int
        (B,) bytes, or numbers, of each block.
    servers : sequence of str
        Servers that may have replicas; with fewer than two, there are no replicas.
    before : mapping
        Server of each replica so far; it may name servers that are gone.

    Examples
    --------
    >>> followers({0: "a", 1: "a", 2: "b"}, [4, 4, 4], ["a", "b", "c"], before={0: "b", 2: "z"})
    {0: 'b', 1: 'c', 2: 'c'}
    """
    if len(servers) < LEAST_SERVERS:
        return {}
    load = dict.fromkeys(servers, 0)
    for block, name in owner.items():
        if name in load:
            load[name] += sizes[block]
    found = {b: before[b] for b in owner if before.get(b) in load and before[b] != owner[b]}
    for block, name in found.items():
        load[name] += sizes[block]
    for block in sorted(owner.keys() - found.keys(), key=lambda b: (-sizes[b], b)):
        found[block] = min((name for name in servers if name != owner[block]), key=load.__getitem__)
        load[found[block]] += sizes[block]
    while (move := _relief(found, owner, sizes, load)) is not None:
        block, name = move
        load[found[block]] -= sizes[block]
        load[name] += sizes[block]
        found[block] = name
    return dict(sorted(found.items()))


def _relief(
    found: Mapping[int, str], owner: Mapping[int, str], sizes: Sequence[int], load: Mapping[str, int]
) -> tuple[int, str] | None:
    """Return the largest replica of the most loaded server that a less loaded one can take, and that server."""
    most = max(load, key=load.__getitem__)
    if load[most] * len(load) <= LEVEL * sum(load.values()):
        return None
    held = sorted((block for block, name in found.items() if name == most), key=lambda b: (-sizes[b], b))
    for block in held:
        for name in sorted(load, key=load.__getitem__):
            if name not in (most, owner[block]) and load[name] + sizes[block] < load[most]:
                return block, name
    return None
