"""Hooks of a user's optimizer: on servers, which have no model, they reach parameters by their argument alone."""

from __future__ import annotations

import inspect
from functools import partial
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError

if TYPE_CHECKING:
    from torch.optim import Optimizer

DEPTH: Final = 3
MOST_LOOKED_AT: Final = 100
"""How deep, and at how many values of each thing, it is looked what a hook refers to."""


def check_hooks(optimizer: Optimizer) -> None:
    """Check that hooks of an optimizer's steps refer to no module, tensor or optimizer beside their argument.

    Raise InputError if one does.
    """
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        for hook in getattr(optimizer, hooks, {}).values():
            if name := _trained_in(hook, DEPTH):
                raise InputError(
                    f"a hook of optimizer {type(optimizer).__name__} uses {name}, which servers have not. Expected one "
                    "that uses its argument alone: optimizer.param_groups, and optimizer.state for what it keeps."
                )


def _trained_in(value: Any, depth: int) -> str:
    """Return the name of a module, tensor or optimizer that a function, or an object, refers to; "" for none."""
    from torch import Tensor, nn
    from torch.optim import Optimizer

    for name, each in islice(_references(value).items(), MOST_LOOKED_AT):
        if isinstance(each, nn.Module | Tensor | Optimizer):
            return f"'{name}'"
        if depth and (found := _trained_in(each, depth - 1)):
            return found
    return ""


def _references(value: Any) -> dict[Any, Any]:
    """Return what a function, or an object, refers to, by name."""
    if isinstance(value, partial):
        return {"func": value.func, **{f"argument {i}": each for i, each in enumerate(value.args)}, **value.keywords}
    if inspect.ismethod(value):
        return {"self": value.__self__, value.__name__: value.__func__}
    if inspect.isfunction(value):
        reached = inspect.getclosurevars(value)
        return {**reached.globals, **reached.nonlocals}
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    return {} if isinstance(value, type | ModuleType) else getattr(value, "__dict__", {})
