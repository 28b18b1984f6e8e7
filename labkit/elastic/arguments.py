"""What a job is given, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

from labkit.core.errors import InputError
from labkit.elastic.controller.losses import CONTINUE, STOP
from labkit.elastic.forkserver.place import ForkError, Settings
from labkit.elastic.models.sizes import whole
from labkit.elastic.process.limits import check_choice
from labkit.elastic.protocol.blocks import BLOCKS, TENSOR
from labkit.elastic.server.optimizers import OPTIMIZERS, optimizer
from labkit.elastic.transport import Lease

EXACT, ANYWAY = "exact", "anyway"
"""Whether a job that goes on from a checkpoint must be the one that made it."""


def checked_counts(**given: Any) -> list[int]:
    """Return whole numbers as Python's: steps, batch, ...; InputError if one is none."""
    return [whole(name, value, least=-(2**63)) for name, value in given.items()]


def check_seconds(*, lease_s: Any, loads_every_s: Any = 0.0, measure_every_s: Any = 0.0, **given: Any) -> None:
    """Raise InputError unless these are seconds above 0 (those between events may be 0), and a lease can be kept."""
    rates = {"loads_every_s": loads_every_s, "measure_every_s": measure_every_s}
    given.update({name: value for name, value in rates.items() if value})
    for name, value in {"lease_s": lease_s, **given}.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not isfinite(value) or not value > 0:
            raise InputError(f"{name} is {value!r}; expected seconds above 0.")
    Lease(lease_s)


def check_variables() -> None:
    """Raise InputError where a variable of the environment that jobs look at makes no sense."""
    try:
        Settings.read(os.environ)
    except ForkError as error:
        raise InputError(str(error)) from None
    check_choice()


def check_words(*, on_nan: Any, resume: Any, partition: Any = BLOCKS) -> None:
    """Raise InputError for a word that says nothing."""
    for name, value, known in (
        ("on_nan", on_nan, (STOP, CONTINUE)), ("resume", resume, (EXACT, ANYWAY)),
        ("partition", partition, (BLOCKS, TENSOR)),
    ):  # fmt: skip
        if value not in known:
            raise InputError(f"{name} is {value!r}; expected {known[0]!r} or {known[1]!r}.")


def check_optimizer(name: Any, options: Mapping[str, Any], *, arguments: Iterable[str]) -> None:
    """Raise InputError unless there is such an optimizer, and it has such options.

    Parameters
    ----------
    name : object
        Expected to be a name.
    options : mapping
        Whatever `start` was given by name and does not know.
    arguments : iterable of str
        What it knows: one of them may be misspelt.
    """
    if not isinstance(name, str):
        kind = name if isinstance(name, type) else type(name)
        raise InputError(
            f"optimizer is {kind.__module__}.{kind.__qualname__}; expected one of {', '.join(OPTIMIZERS)}, and its "
            "options by name (lr=0.1): servers make the updates, which torch's optimizers cannot."
        )
    if name.lower() == "adamw":
        raise InputError("unknown optimizer 'adamw'; it is optimizer='adam' with decoupled_weight_decay=True here.")
    known = [field.name for field in fields(OPTIMIZERS[name])] if name in OPTIMIZERS else []
    for option in options:
        if known and option not in known:
            near = get_close_matches(option.lower(), [*arguments, *known], n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            told = f"start has no argument '{option}', nor {name} such an option."
            raise InputError(f"{told}{hint} Options of {name}: {', '.join(sorted(known))}.")
    optimizer(name, **options)


def checked_folder(folder: Any) -> Path | None:
    """Return a folder as a path."""
    if folder is None or isinstance(folder, Path):
        return folder
    if isinstance(folder, str | os.PathLike) and str(folder):
        return Path(folder).expanduser()
    raise InputError(f"folder is {folder!r}; expected a path.")
