"""Weights of DL2's own network in files: safetensors, with their form and where they come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.files import refuse_unreadable
from labkit.schedulers.dl2.flat.form import Form
from labkit.schedulers.dl2.flat.network import FlatNet

VERSION: Final = "1"
POLICY: Final = "dl2 as published"
HOW: Final = "Train it: labkit train-policy dl2 --published"


@dataclass(frozen=True, eq=False)
class FlatWeights:
    """A trained network of the paper's form.

    Attributes
    ----------
    net, form : FlatNet, Form
        The network, and what it sees and may do.
    models : tuple of str
        (L,) names of models that it tells apart.
    slot_s : float
        Seconds of a slot in its training.
    source : str
        How it was made.
    """

    net: FlatNet
    form: Form
    models: tuple[str, ...]
    slot_s: float
    source: str

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        from safetensors.numpy import save

        about = {
            "policy": POLICY, "version": VERSION, "form": json.dumps(self.form._asdict()),
            "models": json.dumps(self.models), "slot_s": repr(self.slot_s), "source": self.source,
        }  # fmt: skip
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(save({k: np.ascontiguousarray(v) for k, v in self.net._asdict().items()}, metadata=about))
        temporary.replace(path)


def load_flat(path: str | Path) -> FlatWeights:
    """Return weights from a file.

    Raises
    ------
    InputError
        If it holds something else.
    """
    if Path(path).suffix != ".safetensors":
        raise InputError(f"weights is {str(path)!r}; expected the path of a .safetensors file. {HOW}.")
    path = Path(path)
    refuse_unreadable(path, expected="weights of DL2's own network (safetensors)", error=InputError)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about: dict[str, Any] = file.metadata() or {}
            tensors = {key: np.ascontiguousarray(file.get_tensor(key), np.float32) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error}); expected weights of a policy.") from None
    if about.get("policy") != POLICY or about.get("version") != VERSION:
        other = " Without published=True it may be what you want." if about.get("policy") == "dl2" else f" {HOW}."
        raise InputError(
            f"{path}: policy {about.get('policy')!r}, version {about.get('version')!r}; expected {POLICY!r}, "
            f"{VERSION!r}.{other}"
        )
    form, models = Form(**json.loads(about["form"])), tuple(json.loads(about["models"]))
    if fault := _fault(tensors, form, n_models=len(models)):
        raise InputError(f"{path}: {fault}. {HOW}.")
    return FlatWeights(FlatNet(**tensors), form, models, float(about["slot_s"]), about.get("source", ""))


def _fault(tensors: dict[str, Any], form: Form, *, n_models: int) -> str:
    """Return what is wrong with the tensors of a file; empty: nothing."""
    if sorted(tensors) != sorted(FlatNet._fields):
        return f"it holds {', '.join(sorted(tensors))}; expected {', '.join(sorted(FlatNet._fields))}"
    if form.n_models != n_models:
        return f"its form is for {form.n_models} models; expected {n_models}, as it names"
    n, m = tensors["first_bias"].size, len(tensors["middle"])
    expected = {
        "first": (form.n_jobs * form.n_features, n), "first_bias": (n,), "middle": (m, n, n), "middle_bias": (m, n),
        "gain": (m + 1, n), "shift": (m + 1, n), "last": (n, form.n_actions), "last_bias": (form.n_actions,),
    }  # fmt: skip
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            return f"{name} is of shape {tensors[name].shape}; expected {shape} for J = {form.n_jobs}, L = {n_models}"
        if not np.isfinite(tensors[name]).all():
            return f"{name} holds a number that is not finite"
    return ""
