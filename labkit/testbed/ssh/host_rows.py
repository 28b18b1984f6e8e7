"""A table with one row per host, in the order of the inventory; hosts that failed have a row like all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from labkit.core.errors import unknown
from labkit.testbed.errors import FleetError


class HostRow(Protocol):
    """What a row has: its host, whether that succeeded, and why not."""

    @property
    def host(self) -> str:
        """Name of the host."""

    @property
    def ok(self) -> bool:
        """Whether the host succeeded."""

    @property
    def why(self) -> str:
        """What failed, in one line."""


RowT = TypeVar("RowT", bound=HostRow)


@dataclass(frozen=True)
class HostRows(Generic[RowT]):
    """Rows of hosts."""

    rows: tuple[RowT, ...]

    @classmethod
    def of(cls, rows: Iterable[RowT]) -> Self:
        """Return a table of rows."""
        return cls(tuple(rows))

    @property
    def ok(self) -> bool:
        """True if every host succeeded."""
        return not self.failed

    @property
    def failed(self) -> tuple[RowT, ...]:
        """The rows of hosts that failed."""
        return tuple(row for row in self.rows if not row.ok)

    def checked(self) -> Self:
        """Return this table, if every host succeeded.

        Raises
        ------
        FleetError
            If hosts failed: which, and why.
        """
        if self.failed:
            listed = "; ".join(f"{row.host}: {row.why}" for row in self.failed)
            raise FleetError(f"{len(self.failed)} of {len(self.rows)} hosts failed: {listed}")
        return self

    def __getitem__(self, host: str) -> RowT:
        found = next((row for row in self.rows if row.host == host), None)
        if found is None:
            raise unknown("host", host, [row.host for row in self.rows])
        return found

    def __iter__(self) -> Iterator[RowT]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)
