"""The file of a profile: JSON, every fault of it told at once, written as a whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import ProfileError
from labkit.core.faults import told
from labkit.speed.profiled.nouns import VERSION, TestbedProfile

FORMAT: Final = "labkit testbed profile"


def read(path: str | Path) -> TestbedProfile:
    """Read a profile.

    Raises
    ------
    ProfileError
        With every fault of the file: which part, which entry, what was expected.
    """
    from pydantic import TypeAdapter, ValidationError

    content = _content(Path(path))
    try:
        profile = TypeAdapter(TestbedProfile).validate_python(content)
    except ValidationError as error:
        raise ProfileError(told(str(path), [_fault(fault) for fault in error.errors()])) from None
    if faults := profile.faults():
        raise ProfileError(told(str(path), faults))
    return profile


def is_profile(path: str | Path) -> bool:
    """Tell whether a file begins as a profile of a testbed does."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return FORMAT in file.read(200)
    except (OSError, ValueError):
        return False


def write(profile: TestbedProfile, path: str | Path) -> Path:
    """Write a profile, as a whole or not at all; return where it is.

    Raises
    ------
    ProfileError
        If it contradicts itself.
    """
    if faults := profile.faults():
        raise ProfileError(told(f"profile '{profile.name}'", faults))
    there = Path(path)
    there.parent.mkdir(parents=True, exist_ok=True)
    partial = there.with_name(f".{there.name}.{os.getpid()}.tmp")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(_text(profile))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(there)
    finally:
        partial.unlink(missing_ok=True)
    return there


def _text(profile: TestbedProfile) -> str:
    """Return the file's text: a row of a table is a line."""
    parts = {"format": FORMAT, "version": VERSION, **asdict(profile)}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_part(part)}" for name, part in parts.items()) + "\n}\n"


def _part(part: Any) -> str:
    if isinstance(part, list) and part and isinstance(part[0], dict):
        return "[\n" + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in part) + "\n]"
    return json.dumps(part, allow_nan=False)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProfileError(f"{path}: there is no such file; labkit profile measures one.") from None
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: it cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise ProfileError(f"{path}: it is no profile of a testbed; labkit profile measures one.")
    if (version := content.pop("version", None)) != VERSION:
        raise ProfileError(f"{path}: it has version {version!r}, this labkit reads {VERSION}; measure it anew.")
    return content


def _fault(fault: Any) -> str:
    """Return one fault that pydantic found, in our words."""
    place = ""
    for key in fault["loc"]:
        place += f"[{key}]" if isinstance(key, int) else f".{key}" if place else str(key)
    kind = fault["type"]
    if kind == "unexpected_keyword_argument":
        known = [field.name for field in fields(TestbedProfile)] if len(fault["loc"]) == 1 else []
        near = get_close_matches(str(fault["loc"][-1]), known, n=1)
        return f"unknown key {place}" + (f"; did you mean '{near[0]}'?" if near else "")
    if kind == "missing":
        return f"{place} is missing"
    expected = str(fault["msg"]).removeprefix("Input should be ")
    shown = repr(fault["input"])
    return (
        f"{place} is {shown if len(shown) < 60 else shown[:57] + '...'}; expected {expected[0].lower()}{expected[1:]}"
    )
