"""Calls and values as people type them, such as "fat_tree(4, servers='dgx1')": read as literals, never evaluated."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.core.text import shortened

INFINITE: Final = (math.inf, -math.inf)
"""What a number such as 1e400 is read as."""
MAX_LETTERS: Final = 1000
"""The longest expression that is read; what is longer was not typed by a person."""

MAX_WHOLE: Final = 2**63 - 1
"""The largest whole number that arrays hold."""

_UNREADABLE: Final = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
"""What Python's parser raises at odd text: the last two at brackets or signs that are nested too deep."""


@dataclass(frozen=True, slots=True)
class Call:
    """A name with arguments and options, as it was typed."""

    name: str
    args: list[Any]
    options: dict[str, Any]


def read_call(text: str, *, thing: str, expected: str, words: bool = False) -> Call:
    """Return a call as it was typed.

    Raise InputError if it is no call of a name (or of `module:name`) with literals, unpacks something, gives an option
    twice, or has over 1,000 letters.

    Parameters
    ----------
    text : str
        Such as "poisson(80, per_hour=12)".
    thing, expected : str
        What it is, and what it should look like, for the error.
    words : bool
        Take a bare word, such as the name of a placer, as text, and inf as the number.

    Examples
    --------
    >>> read_call("drf(placer=pack)", thing="scheduler", expected="a name", words=True)
    Call(name='drf', args=[], options={'placer': 'pack'})
    >>> read_call("las(promote=inf)", thing="scheduler", expected="a name", words=True).options
    {'promote': inf}
    >>> read_call("mine:First(k=2)", thing="scheduler", expected="a name").name
    'mine:First'
    """
    wrong = InputError(f"{thing} '{shortened(text)}' cannot be read; expected {expected}.")
    name, bracket, rest = text.partition("(")
    outside = name.strip() if ":" in name else ""
    try:
        call = ast.parse(_bounded(f"outside{bracket}{rest}" if outside else text), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise wrong
        args = [_literal(arg, words=words) for arg in call.args]
        options = {option.arg: _literal(option.value, words=words) for option in call.keywords if option.arg}
    except _UNREADABLE:
        raise wrong from None
    if len(options) != len(call.keywords):
        raise wrong
    return Call(outside or call.func.id, args, options)


def literal(text: str) -> Any:
    """Return a number, a switch, None or a quoted text where a text is one, else the text itself.

    >>> literal("1.5"), literal("True"), literal("pack"), literal("[1]")
    (1.5, True, 'pack', '[1]')
    """
    try:
        found = ast.literal_eval(_bounded(text))
    except _UNREADABLE:
        return text
    if found in INFINITE or (isinstance(found, int) and abs(found) > MAX_WHOLE):
        return text
    return found if isinstance(found, str | int | float | bool | None) else text


def python_value(value: Any) -> Any:
    """Return a number, a switch or a text of numpy's as Python's own, in mappings too; anything else as it is.

    >>> import numpy as np
    >>> python_value({"vision": np.int64(8)}), python_value(np.float32(0.5)), python_value("8")
    ({'vision': 8}, 0.5, '8')
    """
    if isinstance(value, Mapping):
        return {python_value(key): python_value(each) for key, each in value.items()}
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _bounded(text: str) -> str:
    if len(text) > MAX_LETTERS:
        raise ValueError
    return text.strip()


def _literal(node: ast.expr, *, words: bool) -> Any:
    if words and isinstance(node, ast.Name):
        return math.inf if node.id == "inf" else node.id
    found = ast.literal_eval(node)
    if found in INFINITE:
        raise ValueError
    return found
