"""The GPUs of a job on this host: an agent lists them in a file, and each worker sees one of them.

The file is JSON, identifiers by number: {"0": "GPU-5f...", "1": "GPU-77..."}. It may change while the job runs. Without
a file, a job uses the devices of its sites as the process that started it numbers them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from labkit.elastic.protocol.sites import Site

VARIABLE: Final = "LABKIT_GPUS"
"""Environment variable with the path of the file."""
NUMBERED: Final = "gpu:"
"""Prefix of the number of a GPU of the host, among the devices of a site."""
LOCAL: Final = "cuda:0"
"""Name of the only GPU that a process sees."""


def allotted() -> dict[str, str]:
    """Return the GPUs that the job has on this host now, by number.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        return {}
    try:
        return {str(number): str(uuid) for number, uuid in dict(json.loads(Path(path).read_text())).items()}
    except (ValueError, TypeError) as error:
        raise OSError(f"{path} is no list of GPUs: {error}") from None


def devices_of(site: Site) -> list[str]:
    """Return the devices of a site on this host: "cpu", "cuda:0", or identifiers of GPUs.

    Raises
    ------
    OSError
        If the site has GPUs, and the job has none of them here.
    """
    if not any(device.startswith(NUMBERED) for device in site.devices):
        return list(site.devices)
    mine = allotted()
    numbers = [device.removeprefix(NUMBERED) for device in site.devices]
    found = [mine[number] for number in numbers if number in mine]
    if not found:
        where = (
            f"{os.environ[VARIABLE]} has {', '.join(mine) or 'none'}"
            if VARIABLE in os.environ
            else "no agent hands them out"
        )
        raise OSError(f"site '{site.name}': the job has none of the GPUs {', '.join(numbers)} of this host ({where})")
    return found


def is_identifier(device: str) -> bool:
    """Return whether a device is the identifier of a GPU.

    >>> is_identifier("GPU-5f0c"), is_identifier("cuda:0"), is_identifier("cpu")
    (True, False, False)
    """
    return device.startswith("GPU-")


def bound_to(device: str) -> Mapping[str, str]:
    """Return environment variables with which a worker sees only this GPU; none for other devices."""
    if not is_identifier(device):
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device}


def local_name(device: str) -> str:
    """Return the name of a device within the worker that has it.

    >>> local_name("GPU-5f0c"), local_name("cpu")
    ('cuda:0', 'cpu')
    """
    return LOCAL if is_identifier(device) else device
