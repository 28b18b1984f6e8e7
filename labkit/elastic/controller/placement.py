"""Who is to sit where: from what somebody asks for to who starts and who goes; pure functions of members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from labkit.core.errors import InputError, unknown
from labkit.elastic.protocol.commands import Role

JobPlacement = Mapping[str, tuple[int, int]]
"""Workers and servers of each site; a site that is not named has none."""

ROLES: tuple[Role, Role] = ("server", "worker")


class MemberPlacement(NamedTuple):
    """A member, and where it sits."""

    name: str
    role: Role
    site: str


class MembershipChange(NamedTuple):
    """Who is to start, (role, site) each, and who goes, by name."""

    starts: list[tuple[Role, str]]
    going: list[str]

    def net(self, role: Role, sitting: Iterable[MemberPlacement]) -> int:
        """Return how many more of a role there will be."""
        gone = sum(one.role == role and one.name in self.going for one in sitting)
        return sum(started == role for started, _ in self.starts) - gone


def of_role(place: JobPlacement, role: Role) -> dict[str, int]:
    """Return how many of a role sit on each site.

    >>> of_role({"a": (2, 1), "b": (0, 1)}, "server")
    {'a': 1, 'b': 1}
    """
    return {site: (servers if role == "server" else workers) for site, (workers, servers) in place.items()}


def checked(place: Mapping[str, Sequence[int]], *, sites: Mapping[str, str], lost: Collection[str]) -> JobPlacement:
    """Return what a user asks for.

    Parameters
    ----------
    place : mapping
        Workers and servers by name of the site.
    sites : mapping
        The host of each site.
    lost : collection of str
        Hosts that are gone.

    Raises
    ------
    InputError
        If there is no such site, its host is gone, or a number is none.
    """
    for site, numbers in place.items():
        if site not in sites:
            raise unknown("site", str(site), tuple(sites))
        if not _are_numbers(numbers):
            raise InputError(f"site '{site}' is to have {numbers!r}; expected how many workers and how many servers.")
        if any(numbers) and sites[site] in lost:
            raise InputError(f"site '{site}' is on host {sites[site]}, which is lost; give another one.")
    return {site: (numbers[0], numbers[1]) for site, numbers in place.items()}


def _are_numbers(numbers: Any) -> bool:
    pair = isinstance(numbers, (list, tuple)) and len(numbers) == 2
    return pair and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)


def to_place(place: JobPlacement, sitting: Sequence[MemberPlacement]) -> MembershipChange:
    """Return the fewest changes after which so many of each sit where; who came last goes first.

    >>> seats = [MemberPlacement("worker-0", "worker", "a"), MemberPlacement("worker-1", "worker", "a")]
    >>> to_place({"b": (1, 0)}, seats)
    MembershipChange(starts=[('worker', 'b')], going=['worker-0', 'worker-1'])
    """
    change = MembershipChange([], [])
    for role in ROLES:
        wanted = of_role(place, role)
        for site in dict.fromkeys((*wanted, *(one.site for one in sitting))):
            here = [one.name for one in sitting if (one.role, one.site) == (role, site)]
            n = wanted.get(site, 0)
            change.starts.extend((role, site) for _ in range(n - len(here)))
            change.going.extend(here[n:])
    return change


def by_numbers(
    more: Mapping[Role, int], sitting: Sequence[MemberPlacement], *, replace: Collection[str], sites: Sequence[str]
) -> MembershipChange:
    """Return who comes and goes where so many more are asked for (or fewer, below 0), and some are to be replaced.

    Whoever comes for another takes its site, if that is one of `sites`; others sit where the fewest are.
    """
    again = [one for one in sitting if one.name in replace]
    change = MembershipChange([], [one.name for one in again])
    for role in ROLES:
        stay = [one for one in sitting if one.role == role and one.name not in replace]
        change.going.extend(one.name for one in (stay[more[role] :] if more[role] < 0 else []))
        counts = Counter(one.site for one in stay)
        anywhere = [""] * max(more[role], 0)
        for site in (*(one.site for one in again if one.role == role), *anywhere):
            chosen = site if site in sites else fewest(counts, sites)
            counts[chosen] += 1
            change.starts.append((role, chosen))
    return change


def fewest(counts: Mapping[str, int], sites: Sequence[str]) -> str:
    """Return the site with the fewest, the first one of several.

    >>> fewest({"a": 2, "b": 1}, ["a", "b", "c"])
    'c'
    """
    return min(sites, key=lambda site: counts.get(site, 0))
