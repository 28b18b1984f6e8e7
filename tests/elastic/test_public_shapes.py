"""Shapes of public training scripts: each has the numbers of a loop of torch, or is refused by a line that says why.

The loop is the author's: whole batches, and no gradient where there is none. Three workers have the bits of one.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import pack_sequence
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from labkit.core.errors import LabkitError
from labkit.elastic import start, train
from labkit.elastic.data import as_dataset
from labkit.elastic.loading import Loading, Samples, seed_all
from labkit.elastic.protocol.program import Program, Spec
from labkit.elastic.verification import CLOSE, apart
from labkit.elastic.worker.forward import clock_of, parted

pytestmark = [
    pytest.mark.slow, pytest.mark.usefixtures("by_value"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),  # of torch about such models
]  # fmt: skip

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
WORDS = torch.randint(12, (64, 5), generator=torch.Generator().manual_seed(2))
WEIGHT = torch.tensor([1.0, 3.0])
STEPS, BATCH = 100, 16


def net(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *(middle or (nn.Tanh(),)), nn.Linear(8, 2))


def cross_entropy(model: nn.Module, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1])


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


# --- models


class Middle(nn.Module):
    """Two layers, with something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Any, *more: Any) -> Any:
        return self.b(self.middle(self.a(x), *more))


class CountsInABuffer(Middle):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.long))

    def middle(self, h: Any) -> Any:
        self.n += self.training
        return h.tanh() * (1 + self.n / 50).clamp(max=2)


class OwnGenerator(Middle):
    def __init__(self) -> None:
        super().__init__()
        self.drawn = torch.Generator().manual_seed(3)

    def middle(self, h: Any) -> Any:
        return h.tanh() * (torch.rand(h.shape, generator=self.drawn) > 0.3 * self.training)


class RunningTensor(Middle):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(8)

    def middle(self, h: Any) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return (h - self.mean).tanh()


class Balanced(Middle):
    """Adds a loss of its own in training mode, as Switch Transformers do: shares of a batch times probabilities."""

    def middle(self, h: Any) -> Any:
        p = h.softmax(-1)
        self.auxiliary = (F.one_hot(p.argmax(-1), 8).float().mean(0) * p.mean(0)).sum() if self.training else 0.0
        return h.tanh()


class Honest(Middle):
    """Has layers that are others in training mode, sample by sample; `normed`: and a normalization of its own."""

    def __init__(self, *, normed: bool = False) -> None:
        super().__init__()
        self.drop, self.norm, self.normed = nn.Dropout(0.3), nn.BatchNorm1d(8), normed
        self.register_buffer("mean", torch.zeros(8))

    def middle(self, h: Any) -> Any:
        h = F.dropout(self.drop(self.norm(h)), 0.3, self.training)[:, None]
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.3 * self.training)[:, 0]
        if self.training and self.normed:
            mean = h.mean(0)
            self.mean.lerp_(mean.detach(), 0.1)
            h = h - mean
        return h * (1 + self.training * torch.rand(len(h), 1).round())  # stochastic depth


class Alias(Middle):
    def __init__(self) -> None:
        super().__init__()
        self.w = self.a.weight.data

    def forward(self, x: Any) -> Any:
        return self.b((self.a(x) + x @ self.w.T).tanh())


class Skips(Middle):
    """Leaves a layer out, by the step."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Linear(8, 8)

    def middle(self, h: Any, use: bool = True) -> Any:
        return h.tanh() + self.x(h) if use else h.tanh()


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -0.5 * gradient


class Reversed(Middle):
    def middle(self, h: Any) -> Any:
        return h.tanh() + 0.1 * Reversal.apply(h)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(12, 6), nn.Linear(6, 12, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.out(self.words(x).tanh())


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(12, 6, sparse=True), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.out(self.words(x).mean(1))


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(12, 6), nn.GRU(6, 8), nn.Linear(8, 12)

    def forward(self, rows: Any) -> Any:
        return self.out(self.rnn(rows._replace(data=self.words(rows.data)))[0].data)


class Teacher(nn.Module):
    """Averages the weights of its student in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = net(), net().requires_grad_(False)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            for a, b in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                a.lerp_(b, 0.1)
        return self.student(x) + 0.1 * self.teacher(x)


def hooked(model: nn.Module) -> nn.Module:
    model[1].register_forward_hook(lambda module, given, out: 2 * out)
    model[0].register_full_backward_hook(lambda module, into, of: tuple(g if g is None else g / 2 for g in into))
    return model


def quantized() -> nn.Module:
    import torch.ao.quantization as q

    model = nn.Sequential(q.QuantStub(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2), q.DeQuantStub())
    model.qconfig = q.get_default_qat_qconfig("fbgemm")
    return q.prepare_qat(model.train())


# --- losses


class RunningMean:
    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        loss = cross_entropy(model, batch)
        self.mean = 0.9 * self.mean + 0.1 * float(loss.detach())
        return loss * (1 + self.mean)


class Later:
    """Counts, and makes use of it later than a proof looks."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        self.n += 1
        return cross_entropy(model, batch) * (1 if self.n < 40 else 2)


def smooth(model: nn.Module, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHT, label_smoothing=0.1)


def smooth_sums(model: nn.Module, batch: Any) -> Any:
    total = F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHT, label_smoothing=0.1, reduction="sum")
    return total, WEIGHT[batch[1]].sum()


def hardest(model: nn.Module, batch: Any) -> Any:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses.topk(len(losses) // 2).values.mean()


def speech(model: nn.Module, batch: Any) -> Any:
    n = len(batch[0])
    return F.ctc_loss(model(batch[0]), batch[1], torch.full((n,), 10), torch.full((n,), 3))


def packed(model: nn.Module, rows: Any) -> Any:
    return F.cross_entropy(model(rows), rows.data, reduction="sum"), len(rows.data)


def penalized(model: nn.Module, batch: Any) -> Any:
    x = batch[0].clone().requires_grad_()
    out = model(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return F.cross_entropy(out, batch[1]) + 0.1 * gradient.square().sum(1).mean()


def backwards(model: nn.Module, batch: Any) -> Any:
    loss = cross_entropy(model, batch)
    loss.backward(retain_graph=True)
    return loss


def scaled(model: nn.Module, batch: Any) -> Any:
    return torch.amp.GradScaler("cpu").scale(cross_entropy(model, batch))


def thaws(model: nn.Module, batch: Any, step: int) -> Any:
    model[0].requires_grad_(step >= 5)
    return cross_entropy(model, batch)


def raises(model: nn.Module, batch: Any, step: int) -> Any:
    if step == 7:
        raise ValueError("no good")
    return cross_entropy(model, batch)


def at_step_7(factor: float) -> Any:
    return lambda model, batch, step: cross_entropy(model, batch) * (factor if step == 7 else 1)


# --- data

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Record:
    x: Any
    y: Any


class Rows(Dataset[Any]):
    def __init__(self, row: Callable[[int], Any]) -> None:
        self.row = row

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return self.row(i)


class OwnNoise(Rows):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, i: int) -> Any:
        return X[i] + torch.from_numpy(self.rng.normal(size=6).astype(np.float32)), Y[i]


class Drifts(Rows):
    """Builds each epoch on the one before: a worker that comes later has not seen that."""

    def __init__(self) -> None:
        self.shift = torch.zeros(6)

    def set_epoch(self, epoch: int) -> None:
        self.shift = self.shift + epoch * torch.rand(6)

    def __getitem__(self, i: int) -> Any:
        return X[i] + self.shift, Y[i]


class Locked(Rows):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getitem__(self, i: int) -> Any:
        with self.lock:
            return X[i], Y[i]


class Grows(Rows):
    def __init__(self) -> None:
        self.n_seen = 0

    def __len__(self) -> int:
        return 48 + min(16, self.n_seen // 48)

    def __getitem__(self, i: int) -> Any:
        self.n_seen += 1
        return X[i], Y[i]


class ByLoss:
    """Yields what the model does best first."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return len(X)

    def __iter__(self) -> Any:
        with torch.no_grad():
            return iter(F.cross_entropy(self.model(X), Y, reduction="none").argsort().tolist())


class Stream(IterableDataset[Any]):
    """Shuffles by epoch, adds noise, and would share itself out among the processes of a loader."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        reader = get_worker_info()
        rows = np.random.default_rng(self.epoch).permutation(70)
        for i in rows if reader is None else rows[reader.id :: reader.num_workers]:
            yield X[i % 64] + 0.1 * torch.randn(6), Y[i % 64]


def by_dataclass(rows: list[Any]) -> Record:
    return Record(*(torch.stack(parts) for parts in zip(*rows, strict=True)))


def pairs() -> Any:
    return TensorDataset(X, Y)


def loader(data: Any, **options: Any) -> Any:
    return DataLoader(data, BATCH, **{"shuffle": "sampler" not in options, **options})


def speeches() -> Any:
    rng = torch.Generator().manual_seed(0)
    return as_dataset((torch.randn(64, 10, 4, generator=rng), torch.randint(1, 5, (64, 3), generator=rng)))


# --- optimizers


def clamped(model: nn.Module) -> Any:
    chosen = torch.optim.SGD(model.parameters(), lr=0.1)

    def clamp(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.data.clamp_(-0.2, 0.2)

    chosen.register_step_post_hook(clamp)
    return chosen


def sequence(optimizer: Any) -> Any:
    warm_up, rest = schedulers.LinearLR(optimizer, 0.1, 1, 10), schedulers.CosineAnnealingLR(optimizer, STEPS)
    return schedulers.SequentialLR(optimizer, [warm_up, rest], [10])


def chain(optimizer: Any) -> Any:
    return schedulers.ChainedScheduler(
        [schedulers.LinearLR(optimizer, 0.1, 1, 10), schedulers.ExponentialLR(optimizer, 0.98)]
    )


Case = tuple[nn.Module, Any, Any, dict[str, Any]]


def case(model: nn.Module, data: Any = None, loss: Any = cross_entropy, **options: Any) -> Case:
    return model, as_dataset((X, Y)) if data is None else data, loss, {"optimizer": sgd, **options}


EQUAL: dict[str, Callable[[], Case]] = {
    "tied embeddings": lambda: case(
        Tied(),
        as_dataset((WORDS, WORDS.roll(1, 1))),
        lambda m, b: F.cross_entropy(m(b[0]).mT, b[1]),
        optimizer=adam,
        servers=1,
    ),
    "a buffer that counts": lambda: case(CountsInABuffer()),
    "a layer left out at some steps": lambda: case(
        Skips(), loss=lambda m, b, step: F.cross_entropy(m(b[0], step % 3 != 2), b[1]), optimizer=adam
    ),
    "a layer used from a step on": lambda: case(
        Skips(), loss=lambda m, b, step: F.cross_entropy(m(b[0], step > 9), b[1]), optimizer=adam
    ),
    "class weights and smoothed labels": lambda: case(net(), loss=smooth_sums),
    "CTC": lambda: case(Speech(), speeches(), speech, optimizer=adam),
    "packed sequences": lambda: case(
        Packed(),
        loader(
            Rows(lambda i: WORDS[i, : 1 + i % 5]), collate_fn=lambda rows: pack_sequence(rows, enforce_sorted=False)
        ),
        packed,
    ),
    "batches that are dicts": lambda: case(
        net(),
        Rows(lambda i: {"x": X[i], "y": int(Y[i]), "id": f"{i}"}),
        lambda m, b: F.cross_entropy(m(b["x"]), b["y"]),
    ),
    "batches that are named tuples": lambda: case(
        net(), Rows(lambda i: Pair(X[i], Y[i])), lambda m, b: F.cross_entropy(m(b.x), b.y)
    ),
    "batches that are dataclasses": lambda: case(
        net(), loader(pairs(), collate_fn=by_dataclass), lambda m, b: F.cross_entropy(m(b.x), b.y)
    ),
    "sparse embeddings with Adagrad": lambda: case(
        Sparse(), as_dataset((WORDS, Y)), optimizer=lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1)
    ),
    "hooks on modules": lambda: case(hooked(net())),
    "reversed gradients": lambda: case(Reversed()),
    "a penalty on gradients": lambda: case(net(), loss=penalized),
    "a hook after the optimizer's step": lambda: case(net(), optimizer=clamped),
    "schedules one after the other": lambda: case(net(), scheduler=sequence),
    "schedules at once": lambda: case(net(), scheduler=chain),
    "a schedule that changes betas": lambda: case(
        net(), optimizer=adam, scheduler=lambda o: schedulers.OneCycleLR(o, 1e-2, total_steps=STEPS + 1)
    ),
    "a schedule by the epoch": lambda: case(net(), scheduler=lambda o: schedulers.StepLR(o, 3), scheduler_every=4),
    "clipped by norm": lambda: case(net(), clip_norm=0.1),
    "clipped by value": lambda: case(net(), clip_value=0.01),
    "a sampler with weights": lambda: case(
        net(), loader(pairs(), sampler=WeightedRandomSampler((1.0 + Y).tolist(), 64))
    ),
    "a stream": lambda: case(net(), DataLoader(Stream(), BATCH)),
    "activation checkpoints": lambda: case(
        net(nn.Tanh()),
        loss=lambda m, b: F.cross_entropy(torch.utils.checkpoint.checkpoint(m, b[0], use_reentrant=False), b[1]),
    ),
    "channels last": lambda: case(
        nn.Sequential(nn.Unflatten(1, (3, 2, 1)), nn.Conv2d(3, 4, (2, 1)), nn.Flatten(), nn.Linear(4, 2)).to(
            memory_format=torch.channels_last
        )
    ),
    "torch.compile": lambda: case(torch.compile(net(), backend="eager")),
}
REFUSED: dict[str, tuple[Callable[[], Case], str]] = {
    "a generator of its own": (lambda: case(OwnGenerator()), "another gradient the second time.*what drawn counts"),
    "running statistics in a tensor": (lambda: case(RunningTensor()), "another gradient.*what mean counts or draws"),
    "a loss with a running mean": (lambda: case(net(), loss=RunningMean()), r"what loss\.mean counts or draws"),
    "a dataset with a generator": (lambda: case(net(), OwnNoise()), r"what data\.rng counts or draws"),
    "epochs that build on each other": (lambda: case(net(), Drifts()), r"what data\.shift counts or draws"),
    "a tensor in a parameter's memory": (lambda: case(Alias()), r"w of the model .* memory of parameter 'a\.weight'"),
    "a part that unfreezes": (lambda: case(net(), loss=thaws), r"'0\.weight' is (frozen|trained) from now on"),
    "class weights in a mean": (lambda: case(net(), loss=smooth, shards=4), "no plain mean over samples"),
    "a loss of a module in training mode": (
        lambda: case(Balanced(), loss=lambda m, b: cross_entropy(m, b) + m.auxiliary, shards=4),
        "in training mode the loss is no plain mean over samples",
    ),
    "the hardest half of a batch": (lambda: case(net(), loss=hardest, shards=4), "no plain mean over samples"),
    "weights that forward averages": (lambda: case(Teacher()), r"frozen parameter 'teacher\.0\.weight' .* is changed"),
    "a loss that goes backward": (lambda: case(net(), loss=backwards), "the loss calls backward.. itself"),
    "a gradient scaler": (lambda: case(net(), loss=scaled), "the loss is multiplied by a GradScaler"),
    "a lock": (lambda: case(net(), Locked()), "data .* cannot be sent .* Open files.* where they are first"),
    "a dataset that grows": (lambda: case(net(), Grows()), "the data had 48 samples .* and has .* now"),
    "an error at a step": (lambda: case(net(), loss=raises), "step 7, logical shard 0: ValueError: no good"),
    "NaN at a step": (lambda: case(net(), loss=at_step_7(float("nan"))), "step 7, logical shard 0: the loss is nan"),
    "quantization that is trained": (lambda: case(quantized()), r"buffer '0\.activation_post_process\.scale' of the"),
    "an order that depends on the model": (
        lambda: self_paced(net()),
        "another order of an epoch .* the model has changed",
    ),
    "a parametrization": (
        lambda: case(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2)))),
        "is parametrized, and torch cannot pickle that",
    ),
}
TOLD: dict[str, tuple[Callable[[], Case], str]] = {
    "a loss that counts for later": (lambda: case(net(), loss=Later()), r"loss\.n changes in the forward pass"),
    "dropout, BatchNorm and stochastic depth": (
        lambda: case(Honest()),
        "has the gradient of their batch; BatchNorm .*, in training mode, too .dropout off.",
    ),
    "a normalization of one's own": (
        lambda: case(Honest(normed=True)),
        "in training mode Honest sees one shard at a time, as",
    ),
    "power iterations": (
        lambda: case(nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 2))),
        r"buffers that the forward pass changes are averaged over shards: 0\.weight_u",
    ),
}


def self_paced(model: nn.Module) -> Case:
    return case(model, loader(pairs(), sampler=ByLoss(model)))


def job(made: Callable[[], Case], **options: Any) -> Any:
    torch.manual_seed(0)
    model, data, loss, own = made()
    size = {} if isinstance(data, DataLoader) else {"batch": BATCH}
    with start(model, data, loss, steps=STEPS, **{"servers": 2, "shards": 4, **size, **own, **options}) as running:
        return running.wait()


def by_author(made: Callable[[], Case]) -> tuple[dict[str, Any], list[float]]:
    """Train as a script does; only the order of samples is the job's."""
    torch.manual_seed(0)
    model, data, loss, options = made()
    loading = Loading.of(data, batch=None, shuffle=True, loaders=0, default=BATCH)
    spec = Spec((), (), "", {}, BATCH, 1, STEPS, n_samples=len(loading.data), shuffle=loading.shuffle)
    order, program = Samples(loading.data, spec), Program(model, loading.data, loss)
    optimizer = options["optimizer"](model)
    scheduler = options["scheduler"](optimizer) if "scheduler" in options else None
    takes, losses = clock_of(loss), []
    model.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        seed_all(hash((0, step, 0)) & 0x7FFFFFFF)
        parts = parted(loss(model, program.batch(order.of(step, 0)), **takes(step=step, epoch=spec.epoch_of(step))))
        value = parts.loss / (parts.weight or 1.0)
        value.backward()
        if "clip_norm" in options:
            nn.utils.clip_grad_norm_(model.parameters(), options["clip_norm"])
        if "clip_value" in options:
            nn.utils.clip_grad_value_(model.parameters(), options["clip_value"])
        optimizer.step()
        if scheduler is not None and (step + 1) % options.get("scheduler_every", 1) == 0:
            scheduler.step()
        losses.append(float(value.detach()))
    return model.state_dict(), losses


@pytest.mark.parametrize("name", EQUAL)
def test_a_script_trains_as_its_author_meant(name: str) -> None:
    one, three = (job(EQUAL[name], workers=n) for n in (1, 3))
    assert apart(one, *by_author(EQUAL[name])) <= CLOSE
    assert one.digest == three.digest


def test_a_stream_goes_on_where_a_checkpoint_has_it(tmp_path: Path) -> None:
    straight = job(EQUAL["a stream"], workers=1)
    torch.manual_seed(0)
    model, data, loss, options = EQUAL["a stream"]()
    options = {**options, "servers": 2, "shards": 4, "folder": tmp_path}
    train(model, data, loss, steps=7, workers=1, **options)
    torch.manual_seed(0)
    model, data, loss, _ = EQUAL["a stream"]()
    assert train(model, data, loss, steps=STEPS, workers=2, **options).digest == straight.digest


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_job_cannot_do_is_refused_with_the_reason(name: str) -> None:
    made, why = REFUSED[name]
    with pytest.raises(LabkitError, match=why):
        job(made, **{"shards": 1} if "shards" not in made()[3] else {})


@pytest.mark.parametrize("name", TOLD)
def test_what_may_differ_is_told(name: str) -> None:
    made, what = TOLD[name]
    told = " ".join(event["what"] for event in job(made, workers=1).events if event["event"] == "told")
    assert re.search(what, told), told
