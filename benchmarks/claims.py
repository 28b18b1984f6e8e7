"""The claims of DL2's evaluation, one by one: policies of the paper's form are trained and judged on 20 traces.

    python -m benchmarks.claims [--nodes 16,48] [--seeds 1] [--speeds FILE] [RUN ...]
    python -m benchmarks.claims --table

The first measures what is not in `benchmarks/claims.json` yet, run by run, and keeps each as soon as it is there; the
second prints the tables of docs/dl2.md from that file. RUN is a name of `RUNS`, or `rivals`, or `disturbed`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import size
from benchmarks._claims_worlds import World
from labkit.core.errors import unknown
from reproductions.dl2.federated import Federated
from reproductions.dl2.scheduler import FlatWeights
from reproductions.dl2.switches import Published
from reproductions.dl2.trainer import Trainer, mean_jct

RESULTS: Final = Path(__file__).with_name("claims.json")
HELD_OUT: Final = range(1, size(20, short=1) + 1)
"""Seeds of the traces on which all are judged; those of training are above 1,000,000."""
N_JOBS: Final = 20
"""J; the released code's own for 48 nodes and 60 jobs. No more than 20 are active under a good policy."""
ON_THE_WAY: Final = range(1, size(5, short=1) + 1)
"""Seeds of the traces on which a policy is judged while it learns."""
N_SLOTS: Final = size(1200, short=5)
"""Slots of reinforcement learning, one update after each."""
PAPER: Final = Published(
    n_jobs=N_JOBS, n_taught=size(40, short=2), n_lessons=size(30, short=1), n_rounds=1_000_000
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A training: what it changes of the paper's form, and of what it is trained on.

    Attributes
    ----------
    switches : mapping
        Changes of `PAPER`.
    slots : int
        Of reinforcement learning.
    on : str
        What it is trained on: "true" speeds, those that the "analytical" model predicts, or "rings": jobs without
        parameter servers.
    begins : str
        The run whose warm-up it shares; "": its own.
    """

    switches: Mapping[str, Any] = field(default_factory=dict)
    slots: int = N_SLOTS
    on: str = "true"
    begins: str = ""


def _of_paper(**switches: Any) -> Run:
    return Run(switches, begins="paper")


OURS: Final = {
    "first_bundle": True, "critic_first": 100, "entropy": 0.01, "discount": 0.0, "corrected": True, "replay": 1024,
    "rate": 5e-4, "warm_up": "",
}  # fmt: skip
"""What we found to do better in as few slots, of a handful that were tried."""

RUNS: Final[dict[str, Run]] = {
    "paper": Run(),
    "ours, no replay, long": Run(OURS | {"replay": 0}, slots=3 * N_SLOTS),
    "no discount": _of_paper(discount=0.0),
    "lessons": Run(begins="paper", slots=0),
    "scratch": Run({"warm_up": ""}),
    "ours": Run(OURS),
    "ours, warmed up": Run(OURS | {"warm_up": "drf"}),
    "ours, by job": Run(OURS | {"reward": "job"}),
    "ours, no critic": Run(OURS | {"actor_critic": False}),
    "ours, no exploration": Run(OURS | {"exploration": 0.0}),
    "ours, no replay": Run(OURS | {"replay": 0}),
    "offline": Run(on="analytical", begins="paper"),
    "by job": _of_paper(reward="job"),
    "no critic": _of_paper(actor_critic=False),
    "no exploration": _of_paper(exploration=0.0),
    "no replay": _of_paper(replay=0),
    "fifo": Run({"warm_up": "fifo(published=True)"}),
    "srtf": Run({"warm_up": "srtf(published=True)"}),
    "J = 5": Run({"n_jobs": 5}),
    "J = 10": Run({"n_jobs": 10}),
    "mean square": Run({"sl_loss": "mean_square"}, slots=0),
    "absolute": Run({"sl_loss": "absolute"}, slots=0),
    "varied": _of_paper(speed_error=0.2, epoch_error=0.2),
    "types later": Run({"n_types": 4, "type_every": N_SLOTS // 3}),
    "fair": _of_paper(fairness=1.0),
    "3 clusters": _of_paper(clusters=3),
    "rings": Run({"all_reduce": True}, on="rings"),
    "released": Run(asdict(Published.released(n_jobs=N_JOBS))),
    "released, scratch": Run(asdict(Published.released(n_jobs=N_JOBS, warm_up=""))),
}
STEPS: Final = (150, 300, 600, 1200, 2400)
"""Slots after which a policy is judged on its way."""
LESSONS: Final = (1, 3, 10, 30)


def main(arguments: list[str]) -> int:
    """Measure what is not there yet, or print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", nargs="*", metavar="RUN")
    options.add_argument("--nodes", default="16,48")
    options.add_argument("--seeds", default="1", help="of training, such as 1,2,3")
    options.add_argument("--speeds", default="fitted", help="a table of measured speeds, or fitted")
    options.add_argument("--table", action="store_true")
    given = options.parse_args(arguments)
    if given.table:
        from benchmarks._claims_table import TABLES

        print("\n\n".join("\n".join(table(results())) for table in TABLES))
        return 0
    torch.set_num_threads(1)
    known = [*RUNS, "rivals", "disturbed"]
    for name in given.runs:
        if name not in known:
            print(unknown("run", name, known), file=sys.stderr)
            return 2
    for seed in given.seeds.split(","):
        worlds = [World(int(n), given.speeds) for n in given.nodes.split(",")]
        for name in given.runs or known:
            for world in worlds:
                keep(measured(world, name, int(seed)))
    return 0


def measured(world: World, name: str, seed: int) -> dict[str, Any]:
    """Return what is new of a run: key -> result."""
    if name == "rivals":
        made = {world.key(what): lambda what=what: world.rival(what, HELD_OUT) for what in world.rivals}
    elif name == "disturbed":
        made = {world.key(what): lambda what=what: world.disturbed(what, HELD_OUT) for what in world.disturbances}
    else:
        made = {world.key(f"{name}, seed {seed}"): lambda: train(world, RUNS[name], seed)}
    told = {}
    for key, measure in made.items():
        if key not in results():
            print(f"{time.strftime('%H:%M:%S')} {key}", file=sys.stderr, flush=True)
            told[key] = measure()
    return told


def results() -> dict[str, Any]:
    """Return what was measured so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(new: Mapping[str, Any]) -> None:
    """Add results to the file, which is whole at any time."""
    if new:
        temporary = RESULTS.with_suffix(".tmp")
        both = results() | dict(new)
        rows = [f" {json.dumps(key)}: {json.dumps(both[key])}" for key in sorted(both)]
        temporary.write_text("{\n" + ",\n".join(rows) + "\n}\n")
        temporary.replace(RESULTS)


# --- one training


def train(world: World, run: Run, seed: int) -> dict[str, Any]:
    """Train and judge; JCTs are in slots, of each held-out trace."""
    curve: list[list[float]] = []
    world = replace(world, rings=run.on == "rings")
    trainer, lessons_s = warmed_up(world, run, seed, curve)
    began_s, due = time.process_time(), iter([*(step for step in STEPS if step <= run.slots), np.inf])
    step = next(due)
    while trainer.slots < run.slots:
        trainer.update()
        if trainer.slots >= step:
            curve.append([trainer.slots, _mean(world, trainer)])
            while trainer.slots >= step:
                step = next(due)
    cpu_s = time.process_time() - began_s
    told = judged(world, trainer.weights(""))
    return told | {"slots": trainer.slots, "lessons_cpu_s": round(lessons_s), "cpu_s": round(cpu_s), "curve": curve}


def judged(world: World, weights: FlatWeights) -> dict[str, Any]:
    """Return the mean JCT in slots of each held-out trace, of actions that are drawn, and of the most probable ones."""
    jct = {how: mean_jct(weights, world.experiment, HELD_OUT, draws=how == "drawn") for how in ("drawn", "best")}
    return {how: [round(float(each), 4) for each in found] for how, found in jct.items()}


def _mean(world: World, trainer: Trainer | Federated) -> float:
    return round(float(mean_jct(trainer.weights(""), world.experiment, ON_THE_WAY, draws=True).mean()), 4)


def warmed_up(world: World, run: Run, seed: int, curve: list[list[float]]) -> tuple[Trainer | Federated, float]:
    """Return a trainer after its lessons, and the CPU seconds that these took; the curve counts them as below 0."""
    own = replace(PAPER, **run.switches | {"n_rounds": PAPER.n_rounds})
    if run.begins:
        net, lessons_s, before = _lessons(world, run.begins, seed)
        trainer = world.trainer(replace(own, warm_up=""), seed, on=run.on)
        (trainer.learner if isinstance(trainer, Trainer) else trainer).adopt(net.net)
        curve.extend(before)
        return trainer, lessons_s
    trainer, began_s = world.trainer(own, seed, on=run.on), time.process_time()
    if not own.warm_up:
        curve.append([0, _mean(world, trainer)])
    n = own.n_lessons if own.warm_up else 0
    for k in range(n):
        trainer.update()
        if k + 1 in LESSONS:
            curve.append([k + 1 - n, _mean(world, trainer)])
    return trainer, time.process_time() - began_s


@cache
def _lessons(world: World, name: str, seed: int) -> tuple[FlatWeights, float, list[list[float]]]:
    """Return the policy that a run's warm-up makes, the CPU seconds that it took, and how good it was on the way."""
    curve: list[list[float]] = []
    trainer, lessons_s = warmed_up(world, RUNS[name], seed, curve)
    return trainer.weights(""), lessons_s, curve


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
