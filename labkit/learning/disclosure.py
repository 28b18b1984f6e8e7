"""What a file of weights holds, and what of the data of its training can be read from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.outside import reproductions
from labkit.core.weights import WeightsFiles, opened
from labkit.schedulers.dl2 import learned as numbers
from labkit.schedulers.dl2 import weights as dl2
from labkit.schedulers.marl import weights as marl
from labkit.system.printing import printable

METADATA: Final = {
    "policy": "which policy the file is for",
    "version": "of the format",
    "models": "the names of the models of the training",
    "slot_s": "the seconds of its slots",
    "form": "the form of its network, with names of models",
    "n_nets": "how many networks there are",
    "scenario": "the scenario of its training: trace, cluster, quotas, failures, ... (names may be private)",
    "source": "the command as it was typed (its paths and names may be private)",
}
HARMLESS: Final = {"policy", "version", "n_nets"}
"""What says nothing about the data of a training."""

NETWORK: Final = "weights of the network"
UNKNOWN: Final = "unknown: it may hold anything, tables of data too"


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """A tensor: name, shape, type, least and greatest finite value where numpy has the type, and what it holds."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    least: float | None
    greatest: float | None
    holds: str


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What a file holds."""

    path: Path
    """The file."""
    metadata: Mapping[str, str]
    """Text by name, as it stands in the file: whoever made it chose it."""
    tensors: tuple[TensorSummary, ...]
    """By name."""
    fault: str
    """Why no policy of this labkit takes the file; empty: one does."""
    readable: str
    """The sentences that say what can be read from it."""


@cache
def policies() -> dict[str, tuple[WeightsFiles, Callable[[Path], Any]]]:
    """Return, of each policy, its files, and what reads one of them or refuses it."""
    own = [(dl2.FILES, dl2.load), (numbers.FILES, numbers.load_numbers), (marl.FILES, marl.load)]
    theirs = [part.WEIGHTS for part in reproductions().values() if hasattr(part, "WEIGHTS")]
    return {files.policy: (files, read) for files, read in sorted([*own, *theirs], key=lambda pair: pair[0].policy)}


def disclosure(name: str | Path) -> Disclosure:
    """Return the content of a file; nothing in it is executed.

    Parameters
    ----------
    name : str or path
        The path of a .safetensors file, or the name of weights that come with labkit.

    Raises
    ------
    InputError
        If there is none of that name, or it is no whole safetensors file.
    """
    path = _find(name)
    with opened(path, of="weights of a policy", remedy="Train some: labkit train-policy dl2.") as file:
        metadata: dict[str, str] = file.metadata() or {}
        files, fault = _judged(path, metadata.get("policy", ""))
        holds = {} if files is None else files.tensors
        usual = UNKNOWN if fault else NETWORK
        tensors = tuple(_summary(file, key, holds.get(key, usual)) for key in sorted(file.keys()))
    reveals = {} if files is None else files.reveals
    shared = next((what for key, what in reveals.items() if key in {tensor.name for tensor in tensors}), "")
    return Disclosure(path, metadata, tensors, fault, _readable(metadata, shared, fault))


def _find(name: str | Path) -> Path:
    if Path(name).suffix == ".safetensors":
        return Path(name)
    shipped = {each: files.find(each) for files, _ in policies().values() for each in files.shipped()}
    if str(name) not in shipped:
        raise unknown("weights", str(name), [*shipped, "PATH.safetensors"])
    return shipped[str(name)]


def _judged(path: Path, policy: str) -> tuple[WeightsFiles | None, str]:
    """Return the files of a policy, and why this one is none of them."""
    if policy not in policies():
        return None, f"{path}: policy {policy!r}; expected one of {', '.join(policies())}."
    files, read = policies()[policy]
    try:
        read(path)
    except InputError as error:
        return files, str(error)
    return files, ""


def _summary(file: Any, name: str, holds: str) -> TensorSummary:
    part = file.get_slice(name)
    shape, dtype = tuple(part.get_shape()), str(part.get_dtype())
    least = greatest = None
    with suppress(TypeError, AttributeError):  # a type that numpy has not, such as bfloat16
        values = file.get_tensor(name)
        if values.dtype.kind in "fiub" and (finite := values[np.isfinite(values)]).size:
            least, greatest = float(finite.min()), float(finite.max())
    return TensorSummary(name, shape, dtype, least, greatest, holds)


def _readable(metadata: Mapping[str, str], shared: str, fault: str) -> str:
    told = [METADATA.get(key, f"its {printable(key)!r}") for key in sorted(metadata) if key not in HARMLESS]
    found = "; ".join([shared, *told] if shared else told) or "nothing that this labkit knows of"
    rest = (
        "What else its tensors hold is not known: no policy here takes it."
        if fault
        else "No job or measurement is stored in it as such, but what its network decides depends on all of them."
    )
    return f"Whoever has this file can read: {found}. {rest}"
