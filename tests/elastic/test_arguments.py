"""What users give that cannot be: one line that names it, and nothing left behind."""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from labkit.core.errors import InputError, LabkitError
from labkit.elastic import start
from labkit.elastic.loading import seed_all
from labkit.elastic.options import JobOptions, OptimizerOptions, ScriptOptions
from labkit.elastic.server.optimizers import OPTIMIZERS
from labkit.elastic.worker.forward import checked, moved

LOCK = threading.Lock()
X, Y = torch.randn(64, 4), torch.randn(64, 2)


def loss(model: nn.Module, batch: Any) -> Any:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


class Endless(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([])


class Locked(TensorDataset):
    def __init__(self) -> None:
        super().__init__(X, Y)
        self.lock = threading.Lock()


# An optimizer is made in the test: a process's first one loads torch._dynamo, for 2 s, and leaves a folder in /tmp.
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"batch": 32.0}, r"batch is 32\.0; expected a whole number"),
        ({"steps": "10"}, "steps is '10'; expected a whole number"),
        ({"workers": True}, "workers is True"),
        ({"seed": 0.5}, r"seed is 0\.5"),
        ({"lease_s": float("nan")}, "lease_s is nan; expected seconds above 0"),
        ({"lease_s": 1e9}, "a lease of 1000000000.0 s cannot be kept"),
        ({"start_s": None}, "start_s is None"),
        ({"nworkers": 2}, "start has no argument 'nworkers', nor sgd such an option. Did you mean 'workers'"),
        ({"n_servers": 2}, "Did you mean 'servers'"),
        ({"learning_rat": 2}, "Options of sgd: lr, weight_decay"),
        ({"optimizer": torch.optim.SGD}, r"optimizer is torch\.optim\.sgd\.SGD; expected a name, an OwnUpdate"),
        (
            {"optimizer": partial(torch.optim.Adam, [nn.Parameter(X)])},
            r"Adam has a parameter of shape \(64, 4\) that the model",
        ),
        ({"optimizer": lambda model: model.missing}, r"optimizer\(\.\.\.\) raised AttributeError"),
        ({"optimizer": lambda model: torch.optim.SGD(model.parameters()), "lr": 1}, "lr beside an optimizer of torch"),
        ({"scheduler": lambda optimizer: None}, "scheduler= goes with an optimizer of torch"),
        ({"clip_norm": 0}, "clip_norm is 0; expected a number above 0"),
        ({"per_shard": ("h",)}, "unknown buffer 'h'"),
        ({"loaders": -1}, "loaders is -1"),
        ({"optimizer": "adamw"}, "decoupled_weight_decay=True"),
        ({"on_nan": "ignore"}, "on_nan is 'ignore'; expected 'stop' or 'continue'"),
        ({"save_every": -1}, "save_every is -1; expected steps between two checkpoints, or 0"),
        ({"resume": True}, "resume is True; expected 'exact' or 'anyway'"),
        ({"folder": 7}, "folder is 7; expected a path"),
        ({"folder": ""}, "folder is ''; expected a path"),
        ({"data": DataLoader(TensorDataset(X, Y), batch_size=8)}, r"batch is 16, the DataLoader's batch_size 8"),
        ({"data": DataLoader(TensorDataset(X, Y), batch_size=None)}, r"the DataLoader has no batch_size"),
        ({"data": DataLoader(Endless(), batch_size=16), "sync": False}, "sync=False with an IterableDataset"),
        ({"data": (X, Y)}, r"as_dataset\(data\)"),
        ({"data": 7}, r"data is a int; expected len\(data\)"),
        ({"data": Locked()}, r"data \(a Locked\) cannot be sent to other processes: TypeError: .*lock"),
        ({"model": nn.Linear}, r"model is the class Linear; expected a torch\.nn\.Module"),
        ({"model": nn.LazyLinear(2)}, "'weight' of the model has no shape yet"),
        ({"model": nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))}, "is parametrized, and torch cannot pickle"),
        ({"model": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))}, "is parametrized"),
        ({"loss": 3}, "loss is a int; expected a function"),
        ({"loss": lambda model, batch, lock=LOCK: 0}, r"loss \(a function\) cannot be sent"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(
    given: dict[str, Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: value() if isinstance(value, partial) else value for name, value in given.items()}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(
        "TORCHINDUCTOR_CACHE_DIR", str(tmp_path.with_suffix(".torch"))
    )  # torch's first optimizer makes it
    options = {
        "model": nn.Linear(4, 2), "data": TensorDataset(X, Y), "loss": loss, "steps": 2, "batch": 16, "servers": 1,
        "lr": 0.1, **given,
    }  # fmt: skip
    with pytest.raises(InputError, match=what) as refused:
        start(options.pop("model"), options.pop("data"), options.pop("loss"), **options)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_refusal_made_is_gone_and_one_that_was_there_is_not(tmp_path: Path) -> None:
    for folder in (tmp_path / "new", tmp_path / "old"):
        if folder.name == "old":
            folder.mkdir(mode=0o700)
        with pytest.raises(InputError, match="cannot be sent"):
            start(nn.Linear(4, 2), Locked(), loss, steps=2, batch=16, servers=1, lr=0.1, folder=folder)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert not (tmp_path / "old" / "program.pickle").exists()


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o755)
    for name, what in (("file", r"folder \S+file cannot be made: File exists"), ("open", "0700 is needed")):
        with pytest.raises(LabkitError, match=what):
            start(
                nn.Linear(4, 2), TensorDataset(X, Y), loss, steps=2, batch=16, servers=1, lr=0.1, folder=tmp_path / name
            )


# --- batches on another device: "meta" is one without a GPU


@dataclass(frozen=True)
class Sentence:
    words: torch.Tensor
    name: str = ""


Pair = namedtuple("Pair", "x y")


def test_everything_in_a_batch_goes_to_the_device_and_keeps_its_type() -> None:
    batch = {
        "pair": Pair(X, [Y, Y]), "sentence": Sentence(X, "a"), "ordered": OrderedDict(a=X), "both": (X, 3),
        "none": None, "numbers": np.zeros(2),
    }  # fmt: skip
    there = moved(batch, "meta")
    tensors = (there["pair"].x, *there["pair"].y, there["sentence"].words, there["ordered"]["a"], there["both"][0])
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    kinds = {name: type(part) for name, part in batch.items()}
    assert {name: type(part) for name, part in there.items()} == kinds
    assert (there["sentence"].name, there["both"][1]) == ("a", 3)
    assert batch["pair"].x.device.type == "cpu"


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ((torch.zeros(1), {}), "the loss is tuple; expected a tensor of one number"),
        (0.5, "the loss is float"),
        (torch.zeros(4, requires_grad=True), r"a tensor of shape \(4,\); expected a tensor of one number"),
        (torch.zeros(()), r"has no gradient: .* without a call of backward\(\)"),
    ],
)
def test_a_loss_that_is_none_is_named(found: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        checked(found)


def test_a_seed_is_that_of_torch_numpy_and_python() -> None:
    import random  # noqa: TID251 - users' data may draw from it

    def drawn() -> tuple[float, ...]:
        seed_all(7)
        return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002

    first = drawn()
    assert drawn() == first


def test_each_argument_of_start_is_known_by_its_name_where_it_is_passed_on() -> None:
    options = {field.name for kind in OPTIMIZERS.values() for field in fields(kind)}
    arguments = set(signature(start).parameters) - {"model", "data", "loss", "options"}
    assert set(OptimizerOptions.__annotations__) == options
    assert set(JobOptions.__annotations__) == arguments | options
    assert set(ScriptOptions.__annotations__) == (arguments | options | {"epochs"}) - {"optimizer"}
