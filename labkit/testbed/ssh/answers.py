"""Results of a command on hosts: one row per host, also for those that failed."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.testbed.errors import HostError
from labkit.testbed.ssh.frames import readable
from labkit.testbed.ssh.host_rows import HostRows

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 400
"""Most characters of an output that a table shows."""


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
        made = {name: [getattr(row, name) for row in self.rows] for name in columns}
        frame = pd.DataFrame(made | {"error": ["" if row.error is None else str(row.error) for row in self.rows]})
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
