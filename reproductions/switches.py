"""A switch of a published form, as it is typed: `--set NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError, unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def read_switch(text: str, defaults: DataclassInstance, *, what: str) -> tuple[str, Any]:
    """Return the name and the value of a switch: "replay=0" -> "replay", 0.

    Raise InputError if there is no such switch, or its value cannot be.

    `defaults`: all switches, whose values tell their types; `what`: what it is a switch of, for the error.
    """
    known = asdict(defaults)
    name, equals, value = text.partition("=")
    name, value = name.strip().replace("-", "_"), value.strip()
    if name not in known:
        raise unknown(what, name, sorted(known))
    default = known[name]
    if not equals:
        raise InputError(f"--set {text} has no value; expected NAME=VALUE, e.g. {name}={default}.")
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise InputError(f"--set {name} is {value!r}; expected True or False.")
        return name, value.lower() == "true"
    try:
        return name, type(default)(value)
    except ValueError:
        expected = "a whole number" if isinstance(default, int) else "a number"
        raise InputError(f"--set {name} is {value!r}; expected {expected}.") from None


def refuse_unknown(switches: object, **known: Sequence[str]) -> None:
    """Raise if a switch has none of the values that are known of it."""
    for name, values in known.items():
        if getattr(switches, name) not in values:
            raise unknown(name, getattr(switches, name), values)


def refuse_beyond(switches: object, names: Sequence[str], fits: Callable[[float], bool], expected: str) -> None:
    """Raise if a switch is not what it should be."""
    for name in names:
        if not fits(getattr(switches, name)):
            raise InputError(f"{name} is {getattr(switches, name)}; expected {expected}.")
