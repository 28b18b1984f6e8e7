"""Watch a run from outside: its record on disk, as it grows. Nothing is written, nothing is asked of hosts."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import typer

from labkit.core.events import Kind
from labkit.core.ledger import DONE, HOLDING, WAITING, Ledger
from labkit.results import files
from labkit.results.lock import writer_of
from labkit.results.record import RunState
from labkit.results.store import REASONS, RunTail, find

if TYPE_CHECKING:
    from rich.table import Table

EVERY_S: Final = 1.0
NOTES: Final = "notes.txt"
SHOWN_NOTES: Final = 5
SHOWN_DECISIONS: Final = 5


class Watched:
    """A run as far as its record goes.

    Parameters
    ----------
    folder : Path
        Of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs, self.cluster = files.read_jobs(folder / "jobs.parquet"), files.read_cluster(folder / "cluster.json")
        self.now_s = 0.0
        self.losses = np.full(len(self.jobs), np.nan)
        self.dropped: set[int] = set()
        self._explained: list[tuple[float, int, int]] = []
        self._ledger, self._tail = Ledger(self.jobs, self.cluster), RunTail(folder)
        self.update()

    def update(self) -> None:
        """Take in what was written since."""
        rows = self._tail.news()
        self.info, self.writer = files.read_info(self.folder / "run.json"), writer_of(self.folder)
        if len(rows):
            self._ledger.fold(rows)
            self.now_s = float(rows["time_s"][-1])
            told = rows[rows["kind"] == Kind.LOSS]
            self.losses[told["job"]] = told["value"]
            why = rows[rows["kind"] == Kind.EXPLAINED][-SHOWN_DECISIONS:]
            self._explained += zip(why["time_s"].tolist(), why["job"].tolist(), why["value"].astype(int), strict=True)
            del self._explained[:-SHOWN_DECISIONS]
            self.dropped |= set(rows["job"][rows["kind"] == Kind.DROPPED].tolist())

    @property
    def going(self) -> bool:
        """Whether a process writes it."""
        return self.writer is not None

    def header(self) -> str:
        """Return the run in a line."""
        names, up = self.cluster.machines, self._ledger.up
        gone = [name for name, there in zip(names, up.tolist(), strict=True) if not there]
        n_done = self._ledger.n_done - len(self.dropped)
        given_up = f", {len(self.dropped)} given up" if self.dropped else ""
        without = f" (without {', '.join(gone)})" if gone else ""
        hosts = f"{len(names) - len(gone)} of {len(names)} hosts{without}"
        return (
            f"{self.info.run}: {self.info.scheduler}, {self.now_s:.0f} s, {n_done} of {len(self.jobs)} jobs done"
            f"{given_up}, {hosts}; {self._state()}"
        )

    def _state(self) -> str:
        if self.writer is not None:
            return f"written by process {self.writer.get('pid', '?')} on {self.writer.get('host', '?')}"
        if self.info.state == RunState.DONE:
            return "over"
        how = "its process is gone" if self.info.state == RunState.RUNNING else str(self.info.state)
        onward = "" if self.info.backend == "simulator" else f"; go on with: labkit attach {self.folder}"
        return f"{how}{onward}"

    def notes(self) -> list[str]:
        """Return the last things that went wrong, in words."""
        try:
            return (self.folder / NOTES).read_text(errors="replace").splitlines()[-SHOWN_NOTES:]
        except OSError:
            return []

    def decisions(self) -> list[str]:
        """Return the last decisions that changed a job, and why, in words."""
        reasons = files.read_reasons(self.folder / REASONS) if self._explained else []
        return [f"{at:.1f} s: job {self.jobs.id[job]}: {reasons[number]}" for at, job, number in self._explained]

    def rows(self) -> list[tuple[str, ...]]:
        """Return for each job that has arrived: id, model, what it does, steps, steps/s, loss, where."""
        belief = self._ledger.belief
        arrived = np.flatnonzero(belief["phase"] > 0).tolist()
        models = self.jobs.model_names()
        return [
            (
                str(self.jobs.id[job]), str(models[job]), self._phase(job),
                f"{belief['steps'][job]:.0f} of {self.jobs.total_steps[job]:.0f}",
                _number(belief["speed"][job] if belief["phase"][job] == HOLDING else math.nan, ".1f"),
                _number(self.losses[job], ".4g"), self._where(job),
            )
            for job in arrived
        ]  # fmt: skip

    def _phase(self, job: int) -> str:
        phase = int(self._ledger.belief["phase"][job])
        if phase == DONE:
            return "given up" if job in self.dropped else "done"
        if phase == WAITING:
            return "waits"
        return "starts" if self._ledger.belief["speed"][job] == 0 else "trains"

    def _where(self, job: int) -> str:
        _, _, group, count = self._ledger.book.of(np.array([job], np.int32))
        found: dict[str, int] = {}
        for each, n in zip(group.tolist(), count.tolist(), strict=True):
            name = self.cluster.machines[self.cluster.group_machine[each]]
            found[name] = found.get(name, 0) + int(n)
        return ", ".join(f"{name} ({n})" for name, n in found.items())


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else ""


def shown(run: Watched) -> Table:
    """Return a run as a table for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    below = [*run.decisions(), *run.notes()]
    table = Table(title=escape(run.header()), caption=escape("\n".join(below)), title_justify="left",
                  caption_justify="left", box=None)  # fmt: skip
    for name in ("job", "model", "does", "steps", "steps/s", "loss", "tasks on"):
        table.add_column(name, justify="right" if name in ("steps", "steps/s", "loss") else "left")
    for row in run.rows():
        table.add_row(*map(escape, row))
    return table


def watch(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under --folder.", metavar="RUN")],
    folder: Annotated[Path, typer.Option(help="Where runs are kept, each in a folder of its own.")] = Path("runs"),
    once: Annotated[
        bool, typer.Option("--once", help="Show it as it is, and end; as where there is no terminal.")
    ] = False,
) -> None:
    """Show how far a run is, from any terminal, until it ends; exit code 1 if it stopped before its end."""
    from rich.console import Console
    from rich.live import Live

    seen, console = Watched(find(run, root=folder)), Console()
    if not once and sys.stdout.isatty():
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while seen.going:
                live.update(shown(seen), refresh=True)
                time.sleep(EVERY_S)
                seen.update()
    console.print(shown(seen))
    raise typer.Exit(0 if seen.going or seen.info.state == RunState.DONE else 1)
