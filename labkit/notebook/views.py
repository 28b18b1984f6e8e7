"""Live views of a run: the Gantt, the heat-map and the metric cards. They paint what the board tells, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anywidget
import numpy as np
import traitlets

from labkit.core.resources import GPUS
from labkit.notebook.board import as_bytes
from labkit.notebook.run import LiveRun
from labkit.plots.theme import FAINT, FONT, HEAT, INK, LINE, MUTED, PAPER, colour, human_s
from labkit.results import RunRecord

HERE: Final = Path(__file__).parent
LOOK: Final = {
    "ink": INK, "muted": MUTED, "line": "#c3cad5", "faint": FAINT, "paper": PAPER, "font": FONT, "heat": list(HEAT),
    "down": "#e7b4b0", "axis": LINE,
}  # fmt: skip


def source(*names: str) -> str:
    """Return the text of files of this package, one after the other."""
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


@dataclass(frozen=True, slots=True)
class Ghost:
    """What an earlier run leaves on a live Gantt: when it completed each job.

    Attributes
    ----------
    name, colour : str
        In the legend.
    done_s : tuple
        (N,) seconds, None where it completed none.
    """

    name: str
    colour: str
    done_s: tuple[float | None, ...]

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


class LiveView(anywidget.AnyWidget):
    """A view of a run; give it another one with `watch`.

    The browser asks for everything once, when it shows the view, and gets only what is new from then on.
    """

    _css = source("app.css")

    def __init__(self, run: LiveRun | None = None, *, ghosts: Sequence[Ghost] = ()) -> None:
        super().__init__()
        self.run: LiveRun | None = None
        self.ghosts: tuple[Ghost, ...] = ()
        self._n_told = 0
        self.on_msg(self._hear)
        if run is not None:
            self.watch(run, ghosts=ghosts)

    def watch(self, run: LiveRun, *, ghosts: Sequence[Ghost] = ()) -> None:
        """Show this run from now on, with traces of earlier ones."""
        if self.run is not None:
            self.run.unlisten(self._tell)
        self.run, self.ghosts = run, tuple(ghosts)
        run.listen(self._tell)
        self.tell_all()

    def tell_all(self) -> None:
        """Send everything there is."""
        run = self.run
        if run is None:
            return
        self._n_told = len(self.rows(run))
        groups = set(range(run.board.cluster.n_groups))
        content = {"kind": "all", "look": LOOK, "until": self._guess_s(run)} | self.frame(run)
        self.send(content | self._moment(run, groups), [as_bytes(self.rows(run))])

    def _tell(self, groups: set[int]) -> None:
        """Send what is new."""
        run = self.run
        if run is None:
            return
        new = self.rows(run)[self._n_told :]
        self._n_told += len(new)
        self.send({"kind": "new"} | self._moment(run, groups), [as_bytes(new)])

    def _hear(self, _: object, content: dict[str, Any], __: object) -> None:
        if content.get("kind") == "hello":
            self.tell_all()

    def _guess_s(self, run: LiveRun) -> float:
        """Return how long the time axis is at first."""
        return max(1.05 * float(run.board.jobs.arrival_s[-1]), *(ghost.end_s for ghost in self.ghosts), 0.0)

    def _moment(self, run: LiveRun, groups: set[int]) -> dict[str, Any]:
        return {"now": run.now_s, "over": run.state == "done"} | self.now(run, groups)

    # --- what a kind of view tells

    def rows(self, run: LiveRun) -> Sequence[tuple[float, ...]]:
        """Return the history that it paints; it only grows."""
        raise NotImplementedError

    def frame(self, run: LiveRun) -> dict[str, Any]:
        """Return what stays as it is during a run."""
        raise NotImplementedError

    def now(self, run: LiveRun, groups: set[int]) -> dict[str, Any]:
        """Return what is shown of this moment only."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.run.name if self.run else 'nothing'}>"


class LiveGantt(LiveView):
    """Who runs when: a row per job in order of arrival, a bar while it holds tasks, darker with more GPUs."""

    _esm = source("timeline.js", "gantt.js")

    def rows(self, run: LiveRun) -> Sequence[tuple[float, ...]]:
        """Return (job, time_s, what it does from then on, GPUs)."""
        return run.board.changes.jobs

    def frame(self, run: LiveRun) -> dict[str, Any]:
        """Return the jobs, the colours and the earlier runs."""
        jobs = run.board.jobs
        gpus = np.maximum(
            jobs.max_workers * jobs.worker_demand[:, GPUS] + jobs.max_ps * jobs.ps_demand[:, GPUS], jobs.gpus
        )
        shown = [ghost for ghost in self.ghosts if len(ghost.done_s) == len(jobs)]
        return {
            "title": f"Who runs when under {run.name}",
            "colour": colour(run.name),
            "most": max(1, round(float(min(gpus.max(), run.board.cluster.n_gpus)))),
            "jobs": [[str(id), str(model)] for id, model in zip(jobs.id, jobs.model_names(), strict=True)],
            "ghosts": [{"name": g.name, "colour": g.colour, "done_s": g.done_s} for g in shown],
        }

    def now(self, run: LiveRun, groups: set[int]) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: it is all history."""
        return {}


class LiveHeatMap(LiveView):
    """How full each machine is: over time, and its GPUs now; device groups stand apart."""

    _esm = source("timeline.js", "heat_map.js")

    def rows(self, run: LiveRun) -> Sequence[tuple[float, ...]]:
        """Return (machine, time_s, GPUs held there from then on)."""
        return run.board.changes.machines

    def frame(self, run: LiveRun) -> dict[str, Any]:
        """Return the machines and their device groups."""
        cluster = run.board.cluster
        built = np.bincount(cluster.group_machine, cluster.capacity[:, GPUS], cluster.n_machines)
        return {
            "title": f"How full the machines are under {run.name}",
            "machines": [list(pair) for pair in zip(cluster.machines, built.tolist(), strict=True)],
            "owners": [
                [int(machine), float(gpus)]
                for machine, gpus in zip(cluster.group_machine, cluster.capacity[:, GPUS], strict=True)
            ],
        }

    def now(self, run: LiveRun, groups: set[int]) -> dict[str, Any]:
        """Return the load of some device groups, and whose it is."""
        return {"groups": [_told(run, group) for group in sorted(groups)]}


def _told(run: LiveRun, group: int) -> tuple[int, float, str]:
    board = run.board
    held = board.tasks.get(group, {})
    gone = board.down(int(board.cluster.group_machine[group]))
    says = ", ".join(f"job {board.jobs.id[job]}: {gpus:g} GPUs" for job, gpus in held.items() if gpus)
    return group, -1.0 if gone else sum(held.values()), says


class LiveCards(anywidget.AnyWidget):
    """A run in a few numbers, now."""

    _esm = source("cards.js")
    _css = source("app.css")
    cards: Any = traitlets.List([]).tag(sync=True)

    def __init__(self, run: LiveRun | None = None) -> None:
        super().__init__()
        self.run: LiveRun | None = None
        self.cards = cards_of({})
        if run is not None:
            self.watch(run)

    def watch(self, run: LiveRun) -> None:
        """Show this run from now on."""
        if self.run is not None:
            self.run.unobserve(self._tell, "metrics")
        self.run = run
        run.observe(self._tell, "metrics")
        self.cards = cards_of(run.metrics)

    def _tell(self, change: dict[str, Any]) -> None:
        self.cards = cards_of(change["new"])

    def __repr__(self) -> str:
        return "<LiveCards>"


def cards_of(metrics: dict[str, Any]) -> list[list[str]]:
    """Return [name, value] of each card.

    >>> cards_of({})[0]
    ['clock', '–']
    """

    def count(name: str) -> str:
        return f"{metrics[name]:,}" if metrics else "–"

    held = f"{metrics['gpus_held']:g} / {metrics['n_gpus']}" if metrics else "–"
    return [
        ["clock", human_s(metrics["now_s"]) if metrics else "–"],
        ["mean JCT so far", human_s(metrics["mean_jct_s"]) if metrics else "–"],
        ["running", count("n_running")],
        ["waiting", count("n_waiting")],
        ["completed", f"{metrics['n_done']:,} / {metrics['n_jobs']:,}" if metrics else "–"],
        ["GPUs held", held],
        ["decisions", count("n_decisions")],
    ]
