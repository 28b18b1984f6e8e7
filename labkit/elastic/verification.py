"""Verify a training before it is paid for: a few steps of a job, and the same in a plain loop of torch.

The loop knows no servers. With several shards it has as many micro-batches, whose gradients it adds in pairs, pairs of
pairs and so on: another order rounds otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError
from labkit.elastic.job_start import start
from labkit.elastic.loading import Loading, Samples
from labkit.elastic.protocol.program import FLOAT32, Program, Spec
from labkit.elastic.server.optimizers import OwnUpdate, optimizer
from labkit.elastic.worker.forward import cast, clock_of, parted, seed_all

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.elastic.result import Result

CLOSE: Final = 1e-5
"""Largest difference from the plain loop that rounding may make of numbers around 1."""
WORKERS: Final = 3


@dataclass
class VerifiedTraining:
    """What is trained, and how.

    Attributes
    ----------
    model, data, loss
        As those of `labkit.elastic.start`.
    options : dict
        Its other arguments.
    """

    model: Any
    data: Any
    loss: Any
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def shards(self) -> int:
        """Logical shards of a batch."""
        return int(self.options.get("shards", 8))

    def copied(self, **options: Any) -> VerifiedTraining:
        """Return the same with other options, with a model and optimizers of its own."""
        own: dict[str, Any] = {name: self.options[name] for name in ("optimizer", "scheduler") if name in self.options}
        model, own = copy.deepcopy((self.model, own))
        return VerifiedTraining(model, self.data, self.loss, {**self.options, **own, **options})

    def job(self, steps: int, **options: Any) -> Any:
        """Return a job that trains it."""
        return start(self.model, self.data, self.loss, steps=steps, **{**self.options, **options})


# --- the same in plain torch


def plain(training: VerifiedTraining, steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """Train in a loop of torch; return the state_dict and the loss of each step.

    It computes with one thread, as workers do. Micro-batches begin with the buffers of the step, which become their
    mean; one that is `per_shard` goes on from its own.
    """
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _plain(training, steps)
    finally:
        torch.set_num_threads(n_threads)


def _plain(training: VerifiedTraining, steps: int) -> tuple[dict[str, Tensor], list[float]]:
    import torch

    options, model = training.options, training.model
    loading = Loading.of(
        training.data, batch=options.get("batch"), shuffle=options.get("shuffle", True), loaders=0, default=64
    )
    n, seed = training.shards, options.get("seed", 0)
    program = Program(model, loading.data, training.loss)
    spec = Spec((), (), "", {}, loading.batch, n, steps, seed, n_samples=len(loading.data), shuffle=loading.shuffle)
    steppers, buffers = _Steppers(options, model), _Buffers(model, options.get("per_shard", ()), n)
    micro, params, losses = (
        _MicroBatches(program, spec, options),
        [p for p in model.parameters() if p.requires_grad],
        [],
    )
    model.train()
    for step in range(steps):
        rows = []
        for leaf in range(n):
            model.zero_grad()
            buffers.begin(leaf)
            rows.append([*micro.backward(step, leaf), *map(_dense, params)])
            buffers.end(leaf)
        total, weight, *gradients = (in_pairs(list(column)) for column in zip(*rows, strict=True))
        for p, gradient in zip(params, gradients, strict=True):
            p.grad = gradient.mul_(1 / weight if weight else 0.0)
        buffers.step()
        if options.get("clip_value"):
            torch.nn.utils.clip_grad_value_(params, options["clip_value"])
        if options.get("clip_norm"):
            torch.nn.utils.clip_grad_norm_(params, options["clip_norm"])
        steppers.step(step)
        losses.append(total / (weight or 1.0))
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, losses


class _MicroBatches:
    """The losses of micro-batches, with the samples and the random numbers of a job."""

    def __init__(self, program: Program, spec: Spec, options: Mapping[str, Any]) -> None:
        self._program, self._spec = program, spec
        self._samples, self._takes = Samples(program.data, spec), clock_of(program.loss)
        self._precision = options.get("precision", FLOAT32)

    def backward(self, step: int, leaf: int) -> tuple[float, float]:
        """Compute the gradient of a micro-batch; return the loss and its weight."""
        seed_all(hash((self._spec.seed, step, leaf)) & 0x7FFFFFFF)
        batch = self._program.batch(self._samples.of(step, leaf))
        clock = self._takes(step=step, epoch=self._spec.epoch_of(step))
        with cast("cpu", self._precision):
            parts = parted(self._program.loss(self._program.model, batch, **clock))
        parts.loss.backward()
        return float(parts.loss.detach()), 1.0 if parts.weight is None else parts.weight


class _Steppers:
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
        made = given if isinstance(given, list | tuple) else [given]
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
        self._optimizers[step % len(self._optimizers)].step()
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
    """The buffers of a model over micro-batches."""

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


def _dense(p: Any) -> Any:
    """Return the gradient of a parameter, zeros where it has none."""
    import torch

    if p.grad is None:
        return torch.zeros_like(p)
    return p.grad.to_dense() if p.grad.is_sparse else p.grad.clone()


def in_pairs(values: list[Any]) -> Any:
    """Return the sum of neighbours, of these sums and so on; the last one of an odd number waits.

    >>> in_pairs([1e16, 1.0, 1.0, 1.0])
    1.0000000000000002e+16
    """
    while len(values) > 1:
        values = [a[0] + a[1] if len(a) > 1 else a[0] for a in (values[i : i + 2] for i in range(0, len(values), 2))]
    return values[0]


# --- the comparison


def apart(result: Result, state: Mapping[str, Tensor], losses: Sequence[float]) -> float:
    """Return the largest difference of a loss, or a number of the state, from the plain loop's; relative if over 1."""
    mine = result.state_dict()
    rows = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(result.losses, losses, strict=True)]
    for name in state:
        a, b = mine[name].double(), state[name].double()
        rows.append(float(((a - b).abs() / b.abs().clamp(min=1.0)).max()) if b.numel() else 0.0)
    return max(rows)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a comparison has found: a line, and whether it is as it should be."""

    line: str
    right: bool


def verify(training: VerifiedTraining, *, steps: int) -> Iterator[Verified]:
    """Yield what is equal: job and plain loop with one shard, and with several; one worker and three."""
    digests = []
    for n in dict.fromkeys((1, training.shards)):
        with training.copied(shards=n).job(steps, workers=1) as job:
            result = job.wait()
        digests.append(result.digest)
        difference = apart(result, *plain(training.copied(shards=n), steps))
        pieces = "one shard" if n == 1 else f"{n} shards, in micro-batches"
        size = "equal bits" if not difference else f"largest difference {difference:.1e}"
        yield Verified(f"{pieces}, {steps} steps of a plain loop of torch beside it: {size}", difference <= CLOSE)
    with training.copied().job(steps, workers=WORKERS) as job:
        equal = job.wait().digest == digests[-1]
    yield Verified(f"one worker and {WORKERS}: {'equal bits' if equal else 'other bits'}", equal)
