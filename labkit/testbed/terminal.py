"""Output of tasks on hosts in a terminal: lines with the name of their host, and tables at the end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from labkit.system.printing import printable, terminal

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from labkit.testbed.doctor import DoctorReport
    from labkit.testbed.ssh.connect import KeyTable as Keys
    from labkit.testbed.ssh.outcomes import Outcomes

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
WIDE = 240
"""Columns of a table in a file."""
OnLine = Callable[[str, str], None]


def console(file: TextIO | None = None) -> Console:
    """Return the console for tables; in a file, lines are not folded to the width of a terminal."""
    return terminal(file, width=None if (file or sys.stdout).isatty() else WIDE)


def line_printer(hosts: Iterable[str], *, file: TextIO | None = None) -> OnLine:
    """Return a function (host, line) that prints lines with their host's name, in a colour per host.

    Control characters of a line do not reach the terminal. Several threads may call it.
    """
    from rich.text import Text

    names = list(hosts)
    width = max(map(len, names), default=0)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    shown, lock = console(file), threading.Lock()

    def print_line(host: str, line: str) -> None:
        text = Text(f"{host:<{width}} │ ", colours.get(host, "")).append(printable(line, keep="\t"), "default")
        with lock:
            shown.print(text, soft_wrap=True)

    return print_line


def show(outcomes: Outcomes, *, file: TextIO | None = None) -> bool:
    """Print outcomes of hosts, failures in a table of their own; return whether there is none."""
    out = console(file)
    outcomes = type(outcomes).of(replace(row, did=printable(row.did), hint=printable(row.hint)) for row in outcomes)
    if any(row.ok for row in outcomes):
        out.print(type(outcomes).of(row for row in outcomes if row.ok).table())
    if outcomes.failed:
        out.print(outcomes.failures())
        out.print(f"{len(outcomes.failed)} of {len(outcomes)} hosts failed.", style="bold red")
    return outcomes.ok


def show_examined(examined: DoctorReport, *, file: TextIO | None = None) -> bool:
    """Print the findings of an examination with remedies; return whether jobs can run on every host."""
    out = console(file)
    found = (replace(each, found=printable(each.found), hint=printable(each.hint)) for each in examined.findings)
    examined = type(examined)(found)
    out.print(examined.table())
    if any(finding.hint for finding in examined.findings):
        out.print()
        out.print(examined.hints())
    out.print()
    n = len(examined.hosts)
    if examined.ok:
        out.print(f"Jobs can run on all {n} hosts." if n > 1 else "Jobs can run there.")
    else:
        out.print(
            f"Jobs cannot run on {len(examined.faulty)} of {n} hosts: {', '.join(examined.faulty)}.", style="bold red"
        )
    return examined.ok


def show_frame(frame: pd.DataFrame, *, file: TextIO | None = None) -> None:
    """Print a table of numbers."""
    from rich.table import Table

    shown = Table(header_style="bold", box=None, pad_edge=False)
    for column in frame.columns:
        shown.add_column(str(column), justify="left" if frame[column].dtype.kind not in "fi" else "right")
    for row in frame.itertuples(index=False):
        shown.add_row(*(f"{cell:,.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    console(file).print(shown)


def agreed(*, yes: bool = False) -> Callable[[Keys], bool]:
    """Return a function that shows new keys and asks for confirmation; with `yes` it does not ask.

    Without a terminal the answer is no.
    """

    def ask(keys: Keys) -> bool:
        for key in keys:
            print(f"{key.host}: {key.kind} {key.fingerprint}", file=sys.stderr)
        if yes:
            return True
        if not sys.stdin.isatty():
            return False
        return input("Are these the fingerprints of the hosts (ssh-keygen -lf there)? [y/N] ").strip().lower() == "y"

    return ask


def key_outcomes(keys: Keys) -> Outcomes:
    """Return the states of keys as outcomes; hosts whose key is not trusted are failures."""
    from labkit.testbed.ssh.connect import KeyState
    from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes

    hints = {KeyState.NEW: "compare it with the host's own, then: fab trust --yes"}
    rows = []
    for key in keys:
        shown = f"{key.state}: {key.kind} {key.fingerprint}"
        did, hint = (key.error, "-H leaves it out") if key.state == KeyState.FAILED else (shown, key.error)
        rows.append(HostOutcome(key.host, key.ok, did, "" if key.ok else hints.get(key.state, hint)))
    return Outcomes.of(rows)
