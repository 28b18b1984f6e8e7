"""What `labkit demo` runs: a trace and a cluster to compare schedulers on, and three jobs that really train."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.system.progress import StageLines
from labkit.workloads import named_traces, readers

if TYPE_CHECKING:
    from labkit.results.record import RunRecord
    from labkit.speed.profiled import TestbedProfile
    from labkit.testbed.inventory import Inventory

CLUSTER = "demo"
TRACE = named_traces.FOLDER / "demo.csv"
TO_TRAIN = named_traces.FOLDER / "testbed.csv"
PROFILE = named_traces.FOLDER / "testbed-profile.json"
"""Of a laptop testbed on two cores of another machine."""
N_HOSTS: Final = 3
"""Each with one GPU in name: two jobs have room to grow, three have not."""
SCHEDULER: Final = "optimus"


@dataclass(frozen=True, slots=True)
class Twins:
    """Jobs that really trained, and the simulation of the same."""

    real: RunRecord
    simulated: RunRecord
    """`real` and `simulated`: the runs."""
    notes: list[str]
    """What went wrong on the way, in words."""
    rests_on: str
    """What the simulation knows of this machine, in a sentence or two."""


def trace() -> Jobs:
    """Return the jobs of the demo; InputError if labkit was installed without its traces/ folder."""
    return _shipped(TRACE)


def train(lines: StageLines) -> Twins:
    """Train three jobs on a laptop testbed of their own, and simulate the same.

    What the simulation knows of the testbed is a shipped profile of another machine, scaled by one job that trains here
    for a few seconds before. The testbed is gone afterwards, also after Ctrl-C.

    Parameters
    ----------
    lines : StageLines
        Is told the stages, and prints what is worth a line.

    Raises
    ------
    LabkitError, ImportError, OSError
        If there cannot be such a testbed here, or nothing could be trained on it.
    """
    from labkit.experiment.deployed import deploy
    from labkit.experiment.gap import predict
    from labkit.testbed.laptop import Bed
    from labkit.testbed.run.backend import NOTES

    jobs = _shipped(TO_TRAIN)
    with _bed_folder() as folder:
        bed = Bed.up(N_HOSTS, folder=folder, gpus=1)
        for note in bed.notes:
            lines.say(f"note: {note}")
        profile, rests_on = _calibrated(bed.inventory, model=jobs.models[jobs.model[0]], lines=lines)
        steps = _Steps(jobs)
        lines.stage, lines.detail = f"training {len(jobs)} jobs", steps.line
        lines.say(
            f"{len(jobs)} jobs train on a laptop testbed of {N_HOSTS} hosts ({bed.plan.server}), under {SCHEDULER} ..."
        )
        real = deploy(
            jobs, inventory=bed.inventory, scheduler=SCHEDULER, runs=folder.with_name("runs"), speed="recorded",
            observers=[steps],
        )  # fmt: skip
        notes = folder.with_name("runs") / real.info.run / NOTES
        told = notes.read_text().splitlines() if notes.exists() else []
    return Twins(real, predict(real, profile=profile), told, rests_on)


class _Steps:
    """An observer of a run: how many steps each job has done."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs, self._steps = jobs, np.zeros(len(jobs))

    def __call__(self, batch: Events) -> None:
        trains = batch[np.isin(batch["kind"], (Kind.STARTED, Kind.RESCALED, Kind.PROGRESSED, Kind.COMPLETED))]
        self._steps[trains["job"]] = trains["value"]

    def line(self) -> str:
        """Return the steps of each job."""
        done = zip(self._jobs.id.tolist(), self._steps.tolist(), self._jobs.total_steps.tolist(), strict=True)
        return ", ".join(f"{name} {n:,.0f} of {total:,.0f} steps" for name, n, total in done)


def _calibrated(inventory: Inventory, *, model: str, lines: StageLines) -> tuple[TestbedProfile, str]:
    """Return the shipped profile scaled to this machine, and what that rests on; as it is where that fails."""
    from labkit.speed.profiled import read
    from labkit.testbed.profiling.isolated import calibrated

    shipped = read(PROFILE)
    lines.stage = "calibrating"
    lines.say("calibrating: one job trains alone on this machine for a few seconds ...")
    try:
        profile, ratios = calibrated(inventory, shipped, model=model)
    except (LabkitError, OSError) as error:
        said = f"{_OTHER_MACHINE}, and this one could not be measured ({' '.join(str(error).split())})"
        lines.say(f"note: {said}; the simulation will be off")
        return shipped, f"{said}. So the difference is that of the two machines, not of the simulator. {_IN_FULL}"
    lines.say(f"calibrated: {ratios}")
    return profile, f"{_OTHER_MACHINE}, scaled by one job that trained here for a few seconds: {ratios}. {_IN_FULL}"


_OTHER_MACHINE: Final = "The simulation uses speeds and start times of another machine"
_IN_FULL: Final = "`labkit profile` measures this one in full, in about three minutes (docs/testbed-fidelity.md)."


def _shipped(path: Path) -> Jobs:
    if not path.is_file():
        raise InputError("the demo's trace is not there; run it in a checkout of labkit, with 'make demo'.")
    return readers.read(path)


@contextmanager
def _bed_folder() -> Iterator[Path]:
    """Yield where a laptop testbed may be; afterwards it is gone, also one that was interrupted while it came up."""
    from labkit.testbed.laptop import down

    short = "/tmp" if Path("/tmp").is_dir() else None
    with (
        _handled(_interrupt, signal.SIGTERM, signal.SIGHUP),
        tempfile.TemporaryDirectory(prefix="labkit-", dir=short) as made,
    ):
        try:
            yield Path(made) / "bed"
        finally:
            with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a second Ctrl-C waits too
                down(Path(made) / "bed")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Do what Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *signals: signal.Signals
) -> Iterator[None]:
    """Let signals be handled in another way."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
