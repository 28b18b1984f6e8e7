"""The body of a script's loop: what it must leave to the job, looked for once in each process.

Servers have gradients, optimizers and schedulers. A body that clips gradients, sets a learning rate or averages weights
would do so in each worker, once for each shard, and what it made would be lost with the worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, Final

from labkit.elastic.errors import ChangedError
from labkit.elastic.worker.forward import without_scaler

DEPTH: Final = 3
"""How deep attributes and entries of a variable are looked at."""
MOST_ENTRIES: Final = 1000
"""Entries of a collection that are looked at."""
MOST_TOKENS: Final = 20_000
"""Tensors, numbers and options that are compared."""
MOST_NUMBERS: Final = 64
"""Numbers of a tensor that are compared."""
NOT_OF_USERS: Final = frozenset({"builtins", "torch", "numpy", "pandas", "labkit", "tqdm"})
"""Packages whose objects are not looked into."""
REMEDY: Final = (
    "job.step(loss) takes the place of zero_grad, backward, unscale_, clipping, optimizer.step and scheduler.step; "
    "clip_norm=, clip_value= and scheduler= are arguments"
)


class BodyCheck:
    """Compares the variables of a script before and after the body of its loop.

    Parameters
    ----------
    model : Module
        The model of the loop.
    skipped : object
        Objects that are not looked at: the loop, its samples.

    Attributes
    ----------
    changed : list of str
        Names of variables that the body changes for itself: counters, sums, lists.
    """

    def __init__(self, model: Any, *skipped: Any) -> None:
        self._model, self._skipped = model, {id(each) for each in skipped}
        self._owned = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
        self._shapes = {tuple(p.shape) for p in model.parameters() if p.requires_grad}
        self.changed: list[str] = []

    def around(self) -> Iterator[None]:
        """Yield to one body; raise ChangedError for what would be another training in a job."""
        variables = _variables()
        before = self._tokens_of(variables)
        hidden = self._hide_gradients()
        with without_scaler():
            yield
        self._take_gradients(hidden)
        now = _variables()
        numbers = {name: _plain(now[name]) for name, (kind, *_) in before.items() if kind == "number" and name in now}
        after = self._tokens_of(variables) | numbers
        for name, token in before.items():
            if after.get(name, token) != token:
                self._refuse_or_keep(name, token, after[name])

    def _tokens_of(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        pairs = (pair for name, value in variables.items() for pair in self._tokens(name, value))
        return dict(islice(pairs, MOST_TOKENS))

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

    def _hide_gradients(self) -> list[tuple[str, Any, Any]]:
        """Give each parameter a gradient that cannot be used, and return name, parameter and gradient."""
        import torch

        rows = []
        for name, p in self._model.named_parameters():
            if p.requires_grad:
                hidden = torch.zeros_like(p).as_subclass(_refusing())
                p.grad = hidden
                rows.append((name, p, hidden))
        return rows

    @staticmethod
    def _take_gradients(hidden: list[tuple[str, Any, Any]]) -> None:
        """Take them away; raise ChangedError if one was computed meanwhile."""
        import torch

        with torch._C.DisableTorchFunction():
            for name, p, own in hidden:
                grad, p.grad = p.grad, None
                if grad is not None and (grad is not own or bool(grad.count_nonzero())):
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
        elif isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            yield from _options(name, value)
        elif depth or isinstance(value, torch.nn.Module):
            for key, each in _entries(value):
                yield from self._tokens(f"{name}{key}", each, depth - 1)

    def _of_tensor(self, tensor: Any) -> Any:
        import torch

        kind = "weights" if tensor.ndim and tuple(tensor.shape) in self._shapes else "tensor"
        with torch.no_grad():
            dense = tensor.layout == torch.strided and tensor.device.type != "meta"
            numbers = repr(tensor.detach().reshape(-1)[:MOST_NUMBERS].tolist()) if dense else ""
        return kind, id(tensor), tensor._version, numbers


def _variables() -> dict[str, Any]:
    """Return the variables of the functions that go through the loop, and of the script's module, by name."""
    found: dict[str, Any] = {}
    frame: Any = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "labkit" and "site-packages" not in frame.f_code.co_filename:
            found = {**frame.f_locals, **found}
            if frame.f_globals.get("__name__") == "__main__":
                found = {**frame.f_globals, **found}
                break
        frame = frame.f_back
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _plain(value: Any) -> tuple[str, Any]:
    """Return what shows whether a number or a collection has changed."""
    return "number", len(value) if hasattr(value, "__len__") else repr(value)


def _options(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of an optimizer's groups, or the step of a scheduler."""
    if hasattr(value, "last_epoch"):
        yield f"{name}.last_epoch", ("option", value.last_epoch)
        return
    for number, group in enumerate(value.param_groups):
        for key, option in group.items():
            if key != "params":
                yield f"{name}.param_groups[{number}][{key!r}]", ("option", repr(option))


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Return the entries or attributes of an object, with what stands for them behind its name."""
    import torch

    if isinstance(value, torch.nn.Module):
        return [(f".{key}", each) for key, each in (*value.named_parameters(), *value.named_buffers())]
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

    described = {
        getattr(torch.Tensor, name).__get__ for name in ("dtype", "device", "shape", "layout", "requires_grad")
    }

    class Hidden(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in described:
                return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
            raise ChangedError(
                f"the body of the loop uses gradients of the model ({getattr(function, '__name__', function)}), which "
                f"servers add up: {REMEDY}."
            )

    return Hidden
