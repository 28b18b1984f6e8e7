"""The arguments of a request, checked: each is taken once, and one that is left over is refused."""

from __future__ import annotations

import base64
import binascii
import math
import re
from difflib import get_close_matches
from typing import Any, Final

from labkit.testbed.agent.devices import ALLOTMENT, GpuRequest
from labkit.testbed.agent.places import LOG, RESULT, TASK_SOCKET, parts
from labkit.testbed.agent.runs import File
from labkit.testbed.agent.wire import Refusal, check_name

GPU: Final = re.compile(r"[A-Za-z0-9-]{1,80}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED: Final = (TASK_SOCKET, LOG, RESULT, ALLOTMENT)
MOST_GPUS: Final = 1024
GPUS: Final = 'how many GPUs, numbers or identifiers of some, or for example [{"n": 1, "of": [0, 1]}]'


class RequestArguments:
    """Arguments of a request."""

    def __init__(self, verb: str, given: dict[str, Any]) -> None:
        self._verb, self._given, self._known = verb, dict(given), set[str]()

    def _take(self, name: str, default: Any = None) -> Any:
        self._known.add(name)
        return self._given.pop(name, default)

    def _wrong(self, name: str, value: object, expected: str) -> Refusal:
        return Refusal("argument", f"{self._verb}: {name} is {repr(value)[:100]}; expected {expected}")

    def done(self) -> None:
        """Refuse arguments that no verb has taken."""
        for name in self._given:
            near = get_close_matches(name, self._known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise Refusal("argument", f"{self._verb} takes no {name[:80]!r}.{hint}")

    def name(self, name: str) -> str:
        """Take a name of a run or task."""
        return check_name(self._take(name), name)

    def maybe_name(self, name: str) -> str | None:
        """Take a name, or None."""
        value = self._take(name)
        return None if value is None else check_name(value, name)

    def path(self, name: str) -> list[str]:
        """Take a relative path."""
        return parts(self._take(name), name)

    def number(self, name: str, *, default: float, low: float, high: float) -> float:
        """Take a number from `low` to `high`."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, value, "a number")
        if not low <= value <= high:
            raise self._wrong(name, value, f"{low:g} to {high:g}")
        return value

    def whole(self, name: str, *, default: int, low: int, high: int) -> int:
        """Take a whole number from `low` to `high`."""
        value = self.number(name, default=default, low=low, high=high)
        if value != int(value):
            raise self._wrong(name, value, "a whole number")
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Take true or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def anything(self, name: str) -> Any:
        """Take any JSON value."""
        return self._take(name)

    def maybe_text(self, name: str) -> str | None:
        """Take a text without end-of-string characters, or None."""
        value = self._take(name)
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise self._wrong(name, value, "a text")
        return value

    def words(self, name: str) -> list[str]:
        """Take program and arguments of a command; no shell interprets them."""
        value = self._take(name)
        ok = isinstance(value, list) and value and all(isinstance(word, str) and "\0" not in word for word in value)
        if not ok or not value[0]:
            raise self._wrong(name, value, "a list of texts, the first a program")
        return list(value)

    def variables(self, name: str) -> dict[str, str]:
        """Take environment variables; errors do not show their values."""
        value = self._take(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, type(value).__name__, "an object of texts")
        for key, text in value.items():
            if not VARIABLE.fullmatch(key):
                raise self._wrong(name, key, "names of letters, digits and _")
            if not isinstance(text, str) or "\0" in text:
                raise self._wrong(f"{name}.{key}", type(text).__name__, "a text without end-of-string characters")
        return value

    def cores(self, name: str, *, allowed: set[int]) -> list[int] | None:
        """Take numbers of cores of this host, or None for all."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(type(each) is int for each in value):
            raise self._wrong(name, value, "a list of numbers of cores, or nothing for all")
        missing = sorted(set(value) - allowed)
        if missing:
            raise self._wrong(name, missing, f"cores of this host: {_ranges(allowed)}")
        return sorted(set(value))

    def gpus(self, name: str) -> list[GpuRequest] | None:
        """Take requests for GPUs: None leaves GPUs as they are, an empty list hides all.

        A number n requests any n; a list requests each of some, by number or identifier; a list of
        {"n": 1, "of": [0, 1]} requests n of some.
        """
        value = self._take(name)
        if value is None:
            return None
        given = [{"n": value}] if type(value) is int else value
        if not isinstance(given, list) or len(given) > MOST_GPUS:
            raise self._wrong(name, value, GPUS)
        return [ask for ask in (self._ask(name, each) for each in given) if ask.n]

    def _ask(self, name: str, given: object) -> GpuRequest:
        """Return the request for a GPU by number or identifier, or for n of some."""
        ask = {"n": 1, "of": [given]} if type(given) in (int, str) else given
        if not isinstance(ask, dict) or not {"n"} <= ask.keys() <= {"n", "of"}:
            raise self._wrong(name, given, GPUS)
        n, among = ask["n"], ask.get("of", [])
        if type(n) is not int or not 0 <= n <= MOST_GPUS or not isinstance(among, list):
            raise self._wrong(name, given, GPUS)
        if not all(type(each) in (int, str) and GPU.fullmatch(str(each)) for each in among):
            raise self._wrong(name, given, GPUS)
        return GpuRequest(n, tuple(str(each) for each in among))

    def files(self, name: str) -> list[File]:
        """Take small files: path -> {"data": base64, "mode": "0600"}."""
        value = self._take(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, type(value).__name__, "an object of files by path")
        return [self._file(name, path, file) for path, file in value.items()]

    def _file(self, name: str, path: str, file: object) -> File:
        names = parts(path, name)
        if path in RESERVED:
            raise self._wrong(name, path, f"another name than {', '.join(RESERVED)}, which the agent uses")
        if not isinstance(file, dict) or not isinstance(file.get("data"), str):
            raise self._wrong(f"{name}.{path}", type(file).__name__, '{"data": base64, "mode": "0600"}')
        mode = file.get("mode", "0600")
        if mode not in ("0400", "0600", "0500", "0700"):
            raise self._wrong(f"{name}.{path}.mode", mode, "0400, 0600, 0500 or 0700")
        try:
            data = base64.b64decode(file["data"], validate=True)
        except binascii.Error:
            raise Refusal("argument", f"{self._verb}: {name}.{path}.data is not base64") from None
        return File(names, data, int(mode, 8))


def _ranges(numbers: set[int]) -> str:
    """Return numbers as ranges.

    >>> _ranges({0, 1, 2, 5})
    '0-2, 5'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)
