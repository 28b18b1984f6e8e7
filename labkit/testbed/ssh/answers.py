"""What hosts answered: one row per host, also for those that failed."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from labkit.core.errors import unknown
from labkit.testbed.errors import FleetError, HostError
from labkit.testbed.ssh.frames import readable

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 400
"""Characters of an output that a table shows."""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What one host answered.

    Attributes
    ----------
    host : str
        Its name.
    exited : int or None
        Exit code of the command; -1 if a signal ended it; None where it is not known.
    stdout, stderr : str
        What it said; bytes that are not UTF-8 are replaced.
    seconds : float
        How long it took, connecting included.
    error : HostError or None
        Why the host could not do it; a command that failed is none.
    """

    host: str
    exited: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    error: HostError | None = None

    @property
    def ok(self) -> bool:
        """True if the host did it, and the command said so."""
        return self.error is None and self.exited == 0

    @property
    def why(self) -> str:
        """What went wrong, in one line; empty where nothing did."""
        if self.error is not None:
            return str(self.error)
        last = (self.stderr.strip() or self.stdout.strip()).splitlines()[-1:]
        return "" if self.ok else f"exit code {self.exited}" + "".join(f": {readable(line)}" for line in last)


@dataclass(frozen=True)
class Answers:
    """What some hosts answered, in the order of the inventory."""

    rows: tuple[HostAnswer, ...]

    @property
    def ok(self) -> bool:
        """True if every host did it."""
        return not self.failed

    @property
    def failed(self) -> tuple[HostAnswer, ...]:
        """The rows of those that did not."""
        return tuple(row for row in self.rows if not row.ok)

    def checked(self) -> Self:
        """Return this, if every host did it.

        Raises
        ------
        FleetError
            If one did not: which, and why.
        """
        if self.failed:
            listed = "; ".join(f"{row.host}: {row.why}" for row in self.failed)
            raise FleetError(f"{len(self.failed)} of {len(self.rows)} hosts failed: {listed}")
        return self

    def df(self) -> pd.DataFrame:
        """Return a table: host, exited, stdout, stderr, seconds, error."""
        import pandas as pd

        columns = ("host", "exited", "stdout", "stderr", "seconds")
        made = {name: [getattr(row, name) for row in self.rows] for name in columns}
        frame = pd.DataFrame(made | {"error": ["" if row.error is None else str(row.error) for row in self.rows]})
        return frame.astype({"exited": "Int64"})

    def __getitem__(self, host: str) -> HostAnswer:
        found = next((row for row in self.rows if row.host == host), None)
        if found is None:
            raise unknown("host", host, [row.host for row in self.rows])
        return found

    def __iter__(self) -> Iterator[HostAnswer]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        width = max((len(row.host) for row in self.rows), default=0)
        return "\n".join(f"{row.host:<{width}}  {_told(row)}" for row in self.rows)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{head}</th>" for head in ("", "host", "exited", "said", "seconds"))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(map(_html, self.rows))}</tbody></table>"


def joined(rows: Sequence[HostAnswer]) -> Answers:
    """Return rows as answers."""
    return Answers(tuple(rows))


def _told(row: HostAnswer) -> str:
    said = row.stdout.strip() if row.ok else row.why
    return f"{'ok' if row.ok else 'FAILED'} {row.seconds:.2f} s  {_short(said)}".rstrip()


def _html(row: HostAnswer) -> str:
    said = html.escape(_short(row.stdout.strip() if row.ok else row.why))
    mark, exited = ("✓" if row.ok else "✗"), ("" if row.exited is None else row.exited)
    return (
        f"<tr><td>{mark}</td><td>{html.escape(row.host)}</td><td>{exited}</td>"
        f'<td style="text-align:left;white-space:pre-wrap">{said}</td><td>{row.seconds:.2f}</td></tr>'
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} … ({len(text) - SHOWN} more characters)"
