"""The training of a job as a plain loop of torch, in this process: what a job is compared with, and a script alone.

The loop knows no servers. With several shards it has as many micro-batches, whose gradients it adds in pairs, pairs of
pairs and so on: another order rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.elastic.loading import Loading, Samples, seed_all
from labkit.elastic.protocol.program import FLOAT32, Program, Spec
from labkit.elastic.server.optimizers import OwnUpdate, in_turn, optimizer
from labkit.elastic.shards.batches import check_batch
from labkit.elastic.worker.forward import LossParts, backward, cast, checked, clock_of, parted
from labkit.system.threads import one_thread

BATCH: Final = 64
"""Samples of an update where neither options nor a DataLoader say it, as in `labkit.elastic.start`."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch whose loss is asked for: the batch, the number of the update, and that of the epoch."""

    batch: Any
    step: int
    epoch: int


Rounds = Generator[MicroBatch, LossParts, list[float]]


def plain_rounds(model: Any, data: Any, options: Mapping[str, Any], steps: int) -> Rounds:
    """Yield the micro-batches of a training, take the loss of each, and update the model; return the loss of each step.

    Micro-batches begin with the buffers of the step, which become their mean; one that is `per_shard` goes on from its
    own. Raise InputError if an option has no counterpart in torch, or a batch cannot be cut into shards.

    Parameters
    ----------
    model : Module
        It is trained in place.
    data, options
        As `labkit.elastic.start` takes them; what concerns processes has no effect.
    steps : int
        Updates.
    """
    import torch

    loading = Loading.of(
        data, batch=options.get("batch"), shuffle=options.get("shuffle", True), loaders=0, default=BATCH
    )
    n, seed = int(options.get("shards", 8)), options.get("seed", 0)
    check_batch(len(loading.data), batch=loading.batch, n_shards=n)
    program = Program(model, loading.data, _no_loss)
    spec = Spec((), (), "", {}, loading.batch, n, steps, seed, n_samples=len(loading.data), shuffle=loading.shuffle)
    samples, steppers = Samples(loading.data, spec), Steppers(options, model)
    buffers = _Buffers(model, options.get("per_shard", ()), n)
    params, losses = [p for p in model.parameters() if p.requires_grad], []
    program.train()
    for step in range(steps):
        rows = []
        for leaf in range(n):
            model.zero_grad()
            buffers.begin(leaf)
            seed_all(hash((seed, step, leaf)) & 0x7FFFFFFF)
            parts = yield MicroBatch(program.batch(samples.of(step, leaf)), step, spec.epoch_of(step))
            backward(
                checked(parts.loss),
                lambda: [p.grad for p in params if p.grad is not None],
                precision=options.get("precision", FLOAT32),
            )
            weight = 1.0 if parts.weight is None else parts.weight
            rows.append([float(parts.loss.detach()), weight, *map(_dense, params)])
            buffers.end(leaf)
        total, weight, *gradients = (in_pairs(_parts(column)) for column in zip(*rows, strict=True))
        for p, gradient in zip(params, gradients, strict=True):
            p.grad = None if gradient is None else gradient.mul_(1 / weight if weight else 0.0)
        buffers.step()
        if options.get("clip_value"):
            torch.nn.utils.clip_grad_value_(params, options["clip_value"])
        if options.get("clip_norm"):
            torch.nn.utils.clip_grad_norm_(params, options["clip_norm"])
        steppers.step(step)
        losses.append(total / (weight or 1.0))
    return losses


def _no_loss(model: Any, batch: Any) -> Any:
    raise NotImplementedError(f"the loss of {model} is asked for")


def plain_losses(
    model: Any, data: Any, loss: Callable[..., Any], options: Mapping[str, Any], steps: int
) -> list[float]:  # fmt: skip
    """Train a model by `plain_rounds`, with one thread, as workers do; return the loss of each step."""
    takes, rounds = clock_of(loss), plain_rounds(model, data, options, steps)
    with one_thread():
        try:
            asked = next(rounds)
            while True:
                with cast("cpu", options.get("precision", FLOAT32)):
                    parts = parted(loss(model, asked.batch, **takes(step=asked.step, epoch=asked.epoch)))
                asked = rounds.send(parts)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


class Steppers:
    """The optimizers and their schedulers."""

    def __init__(self, options: Mapping[str, Any], model: Any) -> None:
        import torch

        given = options.get("optimizer", "sgd")
        if isinstance(given, OwnUpdate):
            raise InputError(
                "an update of one's own has no counterpart in torch; expected an optimizer to compare with."
            )
        if isinstance(given, str):
            given = _named(given, options, model)
        made, self._turns = in_turn(given if isinstance(given, list | tuple) else [given])
        self._optimizers = [each if hasattr(each, "step") else each(model) for each in made]
        schedulers = options.get("scheduler") or []
        schedulers = schedulers if isinstance(schedulers, list | tuple) else [schedulers]
        pairs = zip(schedulers, self._optimizers, strict=False)
        self._schedulers = [each if hasattr(each, "step") else each(own) for each, own in pairs]
        self._every = options.get("scheduler_every", 1)
        if options.get("schedule") is not None:
            lambdas = torch.optim.lr_scheduler.LambdaLR
            self._schedulers = [lambdas(own, options["schedule"]) for own in self._optimizers]

    def step(self, step: int) -> None:
        """Make update number `step`, from 0."""
        self._optimizers[self._turns[step % len(self._turns)]].step()
        if (step + 1) % self._every == 0:
            for scheduler in self._schedulers:
                scheduler.step()


def _named(name: str, options: Mapping[str, Any], model: Any) -> Any:
    """Return the optimizer of torch that has a name here."""
    import torch

    known = ("lr", "weight_decay", "momentum", "nesterov", "betas", "eps", "decoupled_weight_decay")
    chosen = optimizer(name, **{key: options[key] for key in known if key in options}).options
    apart = chosen.pop("decoupled_weight_decay", False)
    kind = {"adam": torch.optim.AdamW if apart else torch.optim.Adam}.get(name, torch.optim.SGD)
    return kind([p for p in model.parameters() if p.requires_grad], **chosen)


class _Buffers:
    def __init__(self, model: Any, own: Sequence[str], n: int) -> None:
        self._model, self._n = model, n
        self._now = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._own = {name: [self._now[name].clone() for _ in range(n)] for name in own}
        self._after: list[dict[str, Any]] = []

    def begin(self, leaf: int) -> None:
        """Set those of a micro-batch."""
        import torch

        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._own[name][leaf] if name in self._own else self._now[name])

    def end(self, leaf: int) -> None:
        """Take those after a micro-batch."""
        self._after.append({name: buffer.clone() for name, buffer in self._model.named_buffers()})
        for name, rows in self._own.items():
            rows[leaf] = self._after[-1][name]

    def step(self) -> None:
        """Set their mean over the micro-batches."""
        after, self._after = self._after, []
        for name, now in self._now.items():
            mean = in_pairs([each[name].float() for each in after]) * (1 / self._n)
            self._now[name] = mean.to(now.dtype)
        self.begin(0)


def _parts(column: Sequence[Any]) -> list[Any]:
    """Return a gradient of each micro-batch, without those that have none; of none at all, None."""
    return [part for part in column if part is not None] or [None]


def _dense(p: Any) -> Any:
    """Return the gradient of a parameter; None where it has none."""
    if p.grad is None:
        return None
    return p.grad.to_dense() if p.grad.is_sparse else p.grad.clone()


def in_pairs(values: list[Any]) -> Any:
    """Return the sum of neighbours, of these sums and so on; the last one of an odd number waits.

    >>> in_pairs([1e16, 1.0, 1.0, 1.0])
    1.0000000000000002e+16
    """
    while len(values) > 1:
        values = [a[0] + a[1] if len(a) > 1 else a[0] for a in (values[i : i + 2] for i in range(0, len(values), 2))]
    return values[0]
