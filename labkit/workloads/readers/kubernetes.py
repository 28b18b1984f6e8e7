"""Kubernetes: the pods that `kubectl get pods -A -o json` prints, put together to jobs by labels and owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import told
from labkit.core.jobs import Jobs
from labkit.workloads.readers.base import from_zero
from labkit.workloads.readers.files import text_of
from labkit.workloads.readers.pods import Pod, read_pod
from labkit.workloads.readers.sacct_files import entries_of
from labkit.workloads.readers.tally import Read, Tally

EXPECTED: Final = "what `kubectl get pods --all-namespaces -o json` prints"
SERVICES: Final = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node"})
"""Kinds of owners whose pods run until they are deleted."""


def read_kubernetes(path: str | Path, *, cpu_jobs: bool = False) -> Jobs:
    """Return the GPU jobs of a list of pods; `cpu_jobs` adds those without GPUs.

    Pods of one job are told by its labels (Kueue, Volcano, JobSet, Kubeflow, Ray, Job) or their controller. A job is a
    rigid gang of one worker per GPU, as many as ran at the same time at most; it takes as long as any of its GPU pods
    ran; its steps are its seconds. Queues, or else namespaces, are the users. What was guessed, merged or left out
    stands in `Jobs.notes`.

    Raises
    ------
    TraceError
        Every fault, with the place of the pod in the list, its name and the key.
    """
    return kubernetes(path, cpu_jobs=cpu_jobs).jobs


def kubernetes(path: str | Path, *, cpu_jobs: bool = False) -> Read:
    """Return the jobs of a list of pods, and what became of its entries."""
    path = Path(path)
    entries = entries_of(path, text_of(path, expected=EXPECTED), key="items", expected=EXPECTED)
    if not entries:
        raise TraceError(f"{path}: it has no pods; expected {EXPECTED}.")
    faults: list[str] = []
    pods = [pod for i, entry in enumerate(entries) if (pod := read_pod(i, entry, faults)) is not None]
    if faults:
        raise TraceError(told(str(path), faults))
    tally = Tally(len(entries), noun="pods")
    groups: dict[str, list[Pod]] = {}
    for pod in _ran(pods, tally):
        groups.setdefault(pod.job, []).append(pod)
    gangs = [gang for mine in groups.values() if (gang := _gang(mine, tally, cpu_jobs=cpu_jobs)) is not None]
    tally.refuse_none(
        path, "GPUs are asked for as nvidia.com/gpu, amd.com/gpu or the like, and pods must have ended or run"
    )
    return Read(_jobs(gangs, name=path.name, tally=tally), tally)


def is_pods(head: str) -> bool:
    """Tell whether the beginning of a JSON file is that of a list of Kubernetes objects."""
    return '"apiVersion"' in head and '"items"' in head


def _ran(pods: Sequence[Pod], tally: Tally) -> list[Pod]:
    """Return the pods of jobs that ran, those under way until the last moment that the file names."""
    last_s = max((pod.seen_s for pod in pods), default=0.0)
    ran = []
    for pod in pods:
        if pod.owner in SERVICES:
            tally.leave_out(1, f"of services and the like ({', '.join(sorted(SERVICES))})")
        elif pod.start_s is None:
            tally.leave_out(1, "never started")
        elif pod.end_s is None and not pod.under_way:
            tally.leave_out(1, "ended at an unknown time")
        elif (end_s := last_s if pod.end_s is None else pod.end_s) <= pod.start_s:
            tally.leave_out(1, "of 0 seconds")
        else:
            ran.append(pod.until(end_s))
    return ran


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods of a job as one gang: `n_pods` at a time, with so many GPUs, cores and GB in all, and PSs."""

    first: Pod
    arrival_s: float
    busy_s: float
    n_pods: int
    gpus: float
    cpus: float
    memory_gb: float
    servers: tuple[Pod, ...]
    under_way: bool


def _gang(pods: list[Pod], tally: Tally, *, cpu_jobs: bool) -> Gang | None:
    """Return the gang of a job; None where it has no GPUs and only GPU jobs are wanted."""
    servers = tuple(pod for pod in pods if pod.is_ps and pod.gpus == 0)
    workers = [pod for pod in pods if pod.gpus > 0]
    if not workers:
        if not cpu_jobs:
            tally.leave_out(len(pods), "of jobs without GPUs")
            return None
        servers, workers = (), pods
    others = len(pods) - len(workers) - len(servers)
    at_once = _most_at_once(workers)
    tally.merge(others, "without GPUs of GPU jobs (launchers)")
    tally.merge(len(servers), "parameter servers")
    tally.merge(len(at_once) - 1, "further members of a gang")
    tally.merge(len(workers) - len(at_once), "not at work when the gang was largest (retries, say)")
    return Gang(
        first=at_once[0],
        arrival_s=min(pod.created_s for pod in pods),
        busy_s=_busy_s(workers),
        n_pods=len(at_once),
        gpus=sum(pod.gpus for pod in at_once),
        cpus=sum(pod.cpus for pod in at_once),
        memory_gb=sum(pod.memory_gb for pod in at_once),
        servers=tuple(_most_at_once(list(servers))) if servers else (),
        under_way=any(pod.under_way for pod in workers),
    )


def _most_at_once(pods: list[Pod]) -> list[Pod]:
    """Return the pods that ran when the most GPUs of the job were in use."""
    best: list[Pod] = []
    running: list[Pod] = []
    for pod in sorted(pods, key=lambda pod: (pod.start_s or 0.0, pod.name)):
        running = [other for other in running if (other.end_s or 0.0) > (pod.start_s or 0.0)]
        running.append(pod)
        if (sum(p.gpus for p in running), len(running)) > (sum(p.gpus for p in best), len(best)):
            best = list(running)
    return best


def _busy_s(pods: list[Pod]) -> float:
    """Return for how many seconds any of the pods ran."""
    busy_s, until_s = 0.0, -np.inf
    for start_s, end_s in sorted((pod.start_s or 0.0, pod.end_s or 0.0) for pod in pods):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return busy_s


def _jobs(gangs: list[Gang], *, name: str, tally: Tally) -> Jobs:
    """Return the gangs as jobs, a worker for each GPU, or for each pod where pods have parts of GPUs."""
    whole = np.array([gang.gpus == int(gang.gpus) and gang.gpus > 0 for gang in gangs])
    parts = np.array([gang.n_pods for gang in gangs])
    gpus = np.array([gang.gpus for gang in gangs])
    n_workers = np.clip(np.where(whole, gpus, parts), 1, MAX_TASKS).astype(np.int32)
    cores = np.array([gang.cpus for gang in gangs])
    tally.remark(np.isnan(cores), "no request for cores, so that they get one per worker")
    tally.remark(
        [gang.under_way for gang in gangs],
        "not ended, so that they end with the last moment in the file, which is too early",
    )
    tally.remark(
        [gang.first.guessed for gang in gangs],
        "slices of GPUs; a slice of time counts as a GPU, one of MIG by its sevenths",
    )
    tally.remark(gpus > MAX_TASKS, f"cut to {MAX_TASKS:,} GPUs")
    memory_gb = np.array([gang.memory_gb for gang in gangs])
    cores = np.where(np.isnan(cores), n_workers, cores)
    duration_s = np.array([gang.busy_s for gang in gangs])
    return Jobs.of(
        name=name,
        id=[gang.first.job for gang in gangs],
        model=[gang.first.model for gang in gangs],
        user=[gang.first.user for gang in gangs],
        arrival_s=from_zero(np.array([gang.arrival_s for gang in gangs])),
        total_steps=duration_s,
        duration_s=duration_s,
        n_workers=n_workers,
        n_ps=[min(len(gang.servers), MAX_TASKS) for gang in gangs],
        worker_demand=np.stack(
            [np.where(whole, 1.0, gpus / n_workers), cores / n_workers, memory_gb / n_workers], axis=-1
        ),
        ps_demand=np.array([_of_one_server(gang.servers) for gang in gangs]),
        device_type=[gang.first.device_type for gang in gangs],
        measured_on=[gang.first.device_type for gang in gangs],
        priority=[gang.first.priority for gang in gangs],
        notes=tally.notes(),
    )


def _of_one_server(servers: Sequence[Pod]) -> list[float]:
    """Return GPUs, cores and GB of a parameter server."""
    if not servers:
        return [0.0, 1.0, 0.0]
    return [
        0.0,
        float(np.nan_to_num(np.mean([pod.cpus for pod in servers]), nan=1.0)),
        float(np.mean([pod.memory_gb for pod in servers])),
    ]
