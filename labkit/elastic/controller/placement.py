"""Placement of members on sites: which members start and which leave to get from one placement to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from labkit.core.errors import InputError, unknown
from labkit.elastic.protocol.messages.struct import Role

JobPlacement = Mapping[str, tuple[int, int]]
"""Workers and servers of each site; a site that is not named has no member."""

ROLES: tuple[Role, Role] = ("server", "worker")


class MemberPlacement(NamedTuple):
    """A member, and its site."""

    name: str
    role: Role
    site: str


class MembershipChange(NamedTuple):
    """Members to start, (role, site) each, and names of the members that leave."""

    starts: list[tuple[Role, str]]
    going: list[str]

    def net(self, role: Role, sitting: Iterable[MemberPlacement]) -> int:
        """Return by how many members of a role the job grows."""
        gone = sum(one.role == role and one.name in self.going for one in sitting)
        return sum(started == role for started, _ in self.starts) - gone


def of_role(place: JobPlacement, role: Role) -> dict[str, int]:
    """Return the number of members of a role on each site.

    >>> of_role({"a": (2, 1), "b": (0, 1)}, "server")
    {'a': 1, 'b': 1}
    """
    return {site: (servers if role == "server" else workers) for site, (workers, servers) in place.items()}


def checked(place: Mapping[str, Sequence[int]], *, sites: Mapping[str, str], lost: Collection[str]) -> JobPlacement:
    """Return the placement that a user asks for, checked.

    Raise InputError if there is no such site, its host is lost, or a number is no whole number, 0 or more.

    Parameters
    ----------
    place : mapping
        Workers and servers by name of the site.
    sites : mapping
        The host of each site.
    lost : collection of str
        Hosts that are lost.
    """
    for site, numbers in place.items():
        if site not in sites:
            raise unknown("site", str(site), tuple(sites))
        if not _are_numbers(numbers):
            raise InputError(f"site '{site}' is to have {numbers!r}; expected how many workers and how many servers.")
        if any(numbers) and sites[site] in lost:
            raise InputError(f"site '{site}' is on host {sites[site]}, which is lost; give another one.")
    return {site: (numbers[0], numbers[1]) for site, numbers in place.items()}


def first_members(
    place: Mapping[str, Sequence[int]], *, sites: Mapping[str, str], n_blocks: int
) -> list[tuple[Role, str]]:
    """Return role and site of each member that a job starts with, servers first.

    InputError: see `checked`; or if a role has no member, or there are more servers than blocks.
    """
    seats = checked(place, sites=sites, lost=())
    for role in ROLES:
        if sum(of_role(seats, role).values()) < 1:
            raise InputError(f"a job with {sum(of_role(seats, role).values())} {role}s; expected at least one.")
    n_servers = sum(of_role(seats, "server").values())
    if n_servers > n_blocks:
        raise InputError(f"{n_servers} servers for {n_blocks} blocks; expected at most one per block.")
    return [(role, site) for role in ROLES for site, n in of_role(seats, role).items() for _ in range(n)]


def _are_numbers(numbers: Any) -> bool:
    pair = isinstance(numbers, (list, tuple)) and len(numbers) == 2
    return pair and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)


def to_place(place: JobPlacement, sitting: Sequence[MemberPlacement]) -> MembershipChange:
    """Return the fewest changes that lead to a placement; on each site the newest members leave first.

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
    """Return the changes that add members of each role (or remove the newest, below 0) and replace some.

    A replacement starts on the site of the member that it replaces, if that is one of `sites`; other new members start
    on the site with the fewest of their role.
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
    """Return the site with the fewest members, the first one of several.

    >>> fewest({"a": 2, "b": 1}, ["a", "b", "c"])
    'c'
    """
    return min(sites, key=lambda site: counts.get(site, 0))
