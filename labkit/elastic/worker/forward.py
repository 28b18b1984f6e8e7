"""A check that the forward pass changes neither buffers nor parameters of a model."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from labkit.core.errors import InputError
from labkit.elastic.errors import ChangedError
from labkit.elastic.loading import seed_all, set_states
from labkit.elastic.protocol.program import BF16, FLOAT32, FP16

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.elastic.loading import Loader
    from labkit.elastic.protocol.program import Program


@dataclass(slots=True)
class _BufferSnapshot:
    """A buffer at the start: the tensor, torch's count of writes to it, and a copy of its numbers."""

    module: nn.Module
    key: str
    name: str
    tensor: Tensor | None
    version: int
    copy: Tensor | None

    def changed(self) -> bool:
        """Return whether its numbers differ now; a write of the same numbers is no change."""
        now = self.module._buffers.get(self.key)
        if now is self.tensor and (now is None or now._version == self.version):
            return False
        same = now is not None and self.copy is not None and _equal(now, self.copy)
        self.tensor, self.version = now, 0 if now is None else now._version
        return not same


class ForwardGuard:
    """Detects changes of a model by its forward pass, other than gradients.

    Each worker would change its own copy, depending on its samples. The trained model would then depend on the number
    of workers, and would be saved with the buffers of the start. Torch counts writes to a tensor, so a check takes
    about 0.1 microseconds per tensor. `moving`: names of buffers that may change: servers have them.
    """

    def __init__(self, model: nn.Module, *, moving: Collection[str] = ()) -> None:
        modules = list(model.named_modules())
        self._modules = [(module, len(module._buffers)) for _, module in modules]
        self._named = {id(module): name for name, module in modules}
        self._buffers = [
            _BufferSnapshot(
                module, key, f"{name}.{key}" if name else key, buffer,
                0 if buffer is None else buffer._version, None if buffer is None else buffer.detach().clone(),
            )
            for name, module in modules
            for key, buffer in module._buffers.items()
            if (f"{name}.{key}" if name else key) not in moving
        ]  # fmt: skip
        self._params = list(model.named_parameters())
        self._versions = [p._version for _, p in self._params]
        self._trained = [p.requires_grad for _, p in self._params]
        self._probed: list[tuple[str, Tensor, bytes]] = []
        self._n = 0

    def changed(self) -> list[str]:
        """Return the names of buffers that have other numbers, in the same shape, since the last look."""
        return [
            kept.name for kept in self._buffers
            if kept.changed() and kept.copy is not None and kept.tensor is not None
            and kept.tensor.shape == kept.copy.shape
        ]  # fmt: skip

    def begin(self) -> None:
        """Record the parameters' present counts of writes, and take away their gradients."""
        self._versions = [p._version for _, p in self._params]
        for _, p in self._params:
            p.grad = None
        turn = slice(self._n % max(1, len(self._params)), None)
        some = self._params[turn][:1] if self._n else self._params
        self._probed, self._n = [(name, p, _probe(p)) for name, p in some], self._n + 1

    def check(self) -> None:
        """Check that nothing has changed since `begin`.

        Raise ChangedError if something has; the message names it, and a remedy.
        """
        self._check_parameters()
        for kept in self._buffers:
            if kept.changed():
                raise _refusal(f"buffer '{kept.name}'", _REMEDY)
        for module, n in self._modules:
            if len(module._buffers) != n:
                raise _refusal(f"buffer '{self._new(module)}'", _REMEDY)

    def _check_parameters(self) -> None:
        for (name, p), version in zip(self._params, self._versions, strict=True):
            if p._version != version:
                what = "parameter" if p.requires_grad else "frozen parameter"
                raise _refusal(f"{what} '{name}'", _OF_PARAMETERS)
        check_untouched(self._params)
        for name, probed, before in self._probed:
            if _probe(probed) != before:
                raise _refusal(f"parameter '{name}'", _OF_PARAMETERS)
        if self._trained != [p.requires_grad for _, p in self._params]:
            raise self._about_frozen()

    def _about_frozen(self) -> ChangedError:
        name, p = next(
            named for named, was in zip(self._params, self._trained, strict=True) if named[1].requires_grad != was
        )
        return ChangedError(
            f"parameter '{name}' is {'trained' if p.requires_grad else 'frozen'} from now on: servers have those that "
            "need gradients when the job starts. Expected another rate of its group by the scheduler; "
            "or a loss that does not depend on it; or a second job with state=result.state_dict()."
        )

    def _new(self, module: nn.Module) -> str:
        known = {kept.key for kept in self._buffers if kept.module is module}
        key = next((key for key in reversed(module._buffers) if key not in known), "?")
        return f"{self._named[id(module)]}.{key}".lstrip(".")


_REMEDY = (
    "a buffer that changes in the first step, with its shape as it is, is averaged over the shards; "
    "a cache that is filled once: call the model once before start"
)


def check_untouched(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ChangedError if a parameter has a gradient before its loss is returned."""
    for name, p in named:
        if p.grad is not None:
            raise ChangedError(
                f"'{name}' has a gradient before the loss is returned: the loss calls backward() itself, and workers "
                "would drop that gradient. Return the sum of all losses."
            )


_OF_PARAMETERS = (
    "nn.Embedding without max_norm, no writing to parameters in forward or in a loop: "
    "optimizer.register_step_post_hook clamps or normalizes them after each update"
)
PROBED: Final = 256
"""Numbers of a parameter that are compared, about."""


def _probe(p: Tensor) -> bytes:
    """Return some numbers of a parameter, the first one and others at equal distances."""
    import torch

    distance = max(1, p.numel() // PROBED)
    if p.device.type == "cpu" and p.dtype != torch.bfloat16:
        return p.detach().numpy().reshape(-1)[::distance].tobytes()
    some = p.detach().reshape(-1)[::distance].cpu()
    return (some.float() if some.dtype == torch.bfloat16 else some).numpy().tobytes()


def _refusal(what: str, remedy: str) -> ChangedError:
    return ChangedError(
        f"{what} of the model is changed by the forward pass: each worker would have its own, and the result would "
        f"depend on how many there are. Keep what changes out of the model ({remedy})."
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    import torch

    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


MOST_METRICS: Final = 50
NAME_CHARS: Final = 60
"""Longest name of a metric."""


class SampleLoss:
    """Computes the loss of samples: the same bits on every worker, for any number of workers.

    `precision`: "bf16" or "fp16": the forward pass and the loss run under `torch.autocast`.
    """

    def __init__(
        self, program: Program, *, device: str, seed: int, precision: str = FLOAT32, moving: Collection[str] = ()
    ) -> None:
        self._program, self._device, self._seed, self._precision = program, device, seed, precision
        self._constant = ForwardGuard(program.model, moving=moving)
        self._takes = clock_of(program.loss)
        # metrics that the loss function returned beside the loss, of the samples that were computed last
        self.metrics: dict[str, float] = {}
        # weight of these samples if the loss function returned (sum of losses, weight); None: it returned their mean
        self.weight: float | None = None

    def seed_at(self, place: tuple[int, int]) -> None:
        """Seed the random generators: what is drawn then depends on the job's seed and `place` only."""
        seed_all(hash((self._seed, *place)) & 0x7FFFFFFF)

    def __call__(
        self, samples: list[int], place: tuple[int, int], *, step: int = 0, epoch: int = 0, loader: Loader | None = None
    ) -> Tensor:
        """Return the loss of samples; random numbers in data and model depend on the job's seed and `place` only.

        A loss function that has arguments named `step` and `epoch` gets them. With `loader` it has the samples. Raise
        InputError if the loss is not a scalar with a gradient, or the forward pass has changed the model.
        """
        states = None
        if loader is not None:
            batch, states = loader.get(place)
        self.seed_at(place)
        self._constant.begin()
        if loader is None:
            batch = self._program.batch(samples)
        elif states is not None:
            set_states(states)
        if self._device != "cpu":
            batch = moved(batch, self._device)
        with cast(self._device, self._precision):
            returned = self._program.loss(self._program.model, batch, **self._takes(step=step, epoch=epoch))
        self._constant.check()
        loss, self.weight, self.metrics = parted(returned)
        return checked(loss)


def clock_of(loss: Callable[..., Any]) -> Callable[..., dict[str, int]]:
    """Return a function of step and epoch that returns those that a loss function has arguments for.

    >>> clock_of(lambda model, batch, step: 0)(step=3, epoch=1)
    {'step': 3}
    """
    try:
        names = set(inspect.signature(loss).parameters) & {"step", "epoch"}
    except (TypeError, ValueError):
        names = set()
    return lambda **clock: {name: clock[name] for name in clock if name in names}


def cast(device: str, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a forward pass: `torch.autocast` to bfloat16 or float16, or none."""
    if precision == FLOAT32:
        return contextlib.nullcontext()
    import torch

    return torch.autocast(torch.device(device).type, dtype={BF16: torch.bfloat16, FP16: torch.float16}[precision])


LOSS_SCALE, LEAST_SCALE = 2.0**16, 2.0**-24
"""By which a loss of float16 is multiplied at first, as by `torch.amp.GradScaler`, and at least."""


def backward(loss: Tensor, gradients: Callable[[], list[Tensor]], *, precision: str = FLOAT32) -> None:
    """Compute the gradients of a loss; of float16 numbers those of the loss times a scale, divided by it.

    The scale is halved until all gradients are finite, which depends on the samples alone, so no update is skipped and
    every worker has the same bits. `gradients`: returns what `backward` has written.
    """
    import torch

    if precision != FP16:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    scale = LOSS_SCALE if bool(loss.detach().isfinite()) else LEAST_SCALE
    while True:
        (loss * scale).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        found = gradients()
        if scale <= LEAST_SCALE or all(bool(each.isfinite().all()) for each in found):
            torch._foreach_mul_(found, 1 / scale)
            return
        torch._foreach_zero_(found)
        scale /= 2


@contextlib.contextmanager
def without_scaler() -> Iterator[None]:
    """Make an active gradient scaler raise ChangedError, since no server would unscale its gradients."""
    from torch.amp import GradScaler

    scale = GradScaler.scale

    def refuse(scaler: Any, outputs: Any) -> Any:
        if scaler.is_enabled():
            raise ChangedError(
                "the loss is multiplied by a GradScaler, and no server divides by its factor; expected the loss, "
                "and precision='fp16', which scales by itself, or 'bf16', which needs no scale."
            )
        return outputs

    GradScaler.scale = refuse  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        GradScaler.scale = scale  # type: ignore[method-assign]


class LossParts(NamedTuple):
    """What a loss function returned: a mean, or with `weight` a sum of losses; and metrics by name."""

    loss: Any
    weight: float | None
    metrics: dict[str, float]


def parted(returned: Any) -> LossParts:
    """Return the parts of a loss: loss, (loss, metrics), (loss_sum, weight), or (loss_sum, weight, metrics).

    >>> parted((0.5, {"accuracy": 1}))
    LossParts(loss=0.5, weight=None, metrics={'accuracy': 1.0})
    >>> parted((6.0, 4)).weight
    4.0

    Raises
    ------
    InputError
        If it is none of these, a metric has no name, or weight or metric are not one number.
    """
    loss, *rest = returned if isinstance(returned, tuple) else (returned,)
    metrics = rest.pop() if rest and isinstance(rest[-1], Mapping) else {}
    if len(rest) > 1:
        raise InputError(
            f"the loss is a tuple of {len(returned)}; expected a loss, (loss, metrics by name), (sum of losses, "
            "weight), or (sum of losses, weight, metrics)."
        )
    if len(metrics) > MOST_METRICS:
        raise InputError(f"{len(metrics)} metrics beside the loss; expected {MOST_METRICS} at most.")
    weight = _weight(rest[0]) if rest else None
    return LossParts(loss, weight, {_named(name): _number(name, value) for name, value in metrics.items()})


def _weight(value: Any) -> float:
    try:
        weight = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise InputError(f"the weight beside the loss is {value!r:.80}; expected one number, 0 or more.")
    return weight


def _named(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS or name == "loss":
        raise InputError(f"a metric {name!r:.80}; expected a name of 1 to {NAME_CHARS} characters, and not 'loss'.")
    return name


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        described = (
            f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
        )
        raise InputError(f"metric '{name}' is {described}; expected one number, the mean over the batch.") from None


def moved(batch: Any, device: str) -> Any:
    """Return a batch on another device: a tensor, or mappings, tuples, lists and dataclasses of them.

    >>> moved({"words": [1, 2], "name": "a"}, "cpu")
    {'words': [1, 2], 'name': 'a'}
    """
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(moved(part, device) for part in batch)
    if isinstance(batch, MutableMapping):
        there = copy.copy(batch)
        there.update({key: moved(part, device) for key, part in batch.items()})
        return there
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: moved(getattr(batch, f.name), device) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch


def checked(loss: Any) -> Tensor:
    """Return a loss if it is one number with a gradient; InputError if it is not."""
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        described = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InputError(f"the loss is {described}; expected a tensor of one number, the mean over the batch.")
    if not loss.requires_grad:
        raise InputError(
            "the loss has no gradient: expected one that is computed of the model's parameters, not detached, not "
            "under torch.no_grad(), and without a call of backward()."
        )
    return loss
