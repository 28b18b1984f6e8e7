"""Twenty training scripts in the manner of well-known ones: does each train as its author meant it?

The scripts are of ours, small, with samples made here. Each is trained by `labkit.elastic` and by a plain loop of torch
that knows no servers (`plain`), with the same samples. To add one, write a file in `scripts`, as for `labkit train`.

python -m benchmarks.ports [NAME ...] [--steps 100] [--faults] [--json FILE]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.ports.faults import Slow, disturbed
from labkit.core.errors import LabkitError
from labkit.elastic import start
from labkit.elastic.loading import Loading, Samples
from labkit.elastic.protocol.program import Program, Spec
from labkit.elastic.worker.forward import clock_of, parted, seed_all
from labkit.experiment.own_training import OwnTraining, arguments_of, read_training

KILLS = 10
"""Kills of a job with faults."""
SCRIPTS = Path(__file__).parent / "scripts"
NAMES = (
    "mnist", "vae", "dcgan", "word_language_model", "nanogpt", "siamese", "super_resolution", "time_sequence",
    "regression", "gcn", "gin", "dlrm", "resnet18", "transfer", "simclr", "unet", "transformer", "distillation",
    "multitask", "rnn",
)  # fmt: skip


@dataclass
class Port:
    """A script, read for a number of shards.

    Attributes
    ----------
    training : OwnTraining
        What the file defines.
    options : dict
        Arguments of `start`.
    """

    training: OwnTraining
    options: dict[str, Any]

    @classmethod
    def read(cls, name: str, *, shards: int | None = None) -> Port:
        """Read a script; `shards` instead of its own number."""
        if shards is not None:
            os.environ["SHARDS"] = str(shards)
        try:
            for known in [known for known in sys.modules if known.startswith("labkit_train_")]:
                del sys.modules[known]
            training = read_training(SCRIPTS / f"{name}.py", seed=0)
        finally:
            os.environ.pop("SHARDS", None)
        options = {"shards": 8, **arguments_of(training, {}, typed=())}
        return cls(training, options if shards is None else {**options, "shards": shards})

    def job(self, steps: int, workers: int, *, faults: bool = False) -> Any:
        """Return a job that trains it; with `faults` slowly, and with checkpoints."""
        options, data = {"servers": 2, **self.options}, self.training.data
        if faults:
            loading = Loading.of(
                data, batch=options.get("batch"), shuffle=options.get("shuffle", True), loaders=0, default=64
            )
            options |= {"batch": loading.batch, "shuffle": loading.shuffle, "save_every": 20, "restarts": 50}
            data = Slow(loading)
        return start(self.training.model, data, self.training.loss, steps=steps, workers=workers, **options)


# --- the same in plain torch


def plain(port: Port, steps: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train in a loop of torch, with micro-batches where the batch has shards; return state and losses.

    Micro-batches begin with the buffers of the step, which become their mean; a buffer `per_shard` goes on from its
    own. Gradients and losses are added in pairs, pairs of pairs and so on: another order rounds otherwise, and a deep
    network with BatchNorm makes much of that within a hundred steps.
    """
    options, model, loss = port.options, port.training.model, port.training.loss
    n = options["shards"]
    model.train()
    loading = Loading.of(
        port.training.data, batch=options.get("batch"), shuffle=options.get("shuffle", True), loaders=0, default=64
    )
    program = Program(model, loading.data, loss)
    spec = Spec((), (), "", {}, loading.batch, n, steps, n_samples=len(loading.data), shuffle=loading.shuffle)
    samples, takes = Samples(loading.data, spec), clock_of(loss)
    optimizers, schedulers = _optimizers(options, model)
    buffers = Buffers(model, options.get("per_shard", ()), n)
    losses = []
    for step in range(steps):
        rows = []
        for leaf in range(n):
            model.zero_grad()
            buffers.begin(leaf)
            seed_all(hash((0, step, leaf)) & 0x7FFFFFFF)
            batch = program.batch(samples.of(step, leaf))
            parts = parted(loss(model, batch, **takes(step=step, epoch=spec.epoch_of(step))))
            parts.loss.backward()
            buffers.end(leaf)
            weight = 1.0 if parts.weight is None else parts.weight
            rows.append([float(parts.loss.detach()), weight, *map(dense, model.parameters())])
        total, weights, *gradients = (in_pairs(list(column)) for column in zip(*rows, strict=True))
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient.mul_(1 / weights) if p.requires_grad else None
        buffers.step()
        if options.get("clip_norm"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip_norm"])
        optimizers[step % len(optimizers)].step()
        losses.append(total / weights)
        if (step + 1) % options.get("scheduler_every", 1) == 0:
            _schedule(schedulers, losses[-options.get("scheduler_every", 1) :])
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, losses


def dense(p: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a parameter, zeros where it has none."""
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


def _optimizers(options: dict[str, Any], model: Any) -> tuple[list[Any], list[Any]]:
    made = options.get("optimizer")
    if isinstance(made, str):
        return [torch.optim.SGD(model.parameters(), lr=options["lr"])], []
    optimizers = [each(model) for each in (made if isinstance(made, list) else [made])]
    schedulers = [options["scheduler"](each) for each in optimizers] if "scheduler" in options else []
    return optimizers, schedulers


def _schedule(schedulers: Sequence[Any], losses: Sequence[float]) -> None:
    for each in schedulers:
        if isinstance(each, torch.optim.lr_scheduler.ReduceLROnPlateau):
            each.step(sum(losses) / len(losses))
        else:
            each.step()


class Buffers:
    """The buffers of a model over micro-batches."""

    def __init__(self, model: Any, own: Sequence[str], n: int) -> None:
        self._model, self._n = model, n
        self._now = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._own = {name: [self._now[name].clone() for _ in range(n)] for name in own}
        self._after: list[dict[str, torch.Tensor]] = []

    def begin(self, leaf: int) -> None:
        """Set those of a micro-batch."""
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
        for name in self._now:
            mean = in_pairs([each[name].float() for each in after]) * (1 / self._n)
            self._now[name] = mean.to(self._now[name].dtype)
        self.begin(0)


# --- the comparison


@dataclass
class Outcome:
    """What came of a script.

    Attributes
    ----------
    name : str
        Of the script.
    refused : str
        Why it cannot be trained; empty: it can.
    alone, sharded : tuple of float, optional
        Largest difference of the losses and of the state from the plain loop with one shard, and with several.
    shards : int
        How many.
    equal : bool or None
        Whether one worker and three have the same bits; None: not tried.
    faults : int
        Kills and scalings of the three.
    digest : str
        Of the job of one worker.
    """

    name: str
    refused: str = ""
    alone: tuple[float, float] | None = None
    sharded: tuple[float, float] | None = None
    shards: int = 1
    equal: bool | None = None
    faults: int = 0
    digest: str = ""

    @property
    def right(self) -> bool:
        """Whether it trains as meant: at most 1e-6 with one shard, 1e-5 with several, one worker as three."""
        small = [max(pair) <= most for pair, most in ((self.alone, 1e-6), (self.sharded, 1e-5)) if pair is not None]
        return not self.refused and all(small) and self.equal is not False

    def line(self) -> str:
        """Return its row of the table."""
        if self.refused:
            return f"| {self.name} | refused: {self.refused} | | |"
        alone = "-" if self.alone is None else "equal bits" if not any(self.alone) else f"{max(self.alone):.1e}"
        sharded = (
            "one shard by its nature" if self.sharded is None else f"{max(self.sharded):.1e} ({self.shards} shards)"
        )
        equal = "-" if self.equal is None else "equal bits" if self.equal else "**differ**"
        equal += f", {self.faults} kills and scalings" if self.faults else ""
        return f"| {self.name} | {alone} | {sharded} | {equal} |"


HEAD = (
    "| script | one shard, from plain torch | several shards, from plain torch | 1 and 3 workers |\n|---|---|---|---|"
)


def compared(name: str, *, steps: int, faults: bool = False) -> Outcome:
    """Train a script with labkit and in a plain loop."""
    outcome = Outcome(name)
    try:
        outcome.shards = Port.read(name).options["shards"]
        if outcome.shards > 1:
            outcome.alone = _differences(outcome, steps, 1)
        found = _differences(outcome, steps, outcome.shards)
        outcome.alone, outcome.sharded = (outcome.alone, found) if outcome.shards > 1 else (found, None)
        outcome.equal = _of_three(outcome, steps, faults=faults) == outcome.digest
    except LabkitError as error:
        outcome.refused = str(error).splitlines()[0]
    return outcome


def _differences(outcome: Outcome, steps: int, shards: int) -> tuple[float, float]:
    """Return how a job of one worker differs from the plain loop; its digest is kept."""
    with Port.read(outcome.name, shards=shards).job(steps, 1) as job:
        result = job.wait()
    outcome.digest = result.digest
    return _apart(result, *plain(Port.read(outcome.name, shards=shards), steps))


def _of_three(outcome: Outcome, steps: int, *, faults: bool) -> str:
    """Return the digest of a job of three workers, undisturbed or not."""
    with Port.read(outcome.name).job(steps, 3, faults=faults) as job:
        if faults:
            done = disturbed(job, steps, kills=KILLS)
            outcome.faults = len(done)
            print(f"{outcome.name}: {', '.join(done)}", file=sys.stderr, flush=True)
        return str(job.wait().digest)


def _apart(result: Any, state: dict[str, torch.Tensor], losses: Sequence[float]) -> tuple[float, float]:
    """Return the largest difference of losses, of numbers over 1 as a part of them, and that of the state."""
    apart = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(result.losses, losses, strict=True))
    mine = result.state_dict()
    return apart, max(_largest(mine[name], state[name]) for name in state if state[name].numel())


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    return float(((a - b).abs() / b.abs().clamp(min=1.0)).max())


def outcomes(names: Sequence[str], *, steps: int, faults: bool = False) -> Iterator[Outcome]:
    """Yield what came of each script."""
    for name in names or NAMES:
        yield compared(name, steps=steps, faults=faults)
