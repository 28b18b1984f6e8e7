"""What must not change when code moves: digests of simulated events, of decisions, and of help texts.

`python -m benchmarks.digests FILE` writes them; run it before a change and after it, and compare the two with
`python -m benchmarks.digests --compare BEFORE AFTER`; further words are schedulers, where not all are wanted. Digests
hold on one machine and one set of libraries: they are
not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from labkit.experiment.cadence import every_slot
from labkit.experiment.experiment import Experiment
from labkit.schedulers import available, make
from labkit.simulator import Faults, Overheads, Variation
from labkit.testing.scenes import fits_empty, random_cluster, random_jobs, random_runs_on, random_scenes

N_SCENARIOS = 200
N_SNAPSHOTS, N_SCENES = 1000, 40
LEARNED = ("dl2", "dl2(weights='dl2')", "dl2(weights='dl2-fitted')", "marl", "attention", "deepsys")
USERS = ("ada", "bob", "cyd")


def scenario(seed: int) -> dict[str, Any]:
    """Return what `Experiment.of` takes: a small random world with a random set of rules, costs and troubles."""
    rng = np.random.default_rng([27, seed])
    cluster = random_cluster(rng, n_machines=int(rng.integers(1, 6)), n_types=int(rng.integers(1, 4)))
    n_jobs = int(rng.integers(1, 25))
    runs_on = random_runs_on(rng, cluster=cluster, n_jobs=n_jobs)
    jobs = random_jobs(rng, cluster=cluster, runs_on=runs_on, right=bool(rng.random() < 0.5))
    everywhere = np.ones_like(runs_on)
    fit = [j for j in range(n_jobs) if fits_empty(jobs, cluster, everywhere, j)]
    jobs = jobs.take(np.array(fit, dtype=np.int64)) if fit else jobs
    n_jobs = len(jobs)
    jobs = jobs.with_columns(
        user=[USERS[i] for i in rng.integers(0, 3, n_jobs)], priority=rng.choice([0.0, 0.0, 1.0, 5.0], n_jobs)
    )
    made: dict[str, Any] = {"jobs": jobs, "cluster": cluster, "seed": int(rng.integers(100))}
    if rng.random() < 0.3:
        made["quotas"] = {"ada": int(rng.integers(2, 9)), "*": int(rng.integers(4, 17))}
    if rng.random() < 0.3:
        start_s = int(rng.integers(0, 2000))
        made["reservations"] = {
            "some": {"hosts": 1, "start_s": start_s, "end_s": start_s + int(rng.integers(60, 3000)),
                     "users": ["bob"] if rng.random() < 0.5 else [],
                     "running": "preempt" if rng.random() < 0.5 else "finish"}
        }  # fmt: skip
    if rng.random() < 0.4:
        made["overheads"] = Overheads(*(float(s) for s in rng.choice([0.0, 5.0, 30.0, 120.0], 3)))
    if rng.random() < 0.2:
        made["faults"] = Faults(float(rng.choice([2e3, 2e4])), 300.0, float(rng.choice([0.0, 60.0])))
    if rng.random() < 0.2:
        made["variation"] = Variation(float(rng.choice([60.0, 600.0])), 0.2, 0.1, 0.5)
    if rng.random() < 0.4:
        made["cadence"] = every_slot(float(rng.choice([30.0, 90.0, 600.0])))
    return made


def digest(*parts: Any) -> str:
    """Return sixteen digits that stand for some arrays or texts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.tobytes() if isinstance(part, np.ndarray) else str(part).encode())
        total.update(b"\0")
    return total.hexdigest()[:16]


def run(name: str, seed: int) -> str:
    """Return the digest of a scheduler's events in a scenario; of an error, its kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            record = Experiment.of(**scenario(seed)).run(make(name), name=name)
        except Exception as error:  # a scenario that a scheduler refuses must stay refused
            return type(error).__name__
    return digest(*(np.ascontiguousarray(record.events[field]) for field in record.events.dtype.names))


def decisions(name: str) -> str:
    """Return the digest of what shipped weights decide on random snapshots."""
    told: list[Any] = []
    for seed in range(N_SNAPSHOTS // N_SCENES):
        for scene in random_scenes(n=N_SCENES, seed=seed):
            try:
                placement = make(name).schedule(scene.snapshot())
            except Exception as error:
                told.append(type(error).__name__)
                continue
            told += [placement.job, placement.role, placement.group, placement.count]
    return digest(*told)


def runs_of(name: str) -> dict[str, str]:
    """Return the digests of one scheduler."""
    return {f"{name} {seed}": run(name, seed) for seed in range(N_SCENARIOS)}


def helps() -> Iterator[tuple[str, str]]:
    """Yield what each command's --help says."""
    import typer
    from typer.testing import CliRunner

    from labkit.cli.app import app

    os.environ["COLUMNS"] = "100"
    runner, todo = CliRunner(), [((), typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        yield " ".join(("help", *words)), runner.invoke(app, [*words, "--help"]).output
        todo += [((*words, name), each) for name, each in sorted(getattr(command, "commands", {}).items())]


def main(words: list[str]) -> int:
    """Write digests, or compare two files of them."""
    if words[0] == "--compare":
        before, after = (json.loads(Path(word).read_text()) for word in words[1:])
        odd = sorted(key for key in before.keys() & after.keys() if before[key] != after[key])
        odd += sorted(key for key in before.keys() - after.keys() if key.startswith("help"))
        for key in odd[:40]:
            print(f"{key}: {str(before.get(key))[:60]!r} is {str(after.get(key))[:60]!r}")
        print(f"{len(odd)} of {len(before.keys() & after.keys())} differ")
        return int(bool(odd))
    names = words[1:] or sorted(available())
    learned = [name for name in LEARNED if name.partition("(")[0] in names]
    told: dict[str, str] = dict(helps())
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(runs_of, names):
            told |= found
        told |= dict(zip([f"decisions {name}" for name in learned], pool.map(decisions, learned), strict=True))
    Path(words[0]).write_text(json.dumps(told, indent=0))
    refused = sum(value.endswith("Error") for value in told.values())
    print(f"{len(told)} digests, {refused} of them of refusals")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
