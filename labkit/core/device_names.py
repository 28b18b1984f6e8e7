"""How Slurm and Kubernetes name GPUs and slices of them, and write amounts."""

from __future__ import annotations

import re
from typing import Final

SLICE: Final = re.compile(r"[_.:-]?(?:mig[_-]?)?(\d)g[._]\d+gb.*$")
"""The end of a type in Slurm that is a slice of a GPU by MIG: a100_3g.20gb has 3 of its 7 parts."""
GPU_RESOURCE: Final = re.compile(r"(?:^|/)(?:gpu|gpu\.shared|gaudi|i915|xe|vgpu)$")
"""Resources of Kubernetes that are GPUs."""
MIG_RESOURCE: Final = re.compile(r"^nvidia\.com/mig-(\d+)g\.")
NO_DEVICE: Final = re.compile(
    r"hugepages|rdma|hca|nic\b|sriov|eni\b|efa\b|fuse|kvm|ephemeral|attachable|pod-eni|macvlan"
)
"""Resources with a domain that are no devices for training."""
TYPE_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name",
                      "gpu.nvidia.com/class", "accelerator")  # fmt: skip
"""Labels of nodes that tell the type of their GPUs."""

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


def is_known(resource: str) -> bool:
    """Return whether a resource of Kubernetes is a GPU, a slice of one, or no device at all."""
    return bool(GPU_RESOURCE.search(resource) or MIG_RESOURCE.match(resource) or NO_DEVICE.search(resource.lower()))
