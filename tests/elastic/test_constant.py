"""What a forward pass must not change, because each worker would change its own copy."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from labkit.elastic import JobError, train
from labkit.elastic.data import as_dataset
from labkit.elastic.worker.forward import ChangedError, ForwardGuard


class Average(nn.Module):
    """Keeps a moving average of its inputs, in place or as a new tensor, as quantisers and queues do."""

    def __init__(self, *, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("cache", None)
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.embedding = nn.Embedding(3, 4, max_norm=0.1 if how == "max_norm" else None)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            if self.how == "in place":
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            elif self.how == "a new tensor":
                self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            elif self.how == "the same numbers":
                self.mean.fill_(0)
                self.mean = torch.zeros(4)
            elif self.how == "a cache":
                self.cache = torch.arange(4)
            elif self.how == "another buffer":
                self.register_buffer("late", x.mean(0))
            elif self.how == "frozen":
                self.frozen += 1
            elif self.how == "thaws":
                self.frozen.requires_grad_()
        return self.linear(x - self.mean + self.embedding(torch.zeros(len(x), dtype=torch.long)))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("in place", r"buffer 'mean' of the model is changed by the forward pass: each worker would have its own"),
        ("a new tensor", "buffer 'mean'"),
        ("a cache", "buffer 'cache'.*call the model once before start"),
        ("another buffer", "buffer 'late'"),
        ("frozen", "frozen parameter 'frozen'"),
        ("thaws", "parameter 'frozen' is trained from now on"),
        ("max_norm", "parameter 'embedding.weight'.*max_norm"),
    ],
)
def test_whatever_changes_in_forward_is_named(how: str, what: str) -> None:
    model = Average(how=how)
    constant = ForwardGuard(model)
    constant.begin()
    constant.check()
    model(torch.ones(3, 4))
    with pytest.raises(ChangedError, match=what):
        constant.check()


@pytest.mark.parametrize("before", [0, 1], ids=["at first", "later"])
def test_writing_that_torch_does_not_count_is_noticed_once_the_turn_of_the_parameter_comes(before: int) -> None:
    """A script that clamps its weights by `p.data`, perhaps from a later update on."""
    model = Average(how="nothing")
    constant, looks = ForwardGuard(model), 1 if not before else len(list(model.parameters()))
    found = []
    for step in range(before + looks):
        constant.begin()
        if step >= before:
            model.linear.weight.data.clamp_(-0.1 / (1 + step), 0.1 / (1 + step))
        try:
            constant.check()
        except ChangedError as error:
            found.append(str(error))
    assert len(found) == 1
    assert re.search(r"parameter 'linear\.weight' .*register_step_post_hook clamps", found[0])


def test_a_loss_that_goes_backward_from_a_later_step_on_is_noticed() -> None:
    model = Average(how="nothing")
    constant = ForwardGuard(model)
    for step in range(3):
        constant.begin()
        out = model(torch.ones(3, 4)).sum()
        if step < 2:
            constant.check()
        out.backward()
    with pytest.raises(ChangedError, match=r"has a gradient before the loss is returned"):
        constant.check()


@pytest.mark.parametrize("how", ["nothing", "the same numbers"])
def test_what_keeps_its_numbers_is_let_be_also_with_gradients_and_new_parameters(how: str) -> None:
    model = Average(how=how)
    constant = ForwardGuard(model)
    for _ in range(3):
        with torch.no_grad():
            model.linear.weight.add_(1)  # the next version arrives
        constant.begin()
        out = model(torch.ones(3, 4)).sum()
        constant.check()
        out.backward()


def test_a_cache_that_was_filled_before_is_let_be() -> None:
    model = Average(how="a cache")
    model(torch.ones(3, 4))
    constant = ForwardGuard(model)
    constant.begin()
    model(torch.ones(3, 4))
    constant.check()


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.GroupNorm(2, 4),
        nn.Dropout(0.5),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    ],
)
def test_ordinary_layers_change_nothing(layer: nn.Module) -> None:
    constant = ForwardGuard(layer)
    constant.begin()
    layer(torch.randn(3, 4)).sum()
    constant.check()


def test_old_spectral_norm_is_noticed() -> None:
    layer = torch.nn.utils.spectral_norm(nn.Linear(4, 4))
    constant = ForwardGuard(layer)
    constant.begin()
    layer(torch.randn(3, 4))
    with pytest.raises(ChangedError, match=r"buffer 'weight_[uv]'"):
        constant.check()


def test_a_job_whose_model_grows_by_itself_ends_at_its_first_shard(by_value: None) -> None:
    """A buffer that changes its numbers is averaged over the shards; one of a new shape is of no server."""
    data = as_dataset((torch.randn(64, 4), torch.randn(64, 2)))
    with pytest.raises(JobError, match=r"^worker-\d: buffer 'cache' of the model is changed by the forward pass"):
        train(Average(how="a cache"), data, loss, steps=5, batch=16, workers=1, servers=1, lr=0.1, proof="off")


def loss(model: nn.Module, batch: Any) -> Any:
    return nn.functional.mse_loss(model(batch[0]), batch[1])
