"""Records of jobs in JSON, one on each line or in a list, as the text of a table with commas."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import TraceError
from labkit.workloads.readers.base import any_text_of, objects_of
from labkit.workloads.readers.mapping import sureness

EXPECTED: Final = "a table with a header and one job per line, or records of jobs in JSON"
_ABOVE: Final = re.compile(r"\A(?:\s*(?:#[^\n]*|sep=[^\n]{1,2}\r?)\n)+")
"""Lines above a header: comments, and the separator that spreadsheets are told."""


def table_text(path: Path) -> tuple[str, str]:
    """Return a table as text that begins with its header, and what is to be known of its encoding.

    Records in JSON become rows: what they hold in objects of theirs has the name of the last key, or all keys joined by
    "." where that is not unique.

    Raises
    ------
    TraceError
        If it cannot be read, or holds JSON without records.
    """
    text, doubt = any_text_of(path, expected=EXPECTED)
    if (above := _ABOVE.match(text)) is not None:
        text = "\n" * above[0].count("\n") + text[above.end() :]  # lines keep their numbers
    return (_of_records(path, text), doubt) if text.lstrip()[:1] in ("{", "[") else (text, doubt)


def looks_like_records(head: str) -> bool:
    """Return whether a text begins like JSON of records."""
    return re.match(r"\s*\[?\s*\{", head) is not None


def _of_records(path: Path, text: str) -> str:
    rows = [dict(_leaves(record)) for record in _records(objects_of(path, text, expected=EXPECTED))]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if len(keys) < 2:
        raise TraceError(f"{path}: holds JSON without records of jobs; expected {EXPECTED}.")
    last = [key[-1] for key in keys]
    names = {key: key[-1] if last.count(key[-1]) == 1 else ".".join(key) for key in keys}
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(names.values())
    table.writerows([row.get(key, "") for key in keys] for row in rows)
    return written.getvalue()


def _records(objects: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the records of JSON values: lists of them, objects with one list of them, or the objects themselves.

    An object that stands alone, or one in it, may have its records by their ids: {"7": {"start": ..}, "8": {..}}.
    """
    for content in objects:
        if isinstance(content, list):
            yield from (each for each in content if isinstance(each, dict))
            continue
        values = list(content.values()) if isinstance(content, dict) else []
        listed = [value for value in values if _is_list(value)]
        if len(objects) == 1:
            listed += [found for value in (content, *values) if (found := _by_id(value))]
        if len(listed) == 1 and not _tells_of_a_job(content):
            yield from listed[0]
        elif isinstance(content, dict):
            yield content


def _by_id(content: object) -> list[Mapping[str, Any]]:
    """Return the records of an object that has nothing else, each of which has a moment, with their keys as ids."""
    if not isinstance(content, dict) or not all(isinstance(value, dict) for value in content.values()):
        return []
    if not all(any(sureness(name, key) == "sure" for name in _WHEN for key in value) for value in content.values()):
        return []
    return [{"id": key, **value} for key, value in content.items()]


_WHEN: Final = ("arrival", "start")


def _tells_of_a_job(record: Mapping[str, Any]) -> bool:
    """Return whether an object is itself a job, whatever it lists: it has a duration, or a number of GPUs."""
    plain = [key for key, value in record.items() if isinstance(value, int | float | str)]
    return any(sureness(name, key) == "sure" for name in ("duration", "gpus") for key in plain)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _leaves(record: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what a record holds, by the keys that lead there; lists as JSON."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, str(key)))
        elif value is not None:
            yield (*above, str(key)), json.dumps(value) if isinstance(value, list | bool) else value
