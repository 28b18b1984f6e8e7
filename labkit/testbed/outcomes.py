"""What became of something that was done on several hosts: a row per host, also where it failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from labkit.core.errors import unknown
from labkit.testbed.answers import Answer
from labkit.testbed.errors import (
    ChangedKeyError,
    FleetError,
    HostError,
    LoginError,
    OverdueError,
    UnknownKeyError,
    UnreachableError,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

HINTS: dict[type[HostError], str] = {
    UnknownKeyError: "compare the fingerprint with the host's own, then: fab trust",
    ChangedKeyError: "only if it is new on purpose: remove the old key, then fab trust",
    LoginError: "put the public key into ~/.ssh/authorized_keys there, or name another user or key in the inventory",
    UnreachableError: "is it up, and its address right? -H leaves it out",
    OverdueError: "is it up, and does a firewall let SSH through? -H leaves it out",
}
NO_PROGRAM = 127
"""What a shell says where there is no such program."""


@dataclass(frozen=True, slots=True)
class Outcome:
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

    rows: tuple[Outcome, ...]

    @classmethod
    def of(cls, rows: Iterable[Outcome]) -> Self:
        """Gather rows."""
        return cls(tuple(rows))

    @property
    def ok(self) -> bool:
        """True if it worked on every host."""
        return not self.failed

    @property
    def failed(self) -> tuple[Outcome, ...]:
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

    def __getitem__(self, host: str) -> Outcome:
        found = next((row for row in self.rows if row.host == host), None)
        if found is None:
            raise unknown("host", host, [row.host for row in self.rows])
        return found

    def __iter__(self) -> Iterator[Outcome]:
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


def failure(host: str, error: HostError) -> Outcome:
    """Return the outcome of a host that could not be asked."""
    hint = next((hint for kind, hint in HINTS.items() if isinstance(error, kind)), "run it again; -H leaves it out")
    return Outcome(host, False, str(error), hint)


def said(answer: Answer, *, program: str) -> dict[str, Any] | Outcome:
    """Return the JSON object that a program of ours printed last on a host, or why it did not.

    Parameters
    ----------
    answer : Answer
        Of the host.
    program : str
        What was run there, for the message.
    """
    if answer.error is not None:
        return failure(answer.host, answer.error)
    if answer.exited == NO_PROGRAM:
        hint = "install it there, or name the right one in the inventory: ssh = { python = ... }"
        return Outcome(answer.host, False, f"there is no program {program}", hint)
    found = last_object(answer.stdout)
    if answer.exited != 0 or found is None:
        return Outcome(
            answer.host, False, f"{program}: {answer.why or 'said nothing that labkit knows'}", "run it again"
        )
    if "error" in found:
        return Outcome(answer.host, False, str(found["error"]), str(found.get("hint", "")))
    return found


def last_object(text: str) -> dict[str, Any] | None:
    r"""Return the JSON object on the last line of a text that is one; a login's own greetings come before it.

    >>> last_object('Welcome!\n{"python": "3.11.7"}\n')
    {'python': '3.11.7'}
    """
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            return found if isinstance(found, dict) else None
    return None
