"""The claims of DLRover's evaluation, one by one, in simulation: Table 1, sections 6.2, 6.3 and 6.4.

python -m benchmarks.dlrover_claims

It prints the tables of docs/dlrover.md. Changes take what the paper says: 20 s to launch and 100 s to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from benchmarks import size
from labkit.core import Jobs, Kind, Quantity, Role
from labkit.core.resources import CPUS, MEMORY_GB, amounts
from labkit.experiment.run import simulate
from labkit.results.record import RunRecord
from labkit.schedulers import make
from labkit.simulator import Overheads, Troubles
from labkit.speed.bottleneck import WORK
from labkit.workloads import catalogue, read

PAPER: Final = Overheads(start_s=120, restart_s=120, rescale_s=120)
STEPS: Final = {"wide-deep": size(600_000, short=20_000), "xdeepfm": size(160_000, short=5_000)}
"""Of single jobs: about 50 minutes with the well-tuned gang."""
NAMES: Final = {"wide-deep": "W&D", "xdeepfm": "xDeepFM"}
BASELINES: Final = {
    "autoscale": "autoscale",
    "optimus, bounded": "optimus(max_move=(('wide-deep',4,2),('xdeepfm',1,1)),quantum_s=180.0)",
}
MIX: Final = "traces/dlrover-mix.csv"


def single(model: str, **columns: Any) -> Jobs:
    """Return a job with the cores of the paper's Table 2, and its gang unless something else is said."""
    tuned = catalogue.model(model)
    given = {
        "n_workers": tuned.n_workers, "n_ps": tuned.n_ps, "max_workers": 60, "max_ps": 16, "sync": False,
        "worker_demand": amounts(cpus=tuned.worker_demand.cpus, memory_gb=4),
        "ps_demand": amounts(cpus=tuned.ps_demand.cpus, memory_gb=8),
    } | columns  # fmt: skip
    return Jobs.of(arrival_s=[0.0], total_steps=STEPS[model], model=[model], **given)


def run(jobs: Jobs, scheduler: str, **options: Any) -> RunRecord:
    """Return the record of a run on the cluster of the paper."""
    return simulate(jobs, cluster="dlrover-512", scheduler=make(scheduler), **{"overheads": PAPER, **options})


def jct_s(record: RunRecord) -> float:
    """Return the mean JCT in seconds of the jobs that completed."""
    return float(record.table["jct_s"].mean())


def table_1() -> list[tuple[str, str, str]]:
    """Return what the truth makes of the rows of Table 1: claim, paper, here."""
    wide, deep = WORK["wide-deep"], WORK["xdeepfm"]
    tuned = wide.speed(24, worker_cores=3, n_ps=8, ps_cores=16)
    loads, cores = wide.loads(8), np.where(np.arange(8) < wide.n_hot, 24.0, 16.0)
    limit = float((cores / (wide.update_core_s * loads)).min())
    eight, ten = (float(deep.speed(n, worker_cores=20, n_ps=2, ps_cores=16)) for n in (8, 10))
    even = float(wide.speed(24, worker_cores=3, n_ps=8, ps_cores=limit * wide.update_core_s * float(loads[0])))
    return [
        ("W&D, 24 x 3 and 8 x 16 cores", "210 steps/s", f"{float(tuned):.0f}"),
        ("W&D, two hot servers with 24 cores", "258 steps/s", f"{even:.0f}"),
        ("xDeepFM, 8 x 20 and 2 x 16", "47.8 steps/s", f"{eight:.1f}"),
        ("xDeepFM, two more workers", "56 steps/s", f"{ten:.1f}"),
    ]  # fmt: skip


def stragglers() -> list[tuple[str, str, str]]:
    """Return JCTs against well-tuned static jobs whose data were divided in advance (section 6.2)."""
    rows = []
    claims = {("wide-deep", Role.WORKER): 24, ("xdeepfm", Role.WORKER): 42, ("wide-deep", Role.PS): 42,
              ("xdeepfm", Role.PS): 25}  # fmt: skip
    for model in STEPS:
        static = run(single(model), "static(tuned=True)")
        brain = run(single(model), "dlrover")
        change = jct_s(brain) / jct_s(static) - 1
        rows.append((f"{NAMES[model]}, nothing wrong", "the same JCT", f"{change:+.0%}"))
    for (model, role), claim in claims.items():
        slow = Troubles.of([(0, int(role), 1, 120.0, 0.25, 1.0)])
        static = run(single(model), "static(tuned=True)", troubles=slow, sharding="static")
        brain = run(single(model), "dlrover", troubles=slow)
        what = "a worker" if role == Role.WORKER else "a server"
        change = jct_s(brain) / jct_s(static) - 1
        rows.append((f"{NAMES[model]}, {what} at a quarter of its cores", f"JCT -{claim}%", f"{change:+.0%}"))
    return rows


def baselines() -> list[tuple[str, str, str]]:
    """Return JCTs against the autoscaler and bounded Optimus from a small gang, and how soon changes end (6.3)."""
    rows = []
    for model, claim in (("wide-deep", 30), ("xdeepfm", 10)):
        small = single(model, n_workers=4 if model == "wide-deep" else 1, n_ps=2 if model == "wide-deep" else 1)
        brain = run(small, "dlrover")
        for name, scheduler in BASELINES.items():
            change = jct_s(brain) / jct_s(run(small, scheduler)) - 1
            rows.append((f"{NAMES[model]}, against {name}", f"JCT more than {claim}% less", f"{change:+.0%}"))
        changed = np.isin(brain.events["kind"], [Kind.RESCALED, Kind.RESIZED])
        last_s = float(brain.events["time_s"][changed].max(initial=0.0))
        rows.append((f"{NAMES[model]}, the last change", "within 12 min", f"{last_s / 60:.0f} min"))
    return rows


def production() -> list[tuple[str, str, str]]:
    """Return the mix of section 6.4 under static jobs and the brain: direction only."""
    jobs = read(MIX)
    jobs = jobs.take(np.arange(size(len(jobs), short=4)))
    troubles = Troubles.drawn(jobs, rng=np.random.default_rng(0))
    options = {"troubles": troubles, "measure_every_s": 60.0}
    static, brain = (run(jobs, name, **options) for name in ("static", "dlrover"))
    before, after = (record.table["jct_s"].to_numpy() for record in (static, brain))
    rows = [
        ("completed", "+6 points", f"{np.isfinite(before).mean():.0%} to {np.isfinite(after).mean():.0%}"),
        ("median JCT", "-31%", f"{np.nanmedian(after) / np.nanmedian(before) - 1:+.0%}"),
    ]
    of = {
        "hot": troubles.rows["job"][troubles.rows["load"] > 1],
        "slow": troubles.rows["job"][troubles.rows["pace"] < 1],
    }
    for what, claim in (("hot", "-21%"), ("slow", "-57%")):
        mine = of[what]
        if len(mine):
            change = np.nanmedian(after[mine]) / np.nanmedian(before[mine]) - 1
            rows.append((f"median JCT of the {len(mine)} jobs with a {what} server", claim, f"{change:+.0%}"))
    for quantity, name, claim in ((Quantity.CORES, "CPU", "29 to 44%"), (Quantity.MEMORY_GB, "memory", "31 to 52%")):
        was, now = (_in_use(record, jobs, quantity) for record in (static, brain))
        rows.append((f"{name} in use, of what jobs hold", claim, f"{was:.0%} to {now:.0%}"))
    return rows


def _in_use(record: RunRecord, jobs: Jobs, quantity: Quantity) -> float:
    """Return what is used of what jobs hold, over all measurements; memory of all servers is that of the fullest."""
    rows = record.events[(record.events["kind"] == Kind.MEASURED) & (record.events["task"] < 0)]
    rows = rows[rows["quantity"] == quantity]
    placed = record.events[record.events["kind"] == Kind.PLACED]
    used, whole = 0.0, 0.0
    for job in range(len(jobs)):
        for role, demand in ((Role.WORKER, jobs.worker_demand), (Role.PS, jobs.ps_demand)):
            mine = rows[(rows["job"] == job) & (rows["role"] == role)]
            held = placed[(placed["job"] == job) & (placed["role"] == role)]
            if not len(mine) or not len(held):
                continue
            given = held["cpus" if quantity == Quantity.CORES else "memory_gb"].astype(np.float64)
            each = np.where(np.isnan(given), demand[job, CPUS if quantity == Quantity.CORES else MEMORY_GB], given)
            times, first = np.unique(held["time_s"], return_index=True)
            n, total = np.add.reduceat(held["value"], first), np.add.reduceat(held["value"] * each, first)
            at = np.maximum(np.searchsorted(times, mine["time_s"], side="right") - 1, 0)
            used += float((mine["value"] * (1 if quantity == Quantity.CORES else n[at])).sum())
            whole += float(total[at].sum())
    return used / whole if whole else float("nan")


TABLES: Final[Mapping[str, Any]] = {
    "Table 1 (steps/s of the truth)": table_1,
    "6.2, against well-tuned static jobs": stragglers,
    "6.3, against other schedulers": baselines,
    "6.4, a production-like mix": production,
}


def main() -> None:
    """Print every table in Markdown."""
    for title, rows in TABLES.items():
        print(f"\n{title}:\n\n| | paper | here |\n|---|---|---|")
        for row in rows():
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
