"""Traffic between the tasks of running jobs: tasks to flows to bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from labkit.core.cluster import Cluster, Network
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.solvers.maxmin import equal_share_rates, max_min_rates

Share = Literal["max-min", "equal"]
"""How flows share a link: max-min fair, or each flow the tightest of its links' equal shares."""


@dataclass(frozen=True, eq=False, slots=True)
class RoleTasks:
    """The tasks of one role, one by one.

    Attributes
    ----------
    row : array
        (W,) the row of `Running` that each task stands in.
    job : array
        (W,) position of its job among the running ones, never decreasing.
    group : array
        (W,) its device group.
    first : array
        (J + 1,) tasks of running job j are `first[j]:first[j + 1]`.
    """

    row: Ints
    job: Ints
    group: Ints
    first: Ints

    @classmethod
    def of(cls, running: Running, role: Role) -> RoleTasks:
        """Return the tasks of a role."""
        rows = np.flatnonzero(running.role == role)
        row = np.repeat(rows, running.count[rows]).astype(np.int32)
        job = running.row_job()[row]
        first = np.searchsorted(job, np.arange(len(running.job) + 1)).astype(np.int32)
        return cls(row, job, running.group[row], first)

    @property
    def count(self) -> Ints:
        """Tasks of each running job, (J,)."""
        return np.diff(self.first)

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, eq=False, slots=True)
class Flows:
    """What the workers of all running jobs exchange in a step.

    Attributes
    ----------
    worker : array
        (F,) the worker, a position in its `RoleTasks`, that waits for the flow.
    job : array
        (F,) position of its job among the running ones.
    source, destination : array
        (F,) device groups.
    size_bytes : array
        (F,) bytes per step.
    flow_hash : array
        (F,) what equal-cost multi-path chooses by; the same pair of tasks has the same one for ever.
    """

    worker: Ints
    job: Ints
    source: Ints
    destination: Ints
    size_bytes: Floats
    flow_hash: Ints

    def __len__(self) -> int:
        return len(self.job)


def bandwidth_gbps(cluster: Cluster, flows: Flows, *, share: Share = "max-min", alone: bool = False) -> Floats:
    """Return the bandwidth of each flow, (F,) in Gbps.

    Inside a device group a flow has the PCIe bus; between sockets also the link between them; between machines it
    shares the network's links with all other flows, with nothing to share where the cluster has no network. PCIe and
    socket links are not shared: that is what the interference model is for.

    Parameters
    ----------
    cluster : Cluster
        Where the groups are.
    flows : Flows
        What runs at the same time.
    share : {"max-min", "equal"}
        How flows share links.
    alone : bool
        Give each job a network of its own.
    """
    rates, remote = rates_inside(cluster, flows)
    far = np.flatnonzero(remote)
    if cluster.network is None or not len(far):
        return rates
    source, destination = cluster.group_machine[flows.source], cluster.group_machine[flows.destination]
    paths = cluster.network.route(source[far], destination[far], flows.flow_hash[far])
    capacity = cluster.network.link_gbps
    if alone:
        paths, capacity = _own_links(cluster.network, paths, owner=flows.job[far])
    solve = max_min_rates if share == "max-min" else equal_share_rates
    rates[far] = np.minimum(rates[far], solve(paths, capacity))
    return rates


def rates_inside(cluster: Cluster, flows: Flows) -> tuple[Floats, Bools]:
    """Return the machines' limit on each flow, (F,) in Gbps, and whether it leaves its machine, (F,)."""
    rates = np.minimum(cluster.group_pcie_gbps[flows.source], cluster.group_pcie_gbps[flows.destination])
    source, destination = cluster.group_machine[flows.source], cluster.group_machine[flows.destination]
    local = source == destination
    across = local & (flows.source != flows.destination)
    rates[across] = np.minimum(rates[across], cluster.machine_socket_gbps[source[across]])
    return rates, ~local


def flows_of(running: Running, *, jobs: Jobs, model_bytes: Floats) -> Flows:
    """Return the flows of all running jobs in a step, job by job.

    A worker and a parameter server of a job push and pull 2 size / n_ps bytes. The pull is the push in reverse, so one
    flow stands for both. Ring all-reduce moves 2 (w - 1) / w size bytes from each of w workers to the next; the ring
    follows the device groups, so that it leaves each machine once.

    Parameters
    ----------
    running : Running
        J jobs.
    jobs : Jobs
        N jobs; one that asked for no parameter server, and has none, uses all-reduce.
    model_bytes : array
        (N,) size of the parameters.
    """
    from labkit.speed.network_kernel import exchanged

    job, first, group, count, n_workers, n_ps = (
        np.ascontiguousarray(each, np.int32)
        for each in (running.job, running.first, running.group, running.count, running.n_workers, running.n_ps)
    )
    role, size = np.ascontiguousarray(running.role, np.int8), np.asarray(model_bytes[job], np.float64)
    return Flows(*exchanged(job, first, role, group, count, n_workers, n_ps, jobs.n_ps[job] == 0, size))


def link_loads(
    running: Running, *, jobs: Jobs, cluster: Cluster, model_bytes: Floats, speed: Floats
) -> Floats:  # fmt: skip
    """Return which part of its bandwidth each link of the network carries on average, (L,).

    Each job exchanges `speed` times in a second. What a worker pushes to a parameter server takes the route from it to
    there, what it pulls the route back. More than 1: the network cannot carry these speeds.

    Parameters
    ----------
    running : Running
        J jobs, such as those of `Snapshot.running` or `Trial.running`.
    jobs : Jobs
        N jobs, such as `Snapshot.table`.
    cluster : Cluster
        With its network, whose links these are; none without one.
    model_bytes : array
        (N,) size of the parameters.
    speed : array
        (J,) steps per second, such as `Snapshot.jobs.speed` has measured; NaN counts as 0.
    """
    if cluster.network is None:
        return np.zeros(0)
    flows = flows_of(running, jobs=jobs, model_bytes=model_bytes)
    gbps = flows.size_bytes * 8e-9 * np.nan_to_num(speed)[flows.job]
    source, destination = cluster.group_machine[flows.source], cluster.group_machine[flows.destination]
    ring = (running.n_ps == 0)[flows.job]
    load = np.zeros(cluster.network.n_links + 1)  # the last one stands for "no link"
    for begin, end, part in ((source, destination, np.where(ring, 1.0, 0.5)), (destination, source, 0.5 * ~ring)):
        far = np.flatnonzero((begin != end) & (part > 0))
        paths = cluster.network.route(begin[far], end[far], flows.flow_hash[far])
        load += np.bincount(paths.ravel(), np.repeat((gbps * part)[far], paths.shape[1]), len(load))
    return np.asarray(load[:-1] / cluster.network.link_gbps)


def _own_links(network: Network, paths: Ints, *, owner: Ints) -> tuple[Ints, Floats]:
    """Return paths over a copy of each link for each owner, and the copies' capacities."""
    keys = owner[:, None].astype(np.int64) * (network.n_links + 1) + paths
    keys[paths == network.n_links] = np.iinfo(np.int64).max
    used, index = np.unique(keys, return_inverse=True)
    copies = used[used < np.iinfo(np.int64).max]
    return index.reshape(paths.shape).astype(np.int32), network.link_gbps[copies % (network.n_links + 1)]
