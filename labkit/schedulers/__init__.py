"""Schedulers, one file each: the name is the file's name.

To add one, put a file here with a class of the same name (without underscores) that has
`schedule(snapshot) -> Placement`; nothing has to be registered.
"""

from __future__ import annotations

import ast
import pkgutil
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from typing import Any

from labkit import placers
from labkit.core.errors import InputError, unknown
from labkit.core.protocols import Placer, Scheduler


@cache
def _classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(__path__):
        members = vars(import_module(f"{__name__}.{module.name}"))
        wanted = module.name.replace("_", "")
        for name, member in members.items():
            if isinstance(member, type) and name.lower() == wanted and hasattr(member, "schedule"):
                found[module.name] = member
    return found


def available() -> list[str]:
    """Return the names of all schedulers.

    >>> available()[:3]
    ['drf', 'fifo', 'las']
    """
    return sorted(_classes())


def make(name: str, **options: Any) -> Scheduler:
    """Return a scheduler by name; options may also stand in the name, and a placer may be a name too.

    >>> make("las", threshold_gpu_s=60) == make("las(threshold_gpu_s=60)")
    True
    >>> make("drf(placer=pack)").placer
    Pack()

    Raises
    ------
    InputError
        If there is no such scheduler, option or placer; the message tells the nearest name.
    """
    plain, given = _parse(name)
    if plain not in _classes():
        raise unknown("scheduler", plain, available())
    kind = _classes()[plain]
    options = given | options
    known = getattr(kind, "__dataclass_fields__", {})
    for option in options:
        if option not in known:
            raise unknown(f"option of {plain}", option, known)
        _refuse_wrong_type(plain, option, options[option], known[option].default)
    if "placer" in options:
        options["placer"] = _placer(plain, options["placer"])
    try:
        scheduler: Scheduler = kind(**options)
    except TypeError as error:
        given_as = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise InputError(f"scheduler {plain} cannot take {given_as} ({error}); its default is {kind()}.") from None
    return scheduler


def _placer(scheduler: str, given: Any) -> Placer:
    """Return a placer, or the one of a name."""
    if isinstance(given, str):
        return placers.make(given)
    if not isinstance(given, Placer):
        known = ", ".join(placers.available())
        raise InputError(f"{scheduler}: placer is {given!r}; expected an object that has place(), or one of {known}.")
    return given


_TYPES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def _refuse_wrong_type(scheduler: str, option: str, value: Any, default: Any) -> None:
    """Raise if a switch is not given True or False, or a number something else."""
    if type(default) not in _TYPES:
        return
    kind, expected = _TYPES[type(default)]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{scheduler}: {option} is {value!r}; expected {expected}, e.g. {default}.")


def _unpacks(call: ast.Call) -> bool:
    return any(keyword.arg is None for keyword in call.keywords)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return a name and its options: "las(threshold_gpu_s=60)" -> "las", {"threshold_gpu_s": 60}."""
    text = text.strip()
    if "(" not in text:
        return text, {}
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args or _unpacks(call):
            raise ValueError
        return call.func.id, {str(k.arg): _value(k.value) for k in call.keywords}
    except (SyntaxError, ValueError):
        raise InputError(
            f"scheduler '{text}' cannot be read; expected a name, or name(option=value, ...), e.g. fifo(backfill=True)."
        ) from None


def _value(node: ast.expr) -> Any:
    """Return a literal, or a bare word such as the name of a placer as text."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
