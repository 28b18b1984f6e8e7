"""The body of a script's loop: what it must leave to the job, looked for each time that it runs.

Servers have gradients, optimizers and schedulers. A body that clips gradients, sets a learning rate or averages weights
would do so in each worker, once for each shard, and what it made would be lost with the worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from labkit.elastic.errors import ChangedError
from labkit.elastic.loading import generator_state
from labkit.elastic.script_text import carried
from labkit.elastic.worker.forward import without_scaler

DEPTH: Final = 3
"""How deep attributes and entries of a variable are looked at."""
MOST_ENTRIES: Final = 1000
"""Entries of a collection that are looked at."""
MOST_TOKENS: Final = 20_000
"""Tensors, numbers and options that are compared."""
MOST_NUMBERS: Final = 64
"""Numbers of a tensor that are compared."""
ALL_OF_FIRST: Final = 16
"""Bodies after each of which all variables are compared; of later ones fewer and fewer are."""
RARER: Final = 1.25
"""By how much the number of bodies grows between two of these later comparisons."""
NOT_OF_USERS: Final = frozenset({"builtins", "torch", "numpy", "pandas", "labkit", "tqdm"})
"""Packages whose objects are not looked into."""
REMEDY: Final = (
    "job.step(loss) takes the place of zero_grad, backward, unscale_, clipping, optimizer.step and scheduler.step; "
    "clip_norm=, clip_value= and scheduler= are arguments"
)


class BodyCheck:
    """Compares what a script has before and after each body of its loop.

    Gradients, options of optimizers, modes and hooks are compared each time; variables of the script the first times,
    and then more and more rarely, as that takes as long as a small step.

    Parameters
    ----------
    model : Module
        The model of the loop.
    training : sequence
        Its optimizers, and its schedulers: one, several, or neither.
    data : object
        Its samples; that they stay as they are is looked at each time.
    skipped : object
        Objects that are not looked at: the loop.

    Attributes
    ----------
    changed : list of str
        Names of variables that the body changes for itself: counters, sums, lists, generators.
    n : int
        Bodies that were looked at.
    """

    def __init__(self, model: Any, training: Any, data: Any, *skipped: Any) -> None:
        self._model = model
        self._skipped = {id(each) for each in (data, getattr(data, "dataset", None), *skipped)}
        self._modules = list(model.named_modules())
        self._params = list(model.named_parameters())
        self._hidden: list[tuple[str, Any, Any]] = []
        those = [one_or_several(each) for each in training]
        self._optimizers = [each for each in those[0] if hasattr(each, "param_groups")]
        self._schedulers = [each for each in those[1] if hasattr(each, "last_epoch")]
        wholes = [(name, getattr(data, name, data)) for name in ("sampler", "dataset")]
        parts = (pair for whole in wholes for pair in _parts(*whole, DEPTH - 1))
        self._samples = {id(part): (name, part) for name, part in parts}.values()
        self._owned = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
        self._shapes = {tuple(p.shape) for p in model.parameters() if p.requires_grad}
        self.n, self._next, self._names = 0, ALL_OF_FIRST, frozenset[str]()
        self._last: dict[str, Any] = {}
        self._carried: dict[str, Any] = {}
        self.changed: list[str] = []

    def around(self, *, last: bool = False) -> Iterator[None]:
        """Yield to one body; raise ChangedError for what would be another training in a job.

        `last`: of the last update, when all variables are compared once more.
        """
        variables = self._compared(last=last)
        self._check_carried(variables)
        known = {name: value for name, value in variables.items() if name in self._names}
        before, options, hooks, modes = self._tokens_of(known), self._options(), self._hooks(), self._now()
        samples = self._of_samples()
        self._check_between(before)
        versions = self._hide_gradients()
        with without_scaler(), _without_steps():
            yield
        self._take_gradients(versions)
        now = _variables() if variables else {}
        numbers = {name: _plain(now[name]) for name, (kind, *_) in before.items() if kind == "number" and name in now}
        after = self._tokens_of(known) | numbers
        self._last = after or self._last
        for name, token in before.items():
            if after.get(name, token) != token and name not in self.changed:
                self._refuse_or_keep(name, token, after[name])
        self._check_carried(now)
        replaced = (name for name in now if name in variables and self._is_replaced(name, variables[name], now[name]))
        self.changed += [name for name in replaced if name not in self.changed]
        self._check_options(options)
        self._check_samples(samples)
        self._check_modes(modes)
        if self._hooks() != hooks:
            raise ChangedError(
                "the body of the loop adds or removes a hook of the model: workers that come later would not have it. "
                "Expected hooks of modules before the loop."
            )
        self.n += 1

    def _compared(self, *, last: bool) -> dict[str, Any]:
        """Return the variables to compare after this body; none of most."""
        if ALL_OF_FIRST < self.n < self._next and not last:
            return {}
        self._next = max(self._next, int(self.n * RARER) + 1)
        variables = _variables()
        self._names = self._names if self.n else frozenset(variables)
        return variables

    def _tokens_of(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        pairs = (pair for name, value in variables.items() for pair in self._tokens(name, value))
        return dict(islice(chain(self._numbers() if variables else (), pairs), MOST_TOKENS))

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        """Yield the numbers that modules of the model have as attributes, such as a temperature."""
        for name, module in self._modules:
            for key, value in vars(module).items():
                if isinstance(value, int | float) and key != "training" and not key.startswith("_"):
                    yield ".".join(filter(None, ("model", name, key))), ("attribute", repr(value))

    def _check_between(self, before: Mapping[str, Any]) -> None:
        """Look at what bodies changed since the last comparison: tensors in place, and numbers of the model."""
        for name, token in before.items():
            last = self._last.get(name, token)
            written = token[0] in ("weights", "tensor") and last[0] == token[0]
            in_place = written and last[1] == token[1] and token[2] > last[2]
            if (in_place or (token[0] == "attribute" and token != last)) and name not in self.changed:
                self._refuse_or_keep(name, last, token)

    def _check_carried(self, variables: Mapping[str, Any]) -> None:
        """Look at what bodies make anew of its earlier value, such as `average = 0.9 * average + 0.1 * weight`."""
        if not variables:
            return
        now = {name: variables[name] for name in carried(*_place_of_loop()) if name in variables}
        for name, value in now.items():
            if self._carried.get(name, value) is not value:
                for part, token in self._tokens(name, value):
                    if token[0] == "weights":
                        self._refuse_or_keep(part, token, token)
                self.changed += [name] if name not in self.changed else []
        self._carried = now

    def _of_samples(self) -> dict[str, Any]:
        """Return what shows whether attributes of the dataset, and of what it consists of, have changed."""
        return {
            f"{name}.{key}": _writes(value)
            for name, part in self._samples
            for key, value in vars(part).items()
            if not (key == "epoch" and hasattr(part, "set_epoch"))  # which the job has set before the body
        }

    def _check_samples(self, before: Mapping[str, Any]) -> None:
        now = self._of_samples()
        for name in now:
            if before.get(name) != now[name]:
                raise ChangedError(
                    f"the body of the loop changes {name}: each worker and loader has a dataset of its own, and loads "
                    "samples ahead. Expected set_epoch(epoch) of the dataset or sampler, which all of them call at the "
                    "beginning of an epoch."
                )

    def _options(self) -> tuple[list[list[dict[str, Any]]], list[int]]:
        """Return the options of the job's optimizers, and the steps of its schedulers."""
        groups = [[{**group, "params": None} for group in each.param_groups] for each in self._optimizers]
        return groups, [each.last_epoch for each in self._schedulers]

    def _check_options(self, before: tuple[list[list[dict[str, Any]]], list[int]]) -> None:
        now = self._options()
        if now != before:
            was, new = _by_name(*before), _by_name(*now)
            for name in was:
                if new.get(name) != was[name]:
                    self._refuse_or_keep(name, was[name], new.get(name, ("option", "none")))

    def _refuse_or_keep(self, name: str, before: Any, after: Any) -> None:
        if before[0] == "option":
            raise ChangedError(
                f"the body of the loop changes {name} ({before[1]}, then {after[1]}): servers have it as it was before "
                f"the loop. {REMEDY}."
            )
        if before[0] == "weights":
            raise ChangedError(
                f"the body of the loop changes {name}, a tensor of the shape of a parameter: each worker would have "
                "its own, and none would come back. Expected all that is trained in the model, such as "
                "nn.ModuleDict({'d': d, 'g': g}); an average of the weights after the optimizer's step, in a hook."
            )
        self.changed.append(name)

    def _is_replaced(self, name: str, before: Any, now: Any) -> bool:
        """Return whether a variable has another object, such as the best state, or is a count of the loop's own."""
        import torch

        if name not in self._names:  # it is of the body
            return type(before) is type(now) is int and now == before + 1
        left_out = torch.Tensor | bool | int | float | str | type
        return now is not before and not isinstance(now, left_out) and not isinstance(before, left_out)

    def _now(self) -> list[bool]:
        return [module.training for _, module in self._modules]

    def _check_modes(self, before: list[bool]) -> None:
        for (name, _), was, now in zip(self._modules, before, self._now(), strict=True):
            if was != now:
                raise ChangedError(
                    f"the body of the loop leaves {name or 'the model'} with training={now}: other batches of this "
                    f"worker alone would be computed so. Expected train({was}) at its end, or train({now}) before the "
                    "loop; to measure the model, validate=Validation(data, every=..., loss=f)."
                )

    def _hooks(self) -> int:
        """Return how many hooks parameters and modules have."""
        n = sum(len(p._backward_hooks or ()) for _, p in self._params)
        return n + sum(
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for _, m in self._modules
        )

    def _hide_gradients(self) -> list[int]:
        """Give each parameter a gradient that cannot be used, and return how often each of these was written to."""
        import torch

        self._hidden = self._hidden or [(name, p, _hidden(p)) for name, p in self._params if p.requires_grad]
        with torch._C.DisableTorchFunction():
            for _, p, hidden in self._hidden:
                p.grad = hidden
            return [hidden._version for _, _, hidden in self._hidden]

    def _take_gradients(self, versions: list[int]) -> None:
        """Take them away; raise ChangedError if one was computed meanwhile."""
        import torch

        with torch._C.DisableTorchFunction():
            for (name, p, hidden), version in zip(self._hidden, versions, strict=True):
                grad, p.grad = p.grad, None
                if grad is not None and (grad is not hidden or hidden._version != version):
                    raise ChangedError(f"the body of the loop computes a gradient of '{name}' itself: {REMEDY}.")

    def _tokens(self, name: str, value: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
        """Yield names of what a variable consists of, and what shows whether it has changed."""
        import torch

        if id(value) in self._skipped or id(value) in self._owned:
            return
        if isinstance(value, bool | int | float | list | set):
            yield name, _plain(value)
        if isinstance(value, torch.Tensor):
            yield name, self._of_tensor(value)
        elif (state := generator_state(value)) is not None:
            yield name, ("generator", state)
        elif isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            yield from _options_of(name, value)
        elif depth or isinstance(value, torch.nn.Module):
            for key, each in _entries(value):
                yield from self._tokens(f"{name}{key}", each, max(depth - 1, 0))

    def _of_tensor(self, tensor: Any) -> Any:
        import torch

        kind = "weights" if tensor.ndim and tuple(tensor.shape) in self._shapes else "tensor"
        with torch.no_grad():
            dense = tensor.layout == torch.strided and tensor.device.type != "meta"
            numbers = repr(tensor.detach().reshape(-1)[:MOST_NUMBERS].tolist()) if dense else ""
        return kind, id(tensor), tensor._version, numbers


def one_or_several(given: Any) -> list[Any]:
    """Return what was given as a list, or alone, as a list."""
    return list(given) if isinstance(given, list | tuple) else [given]


def _frames() -> Iterator[Any]:
    """Yield the frames of the functions that go through the loop, up to the script's module."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "labkit" and "site-packages" not in frame.f_code.co_filename:
            yield frame
            if frame.f_globals.get("__name__") == "__main__":
                return
        frame = frame.f_back


def _variables() -> dict[str, Any]:
    """Return the variables of the functions that go through the loop, and of the script's module, by name."""
    found: dict[str, Any] = {}
    for frame in _frames():
        found = {**frame.f_locals, **found}
        if frame.f_globals.get("__name__") == "__main__":
            found = {**frame.f_globals, **found}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _place_of_loop() -> tuple[str, int]:
    """Return the file and the line at which a script goes through the loop."""
    frame = next(_frames(), None)
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _parts(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a dataset, a loader or a sampler consists of, with names."""
    import torch

    module, _, rest = type(value).__module__.partition(".")
    known = module in NOT_OF_USERS and not rest.startswith("utils.data")
    if not known and not isinstance(value, torch.nn.Module | type) and hasattr(value, "__dict__"):
        yield name, value
        for key, each in list(vars(value).items())[:MOST_ENTRIES] if depth else ():
            yield from _parts(f"{name}.{key}", each, depth - 1)


def _writes(value: Any) -> tuple[Any, Any, Any]:
    """Return what shows whether an attribute is another object, or a tensor or list that was written to."""
    plain = isinstance(value, bool | int | float | str)
    n = len(value) if isinstance(value, list | set) else None
    return value if plain else id(value), getattr(value, "_version", None), n


def _plain(value: Any) -> tuple[str, Any]:
    """Return what shows whether a number or a collection has changed."""
    return "number", len(value) if hasattr(value, "__len__") else repr(value)


def _options(name: str, groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the options of an optimizer's groups."""
    yield f"{name}.param_groups", ("option", f"{len(groups)} groups")
    for number, group in enumerate(groups):
        for key, option in group.items():
            if key != "params":
                yield f"{name}.param_groups[{number}][{key!r}]", ("option", repr(option))


def _options_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of an optimizer, or the step of a scheduler."""
    if hasattr(value, "last_epoch"):
        yield _step(name, value.last_epoch)
    else:
        yield from _options(name, value.param_groups)


def _step(name: str, step: int) -> tuple[str, Any]:
    """Return the step of a scheduler as an option."""
    return f"{name}.last_epoch", ("option", step)


def _by_name(optimizers: Sequence[Sequence[Mapping[str, Any]]], schedulers: Sequence[int]) -> dict[str, Any]:
    """Return the options of the job's optimizers, and the steps of its schedulers, by name."""
    optimizer, scheduler = (
        [f"{name}s[{i}]" for i in range(len(those))] if len(those) > 1 else [name]
        for name, those in (("optimizer", optimizers), ("scheduler", schedulers))
    )
    named = {key: option for pair in zip(optimizer, optimizers, strict=True) for key, option in _options(*pair)}
    return named | dict(map(_step, scheduler, schedulers))


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Return the entries or attributes of an object, with what stands for them behind its name."""
    import torch

    if isinstance(value, torch.nn.Module):
        own = [(key, each) for key, each in vars(value).items() if not key.startswith("_")]
        own = [(key, each) for key, each in own if isinstance(each, torch.Tensor | Mapping | list)]
        return [(f".{key}", each) for key, each in (*value.named_parameters(), *value.named_buffers(), *own)]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", each) for key, each in list(value.items())[:MOST_ENTRIES]]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", each) for number, each in enumerate(value[:MOST_ENTRIES])]
    if type(value).__module__.partition(".")[0] in NOT_OF_USERS:
        return []
    return [(f".{key}", each) for key, each in getattr(value, "__dict__", {}).items()]


@cache
def _refusing() -> Any:
    """Return the class of a gradient that raises ChangedError when its numbers are used."""
    import torch
    from torch._guards import TracingContext

    described = {
        getattr(torch.Tensor, name).__get__
        for name in ("dtype", "device", "shape", "layout", "requires_grad", "grad_fn", "is_sparse", "_version")
    }
    clearing = {torch.Tensor.zero_, torch.Tensor.requires_grad_, torch._foreach_zero_}  # by zero_grad

    class Hidden(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in described or TracingContext.try_get() is not None:  # torch.compile looks at all
                return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
            if function in clearing:
                return args[0]
            raise ChangedError(
                f"the body of the loop uses gradients of the model ({getattr(function, '__name__', function)}), which "
                f"servers add up: {REMEDY}."
            )

    return Hidden


def _hidden(p: Any) -> Any:
    """Return a gradient for a parameter that refuses to be used; its zeros take no memory until they are written to."""
    import torch

    plain = p.device.type == "cpu" and p.dtype == torch.float32
    zeros = torch.from_numpy(np.zeros(tuple(p.shape), np.float32)) if plain else torch.zeros_like(p)
    return zeros.as_subclass(_refusing())


@contextmanager
def _without_steps() -> Iterator[None]:
    """Make a step of any optimizer raise ChangedError: one beside the job's would have no gradients yet."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def refuse(optimizer: Any, *_: Any) -> None:
        raise ChangedError(
            f"the body of the loop steps an optimizer ({type(optimizer).__name__}): {REMEDY}; what another optimizer "
            "trains is of the model, too, in a group or in optimizer=[a, b], which alternate."
        )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
