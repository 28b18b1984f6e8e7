"""Alibaba's 2023 GPU trace: pods with fractions of GPUs (`openb_pod_list_*.csv`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.workloads.readers.base import from_zero, names_of, per_gpu, table_of
from labkit.workloads.readers.tally import Tally

COLUMNS: Final = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
SEPARATOR: Final = "|"
"""Between GPU types of which a pod demands one."""
ANY: Final = "any"
"""The model of a pod that demands no type of GPU."""
EXPECTED_PODS: Final = "an Alibaba 2023 pod list with columns " + ", ".join(COLUMNS)


def read_alibaba_2023(path: str | Path) -> Jobs:
    """Return the pods that were scheduled and later deleted, the earliest at 0; their steps are their seconds.

    A pod of one GPU may take a fraction of it (`gpu_milli`). A pod of several GPUs becomes as many workers, its cores
    and memory shared among them; a pod without GPUs is one worker. The model is the GPU type that was asked for, or
    "any"; classes of service are the users. A demand for one GPU type is kept (`device_type`); one for one of several
    is not. What was left out and dropped stands in `Jobs.notes`.

    Raises
    ------
    TraceError
        Every fault, with line and column.
    """
    table = table_of(
        Path(path), columns=COLUMNS, names=("name", "gpu_spec", "qos"), header=True, expected=EXPECTED_PODS
    )
    created_s = table.numbers("creation_time", low=0)
    deleted_s = table.numbers("deletion_time", low=0, blank_ok=True)
    scheduled_s = table.numbers("scheduled_time", low=0, blank_ok=True)
    gpus = table.counts("num_gpu", low=0, high=1000)
    share = table.numbers("gpu_milli", low=0, high=1000)
    cpus = table.numbers("cpu_milli", low=0) / 1000
    memory_gb = table.numbers("memory_mib", low=0) / 1024
    table.fault((gpus > 0) & (share == 0), "gpu_milli", expected="1 to 1000 for a pod with GPUs")
    names, user, model = table.texts("name"), table.texts("qos"), names_of(table.frame["gpu_spec"], blank=ANY)
    table.check()
    duration_s = deleted_s - scheduled_s
    tally = Tally(len(table), noun="pods")
    jobs = tally.keep(
        [
            (np.isnan(scheduled_s), "never scheduled"),
            (np.isnan(deleted_s), "not deleted when the file was written"),
            (duration_s < 0, "that end before they start"),
            (duration_s == 0, "of 0 seconds"),
        ]
    )
    kept = np.flatnonzero(jobs).astype(np.int32)
    if not len(kept):
        raise TraceError(f"{path}: no pod was both scheduled and deleted; expected {EXPECTED_PODS}.")
    workers, demand = per_gpu(gpus, cpus=cpus, memory_gb=memory_gb)
    demand[:, GPUS] *= np.where(gpus == 1, share / 1000, 1.0)
    return Jobs.of(
        name=table.path.name,
        id=[names[i] for i in kept],
        model=[model[i] for i in kept],
        user=[user[i] for i in kept],
        arrival_s=from_zero(created_s[kept]),
        total_steps=duration_s[kept],
        duration_s=duration_s[kept],
        n_workers=workers[kept],
        worker_demand=demand[kept],
        device_type=_one_type([model[i] if gpus[i] else ANY for i in kept], tally),
        notes=tally.notes(),
    )


def _one_type(asked: list[str], tally: Tally) -> list[str]:
    """Return the GPU type that each job demands, "" for those that have a choice, which are counted, or no demand."""
    tally.remark(
        [SEPARATOR in name for name in asked],
        "demands for one of several GPU types (A|B) dropped, so that they run on any type",
    )
    return ["" if SEPARATOR in name or name == ANY else name for name in asked]
