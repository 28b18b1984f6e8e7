"""Compile all kernels now, so that no first run waits for it: `python -m labkit.compile_kernels`, as `make` does.

numba compiles a kernel when it is called for the first time, so a little of everything is simulated here.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

import numpy as np

from labkit import kernel_cache, placers, schedulers
from labkit.experiment import Experiment, every_slot
from labkit.learning import SlotEnvs
from labkit.learning.marl.episodes import How
from labkit.learning.marl.plays import Play, played
from labkit.learning.marl.settings import Setting
from labkit.schedulers.marl.network import plain
from labkit.simulator import Faults, Losses, Overheads, Variation
from labkit.speed.dl2 import fitted
from labkit.speed.measured import MeasuredSpeed
from labkit.topology import build
from labkit.workloads import dl2_jobs, marl_jobs
from labkit.workloads.expressions import trace

PUBLISHED = ("drf", "fifo", "srtf", "tetris", "optimus")


def compile_all() -> float:
    """Compile what is not compiled yet; return the seconds that took."""
    with kernel_cache.watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _schedulers()
        _slots()
        _network()
        _retiming()
        _plays()
        import labkit.elastic.kernels  # noqa: F401 - compiled on import
    return seen.seconds


def _schedulers() -> None:
    """Run every scheduler on GPUs of several types."""
    few = Experiment.of(trace("gavel_jobs(4, multi_gpu=True)"), cluster="gavel-8-16-24")
    for name in schedulers.available():
        few.run(name)


def _slots() -> None:
    """Run DL2's setting, by its published rules too, and learn in it."""
    jobs = dl2_jobs("testbed_6n", seed=1)
    speed = MeasuredSpeed(jobs, build("dl2-6n"), table=fitted())
    few = Experiment.of(jobs, cluster="dl2-6n", speed=speed, cadence=every_slot(300))
    for name in PUBLISHED:
        few.run(name)
        few.run(schedulers.make(name, published=True, **{"speeds": speed.grid} if name == "optimus" else {}))
    envs = SlotEnvs(few, n_envs=2, slot_s=300)
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))


def _retiming() -> None:
    """Run jobs that slow each other, on a network."""
    few = Experiment.of(marl_jobs(1, n_slots=1, per_slot=1), cluster="marl-4x20", interference="calibrated")
    few.run("fifo")


def _plays() -> None:
    """Play a trace, as the training of the placement policy does."""
    setting = Setting(["marl-4x20"], ["marl_jobs(1, n_slots=1, per_slot=1)"], "calibrated")
    played(setting, Play(plain(), How(True, True, 0.5, False), 0, 0, 100))


def _network() -> None:
    """Run every placer on a network, with all that makes a run less than ideal."""
    few = Experiment.of(trace("poisson(4, per_hour=60)"), cluster="demo")
    disturbed = replace(
        few, overheads=Overheads(start_s=5, restart_s=5, rescale_s=5), variation=Variation(period_s=600, error=0.1),
        faults=Faults(mtbf_s=1e6, mttr_s=600), losses=Losses(np.full((4, 3), 0.5), report_s=600),
    )  # fmt: skip
    for name in placers.available():
        disturbed.run(schedulers.make("las", placer=placers.make(name)))
        few.run(schedulers.make("optimus", placer=placers.make(name)))


if __name__ == "__main__":
    print("compiling kernels: a minute or two, once after an install or an update ...", file=sys.stderr, flush=True)
    compile_all()
