"""Every shipped topology passes the public check, and the check catches what it is there to catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from labkit.core import Cluster, InputError, Jobs
from labkit.core.resources import Ints
from labkit.experiment import simulate
from labkit.testing import ConformanceError, check_topology
from labkit.topology import available, bcube, build, fat_tree, leaf_spine, no_network, single_switch, vl2
from labkit.topology.links import Cables, network

BUILT = [fat_tree(4), vl2(4, 3, per_rack=2), bcube(3, 1), leaf_spine(3, 2, 2), single_switch(4), no_network(3)]


@pytest.mark.parametrize("cluster", BUILT, ids=str)
def test_every_shipped_topology_passes(cluster: Cluster) -> None:
    check_topology(cluster)


@pytest.mark.parametrize("name", available())
def test_every_preset_passes(name: str) -> None:
    cluster = build(name)
    check_topology(cluster)
    assert len(set(cluster.machines)) == cluster.n_machines
    if (wires := cluster.network) is not None:
        assert len(wires.nodes) == len(set(wires.nodes))
        assert (wires.tier[wires.link_from[::2]] < wires.tier[wires.link_to[::2]]).all()


@dataclass(frozen=True)
class Ring:
    """A ring of n racks of one machine, as a user may write it: cable i goes to rack i, cable n + i on to the next."""

    n: int
    swapped: bool = False

    def __call__(self, source: Ints, destination: Ints, flow_hash: Ints) -> Ints:
        paths = np.full((len(source), self.n + 2), 4 * self.n, np.int32)
        for f, (s, d) in enumerate(zip(source.tolist(), destination.tolist(), strict=True)):
            if s != d:
                hops = [2 * (self.n + (s + i) % self.n) for i in range((d - s) % self.n)]
                links = [2 * s, *hops, 2 * d + 1]
                paths[f, : len(links)] = [link ^ 1 for link in links] if self.swapped else links
        return paths


def ring(n: int, *, swapped: bool = False) -> Cluster:
    at = np.arange(n, dtype=np.int32)
    cables = [Cables(at, n + at, 10.0), Cables(n + at, n + (at + 1) % n, 10.0)]
    router: Any = Ring(n, swapped)
    wires = network("ring", n_machines=n, switches=[("rack", n)], cables=cables, route=router)
    return replace(no_network(n), name=f"ring({n})", network=wires)


def test_a_users_ring_passes() -> None:
    check_topology(ring(5))


def wired(**columns: object) -> Cluster:
    cluster = leaf_spine(2, 2, 2)
    assert cluster.network is not None
    return replace(cluster, name="mine", network=replace(cluster.network, **columns))


def detour(source: Ints, destination: Ints, flow_hash: Ints) -> Ints:
    """Return the right paths, but that of a machine to itself goes out and back."""
    right = leaf_spine(2, 2, 2).network.route(source, destination, flow_hash)  # type: ignore[union-attr]
    right[source == destination, :2] = np.stack([2 * source, 2 * source + 1], axis=1)[source == destination]
    return right


WRONG: list[tuple[Callable[[], Cluster], str]] = [
    (
        lambda: ring(4, swapped=True),
        r"^cluster 'ring\(4\)': the path from m0 to m1 is at m0 and continues with link 1, ",
    ),
    (lambda: wired(link_gbps=np.zeros(16)), "without a finite bandwidth above 0"),
    (lambda: wired(route=lambda s, d, h: np.full((len(s), 1), 16, np.int32)), "the path from m0 to m1 ends at m0"),
    (lambda: wired(route=detour), "the path from m0 to m0 leaves the machine by link 0; expected no link"),
    (lambda: wired(route=lambda s, d, h: [[0]]), "its router returns"),
    (lambda: wired(route=lambda s, d, h: np.full((len(s), 1), 99)), "links that are not there"),
    (lambda: wired(tier=np.zeros(8, np.int32)), "its 4 machines must be the first nodes"),
    (
        lambda: replace(no_network(2), group_type=np.array([0, 0, 0, 5], np.int32)),
        "of a device type that it does not name",
    ),
]


@pytest.mark.parametrize(("make", "complaint"), WRONG)
def test_the_check_catches(make: Callable[[], Cluster], complaint: str) -> None:
    with pytest.raises(ConformanceError, match=complaint) as told:
        check_topology(make())
    assert "\n" not in str(told.value)


def test_a_simulation_refuses_links_in_the_wrong_direction_in_one_line() -> None:
    """It ran, and said nothing."""
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[60, 60], duration_s=60, n_workers=4)
    assert simulate(jobs, cluster=ring(4), scheduler="fifo").summary["n_unfinished"] == 0
    with pytest.raises(InputError, match=r"^cluster 'ring\(4\)': the path .* in the direction of the flow\. See"):
        simulate(jobs, cluster=ring(4, swapped=True), scheduler="fifo")
