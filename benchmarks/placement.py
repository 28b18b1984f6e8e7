"""The learned placement policy: how fast it decides, and what its parts are worth.

python -m benchmarks.placement            the rows of `make bench`
python -m benchmarks.placement setting [NAME ...] [--rules RULE ...] [--policies FILE ...]    mean JCT beside rules'
python -m benchmarks.placement ablation [NAME ...] [--policies FILE ...]    trains each variant (some 10 CPU minutes)

Both judge on held-out seeds; FILE holds weights of `labkit train-policy marl`, such as of another training seed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import Row, size
from labkit import schedulers
from labkit.core.protocols import Scheduler
from labkit.core.snapshot import Snapshot
from labkit.experiment import Experiment
from labkit.learning.marl.settings import Setting
from labkit.learning.marl.trainer import Recipe, Trainer
from labkit.schedulers.marl.network import NEVER, Net, desk_of
from labkit.schedulers.marl.scenes import declared_speed, scene_of
from labkit.schedulers.marl.scheduler import show
from labkit.schedulers.marl.weights import load
from labkit.speed.what_if import learned, seconds_more
from labkit.workloads.expressions import trace

COMMAND = "python -m benchmarks.placement"
SLOT_S = 1800.0
SEEDS = range(size(10, short=1))
RULES = (
    "even", "even_pods", "partitioned(placer=pack)", "tetris_pods", "look_ahead_pods", "interference_aware", "marl",
)  # fmt: skip
"""`even` first, with which all are compared; the two that follow Tetris, of which the better one counts."""


def rows() -> list[Row]:
    """Return one row per figure, in processor time of one core."""
    snapshot, n_tasks = crowded(size(15, short=1))
    marl, even = schedulers.make("marl"), schedulers.make("fifo(backfill=True,placer=even)")
    took = {name: _cpu_s(lambda one=one: one.schedule(snapshot)) for name, one in (("marl", marl), ("even", even))}
    return [
        Row(f"marl: {n_tasks} tasks of {len(snapshot.waiting)} jobs decided at 20 pods of 100 machines, with features",
            took["marl"], "s", 1.0, False, COMMAND),
        Row("the same by even, without pods: yardstick", took["even"], "s", None, False, COMMAND),
        Row("placements looked ahead per CPU second, 20 machines", _per_s(), "1/s", 1e5, True, COMMAND),
    ]  # fmt: skip


def crowded(per_pod: int) -> tuple[Snapshot, int]:
    """Return a moment at which so many jobs wait at each of 20 pods, beside 1,500 that run, and the tasks that wait."""
    n_slots = size(5, short=1)
    jobs = trace(f"marl_jobs(load=5, per_slot=15, n_slots={n_slots + 1}, n_pods=20, pattern='uniform')")
    made = Experiment.of(jobs, cluster="marl-vl2", interference="calibrated")
    rule = schedulers.make("fifo(backfill=True)")
    session = made.session(rule)
    while session.now_s < n_slots * SLOT_S and not session.done:
        session.step(rule.schedule(session.snapshot()))
    ends_s = jobs.arrival_s[jobs.arrival_s <= session.now_s].max() + SLOT_S * per_pod / 15
    while session.now_s < ends_s and not session.done:
        session.step(type(rule.schedule(session.snapshot())).nothing())
    snapshot = session.snapshot()
    waiting = snapshot.waiting
    return snapshot, int((jobs.n_workers + jobs.n_ps)[waiting].sum())


def _per_s() -> float:
    """Return how many placements of a gang are looked ahead in a second of one core, in a pod of 20 machines."""
    jobs = trace("marl_jobs(load=5, n_pods=1, n_slots=4)")
    made = Experiment.of(jobs, cluster="vl2(4, 2, per_rack=10, gbps=(10, 20, 40))", interference="calibrated")
    rule = schedulers.make("fifo(backfill=True)")
    session = made.session(rule)
    while session.ledger.n_holding < 20 and not session.done:
        session.step(rule.schedule(session.snapshot()))
    snapshot = session.snapshot()
    cluster, runs_on = snapshot.cluster, snapshot.runs_on
    scene = scene_of(snapshot.table, cluster, runs_on=runs_on, speed=declared_speed(snapshot.table, cluster))
    net = load("marl").net
    slow = learned(net.seen, net.out)
    show(scene, slow, snapshot)
    job = int(np.flatnonzero(~snapshot.holds(np.arange(len(jobs))))[0])
    others, n = np.zeros(len(jobs), np.int64), size(20_000, short=10)
    n_workers, n_tasks = int(jobs.n_workers[job]), int(jobs.n_workers[job] + jobs.n_ps[job])
    where = np.random.default_rng(0).integers(0, cluster.n_machines, n)

    def many() -> None:
        look(scene, slow, job, where, n_workers, n_tasks, others)

    return n / _cpu_s(many)


def look(scene: Any, slow: Any, job: int, where: Any, n_workers: int, n_tasks: int, others: Any) -> float:
    """Look ahead at a gang on one machine after the other."""
    return float(_look(scene.facts, slow, scene.tasks, scene.left, job, where, n_workers, n_tasks, others))


def _looker() -> Callable[..., float]:
    from numba import njit

    @njit
    def many(facts, slow, tasks, left, job, where, n_workers, n_tasks, others):  # type: ignore[no-untyped-def]
        total, groups = 0.0, np.zeros(n_tasks, np.int64)
        for m in where:
            for t in range(n_tasks):
                groups[t] = facts.first_group[m] + t % 2
            own, more = seconds_more(facts, slow, tasks, left, job, groups, n_workers, others)
            total += own + more
        return total

    made: Callable[..., float] = many
    return made


_look = _looker()


def _cpu_s(call: Callable[[], object], *, repeat: int = 3) -> float:
    call()
    took = []
    for _ in range(size(repeat, short=1)):
        began = time.thread_time()
        call()
        took.append(time.thread_time() - began)
    return min(took)


# --- what it is worth


def mean_jct(scheduler: Scheduler | str, seeds: Sequence[int], *, what: str, cluster: str, level: str) -> list[float]:
    """Return the mean JCT of each seed, in slots."""
    found = []
    for seed in seeds:
        made = Experiment.of(trace(what, seed=seed), cluster=cluster, interference=level)
        found.append(made.run(scheduler).summary["mean_jct_s"] / SLOT_S)
    return found


SETTINGS = {
    "4 x 20, load 5": ("marl_jobs(load=5)", "marl-4x20", "calibrated"),
    "4 x 20, load 2.5": ("marl_jobs(load=2.5)", "marl-4x20", "calibrated"),
    "4 x 20, mild": ("marl_jobs(load=5)", "marl-4x20", "mild"),
    "4 x 20, none": ("marl_jobs(load=5)", "marl-4x20", "none"),
    "4 x 20, oversubscribed": ("marl_jobs(load=5)", "marl-4x20-oversubscribed", "calibrated"),
    "2 x 40": ("marl_jobs(load=5, per_slot=6, n_pods=2)", "marl-2x40", "calibrated"),
    "fat_tree(8)": ("marl_jobs(load=5, per_slot=2.4, n_pods=8)", "fat_tree(8)", "calibrated"),
}


def setting(names: Sequence[str], rules: Sequence[str], seeds: Sequence[int]) -> None:
    """Print mean JCTs, ratios to `even` over the cluster, and on how many seeds a rule is better."""
    warnings.simplefilter("ignore")
    for name in names:
        what, cluster, level = SETTINGS[name]
        even: list[float] = []
        for rule in rules:
            mine = mean_jct(rule, seeds, what=what, cluster=cluster, level=level)
            even = even or mine
            ratio = np.array(mine) / np.array(even)
            print(
                f"| {name} | {rule} | {np.mean(mine):.3f} | {np.mean(mine) / np.mean(even):.3f} | "
                f"{ratio.min():.3f}-{ratio.max():.3f} | {(ratio < 1).sum()} of {len(ratio)} |", flush=True,
            )  # fmt: skip


VARIANTS: dict[str, dict[str, Any]] = {
    "imitation alone": {"n_rounds": 0},
    "policy gradient alone": {"n_lessons": 0},
    "no forwarding": {"forwards": False},
    "no waiting": {"waits": False},
    "a head for each pod": {"n_agents": 4},
    "no leave-one-out": {"leaves_one_out": False},
}
"""What each leaves out of the recipe; the whole of it is the shipped policy."""


def ablation(names: Sequence[str], policies: Sequence[str], seeds: Sequence[int], seed: int = 1) -> None:
    """Train variants and print their mean JCTs on held-out seeds, in compiled simulations."""
    for policy in policies:
        net = load(policy).net
        for what, parts in (("", {}), (", waits switched off", {"waits": False}), (", forwards off", {"stays": True})):
            print(f"| {policy}{what} | | | {_jcts(played(net, seeds, **parts))} |", flush=True)
    for name in names:
        options = VARIANTS[name] | ({"n_lessons": 1, "n_rounds": 1, "n_fits": 5} if len(seeds) == 1 else {})
        trainer = Trainer(Setting(["marl-4x20"], ["marl_jobs(load=5)"]), seed=seed, recipe=Recipe(**options))
        for _ in trainer.updates():
            pass
        jct = played(trainer.policy.net(), seeds, stays=not trainer.recipe.forwards)
        print(f"| {name} | {trainer.n_updates} | {trainer.cpu_s:.0f} | {_jcts(jct)} |", flush=True)


def _jcts(jct: Sequence[float]) -> str:
    return f"{np.mean(jct):.3f} | {' '.join(f'{each:.2f}' for each in jct)}"


def played(net: Net, seeds: Sequence[int], *, stays: bool = False, waits: bool = True) -> list[float]:
    """Return the mean JCT of each seed with the most probable choices, in slots, in compiled simulations."""
    from labkit.learning.marl.episodes import ActionRule, play, record
    from labkit.learning.marl.settings import world_of
    from labkit.speed.interference.levels import level
    from labkit.topology import build

    known, cluster, found = level("calibrated"), build("marl-4x20"), []
    assert known is not None
    if not waits:
        net = net._replace(wait=np.where(np.arange(net.wait.shape[1]) == net.wait.shape[1] - 1, NEVER, 0.0 * net.wait))
    for seed in seeds:
        scene, world = world_of(trace("marl_jobs(load=5)", seed=seed), cluster, model=known.model, uses=known.uses)
        how, slow = ActionRule(False, False, 0.0, stays), learned(net.seen, net.out)
        play(scene, world, slow, net, how, desk_of(scene), record(1), np.random.default_rng(0))
        found.append(float((world.done_s - world.arrival_s).mean() / SLOT_S))
    return found


def main() -> None:
    """Do what the command line asks for."""
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("what", nargs="?", choices=("rows", "setting", "ablation"), default="rows")
    told.add_argument("names", nargs="*", help="of SETTINGS or VARIANTS; all without one")
    told.add_argument("--rules", nargs="*", default=list(RULES))
    told.add_argument("--policies", nargs="*", default=[])
    asked = told.parse_args()
    if asked.what == "setting":
        rules = [*asked.rules, *(f"marl(weights={policy!r})" for policy in asked.policies)]
        setting(asked.names or list(SETTINGS), rules, list(SEEDS))
    elif asked.what == "ablation":
        whole = ["marl", *asked.policies] if asked.policies or not asked.names else []
        ablation(asked.names or list(VARIANTS), whole, list(SEEDS))
    else:
        for row in rows():
            print(row)


if __name__ == "__main__":
    main()
