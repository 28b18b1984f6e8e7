"""Weights of DL2's own network in files: safetensors, with their form and where they come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labkit.core.weights import Tensors, WeightsFiles, fault_of, names, other_names, seconds
from labkit.schedulers.dl2.flat.form import Form
from labkit.schedulers.dl2.flat.network import FlatNet

FILES: Final = WeightsFiles(
    policy="dl2 as published",
    version="1",
    remedy="Train it: labkit train-policy dl2 --published.",
    of="weights of DL2's own network",
    other={"dl2": "Without published=True it may be what you want."},
)


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
        FILES.write(
            path, self.net._asdict(), form=json.dumps(self.form._asdict()), models=json.dumps(self.models),
            slot_s=repr(self.slot_s), source=self.source,
        )  # fmt: skip


def load_flat(path: str | Path) -> FlatWeights:
    """Return weights from a file.

    Raises
    ------
    InputError
        If it holds something else.
    """
    path = FILES.find(path)
    about, tensors = FILES.read(path)
    form, models, slot_s = FILES.told(path, about, form=_form, models=names, slot_s=seconds)
    FILES.refuse(path, _fault(tensors, form, n_models=len(models)))
    return FlatWeights(FlatNet(**tensors), form, models, slot_s, about.get("source", ""))


def _form(text: str) -> Form:
    """Return a form; raise TypeError or ValueError if it is none."""
    form = Form(**json.loads(text))
    if not all(isinstance(value, int) for value in form):
        raise TypeError(text)
    return form


def _fault(tensors: Tensors, form: Form, *, n_models: int) -> str:
    """Return what is wrong with the tensors of a file; empty: nothing."""
    if fault := other_names(tensors, FlatNet._fields):
        return fault
    if form.n_models != n_models:
        return f"its form is for {form.n_models} models; expected {n_models}, as it names"
    n, m = tensors["first_bias"].size, len(tensors["middle"])
    expected = {
        "first": (form.n_jobs * form.n_features, n), "first_bias": (n,), "middle": (m, n, n), "middle_bias": (m, n),
        "gain": (m + 1, n), "shift": (m + 1, n), "last": (n, form.n_actions), "last_bias": (form.n_actions,),
    }  # fmt: skip
    return fault_of(tensors, expected, why=f" for J = {form.n_jobs}, L = {n_models}")
