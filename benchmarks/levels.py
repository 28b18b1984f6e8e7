"""Max-min levels by prices, against the same program in HiGHS, milliseconds of processor time.

python -m benchmarks.levels
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import Row, size
from labkit.core.resources import Floats
from labkit.solvers.levels import Filled, fill, fill_entities

COMMAND = "python -m benchmarks levels"
N_TYPES = 3
HIGHS_UP_TO = 100_000
"""Jobs of the largest program that HiGHS is given; above some ten thousand its interior point method is the faster."""

HIGHS_LIMIT_S = 20.0


def rows() -> list[Row]:
    """Return the medians of repeats after a warm-up, over jobs on three types at three loads."""
    found = []
    for n_jobs, goal, repeats in ((100, 0.2, 99), (2_048, 5.0, 30), (size(100_000, short=1000), 500.0, 6)):
        cases = [problem(n_jobs, seed=seed) for seed in range(6)]
        what = f"{n_jobs:,} jobs, 3 types"
        found.append(_row(f"max-min levels, {what}", _cpu_ms(_levels, cases, repeats), goal))
        found.append(_row(f"water filling, {what}", _cpu_ms(_water, cases, repeats), 500.0 if n_jobs > 100 else 0.3))
        found += _highs_rows(cases[0], what)
    for n_entities in (5, 50):
        cases = [problem(2_048, seed=seed) for seed in range(6)]
        name = f"hierarchical, 2,048 jobs in {n_entities} entities, half of them first in, first out"
        found.append(_row(name, _cpu_ms(lambda case, n=n_entities: _hierarchy(case, n), cases, 30), 500.0))
    return found


def problem(n_jobs: int, *, seed: int) -> dict[str, Floats]:
    """Return jobs of Gavel's mixture of sizes and weights, with speeds of their own, on a loaded to an idle cluster."""
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0.2, 1.0, (n_jobs, N_TYPES)) * np.linspace(1.0, 4.0, N_TYPES)
    size = rng.choice([1.0, 2.0, 4.0, 8.0], n_jobs, p=[0.7, 0.1, 0.15, 0.05])
    capacity = np.full(N_TYPES, n_jobs * (0.1, 0.3, 1.0)[seed % 3])
    slope = rng.choice([1.0, 5.0], n_jobs, p=[0.8, 0.2]) * speed.mean(axis=1) / size
    return {"value": speed, "size": size, "capacity": capacity, "slope": slope}


def _levels(case: dict[str, Floats]) -> Filled:
    return fill(**case, leximin=False)


def _water(case: dict[str, Floats]) -> Filled:
    return fill(**case)


def _hierarchy(case: dict[str, Floats], n_entities: int) -> Filled:
    entity = np.arange(len(case["value"])) % n_entities
    return fill_entities(
        case["value"] / case["value"].mean(axis=1, keepdims=True),
        size=case["size"],
        capacity=case["capacity"],
        entity=entity,
        entity_weight=1.0 + np.arange(n_entities) % 3,
        fifo=np.arange(n_entities) % 2 == 0,
    )


def _highs_rows(case: dict[str, Floats], what: str) -> list[Row]:
    """Return how long HiGHS takes for the same levels, and how far apart the two answers are."""
    n_jobs = len(case["size"])
    if n_jobs > HIGHS_UP_TO:
        return []
    taken_ms, level = _highs(case)
    if np.isnan(level):
        return [_row(f"max-min levels in HiGHS, {what}, given up after", taken_ms, None)]
    ours = _levels(case)
    apart = abs(ours.level / level - 1.0)
    return [
        _row(f"max-min levels in HiGHS, {what}", taken_ms, None),
        Row(f"levels apart from HiGHS, {what}", float(f"{apart:.2g}"), "relative", 1e-6, False, COMMAND),
    ]


def _highs(case: dict[str, Floats]) -> tuple[float, float]:
    """Return milliseconds and the level by the default method of HiGHS, one thread, the model's building included."""
    import highspy

    value, size, capacity, slope = (case[name] for name in ("value", "size", "capacity", "slope"))
    n_jobs, n = len(size), value.size
    began = time.process_time()
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = n + 1, 2 * n_jobs + N_TYPES
    program.col_cost_ = np.append(np.zeros(n), -1.0)
    program.col_lower_, program.col_upper_ = np.zeros(n + 1), np.full(n + 1, np.inf)
    program.row_lower_ = np.concatenate([np.full(n_jobs + N_TYPES, -np.inf), np.zeros(n_jobs)])
    program.row_upper_ = np.concatenate([np.ones(n_jobs), capacity, np.full(n_jobs, np.inf)])
    job, kind = np.divmod(np.arange(n), N_TYPES)
    rows = np.stack([job, n_jobs + kind, n_jobs + N_TYPES + job], axis=1).ravel()
    entries = np.stack([np.ones(n), size[job], value.ravel()], axis=1).ravel()
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.append(np.arange(0, 3 * n + 1, 3), 3 * n + n_jobs)
    program.a_matrix_.index_ = np.append(rows, n_jobs + N_TYPES + np.arange(n_jobs))
    program.a_matrix_.value_ = np.append(entries, -slope)
    solver: Any = highspy.Highs()
    options = {"output_flag": False, "threads": 1, "time_limit": HIGHS_LIMIT_S}
    if n_jobs > 10_000:
        options["solver"] = "ipm"
    for name, setting in options.items():
        solver.setOptionValue(name, setting)
    solver.passModel(program)
    solver.run()
    taken_ms = 1e3 * (time.process_time() - began)
    done = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return round(taken_ms, 3), -solver.getInfo().objective_function_value if done else np.nan


def _row(name: str, taken_ms: float, goal: float | None) -> Row:
    return Row(name, taken_ms, "CPU ms", goal, False, COMMAND)


def _cpu_ms(call: Callable[[dict[str, Floats]], Filled], cases: list[dict[str, Floats]], repeats: int) -> float:
    for case in cases:
        assert call(case).gap <= 1e-6
    times = []
    for i in range(repeats):
        began = time.process_time()
        call(cases[i % len(cases)])
        times.append(1e3 * (time.process_time() - began))
    return round(float(np.median(times)), 3)


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:80} {row.value:10.4g} {row.unit}" + (f"  (goal < {row.goal:g})" if row.goal else ""))
