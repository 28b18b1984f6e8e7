"""The numbers of a model by name, `state_dict`, in and out: names and shapes must fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def load_state(model: nn.Module | Any, state: Mapping[str, Any] | Any) -> None:
    """Load a `state_dict` into a model.

    Raises
    ------
    InputError
        If it lacks a parameter or buffer of the model, has one more, or one of another shape; the model is unchanged
        then.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        return  # `check_model` says so
    if not isinstance(state, Mapping):
        kind = f"the path {str(state)!r}" if isinstance(state, str) else f"a {type(state).__name__}"
        raise InputError(f"state is {kind}; expected a state_dict: model.state_dict(), or torch.load(path).")
    known = model.state_dict()
    _check_names(known, state)
    _check_shapes(known, state)
    model.load_state_dict(state)


def _check_names(known: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name in known:
        if name not in state:
            raise InputError(f"state has no '{name}', which the model has.{_prefix_hint(name, state)}")
    for name in state:
        if name not in known:
            raise InputError(f"state has '{name}', which the model has not; expected {len(known)} names of the model.")


def _check_shapes(known: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name, tensor in known.items():
        shape, found = getattr(tensor, "shape", None), getattr(state[name], "shape", None)
        if shape != found:
            told = "nothing with a shape" if found is None else f"of shape {tuple(found)}"
            raise InputError(f"'{name}' of state is {told}; expected {tuple(shape or ())}, as in the model.")


def _prefix_hint(name: str, state: Mapping[str, Any]) -> str:
    """Return what to do if all names have a prefix that wrappers add."""
    for prefix in ("module.", "_orig_mod."):
        if prefix + name in state:
            return f" It has '{prefix}{name}': save the model inside its wrapper, or cut '{prefix}' off the names."
    return ""
