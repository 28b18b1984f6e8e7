"""Do two outputs say the same? Words and structure exactly, numbers as far as processors agree.

* A number with decimals may differ by one in its last printed digit, which is how 0.125 is rounded here and there, or
  by a ten-thousandth of itself. A whole number may differ by the latter alone: counts of fewer than 10,000 are exact.
* Data of charts may differ by a ten-thousandth of themselves, or in the fourth decimal, to which charts round. A field
  of rows may differ by a ten-thousandth of its largest value: a small one may be the difference of two large ones.
* Names of datasets in a Vega-Lite chart are hashes of what they hold: their rows are compared, their names are not.
"""

from __future__ import annotations

import re
from math import inf, isclose
from typing import Any

RELATIVE, ABSOLUTE, ROUNDED = 1e-4, 1e-9, 1.001e-4
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d+)?(?![\d_]|\.\d)")
"""A number in a text; digits within a name, a version or an address are words."""


def difference(stored: Any, new: Any, path: str = "", largest: Any = None) -> str | None:
    """Return the first difference of two JSON values in one line that says where it is, or None.

    `largest` is the largest value of a field in rows: of a number's own, or of all fields by name.
    """
    if isinstance(stored, dict) and isinstance(new, dict):
        return _of_objects(_inlined(stored), _inlined(new), path, largest or {})
    if isinstance(stored, list) and isinstance(new, list):
        if len(stored) != len(new):
            return f"{path}: {len(stored)} items are stored, {len(new)} came out"
        sizes = _sizes(stored)
        return _first(difference(*pair, f"{path}[{i}]", sizes) for i, pair in enumerate(zip(stored, new, strict=True)))
    if isinstance(stored, str) and isinstance(new, str):
        return _of_texts(stored, new, path)
    same = (
        _close(stored, new, largest or 0.0)
        if float in (type(stored), type(new))
        else stored == new and type(stored) is type(new)
    )
    return None if same else f"{path}: {stored!r} is stored, {new!r} came out"


def _sizes(rows: list[Any]) -> dict[str, float]:
    """Return the largest absolute value of each field that has floats; none where these are no rows."""
    sizes: dict[str, float] = {}
    for key, value in (item for row in rows if isinstance(row, dict) for item in row.items()):
        if isinstance(value, float) and abs(value) < inf:
            sizes[key] = max(sizes.get(key, 0.0), abs(value))
    return sizes


def _of_objects(stored: dict[str, Any], new: dict[str, Any], path: str, largest: dict[str, float]) -> str | None:
    if odd := sorted(stored.keys() ^ new.keys()):
        return f"{path}: {odd[0]!r} is only in what {'is stored' if odd[0] in stored else 'came out'}"
    return _first(difference(stored[key], new[key], f"{path}.{key}".lstrip("."), largest.get(key)) for key in stored)


def _inlined(chart: dict[str, Any]) -> dict[str, Any]:
    """Return a Vega-Lite chart with its datasets where they are used; any other object as it is."""
    sets = chart.get("datasets")
    return _filled({key: chart[key] for key in chart if key != "datasets"}, sets) if isinstance(sets, dict) else chart


def _filled(part: Any, sets: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_filled(each, sets) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("name") in sets:
        return {**part, "name": "", "values": sets[part["name"]]}
    return {key: _filled(each, sets) for key, each in part.items()}


def _of_texts(stored: str, new: str, path: str) -> str | None:
    """Compare line by line; columns may be padded differently."""
    ours, theirs = stored.split("\n"), new.split("\n")
    if len(ours) != len(theirs):
        return f"{path}: {len(ours)} lines are stored, {len(theirs)} came out"
    pairs = enumerate(zip(ours, theirs, strict=True), start=1)
    return _first(_of_lines(*pair, f"{path} line {number}") for number, pair in pairs if pair[0] != pair[1])


def _of_lines(stored: str, new: str, path: str) -> str | None:
    stored, new = " ".join(stored.split()), " ".join(new.split())
    ours, theirs = NUMBER.findall(stored), NUMBER.findall(new)
    words = NUMBER.split(stored)
    if words != NUMBER.split(new):
        here = max(0, next((i for i, pair in enumerate(zip(stored, new, strict=False)) if pair[0] != pair[1]), 0) - 30)
        return f"{path}: {stored[here : here + 60]!r} is stored, {new[here : here + 60]!r} came out"
    for word, ours_, theirs_ in zip(words, ours, theirs, strict=False):
        if not _same_digits(ours_, theirs_):
            return f"{path}, after {word[-40:]!r}: {ours_} is stored, {theirs_} came out"
    return None


def _same_digits(stored: str, new: str) -> bool:
    unit = min(_unit(stored), _unit(new))
    stored, new = stored.replace(",", ""), new.replace(",", "")
    return isclose(float(stored), float(new), rel_tol=RELATIVE, abs_tol=1.001 * unit)


def _unit(number: str) -> float:
    """Return what one in the last digit of a number with decimals is worth; 0 for a whole number."""
    digits, _, exponent = number.partition("e")
    decimals = len(digits.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals) if decimals else 0


def _close(stored: Any, new: Any, largest: float) -> bool:
    if isinstance(stored, float | int) and isinstance(new, float | int):
        both_nan = stored != stored and new != new
        decimals = min(len(repr(number).partition(".")[2]) for number in (stored, new))
        absolute = max(ROUNDED if decimals <= 5 else ABSOLUTE, RELATIVE * largest)
        return both_nan or isclose(stored, new, rel_tol=RELATIVE, abs_tol=absolute)
    return False


def _first(found: Any) -> str | None:
    return next((each for each in found if each), None)
