"""Max-min levels where jobs may share GPUs in pairs: all pairs considered, processor seconds and the proved gap.

python -m benchmarks sharing
"""

from __future__ import annotations

import json
import time
from ast import literal_eval
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row, size
from labkit.core.resources import Floats
from labkit.solvers.sharing import FilledPairs, fill_pairs

COMMAND = "python -m benchmarks sharing"
THROUGHPUTS = Path(__file__).parents[1].parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"
TYPES = ("v100", "p100", "k80")
GANGS = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}
LOADS = (0.1, 0.25, 0.6)
"""GPUs of each type for each job: jobs ask for 1.9 GPUs on average, so from scarce to nearly enough."""

GOALS_S = {size(128, short=8): (None, 1.0), size(512, short=16): (2.0, 5.0)}
HIGHS_JOBS = size(512, short=16)
"""Jobs whose pairs HiGHS is given all at once, 200,000 columns."""

Case = dict[str, Any]


def rows() -> list[Row]:
    """Return the slowest of three loads, the better of two runs each, of Gavel's kinds and of jobs that all differ."""
    found = []
    kinds = {"all different": different_jobs} | ({"of Gavel's kinds": gavel_jobs} if THROUGHPUTS.exists() else {})
    for name, build in kinds.items():
        for n_jobs, goals in GOALS_S.items():
            for leximin, goal_s in zip((False, True), goals, strict=True):
                cases = [build(n_jobs, load=load) for load in LOADS]
                taken_s, gap = np.max([_measured(case, leximin=leximin) for case in cases], axis=0)
                what = f"{'water filling' if leximin else 'max-min levels'} with pairs, {n_jobs} jobs, {name}"
                found.append(Row(what, round(float(taken_s), 3), "CPU s", goal_s, False, COMMAND))
                found.append(Row(f"{what}, gap", float(f"{gap:.2g}"), "relative", 1e-6, False, COMMAND))
    ages = [with_ages(different_jobs(HIGHS_JOBS, load=load)) for load in LOADS]
    taken_s = max(_measured(case, leximin=True)[0] for case in ages)
    what = "water filling of finish times with pairs, 512 jobs, all different"
    found.append(Row(what, round(taken_s, 3), "CPU s", None, False, COMMAND))
    return found + _highs_rows(different_jobs(HIGHS_JOBS, load=0.1))


def different_jobs(n_jobs: int, *, load: float) -> Case:
    """Return jobs with speeds of their own, which keep 0.3 to 0.95 of them beside others."""
    rng = np.random.default_rng(n_jobs)
    speed = rng.uniform(0.2, 1.0, (n_jobs, 3)) * np.linspace(1.0, 4.0, 3) * 10 ** rng.uniform(-1, 1, (n_jobs, 1))
    pair_speed = speed[:, None, :] * rng.uniform(0.3, 0.95, (n_jobs, n_jobs, 3))
    size = rng.choice(list(GANGS), n_jobs, p=list(GANGS.values())).astype(np.float64)
    return _fair(speed, size, np.arange(n_jobs), pair_speed, load=load, rng=rng)


def gavel_jobs(n_jobs: int, *, load: float) -> Case:
    """Return jobs of the kinds that Gavel measured, gangs as it draws them."""
    table = json.loads(THROUGHPUTS.read_text())
    names = [name for name in table[TYPES[0]] if literal_eval(name)[1] in GANGS]
    sizes = np.array([literal_eval(name)[1] for name in names])
    alone = np.array([[table[kind].get(name, {}).get("null", 0.0) for kind in TYPES] for name in names])
    beside = [
        [[table[kind].get(a, {}).get(b, (0.0,))[0] for kind in TYPES] for b in names] for a in names
    ]  # steps/s of a beside b
    rng = np.random.default_rng(n_jobs)
    weight = np.array([GANGS[size] / (sizes == size).sum() for size in sizes])
    drawn = rng.choice(len(names), n_jobs, p=weight / weight.sum())
    return _fair(alone[drawn], sizes[drawn].astype(np.float64), drawn, np.array(beside), load=load, rng=rng)


def _fair(speed: Floats, size: Floats, kind: Any, pair_speed: Floats, *, load: float, rng: np.random.Generator) -> Case:
    """Return the levels of least attained service, one weight in five being 5."""
    worth = size / speed.mean(axis=1) / np.where(rng.random(len(size)) < 0.2, 5.0, 1.0)
    capacity = np.full(3, round(load * len(size)))
    return {
        "value": speed * worth[:, None], "size": size, "capacity": capacity,
        "kind": kind, "pair_speed": pair_speed, "scale": worth,
    }  # fmt: skip


def with_ages(case: Case) -> Case:
    """Return the levels of finish-time fairness: jobs that have waited long need more."""
    rng = np.random.default_rng(0)
    n_jobs = len(case["size"])
    speed, steps = case["value"] / case["scale"][:, None], 10 ** rng.uniform(3, 5.5, n_jobs)
    alone_s = steps / (speed @ case["capacity"] / (n_jobs * case["size"]))
    worth = alone_s / steps
    return case | {"value": speed * worth[:, None], "scale": worth, "drag": rng.uniform(0, 1e5, n_jobs) / alone_s}


def _measured(case: Case, *, leximin: bool) -> tuple[float, float]:
    """Return processor seconds and the gap."""
    taken_s = []
    for _ in range(2):
        began = time.process_time()
        answer = fill_pairs(**case, leximin=leximin)
        taken_s.append(time.process_time() - began)
    return min(taken_s), answer.gap


def _highs_rows(case: Case) -> list[Row]:
    """Return how long HiGHS takes for the same level with all pairs at once, and how far apart the two are."""
    began = time.process_time()
    level = _highs(case)
    taken_s = time.process_time() - began
    what = f"{HIGHS_JOBS} jobs, all different"
    answer: FilledPairs = fill_pairs(**case, leximin=False)
    apart = abs(answer.level / level - 1)
    return [
        Row(f"max-min levels with all pairs in HiGHS, {what}", round(taken_s, 3), "CPU s", None, False, COMMAND),
        Row(f"levels with pairs apart from HiGHS, {what}", float(f"{apart:.2g}"), "relative", 1e-6, False, COMMAND),
    ]


def _highs(case: Case) -> float:
    from scipy import sparse

    from labkit.solvers.lp import LinearProgram

    value, size, scale, pair_speed = (case[name] for name in ("value", "size", "scale", "pair_speed"))
    n_jobs = len(size)
    a, b = np.triu_indices(n_jobs, 1)
    fits = size[a] == size[b]
    a, b = a[fits], b[fits]
    blocks = []
    for v in range(3):
        way, pair = np.arange(n_jobs), n_jobs + np.arange(len(a))
        job, place = np.concatenate([way, a, b]), np.concatenate([way, pair, pair])
        rate = np.concatenate([value[:, v], scale[a] * pair_speed[a, b, v], scale[b] * pair_speed[b, a, v]])
        devices = np.concatenate([size, size[a]])
        row = np.concatenate([np.full(len(devices), v), 3 + job, 3 + n_jobs + job])
        column = np.concatenate([np.arange(len(devices)), place, place])
        entries = np.concatenate([devices / case["capacity"][v], np.ones(len(job)), rate])
        blocks.append(sparse.csc_matrix((entries, (row, column)), shape=(3 + 2 * n_jobs, len(devices))))
    level = np.concatenate([np.zeros(3 + n_jobs), -np.ones(n_jobs)])[:, None]
    program = LinearProgram(maximise=True)
    matrix = sparse.hstack([sparse.csc_matrix(level), *blocks], format="csc")
    program.add_columns(np.eye(1, matrix.shape[1])[0])
    program.add_rows(matrix[: 3 + n_jobs], upper=1.0)
    program.add_rows(matrix[3 + n_jobs :], lower=0.0)
    return program.solve().value
