"""DLRover's brain: how good its plans are whatever the truth is, and what its decisions take.

python -m benchmarks dlrover    what decisions take, with many jobs and in a simulated week; other ways to plans
python -m benchmarks.dlrover    before that, plans on truths of many forms, and JCTs beside rivals
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks import Row, size
from benchmarks._dlrover_rivals import SIMULATED, Climber, Falling, Oracle
from benchmarks._dlrover_truths import Truth, hard, truths
from benchmarks._nsga2 import front_of, hypervolume
from benchmarks.dlrover_claims import single
from labkit.core import Jobs
from labkit.core.resources import Floats, amounts
from labkit.experiment import Experiment
from labkit.experiment.run import simulate
from labkit.results import finish_time_fairness, jain_index
from labkit.schedulers import make
from labkit.schedulers.dlrover.belief import believe, plan_of
from labkit.schedulers.dlrover.front import PlanLimits, fronts
from labkit.schedulers.dlrover.plan import NO_SLOWER, Plan, frontier, grid, search
from labkit.schedulers.dlrover.select import choose
from labkit.simulator import Overheads
from labkit.speed.bottleneck import WORK, Work
from labkit.topology import no_network
from labkit.topology.presets import DLROVER

COMMAND = "python -m benchmarks dlrover"
N_JOBS = size(1000, short=20)
A_WEEK = size(10_000, short=50)
WEEK_S = 7 * 86_400.0
N_SEEDS = size(20, short=2)
SMALL = "traces/dlrover-small.csv"
COLD, LIMITS = Plan(1, 32, 1, 32), PlanLimits(200, 200, 200, 32)
RIVALS: dict[str, Callable[[type[Falling]], object]] = {
    "dlrover": lambda _: make("dlrover"),
    "optimus": lambda _: make("optimus"),
    "static, tuned": lambda _: make("static(tuned=True)"),
    "hill climber": lambda _: Climber(),
    "oracle": Oracle,
}


def rows() -> list[Row]:
    """Return one row per figure; all times are of the processor."""
    return [*_plans(), *_choice(), *_decisions(), _week()]


def _row(name: str, value: float, unit: str, goal: float | None, *, higher_is_better: bool = False) -> Row:
    return Row(f"dlrover, {name}", round(value, 4), unit, goal, higher_is_better, COMMAND)


def _cpu_s(run: Callable[[], object], *, repeat: int = 5) -> float:
    """Return the shortest processor time of some runs in seconds, after one that compiles."""
    run()
    spent = []
    for _ in range(repeat):
        began_s = time.process_time()
        run()
        spent.append(time.process_time() - began_s)
    return min(spent)


def _plans() -> list[Row]:
    """Return what the plans of one job take: searched, as a front, and as NSGA-II finds one."""
    plans, work = grid(200), WORK["wide-deep"]
    which, speed = frontier(work, plans)
    full = hypervolume(plans.cores[which], speed, most=200)
    told = [
        _row(f"search over {len(plans):,} plans", 1e3 * _cpu_s(lambda: search(work, plans)), "CPU ms", 20),
        _row(
            "front of one job", 1e3 * _cpu_s(lambda: fronts(_works(1), [PlanLimits(200, 60, 16, 32)])), "CPU ms", None
        ),
    ]
    for population, generations in ((40, 50), (100, 100)):
        began_s = time.process_time()
        found = front_of(plans, work, population, generations, rng=np.random.default_rng(0))
        spent_s = time.process_time() - began_s
        part = hypervolume(*found, most=200) / full
        told += [
            _row(f"NSGA-II, {population} x {generations}, for comparison", 1e3 * spent_s, "CPU ms", None),
            _row(f"NSGA-II, {population} x {generations}, of the front's hypervolume", part, "part", None),
        ]
    return told


def _works(n: int) -> Floats:
    """Return the work of n made-up jobs, (n, 4)."""
    rng = np.random.default_rng(3)
    return np.column_stack(
        [rng.uniform(0.1, 3, n), rng.uniform(0.1, 0.6, n), rng.uniform(0.05, 0.2, n), rng.uniform(1, 1.5, n)]
    )


def _choice(n: int = 12, budget: float = 720.0) -> list[Row]:
    """Return how close greedy choice comes to the integer program, over ten sets of jobs, and what both take."""
    parts, greedy_s, exact_s = [], [], []
    for seed in range(size(10, short=1)):
        rng = np.random.default_rng(seed)
        wishes = []
        for _ in range(n):
            work = Work(rng.uniform(0.1, 3), rng.uniform(0.1, 0.6), rng.uniform(0.05, 0.2), rng.uniform(1, 1.5))
            plans = grid(120, max_workers=30, max_ps=8)
            which, speed = frontier(work, plans)
            wishes.append((plans.cores[which], speed / speed[-1]))
        greedy_s.append(_cpu_s(lambda wishes=wishes: choose(wishes, budget=budget), repeat=1))  # type: ignore[misc]
        at = choose(wishes, budget=budget)
        got = sum(float(gain[i]) for (_, gain), i in zip(wishes, at, strict=True))
        cores, gain = (np.concatenate(column) for column in zip(*wishes, strict=True))
        owner = np.repeat(np.arange(n), [len(c) for c, _ in wishes])
        once = LinearConstraint((owner == np.arange(n)[:, None]).astype(float), 1, 1)
        began_s = time.process_time()
        exact = milp(
            -gain, constraints=[once, LinearConstraint(cores[None], 0, budget)], integrality=1, bounds=Bounds(0, 1)
        )
        exact_s.append(time.process_time() - began_s)
        parts.append(got / -exact.fun)
    return [
        _row("choice of 12 jobs, the least part of the integer program", min(parts), "part", 0.99,
             higher_is_better=True),
        _row("choice of 12 jobs", 1e3 * float(np.median(greedy_s)), "CPU ms", None),
        _row("choice of 12 jobs by the integer program, for comparison", 1e3 * float(np.median(exact_s)), "CPU ms",
             None),
    ]  # fmt: skip


def _jobs(n: int, arrival_s: Floats, *, long: float) -> Jobs:
    """Return jobs of both models; `long`: times the length of those that ship."""
    rng = np.random.default_rng(0)
    wide = rng.random(n) < 0.5
    return Jobs.of(
        arrival_s=arrival_s, total_steps=np.where(wide, 250_000, 60_000) * rng.lognormal(0, 0.5, n) * long,
        model=["wide-deep" if each else "xdeepfm" for each in wide], user=[f"u{i}" for i in rng.integers(0, 50, n)],
        n_workers=4, n_ps=1, max_workers=60, max_ps=16, sync=False, worker_demand=amounts(cpus=4, memory_gb=4),
        ps_demand=amounts(cpus=8, memory_gb=8),
    )  # fmt: skip


def _warm_up() -> None:
    """Let everything be compiled that a run needs."""
    simulate(_jobs(10, np.arange(10.0), long=1.0), cluster=no_network(100, servers=DLROVER), scheduler="dlrover")


def _decisions() -> list[Row]:
    """Return what decisions take over jobs that all came at once: sampled, nothing happening, and all doubted."""
    _warm_up()
    least, doubted = _spent_s("bottleneck"), _spent_s(f"{Falling.__module__}:{Falling.__name__}")
    return [
        _row(f"a decision over {N_JOBS:,} jobs, all sampled at once", 1e3 * least[1:4].max(), "CPU ms", 50),
        _row(f"a decision over {N_JOBS:,} jobs, nothing happens", 1e3 * least[5:].min(), "CPU ms", 50),
        _row(f"a decision over {N_JOBS:,} jobs whose speed falls, all doubted", 1e3 * doubted[2:].max(), "CPU ms", 50),
    ]


def _spent_s(speed: str) -> Floats:
    """Return the processor time of the first seven decisions over jobs that all came at once, in seconds."""
    spent = []
    for _ in range(size(3, short=1)):
        jobs = _jobs(N_JOBS, np.zeros(N_JOBS), long=20.0)
        brain = make("dlrover")
        experiment = Experiment.of(jobs, cluster=no_network(2 * N_JOBS, servers=DLROVER), speed=speed)
        session = experiment.session(brain)
        mine = []
        for _ in range(7):
            began_s = time.process_time()
            placement = brain.schedule(session.snapshot())
            mine.append(time.process_time() - began_s)
            session.step(placement)
        spent.append(mine)
    return np.asarray(np.min(spent, axis=0))


def _week() -> Row:
    """Return what a simulated week takes, measured every 60 s."""
    span_s = WEEK_S * A_WEEK / 10_000
    jobs = _jobs(A_WEEK, np.sort(np.random.default_rng(1).uniform(0, span_s, A_WEEK)), long=1.0)
    _warm_up()
    began_s = time.process_time()
    brain = make("dlrover", measure_every_s=60.0)
    simulate(jobs, cluster=no_network(100, servers=DLROVER), scheduler=brain, speed="bottleneck")
    return _row(f"{A_WEEK:,} jobs of a simulated week", time.process_time() - began_s, "CPU s", 60)


# --- tables


def chosen_of(truth: Truth, seed: int, *, n_samples: int = 8) -> Floats:
    """Return the speed of the plan that a brain would stay with after each sample, as a part of the best of all."""
    rng, samples, plan, told = np.random.default_rng(seed), [], COLD, np.empty(n_samples)
    for k in range(n_samples):
        samples.append(truth.measured(plan, rng, k))
        belief = believe(samples)
        rows, speed = belief.frontier(LIMITS)
        at = int(np.searchsorted(speed, (1 - NO_SLOWER) * speed[-1]))
        told[k] = truth.of(plan_of(rows[at])) / truth.best(grid(200))
        tried, gain, _ = belief.trial(LIMITS, float(speed[at]))
        plan = tried if gain else plan_of(rows[at])
    return told


def print_truths() -> None:
    """Print what comes of plans on each truth after 2, 4 and 8 samples: median / tenth percentile over seeds."""
    print(f"Speed with the plan, of the exhaustive best: median / tenth percentile of {N_SEEDS} seeds")
    print(f"{'truth':50} {'2 samples':>11} {'4':>11} {'8':>11}  goal")
    for truth in [*truths(), *hard()]:
        told = np.array([chosen_of(truth, seed) for seed in range(N_SEEDS)])
        columns = [f"{np.median(told[:, k - 1]):.2f} / {np.quantile(told[:, k - 1], 0.1):.2f}" for k in (2, 4, 8)]
        goal = "0.95 / 0.90 after 2" if truth.published else "0.90 / 0.75 after 8"
        print(f"{truth.name:50} {columns[0]} {columns[1]} {columns[2]}  {goal}", flush=True)


def print_clusters() -> None:
    """Print mean JCTs where the truth has another form than the brain fits: one job, and 16 that share 512 cores.

    In brackets: the longest JCT of a job as a multiple of that under the oracle, and Jain's index of these.
    """
    slow = Overheads(start_s=120, restart_s=120, rescale_s=120)
    one = single("wide-deep")
    for what, jobs, overheads in (
        ("a job of W&D, changes take 120 s", one, slow),
        (f"16 jobs of {SMALL}", SMALL, None),
    ):
        print(f"\nMean JCT in minutes, {what}")
        print(f"{'truth':12}" + "".join(f"{name:>18}" for name in RIVALS))
        for kind in SIMULATED:
            speed, told = f"{kind.__module__}:{kind.__name__}", []
            tables = {}
            for name, make_rival in RIVALS.items():
                options = {"overheads": overheads or Overheads(), "cluster": "dlrover-512", "speed": speed}
                tables[name] = simulate(jobs, scheduler=make_rival(kind), **options).table
            for table in tables.values():
                rho = finish_time_fairness(table, tables["oracle"])["rho"].to_numpy()
                told.append(f"{table['jct_s'].mean() / 60:.1f} ({rho.max():.1f}, {jain_index(rho):.2f})")
            print(f"{kind.__name__:12}" + "".join(f"{each:>18}" for each in told), flush=True)


if __name__ == "__main__":
    from benchmarks.__main__ import show

    print_truths()
    print_clusters()
    show(rows())
