"""DL2's published simulator, job by job and slot by slot: data/dl2/reference.json."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Kind
from labkit.schedulers import make
from tests.schedulers import dl2

CONFIGS = [("medium_96n", "1"), ("short_48n", "1"), ("short_48n", "2"), ("testbed_6n", "1"), ("testbed_6n", "2")]


@pytest.mark.parametrize(("config", "seed"), CONFIGS)
@pytest.mark.parametrize("name", ["DRF", "FIFO", "SRTF", "Tetris", "Optimus"])
def test_every_jct_and_allocation_is_that_of_the_published_simulator(config, seed, name, shared_data):
    run = dl2.reference(shared_data)[config]["seeds"][seed]
    if name not in run["results"]:
        pytest.skip(f"the reference has no {name} run of {config}, seed {seed}")
    expected = run["results"][name]
    slot_s = dl2.setting(config).slot_s
    jobs, cluster = dl2.jobs(config, run["jobs"]), dl2.cluster(config)
    model = dl2.speed(jobs, cluster, shared_data)
    scheduler = make(name.lower(), published=True, **({"speeds": model.grid} if name == "Optimus" else {}))
    rows = dl2.run(jobs, cluster, model, scheduler, slot_s=slot_s)
    jct = dict(zip(jobs.id, dl2.jct_slots(rows, jobs, slot_s=slot_s), strict=True))
    assert jct == pytest.approx(expected["jct_by_job"], abs=1e-6)
    if "alloc_by_ts__id_ps_worker" in expected:
        assert allocations(rows, jobs, slot_s=slot_s) == [
            sorted(map(tuple, slot)) for slot in expected["alloc_by_ts__id_ps_worker"]
        ]


def allocations(rows, jobs, *, slot_s):
    """Return the (id, PSs, workers) of each job that holds tasks after the decision of each slot."""
    held: dict[int, tuple[int, int]] = {}
    slots: list[list[tuple[int, int, int]]] = []
    starts = np.flatnonzero(rows["kind"] == Kind.DECIDED)
    assert np.array_equal(rows["time_s"][starts], slot_s * np.arange(len(starts)))
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        batch = rows[start:end]
        now = batch[batch["time_s"] == batch["time_s"][0]]
        placed = now[now["kind"] == Kind.PLACED]
        gone = np.isin(now["kind"], [Kind.PREEMPTED])
        for job in now["job"][gone]:
            held.pop(int(job), None)
        for job in np.unique(placed["job"]):
            mine = placed[placed["job"] == job]
            counts = [int(mine["value"][mine["role"] == role].sum()) for role in (1, 0)]
            held[int(job)] = (counts[0], counts[1])
        slots.append(sorted((int(jobs.id[job]), *counts) for job, counts in held.items()))
        for job in batch["job"][batch["kind"] == Kind.COMPLETED]:
            held.pop(int(job), None)
    return slots
