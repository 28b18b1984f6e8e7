"""Schedulers, one file each: the name is the file's name.

To add one, put a file here with a class of the same name (without underscores) that has
`schedule(snapshot) -> Placement`; nothing has to be registered. A system of several parts is a folder; its
`recipes()` tells what it offers. One that gives jobs any type of GPU, however fast, says `knows_types = False`:
tables of runs on types that differ in speed have a note then.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Final

from labkit import placers
from labkit.core.calls import read_call
from labkit.core.errors import InputError, unknown
from labkit.core.outside import FILES, find, from_packages, naming, use_file
from labkit.core.protocols import Placer, Scheduler
from labkit.core.text import labelled, shortened

MOST_OFFERED: Final = 3


@dataclass(frozen=True, slots=True)
class SchedulerMaker:
    """How to make a scheduler: its options with their defaults, and what builds it from them."""

    options: Mapping[str, Any]
    build: Callable[..., Scheduler]


@cache
def _modules() -> dict[str, bool]:
    """Return the name of each module here, and whether it is a folder."""
    return {module.name: module.ispkg for module in pkgutil.iter_modules(__path__)}


@cache
def _offered(module: str) -> dict[str, SchedulerMaker]:
    """Return the schedulers of a module here, by name."""
    part = import_module(f"{__name__}.{module}")
    if _modules()[module]:
        return {name: SchedulerMaker(*recipe) for name, recipe in part.recipes().items()}
    wanted = module.replace("_", "")
    for name, member in vars(part).items():
        if isinstance(member, type) and name.lower() == wanted and hasattr(member, "schedule"):
            return {module: SchedulerMaker(options_of(member), member)}
    return {}


@cache
def _recipes() -> dict[str, SchedulerMaker]:
    return {name: recipe for module in _modules() for name, recipe in _offered(module).items()}


def _own(name: str) -> SchedulerMaker | None:
    """Return how to make one of labkit's schedulers; None: it has none of that name.

    The module that its name begins with is looked at first, so that a run imports the schedulers that it uses.
    """
    for module in _modules():
        if (name == module or name.startswith(f"{module}_")) and name in (offered := _offered(module)):
            return offered[name]
    return _recipes().get(name)


def _recipe(name: str) -> SchedulerMaker:
    """Return how to make a scheduler: one of labkit's, one of a package's entry points, or one of a module.

    Raise InputError if there is none of that name, or what there is cannot schedule.
    """
    if (own := _own(name)) is not None:
        return own
    if (found := find(name, what="scheduler")) is None:
        if near := _with_option(name):
            raise InputError(
                f"unknown scheduler '{shortened(name)}', which is an option: {', '.join(near)}. `labkit schedulers` "
                "lists all, with their options."
            )
        if name in placers.available():
            raise InputError(
                f"{name} is a placer and not a scheduler: expected fifo(backfill=True,placer={name}), or another "
                "scheduler that has it. `labkit compare` with placers alone shows how full each makes the cluster."
            )
        raise unknown("scheduler", name, available(), listing="labkit schedulers")
    return _recipe_of(found, name)


def _with_option(name: str) -> list[str]:
    """Return schedulers with an option of about this name switched on; none where a scheduler has about this name."""
    if get_close_matches(name.lower(), available(), n=1):
        return []
    found = []
    for scheduler, recipe in sorted(_recipes().items()):
        switches = [o for o, default in recipe.options.items() if isinstance(default, bool)]
        for option in get_close_matches(name.lower(), switches, n=1, cutoff=0.75):
            found.append(f"{scheduler}({option}={not recipe.options[option]})")
    return found[:MOST_OFFERED]


def _recipe_of(target: Any, name: str) -> SchedulerMaker:
    """Return how to make a scheduler from a class, from a function that returns one, or from one that is made."""
    if isinstance(target, type):
        if not callable(getattr(target, "schedule", None)):
            raise InputError(
                f"scheduler {name} is a class without schedule(); expected schedule(snapshot) -> Placement."
            )
        return SchedulerMaker(options_of(target), target)
    if callable(getattr(target, "schedule", None)):
        return SchedulerMaker({}, lambda: deepcopy(target))
    if not callable(target):
        raise InputError(
            f"scheduler {name} is {target!r:.60}; expected a class that has schedule(snapshot) -> Placement."
        )
    return SchedulerMaker(options_of(target), target)


def options_of(kind: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a scheduler or of a part of one, with their defaults."""
    if is_dataclass(kind):
        return {f.name: f.default for f in fields(kind) if f.init}
    if isinstance(kind, type) and kind.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    return {name: option.default for name, option in inspect.signature(kind).parameters.items()}


def available() -> list[str]:
    """Return the names of all schedulers.

    >>> available()[:3]
    ['afs', 'attention', 'autoscale']
    """
    return sorted({*_recipes(), *from_packages("scheduler")})


def make(name: str, **options: Any) -> Scheduler:
    """Return a scheduler by name; options may also stand in the name, and a placer may be a name too.

    One's own is named `file.py:Class` or `package.module:Class`, or by an entry point of the group `labkit.schedulers`.
    A label before it, as in `mine=file.py:Class`, says what to call it (`named`).

    >>> make("las", threshold_gpu_s=60) == make("las(threshold_gpu_s=60)")
    True
    >>> make("drf(placer=pack)").placer
    Pack()

    Raises
    ------
    InputError
        If there is no such scheduler, option or placer; the message tells the nearest name.
    """
    with naming(labelled(name)[1].strip()):
        return _make(name, options)


def _make(name: str, options: dict[str, Any]) -> Scheduler:
    """Return the scheduler of a name with options."""
    plain, parsed = _parse(name)
    recipe = _recipe(plain)
    options = parsed | options
    for option in options:
        if option not in recipe.options:
            raise unknown(f"option of {plain}", option, recipe.options)
        _refuse_wrong_type(plain, option, options[option], recipe.options[option])
    for option in FILES & options.keys():
        if options[option] != recipe.options[option]:
            use_file(options[option], what=f"{plain}'s {option}")
    if "placer" in options:
        options["placer"] = _placer(plain, options["placer"])
    try:
        return recipe.build(**options)
    except TypeError as error:
        given_as = ", ".join(f"{option}={value!r}" for option, value in options.items()) or "no options"
        takes = ", ".join(f"{name}={value!r}" for name, value in recipe.options.items())
        raise InputError(f"scheduler {plain} cannot take {given_as} ({error}); it takes {takes}.") from None


def named(scheduler: Scheduler | str, name: str | None = None) -> tuple[Scheduler, str]:
    """Return a scheduler, made if a name is given for it, and what to call it.

    Raises
    ------
    InputError
        If it is a class, or an object that cannot schedule; or as `make`.

    >>> named("las")[1], named(make("las"))[1], named("las", "mine")[1], named("short=las(quantum_s=60)")[1]
    ('las', 'las', 'mine', 'short')
    """
    if isinstance(scheduler, str):
        label, plain = labelled(scheduler)
        return make(plain), name or label or plain
    if isinstance(scheduler, type):
        raise InputError(f"scheduler {scheduler.__name__} is a class; give an instance of it: {scheduler.__name__}().")
    if not callable(getattr(scheduler, "schedule", None)):
        raise InputError(
            f"scheduler is {scheduler!r}; expected a name, or an object that has schedule(snapshot) -> Placement."
        )
    return scheduler, name or type(scheduler).__name__.lower()


def open_options(name: str) -> dict[str, Any]:
    """Return the options that a scheduler still takes, with their defaults: not those that stand in its name.

    Raise InputError if there is no such scheduler.

    >>> sorted(open_options("las(threshold_gpu_s=60, published=True)"))
    ['moves', 'order', 'placer', 'promote', 'quantum_s', 'thresholds_gpu_s']
    """
    plain, given = _parse(name)
    return {option: default for option, default in _recipe(plain).options.items() if option not in given}


def _placer(scheduler: str, placer: Any) -> Placer:
    """Return a placer, or the one of a name."""
    if isinstance(placer, str):
        return placers.make(placer)
    if isinstance(placer, type) or not isinstance(placer, Placer):
        known = ", ".join(placers.available())
        raise InputError(f"{scheduler}: placer is {placer!r}; expected an object that has place(), or one of {known}.")
    return placer


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


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return a name and its options: "las(threshold_gpu_s=60)" -> "las", {"threshold_gpu_s": 60}."""
    text = labelled(text)[1].strip()
    if "(" not in text:
        return text, {}
    expected = "a name, or name(option=value, ...), e.g. fifo(backfill=True)"
    call = read_call(text, thing="scheduler", expected=expected, words=True)
    if call.args:
        raise InputError(f"scheduler '{shortened(text)}' cannot be read; expected {expected}.")
    return call.name, call.options
