"""The proof at the start of a job: that pickling and sharding change no gradient, computed in a copy of this process.

A forked child is the copy: it has the model, the data and the loss as the user has them, hooks and open files included,
and whatever it does to them is gone with it. If it crashes or hangs, nothing is proved, and the job says so.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError, unknown
from labkit.elastic.controller.losses import NotFiniteError
from labkit.elastic.errors import ChangedError
from labkit.elastic.forked_copy import Proof, caught, in_a_copy, restored
from labkit.elastic.loading import Samples, check_length, generator_state, seed_all
from labkit.elastic.protocol.blocks import trained
from labkit.elastic.protocol.program import BF16, FLOAT32, FP16, Program, hook_name
from labkit.elastic.server.optimizers import TORCH
from labkit.elastic.worker.forward import (
    ForwardGuard,
    LossParts,
    SampleLoss,
    cast,
    check_untouched,
    checked,
    clock_of,
    parted,
    without_scaler,
)

if TYPE_CHECKING:
    from labkit.elastic.protocol.program import Spec

REFUSE, TELL, OFF = "refuse", "tell", "off"
"""What `start(proof=...)` does about a difference; off: it does not look."""
MOST_S: Final = 60.0
"""Longest time for a proof, in seconds."""
TOLERANCES: Final = {FLOAT32: 1e-3, BF16: 5e-2, FP16: 5e-2}
"""Relative difference of gradients that rounding explains, by precision."""
SCALES: Final = (1e-3, 1.0, 1e3)
"""Of gradients with which hooks are tried."""
NOISE: Final = 4.0
"""Times the difference between two random seeds that a gradient which depends on random numbers may differ."""
MOST_NAMED: Final = 3
"""Attributes that a line names."""
NO_FORK: Final = "fork-based multiprocessing"
"""In torch's error where a process that has used a GPU's threads was forked."""

Gradient = NDArray[np.float64]


def proved(program: Program, pickled: Path, spec: Spec, *, how: str) -> str:
    """Check the program of a job, as it is here and as it was pickled; return one line about what was checked.

    Raise InputError if a gradient differs, and `how` is "refuse". `pickled`: the same, pickled for workers. `how`:
    "refuse", "tell" or "off".
    """
    if how == OFF:
        return "nothing was proved: proof='off'"
    report = in_a_copy(lambda: _Checks(program, pickled, spec).run(), timeout_s=min(MOST_S, spec.patience_s))
    if NO_FORK in report.summary:
        with restored():
            report = caught(lambda: _Checks(None, pickled, spec).run())
    if report.fault and how == REFUSE:
        raise InputError(report.fault)
    return f"differs: {report.fault}" if report.fault else report.summary


class _Checks:
    """The checks of one program, in the process that may be spoilt.

    `program`: as the user gave it; None: only as it was pickled.
    """

    def __init__(self, program: Program | None, pickled: Path, spec: Spec) -> None:
        self._spec, self._given, self._pickled = spec, program, pickled
        self._n_shards = spec.n_shards if spec.sync else 1
        self._noisy = self._batch_norms = self._halves = False
        self._untouched: list[str] = []
        self._changing: list[str] = []
        self._order: Samples | None = None
        self._buffers: dict[str, Any] = {}
        self._in_training = ""

    def run(self) -> Proof:
        """Return the report of all checks; the first difference ends them."""
        import torch

        torch.set_num_threads(1)
        loaded = Program.read(self._pickled)
        own = loaded if self._given is None else self._given.here
        self._own = own
        modes = [(module, module.training) for module in own.model.modules()]
        self._batch_norms = any(training and "BatchNorm" in type(module).__name__ for module, training in modes)
        own.model.eval()
        loaded.model.eval()
        fault = "" if self._given is None else self._pickling(own, loaded)  # first: data may count what it is asked for
        for module, training in modes:
            module.training = training
        fault = fault or self._forward_pass(own) or self._synchronized(modes) or self._hooked(own)
        own.model.eval()
        if self._n_shards > 1:
            fault = fault or self._sharding(own) or self._sharding_in_training(own, modes)
        fault = fault or self._order_differs(own)
        own.model.eval()
        parts = [
            *(["pickling changes no bit of a gradient"] if self._given is not None else []),
            self._about_shards(own),
            self._in_training,
            self._about_buffers(own),
            self._about_untouched(),
            self._about_changing(),
        ]
        return Proof(f"proved in evaluation mode: {', '.join(filter(None, parts))}", fault)

    def _synchronized(self, modes: Sequence[tuple[Any, bool]]) -> str:
        """Return that a module asks for statistics of the whole batch, which shards do not have; "" if none does."""
        if self._n_shards == 1 or not any(on and type(module).__name__ == "SyncBatchNorm" for module, on in modes):
            return ""
        return (
            f"the model has SyncBatchNorm, and {self._n_shards} shards: they are computed apart, and none waits for "
            "the others' statistics. Expected shards=1, which has those of the whole batch; or nn.BatchNorm."
        )

    def _hooked(self, program: Program) -> str:
        """Return which hook of a parameter, as scripts may have, is not additive; "" if none of several shards is."""
        import torch

        if self._n_shards == 1:
            return ""
        of_parameters = (
            (name, p, hook) for name, p in trained(program.model) for hook in (p._backward_hooks or {}).values()
        )
        for name, p, hook in of_parameters:
            for scale in SCALES:
                a, b = (scale * torch.randn_like(p) for _ in range(2))
                made = [hook(each.clone()) for each in (a, b, a + b)]
                left, right, both = (own if out is None else out for own, out in zip((a, b, a + b), made, strict=True))
                if float((left + right - both).norm()) > TOLERANCES[FLOAT32] * float(both.norm() + left.norm()):
                    return (
                        f"parameter '{name}' has the hook {hook_name(hook)}, which makes of the sum of two gradients "
                        f"another one than the sum of what it makes of each: it sees those of {self._n_shards} shards, "
                        "one by one. Expected clip_value= or clip_norm=, which limit that of the batch; or shards=1."
                    )
        return ""

    def _about_buffers(self, program: Program) -> str:
        """Return what differs from one process for buffers that forward changes; BatchNorm has a line of its own."""
        modules = dict(program.model.named_modules())
        moving = sorted(self._spec.moving - set(self._spec.per_shard))
        names = [name for name in moving if "BatchNorm" not in type(modules[name.rpartition(".")[0]]).__name__]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        if not names or self._n_shards == 1:
            return ""
        return f"buffers that the forward pass changes are averaged over shards: {', '.join(names[:MOST_NAMED])}{more}"

    def _about_untouched(self) -> str:
        """Return what differs from torch for parameters without a gradient, which an optimizer of torch skips."""
        if not self._untouched or self._spec.optimizer == TORCH:
            return ""
        more = f" and {len(self._untouched) - 1} more" if len(self._untouched) > 1 else ""
        return (
            f"'{self._untouched[0]}'{more} without a gradient: its optimizer has zeros here, where torch would skip it"
        )

    def _about_changing(self) -> str:
        """Return what differs from one process for attributes that the forward pass changes, such as counters."""
        names = self._named_changes()
        return f"{names} changes in the forward pass, and is of its own in each worker" if names else ""

    def _about_shards(self, program: Program) -> str:
        if self._n_shards == 1:
            return ""
        n = self._n_shards
        kind = "sums by weights" if self._loss(program, self._samples(0), 0).weight is not None else "mean"
        size = self._spec.batch // n
        finding = f"the {kind} of {n} shards of {size} samples has the gradient of their batch"
        finding += ", as far as its random numbers let one see" if self._noisy else ""
        alone = f"; BatchNorm normalizes {size} samples at a time (shards=1: {size * n}), its statistics are averaged"
        return f"{finding}{alone if self._batch_norms else ''}"

    def _forward_pass(self, program: Program) -> str:
        """Return what a forward pass in training mode changes for the passes after it; "" for nothing.

        A shard is computed, then another one, then the first one again, with the same buffers and random numbers.
        """
        program.train()
        loss = SampleLoss(
            program, device="cpu", seed=self._spec.seed, precision=self._spec.precision, moving=self._spec.moving
        )
        other, order = (0, 1) if self._n_shards > 1 else (1, 0), self._ordered()
        order.begin(0)
        before, buffers, rows = _attributes(program), {name: b.clone() for name, b in program.model.named_buffers()}, []
        for place in ((0, 0), other, (0, 0)):
            order.begin(1)  # a worker that comes later begins with this one, and may go back to an earlier step
            samples = self._samples(place[1], step=place[0])
            _set_buffers(program.model, buffers)
            rows.append(_backward(program, partial(loss, samples, place)))
        self._changing = _changes(before, program)
        check_length(program.data, self._spec.n_samples)
        _check_aliases(program.model)
        if all(np.array_equal(a, b, equal_nan=True) for a, b in zip(rows[0], rows[2], strict=True)):
            return ""
        return (
            f"the same samples have another gradient the second time (loss {float(rows[0][0]):.6g}, then "
            f"{float(rows[2][0]):.6g}), with the same buffers and random numbers: {self._about_state()}"
        )

    def _about_state(self) -> str:
        return (
            f"what {self._named_changes() or 'the program'} counts or draws, or reads from the clock, would be of its "
            "own in each worker. Expected generators of torch, numpy and Python, whose seeds are set for each shard; a "
            "buffer of the model; or loss(model, batch, step), job.update in a script's loop."
        )

    def _named_changes(self) -> str:
        return ", ".join(self._changing[:MOST_NAMED])

    # --- pickling

    def _pickling(self, own: Program, loaded: Program) -> str:
        """Return how a gradient of the model differs after it was pickled and loaded; "" if no bit does."""
        attributes = _attributes(own)
        before, after = (self._gradients(program, self._samples(0), 0)[0] for program in (own, loaded))
        for i, (name, _) in enumerate(trained(own.model)):
            a, b = before[i], after[i]
            if not np.array_equal(a, b, equal_nan=True):
                if not np.array_equal(a, self._gradients(own, self._samples(0), 0)[0][i], equal_nan=True):
                    self._changing = _changes(attributes, own)
                    return f"the same samples have another gradient of '{name}' the second time: {self._about_state()}"
                return (
                    f"the gradient of '{name}' is another one after the program was pickled for its workers "
                    f"(norm {np.linalg.norm(a):.4g} before, {np.linalg.norm(b):.4g} after): what it depends on is lost "
                    "on the way. Keep it in the model, the data or the loss, as attributes that pickle keeps."
                )
        return ""

    # --- the order of samples

    def _order_differs(self, program: Program) -> str:
        """Return how the order of an epoch depends on the model, or on what was asked before; "" if it does not.

        The model is spoilt.
        """
        import torch

        orders = []
        for _ in range(2 if hasattr(program.data, "order") else 0):
            orders.append(program.data.order(1, self._spec.seed))
            for _, p in trained(program.model):
                torch.nn.init.normal_(p)
        if not orders or isinstance(orders[0], range) or np.array_equal(*orders):
            return ""
        return (
            "the sampler has another order of an epoch when it is asked again, or when the model has changed: a worker "
            "that comes later would have that one. Expected an order that depends on seed and set_epoch alone."
        )

    # --- sharding

    def _sharding(self, program: Program) -> str:
        """Return how the batch's gradient differs from that of its shards; "" if it does not.

        Losses of the whole batch are compared, which a forward pass gives, and gradients of two shards; if one of the
        two differs, gradients of all shards show by how much.
        """
        apart = self._differs(program, 2) or self._losses_differ(program)
        return self._outcome(program) if apart else ""

    def _sharding_in_training(self, program: Program, modes: Sequence[tuple[Any, bool]]) -> str:
        """Return how the gradients differ where modules of the user's own are in training mode; "" if they do not.

        Layers of torch stay in evaluation mode: dropout, BatchNorm. Nothing more is done where a loss stays the same.
        """
        statistics = {name.rpartition(".")[0] for name in self._spec.moving}
        modules = [(name, module) for name, module in program.model.named_modules() if not _is_layer_of_torch(module)]
        own_statistics = [module for name, module in modules if name in statistics]
        buffers = program.model.named_buffers()
        self._buffers = {name: buffer.clone() for name, buffer in buffers if name in self._spec.moving}
        try:
            before = self._loss(program, self._samples(0), 0).loss
            for module, training in modes:
                module.training = training and not _is_layer_of_torch(module)
            if before.equal(self._loss(program, self._samples(0), 0).loss):
                return ""
            self._in_training = "in training mode, too (dropout off)"
            if not (fault := self._sharding(program)):
                return ""
            for module in own_statistics:
                module.training = False
            if not own_statistics or self._sharding(program):
                return f"in training mode {fault}"
        except ChangedError:
            raise
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            self._in_training = f"not proved in training mode, which changes the loss: {why}"
            return ""
        names = ", ".join(dict.fromkeys(type(module).__name__ for module in own_statistics))
        self._in_training = (
            f"in training mode {names} sees one shard at a time, as BatchNorm does (shards=1: the batch)"
        )
        return ""

    def _combined(self, program: Program, n: int) -> tuple[Gradient, Gradient]:
        """Return the gradients of the first n shards combined as servers do, and that of their union."""
        rows = [self._whole(program, self._samples(leaf), leaf) for leaf in range(n)]
        shards: Gradient = np.add.reduce([gradient for gradient, _ in rows]) / divisor([weight for _, weight in rows])
        return shards, self._of_union(program, n, 0)

    def _of_union(self, program: Program, n: int, place: int) -> Gradient:
        """Return the gradient of the first n shards' samples at once; another place draws other random numbers."""
        union, weight = self._whole(program, self._samples(*range(n)), place)
        return union / divisor([weight])

    def _differs(self, program: Program, n: int) -> bool:
        shards, union = self._combined(program, n)
        scale = max(float(np.linalg.norm(each)) for each in (shards, union))
        return self._is_apart(
            float(np.linalg.norm(shards - union)), scale,
            lambda: float(np.linalg.norm(self._of_union(program, n, self._n_shards) - union)),
        )  # fmt: skip

    def _losses_differ(self, program: Program) -> bool:
        n = self._n_shards
        rows = [self._loss(program, self._samples(leaf), leaf) for leaf in range(n)]
        values = [float(row.loss.detach()) for row in rows]
        total = divisor([row.weight for row in rows])
        everything = self._samples(*range(n))

        def mean(place: int) -> float:
            whole = self._loss(program, everything, place)
            return float(whole.loss.detach()) / divisor([whole.weight])

        union, scale = mean(0), max(map(abs, values)) * n / total
        return self._is_apart(abs(sum(values) / total - union), scale, lambda: abs(mean(n) - union))

    def _is_apart(self, difference: float, scale: float, noise: Callable[[], float]) -> bool:
        """Return whether a difference is larger than rounding, and what other random numbers would make, explain."""
        if not math.isfinite(difference):
            raise NotFiniteError("a loss or a gradient is not finite")
        tolerance = TOLERANCES[BF16 if self._halves else self._spec.precision]
        if difference <= tolerance * scale:
            return False
        self._noisy = difference <= tolerance * scale + NOISE * noise()
        return not self._noisy

    def _outcome(self, program: Program) -> str:
        n, size = self._n_shards, self._spec.batch // self._n_shards
        shards, union = self._combined(program, n)
        norms = float(np.linalg.norm(shards)), float(np.linalg.norm(union))
        cosine = float(shards @ union) / (norms[0] * norms[1] or 1.0)
        apart = float(np.linalg.norm(shards - union)) / (norms[1] or 1.0)
        if apart <= TOLERANCES[FLOAT32]:
            what = f"the losses of {n} shards and that of their batch differ, their gradients do not"
            return f"{what}: {self._about_state()}"
        batch_norm = any(
            "BatchNorm" in type(module).__name__ and not getattr(module, "track_running_stats", False)
            for module in program.model.modules()
        )
        hint = "; nn.BatchNorm sees one shard: shards=1, or nn.GroupNorm" if batch_norm else ""
        return (
            f"the loss is no plain mean over samples: {n} shards of {size} samples together do not have the gradient "
            f"of their batch (cosine {cosine:.3f}, norms {norms[0]:.4g} and {norms[1]:.4g}, {apart:.2g} of it apart). "
            "Return (sum of losses, sum of weights) instead of their quotient; where samples are compared with each "
            f"other, shards=1{hint}."
        )

    # --- gradients

    def _ordered(self) -> Samples:
        if self._order is None:
            self._order = Samples(self._own.data, self._spec)
        return self._order

    def _samples(self, *leaves: int, step: int = 0) -> list[int]:
        return [i for leaf in leaves for i in self._ordered().of(step, leaf, n_shards=self._n_shards)]

    def _loss(self, program: Program, samples: Sequence[int], place: int) -> LossParts:
        seed_all(hash((self._spec.seed, 0, place)) & 0x7FFFFFFF)
        _set_buffers(program.model, self._buffers)
        batch = program.batch(list(samples))
        with cast("cpu", self._spec.precision), same_rows() as rows, without_scaler(), _keeping_modes():
            parts = parted(program.loss(program.model, batch, **clock_of(program.loss)(step=0, epoch=0)))
        self._halves |= rows.has_halves
        return parts._replace(loss=checked(parts.loss))

    def _gradients(self, program: Program, samples: Sequence[int], place: int) -> tuple[list[Any], float | None]:
        weights: list[float | None] = []

        def loss() -> Any:
            parts = self._loss(program, samples, place)
            weights.append(parts.weight)
            return parts.loss

        _, *gradients = _backward(program, loss)
        self._untouched = [name for name, p in trained(program.model) if p.grad is None]
        return gradients, weights[0]

    def _whole(self, program: Program, samples: Sequence[int], place: int) -> tuple[Gradient, float | None]:
        rows, weight = self._gradients(program, samples, place)
        return np.concatenate([row.ravel() for row in rows]).astype(np.float64), weight


def _backward(program: Program, loss: Callable[[], Any]) -> list[Any]:
    """Return a loss and the gradient of each parameter, zeros where there is none.

    Raise ChangedError if the loss has made gradients itself, which workers would drop.
    """
    import torch

    named = trained(program.model)
    for _, p in named:
        p.grad = None
    value = loss()
    check_untouched(named)
    value.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for _, p in named]
    return [value.detach().numpy().copy(), *(grad.numpy() for grad in grads)]


def _is_layer_of_torch(module: Any) -> bool:
    """Return whether a module is a layer of torch, or a dropout or normalization derived from one of these."""
    from torch.nn.modules import batchnorm, dropout

    alone = type(module).__module__.startswith("torch.") and not any(True for _ in module.children())
    return alone or isinstance(module, batchnorm._NormBase | dropout._DropoutNd)


def _check_aliases(model: Any) -> None:
    """Raise ChangedError where a tensor that is no parameter lies in the memory of one after a forward pass."""
    import torch

    def memory(tensor: Any) -> int:
        return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided and tensor.numel() else 0

    owners = {memory(p): name for name, p in model.named_parameters() if memory(p)}
    for name, module in model.named_modules():
        for key, value in {**vars(module), **module._buffers}.items():
            if (
                isinstance(value, torch.Tensor)
                and not isinstance(value, torch.nn.Parameter)
                and memory(value) in owners
            ):
                raise ChangedError(
                    f"{key} of {name or 'the model'} is a tensor in the memory of parameter '{owners[memory(value)]}': "
                    "workers would have a copy that stays as it is. Take the parameter itself in forward."
                )


def _set_buffers(model: Any, kept: Mapping[str, Any]) -> None:
    """Set the buffers that have their shape still."""
    import torch

    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in kept and buffer.shape == kept[name].shape and not buffer.requires_grad:
                buffer.copy_(kept[name])


def _attributes(program: Program) -> dict[str, Any]:
    """Return numbers, tensors' numbers and lengths that modules, loss and data have as attributes, by name.

    Of a script those of the files beside it, too.
    """
    holders = {name: vars(module) for name, module in program.model.named_modules()}
    beside = getattr(getattr(program.loss, "script", None), "beside", ())
    holders |= {name: vars(sys.modules[name]) for name in beside if name in sys.modules}
    holders |= {"loss": _variables(program.loss), "data": getattr(program.data, "__dict__", {})}
    holders["data"] = {**holders["data"], **getattr(holders["data"].get("dataset"), "__dict__", {})}
    return {
        f"{holder}.{key}" if holder else key: state
        for holder, values in holders.items()
        for key, value in values.items()
        if key != "training" and not key.startswith("__") and (state := _state(value)) is not None
    }


def _changes(before: Mapping[str, Any], program: Program) -> list[str]:
    """Return the names of attributes that have changed, and of variables that the body of a script's loop changes."""
    now = _attributes(program)
    return [name for name, value in now.items() if before.get(name, value) != value] + [
        *getattr(program.loss, "changed", ())
    ]


def _variables(function: Any) -> dict[str, Any]:
    """Return the attributes of an object, or the variables of others that a function reads."""
    code = getattr(function, "__code__", None)
    if code is None:
        return getattr(function, "__dict__", {})
    known = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    with contextlib.suppress(ValueError):  # a cell that is empty yet
        known |= dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
    return known


def _state(value: Any) -> Any:
    """Return what shows whether a number, a tensor, a collection or a generator has changed; None: anything else."""
    import torch

    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        return None if isinstance(value, torch.nn.Parameter) else repr(value)
    return len(value) if isinstance(value, list | dict | set | deque) else generator_state(value)


def divisor(weights: Sequence[float | None]) -> float:
    """Return the divisor of a sum over shards: the sum of their weights, or their number; 1 where that is 0.

    >>> divisor([None, None]), divisor([2.0, 6.0]), divisor([0.0])
    (2.0, 8.0, 1.0)
    """
    return (float(len(weights)) if weights[0] is None else sum(weight or 0.0 for weight in weights)) or 1.0


@contextlib.contextmanager
def _keeping_modes() -> Iterator[None]:
    """Let `train()` and `eval()` have no effect: the proof looks at a loss in modes of its own."""
    from torch import nn

    train = nn.Module.train
    nn.Module.train = lambda module, mode=True: module  # type: ignore[method-assign, assignment]  # noqa: ARG005
    try:
        yield
    finally:
        nn.Module.train = train  # type: ignore[method-assign]


def same_rows() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which random tensors have equal rows, the same for a shard as for the batch.

    A row is drawn by the number of the call. So noise of a model makes no difference between shards and their union,
    and what else does is seen. Functions with dropout have none.
    """
    import torch
    from torch.nn.functional import batch_norm
    from torch.overrides import TorchFunctionMode

    uniform = {torch.rand, torch.rand_like}
    drawing = {torch.randn, torch.randn_like, *uniform}

    class SameRows(TorchFunctionMode):
        n = 0
        has_halves = False  # whether numbers of two bytes were seen

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            off = {"training": False, "dropout_p": 0.0} if function is not batch_norm else {}
            kwargs = {name: off.get(name, value) for name, value in (kwargs or {}).items()}
            drawn = function(*args, **kwargs)
            self.has_halves |= getattr(drawn, "dtype", None) in (torch.bfloat16, torch.float16)
            own = kwargs.get("generator") is not None  # of the program: it draws the same again
            if own or function not in drawing or not drawn.ndim or not drawn.is_floating_point():
                return drawn
            self.n += 1
            row = torch.empty(drawn.shape[1:], dtype=drawn.dtype)
            draws = row.uniform_ if function in uniform else row.normal_
            with torch.no_grad(), torch._C.DisableTorchFunction():
                draws(generator=torch.Generator().manual_seed(self.n))
                return drawn.copy_(row.expand_as(drawn)) if not drawn.requires_grad else drawn

    return SameRows()


# --- buffers that change


def moving_buffers(program: Program, spec: Spec) -> list[str]:
    """Return the names of the buffers that a forward pass in training mode changes, found in a copy of this process.

    Where the copy fails, those of modules that track running statistics: the workers' own checks find the others.
    `spec`: of the job: its batch, shards, seed and precision.
    """
    modules = dict(program.model.named_modules())
    if not any(module._buffers for module in modules.values()):
        return []

    def changed() -> Proof:
        import torch

        torch.set_num_threads(1)
        own = program.here
        own.train()
        guard = ForwardGuard(own.model)
        everything = {name for name, _ in own.model.named_buffers()}
        loss = SampleLoss(own, device="cpu", seed=spec.seed, precision=spec.precision, moving=everything)
        loss(list(range(spec.batch // spec.n_shards)), (0, 0))
        return Proof(json.dumps([*guard.changed(), *tracked()]))

    def tracked() -> list[str]:
        """Return the running statistics of modules in training mode: another step may change them."""
        return [
            f"{name}.{key}" if name else key
            for name, module in modules.items()
            for key in module._buffers
            if getattr(module, "track_running_stats", False) and module.training
        ]

    found = in_a_copy(changed, timeout_s=min(MOST_S, spec.patience_s)).summary
    names = set(json.loads(found) if found.startswith("[") else tracked())
    return [name for name, _ in program.model.named_buffers() if name in names]


def buffer_shapes(
    model: Any, names: Sequence[str], *, per_shard: Sequence[str], n_shards: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and shape of buffers in the flat vector: those of each shard have a row for each.

    Raise InputError if the model has no buffer of a name in `per_shard`.
    """
    known = dict(model.named_buffers())
    for name in per_shard:
        if name not in known:
            raise unknown("buffer", name, known)
    own = set(per_shard)
    wanted = [name for name in known if name in own or name in names]
    return [(name, ((n_shards,) if name in own else ()) + tuple(known[name].shape)) for name in wanted]
