"""Thirty models that a runtime of servers and workers could train otherwise than meant: none of them does so silently.

Each is refused in one line, or a line tells what differs, or two workers have the numbers of a plain loop of torch.
"""

from __future__ import annotations

import random  # noqa: TID251 - what a user's script may draw from
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labkit.core.errors import LabkitError
from labkit.elastic.data import as_dataset
from labkit.elastic.verification import CLOSE, VerifiedTraining, apart, plain

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("by_value")]

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
STEPS = 6
N_CALLS = 0


def net(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *(middle or (nn.Tanh(),)), nn.Linear(8, 2))


def cross_entropy(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def hooked(model: nn.Module) -> nn.Module:
    next(model.parameters()).register_hook(lambda grad: grad * 10)
    return model


def hooked_later(model: nn.Module) -> nn.Module:
    next(model.parameters()).register_post_accumulate_grad_hook(lambda p: p.grad.mul_(10))
    return model


def hooked_module(model: nn.Module) -> nn.Module:
    model.register_forward_hook(lambda module, given, out: 2 * out)
    return model


class Counting(nn.Module):
    """Anneals by the number of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n_calls += 1
        return x * min(1.0, self.n_calls / 20)


class Averages(nn.Module):
    """Has a running mean, as BatchNorm has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class Grows(nn.Module):
    """Has a buffer that becomes longer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x.detach().mean()[None]])
        return x


class Writes(nn.Module):
    """Writes to its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.clamp_(0, 0.5)
        return x * self.scale


class Spare(nn.Module):
    """Has a parameter that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Words(nn.Module):
    """An embedding whose rows are gathered sparsely, and may be renormalized."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(8, 4, **options), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words((x[:, 0].abs() * 3).long().clamp(max=7)))


class Tied(nn.Module):
    """Uses a parameter twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.b(self.a(x).tanh()))


class Complex(nn.Module):
    """Has a complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.complex64) @ self.weight).abs()


def weighted(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([9.0, 1.0]))


def total(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def contrastive(model: nn.Module, batch: Any) -> Any:
    out = nn.functional.normalize(model(batch[0]))
    return nn.functional.cross_entropy(out @ out.T / 0.1, torch.arange(len(out)))


def correlation(model: nn.Module, batch: Any) -> Any:
    a, b = model(batch[0])[:, 0], batch[1].float()
    return -torch.corrcoef(torch.stack([a, b]))[0, 1]


def padded(model: nn.Module, batch: Any) -> Any:
    labels = torch.where(batch[0][:, 0] > 0.5, -100, batch[1])
    return nn.functional.cross_entropy(model(batch[0]), labels, ignore_index=-100)


def dice(model: nn.Module, batch: Any) -> Any:
    p, y = model(batch[0]).softmax(1)[:, 1], batch[1].float()
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum())


def timed(model: nn.Module, batch: Any) -> Any:
    return cross_entropy(model, batch) * (1 + time.perf_counter_ns() % 1000)


def counted(model: nn.Module, batch: Any) -> Any:
    global N_CALLS
    N_CALLS += 1
    return cross_entropy(model, batch) * N_CALLS


def drawn_by_numpy(model: nn.Module, batch: Any) -> Any:
    noise = torch.from_numpy(np.random.normal(size=batch[0].shape)).float()  # noqa: NPY002
    return nn.functional.cross_entropy(model(batch[0] + noise), batch[1])


def drawn_by_python(model: nn.Module, batch: Any) -> Any:
    return cross_entropy(model, batch) * (1 + random.random())


def detached(model: nn.Module, batch: Any) -> Any:
    return cross_entropy(model, batch).detach()


def rows(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def endless(model: nn.Module, batch: Any) -> Any:
    return cross_entropy(model, batch) / 0.0


class Noisy(torch.optim.SGD):
    """Adds noise to its updates."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(torch.randn_like(p), alpha=0.01)


class Whole(torch.optim.SGD):
    """Divides by the norm of the whole gradient."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1e-3)
        super().step(closure)


def with_options(model: nn.Module, loss: Any = cross_entropy, **options: Any) -> tuple[nn.Module, Any, dict[str, Any]]:
    return model, loss, options


CASES: dict[str, Callable[[], tuple[nn.Module, Any, dict[str, Any]]]] = {
    "a hook on a parameter": lambda: with_options(hooked(net())),
    "a hook after accumulation": lambda: with_options(hooked_later(net())),
    "a hook on a module": lambda: with_options(hooked_module(net())),
    "class weights": lambda: with_options(net(), weighted),
    "a sum": lambda: with_options(net(), total),
    "a contrastive loss": lambda: with_options(net(), contrastive),
    "a correlation": lambda: with_options(net(), correlation),
    "padding": lambda: with_options(net(), padded),
    "Dice": lambda: with_options(net(), dice),
    "a counter in the model": lambda: with_options(net(Counting())),
    "a running mean": lambda: with_options(net(Averages())),
    "a buffer that grows": lambda: with_options(net(Grows())),
    "a parameter that is written to": lambda: with_options(net(Writes())),
    "a parameter without a use": lambda: with_options(net(Spare()), optimizer="momentum", lr=0.1),
    "an embedding with max_norm": lambda: with_options(Words(max_norm=0.5)),
    "a sparse embedding": lambda: with_options(Words(sparse=True)),
    "tied weights": lambda: with_options(Tied()),
    "a complex parameter": lambda: with_options(Complex()),
    "float64": lambda: with_options(net().double(), lambda m, b: cross_entropy(m, (b[0].double(), b[1]))),
    "a lazy module": lambda: with_options(nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))),
    "a parametrization": lambda: with_options(nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))),
    "spectral norm": lambda: with_options(nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 2))),
    "dropout": lambda: with_options(net(nn.Dropout(0.5))),
    "numpy's random numbers": lambda: with_options(net(), drawn_by_numpy),
    "Python's random numbers": lambda: with_options(net(), drawn_by_python),
    "the clock": lambda: with_options(net(), timed),
    "a counter in the loss": lambda: with_options(net(), counted),
    "BatchNorm on one sample": lambda: with_options(net(nn.BatchNorm1d(8)), batch=4, shards=4),
    "no gradient": lambda: with_options(net(), detached),
    "a loss for each sample": lambda: with_options(net(), rows),
    "a loss that is infinite": lambda: with_options(net(), endless),
    "an optimizer with noise": lambda: with_options(net(), optimizer=lambda m: Noisy(m.parameters(), lr=0.1)),
    "an optimizer of the whole gradient": lambda: with_options(
        net(), optimizer=lambda m: Whole(m.parameters(), lr=0.1)
    ),
    "LBFGS": lambda: with_options(net(), optimizer=lambda m: torch.optim.LBFGS(m.parameters())),
}


def test_there_are_thirty_of_them() -> None:
    assert len(CASES) >= 30


def made(name: str) -> VerifiedTraining:
    torch.manual_seed(0)
    model, loss, own = CASES[name]()
    options = {"batch": 16, "shards": 4, "servers": 1, "optimizer": "sgd", "lr": 0.1, **own}
    if not isinstance(options["optimizer"], str):
        options.pop("lr")
    return VerifiedTraining(model, as_dataset((X, Y)), loss, options)


@pytest.mark.parametrize("name", CASES)
def test_a_model_trains_as_meant_or_a_line_says_why_not(name: str) -> None:
    try:
        with made(name).job(STEPS, workers=2) as job:
            result = job.wait()
    except LabkitError:
        return  # refused, or ended with a reason
    told = " ".join(event["what"] for event in result.events if event["event"] == "told")
    if "of its own in each worker" not in told:
        difference = apart(result, *plain(made(name), STEPS))
        assert difference <= CLOSE, f"{difference}; told: {told}"
