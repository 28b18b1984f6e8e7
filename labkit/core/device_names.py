"""How Slurm and Kubernetes name GPUs and slices of them, and write amounts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from labkit.core.errors import InputError

SLICE: Final = re.compile(r"[_.:-]?(?i:mig[_-]?)?(?:(\d)c[._])?(\d)g[._](\d+)gb.*$")
"""The end of a type in Slurm that is a slice of a GPU by MIG: a100_3g.20gb has 3 of its 7 parts."""
_OF_FOUR: Final = frozenset({(1, 6), (2, 12), (4, 24), (2, 48), (4, 96)})
"""Parts and GB of the slices of GPUs that have four parts (A30, RTX PRO 6000); others have seven."""
GPU_RESOURCE: Final = re.compile(
    r"(?:^|/)(?:gpu|gpu\.shared|nvidia-gpu|gaudi|i915|xe|vgpu|pgpu|v?gpu-number)$"
    r"|^deviceclass\.resource\.kubernetes\.io/gpu\."
    r"|^nvidia\.com/(?:[A-Z]{2}\d{3}\w*_\w+|(?i:(?:tesla[_-])?(?:[ahblvpkt]|rtx|g[bh])[_-]?\d{1,4}[\w-]*))$"
)
"""Resources of Kubernetes that are GPUs; some sites name them by type, as nvidia.com/a100."""
MIG_RESOURCE: Final = re.compile(r"^nvidia\.com/mig-")
HUNDREDTHS: Final = frozenset(
    {"koordinator.sh/gpu", "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio", "tencent.com/vcuda-core",
     "elasticgpu.io/gpu-core", "tke.cloud.tencent.com/qgpu-core", "aliyun.com/gpu-core.percentage"}
)  # fmt: skip
"""Resources of Kubernetes that count hundredths of GPUs; several, and whole GPUs beside them, say the same."""
_SHARED_AMONG: Final = "koordinator.sh/gpu.shared"
"""On how many GPUs the hundredths beside it lie; it counts where there are none."""
_SHARES: Final = ("nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "volcano.sh/vgpu-memory-percentage",
                  "volcano.sh/vgpu-cores")  # fmt: skip
"""Hundredths of each of the GPUs beside them (HAMi, Volcano's vGPU); the larger one is reserved."""
_VGPU: Final = re.compile(r"^nvidia\.com/(?:GRID_|NVIDIA_)([A-Z]+\d+[A-Z]*)-(?:(\d)-)?(\d+)[ABCQ]$")
_VGPU_GB: Final = {"T4": 16, "P40": 24, "V100": 16, "V100D": 32, "A10": 24, "A16": 16, "A30": 24, "A40": 48, "A100": 40,
                   "A100D": 80, "L4": 24, "L40": 48, "L40S": 48, "H100": 80}  # fmt: skip
"""Memory of the GPUs whose parts by NVIDIA's vGPU are told by theirs: GRID_A100-10C has 10 of 40 GB."""
NO_DEVICE: Final = re.compile(
    r"hugepages|rdma|hca|nic\b|sriov|eni\b|efa\b|fuse|kvm|ephemeral|attachable|pod-eni|macvlan"
)
"""Resources with a domain that are no devices for training."""
TYPE_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name",
                      "gpu.nvidia.com/class", "accelerator")  # fmt: skip
"""Labels of nodes that tell the type of their GPUs."""

_COUNTED: ContextVar[Mapping[str, float]] = ContextVar("counted", default=MappingProxyType({}))
_COUNT: Final = re.compile(r"([\w./:-]+?)(?:=(\d+(?:\.\d+)?|1/[1-9]\d*))?")


def device_counts(text: str) -> dict[str, float]:
    """Return as how many GPUs each device counts that is named, 1 by default.

    >>> device_counts("npu, shard=1/4"), device_counts("")
    ({'npu': 1.0, 'shard': 0.25}, {})

    Raises
    ------
    InputError
        If a part of the text is no name, or no name and number > 0.
    """
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _COUNT.fullmatch(item)
        number = match[2] or "1" if match else "0"
        count = 1 / float(number[2:]) if "/" in number else float(number)
        if match is None or not count > 0:
            raise InputError(
                f"devices: '{item}' is no device; expected names, and as how many GPUs each counts: npu,shard=1/4."
            )
        found[match[1]] = count
    return found


@contextmanager
def counting(devices: Mapping[str, float]) -> Iterator[None]:
    """Count the named devices as GPUs, too, while files are read: device -> GPUs that one counts as."""
    token = _COUNTED.set(devices)
    try:
        yield
    finally:
        _COUNTED.reset(token)


def counted(device: str) -> float | None:
    """Return as how many GPUs a device counts that was named, by its resource or its name in Slurm; None: it was not.

    >>> with counting({"npu": 1.0}):
    ...     counted("gres/npu:910b"), counted("fpga")
    (1.0, None)
    """
    named = _COUNTED.get()
    return named.get(device) or named.get(device.removeprefix("gres/").partition(":")[0])


_QUANTITY: Final = re.compile(r"(\d{1,18}(?:\.\d{0,9})?(?:[eE][+-]?\d{1,2})?)(n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|)")
_UNITS: Final = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def quantity(value: object) -> float | None:
    """Return a quantity of Kubernetes; None if it is none.

    >>> quantity("500m"), quantity("64Gi"), quantity("some")
    (0.5, 68719476736.0, None)
    """
    match = _QUANTITY.fullmatch(str(value).strip())
    return None if match is None or isinstance(value, bool) else float(match[1]) * _UNITS[match[2]]


def slice_of(name: str) -> float | None:
    """Return the part of a GPU that a slice by MIG is; None if a name is of no slice.

    >>> slice_of("a100_2g.10gb"), slice_of("nvidia.com/mig-1g.6gb"), slice_of("a100")
    (0.2857142857142857, 0.25, None)
    """
    if (match := SLICE.search(name)) is None:
        return None
    compute, parts, gb = match.groups()
    whole = 4 if (int(parts), int(gb)) in _OF_FOUR or "rtx" in name.lower() else 7
    return int(compute or parts) / whole


def part_by_labels(labels: Mapping[str, object]) -> float:
    """Return the part of a GPU that one of `nvidia.com/gpu` is on nodes with some labels: slices of time, or of MIG.

    >>> part_by_labels({"nvidia.com/gpu.product": "NVIDIA-A100-SHARED", "nvidia.com/gpu.replicas": "4"})
    0.25
    >>> round(7 * part_by_labels({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}), 9)
    1.0

    References
    ----------
    .. [1] https://github.com/NVIDIA/k8s-device-plugin, "Shared access to GPUs"; GKE's "GPU sharing strategies".
    """
    product = labels.get("nvidia.com/gpu.product") or labels.get("cloud.google.com/gke-gpu-partition-size") or ""
    is_shared = str(labels.get("nvidia.com/gpu.sharing-strategy", "")) != "none"  # older drivers have no such label
    replicas = quantity(labels.get("nvidia.com/gpu.replicas") or 1) if is_shared else 1.0
    clients = quantity(labels.get("cloud.google.com/gke-max-shared-clients-per-gpu") or 1)
    return (slice_of(str(product)) or 1.0) / (max(replicas or 1.0, 1.0) * max(clients or 1.0, 1.0))


def whole_type(product: str) -> str:
    """Return the type of GPU that a node's label names, without what it says of parts.

    >>> whole_type("NVIDIA-A100-SHARED"), whole_type("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")
    ('NVIDIA-A100', 'NVIDIA-A100-SXM4-80GB')
    """
    return SLICE.sub("", product.removesuffix("-SHARED"))


def part_of(resource: str) -> float | None:
    """Return the part of a GPU that one of a resource of Kubernetes is; None if it is none.

    >>> part_of("nvidia.com/gpu"), part_of("nvidia.com/GRID_A100-10C"), part_of("koordinator.sh/gpu-core")
    (1.0, 0.25, 0.01)
    """
    if (named := counted(resource)) is not None:
        return named
    if resource in HUNDREDTHS:
        return 0.01
    if MIG_RESOURCE.match(resource):
        return slice_of(resource)
    if (match := _VGPU.match(resource)) is not None:
        kind, parts, gb = match.groups()
        return int(parts) / 7 if parts else int(gb) / _VGPU_GB[kind] if kind in _VGPU_GB else None
    return 1.0 if GPU_RESOURCE.search(resource) else None


def requested_gpus(amounts: Mapping[str, float]) -> float:
    """Return the GPUs of a container by its resources.

    >>> requested_gpus({"nvidia.com/gpu": 2, "cpu": 8})
    2.0
    >>> requested_gpus({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30})
    0.3
    """
    parts = {name: part for name in amounts if (part := part_of(name)) is not None}
    share = max((amounts.get(name, 0.0) for name in _SHARES), default=0.0) or 100.0
    hundredths = max((amounts[name] for name in parts if name in HUNDREDTHS), default=0.0)
    others = HUNDREDTHS | {_SHARED_AMONG} if hundredths else HUNDREDTHS
    plain = sum(amounts[name] * part for name, part in parts.items() if name not in others)
    return float(plain * min(share, 100.0) / 100 or hundredths / 100)


def is_gpu(resource: str) -> bool:
    """Return whether a resource of Kubernetes is a request for GPUs or parts of them."""
    return part_of(resource) is not None or resource in _SHARES


def is_known(resource: str) -> bool:
    """Return whether a resource of Kubernetes is a GPU, a part of one, or no device at all."""
    return is_gpu(resource) or bool(NO_DEVICE.search(resource.lower()))
