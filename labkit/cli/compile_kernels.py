"""Compile all kernels now, so that no first run waits for it: `python -m labkit.cli.compile_kernels`, as `make` does.

numba compiles a kernel when it is called for the first time, so a little of everything is simulated, and trained, here.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from labkit import placers, schedulers
from labkit.core import Jobs
from labkit.core.outside import reproductions
from labkit.experiment import Experiment, every_slot
from labkit.kernels.watching import watched
from labkit.simulator import Faults, Losses, Overheads, Variation
from labkit.speed.dl2 import fitted
from labkit.speed.measured import MeasuredSpeed
from labkit.system.progress import ProgressLines
from labkit.topology import build
from labkit.workloads import dl2_jobs, marl_jobs
from labkit.workloads.catalogue import DL2_MODELS
from labkit.workloads.expressions import trace

EVERY_S = 10.0
"""Seconds from one line about the parts that are done to the next."""

PUBLISHED = ("drf", "fifo", "srtf", "tetris", "optimus")


def compile_all() -> None:
    """Compile what is not compiled yet, on all cores.

    What all parts share comes first: of two processes that need the same kernel at the same time, one waits.
    """
    with ProgressLines(1 + len(PARTS), unit="parts of the kernels", every_s=EVERY_S) as lines:
        _compile(_placers)
        lines.done = 1
        with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
            for done in as_completed([pool.submit(_compile, part) for part in PARTS]):
                done.result()
                lines.done += 1


def _compile(part: Callable[[], None]) -> None:
    """Run a part; what it has to say of the runs is of no interest."""
    with watched(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part()


def _placers() -> None:
    """Run every placer on a network, with all that makes a run less than ideal."""
    few = Experiment.of(trace("poisson(4, per_hour=60)"), cluster="demo")
    disturbed = replace(
        few, overheads=Overheads(start_s=5, restart_s=5, rescale_s=5), variation=Variation(period_s=600, error=0.1),
        faults=Faults(mtbf_s=1e6, mttr_s=600), losses=Losses(np.full((4, 3), 0.5), report_s=600),
    )  # fmt: skip
    for name in placers.available():
        disturbed.run(schedulers.make("las", placer=placers.make(name)))
        few.run(schedulers.make("optimus", placer=placers.make(name)))


def _schedulers() -> None:
    """Run every scheduler on GPUs of several types, Gavel's by its published rules too."""
    jobs = trace("gavel_jobs(4, multi_gpu=True)")
    few = Experiment.of(jobs.with_columns(recorded_start_s=jobs.arrival_s), cluster="gavel-8-16-24")
    for name in schedulers.available():
        few.run(name)
    few.run("gavel_las(published=True)")


def _classics() -> None:
    """Run one of the schedulers that decide in compiled code; the others need no more of it."""
    jobs, cluster = Jobs.of(arrival_s=[0.0, 1.0], total_steps=[2.0, 2.0], duration_s=2.0), build("no_network(1)")
    session = Experiment.of(jobs, cluster=cluster, speed="recorded").session(schedulers.make("srtf"))
    session.compiled = True
    session.run(schedulers.make("srtf"))


def _pods() -> None:
    """Run jobs that slow each other, on a network, under schedulers in pods."""
    few = Experiment.of(marl_jobs(1, n_slots=1, per_slot=1), cluster="marl-4x20", interference="calibrated")
    for name in ("fifo", *(name for name in schedulers.available() if name.endswith("_pods")), "marl"):
        few.run(name)


def _slots() -> None:
    """Run DL2's setting, by its published rules too, if they are installed."""
    jobs = dl2_jobs("testbed_6n", seed=1)
    speed = MeasuredSpeed(jobs, build("dl2-6n"), table=fitted())
    few = Experiment.of(jobs, cluster="dl2-6n", speed=speed, cadence=every_slot(300))
    for name in PUBLISHED:
        few.run(name)
        if "dl2_simulator" in reproductions():
            few.run(schedulers.make(name, published=True, **{"speeds": speed.grid} if name == "optimus" else {}))


def _dl2() -> Experiment:
    return Experiment.of(dl2_jobs("testbed_6n", seed=1), cluster="dl2-6n", cadence=every_slot(300))


def _environments() -> None:
    """Learn in slots."""
    from labkit.learning import SlotEnvs

    envs = SlotEnvs(_dl2(), n_envs=2, slot_s=300)
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))


def _gangs() -> None:
    """Train DL2's policy, ours, a little."""
    from labkit.learning.dl2 import Recipe, Trainer

    recipe = Recipe(n_lessons=1, n_rounds=1, n_envs=2, n_branches=2, n_slots=2, n_units=8, n_parts=1)
    made = Trainer(lambda _: _dl2(), DL2_MODELS, 300.0, seed=1, recipe=recipe)
    for _ in range(made.n_updates):
        made.update()


def _gangs_in_pods() -> None:
    """Train the placement policy a little."""
    from labkit.learning.marl.settings import Setting
    from labkit.learning.marl.trainer import Recipe, Trainer

    recipe = Recipe(n_lessons=1, n_rounds=1, n_draws=2, n_hidden=4, n_units=5, n_fits=5, n_epochs=1)
    trained_on = Setting(["marl-4x20"], ["marl_jobs(load=1, n_slots=1, per_slot=1)"])
    made = Trainer(trained_on, seed=1, recipe=recipe)
    for _ in range(made.n_updates):
        made.update()


def _runtime() -> None:
    """Load the kernels of the elastic runtime, which are compiled on import."""
    import labkit.elastic.server.kernels  # noqa: F401


PARTS: tuple[Callable[[], None], ...] = (_schedulers, _classics, _pods, _slots, _runtime)
if find_spec("torch") is not None:  # without it nothing is trained
    REPRODUCTIONS = [each.compile_kernels for each in reproductions().values() if hasattr(each, "compile_kernels")]
    PARTS = (_gangs_in_pods, *REPRODUCTIONS, _schedulers, _classics, _gangs, _pods, _slots, _environments, _runtime)


if __name__ == "__main__":
    print("compiling kernels: once after an install or an update ...", file=sys.stderr, flush=True)
    compile_all()
