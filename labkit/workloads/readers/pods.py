"""One pod of Kubernetes as JSON: whose it is, what it asked for, when it ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

from labkit.workloads.readers.times import LATEST_S

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
TYPE_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name",
                      "gpu.nvidia.com/class", "accelerator")  # fmt: skip
"""Labels of nodes by which a pod asks for a type of GPU."""

ROLE_LABELS: Final = ("training.kubeflow.org/replica-type", "volcano.sh/task-spec")
_GPU: Final = re.compile(r"(?:^|/)(?:gpu|gpu\.shared|gaudi|i915|xe|vgpu)$")
_MIG: Final = re.compile(r"^nvidia\.com/mig-(\d+)g\.")
_QUANTITY: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|)")
_UNITS: Final = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
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
    created_s, start_s, end_s, seen_s : float
        Seconds since 1970, None where not known; `seen_s` is the last moment that the pod tells.
    under_way : bool
        It has not ended.
    gpus, cpus, memory_gb : float
        What it asked for; NaN cores: nothing was said.
    guessed : bool
        Its GPUs are slices.
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
    start_s: float | None
    end_s: float | None
    seen_s: float
    under_way: bool
    gpus: float
    cpus: float
    memory_gb: float
    guessed: bool

    def until(self, end_s: float) -> Self:
        """Return the pod with an end."""
        return replace(self, end_s=end_s)


class _FaultError(Exception):
    """A value that cannot be read: its key, and what was expected."""


def read_pod(i: int, entry: object, faults: list[str]) -> Pod | None:
    """Return the i-th pod of a list, or None with its fault noted."""
    metadata = _mapping(_mapping(entry).get("metadata"))
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        faults.append(f"pod {i + 1}: metadata.name is {str(name)[:40]}; expected an object with metadata, spec, status")
        return None
    try:
        return _pod(_mapping(entry), metadata, name)
    except _FaultError as fault:
        faults.append(f"pod {i + 1} ({name[:60]}): {fault}")
        return None


def _pod(entry: Mapping[str, Any], metadata: Mapping[str, Any], name: str) -> Pod:
    spec, status = _mapping(entry.get("spec")), _mapping(entry.get("status"))
    told = {**_mapping(metadata.get("annotations")), **_mapping(metadata.get("labels"))}
    space = str(metadata["namespace"]) if _text(metadata.get("namespace")) else "default"
    owner = _owner(metadata)
    job = next((f"{space}/{told[label]}" for label in JOB_LABELS if _text(told.get(label))), None)
    created_s = _moment_s(metadata.get("creationTimestamp"), "metadata.creationTimestamp")
    if created_s is None:
        raise _FaultError("metadata.creationTimestamp is missing; expected a time like 2024-03-01T12:00:00Z")
    start_s, end_s, seen = _times(status)
    gpus, slices = _gpus(spec)
    cpus = _asked(spec, "cpu")
    return Pod(
        name=f"{space}/{name}",
        job=job or (f"{space}/{owner[1]}" if owner[0] and owner[1] else f"{space}/{name}"),
        owner="" if job else owner[0],
        user=next((str(told[label]) for label in QUEUE_LABELS if _text(told.get(label))), space),
        model=next((str(told[label]) for label in MODEL_LABELS if _text(told.get(label))), "job"),
        device_type=_type(spec),
        priority=_plain_number(spec.get("priority")),
        is_ps=any(str(told.get(label, "")).lower() in ("ps", "parameter-server") for label in ROLE_LABELS),
        created_s=created_s,
        start_s=start_s,
        end_s=end_s,
        seen_s=max([created_s, *seen]),
        under_way=status.get("phase") in ("Running", "Pending", "Unknown"),
        gpus=gpus,
        cpus=min(cpus, _MOST_CORES) if cpus > 0 else float("nan"),
        memory_gb=_asked(spec, "memory") / 2.0**30,
        guessed=slices,
    )


def _owner(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of the controller."""
    owners = metadata.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, Mapping) and owner.get("controller"):
            return str(owner.get("kind", "")), str(owner.get("name", ""))
    return "", ""


def _times(status: Mapping[str, Any]) -> tuple[float | None, float | None, list[float]]:
    """Return when the containers started and ended, None where not known, and all moments that are told."""
    starts, ends = [], []
    for container in _list(status.get("containerStatuses")):
        state = _mapping(_mapping(container).get("state"))
        last = _mapping(_mapping(container).get("lastState"))
        done, running = _mapping(state.get("terminated")), _mapping(state.get("running"))
        before = _mapping(last.get("terminated"))
        starts += [_moment_s(told.get("startedAt"), "startedAt") for told in (before, done, running)]
        ends.append(_moment_s(done.get("finishedAt"), "finishedAt"))
    changes = [
        (_mapping(one).get("type"), _moment_s(_mapping(one).get("lastTransitionTime"), "lastTransitionTime"))
        for one in _list(status.get("conditions"))
    ]
    began_s = _moment_s(status.get("startTime"), "status.startTime")
    known_starts = [s for s in starts if s]
    known_ends = [s for s in ends if s]
    start_s = min(known_starts) if known_starts else None
    if status.get("phase") in ("Succeeded", "Failed"):
        start_s = start_s or began_s
        stopped = [s for kind, s in changes if kind in ("Ready", "ContainersReady") and s]
        end_s = max(known_ends) if known_ends else max(stopped, default=None)
    else:
        end_s = None
    seen = [s for s in (*known_starts, *known_ends, began_s, *(s for _, s in changes)) if s]
    return start_s, end_s, seen


def _gpus(spec: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the GPUs that a pod asks for, and whether they are slices."""
    names = {name for resources in _resources(spec) for name in resources}
    whole = [name for name in names if _GPU.search(name)]
    parts = {name: int(match[1]) / 7 for name in names if (match := _MIG.match(name))}
    gpus = sum(_asked(spec, name) for name in whole) + sum(_asked(spec, name) * part for name, part in parts.items())
    return gpus, bool(parts) or any("shared" in name or "vgpu" in name for name in whole)


def _asked(spec: Mapping[str, Any], resource: str) -> float:
    """Return what a pod asks of a resource: its containers together, or an init container alone if that is more."""
    together = sum(_of(container, resource) for container in _list(spec.get("containers")))
    alone = max((_of(container, resource) for container in _list(spec.get("initContainers"))), default=0.0)
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
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise _FaultError(f"{key} is '{str(value)[:40]}'; expected a quantity like 500m, 2 or 64Gi")
    return float(match[1]) * _UNITS[match[2]]


def _type(spec: Mapping[str, Any]) -> str:
    """Return the type of GPU that a pod demands of its node; "" if it takes any."""
    selector = _mapping(spec.get("nodeSelector"))
    for label in TYPE_LABELS:
        if _text(selector.get(label)):
            return str(selector[label])
    affinity = _mapping(_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = _mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in _list(required.get("nodeSelectorTerms")):
        for rule in map(_mapping, _list(_mapping(term).get("matchExpressions"))):
            values = _list(rule.get("values"))
            if rule.get("key") in TYPE_LABELS and rule.get("operator") == "In" and len(values) == 1:
                return str(values[0])
    return ""


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
