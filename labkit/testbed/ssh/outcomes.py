"""What became of something that was done on several hosts: a row per host, also where it failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from labkit.core.errors import unknown
from labkit.testbed.errors import (
    ChangedKeyError,
    FleetError,
    HostError,
    HostMessageError,
    HostUnreachableError,
    LoginError,
    OverdueError,
    ShellError,
    UnknownKeyError,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

HINTS: dict[type[HostError], str] = {
    UnknownKeyError: "compare the fingerprint with the host's own, then: fab trust",
    ChangedKeyError: "only if it is new on purpose: remove the old key, then fab trust",
    LoginError: "put the public key into ~/.ssh/authorized_keys there, or name another user or key in the inventory",
    HostUnreachableError: "is it up, and its address right? -H leaves it out",
    ShellError: "-H leaves it out",
    HostMessageError: "nothing of it was used; is that host what you think it is? -H leaves it out",
    OverdueError: "is it up, and does a firewall let SSH through? -H leaves it out",
}
NO_PROGRAM = 127
"""What a shell says where there is no such program."""


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """What became of it on one host.

    Attributes
    ----------
    host : str
        Its name.
    ok : bool
        Whether it worked.
    did : str
        What was done, in a few words; what went wrong, where it did not work.
    hint : str
        What to do about it; empty where it worked.
    numbers : mapping
        What can be counted, by name; names end in their units.
    """

    host: str
    ok: bool
    did: str
    hint: str = ""
    numbers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Outcomes:
    """What became of it on all hosts, in the order of the inventory."""

    rows: tuple[HostOutcome, ...]

    @classmethod
    def of(cls, rows: Iterable[HostOutcome]) -> Self:
        """Gather rows."""
        return cls(tuple(rows))

    @property
    def ok(self) -> bool:
        """True if it worked on every host."""
        return not self.failed

    @property
    def failed(self) -> tuple[HostOutcome, ...]:
        """The rows of the hosts where it did not work."""
        return tuple(row for row in self.rows if not row.ok)

    def checked(self) -> Self:
        """Return this, if it worked on every host.

        Raises
        ------
        FleetError
            If it did not: on which, and why.
        """
        if self.failed:
            listed = "; ".join(f"{row.host}: {row.did}" for row in self.failed)
            raise FleetError(f"{len(self.failed)} of {len(self.rows)} hosts failed: {listed}")
        return self

    def df(self) -> pd.DataFrame:
        """Return a table: host, ok, did, hint, and a column for each number."""
        import pandas as pd

        return pd.DataFrame(
            [{"host": row.host, "ok": row.ok, "did": row.did, "hint": row.hint, **row.numbers} for row in self.rows]
        )

    def table(self) -> Table:
        """Return what was done, for a terminal."""
        from rich.text import Text

        shown = _table("host", "")
        for row in self.rows:
            shown.add_row(Text(row.host), Text(row.did, "" if row.ok else "bold red"))
        return shown

    def failures(self) -> Table:
        """Return the hosts that failed, for a terminal: host, what, hint."""
        from rich.text import Text

        shown = _table("failed", "what", "hint")
        for row in self.failed:
            shown.add_row(Text(row.host, "bold red"), Text(row.did), Text(row.hint))
        return shown

    def __getitem__(self, host: str) -> HostOutcome:
        found = next((row for row in self.rows if row.host == host), None)
        if found is None:
            raise unknown("host", host, [row.host for row in self.rows])
        return found

    def __iter__(self) -> Iterator[HostOutcome]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        cells = ([("✓" if row.ok else "✗"), row.host, row.did, row.hint] for row in self.rows)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        return f"<table><tr><th></th><th>host</th><th></th><th>hint</th></tr>{rows}</table>"


def _table(*headings: str) -> Table:
    from rich.table import Table

    shown = Table(header_style="bold", box=None, pad_edge=False)
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    return shown


def failure(host: str, error: HostError) -> HostOutcome:
    """Return the outcome of a host that could not be asked."""
    hint = next((hint for kind, hint in HINTS.items() if isinstance(error, kind)), "run it again; -H leaves it out")
    return HostOutcome(host, False, str(error), hint)
