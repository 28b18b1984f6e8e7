"""DL2 as published: what its network sees and how it decides (`policy`), and each part of its training.

`switches` say what differs between the paper and its released code; `warm_up` has the teacher's decisions, `learner`
networks, memory and updates, `trainer` joins them, `federated` does so on several clusters, `online` in a session.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from reproductions.dl2.command import lent_trainer
from reproductions.dl2.scheduler import FILES, Flat, FlatWeights, load_flat
from reproductions.dl2.switches import Published

__all__ = ["WEIGHTS", "Flat", "FlatWeights", "Published", "compile_kernels", "lent_trainer", "load_flat"]

WEIGHTS = FILES, load_flat


def compile_kernels() -> None:
    """Train the network a little, by the rules of the paper and of the released code, and let it decide."""
    from labkit.experiment import Experiment, every_slot
    from labkit.workloads import dl2_jobs
    from labkit.workloads.catalogue import DL2_MODELS
    from reproductions.dl2.trainer import Trainer

    few = Experiment.of(dl2_jobs("testbed_6n", seed=1), cluster="dl2-6n", cadence=every_slot(300))
    for rules in (Published(first_bundle=True, fairness=0.1), Published.released()):
        switches = replace(rules, n_jobs=6, n_units=8, n_taught=1, n_lessons=1, n_rounds=1, batch=16, replay=64)
        made = Trainer(lambda _: few, list(DL2_MODELS), 300.0, seed=1, switches=switches)
        for _ in range(made.n_updates):
            made.update()
        with tempfile.TemporaryDirectory() as folder:
            made.weights("").save(Path(folder) / "w.safetensors")
            few.run(f"dl2(published=True, weights='{folder}/w.safetensors')")
