"""The parts of an experiment in a form that JSON can hold, and names that folders can have."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.calls import python_value

LONGEST: Final = 80
"""Letters of a name that stand in the name of a folder."""


def plain(part: Any) -> Any:
    """Return a configuration as JSON can hold it."""
    if is_dataclass(part) and not isinstance(part, type):
        given = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
        shown = {name: plain(value) for name, value in given.items() if not isinstance(value, np.ndarray)}
        return {"kind": type(part).__name__} | shown
    if isinstance(part, dict):
        return {key: plain(value) for key, value in part.items()}
    part = python_value(part)
    if isinstance(part, float) and math.isinf(part):
        return "inf"
    return part if isinstance(part, str | int | float | bool | None) else repr(part)


def slug(name: str) -> str:
    """Return a name with nothing but letters, digits, '.', '_' and '-'; "run" where nothing is left."""
    kept = "".join(c if c.isalnum() or c in "._" else "-" for c in Path(name).name)
    return kept.strip("-.")[:LONGEST].rstrip("-.") or "run"
