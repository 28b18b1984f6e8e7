"""Assignment of blocks to servers: the published best fit at a start, and as few moved bytes as possible later."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints

Server = TypeVar("Server", bound=Hashable)

SMALL: Final = 0.01
"""Part of an even share below which a block is placed by numbers of requests: these are its cost in Optimus' PAA."""

LEVEL: Final = 1.05
"""Largest load over the mean at which no block is moved."""


class TooManyServersError(InputError):
    """More servers than blocks: a server would have none."""


@dataclass(slots=True)
class Filling:
    """Servers as Optimus' PAA fills them with whole blocks: by best fit or, if small, by numbers of requests [1]_.

    References
    ----------
    .. [1] Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018,
       section 5.3; constants and ties as in the authors' program (mxnet/PAA/params_distr.py), which rounds down.
    """

    load: Floats
    n_requests: Ints
    capacity: float

    def put(self, size: float, *, small: float) -> int:
        """Place a whole block; return its server."""
        return self.add(int(np.argmin(self.n_requests)) if size <= small else self.best_fit(size), size)

    def best_fit(self, size: float) -> int:
        """Return the server with the smallest room that holds a block; the least loaded if none does."""
        room = self.capacity - self.load - size
        if np.all(room < 0):
            return int(np.argmin(self.load))
        return int(np.argmin(np.where(room >= 0, room, np.inf)))

    def add(self, server: int, size: float) -> int:
        """Count a block, or a piece of one, on a server; return it."""
        self.load[server] += size
        self.n_requests[server] += 1
        return server


def assign(sizes: Sequence[int], *, n_servers: int, load: ArrayLike | None = None) -> Ints:
    """Return the server of each block at a start, (B,): by PAA's rule for whole blocks, where that is level.

    The largest load is at most 1.05 of the mean. Where PAA's rule ends above that, the heaviest blocks go to the least
    loaded servers instead, if that is better; no load is then more than one block above the mean. Every server has a
    block. Blocks are not cut again: `labkit.elastic.protocol.blocks` has cut large parameters.

    Parameters
    ----------
    sizes : sequence of int
        (B,) bytes, or numbers, of each block.
    n_servers : int
        At least 1, at most B.
    load : array, optional
        (B,) what each block costs its server, in any unit, >= 0; without it, its size.

    Raises
    ------
    InputError
        If there is no server; TooManyServersError if there are more servers than blocks.

    Examples
    --------
    >>> assign([4, 4, 4, 4, 2], n_servers=2).tolist()
    [0, 0, 1, 1, 0]
    """
    weight = _weights(sizes, n_servers, load)
    filling = Filling(np.zeros(n_servers), np.zeros(n_servers, np.int64), capacity=weight.sum() / n_servers)
    owner = np.full(len(weight), -1, np.int32)
    for block in np.argsort(-weight, kind="stable").tolist():
        owner[block] = filling.put(float(weight[block]), small=SMALL * filling.capacity)
    level, even = _level(weight, n_servers)
    if filling.load.max() > level:
        owner = even
    _share(owner, weight, np.asarray(sizes, np.float64), n_servers)
    return owner


def by_tensor(sizes: Sequence[int], tensors: Sequence[int], n_servers: int) -> list[int]:
    """Return the server of each block, whole parameters in turn, as `tf.train.replica_device_setter` does.

    Sizes are ignored, so that one server may have most of the load. Every server has a block.

    Parameters
    ----------
    sizes : sequence of int
        (B,) of each block.
    tensors : sequence of int
        (B,) number of the parameter that each block belongs to.
    n_servers : int
        At least 1, at most B.

    Examples
    --------
    >>> by_tensor([4, 4, 4, 1], [0, 1, 1, 2], n_servers=2)
    [0, 1, 1, 0]
    """
    weight = _weights(sizes, n_servers, None)
    turn = {tensor: i % n_servers for i, tensor in enumerate(sorted(set(tensors)))}
    owner = np.array([turn[tensor] for tensor in tensors], np.int32)
    _share(owner, weight, np.asarray(sizes, np.float64), n_servers)
    return [int(server) for server in owner]


def reassign(
    owner: Mapping[int, Server], sizes: Sequence[int], servers: Sequence[Server], *, load: ArrayLike | None = None
) -> dict[int, Server]:
    """Return the server of each block for these servers; few bytes move, and loads are level.

    Blocks of servers that leave must move, to the least loaded ones; of the others, only what is above the level: 1.05
    of the mean, or what a new start with the heaviest blocks first would reach if that is more. No load ends more than
    one block above the mean. Any number of servers may come and go at once. With blocks of one size no fewer could
    move.

    Parameters
    ----------
    owner : mapping
        Server of each block so far. Blocks that it does not name are assigned; if it is empty, all of them (`assign`).
    sizes : sequence of int
        (B,) bytes, or numbers, of each block: what a move costs.
    servers : sequence
        Servers that will have blocks, each once; ties go to the first.
    load : array, optional
        (B,) what each block costs its server, in any unit, >= 0; without it, its size.

    Returns
    -------
    dict
        Server of each block, 0 to B - 1.

    Raises
    ------
    InputError
        If there is no server, one is named twice, or a block is unknown; TooManyServersError if there are more servers
        than blocks.

    Examples
    --------
    >>> reassign({0: "a", 1: "a", 2: "b", 3: "b"}, [5, 5, 5, 5], ["a", "b", "c"])
    {0: 'c', 1: 'a', 2: 'b', 3: 'b'}
    """
    place = {server: s for s, server in enumerate(servers)}
    if len(place) < len(servers):
        twice = next(server for server in servers if list(servers).count(server) > 1)
        raise InputError(f"server '{twice}' is named twice; expected each once.")
    strange = [block for block in owner if not 0 <= block < len(sizes)]
    if strange:
        raise InputError(f"block {strange[0]} has an owner, but there are only {len(sizes)} blocks.")
    if not owner:
        then = assign(sizes, n_servers=len(servers), load=load)
    else:
        weight, cost = _weights(sizes, len(servers), load), np.asarray(sizes, np.float64)
        then = np.array([place.get(owner[b], -1) if b in owner else -1 for b in range(len(sizes))], np.int32)
        _shed(then, weight, cost, _level(weight, len(servers))[0])
        _settle(then, weight, len(servers))
        _share(then, weight, cost, len(servers))
    return {block: servers[s] for block, s in enumerate(then.tolist())}


def _check_servers(n_servers: int) -> None:
    if n_servers < 1:
        raise InputError(f"{n_servers} servers; expected at least one.")


def _weights(sizes: Sequence[int], n_servers: int, load: ArrayLike | None) -> Floats:
    """Return the load of each block, checked."""
    _check_servers(n_servers)
    if n_servers > len(sizes):
        raise TooManyServersError(
            f"{n_servers} servers for {len(sizes)} blocks; expected at most one per block: take fewer servers, "
            "or smaller blocks (block_bytes)."
        )
    weight = np.asarray(sizes if load is None else load, np.float64)
    if weight.shape != (len(sizes),):
        raise InputError(f"loads of the shape {weight.shape} for {len(sizes)} blocks; expected one for each.")
    wrong = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(wrong):
        raise InputError(f"block {wrong[0]} has the load {weight[wrong[0]]}; expected a number, 0 or more.")
    return weight if weight.sum() > 0 else np.ones(len(sizes))


def _level(weight: Floats, n_servers: int) -> tuple[float, Ints]:
    """Return the load above which a server gives blocks away, and an assignment whose largest load is not above it."""
    even = np.full(len(weight), -1, np.int32)
    _settle(even, weight, n_servers)
    reached = float(np.bincount(even, weight, n_servers).max())
    return max(LEVEL * float(weight.sum()) / n_servers, reached), even


def _shed(owner: Ints, weight: Floats, cost: Floats, level: float) -> None:
    """Take blocks from servers above the level until no server is, in place: as few bytes as possible."""
    for server in np.unique(owner[owner >= 0]).tolist():
        held = np.flatnonzero(owner == server)
        excess = float(weight[held].sum() - level)
        owner[_cheapest(held, weight, cost, excess)] = -1


def _cheapest(held: Ints, weight: Floats, cost: Floats, excess: float) -> list[int]:
    """Return blocks whose total weight is at least the excess and whose cost is small.

    Candidates are the cheapest single block that suffices, and each prefix of the blocks in order of cost per weight
    with the cheapest block that completes it.
    """
    if excess <= 1e-9 * weight[held].sum():
        return []
    left = held[np.lexsort((held, -weight[held], cost[held] / np.maximum(weight[held], 1e-300)))]
    taken: list[int] = []
    best: list[int] = left.tolist()
    best_cost = float("inf")
    while True:
        rest = excess - weight[taken].sum()
        enough = left[weight[left] >= rest]
        if len(enough):
            last = int(enough[np.lexsort((weight[enough], cost[enough]))[0]])
            tried = _needed([*taken, last], weight, cost, excess)
            if cost[tried].sum() < best_cost:
                best, best_cost = tried, cost[tried].sum()
        less = np.flatnonzero((weight[left] < rest) & (weight[left] > 0))
        if not len(less) or cost[taken].sum() >= best_cost:
            return best
        taken.append(int(left[less[0]]))
        left = np.delete(left, less[0])


def _needed(blocks: list[int], weight: Floats, cost: Floats, excess: float) -> list[int]:
    """Return the blocks without those that are not needed to reach the excess, the most expensive first."""
    total = weight[blocks].sum()
    needed = []
    for block in sorted(blocks, key=lambda b: -cost[b]):
        if total - weight[block] >= excess:
            total -= weight[block]
        else:
            needed.append(block)
    return needed


def _settle(owner: Ints, weight: Floats, n_servers: int) -> None:
    """Give blocks without an owner to the least loaded servers, the heaviest first, in place."""
    total = np.bincount(owner[owner >= 0], weight[owner >= 0], n_servers).astype(np.float64)  # of none, integers
    loose = np.flatnonzero(owner < 0)
    for block in loose[np.argsort(-weight[loose], kind="stable")].tolist():
        owner[block] = np.argmin(total)
        total[owner[block]] += weight[block]


def _share(owner: Ints, weight: Floats, cost: Floats, n_servers: int) -> None:
    """Give a block to every server that has none, in place."""
    counts = np.bincount(owner, minlength=n_servers)
    for server in np.flatnonzero(counts == 0).tolist():
        block = _spare(owner, weight, cost, counts)
        counts[owner[block]] -= 1
        owner[block], counts[server] = server, 1


def _spare(owner: Ints, weight: Floats, cost: Floats, counts: Ints) -> int:
    """Return the cheapest block of the most loaded server that has several."""
    total = np.where(counts > 1, np.bincount(owner, weight, len(counts)), -1.0)
    held = np.flatnonzero(owner == np.argmax(total))
    return int(held[np.argmin(cost[held])])
