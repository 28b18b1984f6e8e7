"""Tables with one row per host, also for those that failed: answers to a command, outcomes of an action."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

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

SHOWN = 400
"""Most characters of an output that a table shows."""
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
        """Return this table, if every host succeeded; FleetError if hosts failed: which, and why."""
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


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """Result of a command on one host.

    Attributes
    ----------
    host : str
        Its name.
    exited : int or None
        Exit code of the command; -1 if a signal ended it; None if it is unknown.
    stdout, stderr : str
        Output of the command; bytes that are not UTF-8 are replaced.
    seconds : float
        Duration, connecting included.
    error : HostError or None
        Why the command could not be run; None if it ran and failed.
    """

    host: str
    exited: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    error: HostError | None = None

    @property
    def ok(self) -> bool:
        """True if the command ran and its exit code is 0."""
        return self.error is None and self.exited == 0

    @property
    def why(self) -> str:
        """What failed, in one line; empty if nothing did."""
        if self.error is not None:
            return str(self.error)
        last = (self.stderr.strip() or self.stdout.strip()).splitlines()[-1:]
        return "" if self.ok else f"exit code {self.exited}" + "".join(f": {readable(line)}" for line in last)


class Answers(HostRows[HostAnswer]):
    """Answers of hosts to a command."""

    def df(self) -> pd.DataFrame:
        """Return a table: host, exited, stdout, stderr, seconds, error."""
        import pandas as pd

        columns = ("host", "exited", "stdout", "stderr", "seconds")
        values = {name: [getattr(row, name) for row in self.rows] for name in columns}
        frame = pd.DataFrame(values | {"error": ["" if row.error is None else str(row.error) for row in self.rows]})
        return frame.astype({"exited": "Int64"})

    def __str__(self) -> str:
        width = max((len(row.host) for row in self.rows), default=0)
        return "\n".join(f"{row.host:<{width}}  {_line(row)}" for row in self.rows)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{head}</th>" for head in ("", "host", "exited", "output", "seconds"))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(map(_html, self.rows))}</tbody></table>"


def _line(row: HostAnswer) -> str:
    text = row.stdout.strip() if row.ok else row.why
    return f"{'ok' if row.ok else 'FAILED'} {row.seconds:.2f} s  {_short(text)}".rstrip()


def _html(row: HostAnswer) -> str:
    text = html.escape(_short(row.stdout.strip() if row.ok else row.why))
    mark, exited = ("✓" if row.ok else "✗"), ("" if row.exited is None else row.exited)
    return (
        f"<tr><td>{mark}</td><td>{html.escape(row.host)}</td><td>{exited}</td>"
        f'<td style="text-align:left;white-space:pre-wrap">{text}</td><td>{row.seconds:.2f}</td></tr>'
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} … ({len(text) - SHOWN} more characters)"


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

        shown = plain_table("host", "")
        for row in self.rows:
            shown.add_row(Text(row.host), Text(row.did, "" if row.ok else "bold red"))
        return shown

    def failures(self) -> Table:
        """Return the hosts that failed, for a terminal: host, what, hint."""
        from rich.text import Text

        shown = plain_table("failed", "what", "hint")
        for row in self.failed:
            shown.add_row(Text(row.host, "bold red"), Text(row.did), Text(row.hint))
        return shown

    def _repr_html_(self) -> str:
        cells = ([("✓" if row.ok else "✗"), row.host, row.did, row.hint] for row in self.rows)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        return f"<table><tr><th></th><th>host</th><th></th><th>hint</th></tr>{rows}</table>"


def plain_table(*headings: str) -> Table:
    """Return a table without lines, for a terminal; cells are folded to its width."""
    from rich.table import Table

    shown = Table(header_style="bold", box=None, pad_edge=False)
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    return shown


def failure(host: str, error: HostError) -> HostOutcome:
    """Return the outcome of a host that did not answer."""
    hint = next((hint for kind, hint in HINTS.items() if isinstance(error, kind)), "run it again; -H leaves it out")
    return HostOutcome(host, False, str(error), hint)


def readable(text: bytes | str) -> str:
    """Return the beginning of a text from a host, in one line without control characters."""
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "".join(letter if letter.isprintable() else "�" for letter in shown[:500])
