"""Outcomes of an action on several hosts: a row per host, also for those that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

from labkit.testbed.errors import (
    ChangedKeyError,
    HostError,
    HostMessageError,
    HostUnreachableError,
    LoginError,
    OverdueError,
    ShellError,
    UnknownKeyError,
)
from labkit.testbed.ssh.host_rows import HostRows

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
"""Exit code of a shell for a program that does not exist."""


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """Outcome of an action on one host.

    Attributes
    ----------
    host : str
        Its name.
    ok : bool
        Whether it succeeded.
    did : str
        What was done, in a few words, or what failed.
    hint : str
        Remedy of a failure; else empty.
    numbers : mapping
        Counts and amounts by name; names end in their units.
    """

    host: str
    ok: bool
    did: str
    hint: str = ""
    numbers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def why(self) -> str:
        """What failed; empty if nothing did."""
        return "" if self.ok else self.did


class Outcomes(HostRows[HostOutcome]):
    """Outcomes of an action on all hosts."""

    def df(self) -> pd.DataFrame:
        """Return a table: host, ok, did, hint, and a column for each number."""
        import pandas as pd

        return pd.DataFrame(
            [{"host": row.host, "ok": row.ok, "did": row.did, "hint": row.hint, **row.numbers} for row in self.rows]
        )

    def table(self) -> Table:
        """Return host and outcome, for a terminal."""
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
    """Return the outcome of a host that did not answer."""
    hint = next((hint for kind, hint in HINTS.items() if isinstance(error, kind)), "run it again; -H leaves it out")
    return HostOutcome(host, False, str(error), hint)
