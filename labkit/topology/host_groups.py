"""Groups of an inventory: names for some of its hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from labkit.core.errors import InputError, unknown
from labkit.topology.host_ranges import listed

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def groups_of(given: Any, hosts: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the groups of a table [groups], and what is wrong with them.

    A group is a text or a list of names, ranges, and groups that stand above it.

    >>> groups_of({"fast": "gpu[1-2]", "all": ["fast", "cpu"]}, ["gpu1", "gpu2", "cpu"])
    ({'fast': ['gpu1', 'gpu2'], 'all': ['gpu1', 'gpu2', 'cpu']}, [])
    """
    if not isinstance(given, dict):
        return {}, [f"groups is {given!r}; expected a table [groups]"]
    groups: dict[str, list[str]] = {}
    faults: list[str] = []
    for name, members in given.items():
        try:
            groups[name] = _members(name, members, hosts=hosts, groups=groups)
        except InputError as error:
            faults.append(f"group {name}: {str(error).rstrip('.')}")
    return groups, faults


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
