"""What a view in a browser is told of a run: everything once, and then only what is new.

A feed belongs to one run and one view. The page of `labkit watch --browser` and the widgets of notebooks get the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from labkit.live.board import as_bytes
from labkit.live.decisions import when
from labkit.live.model import LiveModel, WatchedSource
from labkit.live.signals import FIRST_LOSS, Signal
from labkit.plots.palette import HELD, NO_GPU, colour
from labkit.results.record import RunRecord

HERE: Final = Path(__file__).parent
MOST_TOLD: Final = 60
"""Decisions that a list shows."""

FeedMessage = tuple[dict[str, Any], bytes]
"""What is told: a message that JSON can hold, and rows of 32-bit floats."""


def source(*names: str, folder: Path = HERE) -> str:
    """Return the text of files of this package, one after the other."""
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


@dataclass(frozen=True, slots=True)
class Ghost:
    """What an earlier run leaves on a live Gantt: when it completed each job."""

    name: str
    colour: str
    """`name` and `colour`: in the legend."""
    done_s: tuple[float | None, ...]
    """(N,) seconds, None where it completed none."""

    @classmethod
    def of(cls, record: RunRecord) -> Ghost:
        """Return the ghost of a record."""
        done = np.full(len(record.jobs), np.nan)
        done[record.table["job"].to_numpy()] = record.table["completion_s"].to_numpy()
        name = record.info.scheduler
        return cls(name, colour(name), tuple(None if np.isnan(time_s) else float(time_s) for time_s in done))

    @property
    def end_s(self) -> float:
        """When the last job was completed."""
        return max((time_s for time_s in self.done_s if time_s is not None), default=0.0)


class Feed:
    """What one view is told of one run.

    `run`: it is read with its model's lock held; `ghosts`: earlier runs, for views that show them.
    """

    scripts: ClassVar[tuple[str, ...]]
    """Files of this package that paint it, in this order one module."""

    def __init__(self, run: WatchedSource, *, ghosts: Sequence[Ghost] = ()) -> None:
        self.run, self.ghosts = run, tuple(ghosts)
        self._n_told = 0

    def everything(self) -> FeedMessage:
        """Return all there is."""
        with self.run.model.lock:
            rows = self.rows()
            self._n_told = len(rows)
            return {"kind": "all", "until": self._guess_s()} | self.frame() | self._moment(), as_bytes(rows)

    def news(self) -> FeedMessage:
        """Return the news since the last call."""
        with self.run.model.lock:
            new = self.rows()[self._n_told :]
            self._n_told += len(new)
            return {"kind": "new"} | self._moment(), as_bytes(new)

    def _guess_s(self) -> float:
        """Return how long the time axis is at first."""
        return max(1.05 * float(self.run.model.jobs.arrival_s[-1]), *(ghost.end_s for ghost in self.ghosts), 0.0)

    def _moment(self) -> dict[str, Any]:
        return {"now": self.run.now_s, "over": self.run.status.state == "done"} | self.now()

    # --- what a kind of feed tells

    def rows(self) -> Sequence[tuple[float, ...]]:
        """Return the history that is painted; it only grows."""
        raise NotImplementedError

    def frame(self) -> dict[str, Any]:
        """Return the constants of a run."""
        raise NotImplementedError

    def now(self) -> dict[str, Any]:
        """Return the state of this moment."""
        return {}


class GanttFeed(Feed):
    """When each job runs: a row per job in order of arrival, a bar while it holds tasks, darker with more GPUs."""

    scripts = ("timeline.js", "gantt.js")

    def rows(self) -> Sequence[tuple[float, ...]]:
        """Return (job, time_s, what it does from then on, GPUs)."""
        return self.run.model.board.changes.jobs

    def frame(self) -> dict[str, Any]:
        """Return the jobs, the colours and the earlier runs."""
        jobs, board = self.run.model.jobs, self.run.model.board
        shown = [ghost for ghost in self.ghosts if len(ghost.done_s) == len(jobs)]
        return {
            "title": f"Jobs over time under {self.run.name}",
            "held": HELD,
            "none": NO_GPU,
            "unit": board.unit,
            "jobs": [[str(id), str(model)] for id, model in zip(jobs.id, jobs.model_names(), strict=True)],
            "ghosts": [{"name": g.name, "colour": g.colour, "done_s": g.done_s} for g in shown],
        }

    def now(self) -> dict[str, Any]:
        """Return the end of the scale of colours: the most that a job has held so far, as in `plot_gantt`."""
        return {"most": max(self.run.model.board.most_held, 1.0)}


class HeatMapFeed(Feed):
    """How full each machine is: over time, and its GPUs now; device groups stand apart."""

    scripts = ("timeline.js", "heat_map.js")

    def __init__(self, run: WatchedSource, *, ghosts: Sequence[Ghost] = ()) -> None:
        super().__init__(run, ghosts=ghosts)
        self._groups: dict[int, tuple[int, float, str]] = {}

    def everything(self) -> FeedMessage:
        """Return all there is."""
        self._groups = {}
        return super().everything()

    def rows(self) -> Sequence[tuple[float, ...]]:
        """Return (machine, time_s, GPUs held there from then on)."""
        return self.run.model.board.changes.machines

    def frame(self) -> dict[str, Any]:
        """Return the machines and their device groups."""
        cluster, board = self.run.model.cluster, self.run.model.board
        each = cluster.capacity[:, board.resource]
        built = np.bincount(cluster.group_machine, each, cluster.n_machines)
        return {
            "title": f"How full the machines are under {self.run.name}",
            "machines": [list(pair) for pair in zip(cluster.machines, built.tolist(), strict=True)],
            "unit": board.unit,
            "owners": [[int(machine), float(gpus)] for machine, gpus in zip(cluster.group_machine, each, strict=True)],
        }

    def now(self) -> dict[str, Any]:
        """Return the load of the device groups where it changed since the last time, and whose it is."""
        by_group = {group: _group(self.run.model, group) for group in range(self.run.model.cluster.n_groups)}
        changed = [row for group, row in by_group.items() if self._groups.get(group) != row]
        self._groups = by_group
        return {"groups": changed}


def _group(model: LiveModel, group: int) -> tuple[int, float, str]:
    board = model.board
    held = board.tasks.get(group, {})
    gone = board.down(int(board.cluster.group_machine[group]))
    says = ", ".join(f"job {board.jobs.id[job]}: {gpus:g} {board.unit}" for job, gpus in held.items() if gpus)
    return group, -1.0 if gone else sum(held.values()), says


class SignalsFeed(Feed):
    """How a run does over time: throughput, queue, cores, GPUs, link utilisation and losses, one below the other."""

    scripts = ("timeline.js", "signals.js")

    def rows(self) -> Sequence[tuple[float, ...]]:
        """Return (line, time_s, value from then on)."""
        return self.run.model.signals.history

    def frame(self) -> dict[str, Any]:
        """Return the panels, each with its lines, and the jobs' names."""
        signals = self.run.model.signals
        names = signals.names()

        def panel(title: str, **lines: Signal) -> dict[str, Any]:
            curves = [[int(signal), name.replace("_", " ")] for name, signal in lines.items()]
            return {"title": title, "lines": curves, "share": Signal.LINK_LOAD in lines.values()}

        unsized = signals.n_unsized
        without = f"; {unsized} jobs of unknown size left out" if unsized else ""
        return {
            "title": f"How {self.run.name} does",
            "panels": [
                panel(names[Signal.THROUGHPUT].capitalize(), measured=Signal.THROUGHPUT, predicted=Signal.PREDICTED),
                panel("Jobs", running=Signal.RUNNING, waiting=Signal.WAITING),
                panel("Cores", held=Signal.CORES_HELD, used=Signal.CORES_USED),
                panel("GPUs", held=Signal.GPUS_HELD),
                panel(f"Utilisation of the busiest link (predicted{without})", utilisation=Signal.LINK_LOAD),
                {"title": "Training loss", "lines": [], "losses": FIRST_LOSS},
            ],
            "jobs": [str(id) for id in self.run.model.jobs.id],
        }

    def now(self) -> dict[str, Any]:
        """Return the newest values, since when, and in words."""
        signals = self.run.model.signals
        texts = {int(signal): signals.said(signal) for signal in signals.latest}
        return {"said": texts, "since": signals.now_s, "latest": {int(each): n for each, n in signals.latest.items()}}


def decisions_of(model: LiveModel, *, most: int = MOST_TOLD) -> list[list[str]]:
    """Return (when, about what, what was done, why) of the newest decisions, the newest first."""
    with model.lock:
        newest = list(model.decisions.entries)[: -most - 1 : -1]
        return [[when(entry.time_s), entry.about, entry.what, entry.why] for entry in newest]
