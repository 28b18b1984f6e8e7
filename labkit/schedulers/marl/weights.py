"""Weights of the placement policy in files: safetensors, with where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_unreadable
from labkit.schedulers.marl.network import FEATURES, WAITING, Net
from labkit.speed.what_if import N_SEEN

VERSION: Final = "1"
"""Of what the policy sees; files of another one cannot be used."""

FOLDER: Final = Path(__file__).with_name("weights")
AGAIN: Final = "Train it again: labkit train-policy marl."


@dataclass(frozen=True, eq=False)
class Weights:
    """A trained policy: its network, and how it was made (the command)."""

    net: Net
    source: str

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        from safetensors.numpy import save

        about = {"policy": "marl", "version": VERSION, "source": self.source}
        tensors = {name: np.ascontiguousarray(part, np.float32) for name, part in self.net._asdict().items()}
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(save(tensors, metadata=about))
        temporary.replace(path)


def shipped() -> list[str]:
    """Return the names of the weights that come with labkit."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def load(name: str | Path) -> Weights:
    """Return weights by name, or from a file.

    Raises
    ------
    InputError
        If there are none of that name, or the file holds something else.
    """
    path = Path(name)
    if path.suffix != ".safetensors":
        if str(name) not in shipped():
            raise unknown("weights of marl", str(name), [*shipped(), "PATH.safetensors"])
        path = FOLDER / f"{name}.safetensors"
    refuse_unreadable(path, expected="weights of a policy (safetensors)", error=InputError)
    return _read(path)


def _read(path: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about: dict[str, Any] = file.metadata() or {}
            tensors = {key: np.ascontiguousarray(file.get_tensor(key), np.float64) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error}); expected weights of a policy.") from None
    if about.get("policy") != "marl" or about.get("version") != VERSION:
        raise InputError(
            f"{path}: policy {about.get('policy')!r}, version {about.get('version')!r}; expected 'marl', {VERSION!r}. "
            f"{AGAIN}"
        )
    if fault := _fault(tensors):
        raise InputError(f"{path}: {fault}. {AGAIN}")
    return Weights(Net(**tensors), about.get("source", ""))


def _fault(tensors: dict[str, Any]) -> str:
    """Return what is wrong with the tensors of a file; empty: nothing."""
    if sorted(tensors) != sorted(Net._fields):
        return f"it holds {', '.join(sorted(tensors))}; expected {', '.join(sorted(Net._fields))}"
    n_agents, hidden, units = tensors["sharp"].size, tensors["out"].size, tensors["last"].shape[-1]
    expected = {
        "seen": (N_SEEN, hidden), "out": (hidden,), "first": (n_agents, len(FEATURES), units),
        "bias": (n_agents, units), "last": (n_agents, units), "wait": (n_agents, len(WAITING)), "sharp": (n_agents,),
    }  # fmt: skip
    for name, shape in expected.items():
        if tensors[name].shape != shape or not n_agents:
            return f"{name} is of shape {tensors[name].shape}; expected {shape}"
        if not np.isfinite(tensors[name]).all():
            return f"{name} holds a number that is not finite"
    return ""
