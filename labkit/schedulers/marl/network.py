"""The policy: what it sees of a placement, what the placement is worth to it, and which one it takes."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import ScratchBook, free_in_pod
from labkit.kernels import by_reference, inner
from labkit.kernels.arrays import fill_with
from labkit.schedulers.marl.candidates import MOST, Candidates, GangRequest, candidate_buffer, candidates
from labkit.speed.what_if import N_SLOWDOWN_FEATURES, WORKER, RunFacts, Slow, TaskTable, seconds_more

FEATURES: Final = (
    "own_slowdown", "others", "machines", "empty", "gpus_left", "cores_left", "stranded", "at_home", "pod_free",
    "traffic", "length", "queue", "crowd", "uneven",
)  # fmt: skip
"""What the head sees of a placement."""
WAITING: Final = ("cost", "age", "queue", "free", "length", "one")
"""What it sees of leaving a job in the queue."""
N_TOP: Final = 12
"""Placements of least predicted cost that the head weighs."""
SLOT_S: Final = 1800.0
"""Seconds that lengths of jobs are compared with."""
MOST_WAITED: Final = 2.0
"""Times its duration alone that a job is left in the queue at most, although it finds room."""
LEAST: Final = 1e-9
DEAR: Final = 1e9
NEVER: Final = -1e6
"""Worth of what is never taken."""


@by_reference
class Net(NamedTuple):
    """The weights: a network that predicts slowdowns, and a head that weighs placements, for each of A agents.

    The agent of a job is its home pod modulo A; with A = 1 all pods share one head.
    """

    seen: Floats
    out: Floats
    """`seen` and `out`: (6, H), (H,) as `labkit.speed.what_if.Slow` has them."""
    first: Floats
    bias: Floats
    last: Floats
    """`first`, `bias` and `last`: (A, F, U), (A, U), (A, U) of the head: a layer of U units over `FEATURES`."""
    wait: Floats
    """(A, 6) what leaving a job in the queue is worth, by `WAITING`."""
    sharp: Floats
    """(A,) worth of a predicted cost of one duration alone."""


@by_reference
class Scene(NamedTuple):
    """What a scheduler knows of jobs and cluster: N jobs, M machines, P pods."""

    facts: RunFacts
    tasks: TaskTable
    room: ScratchBook
    """`facts`, `tasks` and `room`: as declared; where jobs are; what is free."""
    left: Floats
    alone_s: Floats
    home: Ints
    bound: Bools
    """`left`, `alone_s`, `home` and `bound`: (N,) steps left, declared seconds alone, the pod that each job belongs to,
    and whether it was forwarded there and may go nowhere else."""
    worker: Floats
    ps: Floats
    n_workers: Ints
    n_ps: Ints
    runs_on: Bools
    """`worker`, `ps`, `n_workers`, `n_ps` and `runs_on`: (N, R), (N, R), (N,), (N,), (N, T) of the gang that each asks
    for."""
    pods: Ints
    """(2,) pods that are looked at beside the home, and machines of each on which a whole gang is tried."""
    unit: Floats
    """(1,) how many times the use that the head was trained to see the facts tell."""


@by_reference
class CandidateBuffers(NamedTuple):
    """What a decision is made with: placements, their costs, the best of them, and what is seen of these."""

    placements: Candidates
    cost: Floats
    """`placements` and `cost`: all placements, and (C,) their costs over the time alone."""
    own: Floats
    more: Floats
    """`own` and `more`: (C,) the parts of a cost; of the best, `own` is the whole in the end."""
    kind: Ints
    """(C,) a number of the machines that it takes."""
    top: Ints
    features: Floats
    logit: Floats
    """`top`, `features` and `logit`: (K,) the best of each kind, (K + 1, F) theirs, and (K + 1,) what it is
    worth; waiting comes last."""
    empty: Bools
    others: Ints
    """`empty` and `others`: (M,) machines without tasks, and (N,) to be written to."""


def desk_of(scene: Scene) -> CandidateBuffers:
    """Return a desk."""
    n = N_TOP + 1
    return CandidateBuffers(
        candidate_buffer(scene.tasks.group.shape[1]), np.zeros(MOST), np.zeros(MOST), np.zeros(MOST),
        np.zeros(MOST, np.int64), np.zeros(N_TOP, np.int64),
        np.zeros((n, len(FEATURES))), np.zeros(n), np.zeros(len(scene.facts.up_gbps), np.bool_),
        np.zeros(len(scene.left), np.int64),
    )  # fmt: skip


@inner
def gang_of(scene: Scene, job: int) -> GangRequest:
    """Return the gang that a job asks for."""
    return GangRequest(scene.worker[job], scene.ps[job], scene.n_workers[job], scene.n_ps[job], scene.runs_on[job])


@inner
def _orders(scene: Scene, pod: int) -> Ints:
    """Return a pod's machines by what is used there, and by free cores, (2, m)."""
    room = scene.room
    mine = room.machines[room.first_machine[pod] : room.first_machine[pod + 1]]
    key = np.zeros((2, len(mine)))
    for i in range(len(mine)):
        m = mine[i]
        for g in range(room.first_group[m], room.first_group[m + 1]):
            key[0, i] += scene.tasks.cores[g] / scene.unit[0]
            key[1, i] -= room.free[g, CPUS]
        key[0, i] += 0.5 * (scene.tasks.up[m] + scene.tasks.down[m])
    order = np.empty((2, len(mine)), np.int64)
    for o in range(2):
        fill_with(order[o], mine[np.argsort(key[o], kind="mergesort")])
    return order


@inner
def _find(scene: Scene, job: int, desk: CandidateBuffers, stays: bool) -> None:
    """Note placements: at home, and in those pods that have most free GPUs."""
    room, gang, desk.placements.n[0] = scene.room, gang_of(scene, job), 0
    n_pods, home = len(room.first_machine) - 1, scene.home[job]
    need = gang.n_workers * gang.worker[GPUS]
    need_cores = gang.n_workers * gang.worker[CPUS] + gang.n_ps * gang.ps[CPUS]
    free = np.full(n_pods, -1.0)
    for pod in range(n_pods):
        gpus, cores = free_in_pod(room, pod)
        if gpus + LEAST >= need and cores + LEAST >= need_cores:
            free[pod] = gpus + 1e-3 * cores
    if home >= 0:
        if free[home] >= 0:
            candidates(room, gang, home, desk.empty, _orders(scene, home), scene.pods[1], desk.placements)
        if scene.bound[job] or (stays and desk.placements.n[0]):
            return
        free[home] = -1.0
    for _ in range(min(n_pods, scene.pods[0])):
        pod = int(np.argmax(free))
        if free[pod] < 0:
            return
        candidates(room, gang, pod, desk.empty, _orders(scene, pod), scene.pods[1], desk.placements)
        free[pod] = -1.0


@inner(error_model="numpy")
def _see(scene: Scene, job: int, desk: CandidateBuffers, c: int, n_waiting: int, features: Floats) -> None:
    """Write what the head sees of a placement."""
    room, tasks, facts = scene.room, scene.tasks, scene.facts
    n_workers, n = scene.n_workers[job], scene.n_workers[job] + scene.n_ps[job]
    groups, pod, alone_s = desk.placements.group[c, :n], desk.placements.pod[c], scene.alone_s[job]
    features[:] = 0.0
    gpus, cores, crowd, machines, empty, stranded, lightest = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.inf
    for t in range(n):
        m, first = facts.group_machine[groups[t]], True
        for u in range(t):
            first = first and facts.group_machine[groups[u]] != m
        if not first:
            continue
        machines += 1.0
        empty += 1.0 if desk.empty[m] else 0.0
        g_left, c_left, used, has = 0.0, 0.0, 0.0, 0.0
        for g in range(room.first_group[m], room.first_group[m + 1]):
            g_left += room.free[g, GPUS]
            c_left += room.free[g, CPUS]
            used += tasks.cores[g]
            has += facts.group_cores[g]
        for u in range(n):
            if facts.group_machine[groups[u]] == m:
                demand = scene.worker[job] if u < n_workers else scene.ps[job]
                g_left -= demand[GPUS]
                c_left -= demand[CPUS]
                used += facts.cores[WORKER if u < n_workers else 1, job]
        gpus, cores, stranded = gpus + g_left, cores + c_left, stranded + max(g_left - c_left / 4, 0.0)
        used /= scene.unit[0]
        crowd, lightest = max(crowd, used / max(has, 1.0)), min(lightest, used / max(has, 1.0))
    free, _ = free_in_pod(room, pod)
    total = 0.0
    for i in range(room.first_machine[pod], room.first_machine[pod + 1]):
        m = room.machines[i]
        total += room.first_group[m + 1] - room.first_group[m]
    features[0] = min(desk.own[c] - 1.0, 5.0)
    features[1] = min(max(desk.more[c], -1.0), 5.0)
    features[2] = machines - 1.0
    features[3] = empty / machines
    features[4] = gpus / machines / 4
    features[5] = cores / machines / 16
    features[6] = stranded / machines / 4
    features[7] = 1.0 if pod == scene.home[job] else 0.0
    features[8] = free / max(2 * total, 1.0)
    features[9] = np.log1p(facts.moved[WORKER, job] / scene.unit[0] * n_workers / 10)
    features[10] = np.log(max(alone_s, 1.0) / SLOT_S) / 2
    features[11] = np.log1p(n_waiting) / 3
    features[12] = crowd
    features[13] = crowd - lightest


@inner(error_model="numpy")
def worth_of(net: Net, agent: int, features: Floats, cost: float) -> float:
    """Return the logit of a placement for an agent."""
    worth = -net.sharp[agent] * cost
    for u in range(net.bias.shape[1]):
        x = net.bias[agent, u]
        for f in range(len(features)):
            x += features[f] * net.first[agent, f, u]
        worth += net.last[agent, u] * np.tanh(x)
    return worth


@inner(error_model="numpy")
def weigh(  # noqa: C901 - one pass: what there is, what it costs, what it is worth
    scene: Scene, slow: Slow, net: Net, job: int, now_s: float, arrival_s: float, n_waiting: int, n_running: int,
    stays: bool, desk: CandidateBuffers,
) -> int:  # fmt: skip
    """Find the best placements of a job and what each is worth; return how many there are, 0: it finds no room.

    Behind them stands waiting, in row K of `desk.features` and `desk.logit`; -inf where it is not allowed.
    """
    tasks, found = scene.tasks, desk.placements
    for m in range(len(desk.empty)):
        desk.empty[m] = tasks.head[m] < 0
    _find(scene, job, desk, stays)
    n_found, n_workers, alone_s = found.n[0], scene.n_workers[job], scene.alone_s[job]
    n, agent = n_workers + scene.n_ps[job], max(scene.home[job], 0) % len(net.sharp)
    for c in range(n_found):
        own, more = seconds_more(
            scene.facts, slow, tasks, scene.left, job, found.group[c, :n], n_workers, desk.others
        )  # fmt: skip
        desk.own[c], desk.more[c] = own / alone_s, more / alone_s
        cost = (own + more) / alone_s
        desk.cost[c] = cost if cost < DEAR else DEAR  # and so is what is no number
        desk.kind[c] = 0
        for t in range(n):
            desk.kind[c] += (scene.facts.group_machine[found.group[c, t]] + 1) ** 3
    n_top = min(n_found, N_TOP)
    for k in range(n_top):
        best = int(np.argmin(desk.cost[:n_found]))
        if desk.cost[best] == np.inf:
            n_top = k
            break
        desk.top[k] = best
        _see(scene, job, desk, best, n_waiting, desk.features[k])
        desk.logit[k] = worth_of(net, agent, desk.features[k], desk.cost[best])
        desk.own[best] = desk.cost[best]
        for c in range(n_found):  # of the same machines, the best is enough
            if desk.kind[c] == desk.kind[best]:
                desk.cost[c] = np.inf
    if n_top:
        _see_waiting(desk, desk.own[desk.top[0]], (now_s - arrival_s) / alone_s, n_top)
        allowed = n_running > 0 and now_s < latest_s(arrival_s, alone_s)
        worth = np.sum(net.wait[agent] * desk.features[n_top, : net.wait.shape[1]])
        desk.logit[n_top] = worth if allowed else -np.inf
    return n_top


@inner
def latest_s(arrival_s: float, alone_s: float) -> float:
    """Return the moment from which on a job that finds room is not left in the queue."""
    return arrival_s + MOST_WAITED * alone_s


@inner
def _see_waiting(desk: CandidateBuffers, cost: float, age: float, n_top: int) -> None:
    """Write what the head sees of leaving a job in the queue."""
    features = desk.features[n_top]
    features[:] = 0.0
    features[0], features[1], features[2] = min(cost, 10.0), min(age, MOST_WAITED), desk.features[0, 11]
    features[3], features[4], features[5] = desk.features[0, 8], desk.features[0, 10], 1.0


@inner
def best_of(desk: CandidateBuffers, n_top: int) -> int:
    """Return the option of the most worth; n_top: wait."""
    best = 0
    for k in range(1, n_top + 1):
        if desk.logit[k] > desk.logit[best]:
            best = k
    return best


@inner
def drawn(desk: CandidateBuffers, n_top: int, rng: np.random.Generator) -> int:
    """Return an option by its chance."""
    most, total = desk.logit[best_of(desk, n_top)], 0.0
    for k in range(n_top + 1):
        total += np.exp(desk.logit[k] - most)
    left = rng.random() * total
    for k in range(n_top + 1):
        left -= np.exp(desk.logit[k] - most)
        if left < 0:
            return k
    return best_of(desk, n_top)


def plain(n_hidden: int = 16, n_units: int = 16, n_agents: int = 1) -> Net:
    """Return weights of a head that takes the least predicted cost and never waits."""
    a, wait = n_agents, np.zeros((n_agents, len(WAITING)))
    wait[:, -1] = NEVER
    return Net(
        np.zeros((N_SLOWDOWN_FEATURES, n_hidden)), np.zeros(n_hidden), np.zeros((a, len(FEATURES), n_units)),
        np.zeros((a, n_units)),
        np.zeros((a, n_units)), wait, np.full(a, 20.0),
    )  # fmt: skip
