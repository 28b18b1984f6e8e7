"""The claims of MARL's evaluation, one by one: its published form is trained on a small cluster and judged.

    python -m benchmarks.marl_claims [--seeds 1] [--epochs 400] [--again KEY] [RUN ...]
    python -m benchmarks.marl_claims --table

The first measures what is not in `benchmarks/marl_claims.json` yet, run by run, and keeps each as soon as it is there;
`--again` measures anew what has KEY in its name. The second prints the tables of docs/marl.md from that file.
RUN is a name of `RUNS`, or `rules`, `marl` (the shipped policy), `elsewhere` (trained networks in other settings),
`cores` (in use on the testbed) or `table III`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import size
from benchmarks._marl_claims_table import BOUND, FORM, ONE, SERVERS, claims, trained
from labkit.core.errors import unknown
from labkit.core.protocols import Scheduler
from labkit.core.resources import CPUS, Floats
from labkit.experiment import Experiment
from labkit.results.intervals import gantt
from labkit.results.record import RunRecord
from labkit.speed.interference import compare_models
from labkit.speed.interference.levels import level
from labkit.speed.interference.measured import profile
from labkit.speed.interference.use import task_use
from labkit.topology import build
from labkit.workloads.catalogue import DL2_MODELS
from labkit.workloads.expressions import trace
from reproductions.marl.scheduler import MarlWeights, PublishedMarl
from reproductions.marl.switches import Published
from reproductions.marl.trainer import Trainer

RESULTS: Final = Path(__file__).with_name("marl_claims.json")
HELD_OUT: Final = range(1, size(5, short=1) + 1)
"""Seeds of the traces on which all are judged; those of training are above 1,000,000."""
N_EPOCHS: Final = size(400, short=2)
FIRST_SEED: Final = 1_000_000
INTERFERENCE: Final = "calibrated"


@dataclass(frozen=True)
class World:
    """Where jobs arrive, and how.

    Attributes
    ----------
    cluster, jobs : str
        Expressions.
    slot_s : float
        Seconds of an interval.
    """

    cluster: str
    jobs: str
    slot_s: float = 1800.0

    def experiment(self, seed: int) -> Experiment:
        """Return the experiment of a seed."""
        options: dict[str, Any] = {"speed": "step-time", "interference": INTERFERENCE}
        return Experiment.of(trace(self.jobs, seed=seed), cluster=build(self.cluster), **options)

    def mean_jct(self, scheduler: Scheduler | str, seeds: Sequence[int]) -> list[float]:
        """Return the mean JCT in intervals of each trace; decisions at events, as in the text's tests."""
        runs = (self.experiment(seed).run(scheduler) for seed in seeds)
        return [round(run.summary["mean_jct_s"] / self.slot_s, 4) for run in runs]


def _pods(topology: str = "vl2(4, 4, per_rack=4, gbps=(10, 20, 40))", per_slot: float = 0.6, **jobs: Any) -> World:
    """Return four pods of four servers with jobs as dense as the text's 15 for 100 servers."""
    options = "".join(f", {name}={value!r}" for name, value in jobs.items())
    slot_s = float(jobs.get("slot_s", 1800.0))
    return World(topology, f"marl_jobs(load=5, per_slot={per_slot}, n_slots=24{options})", slot_s)


SMALL: Final = "vl2(4, 4, per_rack=4, gbps=(10, 20, 40)"
WORLDS: Final[dict[str, World]] = {
    "google": _pods(),
    "uniform": _pods(pattern="uniform"),
    "poisson": _pods(pattern="poisson"),
    "8-GPU servers (i)": _pods(f"{SMALL}, servers='dgx1')", 1.2),
    "uneven sockets (ii)": _pods(f"{SMALL}, servers='uneven')", 0.9),
    "mixed servers (iii)": _pods(f"{SMALL}, servers=[(0.2, '2gpu'), (0.4, '4gpu'), (0.4, 'dgx1')])", 0.75),
    "VL2 (1/10/10 Gbps)": _pods("vl2(4, 4, per_rack=4)"),
    "BCube": _pods("bcube(4, 1)", n_pods=2),
    "fat tree": _pods("fat_tree(4)"),
    "testbed": _pods("marl-testbed", 0.9, n_pods=2, slot_s=600.0, most_ps=2),
}
"""The settings of the text, small: 16 servers (12 of the testbed) instead of 2,000."""

RULES: Final = {
    "Tetris": "partitioned(placer=pack)",
    "Tetris, by machine": "tetris_pods",
    "LB": "load_balance",
    "LIF": "least_interference",
    "DeepSys": "deepsys",
    "Attention": "attention",
    "Kubernetes": "kubernetes",
    "whole gang": "whole_gang",
    "even per pod": "even_pods",
    "even": "even",
    "interference-aware": "interference_aware",
}
"""Rules by name: the paper's baselines first, then the simple ones that it does not have."""

TUNED: Final = {"rate": 1e-3, "discount": 0.0, "entropy": 0.01, "n_jobs": 16, "clip": 1.0}
"""What we found to learn faster than the authors' DL2 values, of a handful that were tried."""
SPEED: Final = TUNED | {"reward": "speed"}
RUNS: Final[dict[str, dict[str, Any]]] = {
    FORM: SPEED,
    SERVERS: SPEED | {"level": "server"},
    ONE: SPEED | {"agents": "one", "n_jobs": 64},
    "device": TUNED,
    "separate weights": SPEED | {"shared": False},
    "flat head": SPEED | {"head": "flat"},
    "shared reward": TUNED | {"reward": "all"},
    "DL2's values": {"n_jobs": 16},
    "discounted": SPEED | {"discount": 0.9},
}
"""Trainings: the switches of each."""


def main(arguments: list[str]) -> int:
    """Measure what is not there yet, or print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", nargs="*", metavar="RUN")
    options.add_argument("--seeds", default="1", help="of training, such as 1,2")
    options.add_argument("--epochs", type=int, default=N_EPOCHS)
    options.add_argument("--again", metavar="KEY", help="measure anew what has KEY in its name")
    options.add_argument("--table", action="store_true")
    given = options.parse_args(arguments)
    if given.table:
        print("\n".join([*trained(results()), "", *claims(results())]))
        return 0
    torch.set_num_threads(1)
    known = ["rules", "marl", "table III", *RUNS, "elsewhere", "cores"]
    for name in given.runs:
        if name not in known:
            print(unknown("run", name, known), file=sys.stderr)
            return 2
    for name in given.runs or known:
        measure(name, [int(seed) for seed in given.seeds.split(",")], n_epochs=given.epochs, again=given.again)
    return 0


def measure(name: str, seeds: Sequence[int], *, n_epochs: int, again: str | None = None) -> None:
    """Measure and keep what is new of a run, or has `again` in its name."""
    for key, measured in _parts(name, seeds, n_epochs).items():
        if key not in results() or (again is not None and again in key):
            print(f"{time.strftime('%H:%M:%S')} {key}", file=sys.stderr, flush=True)
            keep({key: measured()})


def _parts(name: str, seeds: Sequence[int], n_epochs: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what a run is made of: keys of results, and what measures them."""
    if name == "rules":
        pairs = [(where, rule) for where in WORLDS for rule in RULES]
        found = {f"{where}: {rule}": partial(_ruled, WORLDS[where], RULES[rule]) for where, rule in pairs}
        return found | {f"{where}: {BOUND}": partial(_bound, world) for where, world in WORLDS.items()}
    if name == "marl":
        return {f"{where}: marl": partial(_ruled, world, "marl") for where, world in WORLDS.items()}
    if name == "cores":
        whose = {"LB": RULES["LB"], "even": RULES["even"], "marl": "marl"}
        found = {f"cores: {rule}": partial(_cores, scheduler) for rule, scheduler in whose.items()}
        mine = {f"cores: {FORM}, seed {s}": partial(_cores_of_trained, s, n_epochs) for s in seeds}
        return found | mine
    if name == "table III":
        return {f"table III: {preset}": partial(errors, preset) for preset in ("mild", "convex")}
    if name == "elsewhere":
        others = [(where, seed) for where in list(WORLDS)[1:] for seed in seeds]
        return {f"{w}: {FORM}, seed {s}": partial(_elsewhere, WORLDS[w], s, n_epochs) for w, s in others}
    return {f"trained: {name}, seed {seed}": partial(train, RUNS[name], seed, n_epochs, name) for seed in seeds}


def _ruled(world: World, scheduler: str) -> dict[str, Any]:
    return {"jct": world.mean_jct(scheduler, HELD_OUT)}


def _bound(world: World) -> dict[str, Any]:
    bounds_s = [world.experiment(seed).bound_jct_s or np.nan for seed in HELD_OUT]
    return {"jct": [round(bound_s / world.slot_s, 4) for bound_s in bounds_s]}


def _file(name: str, seed: int) -> Path:
    """Return where the weights of a training lie; they are not kept with the code."""
    folder = Path("reports/marl_claims")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.replace(' ', '-')}-{seed}.safetensors"


def _trained(seed: int, n_epochs: int) -> PublishedMarl:
    """Return the trained networks of `FORM`; they are trained where their file is not there any more."""
    path = _file(FORM, seed)
    if not path.exists():
        keep({f"trained: {FORM}, seed {seed}": train(RUNS[FORM], seed, n_epochs, FORM)})
    return PublishedMarl(str(path))


def _elsewhere(world: World, seed: int, n_epochs: int) -> dict[str, Any]:
    return {"best": world.mean_jct(_trained(seed, n_epochs), HELD_OUT)}


def _cores_of_trained(seed: int, n_epochs: int) -> dict[str, Any]:
    return _cores(_trained(seed, n_epochs))


def _cores(scheduler: Scheduler | str) -> dict[str, Any]:
    """Return which part of its cores each machine of the testbed has in use, as the text looked: every five minutes.

    Of each trace three hours are looked at, from an hour after the first arrivals on. `mean` is of each machine,
    `samples` of all: the 5th, 50th and 95th percentile, and `within` how many are from 55 to 75%.
    """
    world, known = WORLDS["testbed"], []
    for seed in HELD_OUT:
        run = world.experiment(seed).run(scheduler)
        known.append(cores_in_use(run, np.arange(3600.0, 4 * 3600.0, 300.0)))
    use = np.concatenate(known)
    told = [round(float(x), 3) for x in np.percentile(use, [5, 50, 95])]
    within = round(float(((use >= 0.55) & (use <= 0.75)).mean()), 3)
    return {"mean": [round(float(x), 3) for x in use.mean(axis=0)], "samples": told, "within": within}


def cores_in_use(run: RunRecord, times_s: Floats) -> Floats:
    """Return which part of each machine's cores its tasks keep busy at some times, (T, M); above 1 they contend."""
    jobs, cluster, found = run.jobs, run.cluster, level(INTERFERENCE)
    assert found is not None
    cores, _ = task_use(jobs, uses=found.uses)
    held = gantt(run.events, jobs, cluster)
    used = held["count"] * cores[(held["role"] == "ps").to_numpy().astype(int), held["job"]]
    machine, n = cluster.group_machine[held["group"]], cluster.n_machines
    start_s, end_s = held["start_s"].to_numpy(), held["end_s"].to_numpy()
    busy = np.stack([np.bincount(machine, used * ((start_s <= t) & (t < end_s)), n) for t in times_s])
    return np.asarray(busy / np.bincount(cluster.group_machine, cluster.capacity[:, CPUS], n), np.float64)


def _judged(world: World, weights: MarlWeights | Path) -> dict[str, Any]:
    """Return the mean JCT of each held-out trace, of the most probable actions and of drawn ones."""
    given = weights if isinstance(weights, MarlWeights) else str(weights)
    return {
        "best": world.mean_jct(PublishedMarl(given), HELD_OUT),
        "drawn": world.mean_jct(PublishedMarl(given, draws=True), HELD_OUT),
    }


def train(switches: Mapping[str, Any], seed: int, n_epochs: int, name: str) -> dict[str, Any]:
    """Train on Google-like arrivals and judge; JCTs are in intervals, the curve is that of training, by epoch."""
    world = WORLDS["google"]
    trainer = Trainer(
        lambda rng: world.experiment(FIRST_SEED + int(rng.integers(1 << 30))), build(world.cluster), DL2_MODELS,
        slot_s=world.slot_s, seed=seed, switches=Published(**switches | {"n_epochs": n_epochs}),
    )  # fmt: skip
    before = {"best": world.mean_jct(PublishedMarl(trainer.weights("")), HELD_OUT)}
    began_s = time.process_time()
    curve = []
    for update in trainer.updates():
        curve.append(round(update.mean_jct, 3))
        if len(curve) % 20 == 0:
            print(f"{len(curve)} epochs: {np.mean(curve[-20:]):.2f} intervals", file=sys.stderr, flush=True)
    cpu_s = time.process_time() - began_s
    weights = trainer.weights(f"python -m benchmarks.marl_claims {name} --seeds {seed} --epochs {n_epochs}")
    weights.save(_file(name, seed))
    told = {"untrained": before, **_judged(world, weights), "epochs": n_epochs, "cpu_s": round(cpu_s)}
    return told | {"intervals": trainer.slots, "updates": trainer.learner.n_updates, "curve": curve}


def errors(preset: str) -> dict[str, float]:
    """Return the held-out error of each model of Table III on 480 samples of the synthetic server."""
    table = compare_models(profile(preset, rng=np.random.default_rng(0)), rng=np.random.default_rng(0))
    return {row.model: round(float(row.held_out_error), 4) for row in table.itertuples()}


def results() -> dict[str, Any]:
    """Return what was measured so far."""
    told: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return told


def keep(new: Mapping[str, Any]) -> None:
    """Add results to the file, which is whole at any time."""
    temporary, both = RESULTS.with_suffix(".tmp"), results() | dict(new)
    rows = [f" {json.dumps(key)}: {json.dumps(both[key])}" for key in sorted(both)]
    temporary.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    temporary.replace(RESULTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
