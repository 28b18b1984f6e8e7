"""`labkit profile` and `fab profile`: measure a testbed, write its profile, and show what is in it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.core.errors import InputError
from labkit.core.files import refuse_unwritable
from labkit.core.text import split_names
from labkit.speed.profiled import TestbedProfile, write
from labkit.system.progress import counter, in_notebook
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.crowd import SIZE
from labkit.testbed.profiling.gangs import MeasuredKind, kinds_named, kinds_of
from labkit.testbed.profiling.measure import LOADS, measure
from labkit.testbed.run.training import TrainingTable
from labkit.workloads import read as read_trace


def asked(trace: str | Path | None, models: str, *, max_ps: int, max_workers: int, sync: bool) -> list[MeasuredKind]:
    """Return the kinds to measure: models of a trace up to their largest gangs, or models by name.

    Raises
    ------
    InputError
        If neither or both are given.
    """
    if (trace is None) == (not models):
        raise InputError("expected either --models, such as dssm,wlm, or --trace FILE, whose models are measured.")
    if trace is not None:
        return kinds_of(read_trace(trace))
    return kinds_named(split_names(models), max_ps=max_ps, max_workers=max_workers, sync=sync)


def usual_path(inventory: Inventory) -> Path:
    """Return the default path of a profile: profiles/, by the name of the inventory."""
    return Path("profiles") / f"{name_of(inventory)}.json"


def name_of(inventory: Inventory) -> str:
    """Return the name of a testbed: that of its inventory's file; hosts.toml of the laptop testbed: laptop."""
    kinds = {machine.host.device_type for machine in inventory}
    return "laptop" if kinds == {"laptop"} else inventory.path.stem


def profile(
    inventory: Inventory,
    kinds: Sequence[MeasuredKind],
    *,
    out: Path | None = None,
    training: TrainingTable | None = None,
    loads: Sequence[int] = LOADS,
    n_crowd: int = SIZE,
    progress: bool = True,
) -> tuple[TestbedProfile, Path]:
    """Measure a testbed, and write its profile whole or not at all; return profile and path.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    kinds : sequence of MeasuredKind
        What to train.
    out : Path, optional
        The file; by default profiles/NAME.json.
    training, loads, n_crowd
        As `labkit.testbed.profiling.measure.measure` takes them.
    progress : bool
        Show a progress bar.
    """
    there = out or usual_path(inventory)
    refuse_unwritable(there)
    with _ending_at_sigterm(), _Bar(shown=progress) as bar:
        made = measure(
            inventory, kinds, training=training, loads=loads, n_crowd=n_crowd, name=name_of(inventory),
            command=_command(), say=bar.say, total=bar.total,
        )  # fmt: skip
    return made, write(made, there)


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C: end processes on hosts now, not when their lease is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Bar:
    """A progress bar with one step per measurement; lines if there is no terminal."""

    def __init__(self, *, shown: bool) -> None:
        self._lines = shown and not sys.stderr.isatty() and not in_notebook()
        self._bar = counter(None, name="profile", unit="measurement", shown=shown and not self._lines)
        self._n = self._of = 0

    def total(self, n: int) -> None:
        """Set the number of steps."""
        self._of = n
        self._bar.reset(total=n)

    def say(self, what: str) -> None:
        """Count a step."""
        self._n += 1
        self._bar.set_postfix_str(what, refresh=False)
        self._bar.update(1)
        if self._lines:
            print(f"profile: {self._n} of {self._of}: {what}", file=sys.stderr, flush=True)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _command() -> str:
    import shlex

    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""


def show(made: TestbedProfile, path: Path) -> None:
    """Print what was measured, and the path of the profile."""
    from labkit.testbed.terminal import show_frame

    show_frame(table(made))
    for note in made.made.notes:
        print(f"note: {note}")
    print(f"{path}: measured in {made.made.took_s:.0f} s")


def table(made: TestbedProfile) -> Any:
    """Return a row for each gang: speed, cores in use, and overheads of starts and rescales of its model."""
    import pandas as pd

    rows = []
    for cell in made.cells:
        done = cell.step_s is not None
        rows.append(
            {
                "model": cell.model + ("" if cell.sync else " (async)"), "PS": cell.n_ps, "workers": cell.n_workers,
                "hosts": cell.n_hosts, "ms/step": f"{1e3 * (cell.step_s or 0):.1f}" if done else "-",
                "±": f"{1e3 * cell.spread_s:.1f}" if done else "-",
                "cores": f"{cell.cpu_s / (cell.step_s or 1):.2f}" if done else "-",
                "start s": _typical(made, "start", cell.model), "rescale s": _typical(made, "rescale", cell.model),
                "failed": cell.failed,
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame if frame["failed"].any() else frame.drop(columns="failed")


def _typical(made: TestbedProfile, kind: str, model: str) -> str:
    found = [row for row in made.overheads if (row.kind, row.model) == (kind, model)]
    return f"{max(found, key=lambda row: row.n).median_s:.1f}" if found else "-"
