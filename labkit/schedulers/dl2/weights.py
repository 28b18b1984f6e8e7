"""Weights in files: safetensors, with where they come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_unreadable
from labkit.schedulers.dl2.network import N_HELD, Net, Numbers, n_seen

VERSION: Final = "1"
"""Of what the policy sees; files of another one cannot be used."""

FOLDER: Final = Path(__file__).with_name("weights")


@dataclass(frozen=True, eq=False)
class Weights:
    """A trained policy.

    Attributes
    ----------
    net : Net
        The network.
    models : tuple of str
        (L,) names of models that it tells apart.
    slot_s : float
        Seconds of a slot in its training.
    source : str
        How it was made: the command, and what came of it.
    speeds : array or None
        (L, P, W) steps per second of each model in its training with p parameter servers and w workers, 0 where it met
        none; None: not told.
    """

    net: Net
    models: tuple[str, ...]
    slot_s: float
    source: str
    speeds: Numbers | None = None

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        from safetensors.numpy import save

        about = {"policy": "dl2", "version": VERSION, "models": json.dumps(self.models), "slot_s": repr(self.slot_s)}
        tensors = self.net._asdict() | ({} if self.speeds is None else {"speeds": self.speeds})
        content = save(tensors, metadata={**about, "source": self.source})
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(content)
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
            raise unknown("weights of dl2", str(name), [*shipped(), "PATH.safetensors"])
        path = FOLDER / f"{name}.safetensors"
    refuse_unreadable(path, expected="weights of a policy (safetensors)", error=InputError)
    return _read(path)


def _read(path: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about: dict[str, Any] = file.metadata() or {}
            tensors = {key: np.ascontiguousarray(file.get_tensor(key), np.float32) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error}); expected weights of a policy.") from None
    if about.get("policy") != "dl2" or about.get("version") != VERSION:
        raise InputError(
            f"{path}: policy {about.get('policy')!r}, version {about.get('version')!r}; expected 'dl2', {VERSION!r}. "
            "Train it again: labkit train-policy dl2."
        )
    models, speeds = tuple(json.loads(about["models"])), tensors.pop("speeds", None)
    if fault := _fault(tensors, n_models=len(models)):
        raise InputError(f"{path}: {fault}. Train it again: labkit train-policy dl2.")
    if speeds is not None and (speeds.ndim != 3 or len(speeds) != len(models) or not np.isfinite(speeds).all()):
        raise InputError(f"{path}: speeds are of shape {speeds.shape}; expected finite ones of {len(models)} models.")
    return Weights(Net(**tensors), models, float(about["slot_s"]), about.get("source", ""), speeds)


def _fault(tensors: dict[str, Any], *, n_models: int) -> str:
    """Return what is wrong with the tensors of a file; empty: nothing."""
    if sorted(tensors) != sorted(Net._fields):
        return f"it holds {', '.join(sorted(tensors))}; expected {', '.join(sorted(Net._fields))}"
    n = tensors["bias"].size
    expected = {
        "seen": (n_seen(n_models), n), "held": (n_models + 1, N_HELD, n), "bias": (n,), "middle": (n, n),
        "middle_bias": (n,), "worth": (n, 3), "worth_bias": (3,), "stop": (1,),
    }  # fmt: skip
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            return f"{name} is of shape {tensors[name].shape}; expected {shape} for {n_models} models"
        if not np.isfinite(tensors[name]).all():
            return f"{name} holds a number that is not finite"
    return ""
