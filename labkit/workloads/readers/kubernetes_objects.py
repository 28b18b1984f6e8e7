"""Kubernetes' objects that tell of pods without listing them: jobs of operators, Kueue's Workloads, claims (DRA)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from labkit.core.bounds import MAX_TASKS
from labkit.core.device_names import quantity, slice_of

OWN_JOB: Final = "training.kubeflow.org/job-name"
OWN_ROLE: Final = "training.kubeflow.org/replica-type"
START_GUESSED: Final = "labkit/start-guessed"
"""In the status of a pod: that the moment of creation stands for a start which nothing tells."""
SUBMITTED: Final = "labkit/submitted"
"""In the metadata of a pod: when the first of the objects was created that made it, which may have waited since."""
QUEUE: Final = "labkit/queue"
"""In the metadata of a pod: the queue in which these objects waited."""
STARTED: Final = ("Running", "Admitted", "JobRunning", "PodsReady")
"""Conditions that tell when pods began to run: Kubeflow's and Volcano's, and Kueue's, which drops the first of its own
when all is over."""
WITHOUT_START: Final = frozenset({"JobSet", "Workload"})
"""Kinds whose status tells no start, or none any more, when they are over."""
OVER: Final = {"Succeeded": "Succeeded", "Complete": "Succeeded", "Completed": "Succeeded", "Finished": "Succeeded",
               "Failed": "Failed", "Aborted": "Failed", "Terminated": "Failed", "Evicted": "Failed"}  # fmt: skip
"""Conditions and phases that end a job, and the phase of its pods then; what stands before another one counts."""


class PodRole(NamedTuple):
    """Pods of one kind of a job: how many, and what each is asked to be."""

    name: str
    n: int
    spec: Mapping[str, Any]


def expanded(entries: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return a list in which objects whose pods are not in it stand as these pods, and what there is to know of it.

    Read are Jobs, JobSets, Kubeflow's jobs and TrainJobs, MPIJobs, DLRover's ElasticJobs, Volcano's Jobs and PodGroups,
    Kueue's Workloads and Ray's jobs and clusters: as many pods as they ask for, all from start to end. Of an object and
    those that it made, one counts. Claims of devices become GPUs of the pods that use them.
    """
    objects = [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, Mapping) and _kind(entry) != "Pod"]
    pods = [entry for entry in entries if isinstance(entry, Mapping) and _kind(entry) == "Pod"]
    mine = {_uid(entry) for _, entry in objects if roles_of(entry)} - {""}
    owners = {str(owner.get("uid")) for pod in pods for owner in _owners(pod)} | mine
    named = {(_space(pod), name) for pod in pods for name in _job_names(pod)}
    counts: Counter[str] = Counter()
    made: dict[int, list[Any]] = {}
    for i, entry in objects:
        names = {
            (_space(entry), str(_metadata(entry).get("name"))),
            *((_space(entry), o.get("name")) for o in _owners(entry)),
        }
        uids = {str(owner.get("uid")) for owner in _owners(entry)}
        if not (named & names or uids & owners or _uid(entry) in owners - mine) and (found := list(_pods_of(entry))):
            made[i] = found
            counts[_kind(entry)] += 1
    submitted = _Submissions([entry for _, entry in objects if roles_of(entry)])
    listed = [one for i, entry in enumerate(entries) for one in made.get(i, [submitted.told_of(entry)])]
    notes = []
    if counts:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in counts.items())
        notes.append(f"pods are not listed of {kinds}: as many as they ask for count, from their start to their end.")
    return _with_claims(listed), notes


class _Submissions:
    """Objects that made pods of a list, or tell of those that did, by their uid and by their name."""

    def __init__(self, objects: Sequence[Mapping[str, Any]]) -> None:
        self.by_uid: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self.by_name: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
        for entry in sorted((one for one in objects if _created(one)), key=_created):
            of_others = [str(owner.get("uid")) for owner in _owners(entry) if _kind(entry) in ("Workload", "PodGroup")]
            for uid in filter(None, (_uid(entry), *of_others)):
                self.by_uid[uid].append(entry)
            self.by_name[_space(entry), str(_metadata(entry).get("name"))].append(entry)

    def told_of(self, entry: Any) -> Any:
        """Return an entry of the list; a pod with when it was submitted and its queue, where objects tell it."""
        if not self.by_name or not isinstance(entry, Mapping) or _kind(entry) != "Pod":
            return entry
        makers = self._by_owners(entry) or self._by_names(entry)
        if not makers:
            return entry
        metadata = _metadata(entry)
        queue = next((name for name in map(_queue_of, makers) if name), None)
        told = {SUBMITTED: min(map(_created, makers)), QUEUE: queue}
        return {**entry, "metadata": {**metadata, **told}}

    def _by_owners(self, pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the owners of a pod, theirs, and so on."""
        found: dict[int, Mapping[str, Any]] = {}
        ahead = [pod]
        while ahead:
            uids = [str(owner.get("uid")) for owner in _owners(ahead.pop())]
            more = [one for uid in uids for one in self.by_uid.get(uid, ()) if id(one) not in found]
            found |= {id(one): one for one in more}
            ahead += more
        return list(found.values())

    def _by_names(self, pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the last object before a pod of each name that its labels and owners have."""
        before = ([one for one in self.by_name.get((_space(pod), name), ()) if _created(one) <= _created(pod)]
                  for name in _job_names(pod))  # fmt: skip
        return [there[-1] for there in before if there]


def _created(entry: Mapping[str, Any]) -> str:
    """Return when an object was created, "" if that is no moment; all of a cluster are written alike."""
    told = str(_metadata(entry).get("creationTimestamp"))
    try:
        return told if datetime.fromisoformat(told).tzinfo else ""
    except ValueError:
        return ""


def _queue_of(entry: Mapping[str, Any]) -> str:
    spec = _mapping(entry.get("spec"))
    labels = _mapping(_metadata(entry).get("labels"))
    return str(labels.get("kueue.x-k8s.io/queue-name") or spec.get("queueName") or spec.get("queue") or "")


def roles_of(entry: Mapping[str, Any]) -> list[PodRole]:
    """Return the pods that an object asks for; none for an object that is no job."""
    spec = _mapping(entry.get("spec"))
    for key, roles in spec.items():
        if key.lower().endswith("replicaspecs") and isinstance(roles, Mapping):  # Kubeflow, MPIJob, DLRover
            return [_role(name, _mapping(role).get("replicas", 1), role) for name, role in roles.items()]
    read = _ROLES.get(_kind(entry))
    return read(spec, entry) if read else []


def _job(spec: Mapping[str, Any], _entry: Mapping[str, Any]) -> list[PodRole]:
    if "tasks" in spec:  # Volcano's Job
        return [_role(task.get("name"), task.get("replicas", 1), task) for task in map(_mapping, spec["tasks"])]
    wanted = [spec[key] for key in ("parallelism", "completions") if isinstance(spec.get(key), int)]
    return [_role("worker", min(wanted, default=1), spec)] if "template" in spec else []


def _jobset(spec: Mapping[str, Any], _entry: Mapping[str, Any]) -> list[PodRole]:
    found = []
    for part in map(_mapping, spec.get("replicatedJobs") or ()):
        inner = _mapping(_mapping(part.get("template")).get("spec"))
        for role in _job(inner, {}):
            found.append(role._replace(name=str(part.get("name")), n=role.n * int(part.get("replicas", 1))))
    return found


def _workload(spec: Mapping[str, Any], entry: Mapping[str, Any]) -> list[PodRole]:
    admitted = _mapping(_mapping(entry.get("status")).get("admission")).get("podSetAssignments") or ()
    counts = {one.get("name"): one.get("count") for one in map(_mapping, admitted)}
    sets = [_mapping(one) for one in spec.get("podSets") or ()]
    return [_role(one.get("name"), counts.get(one.get("name")) or one.get("count", 1), one) for one in sets]


def _podgroup(spec: Mapping[str, Any], _entry: Mapping[str, Any]) -> list[PodRole]:
    """Return the least members of Volcano's PodGroup, each with its part of what they need together."""
    n = max(int(spec.get("minMember") or 1), 1)
    known = {name: amount for name, value in _mapping(spec.get("minResources")).items()
             if (amount := quantity(value)) is not None}  # fmt: skip
    each = {name: f"{amount / n:.9f}" for name, amount in known.items()}
    return [PodRole("worker", n, {"containers": [{"resources": {"requests": each}}]})] if each else []


def _trainjob(spec: Mapping[str, Any], _entry: Mapping[str, Any]) -> list[PodRole]:
    trainer = _mapping(spec.get("trainer"))
    container = {"resources": trainer.get("resourcesPerNode")}
    return [PodRole("worker", int(trainer.get("numNodes") or 1), {"containers": [container]})] if trainer else []


def _ray(spec: Mapping[str, Any], _entry: Mapping[str, Any]) -> list[PodRole]:
    cluster = _mapping(spec.get("rayClusterSpec")) or spec
    groups = [_mapping(group) for group in cluster.get("workerGroupSpecs") or ()]
    found = [
        _role(group.get("groupName"), _group_size(group) * int(group.get("numOfHosts") or 1), group)
        for group in groups
        if group.get("suspend") is not True
    ]
    return [_role("head", 1, cluster["headGroupSpec"]), *found] if "headGroupSpec" in cluster else found


def _group_size(group: Mapping[str, Any]) -> int:
    """Return the replicas of a group of workers, which lie between its bounds; 0 is Ray's default of both."""
    return max(int(group.get("replicas") or 0), int(group.get("minReplicas") or 0))


def _mpijob(spec: Mapping[str, Any], _entry: Mapping[str, Any]) -> list[PodRole]:
    """Return all GPUs of an MPIJob of the first version, which tells their number alone."""
    n = spec.get("gpus") or spec.get("processingUnits")
    each = {"containers": [{"resources": {"requests": {spec.get("processingResourceType") or "nvidia.com/gpu": 1}}}]}
    return [PodRole("worker", n, each)] if isinstance(n, int) else []


_ROLES: Final = {"Job": _job, "MPIJob": _mpijob, "JobSet": _jobset, "Workload": _workload, "PodGroup": _podgroup,
                 "TrainJob": _trainjob, "RayJob": _ray, "RayCluster": _ray}  # fmt: skip


def _role(name: object, n: object, holder: object) -> PodRole:
    spec = _mapping(_mapping(_mapping(holder).get("template")).get("spec"))
    return PodRole(str(name), n if isinstance(n, int) else 1, spec)


def _pods_of(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the pods of an object that is a job, as kubectl would list them."""
    metadata, kind = _metadata(entry), _kind(entry)
    owner = next(iter(_owners(entry)), None) if kind in ("Workload", "PodGroup") else None
    name = str((owner or metadata).get("name"))
    own = {"kind": kind, "name": name, "uid": _uid(entry), "controller": True}
    queue = {"kueue.x-k8s.io/queue-name": _mapping(entry.get("spec")).get("queueName")} if kind == "Workload" else {}
    labels = {**queue, **_mapping(metadata.get("labels")), OWN_JOB: name}
    status = _status(entry)
    for role in roles_of(entry):
        for i in range(min(max(role.n, 0), MAX_TASKS)):
            yield {
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{role.name.lower()}-{i}", "namespace": _space(entry), "ownerReferences": [own],
                    "creationTimestamp": metadata.get("creationTimestamp"),
                    SUBMITTED: metadata.get("creationTimestamp"),
                    "labels": {**labels, OWN_ROLE: role.name.lower()},
                },
                "spec": role.spec,
                "status": status,
            }  # fmt: skip


def _status(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of each pod of a job: from when it ran to when it was over, as its own status tells."""
    status = _mapping(entry.get("status"))
    seen = [_mapping(one) for one in status.get("conditions") or ()]
    moments = {str(one.get("type") or one.get("status")): one.get("lastTransitionTime") for one in seen}
    holds = {str(one.get("type") or one.get("status")) for one in seen if str(one.get("status")) != "False"}
    state = _mapping(status.get("state"))
    phase = str(state.get("phase") or status.get("phase") or status.get("jobDeploymentStatus") or "")
    over = next((kind for kind in OVER if kind in holds or kind == phase), "")
    ends = status.get("completionTime") or status.get("endTime") or moments.get(over)
    ends = (ends or state.get("lastTransitionTime")) if over or ends else None
    starts = next((moments[kind] for kind in STARTED if kind in holds and moments.get(kind)), status.get("startTime"))
    if ran_s := next((value for key, value in status.items() if key.startswith("accumulatedPastExe")), 0):  # Kueue
        starts = _before(starts or ends, ran_s)
    guess = over not in ("", "Evicted") and not starts and _kind(entry) in WITHOUT_START
    starts = _metadata(entry).get("creationTimestamp") if guess else starts
    running = {"running": {"startedAt": starts}} if starts else {"waiting": {}}
    ran = {"terminated": {"startedAt": starts, "finishedAt": ends}} if ends and starts else running
    done = "" if not (over or ends) else OVER.get(over, "Succeeded")
    return {
        "phase": done or ("Running" if starts else "Pending"),
        "containerStatuses": [{"name": "all", "state": ran}],
        START_GUESSED: guess,
    }


def _before(moment: object, seconds: object) -> str | None:
    """Return the moment so many seconds before another one."""
    try:
        return (datetime.fromisoformat(str(moment)) - timedelta(seconds=float(str(seconds)))).isoformat()
    except (ValueError, OverflowError):
        return None if moment is None else str(moment)


# --- claims of devices


def _with_claims(entries: list[Any]) -> list[Any]:
    """Return entries in which pods have the GPUs of their claims, as far as these are in the list."""
    claims = {(_kind(entry), _space(entry), str(_metadata(entry).get("name"))): _claimed(entry) for entry in entries
              if isinstance(entry, Mapping) and _kind(entry) in ("ResourceClaim", "ResourceClaimTemplate")}  # fmt: skip
    if not claims:
        return entries
    users: Counter[tuple[str, str, str]] = Counter(
        key for entry in entries if isinstance(entry, Mapping) for _, key in _keys(entry, claims)
    )
    return [_with_gpus(entry, claims, users) if isinstance(entry, Mapping) else entry for entry in entries]


def _with_gpus(
    entry: Mapping[str, Any], claims: Mapping[tuple[str, str, str], float | None], users: Counter[tuple[str, str, str]]
) -> Mapping[str, Any]:
    known = {name: gpus / (users[key] if key[0] == "ResourceClaim" else 1) for name, key in _keys(entry, claims)
             if (gpus := claims[key]) is not None}  # fmt: skip
    if not known:
        return entry
    spec = _mapping(entry.get("spec"))
    container = {"resources": {"requests": {"nvidia.com/gpu": f"{sum(known.values()):.9f}"}}}
    left = [one for one in spec.get("resourceClaims") or () if _mapping(one).get("name") not in known]
    return {
        **entry,
        "spec": {**spec, "containers": [*(spec.get("containers") or ()), container], "resourceClaims": left},
    }


def _keys(entry: Mapping[str, Any], claims: Mapping[Any, Any]) -> list[tuple[str, tuple[str, str, str]]]:
    """Return the claims of a pod that are in the list, each with its name in the pod."""
    made = {one.get("name"): one.get("resourceClaimName")
            for one in map(_mapping, _mapping(entry.get("status")).get("resourceClaimStatuses") or ())}  # fmt: skip
    found = []
    for one in map(_mapping, _mapping(entry.get("spec")).get("resourceClaims") or ()):
        name = str(one.get("name"))
        for kind, called in (
            ("ResourceClaim", one.get("resourceClaimName") or made.get(name)),
            ("ResourceClaimTemplate", one.get("resourceClaimTemplateName")),
        ):
            if (key := (kind, _space(entry), str(called))) in claims:
                found.append((name, key))
                break
    return found


def _claimed(entry: Mapping[str, Any]) -> float | None:
    """Return the GPUs that a claim is for: those that it got, or else asks for; None where that is not known.

    Whoever looks at devices as an administrator (`adminAccess`) takes none of them from others.
    """
    spec = _mapping(entry.get("spec"))
    devices = _mapping(_mapping(spec.get("spec")).get("devices") or spec.get("devices"))
    allocated = _mapping(_mapping(_mapping(entry.get("status")).get("allocation")).get("devices"))
    got = Counter(str(one.get("request")) for one in map(_mapping, allocated.get("results") or ()))
    total, n_gpus = 0.0, 0
    for name, exact in (_request(_mapping(asked), got) for asked in devices.get("requests") or ()):
        device = str(exact.get("deviceClassName", ""))
        if not re.search(r"gpu|mig", device):  # a network card beside them, say
            continue
        n_gpus += 1
        part = slice_of(str(exact.get("selectors", ""))) if "mig" in device else 1.0
        n = got[name] or (0 if exact.get("allocationMode") == "All" else int(exact.get("count") or 1))
        if exact.get("adminAccess") is not True:
            if not part or not n or exact.get("capacity"):  # a share of a device, whose size is not told
                return None
            total += part * n
    return total if n_gpus else None


def _request(asked: Mapping[str, Any], got: Counter[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the device of a request: of several ways to meet it the one that was taken, or the first."""
    name = str(asked.get("name"))
    ways = {f"{name}/{way.get('name')}": way for way in map(_mapping, asked.get("firstAvailable") or ())}
    taken = next((way for way in ways if way in got), next(iter(ways), name))
    return taken, _mapping(asked.get("exactly")) or ways.get(taken, asked)


def _job_names(pod: Mapping[str, Any]) -> set[str]:
    metadata = _metadata(pod)
    told = (_mapping(metadata.get("labels")), _mapping(metadata.get("annotations")))
    named = {
        str(value) for each in told for key, value in each.items() if re.search(r"job.?name|group.?name|cluster", key)
    }
    return named | {str(owner.get("name")) for owner in _owners(pod)}


def _kind(entry: Mapping[str, Any]) -> str:
    return str(entry.get("kind") or "Pod")


def _metadata(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(entry.get("metadata"))


def _space(entry: Mapping[str, Any]) -> str:
    return str(_metadata(entry).get("namespace") or "default")


def _uid(entry: Mapping[str, Any]) -> str:
    return str(_metadata(entry).get("uid") or "")


def _owners(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = _metadata(entry).get("ownerReferences")
    return [owner for owner in listed if isinstance(owner, Mapping)] if isinstance(listed, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
