"""Gavel: policies that turn a problem (columns) into an allocation, and the rounds that carry it out.

A policy is a file with a class of the same name (without underscores) and one method,
`allocate(problem) -> Allocation`; it knows nothing of rounds. To add one, put a file here: `labkit.schedulers.make`
finds it as `gavel_<file>`, and as `gavel_<file>_agnostic` if it has a switch `aware`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from labkit.core.protocols import Scheduler


def policies() -> dict[str, type]:
    """Return the policies by name.

    >>> sorted(policies())[:2]
    ['allox', 'cost']
    """
    found = {}
    for module in pkgutil.iter_modules(__path__):
        wanted = module.name.replace("_", "")
        for name, member in vars(import_module(f"{__name__}.{module.name}")).items():
            if isinstance(member, type) and name.lower() == wanted and hasattr(member, "allocate"):
                found[module.name] = member
    return found


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of each policy's scheduler by name: `gavel_las`, `gavel_las_agnostic`, ..."""
    from labkit.schedulers import options_of
    from labkit.schedulers.gavel.mechanism import Gavel

    rounds = {name: default for name, default in options_of(Gavel).items() if name != "policy"}
    found: dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]] = {}
    for name, policy in policies().items():
        own = options_of(policy)
        found[f"gavel_{name}"] = ({**own, **rounds}, partial(_build, policy))
        if "aware" in own:
            others = {option: default for option, default in own.items() if option != "aware"}
            found[f"gavel_{name}_agnostic"] = ({**others, **rounds}, partial(_build, policy, aware=False))
    return found


def _build(kind: type, **options: Any) -> Scheduler:
    from labkit.schedulers import options_of
    from labkit.schedulers.gavel.mechanism import Gavel

    own = options_of(kind)
    mine = {option: value for option, value in options.items() if option in own}
    if "tie" in own and options.get("published"):
        mine.setdefault("tie", getattr(kind, "published_tie", "centre"))  # where the published solver ends
    rounds = options_of(Gavel)
    rest = {option: value for option, value in options.items() if option in rounds}
    return Gavel(kind(**mine), **rest)
