"""Kubernetes: the pods that `kubectl get pods -A -o json` prints, put together to jobs by labels and owners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.device_names import (
    TYPE_LABELS,
    is_gpu,
    is_known,
    part_by_labels,
    part_of,
    quantity,
    requested_gpus,
    whole_type,
)
from labkit.core.errors import TraceError
from labkit.core.faults import fault_report
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.workloads.readers.base import entries_of, from_zero, started, text_of
from labkit.workloads.readers.kubernetes_objects import QUEUE, START_GUESSED, SUBMITTED, expanded
from labkit.workloads.readers.ledger import Read, Segments, TraceLedger
from labkit.workloads.readers.times import LATEST_S

EXPECTED: Final = "what `kubectl get pods --all-namespaces -o json` (or -o yaml) prints"
SERVICES: Final = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node"})
"""Kinds of owners whose pods run until they are deleted."""


def read_kubernetes(path: str | Path, *, cpu_jobs: bool = False) -> Jobs:
    """Return the GPU jobs of a list of pods; `cpu_jobs` adds those without GPUs.

    Pods of one job are told by its labels (Kueue, Volcano, JobSet, Kubeflow, Ray, Job) or their controller, and by the
    uid of that controller. A job is a rigid gang of one worker per GPU, as many as ran at the same time at most, for as
    long as gives the GPU-hours of all its pods; its steps are its seconds. Queues, or else namespaces, are the users.
    What was guessed, merged or left out stands in `Jobs.notes`.

    Raises
    ------
    TraceError
        Every fault, with the place of the pod in the list, its name and the key.
    """
    return kubernetes(path, cpu_jobs=cpu_jobs).jobs


def kubernetes(path: str | Path, *, cpu_jobs: bool = False) -> Read:
    """Return the jobs of a list of pods, and what became of its entries."""
    path = Path(path)
    entries = entries_of(path, text_of(path, expected=EXPECTED), key="items", expected=EXPECTED, alone="apiVersion")
    if not entries:
        raise TraceError(f"{path}: it has no pods; expected {EXPECTED}.")
    faults: list[str] = []
    entries, notes = expanded(entries)
    ledger = TraceLedger(len(entries), noun="pods")
    for note in notes:
        ledger.check(note)
    kinds = [str(_mapping(entry).get("kind") or "Pod") for entry in entries]
    if others := sorted({kind for kind in kinds if kind != "Pod"}):
        ledger.leave_out(sum(kind != "Pod" for kind in kinds), f"that are no pods ({', '.join(others)[:60]})")
    parts = _parts_of_gpus(entries)
    pods = [
        pod
        for i, (entry, kind) in enumerate(zip(entries, kinds, strict=True))
        if kind == "Pod" and (pod := read_pod(i, entry, faults, parts=parts)) is not None
    ]
    if faults and len(faults) >= len(pods):
        raise TraceError(fault_report(str(path), faults))
    if faults:
        ledger.leave_out(len(faults), f"that cannot be read ({faults[0]})")
    ran = _ran(_latest(pods, ledger), ledger)
    gangs = [
        gang for mine in _grouped(_submitted(ran, pods)) if (gang := _gang(mine, ledger, cpu_jobs=cpu_jobs)) is not None
    ]  # fmt: skip
    _devices(pods, ledger)
    told_besides = " ".join(("GPUs are asked for as nvidia.com/gpu or the like", *ledger.checks)).rstrip(".")
    ledger.refuse_none(path, f"pods must have ended or run; {told_besides}")
    segments = Segments.of(*np.array([(pod.gpus, pod.start_s, pod.end_s) for pod in ran], np.float64).reshape(-1, 3).T)
    zero_s = min(gang.arrival_s for gang in gangs)
    return Read(ledger.close(_jobs(gangs, name=path.name, ledger=ledger)), ledger, segments, zero_s)


def is_pods(head: str) -> bool:
    """Return whether the beginning of a JSON file is that of a list of Kubernetes objects."""
    return '"apiVersion"' in head and '"items"' in head


def _latest(pods: Sequence[Pod], ledger: TraceLedger) -> list[Pod]:
    """Return each pod once, as it was seen last: a pod is its uid, whatever lists it stands in."""
    latest: dict[str, Pod] = {}
    for i, pod in enumerate(pods):
        key = pod.uid or f"{i}"
        if key not in latest or (pod.end_s or 0.0, pod.last_s) >= (latest[key].end_s or 0.0, latest[key].last_s):
            latest[key] = pod
    ledger.merge(len(pods) - len(latest), "of pods that stand there more than once (exports put together)")
    return list(latest.values())


def _ran(pods: Sequence[Pod], ledger: TraceLedger) -> list[Pod]:
    """Return the pods of jobs that ran, those under way until the last moment that the file names."""
    last_s = max((pod.last_s for pod in pods), default=0.0)
    pods = [pod.until(last_s) if pod.end_s is None and pod.under_way else pod for pod in pods]
    ledger.open([pod.gpu_hours for pod in pods])
    ran = []
    for pod in pods:
        if pod.owner in SERVICES:
            reason = f"of services and the like ({', '.join(sorted(SERVICES))})"
        elif pod.start_s is None:
            reason = "never started"
        elif pod.end_s is None:
            reason = "ended at an unknown time"
        elif pod.end_s <= pod.start_s:
            reason = "of 0 seconds"
        else:
            ran.append(pod)
            continue
        ledger.leave_out(1, reason, gpu_hours=pod.gpu_hours)
    return ran


def _submitted(ran: Sequence[Pod], pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods that ran, submitted no later than any pod of their job, as those that were evicted before."""
    objects: dict[str, set[str]] = {}
    for pod in pods:
        objects.setdefault(pod.job, set()).update({pod.identity} - {""})

    def key(pod: Pod) -> tuple[str, str]:
        return pod.job, pod.identity if len(objects[pod.job]) > 1 else ""

    first_s: dict[tuple[str, str], float] = {}
    for pod in pods:
        first_s[key(pod)] = min(pod.submitted_s, first_s.get(key(pod), np.inf))
    return [replace(pod, submitted_s=first_s[key(pod)]) for pod in ran]


def _grouped(pods: Sequence[Pod]) -> list[list[Pod]]:
    """Return the pods of each job: of a name and the uid of what has it, and of each completion of a sweep."""
    named: dict[str, list[Pod]] = {}
    for pod in pods:
        named.setdefault(pod.job, []).append(pod)
    used: dict[str, int] = {}
    groups = []
    for mine in (unit for whole in named.values() for once in _by_object(whole) for unit in _completions(once)):
        nth = used[mine[0].job] = used.get(mine[0].job, 0) + 1
        groups.append([replace(pod, job=f"{pod.job}#{nth}") for pod in mine] if nth > 1 else mine)
    return groups


def _by_object(pods: list[Pod]) -> list[list[Pod]]:
    """Return the pods of each object of one name; pods of others' owners belong to the one that was there then."""
    began: dict[str, float] = {}
    for pod in pods:
        if pod.identity:
            began[pod.identity] = min(pod.created_s, began.get(pod.identity, np.inf))
    if len(began) < 2:
        return [pods]
    order = sorted(began, key=lambda uid: began[uid])
    objects: dict[str, list[Pod]] = {uid: [] for uid in order}
    for pod in pods:
        there = [uid for uid in order if began[uid] <= pod.created_s]
        objects[pod.identity or (there[-1] if there else order[0])].append(pod)
    return list(objects.values())


def _completions(pods: list[Pod]) -> list[list[Pod]]:
    """Return the pods of each completion of a plain Job whose pods did not all run at once; else one gang."""
    if not all(pod.plain_job for pod in pods):
        return [pods]
    units: dict[str, list[Pod]] = {}
    if all(pod.index for pod in pods):
        for pod in pods:
            units.setdefault(pod.index, []).append(pod)
    else:
        done = sorted((pod for pod in pods if pod.succeeded or pod.under_way), key=lambda pod: pod.start_s or 0.0)
        units = {pod.name: [pod] for pod in done}
        for pod in pods if done else ():
            if pod not in done:  # a retry belongs to the next one that starts
                later = [other for other in done if (other.start_s or 0.0) >= (pod.end_s or 0.0)]
                units[(later or done)[0].name].append(pod)
    spans = [(min(p.start_s or 0.0 for p in unit), max(p.end_s or 0.0 for p in unit)) for unit in units.values()]
    if len(units) < 2 or max(start for start, _ in spans) < min(end for _, end in spans):
        return [pods]
    ended_s = min(pod.end_s or 0.0 for pod in pods)  # a pod that is created later waited for another completion
    return [
        [
            replace(
                pod,
                job=f"{pod.job}[{name}]" if pod.index else name,
                submitted_s=pod.submitted_s if min(p.created_s for p in unit) < ended_s else pod.created_s,
            )
            for pod in unit
        ]
        for name, unit in units.items()
    ]


def _devices(pods: Sequence[Pod], ledger: TraceLedger) -> None:
    """Note resources that look like devices and are not known as GPUs."""
    counts: dict[str, int] = {}
    for name in (name for pod in pods for name in pod.devices):
        counts[name] = counts.get(name, 0) + 1
    if counts:
        fault_report = ", ".join(f"{name} of {n:,} pods" for name, n in counts.items())
        how = ",".join(f"{name}=1" for name in counts if "/" in name)
        remedy = f"; --format 'kubernetes({how})' counts them as so many GPUs each" if how else ""
        ledger.check(f"devices that are not counted as GPUs: {fault_report}{remedy}.")


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods of a job as one gang: `n_pods` at a time, with so many GPUs, cores and GB in all, and PSs."""

    first: Pod
    arrival_s: float
    start_s: float
    nodes: tuple[str, ...]
    busy_s: float
    n_pods: int
    gpus: float
    cpus: float
    memory_gb: float
    servers: tuple[Pod, ...]
    under_way: bool
    changed: bool
    wait_unknown: bool


def _gang(pods: list[Pod], ledger: TraceLedger, *, cpu_jobs: bool) -> Gang | None:
    """Return the gang of a job; None where it has no GPUs and only GPU jobs are wanted."""
    servers = tuple(pod for pod in pods if pod.is_ps and pod.gpus == 0)
    workers = [pod for pod in pods if pod.gpus > 0]
    if not workers:
        if not cpu_jobs:
            ledger.leave_out(len(pods), "of jobs without GPUs", gpu_hours=0.0)
            return None
        servers, workers = (), pods
    others = len(pods) - len(workers) - len(servers)
    at_once = _most_at_once(workers)
    ledger.merge(others, "without GPUs of GPU jobs (launchers)")
    ledger.merge(len(servers), "parameter servers")
    ledger.merge(len(at_once) - 1, "further members of a gang")
    ledger.merge(len(workers) - len(at_once), "not at work when the gang was largest (retries, say)")
    busy_s, gpus = _busy_s(workers), sum(pod.gpus for pod in at_once)
    lasts_s = 3600 * sum(pod.gpu_hours for pod in workers) / gpus if gpus > 0 else busy_s
    return Gang(
        first=at_once[0],
        arrival_s=min(pod.submitted_s for pod in pods),
        start_s=min(pod.start_s or np.nan for pod in workers),
        nodes=tuple(dict.fromkeys(pod.node for pod in at_once if pod.node)),
        busy_s=lasts_s,
        n_pods=len(at_once),
        gpus=gpus,
        cpus=sum(pod.cpus for pod in at_once),
        memory_gb=sum(pod.memory_gb for pod in at_once),
        servers=tuple(_most_at_once(list(servers))) if servers else (),
        under_way=any(pod.under_way for pod in workers),
        changed=abs(lasts_s - busy_s) > 0.01 * busy_s,
        wait_unknown=all(pod.wait_unknown for pod in pods),
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
    busy_s, until_s = 0.0, -np.inf
    for start_s, end_s in sorted((pod.start_s or 0.0, pod.end_s or 0.0) for pod in pods):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return busy_s


def _jobs(gangs: list[Gang], *, name: str, ledger: TraceLedger) -> Jobs:
    """Return the gangs as jobs, a worker for each GPU, or for each pod where pods have parts of GPUs."""
    whole = np.array([gang.gpus == int(gang.gpus) and gang.gpus > 0 for gang in gangs])
    parts = np.array([gang.n_pods for gang in gangs])
    gpus = np.array([gang.gpus for gang in gangs])
    n_workers = np.clip(np.where(whole, gpus, parts), 1, MAX_TASKS).astype(np.int32)
    cores = np.array([gang.cpus for gang in gangs])
    _remark(gangs, cores, ledger)
    ledger.remark(gpus > MAX_TASKS, f"cut to {MAX_TASKS:,} GPUs")
    memory_gb = np.array([gang.memory_gb for gang in gangs])
    cores = np.where(np.isnan(cores), n_workers, cores)
    duration_s = np.array([gang.busy_s for gang in gangs])
    arrival_s = np.array([gang.arrival_s for gang in gangs])
    return Jobs.of(
        name=name,
        id=[gang.first.job for gang in gangs],
        model=[gang.first.model for gang in gangs],
        user=[gang.first.user for gang in gangs],
        arrival_s=from_zero(arrival_s),
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
        recorded_start_s=started(np.array([gang.start_s for gang in gangs]), arrival_s),
        recorded_hosts=[",".join(gang.nodes) for gang in gangs],
    )


def _remark(gangs: list[Gang], cores: Floats, ledger: TraceLedger) -> None:
    """Note what was guessed of the gangs."""
    ledger.remark(np.isnan(cores), "no request for cores, so that they get one per worker")
    ledger.remark(
        [gang.under_way for gang in gangs],
        "not ended, so that they end with the last moment in the file, which is too early",
    )
    ledger.remark(
        [gang.changed for gang in gangs],
        "a gang that changed, or did not start and end at once, so that they have the largest, for as long as gives "
        "their GPU-hours",
    )
    ledger.remark(
        [gang.wait_unknown for gang in gangs],
        "a queue of Kueue and no Job or Workload in the file, so that they arrive when they were admitted (kubectl get "
        "pods,jobs,workloads tells when they were submitted)",
    )
    ledger.remark(
        [gang.first.starts_at_creation for gang in gangs],
        "no start time, so that they start at their creation",
    )
    ledger.remark(
        [gang.first.guessed for gang in gangs],
        "slices of GPUs; one of MIG counts by its sevenths, one of time as the nodes in the list say, else as a GPU",
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


JOB_LABELS: Final = (
    "kueue.x-k8s.io/pod-group-name",
    "volcano.sh/job-name",
    "scheduling.k8s.io/group-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""Labels and annotations that name the job of a pod, the widest first."""

QUEUE_LABELS: Final = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "scheduling.volcano.sh/queue-name")
MODEL_LABELS: Final = ("app.kubernetes.io/name", "app")
ROLE_LABELS: Final = ("training.kubeflow.org/replica-type", "volcano.sh/task-spec", "elasticjob.dlrover/replica-type",
                      "tf-replica-type")  # fmt: skip
STOPS: Final = (("Ready", "False"), ("ContainersReady", "False"), ("DisruptionTarget", "True"))
"""Conditions of a pod that is over which tell when it stopped: the last of it where its containers tell no end."""
PLAIN_JOB_LABELS: Final = ("batch.kubernetes.io/job-name", "job-name")
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
_MOST_CORES: Final = 1e6


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as it ran.

    Attributes
    ----------
    name, job : str
        Its name, and that of its job, both with the namespace.
    owner : str
        Kind of its controller; "" without one.
    created_s, submitted_s, start_s, end_s, last_s : float
        Seconds since 1970, None where not known; `submitted_s` is when what made it was created, and `last_s` the last
        moment that the pod tells.
    under_way : bool
        It has not ended.
    gpus, cpus, memory_gb : float
        What it asked for; NaN cores: nothing was said.
    guessed : bool
        Its GPUs are slices.
    starts_at_creation : bool
        Its start time is missing; its creation time is used.
    uid, identity : str
        Its own uid, and that of the object whose name is the job's; "" where they are not told.
    index : str
        Which completion of a Job it is; "" without one.
    plain_job, succeeded : bool
        It belongs to a Job and to nothing wider; it ended well.
    devices : tuple of str
        Resources that look like devices and are not known as GPUs.
    node : str
        The machine that it was bound to.
    wait_unknown : bool
        It was made when Kueue admitted its job, and nothing tells when that was submitted.
    """

    name: str
    job: str
    owner: str
    user: str
    model: str
    device_type: str
    priority: float
    is_ps: bool
    created_s: float
    submitted_s: float
    start_s: float | None
    end_s: float | None
    last_s: float
    under_way: bool
    gpus: float
    cpus: float
    memory_gb: float
    guessed: bool
    starts_at_creation: bool = False
    uid: str = ""
    identity: str = ""
    index: str = ""
    plain_job: bool = False
    succeeded: bool = False
    devices: tuple[str, ...] = ()
    node: str = ""
    wait_unknown: bool = False

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that it held; 0 where its start or end is not known."""
        return (
            0.0
            if self.start_s is None or self.end_s is None
            else self.gpus * max(0.0, self.end_s - self.start_s) / 3600
        )

    def until(self, end_s: float) -> Self:
        """Return the pod with an end."""
        return replace(self, end_s=end_s)


class _FaultError(Exception):
    """A value that cannot be read: its key, and what was expected."""


def _parts_of_gpus(entries: Sequence[object]) -> dict[str, float]:
    """Return the parts of a GPU that GPUs of the nodes in a list are, by the nodes' names and their products."""
    parts: dict[str, float] = {}
    for metadata in (_mapping(_mapping(one).get("metadata")) for one in entries if _mapping(one).get("kind") == "Node"):
        labels = _mapping(metadata.get("labels"))
        names = (metadata.get("name"), labels.get(TYPE_LABELS[0]))
        parts |= {str(name): part_by_labels(labels) for name in names if name}
    return parts


def read_pod(i: int, entry: object, faults: list[str], *, parts: Mapping[str, float] | None = None) -> Pod | None:
    """Return the i-th pod of a list, or None with its fault noted; `parts`: of a GPU, by nodes and products."""
    metadata = _mapping(_mapping(entry).get("metadata"))
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        faults.append(f"pod {i + 1}: metadata.name is {str(name)[:40]}; expected an object with metadata, spec, status")
        return None
    try:
        return _pod(_mapping(entry), metadata, name, parts=parts or {})
    except _FaultError as fault:
        faults.append(f"pod {i + 1} ({name[:60]}): {fault}")
        return None


def _pod(
    entry: Mapping[str, Any], metadata: Mapping[str, Any], name: str, *, parts: Mapping[str, float]
) -> Pod:  # fmt: skip
    spec, status = _mapping(entry.get("spec")), _mapping(entry.get("status"))
    labels = {**_mapping(metadata.get("annotations")), **_mapping(metadata.get("labels"))}
    space = str(metadata["namespace"]) if _text(metadata.get("namespace")) else "default"
    owner, uid = _owner(metadata), str(metadata.get("uid") or "")
    label = next((label for label in JOB_LABELS if _text(labels.get(label))), "")
    job = f"{space}/{labels[label]}" if label else None
    users = [str(labels[each]) for each in QUEUE_LABELS if _text(labels.get(each))]
    created_s, submitted_s = _made_s(metadata)
    waited = owner[0] and submitted_s is None and _text(labels.get(QUEUE_LABELS[0]))
    start_s, end_s, seen = _times(status)
    gpus, slices = _gpus(metadata, spec, parts=parts)
    return Pod(
        name=f"{space}/{name}",
        job=job or (f"{space}/{owner[1]}" if owner[0] and owner[1] else f"{space}/{name}"),
        owner="" if job else owner[0],
        user=users[0] if users else str(metadata.get(QUEUE) or space),
        model=next((str(labels[label]) for label in MODEL_LABELS if _text(labels.get(label))), "job"),
        device_type=_type(spec),
        priority=_plain_number(spec.get("priority")),
        is_ps=any(str(labels.get(label, "")).lower() in ("ps", "parameter-server") for label in ROLE_LABELS),
        created_s=created_s,
        submitted_s=min(created_s, submitted_s or created_s),
        start_s=start_s,
        end_s=end_s,
        last_s=max([created_s, *seen]),
        under_way=status.get("phase") in ("Running", "Pending", "Unknown"),
        gpus=gpus,
        cpus=_cores(spec),
        memory_gb=_requested(spec, lambda one: _of(one, "memory")) / 2.0**30,
        guessed=slices,
        starts_at_creation=status.get(START_GUESSED) is True,
        uid=uid,
        identity=owner[2] if owner[1] and owner[1] == str(labels.get(label, owner[1])) else "" if label else uid,
        index=str(labels.get(INDEX_LABEL) or ""),
        plain_job=label in PLAIN_JOB_LABELS or (not label and owner[0] == "Job"),
        succeeded=status.get("phase") == "Succeeded",
        devices=_unknown_devices(spec, labels),
        node=str(spec.get("nodeName") or ""),
        wait_unknown=bool(waited) and not labels.get("kueue.x-k8s.io/managed"),  # a pod of its own, which waits itself
    )


def _cores(spec: Mapping[str, Any]) -> float:
    """Return the cores that a pod asks for; NaN where it does not say."""
    cpus = _requested(spec, lambda one: _of(one, "cpu"))
    return min(cpus, _MOST_CORES) if cpus > 0 else float("nan")


def _made_s(metadata: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return when a pod was created, and when what made it was; None where that is not known."""
    created_s = _moment_s(metadata.get("creationTimestamp"), "metadata.creationTimestamp")
    if created_s is None:
        raise _FaultError("metadata.creationTimestamp is missing; expected a time like 2024-03-01T12:00:00Z")
    return created_s, _moment_s(metadata.get(SUBMITTED), SUBMITTED)


def _unknown_devices(spec: Mapping[str, Any], labels: Mapping[str, Any]) -> tuple[str, ...]:
    names = {name for resources in _resources(spec) for name in resources if "/" in name}
    claims = ("a resource claim",) if _list(spec.get("resourceClaims")) else ()
    memory = ("gpu-memory, part of a GPU by its memory,",) if labels.get("gpu-memory") else ()  # run:ai
    return (*(name for name in sorted(names) if not is_known(name)), *claims, *memory)


def _owner(metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return kind, name and uid of the controller."""
    owners = metadata.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, Mapping) and owner.get("controller"):
            return str(owner.get("kind", "")), str(owner.get("name", "")), str(owner.get("uid") or "")
    return "", "", ""


def _times(status: Mapping[str, Any]) -> tuple[float | None, float | None, list[float]]:
    """Return when the containers started and ended, None where not known, and all moments that are told."""
    starts, ends, n_restarts = [], [], 0
    for container in _list(status.get("containerStatuses")):
        state = _mapping(_mapping(container).get("state"))
        last = _mapping(_mapping(container).get("lastState"))
        done, running = _mapping(state.get("terminated")), _mapping(state.get("running"))
        before = _mapping(last.get("terminated"))
        n_restarts = max(n_restarts, int(_plain_number(_mapping(container).get("restartCount"))))
        starts += [_moment_s(phase.get("startedAt"), "startedAt") for phase in (before, done, running)]
        ends.append(_moment_s(done.get("finishedAt"), "finishedAt"))
    changes = [
        (one.get("type"), one.get("status"), _moment_s(one.get("lastTransitionTime"), "lastTransitionTime"))
        for one in map(_mapping, _list(status.get("conditions")))
    ]
    began_s = _moment_s(status.get("startTime"), "status.startTime")
    known_starts = [s for s in starts if s]
    if n_restarts and began_s:  # only the last two runs of a container are told, and the pod kept its GPUs meanwhile
        known_starts.append(began_s)
    known_ends = [s for s in ends if s]
    start_s = min(known_starts) if known_starts else None
    if status.get("phase") in ("Succeeded", "Failed"):
        start_s = start_s or began_s
        stopped = [s for kind, holds, s in changes if s and (kind, holds) in STOPS]
        end_s = max(known_ends) if known_ends else max(stopped, default=None)
    else:
        end_s = None
    seen = [s for s in (*known_starts, *known_ends, began_s, *(s for _, _, s in changes)) if s]
    return start_s, end_s, seen


def _gpus(metadata: Mapping[str, Any], spec: Mapping[str, Any], *, parts: Mapping[str, float]) -> tuple[float, bool]:
    """Return the GPUs that a pod asks for, and whether they are parts of some."""
    names = {name for resources in _resources(spec) for name in resources}
    sliced = any("shared" in name or "vgpu" in name or part_of(name) not in (None, 1.0) for name in names)
    gpus = _requested(spec, _gpus_of)
    selected = _selected(spec)
    product = str(selected.get(TYPE_LABELS[0], ""))
    told = (parts.get(str(spec.get("nodeName") or "")), parts.get(product), part_by_labels(selected))
    part = next(one for one in told if one is not None)
    if gpus and part < 1 and all(part_of(name) in (None, 1.0) for name in names):
        return gpus * part, True
    sliced = sliced or product.endswith("-SHARED")
    fault_report = {**_mapping(metadata.get("labels")), **_mapping(metadata.get("annotations"))}
    if not gpus and (fraction := _number_of(fault_report.get("gpu-fraction"))):  # run:ai
        return fraction * (_number_of(fault_report.get("gpu-fraction-num-devices")) or 1.0), True
    return gpus, sliced or gpus % 1 > 0


def _number_of(value: object) -> float:
    return quantity(value) or 0.0


def _gpus_of(container: object) -> float:
    """Return the GPUs that a container asks for."""
    resources = _mapping(_mapping(container).get("resources"))
    names = {name for part in ("requests", "limits") for name in _mapping(resources.get(part))}
    return requested_gpus({name: _of(container, name) for name in names if "/" in name and is_gpu(name)})


def _requested(spec: Mapping[str, Any], amount: Callable[[object], float]) -> float:
    """Return a pod's request of an amount of each container: all together, or one that runs before if that is more."""
    first = _list(spec.get("initContainers"))
    beside = [one for one in first if _mapping(one).get("restartPolicy") == "Always"]  # sidecars
    together = sum(amount(container) for container in (*_list(spec.get("containers")), *beside))
    alone = max((amount(container) for container in first if container not in beside), default=0.0)
    return max(together, alone)


def _of(container: object, resource: str) -> float:
    resources = _mapping(_mapping(container).get("resources"))
    for part in ("requests", "limits"):  # a limit without a request is the request
        if (value := _mapping(resources.get(part)).get(resource)) is not None:
            return _quantity(value, f"resources.{part}.{resource}")
    return 0.0


def _resources(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for container in (*_list(spec.get("containers")), *_list(spec.get("initContainers"))):
        resources = _mapping(_mapping(container).get("resources"))
        yield _mapping(resources.get("requests"))
        yield _mapping(resources.get("limits"))


def _quantity(value: object, key: str) -> float:
    """Return a quantity such as 500m, 2 or 64Gi."""
    amount = quantity(value)
    if amount is None:
        raise _FaultError(f"{key} is '{str(value)[:40]}'; expected a quantity like 500m, 2 or 64Gi")
    return amount


def _type(spec: Mapping[str, Any]) -> str:
    """Return the type of GPU that a pod demands of its node; "" if it takes any."""
    selected = _selected(spec)
    return next((whole_type(str(selected[label])) for label in TYPE_LABELS if _text(selected.get(label))), "")


def _selected(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels that a pod demands of its node, each with the one value that it takes."""
    affinity = _mapping(_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = _mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    rules = [rule for term in _list(required.get("nodeSelectorTerms"))
             for rule in map(_mapping, _list(_mapping(term).get("matchExpressions")))]  # fmt: skip
    alone = {str(rule.get("key")): _list(rule.get("values"))[0] for rule in reversed(rules)
             if rule.get("operator") == "In" and len(_list(rule.get("values"))) == 1}  # fmt: skip
    return {**alone, **_mapping(spec.get("nodeSelector"))}


def _moment_s(value: object, key: str) -> float | None:
    if value is None:
        return None
    try:
        stamp = datetime.fromisoformat(str(value))
        seconds = stamp.timestamp() if stamp.tzinfo else float("nan")
    except (ValueError, OverflowError):
        seconds = float("nan")
    if not 0 <= seconds < LATEST_S:
        raise _FaultError(f"{key} is '{str(value)[:40]}'; expected a time like 2024-03-01T12:00:00Z")
    return seconds


def _plain_number(value: object) -> float:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else 0.0


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
