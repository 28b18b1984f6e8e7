"""Names of many hosts in one, gpu[01-16] or rack[1-2]-node[01,05-08], and named groups of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

from labkit.core.errors import InputError, unknown
from labkit.core.text import shortened

MAX_NAMES: Final = 10_000
"""The most hosts that one name is believed to stand for."""
PARTS: Final = re.compile(r"\[([^\[\]]*)\]")
SPAN: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def has_range(text: str) -> bool:
    """Return whether a name has brackets."""
    return "[" in text or "]" in text


def expanded(text: str) -> list[str]:
    """Return the names that a name with ranges stands for, in their order; numbers keep their zeros.

    Raise InputError if a bracket is left open, or a range is none: which, and what was expected.

    >>> expanded("gpu[08-10]")
    ['gpu08', 'gpu09', 'gpu10']
    >>> expanded("r[1-2]n[1,3]")
    ['r1n1', 'r1n3', 'r2n1', 'r2n3']
    """
    pieces = PARTS.split(text)
    if any(has_range(piece) for piece in pieces[::2]):
        raise InputError(
            f"'{shortened(text)}' has a bracket without its other one; expected a range such as gpu[01-16]."
        )
    choices = [[piece] if at % 2 == 0 else _numbers(piece, within=text) for at, piece in enumerate(pieces)]
    n = 1
    for choice in choices:
        n *= len(choice)
    if n > MAX_NAMES:
        raise InputError(f"'{shortened(text)}' stands for {n:,} hosts; expected {MAX_NAMES:,} at most.")
    return ["".join(parts) for parts in product(*choices)]


def listed(text: str) -> list[str]:
    """Return the names of a list with commas, as Slurm writes it; commas inside brackets are part of a range.

    >>> listed("gpu[01-02,05],login")
    ['gpu01', 'gpu02', 'gpu05', 'login']
    """
    names = re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)
    return [one for name in names if name.strip() for one in expanded(name.strip())]


def _numbers(spans: str, *, within: str) -> list[str]:
    """Return the numbers of a bracket: "01-03,07"."""
    found: list[str] = []
    for part in spans.split(","):
        if wrong := _wrong(part.strip()):
            raise InputError(f"'{shortened(within)}' has the range '{shortened(part)}'; expected {wrong}.")
        first, _, last = part.strip().partition("-")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found


def _wrong(span: str) -> str:
    """Return the remedy for a malformed range; empty: it is well-formed.

    >>> _wrong("01-16"), _wrong("0-15"), _wrong("1-016"), _wrong("3-1")
    ('', '', '001-016, padded alike', 'the smaller number first')
    """
    match = SPAN.fullmatch(span)
    if match is None:
        return "numbers, as in gpu[01-16] or gpu[1,4]"
    first, last = match[1], match[2] or match[1]
    width = max(len(first), len(last))
    if len(first) != len(last) and any(number[0] == "0" and len(number) > 1 for number in (first, last)):
        return f"{first.zfill(width)}-{last.zfill(width)}, padded alike"
    if int(first) > int(last):
        return "the smaller number first"
    return f"{MAX_NAMES:,} numbers at most" if int(last) - int(first) >= MAX_NAMES else ""


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def groups_of(
    table: Any, hosts: Sequence[str], *, kind: str = "group", groups: Mapping[str, list[str]] | None = None
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the groups of a table [groups], or what else is of that kind, and what is wrong with them.

    A group is a text or a list of names, ranges, and groups that stand above it or are given.

    >>> groups_of({"fast": "gpu[1-2]", "all": ["fast", "cpu"]}, ["gpu1", "gpu2", "cpu"])
    ({'fast': ['gpu1', 'gpu2'], 'all': ['gpu1', 'gpu2', 'cpu']}, [])
    """
    if not isinstance(table, dict):
        return {}, [f"{kind}s is {table!r}; expected a table [{kind}s]"]
    found: dict[str, list[str]] = {}
    faults: list[str] = []
    for name, members in table.items():
        try:
            found[name] = _members(name, members, hosts=hosts, groups={**(groups or {}), **found})
        except InputError as error:
            faults.append(f"{kind} {name}: {str(error).rstrip('.')}")
    return found, faults


def _members(name: str, members: Any, *, hosts: Sequence[str], groups: dict[str, list[str]]) -> list[str]:
    """Return the hosts of a group, each once, in the order of the inventory."""
    if not NAME.fullmatch(name) or name in hosts:
        raise InputError("expected a name that no host has, of letters, digits, '.', '_' and '-'")
    texts = [members] if isinstance(members, str) else members
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f'it is {members!r}; expected names of hosts, such as "gpu[01-04],cpu-a"')
    found: set[str] = set()
    for one in (one for text in texts for one in listed(text)):
        if one not in hosts and one not in groups:
            raise unknown("host", one, [*hosts, *groups])
        found |= set(groups.get(one, [one]))
    return [host for host in hosts if host in found]
